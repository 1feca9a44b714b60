//! Which copy of a slot is read, and what a hit leaves behind.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Key, SegmentId, Slot};
use crate::index::Located;
use crate::op::Op;
use forebay_format::BLOCK_SIZE;
use forebay_format::io::Buf;

impl Engine {
    /// Reads blocks from a slot on, from the copy that this try looks at. `by` must pin the slot,
    /// or keep its unit from being used again.
    pub(crate) fn read_slot(&mut self, slot: Slot, tries: u8, blocks: u32, by: Op) {
        let buf = self.io.take(blocks as usize * BLOCK_SIZE);
        self.read_slot_into(slot, tries, buf, by);
    }

    /// As [`Engine::read_slot`], into this buffer.
    pub(crate) fn read_slot_into(&mut self, slot: Slot, tries: u8, buf: Buf, by: Op) {
        let own = self.segments.segment_of(slot);
        let segment = self.copy_for(own, tries);
        let place = match segment == own {
            true => slot,
            false => self.segments.slot(segment, self.segments.offset_of(slot)),
        };
        let (device, offset) = self.segments.locate(place);
        self.io.read(by, Target::Cache(device), offset, buf);
    }

    /// The segment to read a segment's content from at this try: it, or its mirror.
    pub(crate) fn copy_for(&self, segment: SegmentId, tries: u8) -> SegmentId {
        let second = tries % 2 == 1 || !self.segments.holds(segment);
        if !second || self.is(Mutant::MirrorUnread) {
            return segment;
        }
        let mirror = self.segments.mirror_of(segment).filter(|&copy| self.segments.holds(copy));
        mirror.unwrap_or(segment)
    }

    /// Where a block is, for a reader. A clean block that was on a device which failed is
    /// forgotten: the origin has it.
    pub(crate) fn locate(&mut self, key: Key) -> Option<Located> {
        let located = self.map.get(key)?;
        let gone = (self.log.is_dead()
            || (self.segments.incomplete() && !self.segments.reachable(located.slot)))
            && !self.map.is_dirty(located.slot);
        if gone {
            self.forget(key);
            return None;
        }
        Some(located)
    }

    /// I: the reference bit counts hits in the older half of the log only.
    pub(crate) fn touch(&mut self, slot: Slot, blocks: u64) {
        let unit = self.segments.unit_at(slot);
        self.reclaim.read(unit.dirty_class, blocks);
        let in_use = self.segments.units().len() as u64;
        if self.segments.order_next().saturating_sub(unit.order) * 2 > in_use {
            self.map.refer(slot..slot.behind(blocks as u32));
        }
    }
}
