//! What a tiered world is like: its members, its volume, its clients, and what goes wrong.

use super::space::Space;
use crate::disk::{CUT_MODES, CutMode, FlushLoss};
use crate::rng::Rng;
use crate::swarm::Latency;
use forebay_format::tier::{EXTENT_SIZE, PAGE_ENTRIES, TierLayout};
use forebay_format::{SECTOR_SIZE, SECTORS_PER_BLOCK};
use forebay_tier::{Placement, Tuning};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// Most extents of a volume that clients use.
const EXTENTS_MAX: u64 = 40;
/// Most plans that fit into the time in which a tier is emptied.
const PLANS_MAX: u64 = 10_000;

/// A member of the set.
#[derive(Debug, Clone)]
pub struct MemberPlan {
    pub tier: u8,
    pub slots: u64,
    /// Bytes beyond its slots.
    pub rest: u64,
    /// RAM: its content goes with the power.
    pub is_ram: bool,
    /// It has a volatile write cache.
    pub has_cache: bool,
    pub discards: bool,
    pub piece_blocks: u32,
    /// Blocks of a stripe; 0 where there are none.
    pub stripe_blocks: u32,
    pub latency: Latency,
    /// It belongs to the set, as far as is known.
    pub is_in: bool,
    /// Its identity.
    pub uuid: [u8; 16],
}

/// How often each client operation is chosen, by weight.
#[derive(Debug, Clone)]
pub struct Mix {
    pub read: u64,
    pub write: u64,
    pub flush: u64,
    pub zero: u64,
    pub discard: u64,
    /// Share of the removals that take whole extents.
    pub whole: f64,
    /// Share of the removals that take the whole volume.
    pub everything: f64,
    /// Share of the requests that change something after which the same place is read.
    pub look: f64,
}

/// Where and how large requests are.
#[derive(Debug, Clone)]
pub struct Places {
    /// Most sectors of a usual request.
    pub sectors_max: u64,
    /// Most sectors of a large one.
    pub large_max: u64,
    /// Share of large ones.
    pub large: f64,
    /// Share of requests on block boundaries.
    pub aligned: f64,
    /// Share of requests that fall into the hot part.
    pub hot: f64,
    /// Sectors of the hot part.
    pub hot_sectors: u64,
    /// The hot part moves after so many requests.
    pub hot_requests: u64,
    /// Share of requests with which a client goes on where it ended, doing the same.
    pub sequential: f64,
    /// Requests begin within so many sectors of their extent, if this is not zero.
    pub window: u64,
    /// And this share of them in an extent that is being moved, if there is one.
    pub moving: f64,
}

/// How often an administrator does what, by weight.
#[derive(Debug, Clone)]
pub struct Admin {
    /// Time between commands at most, nanoseconds; 0 for none.
    pub pause_ns: u64,
    pub pause: u64,
    pub resume: u64,
    pub evacuate: u64,
    pub cancel: u64,
    pub resize: u64,
    /// Members join, leave, are given up.
    pub add: u64,
    pub remove: u64,
    pub give_up: u64,
    pub pin: u64,
    pub tune: u64,
}

/// What breaks besides the power.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Errors of each kind, per life at most.
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    /// Share of errors that last until the end of the life.
    pub lasting: f64,
    /// What a failed flush does.
    pub loss: Option<FlushLoss>,
    /// Share of lives in which a member dies.
    pub dies: f64,
    /// Share of lives in which members have no room for anything new for a while.
    pub no_room: f64,
    /// Share of lives in which a member does not answer for a while.
    pub hangs: f64,
    /// Share of starts at which a member is missing.
    pub missing: f64,
    /// Share of starts before which the map of one of two holders rots.
    pub rot: f64,
    /// Share of lives in which also the last holder of the map may fail for a while.
    pub reckless: f64,
    /// Power cuts spoil sectors of the map in flight.
    pub spoil: bool,
}

/// How lives end.
#[derive(Debug, Clone)]
pub struct Ends {
    /// Weights: power cut, killed process, orderly stop.
    pub weights: [u64; 3],
    /// Share of the orderly stops that a crash cuts short.
    pub stop_cut: f64,
    /// Share of starts that end within the first events.
    pub early: f64,
    /// Most events of a life that ends in a crash.
    pub events_max: u64,
    /// Share of the lives that end in a crash which comes soon after a move has begun.
    pub at_move: f64,
    /// And of those in which it comes soon after a look at what was changed.
    pub at_look: f64,
    /// Share of lives before which the set is made anew.
    pub remade: f64,
    pub cut_modes: Vec<CutMode>,
}

/// The world of one seed.
#[derive(Debug, Clone)]
pub struct Plan {
    pub lives: u64,
    /// Requests of each life.
    pub requests: u64,
    pub clients: usize,
    /// Requests that each has under way.
    pub depth: u64,
    pub think_ns: u64,
    pub long_pause_one_in: u64,
    pub members: Vec<MemberPlan>,
    pub journal_blocks: u32,
    /// Parts of the volume that clients use: first extent, extents.
    pub parts: Vec<(u64, u64)>,
    /// Bytes of the volume at first, and that it may grow to.
    pub bytes: u64,
    pub bytes_max: u64,
    pub overcommit: bool,
    pub tuning: Tuning,
    /// Share of lives with a tuning of their own.
    pub retuned: f64,
    pub mix: Mix,
    pub places: Places,
    pub admin: Admin,
    pub faults: Faults,
    pub ends: Ends,
    pub batch_max: u64,
    pub check_one_in: u64,
}

impl Plan {
    /// Draws the world of a seed.
    pub fn draw(rng: &mut Rng, swarm: bool) -> Plan {
        let members = draw_members(rng);
        let journal_blocks = if rng.coin() { 64 } else { rng.range(65, 256) as u32 };
        let slots: u64 = members.iter().map(|member| member.slots).sum();
        let overcommit = slots < 3 || rng.one_in(4);
        let extents = if overcommit {
            rng.range(slots, 2 * slots + 2)
        } else if rng.coin() {
            slots - rng.below(3).min(slots - 2)
        } else {
            rng.range(2, slots)
        };
        let extents = extents.clamp(2, EXTENTS_MAX);
        let parts = draw_parts(rng, extents, overcommit);
        let (first, count) = *parts.last().expect("at least one part");
        let end = (first + count) * EXTENT_SIZE;
        let whole = rng.coin();
        let less = if whole { 0 } else { SECTOR_SIZE as u64 * rng.range(1, 2047) };
        let bytes = end - less;
        let room = if overcommit { 4 } else { slots - extents };
        let more = if rng.coin() { rng.range(0, room) } else { 0 };
        let lives = rng.range(1, 6);
        let requests = rng.log_range(200, 3000) / lives + 1;
        let hot_sectors = rng.log_range(8, extents * 2048);
        let mut plan = Plan {
            lives,
            requests,
            clients: rng.range(1, 6) as usize,
            depth: rng.range(1, 3),
            think_ns: rng.log_range(MICROSECOND, 20 * MILLISECOND),
            long_pause_one_in: rng.log_range(10, 1000),
            journal_blocks,
            parts,
            bytes,
            bytes_max: end + more * EXTENT_SIZE,
            overcommit,
            tuning: draw_tuning(rng),
            retuned: if rng.coin() { 0.5 } else { 0.0 },
            mix: draw_mix(rng, swarm),
            places: draw_places(rng, hot_sectors),
            admin: draw_admin(rng, swarm),
            faults: if swarm { Faults::draw(rng) } else { Faults::default() },
            ends: draw_ends(rng, swarm),
            batch_max: rng.log_range(1, 16),
            check_one_in: rng.log_range(8, 128),
            members,
        };
        if swarm && rng.one_in(3) {
            plan.never_rest(rng);
        }
        // Other worlds stay what they are.
        let mut own = Rng::new(rng.clone().bits());
        if plan.admin.pause_ns > 0 && own.coin() {
            plan.change_members(&mut own);
        }
        if plan.admin.pause_ns > 0 && own.coin() {
            plan.admin.pin = own.log_range(1, 16);
            plan.admin.tune = own.log_range(1, 4);
        }
        if swarm && own.one_in(6) {
            plan.follow_moves(&mut own);
        }
        plan
    }

    /// Clients write and discard single blocks of what is being moved, in pieces that reach over
    /// many of them.
    fn follow_moves(&mut self, rng: &mut Rng) {
        self.never_rest(rng);
        self.clients = self.clients.max(3);
        self.depth = self.depth.max(2);
        self.think_ns = rng.log_range(10 * MICROSECOND, MILLISECOND);
        self.tuning.fine_max = 64;
        for member in &mut self.members {
            member.piece_blocks = rng.log_range(8, 64) as u32;
            member.stripe_blocks = [0, 48, 256][member.piece_blocks as usize % 3];
        }
        self.mix.write = rng.log_range(16, 64);
        self.mix.discard = rng.log_range(8, 64);
        (self.mix.whole, self.mix.everything) = (0.02, 0.0);
        self.places = Places {
            sectors_max: rng.pick(&[2, 8, 16]),
            large: 0.0,
            sequential: 0.0,
            window: rng.log_range(3, 32) * SECTORS_PER_BLOCK as u64,
            moving: rng.pick(&[0.5, 0.9]),
            ..self.places
        };
    }

    /// Members join and leave.
    fn change_members(&mut self, rng: &mut Rng) {
        let admin = &mut self.admin;
        admin.pause_ns = admin.pause_ns.min(rng.log_range(MILLISECOND, SECOND));
        admin.add = rng.log_range(1, 8);
        admin.remove = rng.log_range(1, 16);
        admin.give_up = rng.log_range(1, 16);
        admin.evacuate = admin.evacuate.max(4);
        if rng.coin() {
            // A tier is empty in no time.
            self.tuning.move_rate = self.tuning.move_rate.max(1_000_000_000);
        }
        if rng.coin() {
            self.faults.missing = self.faults.missing.max(0.3);
        }
    }

    /// Extents move all the time, in little room.
    fn never_rest(&mut self, rng: &mut Rng) {
        self.tuning = Tuning {
            placement: Placement::Heat,
            move_rate: rng.log_range(50_000_000, 4_000_000_000),
            reserve_rate: rng.log_range(50_000_000, 4_000_000_000),
            plan_every: rng.log_range(MILLISECOND, 20 * MILLISECOND),
            swap_cost: Some(rng.below(2) as u32),
            moves_max: rng.range(2, 6) as usize,
            ..self.tuning
        };
        self.retuned = 0.0;
        self.think_ns = rng.log_range(100 * MICROSECOND, 10 * MILLISECOND);
        self.places.hot = 0.9;
        self.places.hot_sectors = self.places.hot_sectors.min(4096);
        self.places.hot_requests = rng.log_range(10, 60);
        self.mix.everything = 0.0;
        self.mix.whole = self.mix.whole.min(0.1);
    }

    /// The volume as clients use it.
    pub fn space(&self) -> Space {
        Space::new(&self.parts, self.bytes_max)
    }

    /// Where things lie on the members.
    pub fn layout(&self) -> TierLayout {
        let extents_max = self.bytes_max.div_ceil(EXTENT_SIZE) as u32;
        let least = TierLayout::journal_blocks_min(extents_max);
        TierLayout { journal_blocks: self.journal_blocks.max(least), extents_max }
    }

    /// Bytes of a member.
    pub fn bytes_of(&self, member: usize) -> u64 {
        let plan = &self.members[member];
        self.layout().slots_offset() + plan.slots * EXTENT_SIZE + plan.rest
    }

    /// Whether there is a tier of this number.
    pub fn has_tier(&self, tier: u8) -> bool {
        self.members.iter().any(|member| member.is_in && member.tier == tier)
    }

    /// Tiers.
    pub fn tiers(&self) -> u8 {
        let used = self.members.iter().filter(|member| member.is_in);
        1 + used.map(|member| member.tier).max().expect("at least one member")
    }

    /// Whether the volume goes with the power.
    pub fn is_ephemeral(&self) -> bool {
        self.members.iter().any(|member| member.is_ram)
    }
}

fn draw_members(rng: &mut Rng) -> Vec<MemberPlan> {
    let tiers = rng.pick(&[1, 2, 2, 2, 3, 4]);
    let count = rng.range(tiers, 6.min(tiers + 2));
    let ephemeral = rng.one_in(16);
    let caches = rng.pick(&[0.5, 1.0, 1.0]);
    let discards = rng.pick(&[0.0, 0.5, 1.0]);
    let slots_max = rng.pick(&[3, 6, 12, 24]);
    let slow: Vec<Latency> = (0..tiers).map(|tier| draw_latency(rng, tier)).collect();
    let member = |number: u64| {
        let tier = if number < tiers { number } else { rng.below(tiers) };
        let is_ram = ephemeral && tier == 0;
        MemberPlan {
            tier: tier as u8,
            slots: rng.log_range(2, slots_max),
            rest: SECTOR_SIZE as u64 * if rng.coin() { 0 } else { rng.range(1, 2047) },
            is_ram,
            has_cache: !is_ram && rng.chance(caches),
            discards: rng.chance(discards),
            piece_blocks: rng.log_range(1, 16) as u32,
            stripe_blocks: 0,
            latency: slow[tier as usize].clone(),
            is_in: true,
            uuid: [0; 16],
        }
    };
    (0..count).map(member).collect()
}

fn draw_latency(rng: &mut Rng, tier: u64) -> Latency {
    let least = [10, 50, 200, 1000][tier as usize] * MICROSECOND;
    let base_ns = if rng.one_in(4) { 10 * MICROSECOND } else { least };
    Latency {
        base_ns,
        spread_ns: rng.log_range(base_ns, 20 * base_ns),
        spike_one_in: if rng.coin() { 0 } else { rng.log_range(20, 1000) },
    }
}

/// Parts of the volume, in extents. Some worlds have a map of several pages, of which clients use
/// both sides of the borders.
fn draw_parts(rng: &mut Rng, extents: u64, overcommit: bool) -> Vec<(u64, u64)> {
    if !overcommit || extents < 4 || rng.coin() {
        return vec![(0, extents)];
    }
    let pages = rng.range(1, 3);
    let mut parts = vec![(0, extents / (pages + 1))];
    for page in 1..=pages {
        let before = rng.range(0, 1);
        parts.push((page * u64::from(PAGE_ENTRIES) - before, extents / (pages + 1)));
    }
    parts
}

/// The policy's numbers. A plan is never so much more frequent than a move that a world is busy
/// with nothing but planning.
pub fn draw_tuning(rng: &mut Rng) -> Tuning {
    let move_rate = rng.log_range(10_000, 4_000_000_000);
    let takes = (EXTENTS_MAX * EXTENT_SIZE).saturating_mul(SECOND) / move_rate;
    let least = (takes / PLANS_MAX).max(MILLISECOND);
    Tuning {
        placement: if rng.one_in(4) { Placement::Spill } else { Placement::Heat },
        move_rate,
        reserve_rate: rng.log_range(10_000, 4_000_000_000),
        reserve_per_mille: rng.pick(&[0, 20, 100, 300]),
        plan_every: rng.log_range(least, (2 * SECOND).max(least)),
        swap_cost: Some(rng.below(9) as u32),
        moves_max: rng.range(1, 6) as usize,
        fine_max: rng.pick(&[0, 1, 2, 8, 64]),
    }
}

/// Switches an operation off in some worlds.
fn some(rng: &mut Rng, swarm: bool, most: u64) -> u64 {
    if swarm && rng.one_in(4) { 0 } else { rng.log_range(1, most) }
}

fn draw_mix(rng: &mut Rng, swarm: bool) -> Mix {
    Mix {
        read: some(rng, swarm, 32),
        write: rng.log_range(4, 64),
        flush: some(rng, swarm, 12),
        zero: some(rng, swarm, 8),
        discard: some(rng, swarm, 16),
        whole: rng.pick(&[0.0, 0.1, 0.5]),
        everything: rng.pick(&[0.0, 0.0, 0.02, 0.1]),
        look: rng.pick(&[0.0, 0.1, 0.5]),
    }
}

fn draw_places(rng: &mut Rng, hot_sectors: u64) -> Places {
    Places {
        sectors_max: rng.pick(&[2, 8, 16, 64, 256]),
        large_max: rng.pick(&[512, 2048, 6144]),
        large: rng.pick(&[0.0, 0.01, 0.05]),
        aligned: rng.pick(&[0.0, 0.5, 0.9, 1.0]),
        hot: rng.pick(&[0.0, 0.5, 0.9]),
        hot_sectors,
        hot_requests: rng.log_range(20, 1000),
        sequential: rng.pick(&[0.0, 0.2, 0.9]),
        window: 0,
        moving: 0.0,
    }
}

fn draw_admin(rng: &mut Rng, swarm: bool) -> Admin {
    let on = !swarm || rng.coin();
    Admin {
        pause_ns: if on { rng.log_range(MILLISECOND, 5 * SECOND) } else { 0 },
        pause: some(rng, swarm, 4),
        resume: 4,
        evacuate: some(rng, swarm, 8),
        cancel: some(rng, swarm, 8),
        resize: some(rng, swarm, 8),
        add: 0,
        remove: 0,
        give_up: 0,
        pin: 0,
        tune: 0,
    }
}

fn draw_ends(rng: &mut Rng, swarm: bool) -> Ends {
    let mut cut_modes: Vec<CutMode> = CUT_MODES.to_vec();
    if swarm {
        cut_modes.retain(|_| rng.coin());
    }
    if cut_modes.is_empty() {
        cut_modes.push(rng.pick(&CUT_MODES));
    }
    Ends {
        weights: match swarm {
            true => rng.pick(&[[4, 2, 1], [1, 0, 0], [0, 1, 0], [1, 1, 4]]),
            false => [2, 2, 1],
        },
        stop_cut: rng.pick(&[0.0, 0.3]),
        early: rng.pick(&[0.0, 0.1, 0.5]),
        events_max: rng.log_range(200, 20_000),
        at_move: rng.pick(&[0.0, 0.3, 0.9]),
        at_look: rng.pick(&[0.0, 0.0, 0.5]),
        remade: if rng.one_in(12) { 0.3 } else { 0.0 },
        cut_modes,
    }
}
