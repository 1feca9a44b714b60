//! Rebuild: what recovery found becomes the segment table, and the log goes on where it ended.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::VolumeId;
use crate::index::{Bits, Index, Key, Located, Slot};
use crate::log::Point;
use crate::op::load::index_shape;
use crate::op::replay::Found;
use crate::segment::{UnitId, Use};
use crate::volume::BlockSet;
use forebay_format::record::{self, RecordHeader};
use forebay_format::{MASK_FULL, checkpoint};

impl Engine {
    /// The units' states follow from the index, the checkpoint's table and the records found. I2.
    pub(crate) fn rebuild_segments(&mut self) {
        let opening = self.opening.take().expect("recovery is under way");
        let mut order: Vec<(u64, UnitId)> = Vec::new();
        for unit in 0..self.segments.units.len() as u32 {
            let it = &mut self.segments.units[unit as usize];
            (it.end, it.durable_end) = (self.segments.blocks, self.segments.blocks);
            if let Some(item) = opening.segments.get(&unit) {
                it.generation = item.generation.get();
                it.last_seq = item.last_seq.get();
                it.dirty_class = item.flags.get() & checkpoint::SEGMENT_DIRTY_CLASS != 0;
            }
            let mut seq = 0;
            for segment in self.segments.segments_of(unit) {
                let Some(head) = opening.heads.get(&segment) else { continue };
                seq = seq.max(head.seq.get());
                self.unit_saw(unit, head);
            }
            order.push((seq, unit));
        }
        for found in &opening.records {
            let unit = self.segments.unit_of(found.header.segment.get());
            self.unit_saw(unit, &found.header);
            let it = &mut self.segments.units[unit as usize];
            it.last_seq = it.last_seq.max(found.header.seq.get());
        }
        // A power cut may have taken all that was in a unit, its head too, but not the word that it
        // is empty: that must not speak of what comes next.
        let again = self.is(Mutant::FreedGenerationAgain);
        for (&unit, &last) in opening.plan.freed.iter().filter(|_| !again) {
            let it = &mut self.segments.units[unit as usize];
            it.generation = it.generation.max(last as u32);
        }
        order.sort_unstable();
        for (_, unit) in order {
            self.segments.set_order(unit);
        }
        for unit in 0..self.segments.units.len() as u32 {
            let it = &mut self.segments.units[unit as usize];
            if it.live > 0 {
                it.usage = Use::Sealed;
            } else {
                // A roll-forward may need its records: it becomes free when none does.
                self.room.empty(&mut self.segments, unit, 0);
            }
        }
        self.room.release(&mut self.segments, u64::MAX, self.sb.previous_seq());
        self.reopen_log(&opening.records);
        self.opening = Some(opening);
    }

    /// A record of some life of a unit: the last counts.
    fn unit_saw(&mut self, unit: UnitId, header: &RecordHeader) {
        let it = &mut self.segments.units[unit as usize];
        if header.segment_generation.get() >= it.generation {
            it.generation = header.segment_generation.get();
            it.dirty_class = header.class == record::RecordClass::Dirty as u8;
        }
    }

    /// The log goes on where it ended: else each start would cost a unit. Records that do not count
    /// lie behind the end; what is written over them is of a later life of the log.
    fn reopen_log(&mut self, records: &[Found]) {
        let dirty = records.iter().filter(|found| found.is_dirty_class());
        let Some(last) = dirty.max_by_key(|found| found.header.seq.get()) else { return };
        let (header, segment) = (&last.header, last.header.segment.get());
        let end = header.offset.get() + 1 + u32::from(header.payload_blocks.get());
        let unit = self.segments.unit_of(segment);
        let it = &self.segments.units[unit as usize];
        let same = it.generation == header.segment_generation.get() && it.dirty_class;
        let usable = matches!(it.usage, Use::Sealed | Use::Emptied { .. });
        if !same || !usable || !self.segments.whole(unit) || end >= self.segments.blocks {
            return;
        }
        self.room.reopen(&mut self.segments, unit);
        let it = &mut self.segments.units[unit as usize];
        (it.end, it.durable_end) = (end, end);
        self.log.open[Point::Dirty as usize] = Some(segment);
    }

    /// Points the index at a version found by recovery. The counts follow.
    pub(crate) fn replay_insert(
        &mut self,
        id: VolumeId,
        key: Key,
        located: Located,
        dirty: bool,
        mask: u8,
    ) {
        match self.index.insert(key, located) {
            Some(old) => self.replay_bury(id, key, old.slot),
            None => self.vol_mut(id).stats.cached_blocks += 1,
        }
        let unit = self.segments.of(located.slot) as usize;
        self.segments.units[unit].live += 1;
        if mask != MASK_FULL {
            self.partial.insert(located.slot, mask);
        }
        if dirty {
            self.dirty.set(located.slot as usize, true);
            self.segments.units[unit].dirty += 1;
            let volume = self.vol_mut(id);
            volume.dirty.insert(key - volume.base);
        }
    }

    pub(crate) fn replay_remove(&mut self, id: VolumeId, key: Key) {
        if let Some(old) = self.index.remove(key) {
            self.replay_bury(id, key, old.slot);
            self.vol_mut(id).stats.cached_blocks -= 1;
        }
    }

    fn replay_bury(&mut self, id: VolumeId, key: Key, slot: Slot) {
        self.replay_clean(id, key, slot);
        self.partial.remove(&slot);
        let unit = self.segments.of(slot) as usize;
        self.segments.units[unit].live -= 1;
    }

    /// The version in `slot` went home.
    pub(crate) fn replay_clean(&mut self, id: VolumeId, key: Key, slot: Slot) {
        if !self.dirty.get(slot as usize) {
            return;
        }
        self.dirty.set(slot as usize, false);
        let unit = self.segments.of(slot) as usize;
        self.segments.units[unit].dirty -= 1;
        let volume = self.vol_mut(id);
        volume.dirty.remove(key - volume.base);
    }

    /// Takes all that was found so far back.
    pub(crate) fn replay_reset(&mut self) {
        let slots = self.segments.slots();
        self.index = Index::with_shape(index_shape(slots, &self.tuning));
        self.dirty = Bits::new(slots as usize);
        self.partial.clear();
        for unit in &mut self.segments.units {
            (unit.live, unit.dirty) = (0, 0);
        }
        for volume in self.volumes.iter_mut().flatten() {
            volume.dirty = BlockSet::default();
            volume.stats.cached_blocks = 0;
        }
    }
}
