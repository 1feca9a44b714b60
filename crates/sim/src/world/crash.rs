//! Lives: how they begin and end.

use super::damage::PER_BLOCK;
use super::{Delivered, Due, Flow, Step, World};
use crate::content::{self, Content};
use crate::disk::CutReport;
use crate::model::{Crash, Violation};
use forebay_engine::{Command, Target};
use forebay_format::{SECTOR_SIZE, SECTORS_PER_BLOCK};
use std::ops::Range;

/// Crashes during recovery in a row.
const RECOVERY_CRASHES_MAX: u64 = 5;
/// Most events of an orderly stop before the crash that cuts it short.
const STOP_EVENTS_MAX: u64 = 400;
/// Time between two lives, nanoseconds.
const PAUSE_NS: u64 = 1_000_000_000;

/// How a life shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Cut,
    Kill,
    Shutdown,
}

impl World {
    /// One life, from opening the pool to its end.
    pub(super) fn live(&mut self, number: u64, last: bool) -> Result<(), Violation> {
        let ends = &self.params.ends;
        let weights = [ends.cut, ends.kill, ends.shutdown];
        let end = [End::Cut, End::Kill, End::Shutdown][self.rng.weighted(&weights)];
        self.look_at_older(number)?;
        self.crash_in_recovery(number)?;
        if !last && self.rng.chance(self.params.ends.looks) {
            return self.look(number, end == End::Kill);
        }
        let flow = self.start_life(number)?;
        let crash_in = self.rng.log_range(1, self.params.ends.events_max);
        self.life.crash_in = (!last && end != End::Shutdown).then_some(crash_in);
        self.plan_faults();
        self.schedule_tick();
        let flow = match flow {
            Flow::Crash => Flow::Crash,
            _ => self.run_life()?,
        };
        if flow == Flow::Crash {
            return self.crash(end == End::Kill);
        }
        if last {
            return self.finish();
        }
        if end == End::Shutdown {
            return self.stop_orderly();
        }
        // The requests are over before the crash point: rest, look at everything, then crash.
        if self.rng.coin() {
            self.rest()?;
            self.read_back()?;
        }
        self.crash(end == End::Kill)
    }

    /// A life in which everything is read and nothing written: what it saw must be there ever
    /// after.
    pub(super) fn look(&mut self, number: u64, kill: bool) -> Result<(), Violation> {
        self.open_to_look(number)?;
        self.check_open_failure()?;
        if self.life.open_failed.is_none() {
            self.coverage.mark("lives that only looked");
            self.read_back()?;
        }
        self.crash(kill)
    }

    /// Opens the pool for nobody, without faults. It may be refused.
    pub(super) fn open_to_look(&mut self, number: u64) -> Step {
        let calm = std::mem::replace(&mut self.calm, true);
        let flow = self.start_life(number);
        self.calm = calm;
        flow?;
        (self.life.requests_left, self.life.quiet) = (0, true);
        self.run_until_open()
    }

    /// Some lives end within their first events, several in a row.
    fn crash_in_recovery(&mut self, number: u64) -> Result<(), Violation> {
        for _ in 0..RECOVERY_CRASHES_MAX {
            if !self.rng.chance(self.params.ends.early) {
                return Ok(());
            }
            let crash_in = self.rng.log_range(1, 60);
            let mut flow = self.start_life(number)?;
            self.life.crash_in = Some(crash_in);
            while flow == Flow::Go && !self.life.serving && self.life.open_failed.is_none() {
                flow = self.step()?;
            }
            if !self.life.serving {
                self.coverage.mark("crashes during recovery");
            }
            self.check_open_failure()?;
            let kill = self.rng.chance(0.3);
            self.crash(kill)?;
        }
        Ok(())
    }

    /// Runs until the requests are over, or the crash.
    fn run_life(&mut self) -> Step {
        loop {
            if self.life.open_failed.is_some() {
                self.check_open_failure()?;
                return Ok(Flow::Crash);
            }
            if self.life.requests_left == 0 && self.requests.is_empty() {
                return Ok(Flow::Go);
            }
            match self.step()? {
                Flow::Go => {}
                Flow::Crash => return Ok(Flow::Crash),
                Flow::Idle => return Err(self.stuck()),
            }
        }
    }

    /// A pool that cannot be opened needs a reason: a fault that recovery met.
    pub(super) fn check_open_failure(&mut self) -> Result<(), Violation> {
        let Some(error) = self.life.open_failed.clone() else { return Ok(()) };
        self.coverage.mark("opens failed");
        if self.age_is_doubtful(&error) {
            return Ok(());
        }
        // Of two devices that cannot be read now, one may have had the second copy of what the
        // other had. (Two that failed together and are both back are no reason.)
        let gone = self.caches.iter().filter(|disk| disk.dead_from <= self.now).count();
        if self.met_errors() || gone > 1 {
            return Ok(());
        }
        Err(Violation::new("R", format!("the pool cannot be opened: {error}")))
    }

    /// Whether the engine met errors in this life that no mirror makes up for.
    pub(super) fn met_errors(&self) -> bool {
        let whole = self.mirror_is_whole();
        let counts = |error: &Delivered| !whole || matches!(error.target, Target::Origin(_));
        self.life.errors.iter().any(counts)
    }

    /// Nothing will happen any more, but somebody waits.
    pub(super) fn stuck(&self) -> Violation {
        Violation::new("H", format!("nothing happens; {}", self.waiting()))
    }

    /// Who waits, and what for.
    pub(super) fn waiting(&self) -> String {
        let request = self.requests.iter().next();
        let command = self.commands.iter().next();
        let engine = self.engine.as_ref().map(|engine| engine.describe());
        format!("waiting: {request:?} {command:?}; engine: {}", engine.unwrap_or_default())
    }

    /// Stops with requests under way or after them, then ends the process or cuts the power.
    fn stop_orderly(&mut self) -> Result<(), Violation> {
        self.run_until_open()?;
        self.check_open_failure()?;
        if self.life.open_failed.is_some() {
            return self.crash(false);
        }
        self.life.stopping = true;
        self.life.quiet = true;
        if self.wide_rng.chance(self.params.ends.stop_cut) {
            self.life.crash_in = Some(self.wide_rng.log_range(1, STOP_EVENTS_MAX));
        }
        let mut flow = self.ask(0, Command::Shutdown)?;
        let limit = self.time_limit();
        while !self.commands.is_empty() || !self.ops.is_empty() {
            if flow != Flow::Crash {
                flow = self.step()?;
            }
            match flow {
                Flow::Go => {}
                Flow::Crash => {
                    self.coverage.mark("orderly stops cut short");
                    let kill = self.wide_rng.coin();
                    return self.crash(kill);
                }
                Flow::Idle => return Err(self.stuck()),
            }
            self.check_open_failure()?;
            if self.now > limit {
                let text = format!("the shutdown does not end; {}", self.waiting());
                return Err(Violation::new("H", text));
            }
        }
        self.life.crash_in = None;
        if self.life.stopped {
            self.coverage.mark("orderly stops");
        }
        let kill = self.rng.coin();
        self.crash(kill)
    }

    /// What the administrator asked to give up may be given up, though nobody was told.
    fn give_up_perhaps(&mut self) {
        let asked = self.commands.values();
        let blocks = asked.flat_map(|it| it.given_up.iter().map(|&block| (it.disk, block)));
        for (disk, block) in blocks.collect::<Vec<_>>() {
            self.give_up(disk, block);
        }
    }

    /// The block is what the origin holds, or what a power cut leaves there of that: what was on
    /// its way home may not be durable.
    pub(super) fn give_up(&mut self, disk: usize, block: u64) {
        let per_block = SECTORS_PER_BLOCK as u64;
        let sectors = block * per_block..(block + 1) * per_block;
        // What a cut spoilt on its way home was whole in the cache alone: whoever gives that up
        // clears it.
        let origin = &mut self.origins[disk].disk;
        for sector in sectors.start..sectors.end.min(origin.sectors()) {
            let mut bytes = [0; SECTOR_SIZE];
            origin.peek(sector, &mut bytes);
            if content::parse(&bytes) == Content::Foreign {
                origin.poke(sector, &[0; SECTOR_SIZE]);
                self.coverage.mark("spoilt sectors given up");
            }
        }
        self.checker.give_up(disk, block, &self.origins[disk].disk, self.stamp);
        // Nor need the cache keep any more what was sent home of it.
        self.sent_home.retain(|&(of, sector, _)| of != disk || !sectors.contains(&sector));
    }

    /// The end of this life.
    pub(super) fn crash(&mut self, kill: bool) -> Result<(), Violation> {
        self.say(|_| if kill { "KILL".into() } else { "POWER CUT".into() });
        self.totals.crashes += 1;
        self.count_life();
        self.older_ends(kill);
        self.end_distrusts();
        self.check_removed_late();
        if kill {
            self.coverage.mark("killed processes");
            for disk in &mut self.caches {
                disk.kill(&mut self.rng);
            }
            for origin in &mut self.origins {
                origin.disk.kill(&mut self.rng);
            }
        } else {
            self.coverage.mark("power cuts");
            self.cut_power();
        }
        let crash = if kill { Crash::Kill } else { Crash::Cut };
        let damaged = self.log_is_damaged();
        let strict = !damaged && !self.life.damaged.is_empty();
        self.coverage.add("logs spoilt beside a whole mirror", u64::from(strict));
        self.give_up_perhaps();
        self.checker.crash(if damaged { Crash::Damaged } else { crash });
        self.note_undecided();
        self.requests.clear();
        self.commands.clear();
        self.ops.clear();
        self.queue.clear();
        self.engine = None;
        self.unsettled = 0;
        self.now += PAUSE_NS;
        self.heal();
        Ok(())
    }

    fn note_undecided(&mut self) {
        self.undecided.clear();
        for disk in 0..if self.caches.len() > 1 { self.origins.len() } else { 0 } {
            let sectors = self.checker.touched(disk).iter();
            let open = |&&sector: &&u64| self.checker.possible(disk, sector, self.stamp).len() > 1;
            self.undecided.extend(sectors.filter(open).map(|sector| (disk, sector / PER_BLOCK)));
        }
    }

    /// A volume whose removal or addition was under way may be there or not: the superblock will
    /// tell.
    fn check_removed_late(&mut self) {
        if !self.commands.is_empty() {
            self.coverage.mark("crashes during a command");
        }
    }

    fn end_distrusts(&mut self) {
        for note in std::mem::take(&mut self.distrusts).into_values() {
            if self.rng.coin() {
                self.distrust = note;
            }
        }
    }

    fn cut_power(&mut self) {
        let spoil = self.params.faults.spoil;
        let mut report = CutReport::default();
        for disk in &mut self.caches {
            let mode = self.rng.pick(&self.params.ends.cut_modes);
            add(&mut report, disk.power_cut(mode, |_| spoil, &mut self.rng));
        }
        for (index, origin) in self.origins.iter_mut().enumerate() {
            // What a client has under way no engine can protect against a spoilt sector.
            let open: Vec<Range<u64>> = self
                .requests
                .values()
                .filter(|waiting| waiting.disk == index && waiting.writes())
                .map(|waiting| waiting.range.clone())
                .collect();
            let allowed = |sector| spoil && !open.iter().any(|range| range.contains(&sector));
            let mode = self.rng.pick(&self.params.ends.cut_modes);
            add(&mut report, origin.disk.power_cut(mode, allowed, &mut self.rng));
        }
        self.coverage.add("writes cut in flight", report.in_flight);
        self.coverage.add("writes torn", report.torn);
        self.coverage.add("sectors spoilt", report.spoilt);
        self.coverage.add("writes at the mercy of a cut", report.pending);
    }

    /// Errors end with the life; a device that vanished comes back with what it held.
    fn heal(&mut self) {
        let origins = self.origins.iter_mut().map(|origin| &mut origin.disk);
        for disk in self.caches.iter_mut().chain(origins) {
            disk.faults.clear();
            disk.reads_fail_first = 0;
            if disk.dead_from <= self.now {
                disk.dead_from = u64::MAX;
                self.coverage.mark("devices came back");
            }
        }
    }

    pub(super) fn count_life(&mut self) {
        let Some(engine) = &self.engine else { return };
        self.coverage.pool(&engine.pool_stats());
        for origin in &self.origins {
            let stats = origin.volume.and_then(|volume| engine.volume_stats(volume));
            if let Some(stats) = stats {
                self.coverage.volume(stats);
            }
        }
    }

    /// Virtual time by which what is under way must have ended.
    pub(super) fn time_limit(&self) -> u64 {
        const LIMIT_NS: u64 = 5_000_000_000_000;
        self.now + LIMIT_NS
    }

    /// A tick at some moment, as a host's clock would bring it.
    pub(super) fn schedule_tick(&mut self) {
        const TICK_NS: std::ops::Range<u64> = 10_000..1_000_000_000;
        let after = self.rng.log_range(TICK_NS.start, TICK_NS.end);
        self.schedule(after, Due::Tick);
    }
}

fn add(sum: &mut CutReport, report: CutReport) {
    sum.in_flight += report.in_flight;
    sum.torn += report.torn;
    sum.pending += report.pending;
    sum.spoilt += report.spoilt;
}
