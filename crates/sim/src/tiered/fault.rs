//! What goes wrong, and what is spared: one holder of the map works as long as data must survive.

use super::Tiered;
use super::admin::is_among;
use super::io::{Area, Delivered};
use super::plan::Faults;
use crate::disk::{Fault, FlushLoss, IoKind};
use crate::rng::{Rng, mix};
use forebay_format::SECTOR_SIZE;
use forebay_format::io::Time;
use forebay_format::tier::HEAD_OFFSETS;
use forebay_tier::Command;
use std::collections::BTreeSet;

/// Time within which faults come and last, nanoseconds.
const FAULT_NS: u64 = 4_000_000_000;
/// Time within which flushes of a start fail.
const FAULT_OF_START_NS: u64 = 50_000_000;
/// Most runs of bad sectors in a map, and sectors of one.
const ROT_MAX: u64 = 6;

/// What is wrong with the members, over all lives.
#[derive(Debug, Default)]
pub struct Trouble {
    /// Members whose map, if they hold one, may not be what it should be.
    pub suspects: BTreeSet<usize>,
    /// Members of whose map sectors were bad: a start that needs only another holder's does not
    /// see that.
    pub rotten: BTreeSet<usize>,
    /// Members whose superblock may not have been written when it should have been.
    pub unwritten: BTreeSet<usize>,
    /// The holder that is spared.
    pub spared: usize,
    /// No holder is known to be sound: nothing may happen to any.
    pub fragile: bool,
}

impl Trouble {
    /// All sets of members.
    pub fn all(&mut self) -> [&mut BTreeSet<usize>; 3] {
        [&mut self.suspects, &mut self.rotten, &mut self.unwritten]
    }
}

/// Time that a member hangs, nanoseconds, about.
const HANG_NS: u64 = 5_000_000_000;
/// Makes the numbers by which members hang others than all others.
const HANGS: u64 = 0x4a26_5eed_0000_0001;
/// Makes the numbers by which members have no room others than all others.
const NO_ROOM: u64 = 0x4e0_0f5a_ce00_0001;

impl Faults {
    /// What fails in a world.
    pub(super) fn draw(rng: &mut Rng) -> Faults {
        if rng.one_in(3) {
            return Faults { spoil: rng.coin(), ..Faults::default() };
        }
        // Drawn past the others: so worlds that have none of it are what they were.
        let mut own = Rng::new(mix(rng.clone().bits() ^ NO_ROOM));
        let few = |rng: &mut Rng| if rng.coin() { 0 } else { rng.range(1, 3) };
        let share = |rng: &mut Rng| rng.pick(&[0.0, 0.0, 0.2, 0.5]);
        Faults {
            reads: few(rng),
            writes: few(rng),
            flushes: few(rng),
            lasting: rng.pick(&[0.0, 0.1, 0.5]),
            loss: Some(rng.pick(&[FlushLoss::Nothing, FlushLoss::Some, FlushLoss::Forget])),
            dies: share(rng),
            no_room: own.pick(&[0.0, 0.0, 0.6]),
            hangs: own.pick(&[0.0, 0.0, 0.7]),
            missing: share(rng),
            rot: share(rng),
            reckless: rng.pick(&[0.0, 0.0, 0.0, 0.3]),
            spoil: rng.coin(),
        }
    }
}

impl Tiered {
    /// Chooses the holder that is spared in the next life. Without one that is sound the last one
    /// stays, as it alone may have the map.
    pub(super) fn spare_one(&mut self, holders: &[usize]) {
        let Trouble { suspects, rotten, .. } = &self.trouble;
        let sound = |holder: &usize| !suspects.contains(holder) && !rotten.contains(holder);
        let sound: Vec<usize> = holders.iter().copied().filter(sound).collect();
        self.trouble.fragile = sound.is_empty();
        if !sound.is_empty() {
            self.trouble.spared = self.rng.pick(&sound);
        } else if !holders.is_empty() && !holders.contains(&self.trouble.spared) {
            self.trouble.spared = self.rng.pick(holders);
        }
        self.say(|world| format!("spared {}, holders {holders:?}", world.trouble.spared));
    }

    /// A member that is not spared.
    fn victim(&mut self) -> Option<usize> {
        let spared = self.trouble.spared;
        let is_other = |&it: &usize| it != spared && self.plan.members[it].is_in;
        let others: Vec<usize> = (0..self.disks.len()).filter(is_other).collect();
        if others.is_empty() { None } else { Some(self.rng.pick(&others)) }
    }

    /// The member that will be missing.
    pub(super) fn choose_missing(&mut self) -> Option<usize> {
        let spares_all = self.calm || self.trouble.fragile || self.plan.is_ephemeral();
        if spares_all || !self.rng.chance(self.plan.faults.missing) {
            return None;
        }
        let victim = self.victim()?;
        // Whoever pulls it out waits for its cache.
        let image = self.disks[victim].image();
        self.disks[victim].restore(image);
        self.trouble.suspects.insert(victim);
        self.coverage.mark("members missing");
        Some(victim)
    }

    /// Sectors of the map of a holder that is not spared rot, or cannot be read. Whether any did.
    pub(super) fn rot_some(&mut self, holders: &[usize]) -> bool {
        let spared = self.trouble.spared;
        let victim = holders.iter().copied().find(|&holder| holder != spared);
        let Some(victim) = victim else { return false };
        let spares_all = self.calm || self.trouble.fragile || !holders.contains(&spared);
        if spares_all || !self.rng.chance(self.plan.faults.rot) {
            return false;
        }
        let layout = self.plan.layout();
        let first = HEAD_OFFSETS[0] / SECTOR_SIZE as u64;
        let end = layout.slots_offset() / SECTOR_SIZE as u64;
        let unreadable = self.rng.coin();
        for _ in 0..self.rng.range(1, ROT_MAX) {
            let at = self.rng.range(first, end - ROT_MAX);
            // Pages are few: half of the time it is one of them.
            let pages = layout.pages_offset() / SECTOR_SIZE as u64;
            let at = if self.rng.coin() { pages + self.rng.below(8) } else { at };
            let count = self.rng.range(1, ROT_MAX);
            self.disks[victim].rot(at..(at + count).min(end), unreadable, &mut self.rng);
            self.say(|_| format!("sectors {at}+{count} of member {victim} rot"));
        }
        self.trouble.rotten.insert(victim);
        self.coverage.mark("maps rotten");
        true
    }

    /// Errors of this life.
    pub(super) fn plan_faults(&mut self) {
        let faults = self.plan.faults.clone();
        if self.calm || self.trouble.fragile {
            return;
        }
        self.life.reckless = self.rng.chance(faults.reckless);
        for disk in &mut self.disks {
            disk.flush_loss = faults.loss.unwrap_or(FlushLoss::Nothing);
        }
        if self.life.reckless {
            self.disks[self.trouble.spared].flush_loss = FlushLoss::Nothing;
        }
        let kinds = [
            (IoKind::Read, faults.reads),
            (IoKind::Write, faults.writes),
            (IoKind::Flush, faults.flushes),
        ];
        for (kind, most) in kinds {
            for _ in 0..self.rng.below(most + 1) {
                self.plan_fault(kind, faults.lasting);
            }
        }
        if faults.no_room > 0.0 {
            self.plan_no_room(faults.no_room);
        }
        if faults.hangs > 0.0 {
            self.plan_hang(faults.hangs);
        }
        if self.rng.chance(faults.dies)
            && let Some(victim) = self.victim()
        {
            let at = self.now + self.rng.log_range(1, FAULT_NS);
            self.disks[victim].dead_from = at;
            self.say(|_| format!("member {victim} will die at {at}"));
        }
    }

    /// Now and then the first flush of a member fails.
    pub(super) fn plan_fault_of_start(&mut self) {
        let spares_all = self.calm || self.trouble.fragile || self.plan.faults.flushes == 0;
        if spares_all || !self.rng.one_in(4) {
            return;
        }
        let Some(victim) = self.victim() else { return };
        let until = self.now + self.rng.log_range(1, FAULT_OF_START_NS);
        let (kind, from) = (IoKind::Flush, self.now);
        let fault =
            Fault { kind, first: 0, end: self.disks[victim].sectors(), from, until, one_in: 1 };
        self.say(|_| format!("member {victim}: {fault:?}"));
        self.disks[victim].faults.push(fault);
    }

    /// Some members have no room for a while: for extents, and those that are not spared for the
    /// map either, if that is not all written yet.
    fn plan_no_room(&mut self, share: f64) {
        let mut rng = Rng::new(mix(self.hash));
        if !rng.chance(share) {
            return;
        }
        let slots = self.plan.layout().slots_offset() / SECTOR_SIZE as u64;
        for member in 0..self.disks.len() {
            if rng.coin() {
                continue;
            }
            let of_map = member != self.trouble.spared && rng.one_in(4);
            let from = self.now + rng.log_range(1, FAULT_NS) - 1;
            let until = from + rng.log_range(FAULT_NS / 100, 4 * FAULT_NS);
            let least = if of_map { 0 } else { slots };
            self.say(|_| format!("member {member} has no room from {from} to {until}"));
            self.disks[member].no_room = Some((least, from..until));
        }
    }

    /// A member ends nothing for a while, so long that it is not waited for; or a little less.
    fn plan_hang(&mut self, share: f64) {
        let mut rng = Rng::new(mix(self.hash ^ HANGS));
        if !rng.chance(share) {
            return;
        }
        let member = rng.below(self.disks.len() as u64) as usize;
        let from = self.now + rng.log_range(1, FAULT_NS) - 1;
        let until = from + rng.log_range(HANG_NS / 2, 4 * HANG_NS);
        self.say(|_| format!("member {member} does not answer from {from} to {until}"));
        self.life.hangs = Some((member, from..until));
    }

    fn plan_fault(&mut self, kind: IoKind, lasting: f64) {
        let member = self.rng.below(self.disks.len() as u64) as usize;
        let spared = member == self.trouble.spared && !self.life.reckless;
        if spared && kind == IoKind::Flush {
            return;
        }
        let slots = self.plan.layout().slots_offset() / SECTOR_SIZE as u64;
        let least = if spared { slots } else { 0 };
        let end = self.disks[member].sectors();
        let mut range = least..end;
        if self.rng.coin() && kind != IoKind::Flush {
            let first = self.rng.range(least, end - 1);
            range = first..(first + self.rng.log_range(1, 4096)).min(end);
        } else if !spared && self.rng.coin() {
            range = 0..slots;
        }
        let from = self.now + self.rng.log_range(1, FAULT_NS) - 1;
        let lasts = self.rng.chance(lasting);
        let until = if lasts { u64::MAX } else { from + self.rng.log_range(1, FAULT_NS) };
        let one_in = self.rng.log_range(1, 8);
        let fault = Fault { kind, first: range.start, end: range.end, from, until, one_in };
        self.say(|_| format!("member {member}: {fault:?}"));
        self.disks[member].faults.push(fault);
    }

    /// When an I/O of a member ends that would end then.
    pub(super) fn end_of(&mut self, member: usize, end: Time) -> Time {
        match &self.life.hangs {
            Some((hangs, during)) if *hangs == member && during.contains(&end) => {
                let late = during.end + (end - self.now);
                self.coverage.mark("I/O of members that hang");
                late
            }
            _ => end,
        }
    }

    /// Errors end.
    pub(super) fn heal(&mut self) {
        self.life.hangs = None;
        for disk in &mut self.disks {
            disk.faults.clear();
            disk.no_room = None;
            if disk.dead_from <= self.now {
                self.coverage.mark("members died");
            }
            disk.dead_from = u64::MAX;
        }
    }
}

impl Tiered {
    /// Whether each member that holds the map, or was about to leave it to others, returned an
    /// error of it in this life.
    pub(super) fn is_map_lost(&self) -> bool {
        let of_map = |error: &&Delivered| {
            let all = error.kind == IoKind::Flush;
            all || (error.area != Area::Slots && error.kind == IoKind::Write)
        };
        let leaves = |holder: usize| {
            self.commands.values().any(|asked| match &asked.command {
                Command::Remove(members) => is_among(holder, members),
                _ => false,
            })
        };
        let failed = |holder: usize| {
            self.life.errors.iter().filter(of_map).any(|error| error.member == holder)
        };
        let is_lost = |&it: &usize| !self.life.is_here[it] || failed(it) || leaves(it);
        let errors = self.life.errors.iter().filter(of_map).count();
        let away = self.life.holders.iter().all(|&it| !self.life.is_here[it]);
        (errors > 0 || away) && self.life.holders.iter().all(is_lost)
    }
}
