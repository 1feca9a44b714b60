//! Load: the chunks of a checkpoint become the index again, bucket by bucket.
//!
//! An index of the shape in which the checkpoint was written is copied. Where the shape or the
//! volumes' keys are others now, its entries are put in one by one.

use crate::Mutant;
use crate::buf::Buf;
use crate::engine::{Engine, live_max};
use crate::event::VolumeId;
use crate::index::{Index, Key, Located, Shape, Slot};
use crate::op::command::base_among;
use crate::op::open::Source;
use crate::settings::Tuning;
use forebay_format::checkpoint::*;
use forebay_format::{BLOCK_SIZE, MASK_FULL, checkpoint};
use std::collections::BTreeMap;

/// Dirty blocks that are gathered before they are sorted into the volumes' sets.
const DIRTY_GATHERED_MAX: usize = 1 << 20;

/// A checkpoint being read.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Reads that have come, by their first block.
    arrived: BTreeMap<u64, Buf>,
    /// Blocks that are in order and not decoded.
    carry: Vec<u8>,
    /// Blocks that are decoded.
    decoded: u64,
    bad: bool,
    shape: Option<Shape>,
    /// Buckets that are in place.
    buckets: u32,
    /// Dirty bits of each bucket.
    dirty: Vec<u8>,
    placed: Vec<BlockItem>,
    masks: BTreeMap<Slot, u8>,
    volumes: Vec<Keys>,
}

/// Where a volume's keys were when the checkpoint was written.
#[derive(Debug, Clone, Copy)]
struct Keys {
    first: Key,
    blocks: u64,
    volume: VolumeId,
}

impl Load {
    /// Blocks of the checkpoint are here, or (`empty`) cannot be read.
    pub(crate) fn arrive(&mut self, from: u64, buf: Buf) {
        self.arrived.insert(from, buf);
    }

    /// Whether all of the checkpoint is decoded and good.
    pub(crate) fn whole(&self, source: &Source) -> bool {
        !self.bad && self.decoded == source.blocks
    }
}

impl Engine {
    /// Decodes the chunks that have arrived in order. Whether they are good.
    pub(crate) fn checkpoint_decode(&mut self) -> bool {
        let Some(source) = self.open_mut().source else { return true };
        let good = !self.open_mut().load.bad && self.chunks_decode(&source);
        self.open_mut().load.bad = !good;
        good
    }

    fn chunks_decode(&mut self, source: &Source) -> bool {
        let pool = self.sb.pool();
        loop {
            let load = &mut self.opening.as_mut().expect("recovery is under way").load;
            let have = load.decoded + (load.carry.len() / BLOCK_SIZE) as u64;
            if let Some(buf) = load.arrived.remove(&have) {
                if buf.is_empty() {
                    return false;
                }
                load.carry.extend_from_slice(buf.bytes());
                self.pool.give(buf);
                continue;
            }
            let mut used = 0;
            let mut carry = std::mem::take(&mut load.carry);
            while used < carry.len() {
                let at = self.open_mut().load.decoded;
                match checkpoint::decode(&carry[used..], pool, source.generation, at) {
                    Ok((chunk, blocks)) => {
                        used += blocks * BLOCK_SIZE;
                        self.open_mut().load.decoded += blocks as u64;
                        if !self.chunk_load(chunk) {
                            return false;
                        }
                    }
                    // The rest of the chunk may be in the next read.
                    Err(_)
                        if have < source.blocks
                            && carry.len() - used < CHUNK_BLOCKS_MAX * BLOCK_SIZE =>
                    {
                        break;
                    }
                    Err(_) => return false,
                }
            }
            carry.drain(..used);
            self.open_mut().load.carry = carry;
            return true;
        }
    }

    fn chunk_load(&mut self, chunk: Chunk) -> bool {
        let opening = self.opening.as_mut().expect("recovery is under way");
        let load = &mut opening.load;
        match chunk {
            Chunk::Segments(items) => {
                for item in items {
                    if item.segment.get() as usize >= self.segments.table.len() {
                        return false;
                    }
                    opening.segments.insert(item.segment.get(), item);
                }
            }
            Chunk::Volumes(items) => {
                for item in items {
                    let (volume, value) = (item.volume.get(), item.value.get());
                    match item.kind {
                        VOLUME_SYNCED => {
                            opening.synced.insert(volume, value);
                        }
                        VOLUME_INTENT => {
                            opening.marks.insert((volume, value), item.aux.get());
                        }
                        _ => load.volumes.push(Keys {
                            first: value,
                            blocks: item.aux.get(),
                            volume: VolumeId(volume),
                        }),
                    }
                }
            }
            Chunk::Table(item) => {
                let Some(shape) = Shape::of(&item) else { return false };
                load.shape = Some(shape);
                load.dirty.reserve(item.buckets.get() as usize);
                if self.index.shape() != shape {
                    self.index = Index::with_shape(shape);
                }
            }
            Chunk::Buckets(first, items) => {
                let fits = first as usize + items.len() <= self.index.bucket_count();
                if load.shape.is_none() || first != load.buckets || !fits {
                    return false;
                }
                for item in items {
                    self.index.set_bucket(load.buckets as usize, &item);
                    load.dirty.push(item.dirty);
                    load.buckets += 1;
                }
            }
            Chunk::Masks(items) => {
                load.masks.extend(items.iter().map(|item| (item.slot.get(), item.mask)));
            }
            Chunk::Blocks(items) => load.placed.extend(items),
        }
        true
    }

    /// All chunks are here: the counts follow from the table. Whether they make sense.
    pub(crate) fn checkpoint_loaded(&mut self) -> bool {
        let mut load = std::mem::take(&mut self.open_mut().load);
        if load.shape.is_none() || load.buckets as usize != self.index.bucket_count() {
            return false;
        }
        load.volumes.sort_unstable_by_key(|keys| keys.first);
        let disjoint = |pair: &[Keys]| {
            pair[0].first.checked_add(pair[0].blocks).is_some_and(|end| end <= pair[1].first)
        };
        if !load.volumes.windows(2).all(disjoint) {
            return false;
        }
        let slots = self.segments.slots();
        let shape = index_shape(slots, &self.tuning);
        let mut table = std::mem::replace(&mut self.index, Index::new(1, 1));
        let good = if table.shape() == shape && self.adopt_keys(shape, &load.volumes) {
            let good = self.table_count(&mut table, &load, slots);
            self.index = table;
            good
        } else {
            self.index = Index::with_shape(shape);
            self.table_insert(&mut table, &load, slots)
        };
        good && self.load_placed(&load)
    }

    /// Segments whose entries in the checkpoint are of a life before.
    fn fresh_segments(&self) -> Vec<bool> {
        let opening = self.opening.as_ref().expect("recovery is under way");
        let mut fresh = vec![false; self.segments.table.len()];
        for (&segment, item) in &opening.segments {
            let flagged = item.flags.get() & SEGMENT_FRESH != 0;
            fresh[segment as usize] = flagged && !self.is(Mutant::FreshSegmentsCount);
        }
        fresh
    }

    /// Gives the volumes the keys that they had, and others to volumes that are new since. Whether
    /// that was possible.
    fn adopt_keys(&mut self, shape: Shape, keys: &[Keys]) -> bool {
        let keys_max = shape.keys_max().min(self.ram.keys_max());
        let mut taken = Vec::new();
        let mut bases = BTreeMap::new();
        for keys in keys {
            let Some(volume) = self.volume(keys.volume) else { continue };
            if volume.blocks() != keys.blocks {
                return false;
            }
            taken.push((keys.first, keys.first + keys.blocks));
            bases.insert(keys.volume, keys.first);
        }
        let new = self.volumes.iter().flatten().filter(|v| !bases.contains_key(&v.id));
        let new: Vec<(VolumeId, u64)> = new.map(|v| (v.id, v.blocks())).collect();
        for (id, blocks) in new {
            let Some(base) = base_among(&mut taken, blocks, keys_max) else { return false };
            taken.push((base, base + blocks));
            bases.insert(id, base);
        }
        for volume in self.volumes.iter_mut().flatten() {
            volume.base = bases[&volume.id];
        }
        true
    }

    /// Drops from a table that is used as it is what does not count, and counts the rest.
    fn table_count(&mut self, table: &mut Index, load: &Load, slots: u32) -> bool {
        let fresh = self.fresh_segments();
        let mut finder = Finder::new(self, load);
        let mut cached = vec![0_u64; load.volumes.len()];
        let mut dirty: Vec<(usize, u64)> = Vec::new();
        let mut good = true;
        table.sift(|bucket, way, key, located| {
            let slot = located.slot;
            good &= slot < slots;
            let Some((at, block)) = finder.find(key).filter(|_| slot < slots) else {
                return false;
            };
            let segment = self.segments.of(slot);
            if fresh[segment as usize] {
                return false;
            }
            let segment = &mut self.segments.table[segment as usize];
            segment.live += 1;
            cached[at] += 1;
            if load.dirty[bucket] >> way & 1 == 1 {
                dirty.push((at, block));
                if !self.dirty.get(slot as usize) {
                    self.dirty.set(slot as usize, true);
                    segment.dirty += 1;
                }
                if dirty.len() == DIRTY_GATHERED_MAX {
                    spread(&mut self.volumes, &load.volumes, &mut dirty);
                }
            }
            if let Some(&mask) = load.masks.get(&slot).filter(|&&mask| mask != MASK_FULL) {
                self.partial.insert(slot, mask);
            }
            true
        });
        spread(&mut self.volumes, &load.volumes, &mut dirty);
        for (keys, cached) in load.volumes.iter().zip(cached) {
            if cached > 0 {
                self.vol_mut(keys.volume).stats.cached_blocks += cached;
            }
        }
        good
    }

    /// Puts the entries of a table of another shape in.
    fn table_insert(&mut self, table: &mut Index, load: &Load, slots: u32) -> bool {
        let fresh = self.fresh_segments();
        let mut finder = Finder::new(self, load);
        let mut good = true;
        table.sift(|bucket, way, key, located| {
            good &= located.slot < slots;
            if let Some((at, block)) = finder.find(key).filter(|_| located.slot < slots)
                && !fresh[self.segments.of(located.slot) as usize]
            {
                let id = load.volumes[at].volume;
                let dirty = load.dirty[bucket] >> way & 1 == 1;
                let mask = load.masks.get(&located.slot).copied().unwrap_or(MASK_FULL);
                let base = self.vol(id).base;
                self.replay_insert(id, base + block, located, dirty, mask);
            }
            false
        });
        good
    }

    /// What became of the keys that were placed while the buckets were written.
    fn load_placed(&mut self, load: &Load) -> bool {
        let fresh = self.fresh_segments();
        for item in &load.placed {
            let id = VolumeId((item.key.get() >> 48) as u16);
            let block = item.key.get() & ((1 << 48) - 1);
            let Some(volume) = self.volume(id).filter(|v| block < v.blocks()) else { continue };
            let key = volume.base + block;
            while self.index.get(key).is_some() {
                self.replay_remove(id, key);
            }
            let slot = item.slot.get();
            if slot == SLOT_NONE {
                continue;
            }
            if slot >= self.segments.slots() {
                return false;
            }
            if !fresh[self.segments.of(slot) as usize] {
                let located = Located { slot, crc: item.crc.get() };
                let dirty = item.flags & FLAG_DIRTY != 0;
                self.replay_insert(id, key, located, dirty, item.mask);
            }
        }
        true
    }
}

/// The index that a pool of `slots` wants.
pub(crate) fn index_shape(slots: u32, tuning: &Tuning) -> Shape {
    Shape::new(slots, (f64::from(live_max(slots)) * tuning.index_share) as u32)
}

/// Finds the volume of a key of a checkpoint.
struct Finder {
    /// First key, the one behind the last, and which of the checkpoint's volumes it is; those only
    /// that still are.
    ranges: Vec<(Key, Key, usize)>,
    /// Where the last key was found.
    last: usize,
}

impl Finder {
    fn new(engine: &Engine, load: &Load) -> Finder {
        let range = |(at, keys): (usize, &Keys)| {
            let blocks = engine.volume(keys.volume)?.blocks().min(keys.blocks);
            Some((keys.first, keys.first + blocks, at))
        };
        Finder { ranges: load.volumes.iter().enumerate().filter_map(range).collect(), last: 0 }
    }

    fn find(&mut self, key: Key) -> Option<(usize, u64)> {
        let within = |&(first, end, _): &(Key, Key, usize)| (first..end).contains(&key);
        if !self.ranges.get(self.last).is_some_and(within) {
            self.last = self.ranges.partition_point(|&(_, end, _)| end <= key);
        }
        let &(first, _, at) = self.ranges.get(self.last).filter(|range| within(range))?;
        Some((at, key - first))
    }
}

/// Moves gathered dirty blocks into the sets of their volumes.
fn spread(
    volumes: &mut [Option<Box<crate::volume::Volume>>],
    keys: &[Keys],
    dirty: &mut Vec<(usize, u64)>,
) {
    dirty.sort_unstable();
    for chunk in dirty.chunk_by(|a, b| a.0 == b.0) {
        let id = keys[chunk[0].0].volume;
        let volume = volumes[usize::from(id.0)].as_mut().expect("found above");
        volume.dirty.insert_sorted(chunk.iter().map(|&(_, block)| block));
    }
    dirty.clear();
}
