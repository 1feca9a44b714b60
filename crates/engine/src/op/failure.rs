//! Cache devices that fail: the log goes on with those that are left, or the volumes without one.

use crate::engine::{Engine, State};
use crate::event::*;
use crate::op::Op;
use crate::op::superblock::Then;
use crate::segment::SegmentId;
use forebay_format::SEGMENT_NONE;

impl Engine {
    /// A cache device does not work any more.
    pub(crate) fn device_failed(&mut self, device: DeviceId, why: &str) {
        let entry = &mut self.segments.devices[usize::from(device.0)];
        if !entry.healthy {
            return;
        }
        entry.healthy = false;
        self.out.push(Effect::Notice(Notice::DeviceFailed(device, why.to_owned())));
        if self.segments.devices.iter().any(|device| device.healthy) {
            for point in crate::log::POINTS {
                let copies_there = |s: SegmentId| {
                    let twin = self.segments.table[s as usize].twin;
                    self.segments.healthy(s)
                        && (twin == SEGMENT_NONE || self.segments.healthy(twin))
                };
                if self.log.open[point as usize].is_some_and(|s| !copies_there(s)) {
                    self.send(point);
                    self.seal(point);
                }
            }
            if self.state != State::Opening {
                self.superblock_write(Then::Away(1));
                // What only the device had of the log, no start will need any more.
                self.checkpoint.wanted = true;
            }
            return;
        }
        self.die();
    }

    /// No cache device works: the volumes go on with their origins. Clean blocks are forgotten;
    /// dirty ones are read as long as that works, and cannot be written. Contract points 4 and 6.
    pub(crate) fn die(&mut self) {
        self.dead = true;
        let mut clean = Vec::new();
        self.index.scan(0, self.index.bucket_count(), |key, located| {
            if !self.dirty.get(located.slot as usize) {
                clean.push(key);
            }
        });
        for key in clean {
            self.forget(key);
        }
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
        self.writeback.abandon();
        self.sync = None;
        self.superblock_give_up();
        let op = self.op(Op::Distrust);
        self.out.push(Effect::Distrust { op, epoch: self.sb.epoch() });
        self.tasks_fail("the cache device failed");
    }

    /// The executor has, or has not, written down that our clean content must not be used.
    pub(crate) fn distrust_done(&mut self, result: Result<(), IoError>) {
        if result.is_ok() {
            self.distrusted = true;
        } else {
            let op = self.op(Op::Distrust);
            self.out.push(Effect::Distrust { op, epoch: self.sb.epoch() });
        }
    }
}
