//! Checkpoints that a start needs before the log goes on: of what recovery found.
//!
//! Where every segment that holds nothing waits for the checkpoints to forget it, there is no room
//! for the first record: a pool that was killed again and again in such a moment could not be
//! opened any more. And where the device with the only copy of a record failed while the pool was
//! opened, or fails before the first checkpoint, the next start would find a gap in the log.

use crate::engine::Engine;
use crate::log::Point;
use crate::op::open::Step;
use crate::op::replay::Found;
use forebay_format::SEGMENT_NONE;

/// The second makes the one from before the start forgotten.
const CHECKPOINTS_MAX: u64 = 2;

impl Engine {
    /// Recovery goes on as soon as the log has room and no gap.
    pub(crate) fn recover_room(&mut self) {
        let counted = self.checkpoint.counted;
        let unrepaired = self.open_mut().unrepaired;
        let gap = unrepaired || self.record_out_of_reach() || self.record_on_one_device();
        let gap = gap && counted == 0;
        if !gap && self.room(Point::Dirty, 0, false) {
            return self.recover_tell();
        }
        if counted >= CHECKPOINTS_MAX {
            return self.open_failed("the log has no free segment; this is a bug".to_owned());
        }
        // All that is in the index may be trusted, and what else is in the log comes before the
        // checkpoint.
        let seq = self.log.seq;
        for volume in self.volumes.iter_mut().flatten() {
            (volume.synced_seq, volume.filled_seq) = (seq, seq);
        }
        self.open_mut().step = Step::Room { counted };
    }

    /// Whether no copy of some record is on a device that still works.
    fn record_out_of_reach(&self) -> bool {
        let copies = |found: &Found| {
            let segments = [found.header.segment.get(), found.header.twin.get()];
            let there = |(whole, id)| whole && self.segments.healthy(id);
            found.whole.into_iter().zip(segments).any(there)
        };
        self.segments.devices.iter().any(|device| !device.healthy)
            && self.records_in_order().any(|found| !copies(found))
    }

    /// Whether the failure of one device would leave a gap in the log: some of it was written while
    /// there was only one.
    fn record_on_one_device(&self) -> bool {
        self.segments.devices.iter().filter(|device| device.healthy).count() > 1
            && self.records_in_order().any(|found| found.header.twin.get() == SEGMENT_NONE)
    }

    /// The records of which none may be missing.
    fn records_in_order(&self) -> impl Iterator<Item = &Found> {
        let opening = self.opening.as_ref().expect("recovery is under way");
        opening.records.iter().filter(|found| found.is_dirty_class())
    }

    /// Part of `settle` while a checkpoint is wanted; it had counted so many when it began.
    pub(crate) fn recover_room_more(&mut self, counted: u64) {
        if self.checkpoint.counted > counted {
            self.segments.release(u64::MAX, self.sb.previous_seq());
            self.recover_room();
            if !matches!(self.open_mut().step, Step::Room { .. }) {
                return;
            }
        }
        self.checkpoint.wanted = !self.checkpoint.running();
        loop {
            let before = self.checkpoint.progress();
            self.checkpoint_more();
            if self.checkpoint.progress() == before {
                break;
            }
        }
    }
}
