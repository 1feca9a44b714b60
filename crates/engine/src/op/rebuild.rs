//! Rebuild: what recovery found becomes the segment table, and the log goes on where it ended.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::VolumeId;
use crate::index::{Bits, Index, Key, Located, Slot};
use crate::log::Point;
use crate::op::load::index_shape;
use crate::segment::{SegmentId, Use};
use crate::volume::BlockSet;
use forebay_format::record::{self, RecordHeader};
use forebay_format::{MASK_FULL, SEGMENT_NONE, checkpoint};
use std::collections::BTreeMap;

/// Which lives of segments what was found speaks of: a segment may have become the second copy of
/// another one, or stopped being it, since somebody wrote down that it was.
struct Lives {
    /// By segment: the generation of its twin that it was paired with.
    paired: Vec<u32>,
    /// By segment: the last generation in which it was opened for itself.
    own: Vec<u32>,
}

impl Lives {
    fn new(segments: usize) -> Lives {
        Lives { paired: vec![0; segments], own: vec![0; segments] }
    }

    /// A record of this segment says so.
    fn saw(&mut self, header: &RecordHeader) {
        let own = &mut self.own[header.segment.get() as usize];
        *own = (*own).max(header.segment_generation.get());
    }
}

impl Engine {
    /// Segment states follow from the index, the checkpoint's table and the records found. I2.
    pub(crate) fn rebuild_segments(&mut self) {
        let opening = self.opening.take().expect("recovery is under way");
        let mut order: Vec<(u64, SegmentId)> = Vec::new();
        let mut lives = Lives::new(self.segments.table.len());
        for id in 0..self.segments.table.len() as u32 {
            let (item, head) = (opening.segments.get(&id), opening.heads.get(&id));
            let segment = &mut self.segments.table[id as usize];
            segment.end = self.segments.blocks;
            segment.durable_end = self.segments.blocks;
            if let Some(item) = item {
                segment.generation = item.generation.get();
                segment.last_seq = item.last_seq.get();
                segment.dirty_class = item.flags.get() & checkpoint::SEGMENT_DIRTY_CLASS != 0;
                segment.twin = item.twin.get();
                if item.flags.get() & checkpoint::SEGMENT_FREE != 0 {
                    segment.twin = SEGMENT_NONE;
                }
                let twin = opening.segments.get(&segment.twin);
                lives.paired[id as usize] = twin.map_or(0, |twin| twin.generation.get());
            }
            if let Some(head) = head {
                let own = head.segment.get() == id;
                if own {
                    lives.saw(head);
                }
                let generation =
                    if own { head.segment_generation.get() } else { head.twin_generation.get() };
                if generation >= segment.generation {
                    segment.generation = generation;
                    segment.twin = if own { head.twin.get() } else { SEGMENT_NONE };
                    lives.paired[id as usize] = head.twin_generation.get();
                    segment.dirty_class = head.class == record::RecordClass::Dirty as u8;
                }
            }
            order.push((head.map_or(0, |head| head.seq.get()), id));
        }
        for found in &opening.records {
            // One copy of a pair may be all that is left: it speaks for both.
            let header = &found.header;
            lives.saw(header);
            let (id, generation) = (header.segment.get(), header.segment_generation.get());
            let segment = &mut self.segments.table[id as usize];
            segment.last_seq = segment.last_seq.max(header.seq.get());
            let dirty_class = header.class == record::RecordClass::Dirty as u8;
            if generation > segment.generation || (generation == segment.generation && dirty_class)
            {
                segment.generation = generation;
                segment.twin = header.twin.get();
                segment.dirty_class = dirty_class;
                lives.paired[id as usize] = header.twin_generation.get();
            }
            if let Some(twin) = self.segments.table.get_mut(header.twin.get() as usize) {
                twin.generation = twin.generation.max(header.twin_generation.get());
            }
        }
        // A power cut may have taken all that was in a segment, its head too, but not the word that
        // it is empty: that must not speak of what comes next.
        let again = self.is(Mutant::FreedGenerationAgain);
        for (&id, &last) in opening.plan.freed.iter().filter(|_| !again) {
            let segment = &mut self.segments.table[id as usize];
            segment.generation = segment.generation.max(last as u32);
        }
        order.sort_unstable();
        for (_, id) in order {
            self.segments.set_order(id);
        }
        self.opening = Some(opening);
        self.assign_uses(&lives);
    }

    fn assign_uses(&mut self, lives: &Lives) {
        let count = self.segments.table.len() as u32;
        let mut twins: BTreeMap<SegmentId, SegmentId> = BTreeMap::new();
        for id in 0..count {
            let segment = &self.segments.table[id as usize];
            let twin = segment.twin;
            let of_use = segment.live > 0 || (segment.dirty_class && segment.last_seq > 0);
            let paired = lives.paired[id as usize];
            let still = lives.own.get(twin as usize).is_some_and(|&own| own < paired);
            if of_use && still {
                let primary = twins.entry(twin).or_insert(id);
                if paired > lives.paired[*primary as usize] {
                    *primary = id;
                }
            } else {
                self.segments.table[id as usize].twin = SEGMENT_NONE;
            }
        }
        for id in 0..count {
            let segment = &mut self.segments.table[id as usize];
            if let Some(&primary) = twins.get(&id)
                && segment.live == 0
            {
                segment.usage = Use::Twin(primary);
                segment.twin = SEGMENT_NONE;
            } else if segment.live > 0 {
                segment.usage = Use::Sealed;
            }
        }
        let mut pairs = BTreeMap::new();
        for id in 0..count {
            let usage = self.segments.table[id as usize].usage;
            let twin = self.segments.table[id as usize].twin;
            if twin != SEGMENT_NONE && self.segments.table[twin as usize].usage != Use::Twin(id) {
                self.segments.table[id as usize].twin = SEGMENT_NONE;
            }
            if usage == Use::Free {
                // Empty, but a roll-forward may need its records: it becomes free when nobody does.
                pairs.insert(id, self.segments.table[id as usize].twin);
                self.segments.empty(id, 0);
            }
        }
        let forgotten = self.sb.previous_seq();
        self.segments.release(u64::MAX, forgotten);
        self.reopen_log(&pairs);
    }

    /// The log goes on where it ended: else each start would cost a segment. Records that do not
    /// count lie behind the end; what is written over them has a greater number than they have.
    /// `pairs` has the second copies of the segments that are empty.
    fn reopen_log(&mut self, pairs: &BTreeMap<SegmentId, SegmentId>) {
        let records = &self.opening.as_ref().expect("recovery is under way").records;
        let last = records
            .iter()
            .filter(|found| found.header.class == record::RecordClass::Dirty as u8)
            .max_by_key(|found| found.header.seq.get());
        let Some(last) = last.map(|found| found.header) else { return };
        let id = last.segment.get();
        let end = records
            .iter()
            .filter(|found| found.header.segment.get() == id)
            .map(|found| {
                found.header.offset.get() + 1 + u32::from(found.header.payload_blocks.get())
            })
            .max()
            .expect("there is one");
        let segment = &self.segments.table[id as usize];
        let is_empty =
            |id: SegmentId| matches!(self.segments.table[id as usize].usage, Use::Emptied { .. });
        let pair =
            pairs.get(&id).filter(|&&twin| twin != SEGMENT_NONE && is_empty(id) && is_empty(twin));
        let twin = pair.copied().unwrap_or(segment.twin);
        let whole = last.twin.get() == twin && self.segments.healthy(id);
        let twin_there = twin == SEGMENT_NONE || self.segments.healthy(twin);
        let single = twin == SEGMENT_NONE;
        if single && self.segments.devices.iter().filter(|device| device.healthy).count() > 1 {
            // It was opened while the other device was away: new dirty data gets two copies again.
            return;
        }
        let same = segment.generation == last.segment_generation.get();
        let usable = matches!(segment.usage, Use::Sealed | Use::Emptied { .. });
        if !(whole && twin_there && same && usable && end < self.segments.blocks) {
            return;
        }
        if is_empty(id) {
            if last.twin.get() != SEGMENT_NONE && pair.is_none() {
                return;
            }
            self.segments.emptied.retain(|&emptied| emptied != id && emptied != twin);
        }
        if pair.is_some() {
            self.segments.table[twin as usize].usage = Use::Twin(id);
        }
        let segment = &mut self.segments.table[id as usize];
        segment.twin = twin;
        segment.usage = Use::Open;
        segment.end = end;
        segment.durable_end = end;
        self.log.open[Point::Dirty as usize] = Some(id);
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
        let segment = self.segments.of(located.slot) as usize;
        self.segments.table[segment].live += 1;
        if mask != MASK_FULL {
            self.partial.insert(located.slot, mask);
        }
        if dirty {
            self.dirty.set(located.slot as usize, true);
            self.segments.table[segment].dirty += 1;
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
        let segment = self.segments.of(slot) as usize;
        self.segments.table[segment].live -= 1;
    }

    /// The version in `slot` went home.
    pub(crate) fn replay_clean(&mut self, id: VolumeId, key: Key, slot: Slot) {
        if !self.dirty.get(slot as usize) {
            return;
        }
        self.dirty.set(slot as usize, false);
        let segment = self.segments.of(slot) as usize;
        self.segments.table[segment].dirty -= 1;
        let volume = self.vol_mut(id);
        volume.dirty.remove(key - volume.base);
    }

    /// Takes all that was found so far back.
    pub(crate) fn replay_reset(&mut self) {
        let slots = self.segments.slots();
        self.index = Index::with_shape(index_shape(slots, &self.tuning));
        self.dirty = Bits::new(slots as usize);
        self.partial.clear();
        for segment in &mut self.segments.table {
            (segment.live, segment.dirty) = (0, 0);
        }
        for volume in self.volumes.iter_mut().flatten() {
            volume.dirty = BlockSet::default();
            volume.stats.cached_blocks = 0;
        }
    }
}
