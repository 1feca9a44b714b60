//! What the chunks of a checkpoint make of the index, and of what is counted of it.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::VolumeId;
use crate::ids::{Slot, UnitId};
use crate::index::{Index, Located, Shape};
use crate::map::index_shape;
use crate::recovery::Opening;
use crate::recovery::load::{Counted, Finder, Keys, Load};
use crate::volume::volumes::base_among;
use forebay_format::MASK_FULL;
use forebay_format::checkpoint::*;
use std::collections::BTreeMap;

impl Opening {
    /// What the checkpoint's index says of segments that are not `gone` is what replay starts from.
    pub(in crate::recovery) fn checkpoint_place(&mut self, engine: &mut Engine, gone: &[bool]) {
        let mut load = std::mem::take(&mut self.load);
        if load.shape.is_none() {
            return;
        }
        match load.counted.take() {
            Some(counted) => engine.table_counted(*counted),
            None => {
                let shape = index_shape(engine.segments.slots(), engine.tuning());
                let mut table = engine.map.replace_index(shape);
                engine.table_insert(&mut table, &load, gone);
            }
        }
        engine.load_placed(&load, gone);
    }

    /// Units whose entries in the checkpoint do not count: those are of a life before, or the unit
    /// was emptied since.
    pub(in crate::recovery) fn units_gone(
        &self,
        engine: &Engine,
        freed: &BTreeMap<UnitId, u64>,
    ) -> Vec<bool> {
        let mut gone = vec![false; engine.segments.units().len()];
        for (&unit, item) in &self.segments {
            let flagged = item.flags.get() & SEGMENT_FRESH != 0;
            gone[unit.at()] = flagged && !engine.is(Mutant::FreshSegmentsCount);
        }
        for (&unit, &last) in freed {
            let item = self.segments.get(&unit);
            let generation = item.map_or(0, |item| u64::from(item.generation.get()));
            let less = u64::from(engine.is(Mutant::GoneOffByOne));
            gone[unit.at()] |= generation + less <= last;
        }
        gone
    }

    /// Drops from buckets of a table that is used as it is what does not count, and counts the
    /// rest. This is most of what a start costs: what is as likely as not is counted without
    /// branches.
    pub(super) fn table_count(
        &mut self,
        engine: &mut Engine,
        counted: &mut Counted,
        first: u32,
        items: &[BucketItem],
    ) {
        let first = first as usize;
        let (load, gone) = (&self.load, &self.plan.gone);
        engine.map.sift(first..first + items.len(), |bucket, way, key, located| {
            let unit = engine.segments.of(located.slot).at();
            let found = counted.finder.find(key);
            let (at, _) = found.filter(|_| !gone[unit])?;
            counted.live[unit] += 1;
            counted.cached[at] += 1;
            let is_dirty = items[bucket - first].dirty >> way & 1;
            counted.dirty[counted.dirties] = key;
            counted.dirties += usize::from(is_dirty);
            if counted.dirties == counted.dirty.len() {
                counted.spread(&mut engine.volumes);
            }
            let mask = match load.masks.is_empty() {
                true => MASK_FULL,
                false => load.masks.get(&located.slot).copied().unwrap_or(MASK_FULL),
            };
            Some((is_dirty, mask))
        });
    }
}

impl Engine {
    /// Gives the volumes the keys that they had, and others to volumes that are new since. Whether
    /// that was possible: one may have grown, where those keys were not, beyond what is free here.
    pub(super) fn adopt_keys(&mut self, shape: Shape, keys: &[Keys]) -> bool {
        let keys_max = shape.keys_max().min(self.map.ram_keys_max());
        let mut taken = Vec::new();
        let mut bases = BTreeMap::new();
        for keys in keys {
            let Some(volume) = self.volume(keys.volume) else { continue };
            let end = keys.first + volume.blocks().max(keys.blocks);
            let free = taken.last().is_none_or(|&(_, before)| before <= keys.first);
            if !free || end > keys_max {
                return false;
            }
            taken.push((keys.first, end));
            bases.insert(keys.volume, keys.first);
        }
        let new = self.volumes.iter().filter(|v| !bases.contains_key(&v.id()));
        let new: Vec<(VolumeId, u64)> = new.map(|v| (v.id(), v.blocks())).collect();
        for (id, blocks) in new {
            let Some(base) = base_among(&mut taken, blocks, keys_max) else { return false };
            taken.push((base, base + blocks));
            bases.insert(id, base);
        }
        self.volumes.rebase(&bases);
        true
    }

    /// All of the table is counted.
    fn table_counted(&mut self, mut counted: Counted) {
        counted.spread(&mut self.volumes);
        for (unit, live) in self.segments.unit_ids().zip(counted.live) {
            // An entry that moved while the checkpoint was written may be there twice: its slot is
            // dirty once.
            let segments = self.segments.segments_of(unit);
            let dirty = segments.map(|segment| {
                let first = self.segments.slot(segment, 0);
                self.map.dirty_slots(first..first.behind(self.segments.blocks()))
            });
            let dirty: u32 = dirty.sum();
            self.segments.found_blocks(unit, live, dirty);
        }
        for (keys, cached) in counted.keys.iter().zip(counted.cached) {
            if cached > 0 {
                self.volumes.found_cached(keys.volume, cached);
            }
        }
    }

    /// Puts the entries of a table of another shape in.
    fn table_insert(&mut self, table: &mut Index, load: &Load, gone: &[bool]) {
        let mut finder = Finder::new(&self.volumes, &load.volumes);
        table.sift(0..table.bucket_count(), |bucket, way, key, located| {
            if let Some((at, block)) = finder.find(key)
                && !gone[self.segments.of(located.slot).at()]
            {
                let dirty = load.dirty[bucket] >> way & 1 == 1;
                let mask = load.masks.get(&located.slot).copied().unwrap_or(MASK_FULL);
                let base = self.vol(load.volumes[at].volume).base();
                self.install(base + block, located, dirty, mask);
            }
            false
        });
    }

    /// What became of the keys that were placed while the buckets were written.
    fn load_placed(&mut self, load: &Load, gone: &[bool]) {
        for item in &load.placed {
            let (id, block) = (VolumeId(item.address.volume()), item.address.block());
            let Some(volume) = self.volume(id).filter(|v| block < v.blocks()) else { continue };
            let key = volume.base() + block;
            while self.forget(key).is_some() {}
            let slot = item.slot.get();
            if slot != SLOT_NONE && !gone[self.segments.of(Slot::of(slot)).at()] {
                let located = Located { slot: Slot::of(slot), crc: item.crc.get() };
                let dirty = item.flags & FLAG_DIRTY != 0;
                self.install(key, located, dirty, item.mask);
            }
        }
    }
}
