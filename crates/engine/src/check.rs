//! The numbered invariants, asserted over the whole state, and the state in words.

use crate::engine::Engine;
use crate::requests::Queue;

impl Engine {
    /// Asserts the numbered invariants over the whole state. Slow; the simulator calls it.
    pub fn check(&self) {
        if !self.is_serving() && !self.is_stopping() {
            return;
        }
        let mut live = vec![(0_u32, 0_u32); self.segments.units().len()];
        let mut slots = std::collections::BTreeSet::new();
        let mut dirty_count = 0;
        self.map.scan(0, self.map.bucket_count(), |key, located| {
            assert!(slots.insert(located.slot), "I1: two blocks in one slot");
            assert!(self.volume_of(key).is_some(), "I1: a block of no volume");
            let unit = self.segments.of(located.slot).at();
            live[unit].0 += 1;
            let dirty = self.map.is_dirty(located.slot);
            live[unit].1 += u32::from(dirty);
            dirty_count += u64::from(dirty);
            let volume = self.volume_of(key).expect("checked");
            let listed =
                volume.dirty().iter_from(key - volume.base()).next() == Some(key - volume.base());
            assert_eq!(listed, dirty, "the dirty set and the index agree");
        });
        for (unit, &(live, dirty)) in self.segments.units().iter().zip(&live) {
            assert_eq!((unit.live, unit.dirty), (live, dirty), "I2");
            let in_use = matches!(
                unit.usage,
                crate::segment::Use::Open
                    | crate::segment::Use::Sealed
                    | crate::segment::Use::Victim
                    | crate::segment::Use::Lost
            );
            assert!(live == 0 || in_use, "I1: live blocks in a segment that is not in use");
        }
        self.segments.check_halves();
        self.reqs.check();
        let mut keys: Vec<_> = self.volumes.iter().map(|v| v.keys()).collect();
        keys.sort_unstable();
        let apart = keys.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        assert!(apart, "I14: two volumes share keys");
        let listed: u64 = self.volumes.iter().map(|v| v.dirty().len()).sum();
        assert_eq!(listed, dirty_count, "the dirty sets and the index agree");
        assert!(self.log.durable_dseq() <= self.log.completed_dseq());
        assert!(self.log.completed_dseq() <= self.log.dseq());
        let live_slots: Vec<_> = self.map.partial().filter(|slot| !slots.contains(slot)).collect();
        assert!(live_slots.is_empty(), "masks of dead slots: {live_slots:?}");
    }

    /// What holds requests up, in words; for the simulator's report of a world that stands still.
    pub fn describe(&self) -> String {
        let reqs: Vec<_> = self
            .reqs
            .iter()
            .map(|(_, r)| (r.kind, r.waits_for(), r.pending, r.first, r.last, r.holds()))
            .collect();
        let ops: Vec<_> = self.io.ops().map(|op| format!("{op:?}")).collect();
        let volumes: Vec<_> = self
            .volumes
            .iter()
            .map(|v| (v.id(), v.intents(), v.flush(), v.service(), v.task()))
            .collect();
        let uses: Vec<_> =
            self.segments.units().iter().map(|s| (s.usage, s.live, s.dirty, s.last_seq)).collect();
        format!(
            "room {} dirty {:.3} throttle {:?} {} state {:?} dead {} reqs {reqs:?} ops {ops:?} \
             stalled {} flushing {} log seq {} \
             dseq {} completed {} durable {} flush {} volumes {volumes:?} \
             checkpoint {:?} sync {} writeback {} segments {uses:?}",
            self.segments.describe_room(),
            self.dirty_share(),
            self.reqs.pause_until().saturating_sub(self.io.now()),
            self.reclaim.describe(),
            self.state(),
            self.log.is_dead(),
            self.wake_progress()[1],
            self.reqs.waiting(Queue::Durable).len(),
            self.log.seq().raw(),
            self.log.dseq().raw(),
            self.log.completed_dseq().raw(),
            self.log.durable_dseq().raw(),
            self.log.describe_flushes(),
            self.pool.describe(),
            self.syncs()[0],
            self.writeback_describe(),
        )
    }
}
