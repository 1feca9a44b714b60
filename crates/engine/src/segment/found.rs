//! What a start finds of the units.

use crate::ids::{Seq, UnitId};
use crate::segment::Segments;
use forebay_format::checkpoint::{SEGMENT_DIRTY_CLASS, SegmentItem};
use forebay_format::record::{RecordClass, RecordHeader};

impl Segments {
    /// Nothing lives.
    pub fn forget_all(&mut self) {
        self.units.iter_mut().for_each(|it| (it.live, it.dirty) = (0, 0));
    }

    /// Blocks that a checkpoint names.
    pub fn found_blocks(&mut self, unit: UnitId, live: u32, dirty: u32) {
        let it = self.unit_mut(unit);
        it.live += live;
        it.dirty += dirty;
    }

    /// What the checkpoint says of a unit. It counts as full.
    pub fn found_unit(&mut self, unit: UnitId, item: Option<&SegmentItem>) {
        let blocks = self.blocks;
        let it = self.unit_mut(unit);
        (it.end, it.durable_end) = (blocks, blocks);
        if let Some(item) = item {
            it.generation = item.generation.get();
            it.last_seq = Seq::of(item.last_seq.get());
            it.dirty_class = item.flags.get() & SEGMENT_DIRTY_CLASS != 0;
        }
    }

    /// A record of some life of a unit, the last of which counts.
    pub fn found_life(&mut self, unit: UnitId, header: &RecordHeader) {
        let it = self.unit_mut(unit);
        if header.segment_generation.get() >= it.generation {
            it.generation = header.segment_generation.get();
            it.dirty_class = header.class == RecordClass::Dirty as u8;
        }
    }

    /// A record that counts.
    pub fn found_seq(&mut self, unit: UnitId, seq: Seq) {
        let it = self.unit_mut(unit);
        it.last_seq = it.last_seq.max(seq);
    }

    /// The log calls a life of a unit ended.
    pub fn found_freed(&mut self, unit: UnitId, generation: u32) {
        let it = self.unit_mut(unit);
        it.generation = it.generation.max(generation);
    }

    /// The order of a unit, in the order of the calls.
    pub fn found_order(&mut self, unit: UnitId) {
        self.units[unit.at()].order = self.order_next;
        self.order_next += 1;
    }

    /// The log goes on at this block of a unit.
    pub fn found_end(&mut self, unit: UnitId, end: u32) {
        let it = self.unit_mut(unit);
        (it.end, it.durable_end) = (end, end);
    }
}
