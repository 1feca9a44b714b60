//! Origins that are pulled out while they are used, and plugged in again.

use super::{Delivered, Flow, Step, World};
use forebay_engine::{Command, Target, VolumeId};

/// Times that origins are pulled out, in one life.
const PULLS_MAX: u64 = 100;

impl World {
    /// Whether somebody wants to pull an origin out now.
    pub(super) fn is_pulled_out(&mut self, disk: usize) -> bool {
        let (share, origin) = (self.params.admin.replug, &self.origins[disk]);
        let served = self.life.serving && !self.life.stopping;
        let served = served && origin.present && !origin.came_late;
        let pulls = share > 0.0 && served && self.wide_rng.chance(share);
        // One that never stays is waited for, for ever.
        pulls && self.life.pulls < PULLS_MAX
    }

    /// Somebody pulls an origin out.
    pub(super) fn pull_out(&mut self, disk: usize, volume: VolumeId) -> Step {
        self.say(|_| format!("origin {disk} is pulled out"));
        self.origins[disk].disk.pull_out();
        self.life.pulls += 1;
        // What it had not made durable may be lost, whether or not an I/O fails.
        let (stamp, target) = (self.next_stamp(), Target::Origin(volume));
        self.life.errors.push(Delivered { stamp, target, first: 0, end: 0 });
        self.ask(disk, Command::OriginLost(volume))
    }

    /// What happens to an origin that is out: it is plugged in again, or its dirty data given up.
    pub(super) fn while_out(&mut self, disk: usize) -> Step {
        let busy = self.commands.values().any(|asked| asked.disk == disk);
        match self.origins[disk].volume {
            Some(volume) if !busy && self.may_drop(disk) && self.wide_rng.one_in(8) => {
                self.origins[disk].resting = true;
                self.ask(disk, Command::ForceDropDirty(volume))
            }
            _ if busy && self.wide_rng.coin() => Ok(Flow::Go),
            _ => self.plug_in(disk),
        }
    }

    /// Plugs an origin in again, when what was under way on it has ended.
    pub(super) fn plug_in(&mut self, disk: usize) -> Step {
        if self.origins[disk].disk.is_awaited() {
            return Ok(Flow::Go);
        }
        self.say(|_| format!("origin {disk} is plugged in"));
        let forgot = self.origins[disk].disk.plug_in(&mut self.wide_rng);
        self.origin_forgot(disk, &forgot, true);
        match self.origins[disk].volume {
            Some(volume) => self.ask(disk, Command::OriginBack { volume, changed: false }),
            None => Ok(Flow::Go),
        }
    }

    pub(super) fn is_back(&mut self, disk: usize) {
        self.coverage.mark(match self.origins[disk].came_late {
            true => "origins that came late",
            false => "origins that were plugged in again",
        });
    }
}
