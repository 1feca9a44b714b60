//! Rebuild: what recovery found becomes the segment table, and the log goes on where it ended.

use crate::Mutant;
use crate::engine::Engine;
use crate::ids::{Dseq, SegmentId, Seq, UnitId};
use crate::map::index_shape;
use crate::recovery::Opening;
use crate::recovery::found::Found;
use crate::segment::Use;
use forebay_format::record::RecordHeader;
use std::collections::BTreeMap;

impl Opening {
    /// The units' states follow from the index, the checkpoint's table and the records found. I2.
    pub(super) fn rebuild_segments(&mut self, engine: &mut Engine) {
        let mut order: Vec<(Seq, UnitId)> = Vec::new();
        for unit in engine.segments.unit_ids() {
            engine.segments.found_unit(unit, self.segments.get(&unit));
            let mut seq = Seq::default();
            for segment in engine.segments.segments_of(unit) {
                let Some(head) = self.heads.get(&segment) else { continue };
                seq = seq.max(Seq::of(head.seq.get()));
                engine.segments.found_life(unit, head);
            }
            order.push((seq, unit));
        }
        for found in &self.records {
            let unit = engine.segments.unit_of(found.segment());
            engine.segments.found_life(unit, &found.header);
            engine.segments.found_seq(unit, found.seq());
        }
        // A power cut may have taken all that was in a unit, its head too, but not the word that it
        // is empty: that must not speak of what comes next.
        let again = engine.is(Mutant::FreedGenerationAgain);
        for (&unit, &last) in self.plan.freed.iter().filter(|_| !again) {
            engine.segments.found_freed(unit, last as u32);
        }
        for &(seq, unit) in &order {
            let seq = seq.max(engine.segments.unit(unit).last_seq);
            engine.segments.found_until(unit, seq);
        }
        order.sort_unstable();
        for (_, unit) in order {
            engine.segments.found_order(unit);
        }
        for unit in engine.segments.unit_ids() {
            if engine.segments.unit(unit).live > 0 {
                engine.segments.becomes(unit, Use::Sealed);
            } else {
                // A roll-forward may need its records: it becomes free when none does.
                engine.segments.empty(unit, Dseq::NONE, 0);
            }
        }
        engine.segments.release(Dseq::MAX, engine.pool.older());
        engine.segments.leave_found();
        engine.reopen_log(&self.records, &self.heads);
    }
}

impl Engine {
    /// The log goes on where it ended: else each start would cost a unit. Records that do not count
    /// lie behind the end; what is written over them is of a later life of the log.
    fn reopen_log(&mut self, records: &[Found], heads: &BTreeMap<SegmentId, RecordHeader>) {
        let dirty = records.iter().filter(|found| found.is_dirty_class());
        let Some(last) = dirty.max_by_key(|found| found.seq()) else { return };
        let (header, segment) = (&last.header, last.segment());
        let end = header.offset.get() + 1 + u32::from(header.payload_blocks.get());
        let end = end - u32::from(self.is(Mutant::TailOverwritten));
        let unit = self.segments.unit_of(segment);
        let it = self.segments.unit(unit);
        let same = it.generation == header.segment_generation.get() && it.dirty_class;
        let usable = matches!(it.usage, Use::Sealed | Use::Emptied { .. });
        // A start finds a copy's records from its first on: that may be on a device that was away.
        let found = self.segments.copies(segment).all(|copy| heads.contains_key(&copy));
        let whole = self.segments.whole(unit) && found;
        if !same || !usable || !whole || end >= self.segments.blocks() {
            return;
        }
        self.segments.reopen(unit);
        self.segments.found_end(unit, end);
        self.log.reopen(segment);
    }

    /// Takes all that was found so far back.
    pub(super) fn replay_reset(&mut self) {
        let slots = self.segments.slots();
        self.map.reset(index_shape(slots, self.tuning()), slots);
        self.segments.forget_all();
        self.volumes.forget_blocks();
    }
}
