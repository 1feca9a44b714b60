//! Writeback while clients keep the origin busy: a slice is short and has the origin for itself,
//! and clients then have it for at least as long. Their reads wait for the slice's end: a disk
//! whose head travels between reads and the sweep needs several times as long for both.

use crate::engine::Engine;
use crate::event::*;
use crate::limits::HOLD_NS_MAX;
use crate::op::writeback::Slice;

impl Engine {
    /// Whether somebody waits for the room that clean blocks give.
    pub(super) fn room_is_wanted(&self) -> bool {
        self.reclaim.starves || !self.stalled.is_empty() || self.room.is_short()
    }

    /// Sends a read of the origin, or keeps it until the slice that has the origin for itself ends.
    pub(crate) fn send_or_hold(&mut self, volume: VolumeId, read: Effect) {
        let now = self.now;
        let reading = self.vol_mut(volume);
        reading.origin_used = now;
        reading.origin_reads += 1;
        let holds = |slice: &Slice| slice.alone && slice.volume == volume;
        match self.writeback.slice.as_ref().is_some_and(holds) && !self.hold_is_over() {
            true => {
                self.stats.reads_held += 1;
                self.writeback.held.push(read);
            }
            false => self.out.push(read),
        }
    }

    /// When reads wait no longer, whatever became of the slice.
    pub(crate) fn hold_until(&self) -> Option<Time> {
        let slice = self.writeback.slice.as_ref().filter(|_| !self.writeback.held.is_empty())?;
        Some(slice.since + HOLD_NS_MAX)
    }

    fn hold_is_over(&self) -> bool {
        let slice = self.writeback.slice.as_ref();
        self.dead || slice.is_none_or(|slice| self.now >= slice.since + HOLD_NS_MAX)
    }

    pub(crate) fn release_reads(&mut self) {
        if !self.writeback.held.is_empty() && self.hold_is_over() {
            self.stats.holds_cut += u64::from(self.writeback.busy());
            self.out.append(&mut self.writeback.held);
        }
    }
}
