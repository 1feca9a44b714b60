//! The end of the last life: faults stop, everything must come to rest, and everything is looked
//! at.

use super::{Flow, World};
use crate::model::Violation;
use forebay_engine::{Command, RequestKind};

/// Most sectors of one read of the final check.
const READ_SECTORS_MAX: u64 = 64;
/// What lost blocks hold up may be given up after so long, nanoseconds.
const LOSSY_LIMIT_NS: u64 = 500_000_000_000;

impl World {
    /// No faults and no new requests any more: all that is under way ends (rule H).
    pub(super) fn rest(&mut self) -> Result<(), Violation> {
        self.life.quiet = true;
        self.life.crash_in = None;
        self.calm = true;
        let lossy = (0..self.origins.len()).any(|disk| self.checker.has_lost(disk));
        let limit = if lossy { self.now + LOSSY_LIMIT_NS } else { self.time_limit() };
        let result = self.run_until_quiet(limit, lossy);
        self.calm = false;
        result
    }

    fn run_until_quiet(&mut self, limit: u64, lossy: bool) -> Result<(), Violation> {
        self.life.read_faults.clear();
        for disk in &mut self.caches {
            disk.faults.clear();
            disk.reads_fail_first = 0;
        }
        for origin in &mut self.origins {
            origin.disk.faults.clear();
        }
        for disk in 0..self.origins.len() {
            while self.origins[disk].disk.is_out() {
                let awaited = self.origins[disk].disk.is_awaited();
                if awaited {
                    self.step()?
                } else {
                    self.plug_in(disk)?
                };
            }
        }
        while !self.requests.is_empty() || !self.commands.is_empty() {
            match self.step()? {
                Flow::Go => {}
                Flow::Crash => unreachable!("no crash is planned"),
                // A drain cannot end while what it shall send home is lost.
                Flow::Idle if lossy && self.requests.is_empty() => return Ok(()),
                Flow::Idle => return Err(self.stuck()),
            }
            if self.now > limit {
                if lossy && self.requests.is_empty() {
                    return Ok(());
                }
                let text = format!("no end in sight; {}", self.waiting());
                return Err(Violation::new("H", text));
            }
        }
        Ok(())
    }

    /// Reads all that was ever written, through the engine.
    pub(super) fn read_back(&mut self) -> Result<(), Violation> {
        for disk in 0..self.origins.len() {
            if self.origins[disk].volume.is_none() || !self.origins[disk].present {
                continue;
            }
            let mut sectors = self.to_look_at(disk);
            sectors.sort_unstable();
            let size = self.origins[disk].sectors;
            sectors.retain(|&sector| sector < size);
            let mut at = 0;
            for sector in sectors {
                if sector < at {
                    continue;
                }
                // Exact reads of single sectors where blocks are lost: their neighbours may be
                // good.
                let lost = self.checker.any_lost(disk, sector..sector + 1, self.stamp);
                let count = if lost { 1 } else { self.rng.range(1, READ_SECTORS_MAX) };
                at = (sector + count).min(size);
                let flow = self.submit(None, disk, RequestKind::Read, sector..at, false)?;
                assert_eq!(flow, Flow::Go, "no crash is planned");
                if self.requests.len() >= 8 {
                    self.rest()?;
                }
            }
        }
        self.rest()
    }

    /// The sectors that are worth a look: those that were ever written, or in some worlds at the
    /// end all.
    pub(super) fn to_look_at(&self, disk: usize) -> Vec<u64> {
        if self.params.reads_all && self.life.number >= self.params.lives {
            return (0..self.origins[disk].disk.sectors()).collect();
        }
        self.checker.touched(disk).to_vec()
    }

    /// Checks the last life to the end.
    pub(super) fn finish(&mut self) -> Result<(), Violation> {
        self.run_until_open()?;
        self.rest()?;
        self.halves_end()?;
        if self.rng.coin() {
            self.read_back()?;
        }
        self.drain_all()?;
        self.read_back()?;
        self.engine().check();
        self.stop_and_look()
    }

    /// After a drain nothing is dirty, and the origins hold what clients may read.
    fn drain_all(&mut self) -> Result<(), Violation> {
        for disk in 0..self.origins.len() {
            let Some(volume) = self.origins[disk].volume else { continue };
            if self.origins[disk].present {
                self.ask(disk, Command::Drain(volume))?;
            }
        }
        self.rest()?;
        for disk in 0..self.origins.len() {
            let Some(volume) = self.origins[disk].volume else { continue };
            let views = self.engine().volumes();
            let offline = views.iter().any(|view| view.id == volume && view.offline.is_some());
            // A cache that is not used any more keeps what is dirty there: the next start has it.
            let broken = self.life.log_broken;
            if !self.origins[disk].present || self.checker.has_lost(disk) || offline || broken {
                continue;
            }
            let dirty = self.engine().volume_stats(volume).map_or(0, |stats| stats.dirty_blocks);
            if dirty > 0 {
                let text = format!("{dirty} blocks of {volume:?} are dirty after a drain");
                return Err(Violation::new("H", text));
            }
            self.check_origin(disk, "is drained")?;
        }
        Ok(())
    }

    /// An orderly stop, and a last start from what it left.
    fn stop_and_look(&mut self) -> Result<(), Violation> {
        self.life.stopping = true;
        self.ask(0, Command::Shutdown)?;
        self.rest()?;
        let kill = self.rng.coin();
        self.crash(kill)?;
        let number = self.life.number + 1;
        self.calm = true;
        self.start_life(number)?;
        self.life.requests_left = 0;
        self.run_until_open()?;
        self.check_open_failure()?;
        if self.life.open_failed.is_none() {
            self.read_back()?;
            self.engine().check();
        }
        self.count_life();
        Ok(())
    }
}
