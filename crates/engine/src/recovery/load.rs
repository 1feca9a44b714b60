//! Load: the chunks of a checkpoint become the index again, bucket by bucket.
//!
//! What follows the index in the checkpoint is read first, and the log behind it: then it is known
//! which entries count when the buckets come, and each is looked at once, while others are read.
//!
//! An index of the shape in which the checkpoint was written is copied. Where the shape or the
//! volumes' keys are others now, its entries are put in one by one.

use crate::Mutant;
use crate::buf::Buf;
use crate::engine::{Engine, live_max};
use crate::event::VolumeId;
use crate::ids::{Dseq, Key, SegmentId, Slot, UnitId};
use crate::index::{Index, Located, Shape};
use crate::limits::RECOVERY_READ_BLOCKS;
use crate::op::command::base_among;
use crate::pool::Source;
use crate::recovery::{Opening, Step};
use crate::settings::Tuning;
use crate::volumes::Volumes;
use forebay_format::checkpoint::*;
use forebay_format::{BLOCK_SIZE, MASK_FULL, checkpoint};
use std::collections::BTreeMap;
use std::ops::Range;

/// Keys of dirty blocks that are gathered before they are sorted into the volumes' sets.
const DIRTY_GATHERED_MAX: usize = 1 << 18;

/// A checkpoint being read.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Reads that have come, by their first block.
    arrived: BTreeMap<u64, Buf>,
    /// Blocks that are in order and not decoded.
    carry: Vec<u8>,
    /// Blocks that are decoded.
    decoded: u64,
    /// Blocks of the checkpoint up to which it is read now.
    pub(super) end: u64,
    bad: bool,
    shape: Option<Shape>,
    /// Buckets that are in place.
    buckets: u32,
    /// The table is used as it is, and so much of it is counted: the volumes have the keys that
    /// they had.
    counted: Option<Box<Counted>>,
    /// Dirty bits of each bucket, of a table that is not.
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
    pub(super) fn arrive(&mut self, from: u64, buf: Buf) {
        self.arrived.insert(from, buf);
    }

    /// Blocks that are here and wait for one before them, which is under way.
    pub(super) fn waiting(&self) -> u64 {
        match self.bad {
            true => 0,
            false => (self.arrived.len() * RECOVERY_READ_BLOCKS) as u64,
        }
    }

    /// These blocks of the checkpoint will come.
    pub(super) fn begin(&mut self, blocks: &Range<u64>) {
        (self.decoded, self.end) = (blocks.start, blocks.end);
    }

    /// Whether all that was asked for is decoded and good.
    fn whole(&self) -> bool {
        !self.bad && self.decoded == self.end
    }
}

impl Opening {
    /// Decodes the chunks that have arrived in order. Whether they are good.
    pub(super) fn checkpoint_decode(&mut self, engine: &mut Engine) -> bool {
        let Some(source) = self.source else { return true };
        let good = !self.load.bad && self.chunks_decode(engine, &source);
        self.load.bad = !good;
        good
    }

    fn chunks_decode(&mut self, engine: &mut Engine, source: &Source) -> bool {
        let pool = engine.pool.id();
        let load_end = self.load.end;
        loop {
            let load = &mut self.load;
            let have = load.decoded + (load.carry.len() / BLOCK_SIZE) as u64;
            if let Some(buf) = load.arrived.remove(&have) {
                if buf.is_empty() {
                    return false;
                }
                load.carry.extend_from_slice(buf.bytes());
                engine.io.give(buf);
                continue;
            }
            let mut used = 0;
            let mut carry = std::mem::take(&mut load.carry);
            while used < carry.len() {
                let at = self.load.decoded;
                match checkpoint::decode(&carry[used..], pool, source.generation, at) {
                    Ok((chunk, blocks)) => {
                        used += blocks * BLOCK_SIZE;
                        self.load.decoded += blocks as u64;
                        if !self.chunk_load(engine, chunk) {
                            return false;
                        }
                    }
                    // The rest of the chunk may be in the next read.
                    Err(_)
                        if have < load_end
                            && carry.len() - used < CHUNK_BLOCKS_MAX * BLOCK_SIZE =>
                    {
                        break;
                    }
                    Err(_) => return false,
                }
            }
            carry.drain(..used);
            self.load.carry = carry;
            return true;
        }
    }

    fn chunk_load(&mut self, engine: &mut Engine, chunk: Chunk) -> bool {
        let load = &mut self.load;
        let of_index = matches!(chunk, Chunk::Table(_) | Chunk::Buckets(..));
        if of_index != (self.step == Step::Index) {
            return false;
        }
        match chunk {
            Chunk::Segments(items) => {
                for item in items {
                    if item.segment.get() >= engine.segments.count() {
                        return false;
                    }
                    let unit = engine.segments.unit_of(SegmentId::of(item.segment.get()));
                    self.segments.insert(unit, item);
                }
            }
            Chunk::Volumes(items) => {
                for item in items {
                    let (volume, value) = (item.address.volume(), item.address.block());
                    match item.kind {
                        VOLUME_INTENT => {
                            let blocks = match item.blocks.get() {
                                u32::MAX => u64::MAX,
                                blocks => blocks.into(),
                            };
                            self.marks.insert((volume, value, blocks), Dseq::of(item.aux.get()));
                        }
                        _ => load.volumes.push(Keys {
                            first: Key::of(value),
                            blocks: item.aux.get(),
                            volume: VolumeId(volume),
                        }),
                    }
                }
            }
            Chunk::Table(item) => return self.table_begin(engine, &item),
            Chunk::Buckets(first, items) => return self.table_buckets(engine, first, &items),
            Chunk::Masks(items) => {
                load.masks.extend(items.iter().map(|item| (Slot::of(item.slot.get()), item.mask)));
            }
            Chunk::Blocks(items) => {
                let slots = engine.segments.slots();
                let sound = |slot| slot == SLOT_NONE || slot < slots;
                if !items.iter().all(|item| sound(item.slot.get())) {
                    return false;
                }
                load.placed.extend(items);
            }
        }
        true
    }

    /// What follows the index is here. Whether it makes sense together.
    pub(super) fn checkpoint_tail_loaded(&mut self) -> bool {
        let load = &mut self.load;
        load.volumes.sort_unstable_by_key(|keys| keys.first);
        let ends =
            load.volumes.iter().map(|keys| keys.first.raw().checked_add(keys.blocks).map(Key::of));
        let next = load.volumes.iter().skip(1).map(|keys| keys.first).chain([Key::MAX]);
        let disjoint = ends.zip(next).all(|(end, next)| end.is_some_and(|end| end <= next));
        load.whole() && disjoint
    }

    /// The index begins. Whether a table may look like this.
    fn table_begin(&mut self, engine: &mut Engine, item: &TableItem) -> bool {
        let blocks = self.source.expect("a checkpoint is being read").index_blocks as usize;
        let fits = item.buckets.get() as usize <= items_per_chunk::<BucketItem>(blocks);
        let first = self.load.shape.is_none();
        let slots = engine.segments.slots();
        let may_be = |shape: &Shape| fits && first && shape.suits(slots);
        let Some(shape) = Shape::of(item).filter(may_be) else { return false };
        self.load.shape = Some(shape);
        let volumes = self.load.volumes.clone();
        let adopted =
            shape == index_shape(slots, engine.tuning()) && engine.adopt_keys(shape, &volumes);
        let counted = adopted.then(|| Box::new(Counted::new(engine, volumes)));
        self.load.counted = counted;
        engine.map.reshape(shape)
    }

    /// Some buckets of the index. Whether they may follow those before.
    fn table_buckets(&mut self, engine: &mut Engine, first: u32, items: &[BucketItem]) -> bool {
        let load = &mut self.load;
        let (from, to) = (first as usize, first as usize + items.len());
        if load.shape.is_none() || first != load.buckets || to > engine.map.bucket_count() {
            return false;
        }
        let slots = engine.segments.slots();
        for (bucket, item) in (from..).zip(items) {
            if !engine.map.set_bucket(bucket, item, slots) {
                return false;
            }
        }
        load.buckets += items.len() as u32;
        match load.counted.take() {
            Some(mut counted) => {
                self.table_count(engine, &mut counted, first, items);
                self.load.counted = Some(counted);
            }
            None => load.dirty.extend(items.iter().map(|item| item.dirty)),
        }
        true
    }

    /// The index is here. Whether all of it is.
    pub(super) fn checkpoint_index_loaded(&mut self, engine: &mut Engine) -> bool {
        let buckets = engine.map.bucket_count();
        let load = &self.load;
        load.whole() && load.shape.is_some() && load.buckets as usize == buckets
    }

    /// What the checkpoint's index says of segments that are not `gone` is what replay starts from.
    pub(super) fn checkpoint_place(&mut self, engine: &mut Engine, gone: &[bool]) {
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
    pub(super) fn units_gone(&self, engine: &Engine, freed: &BTreeMap<UnitId, u64>) -> Vec<bool> {
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
    fn table_count(
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
    fn adopt_keys(&mut self, shape: Shape, keys: &[Keys]) -> bool {
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
                self.vol_mut(keys.volume).stats.cached_blocks += cached;
            }
        }
    }

    /// Puts the entries of a table of another shape in.
    fn table_insert(&mut self, table: &mut Index, load: &Load, gone: &[bool]) {
        let mut finder = Finder::new(self, &load.volumes);
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

/// The index that a pool of `slots` wants.
pub(crate) fn index_shape(slots: u32, tuning: &Tuning) -> Shape {
    Shape::new(slots, (f64::from(live_max(slots)) * tuning.index_share) as u32)
}

/// Finds the volume of a key of a checkpoint.
#[derive(Debug)]
struct Finder {
    /// First key, the one behind the last, and which of the checkpoint's volumes it is; those only
    /// that still are.
    ranges: Vec<(Key, Key, usize)>,
    /// Where the last key was found.
    last: usize,
}

impl Finder {
    fn new(engine: &Engine, volumes: &[Keys]) -> Finder {
        let range = |(at, keys): (usize, &Keys)| {
            let blocks = engine.volume(keys.volume)?.blocks().min(keys.blocks);
            Some((keys.first, keys.first + blocks, at))
        };
        Finder { ranges: volumes.iter().enumerate().filter_map(range).collect(), last: 0 }
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

/// What is counted of a table that is used as it is.
#[derive(Debug)]
struct Counted {
    keys: Vec<Keys>,
    finder: Finder,
    /// Entries, by volume in `keys`.
    cached: Vec<u64>,
    /// Entries, by unit.
    live: Vec<u32>,
    /// Dirty blocks that are not in the sets of their volumes yet: the first so many.
    dirty: Vec<Key>,
    dirties: usize,
}

impl Counted {
    fn new(engine: &Engine, keys: Vec<Keys>) -> Counted {
        Counted {
            finder: Finder::new(engine, &keys),
            cached: vec![0; keys.len()],
            live: vec![0; engine.segments.units().len()],
            keys,
            dirty: vec![Key::FIRST; DIRTY_GATHERED_MAX],
            dirties: 0,
        }
    }

    /// Moves gathered dirty blocks into the sets of their volumes.
    fn spread(&mut self, volumes: &mut Volumes) {
        let dirty = &mut self.dirty[..std::mem::take(&mut self.dirties)];
        // Sorted keys are sorted by volume, because each volume has one range of them.
        dirty.sort_unstable();
        let mut rest = &*dirty;
        while let Some(&first) = rest.first() {
            let (at, block) = self.finder.find(first).expect("found when it was gathered");
            let Keys { blocks, volume, .. } = self.keys[at];
            let end = first - block + blocks;
            let (of_volume, others) = rest.split_at(rest.partition_point(|&key| key < end));
            let volume = volumes.get_mut(volume).expect("found above");
            volume.dirty.insert_sorted(of_volume.iter().map(|&key| key - (first - block)));
            rest = others;
        }
    }
}
