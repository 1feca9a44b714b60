//! Lives: how they begin and end.

use super::io::{Area, Delivered};

use super::{Due, Flow, Step, Tiered, set};
use crate::disk::{CutReport, IoKind};
use crate::model::{Crash, Stamp, Violation};
use forebay_format::SECTOR_SIZE;
use forebay_format::io::Time;
use forebay_format::tier::{Superblock, member_state};
use forebay_tier::{Assembled, Command, MemberId, OpenError, Tiers};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Starts in a row that a crash ends.
const RECOVERY_CRASHES_MAX: u64 = 5;
/// Most events of such a start.
const RECOVERY_EVENTS_MAX: u64 = 80;
/// Most events of an orderly stop before the crash that cuts it short.
const STOP_EVENTS_MAX: u64 = 100;
/// Time between two lives, nanoseconds.
const PAUSE_NS: u64 = 1_000_000_000;
/// Time within which all that is under way must end, nanoseconds.
const LIMIT_NS: u64 = 100_000_000_000_000;

/// What belongs to one life of the machine.
#[derive(Debug, Default)]
pub struct Life {
    pub number: u64,
    /// No new requests.
    pub quiet: bool,
    /// Requests still to send.
    pub requests_left: u64,
    /// Events until the crash.
    pub crash_in: Option<u64>,
    pub opened: bool,
    pub open_failed: Option<OpenError>,
    /// The set was closed.
    pub stopped: bool,
    pub errors: Vec<Delivered>,
    /// For each member, whether it is there.
    pub is_here: Vec<bool>,
    /// Members that held the map when it began.
    pub holders: Vec<usize>,
    /// Members that are being emptied, or are empty.
    pub leaving: BTreeSet<usize>,
    /// The tier of each extent that is pinned.
    pub pins: BTreeMap<u64, u8>,
    /// When somebody who was leaving stayed after all.
    pub stayed_at: Option<u64>,
    /// Members that are empty and will be removed.
    pub is_empty: Option<Vec<MemberId>>,
    pub flush_failed: BTreeSet<usize>,
    /// A member that ends nothing in this time.
    pub hangs: Option<(usize, Range<Time>)>,
    /// Also the last holder of the map may fail.
    pub reckless: bool,
    /// It ends soon after a move has begun.
    pub ends_at_move: bool,
    /// It ends soon after somebody has looked at what was changed.
    pub ends_at_look: bool,
    /// Bytes of the volume that its superblock has.
    pub bytes_found: u64,
    /// Where each member's journal was written last.
    pub journal_at: BTreeMap<usize, u64>,
    /// Superblocks said as it began that a flush had failed: no client has heard of it yet.
    pub untold: bool,
    /// When one did: all who waited with it hear the same.
    pub told: Stamp,
    /// And that it had failed at a start, so that nobody knows what was lost.
    pub in_doubt: bool,
    /// The power was cut since the set was open last.
    pub after_cut: bool,
    /// The process before was killed.
    pub after_kill: bool,
    /// The superblock of each member, as it was when the set was open.
    pub older: Vec<Option<Superblock>>,
}

impl Tiered {
    /// One life, from opening the set to its end.
    pub(super) fn live(&mut self, number: u64, last: bool) -> Result<(), Violation> {
        if number > 1 && self.rng.chance(self.plan.ends.remade) {
            self.coverage.mark("sets made anew");
            self.make_set();
        }
        self.crash_in_recovery(number)?;
        let end = self.rng.weighted(&self.plan.ends.weights);
        let (kill, stop) = (end == 1, end == 2);
        let crash_in = self.rng.log_range(1, self.plan.ends.events_max);
        let crash_in = (!last && !stop).then_some(crash_in);
        let mut flow = self.start_life(number, crash_in)?;
        if flow == Flow::Go {
            let ends = self.plan.ends.clone();
            self.life.ends_at_move = crash_in.is_some() && self.rng.chance(ends.at_move);
            self.life.ends_at_look = crash_in.is_some() && self.rng.chance(ends.at_look);
            flow = self.run_life()?;
        }
        if flow == Flow::Crash {
            self.check_open_failure()?;
            self.crash(kill);
            return if last { self.live_again(number) } else { Ok(()) };
        }
        if last {
            return self.finish();
        }
        if stop {
            return self.stop_orderly();
        }
        // The requests are over before the crash point: rest, look at everything, then crash.
        if self.rng.coin() {
            self.rest()?;
            self.read_all()?;
        }
        self.crash(kill);
        Ok(())
    }

    /// The last start failed, which a fault explained: without faults it does not.
    fn live_again(&mut self, number: u64) -> Result<(), Violation> {
        self.calm = true;
        let flow = self.start_life(number + 1, None)?;
        self.check_open_failure()?;
        assert_eq!(flow, Flow::Go, "no crash is planned");
        self.finish()
    }

    /// Some lives end within their first events, several in a row.
    fn crash_in_recovery(&mut self, number: u64) -> Result<(), Violation> {
        for _ in 0..RECOVERY_CRASHES_MAX {
            if !self.rng.chance(self.plan.ends.early) {
                return Ok(());
            }
            let crash_in = self.rng.log_range(1, RECOVERY_EVENTS_MAX);
            let flow = self.start_life(number, Some(crash_in))?;
            self.check_open_failure()?;
            if flow == Flow::Crash && self.life.open_failed.is_none() {
                self.coverage.mark("crashes during a start");
            }
            let kill = self.rng.coin();
            self.crash(kill);
        }
        Ok(())
    }

    /// Opens the set, and lets clients and the administrator in. `Flow::Crash` if that failed.
    pub(super) fn start_life(&mut self, number: u64, crash_in: Option<u64>) -> Step {
        let Life { after_cut, after_kill, .. } = self.life;
        self.life = Life { number, after_cut, after_kill, crash_in, ..Life::default() };
        self.choose_hidden();
        let all = self.find_set(None).ok_or_else(no_set)?.0;
        let holders: Vec<usize> = holders(&all);
        self.spare_one(&holders);
        let missing = self.choose_missing();
        let left = holders.iter().copied().filter(|it| Some(*it) != missing);
        let rots = self.rot_some(&left.collect::<Vec<_>>());
        if after_kill && rots {
            // What was answered and not flushed may be in the journal of one holder only.
            self.coverage.mark("holders harmed after a kill");
            self.checker.crash(Crash::Cut);
        }
        let (assembled, is_here) = self.find_set(missing).ok_or_else(no_set)?;
        self.look_at_members(&assembled.superblock)?;
        self.check_stale(missing, &is_here)?;
        self.look_at_superblock(&assembled)?;
        self.look_for_doubt(&assembled);
        (self.life.holders, self.life.is_here) = (holders, is_here.clone());
        self.life.is_here.resize(self.disks.len(), false);
        self.plan_faults();
        self.plan_fault_of_start();
        let mut tuning = self.plan.tuning;
        if self.rng.chance(self.plan.retuned) {
            tuning = super::plan::draw_tuning(&mut self.rng);
        }
        let settings = self.settings(assembled.superblock, &is_here, tuning);
        self.say(|_| format!("open, members here {is_here:?}, {tuning:?}"));
        let mut effects = Vec::new();
        self.answered_at = self.totals.steps;
        let now = self.now;
        self.tiers = Some(Tiers::open(settings, now, &mut effects));
        self.unsettled = 1;
        let mut flow = self.perform(effects)?;
        while flow == Flow::Go && !self.tiers().is_open() {
            if self.life.open_failed.is_some() {
                return Ok(Flow::Crash);
            }
            self.check_start_ends()?;
            flow = self.step()?;
        }
        match flow {
            Flow::Go => {}
            Flow::Crash => return Ok(Flow::Crash),
            Flow::Idle => {
                let text = format!("the start stands still; {}", self.waiting());
                return Err(Violation::new("H", text));
            }
        }
        self.let_clients_in();
        Ok(Flow::Go)
    }

    fn check_start_ends(&self) -> Result<(), Violation> {
        if self.totals.steps > self.answered_at + super::STEPS_MAX {
            return Err(Violation::new("H", "the start does not end".into()));
        }
        Ok(())
    }

    fn let_clients_in(&mut self) {
        self.life.requests_left = self.plan.requests;
        for client in 0..self.clients.len() {
            for _ in 0..self.plan.depth {
                let pause = self.rng.below(self.plan.think_ns + 1);
                self.schedule(pause, Due::Client(client));
            }
        }
        self.schedule_admin();
        self.schedule_tick();
    }

    /// Rule R: a member that is plugged in and works takes part.
    fn check_stale(&mut self, missing: Option<usize>, is_here: &[bool]) -> Result<(), Violation> {
        for (member, is_here) in is_here.iter().enumerate() {
            if *is_here || Some(member) == missing || !self.plan.members[member].is_in {
                continue;
            }
            self.coverage.mark("members that are not believed");
            if !self.trouble.unwritten.contains(&member) {
                let text = format!("member {member} is there, but is not believed");
                return Err(Violation::new("R", text));
            }
        }
        Ok(())
    }

    /// Rule M: the volume has the size that was acknowledged, or one that was asked for since.
    fn look_at_superblock(&mut self, assembled: &Assembled) -> Result<(), Violation> {
        let superblock = &assembled.superblock;
        let bytes = superblock.block.bytes.get();
        self.life.bytes_found = bytes;
        if bytes != self.bytes && !self.bytes_asked.contains(&bytes) {
            let text = format!("the volume has {bytes} bytes, and shall have {}", self.bytes);
            return Err(Violation::new("M", text));
        }
        let members = superblock.members().iter().enumerate();
        let leaving = members.filter(|(_, it)| it.state == member_state::LEAVING);
        self.life.leaving = leaving.map(|(number, _)| number).collect();
        Ok(())
    }

    /// The set is open.
    pub(super) fn opened(
        &mut self,
        records: u64,
        extents: u64,
        (cut, doubt): (bool, bool),
    ) -> Result<(), Violation> {
        self.coverage.add("records replayed", records);
        self.coverage.add("sets open after a cut", u64::from(cut));
        let in_doubt = self.life.in_doubt || !self.life.flush_failed.is_empty();
        if cut && !self.life.after_cut && in_doubt {
            // What nobody had flushed is dropped, and the first FLUSH will say so.
            self.coverage.mark("starts that drop what was not flushed");
            self.checker.crash(Crash::Cut);
        } else if cut && !self.life.after_cut {
            let text = "what was not flushed is called lost, but the power was not cut";
            return Err(Violation::new("R", text.into()));
        }
        self.check_doubt(doubt)?;
        self.life.after_cut = false;
        self.life.opened = true;
        self.life.older = (0..self.disks.len()).map(|it| self.superblock_of(it)).collect();
        self.bytes = self.life.bytes_found;
        self.bytes_asked.clear();
        self.members_are_known();
        let stays = |member: &usize| !self.life.is_here[*member] || self.has_failed(*member);
        let keep = |set: &BTreeSet<usize>| set.iter().copied().filter(stays).collect();
        let (suspects, unwritten) = (&self.trouble.suspects, &self.trouble.unwritten);
        let (suspects, unwritten) = (keep(suspects), keep(unwritten));
        (self.trouble.suspects, self.trouble.unwritten) = (suspects, unwritten);
        if self.tiers.is_some() {
            // It chose anew who holds the map, without knowing who is spared.
            let view = self.tiers().view();
            let holders = view.members.iter().filter(|it| it.is_holder);
            self.life.holders = holders.map(|it| usize::from(it.member.0)).collect();
        }
        let places = (0..self.space.extents_max()).filter(|&it| self.place_of(it).is_some());
        let places = places.count() as u64;
        if self.tiers.is_some() && self.plan.parts.len() == 1 && places != extents {
            let text = format!("{extents} extents are said to live somewhere, {places} do");
            return Err(Violation::new("M", text));
        }
        Ok(())
    }

    /// Rule R: a set that cannot be opened needs a reason, which only the last holder can give, or
    /// two that were to hold the map from now on.
    pub(super) fn check_open_failure(&mut self) -> Result<(), Violation> {
        let Some(error) = self.life.open_failed else { return Ok(()) };
        self.coverage.mark("opens failed");
        if self.life.reckless && self.has_failed(self.trouble.spared) {
            return Ok(());
        }
        // It chooses anew who holds the map, without knowing who is spared.
        let failed = (0..self.disks.len()).filter(|&member| self.has_failed(member)).count();
        if error == OpenError::CannotWrite && failed > 1 {
            return Ok(());
        }
        Err(Violation::new("R", format!("the set cannot be opened: {error}")))
    }

    /// Runs until the requests are over, or the crash.
    fn run_life(&mut self) -> Step {
        while self.life.requests_left > 0 || !self.requests.is_empty() || !self.held.is_empty() {
            match self.step()? {
                Flow::Go => {}
                Flow::Crash => return Ok(Flow::Crash),
                Flow::Idle => return Err(self.stuck()),
            }
        }
        Ok(Flow::Go)
    }

    /// What was waited for has happened: the life ends within so many events.
    pub(super) fn end_within(&mut self, events: u64) {
        let left = self.rng.log_range(1, events);
        self.life.crash_in = self.life.crash_in.map(|before| before.min(left));
    }

    /// Nothing will happen any more, but somebody waits.
    pub(super) fn stuck(&self) -> Violation {
        Violation::new("H", format!("nothing happens; {}", self.waiting()))
    }

    /// Virtual time by which what is under way must have ended.
    pub(super) fn time_limit(&self) -> u64 {
        self.now + LIMIT_NS
    }

    /// Stops when no request is under way, then ends the process or cuts the power.
    fn stop_orderly(&mut self) -> Result<(), Violation> {
        self.life.quiet = true;
        if self.rng.chance(self.plan.ends.stop_cut) {
            self.life.crash_in = Some(self.rng.log_range(1, STOP_EVENTS_MAX));
        }
        let mut flow = self.ask(Command::Stop)?;
        let limit = self.time_limit();
        while flow == Flow::Go && !(self.life.stopped && self.ops.is_empty()) {
            if self.stop_was_refused() {
                break;
            }
            flow = self.step()?;
            if flow == Flow::Idle || self.now > limit {
                return Err(self.stuck());
            }
        }
        if flow == Flow::Crash {
            self.coverage.mark("orderly stops cut short");
        } else if self.life.stopped {
            self.coverage.mark("orderly stops");
            self.check_stopped()?;
        }
        let kill = self.rng.coin();
        self.crash(kill);
        Ok(())
    }

    /// Rule H: who was stopped does nothing more and wants nothing more.
    pub(super) fn check_stopped(&mut self) -> Result<(), Violation> {
        if !self.tiers().is_stopped() {
            let text = "the stop was answered, but it is not stopped";
            return Err(Violation::new("H", text.into()));
        }
        self.check_older()
    }

    /// The end of this life.
    pub(super) fn crash(&mut self, kill: bool) {
        let kill = kill && !self.is_doubt_unsaid();
        self.say(|_| if kill { "KILL".into() } else { "POWER CUT".into() });
        self.totals.crashes += 1;
        self.count_crash(kill);
        if kill {
            for disk in &mut self.disks {
                disk.kill(&mut self.rng);
            }
        } else {
            self.boot += 1;
            self.life.after_cut = true;
            self.cut_power();
        }
        self.life.after_kill = kill;
        self.checker.crash(if kill { Crash::Kill } else { Crash::Cut });
        self.doubt_members();
        self.requests.clear();
        self.held.clear();
        self.commands.clear();
        self.ops.clear();
        self.queue.clear();
        self.tiers = None;
        (self.unsettled, self.ticks) = (0, 0);
        self.now += PAUSE_NS;
        self.places.life_ended(kill);
        self.heal();
        if !kill && self.plan.is_ephemeral() {
            self.coverage.mark("ephemeral volumes gone with the power");
            for member in 0..self.disks.len() {
                if self.plan.members[member].is_ram {
                    self.disks[member] = set::disk(&self.plan, member);
                }
            }
            self.make_set();
        }
    }

    fn count_crash(&mut self, kill: bool) {
        self.coverage.mark(if kill { "killed processes" } else { "power cuts" });
        let moving = self.tiers.as_ref().is_some_and(|tiers| tiers.is_open() && tiers.moving() > 0);
        if moving {
            self.coverage.mark(if kill { "kills during moves" } else { "cuts during moves" });
        }
        let writes =
            |area: Area| self.ops.values().any(|op| op.area == area && op.kind == IoKind::Write);
        let (map, journal) = (writes(Area::Map), writes(Area::Journal));
        self.coverage.add("checkpoints interrupted", u64::from(map));
        self.coverage.add("records interrupted", u64::from(journal));
        self.coverage.add("moves interrupted at a record", u64::from(moving && journal));
        let asked = !self.commands.is_empty();
        self.coverage.add("crashes during a command", u64::from(asked));
    }

    fn cut_power(&mut self) {
        let spoil = self.plan.faults.spoil;
        let slots = self.plan.layout().slots_offset() / SECTOR_SIZE as u64;
        let mut sum = CutReport::default();
        for (member, disk) in self.disks.iter_mut().enumerate() {
            if !self.life.is_here.get(member).copied().unwrap_or(true) {
                continue;
            }
            let mode = self.rng.pick(&self.plan.ends.cut_modes);
            let report = disk.power_cut(mode, |sector| spoil && sector < slots, &mut self.rng);
            sum.in_flight += report.in_flight;
            sum.torn += report.torn;
            sum.spoilt += report.spoilt;
            sum.pending += report.pending;
        }
        self.coverage.add("writes cut in flight", sum.in_flight);
        self.coverage.add("writes torn", sum.torn);
        self.coverage.add("sectors spoilt", sum.spoilt);
        self.coverage.add("writes at the mercy of a cut", sum.pending);
    }

    /// A tick at some moment, as a host's clock would bring it.
    pub(super) fn schedule_tick(&mut self) {
        let after = self.rng.log_range(10_000, 1_000_000_000);
        self.schedule(after, Due::Tick);
    }
}

pub(super) fn no_set() -> Violation {
    Violation::new("R", "no member has a superblock".into())
}

/// The members that hold the map and are there.
fn holders(set: &Assembled) -> Vec<usize> {
    let holders = set.superblock.holders().map(usize::from);
    holders.filter(|&holder| set.found[holder].is_some()).collect()
}
