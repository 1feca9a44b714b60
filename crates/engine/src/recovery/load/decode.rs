//! The chunks of a checkpoint as they come.

use crate::engine::Engine;
use crate::event::VolumeId;
use crate::ids::{Dseq, Key, SegmentId, Slot};
use crate::index::Shape;
use crate::map::index_shape;
use crate::pool::Source;
use crate::recovery::load::{Counted, Keys};
use crate::recovery::{Opening, Step};
use forebay_format::checkpoint::*;
use forebay_format::{BLOCK_SIZE, checkpoint};

impl Opening {
    /// Decodes the chunks that have arrived in order. Whether they are good.
    pub(in crate::recovery) fn checkpoint_decode(&mut self, engine: &mut Engine) -> bool {
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
    pub(in crate::recovery) fn checkpoint_tail_loaded(&mut self) -> bool {
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
        let counted = adopted.then(|| {
            Box::new(Counted::new(&engine.volumes, volumes, engine.segments.units().len()))
        });
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
    pub(in crate::recovery) fn checkpoint_index_loaded(&mut self, engine: &mut Engine) -> bool {
        let buckets = engine.map.bucket_count();
        let load = &self.load;
        load.whole() && load.shape.is_some() && load.buckets as usize == buckets
    }
}
