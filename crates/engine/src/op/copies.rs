//! Which copy of a slot is read, and what a hit leaves behind.

use crate::engine::Engine;
use crate::event::*;
use crate::index::Slot;
use crate::segment::SegmentId;
use forebay_format::SEGMENT_NONE;

impl Engine {
    /// Pins the copy of a slot that this try reads: its segment, and where it lies.
    pub(crate) fn pin(&mut self, slot: Slot, tries: u8) -> (SegmentId, DeviceId, u64) {
        let copy = self.copy_for(slot, tries);
        self.segments.pin(slot, copy);
        let at = self.segments.slot(copy, slot % self.segments.blocks);
        let (device, offset) = self.segments.locate(at);
        (copy, device, offset)
    }

    /// The segment to read a slot from at this try: its own, or its second copy.
    pub(crate) fn copy_for(&self, slot: Slot, tries: u8) -> SegmentId {
        let segment = self.segments.of(slot);
        let twin = self.segments.table[segment as usize].twin;
        let second = twin != SEGMENT_NONE
            && (tries % 2 == 1 || !self.segments.healthy(segment))
            && self.segments.healthy(twin);
        if second { twin } else { segment }
    }

    /// I: the reference bit counts hits in the older half of the log only.
    pub(crate) fn touch(&mut self, slot: Slot, blocks: u64) {
        let segment = &self.segments.table[self.segments.of(slot) as usize];
        self.reclaim.read(segment.dirty_class, blocks);
        let in_use = self.segments.table.len() as u64;
        if self.segments.order_next().saturating_sub(segment.order) * 2 > in_use {
            for slot in slot..slot + blocks as u32 {
                self.referenced.set(slot as usize, true);
            }
        }
    }
}
