//! Which extents should move. Choices look at the state; `places.rs` knows where there is room for
//! them, and `moves.rs` obeys.
//!
//! From time to time the planner walks over the map in slices and remembers the coldest extents of
//! each tier and the hottest of those below. Then the reserve comes first, as it takes the next
//! burst of writes; after it swaps, each of which pays when the heat won exceeds what it costs.
//! Parameters were measured in a simulation of the policy (`docs/tiers.md`).

use crate::Mutant;
use crate::event::MemberId;
use crate::limits::{
    PLAN_EXTENTS, PLAN_STEP, SPILL_REST_NS, STALE_NS, STALE_WALKS, WALK_BUSY_NS, WALK_IDLE_NS,
};
use crate::moves::{Line, Why};
use crate::settings::Placement;
use crate::tiers::{Phase, Tiers};
use crate::view::Pending;
use crate::worth::least_to_swap;
use forebay_format::io::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An extent with its heat, as a number that sorts.
type Ranked = (u32, u32);

/// A move that seems worth while.
#[derive(Debug, Clone, Copy)]
struct Proposal {
    extent: u32,
    /// The tier in which it lives: elsewhere it does not count.
    from: u8,
    to: u8,
    why: Why,
}

/// What a walk has found.
#[derive(Debug, Default)]
struct Walk {
    began: Time,
    next: u32,
    /// When it goes on.
    due: Time,
    coldest: BTreeMap<u8, BTreeSet<Ranked>>,
    hottest: BTreeMap<u8, BTreeSet<Ranked>>,
    leaving: Vec<u32>,
    /// Extents that are pinned to another tier than theirs, with that.
    pinned: Vec<(u32, u8)>,
    /// Heat of each tier, and of how many extents.
    sums: BTreeMap<u8, (f64, u32)>,
}

/// The owner of plans.
#[derive(Debug)]
pub(crate) struct Planner {
    walk: Option<Walk>,
    due: Time,
    /// When what the last walk proposes is too old to be begun.
    stale_at: Time,
    /// Of each line, those that were not begun.
    proposals: [VecDeque<Proposal>; Line::ALL.len()],
    /// Extents that the last plan proposed to move: each one way.
    proposed: BTreeSet<u32>,
    /// When new data last went to a slower tier for want of room.
    spilled_at: Option<Time>,
    /// Mean heat of the extents of each tier, as the last walk found it.
    mean: BTreeMap<u8, f32>,
    /// Heat of the coldest extent of each tier that could leave it, as the last walk found it.
    coldest: BTreeMap<u8, f32>,
    /// Extents of the last plan for which there was no room where they should go.
    unplaced: u32,
}

/// Accesses for each extent of the faster tiers in which heat halves. More than any move costs.
const HALF_LIFE: f64 = 60.0;
/// What gains so many times what it costs does not wait for a quiet moment.
const GAIN: f32 = 1.5;

impl Planner {
    pub fn new(now: Time) -> Planner {
        Planner {
            walk: None,
            due: now,
            stale_at: now,
            proposals: Default::default(),
            proposed: BTreeSet::new(),
            spilled_at: None,
            mean: BTreeMap::new(),
            coldest: BTreeMap::new(),
            unplaced: 0,
        }
    }

    /// New data went to a slower tier for want of room.
    pub fn note_spill(&mut self, now: Time) {
        self.spilled_at = Some(now);
    }

    /// Until when what keeps the reserve gives way to new data that go to slower tiers.
    pub fn rests_until(&self, now: Time) -> Option<Time> {
        self.spilled_at.map(|at| at + SPILL_REST_NS).filter(|&until| until > now)
    }

    /// The numbers of tiers are others: all is looked at anew.
    pub fn forget(&mut self, now: Time) {
        let spilled_at = self.spilled_at;
        *self = Planner { spilled_at, ..Planner::new(now) };
    }

    /// Mean heat of the extents of a tier.
    pub fn mean(&self, tier: u8) -> Option<f32> {
        self.mean.get(&tier).copied()
    }

    /// Heat of the coldest extent of a tier, of those that could leave it.
    pub fn coldest(&self, tier: u8) -> Option<f32> {
        self.coldest.get(&tier).copied()
    }

    /// Extents that should move and have no room where they should go.
    pub fn unplaced(&self) -> u32 {
        self.unplaced
    }

    fn propose(&mut self, it: Proposal) {
        if self.proposed.insert(it.extent) {
            self.later(it);
        }
    }

    /// It is begun when those before it in its line were.
    fn later(&mut self, it: Proposal) {
        self.proposals[it.why.line() as usize].push_back(it);
    }

    /// Whether all that was proposed is begun.
    fn is_done(&self) -> bool {
        self.proposals.iter().all(VecDeque::is_empty)
    }

    /// The coldest of these that has not been proposed to move.
    fn pop_coldest(&self, cold: &mut BTreeSet<Ranked>) -> Option<Ranked> {
        std::iter::from_fn(|| cold.pop_first()).find(|it| !self.proposed.contains(&it.1))
    }

    /// And the hottest.
    fn pop_hottest(&self, hot: &mut BTreeSet<Ranked>) -> Option<Ranked> {
        std::iter::from_fn(|| hot.pop_last()).find(|it| !self.proposed.contains(&it.1))
    }

    /// A plan is wanted at once.
    pub fn hurry(&mut self, now: Time) {
        self.due = self.due.min(now);
    }
}

impl Tiers {
    pub(crate) fn plan_due(&self) -> Option<Time> {
        let is_open = matches!(self.phase, Phase::Open) && self.journal.is_held();
        if !is_open || self.moves.is_paused() {
            return None;
        }
        if let Some(walk) = &self.planner.walk {
            return Some(walk.due.max(self.io.now()));
        }
        let due = match self.may_plan() {
            true => self.planner.due,
            false => self.planner.due.max(self.planner.stale_at),
        };
        let plan = self.wants_plans().then_some(due);
        [plan, self.moves_due()].into_iter().flatten().min()
    }

    fn wants_plans(&self) -> bool {
        self.tuning.placement == Placement::Heat || self.is_evacuating() || !self.pins.is_empty()
    }

    /// Whether what was planned is begun, or too old to be begun, or has to wait for what the
    /// reserve lacks.
    fn may_plan(&self) -> bool {
        let is_stale = self.io.now() >= self.planner.stale_at;
        self.planner.is_done() || is_stale || self.lacks_reserve()
    }

    /// Whether less is free on a fast tier, or about to be, than is kept free there.
    fn lacks_reserve(&self) -> bool {
        let tiers = self.set.tiers();
        let fast = &tiers[..tiers.len().saturating_sub(1)];
        let lacks = |&tier: &u8| {
            let (slots, free) = self.room_of(tier);
            free < self.reserve_of(slots)
        };
        self.tuning.placement == Placement::Heat && fast.iter().any(lacks)
    }

    pub(crate) fn is_evacuating(&self) -> bool {
        self.set.here().any(|member| self.set.is_leaving(member))
    }

    /// Goes on with a walk, or begins moves that were proposed.
    pub(crate) fn step_plan(&mut self) {
        let is_open = matches!(self.phase, Phase::Open) && self.journal.is_held();
        if !is_open || self.moves.is_paused() || !self.wants_plans() {
            self.planner.walk = None;
            return;
        }
        self.begin_proposals();
        let now = self.io.now();
        let is_wanted = now >= self.planner.due && self.may_plan();
        if self.planner.walk.is_none() && is_wanted {
            self.planner.proposals.iter_mut().for_each(VecDeque::clear);
            self.planner.walk = Some(Walk { began: now, ..Walk::default() });
            self.planner.due = now + self.tuning.plan_every.max(1);
            let fast = self.fast_slots();
            self.map.set_half_life((f64::from(fast) * HALF_LIFE).max(1.0));
        }
        if let Some(walk) = self.planner.walk.take_if(|walk| walk.due <= now) {
            self.walk_on(walk);
            self.begin_proposals();
        }
    }

    /// Slots of all tiers but the slowest.
    fn fast_slots(&self) -> u32 {
        let slowest = self.set.tiers().last().copied();
        let fast = self.set.here().filter(|&it| Some(self.set.member(it).tier) != slowest);
        fast.map(|member| self.set.member(member).slots).sum()
    }

    fn walk_on(&mut self, mut walk: Walk) {
        let end = (walk.next + PLAN_STEP).min(self.map.len());
        for extent in walk.next..end {
            let Some(place) = self.map.place(extent) else { continue };
            let member = MemberId(place.member());
            if !self.set.is_here(member) {
                continue;
            }
            let sum = walk.sums.entry(self.set.member(member).tier).or_default();
            *sum = (sum.0 + f64::from(self.map.heat(extent)), sum.1 + 1);
            if self.map.blocks(extent).is_empty() {
                // Nothing is written there yet, or any more: nothing is kept on what has to leave.
                if self.set.is_leaving(member) {
                    self.take_back_unwritten(extent, 0);
                }
                continue;
            }
            let is_resting = self.moves.resting(extent, self.io.now()).is_some();
            if is_resting || self.moves.has(extent) {
                continue;
            }
            if self.set.is_leaving(member) {
                if walk.leaving.len() < PLAN_EXTENTS {
                    walk.leaving.push(extent);
                }
                continue;
            }
            let tier = self.set.member(member).tier;
            match self.pin_of(extent) {
                Some(pin) if pin == tier && !self.is(Mutant::PinForgotten) => continue,
                Some(pin) if pin != tier => {
                    if walk.pinned.len() < PLAN_EXTENTS {
                        walk.pinned.push((extent, pin));
                    }
                    continue;
                }
                _ => {}
            }
            let rank = (self.map.heat(extent).to_bits(), extent);
            let cold = walk.coldest.entry(tier).or_default();
            cold.insert(rank);
            if cold.len() > PLAN_EXTENTS {
                cold.pop_last();
            }
            let hot = walk.hottest.entry(tier).or_default();
            hot.insert(rank);
            if hot.len() > PLAN_EXTENTS {
                hot.pop_first();
            }
        }
        walk.next = end;
        let is_busy = !self.planner.proposed.is_empty();
        walk.due = self.io.now() + if is_busy { WALK_BUSY_NS } else { WALK_IDLE_NS };
        match end == self.map.len() {
            true => self.plan(walk),
            false => self.planner.walk = Some(walk),
        }
    }

    fn plan(&mut self, mut walk: Walk) {
        let mean =
            |(&tier, &(sum, count)): (&u8, &(f64, u32))| (tier, (sum / f64::from(count)) as f32);
        self.planner.mean = walk.sums.iter().map(mean).collect();
        let coldest = |(&tier, cold): (&u8, &BTreeSet<Ranked>)| {
            cold.first().map(|&(heat, _)| (tier, f32::from_bits(heat)))
        };
        self.planner.coldest = walk.coldest.iter().filter_map(coldest).collect();
        self.planner.unplaced = 0;
        self.planner.proposed.clear();
        // A walk over a large map takes long, and is to take a small part of the time.
        let took = self.io.now() - walk.began;
        self.planner.stale_at = self.io.now() + STALE_NS.max(took * STALE_WALKS);
        let tiers = self.set.tiers().to_vec();
        for &extent in &walk.leaving {
            let own = self.map.place(extent).map_or(0, |place| place.member());
            let own = self.set.member(MemberId(own)).tier;
            self.planner.propose(Proposal { extent, from: own, to: own, why: Why::Evacuation });
        }
        self.fetch_pinned(&mut walk);
        if self.tuning.placement == Placement::Spill {
            return;
        }
        for pair in tiers.windows(2) {
            let (fast, slow) = (pair[0], pair[1]);
            let (slots, free) = self.room_of(fast);
            let reserve = self.reserve_of(slots);
            let mut cold = walk.coldest.remove(&fast).unwrap_or_default();
            let mut hot = walk.hottest.remove(&slow).unwrap_or_default();
            // What the reserve was filled to is not used up by what has just left.
            let upper = reserve + reserve / 4 + 1;
            let mut room = free.saturating_sub(upper);
            if free < reserve {
                self.fill_reserve(upper - free, (fast, slow), &mut cold);
                room = 0;
            }
            if self.is_refusing(fast) {
                continue;
            }
            self.swaps((fast, slow), room, &mut cold, &mut hot);
        }
    }

    /// What is pinned comes; where there is no room the coldest leave that are not.
    fn fetch_pinned(&mut self, walk: &mut Walk) {
        let mut rooms = BTreeMap::new();
        for &(extent, to) in &walk.pinned {
            let room = rooms.entry(to).or_insert_with(|| self.room_of(to).1);
            let coldest = walk.coldest.get_mut(&to);
            match room.checked_sub(1) {
                Some(rest) => *room = rest,
                None => {
                    let leaves = coldest.and_then(|cold| self.planner.pop_coldest(cold));
                    let why = Why::Room;
                    if let Some((_, extent)) = leaves {
                        self.planner.propose(Proposal { extent, from: to, to, why });
                    }
                }
            }
            let own = self.map.place(extent).map_or(0, |place| place.member());
            let from = self.set.member(MemberId(own)).tier;
            self.planner.propose(Proposal { extent, from, to, why: Why::Pin });
        }
    }

    /// The tier that an extent is pinned to, if that takes any.
    pub(crate) fn pin_of(&self, extent: u32) -> Option<u8> {
        self.pins.of(extent).filter(|&tier| self.set.taking(tier).next().is_some())
    }

    fn fill_reserve(&mut self, count: u32, (from, to): (u8, u8), cold: &mut BTreeSet<Ranked>) {
        let coldest = std::iter::from_fn(|| self.planner.pop_coldest(cold));
        let mut extents: Vec<u32> = coldest.take(count as usize).map(|it| it.1).collect();
        // Neighbours go to neighbours: what is read in order later lies in order.
        extents.sort_unstable();
        for extent in extents {
            self.planner.propose(Proposal { extent, from, to, why: Why::Reserve });
        }
    }

    fn swaps(
        &mut self,
        (fast, slow): (u8, u8),
        mut room: u32,
        cold: &mut BTreeSet<Ranked>,
        hot: &mut BTreeSet<Ranked>,
    ) {
        let cost = self.swap_cost((fast, slow));
        let up = |extent, why| Proposal { extent, from: slow, to: fast, why };
        while let Some((heat, extent)) = self.planner.pop_hottest(hot) {
            let heat = f32::from_bits(heat);
            if heat < cost.max(1.0) {
                return;
            }
            let why_of = |gap: f32| if gap > GAIN * cost.max(1.0) { Why::Gain } else { Why::Heat };
            if room > 0 {
                room -= 1;
                let why = why_of(heat);
                self.planner.propose(up(extent, why));
                continue;
            }
            let Some((least, coldest)) = self.planner.pop_coldest(cold) else { return };
            if heat <= least_to_swap(cost, f32::from_bits(least)) {
                return;
            }
            let why = why_of(heat - f32::from_bits(least));
            self.planner.propose(Proposal { extent: coldest, from: fast, to: slow, why });
            self.planner.propose(up(extent, why));
        }
    }

    /// Begins proposed moves, as many as may be under way.
    fn begin_proposals(&mut self) {
        Line::ALL.into_iter().for_each(|line| self.begin_of(line));
    }

    fn begin_of(&mut self, line: Line) {
        let mut left = self.moves.places_left(line, self.tuning.moves_max);
        for _ in 0..self.planner.proposals[line as usize].len() {
            if left == 0 {
                return;
            }
            let next = self.planner.proposals[line as usize].pop_front();
            let Some(it) = next else { return };
            let Some(place) = self.map.place(it.extent) else { continue };
            if self.moves.has(it.extent) || self.map.blocks(it.extent).is_empty() {
                continue;
            }
            let own = self.set.member(MemberId(place.member())).tier;
            if self.io.hangs(MemberId(place.member())) {
                self.rest(it.extent, Pending::NoAnswer);
                continue;
            }
            let is_pinned = self.pin_of(it.extent).is_some() && !self.is(Mutant::PinForgotten);
            if own != it.from {
                continue;
            }
            if is_pinned && !matches!(it.why, Why::Pin | Why::Evacuation) {
                continue;
            }
            let to = match it.why {
                // It was cancelled meanwhile.
                Why::Evacuation if !self.set.is_leaving(MemberId(place.member())) => continue,
                Why::Evacuation | Why::NoRoom => self.refuge(it.to),
                Why::Room => self.elsewhere(own),
                Why::Pin if own == it.to || self.pin_of(it.extent) != Some(it.to) => continue,
                Why::Pin => match self.roomiest(it.to) {
                    None if self.is_being_left(it.to) => {
                        self.planner.later(it);
                        continue;
                    }
                    to => to,
                },
                Why::Reserve => self.below(own),
                Why::Heat | Why::Gain if own > it.to => match self.above(it.to) {
                    // Its room is what another is about to leave.
                    None if self.is_being_left(it.to) => {
                        self.planner.later(it);
                        continue;
                    }
                    above => above,
                },
                Why::Heat | Why::Gain => self.roomiest(it.to),
            };
            match to {
                Some(to) => left -= usize::from(self.begin_move(it.extent, to, it.why)),
                None if self.is_silent(it.to) => self.rest(it.extent, Pending::NoAnswer),
                None => self.planner.unplaced += 1,
            }
        }
    }
}
