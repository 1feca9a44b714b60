//! Cache devices that fail: the log goes on with those that are left, or the volumes without one.

use crate::Mutant;
use crate::engine::{Engine, State};
use crate::event::*;
use crate::log::Point;
use crate::op::superblock::Then;
use crate::op::sweep::Sweep;
use crate::room::Purpose;
use crate::segment::SegmentId;

impl Engine {
    /// A cache device does not work any more.
    pub(crate) fn device_failed(&mut self, device: DeviceId, why: &str) {
        if !self.segments.devices()[usize::from(device.0)].healthy {
            return;
        }
        self.segments.device_failed(device);
        self.room.device_failed(&self.segments);
        self.out.push(Effect::Notice(Notice::DeviceFailed(device, why.to_owned())));
        if self.segments.devices().iter().any(|device| device.healthy) {
            for point in crate::log::POINTS {
                if self.log.open[point as usize].is_some_and(|open| self.leaves(point, open)) {
                    self.send(point);
                    self.seal(point);
                }
            }
            self.sweep(Sweep::Unreachable);
            if self.state != State::Opening {
                if !self.is(Mutant::AwayUntold) {
                    self.superblock_write(Then::Away(1));
                }
                // What only the device had of the log, no start will need any more.
                self.checkpoint.wanted = true;
            }
            return;
        }
        self.die();
    }

    /// Whether a write point opens another segment although there is room in the one it has: that
    /// is on a device that failed, or its mirror is and there are whole pairs.
    pub(crate) fn leaves(&self, point: Point, open: SegmentId) -> bool {
        let unit = self.segments.unit_of(open);
        match point {
            _ if self.segments.whole(unit) => false,
            Point::Dirty => {
                !self.segments.usable(unit) || self.room.has_whole(&self.segments, Purpose::Move)
            }
            Point::Fill | Point::Reinsert => !self.segments.healthy(open),
        }
    }

    /// No cache device works: the volumes go on with their origins. Clean blocks are forgotten,
    /// soon; dirty ones are read as long as that works, and cannot be written. Contract points 4
    /// and 6.
    pub(crate) fn die(&mut self) {
        self.dead = true;
        self.sweep(Sweep::All);
        self.log.backlog.clear();
        for point in crate::log::POINTS {
            if let Some(gather) = self.log.gather[point as usize].take() {
                self.pool.give(gather.buf);
                for req in gather.waiters {
                    self.req(req).fail(IoError::Io);
                    self.part_done(req);
                }
            }
        }
        self.volumes.iter_mut().flatten().for_each(|volume| volume.home.abandon());
        self.sync = None;
        self.superblock_give_up();
        self.distrust();
        self.tasks_fail("the cache device failed");
    }
}
