//! Map: which block is in which slot, what a slot holds, what is in RAM too, and what is worth a
//! slot.

use crate::ids::{Key, Slot};
use crate::index::{Bits, Index, Located, Shape};
use crate::policy::admission::Admission;
use crate::ram::Ram;
use crate::settings::Tuning;
use forebay_format::MASK_FULL;
use forebay_format::checkpoint::BucketItem;
use std::collections::BTreeMap;
use std::ops::Range;

/// The index, with the bits of each slot. I1: an entry points at a slot that holds that block.
pub struct Map {
    index: Index,
    /// By slot: newer than the origin.
    dirty: Bits,
    /// By slot: hit since it was written, in the older half of the log.
    referenced: Bits,
    /// Valid sectors of the slots that hold only part of a block.
    partial: BTreeMap<Slot, u8>,
    /// Blocks that are in RAM too.
    ram: Ram,
    /// Which misses are worth a slot.
    admission: Admission,
}

impl Map {
    /// Of so many slots, with an index of this shape and so many bytes of RAM.
    pub fn new(shape: Shape, slots: u32, ram_bytes: u64) -> Map {
        Map {
            index: Index::with_shape(shape),
            dirty: Bits::new(slots as usize),
            referenced: Bits::new(slots as usize),
            partial: BTreeMap::new(),
            ram: Ram::new(ram_bytes),
            admission: Admission::new(slots),
        }
    }

    /// Where a block is.
    pub fn get(&self, key: Key) -> Option<Located> {
        self.index.get(key)
    }

    /// Whether what is in a slot is newer than the origin.
    pub fn is_dirty(&self, slot: Slot) -> bool {
        self.dirty.get(slot.at())
    }

    /// Whether a block is here and newer than the origin.
    pub fn has_dirty(&self, key: Key) -> bool {
        self.get(key).is_some_and(|located| self.is_dirty(located.slot))
    }

    /// Whether a block is here and equal to the origin.
    pub fn has_clean(&self, key: Key) -> bool {
        self.get(key).is_some_and(|located| !self.is_dirty(located.slot))
    }

    /// Valid sectors of what is in a slot.
    pub fn mask(&self, slot: Slot) -> u8 {
        if self.partial.is_empty() {
            return MASK_FULL;
        }
        self.partial.get(&slot).copied().unwrap_or(MASK_FULL)
    }

    /// Whether a slot was read since it was written.
    pub fn is_referenced(&self, slot: Slot) -> bool {
        self.referenced.get(slot.at())
    }

    /// Slots are read.
    pub fn refer(&mut self, slots: Range<Slot>) {
        (slots.start.at()..slots.end.at()).for_each(|at| self.referenced.set(at, true));
    }

    /// Points the index at a new version. Where the old one was: that slot is dead now.
    pub fn place(&mut self, key: Key, located: Located) -> Option<Located> {
        self.index.insert(key, located)
    }

    /// Says what a slot holds that is in use now.
    pub fn hold(&mut self, slot: Slot, dirty: bool, mask: u8) {
        assert!(!self.is_dirty(slot), "a slot is written once in a life of its segment");
        self.referenced.set(slot.at(), false);
        if mask != MASK_FULL {
            self.partial.insert(slot, mask);
        }
        if dirty {
            self.dirty.set(slot.at(), true);
        }
    }

    /// What is in a slot is equal to the origin now. Whether it was not before.
    pub fn clean(&mut self, slot: Slot) -> bool {
        let dirty = self.is_dirty(slot);
        if dirty {
            self.dirty.set(slot.at(), false);
        }
        dirty
    }

    /// Takes a block out. Where it was.
    pub fn remove(&mut self, key: Key) -> Option<Located> {
        self.index.remove(key)
    }

    /// A clean slot holds nothing any more.
    pub fn bury(&mut self, slot: Slot) {
        self.partial.remove(&slot);
    }

    /// Blocks in it.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Bytes of memory that it takes, but for what is partial.
    pub fn bytes(&self) -> u64 {
        self.index.bytes() + self.dirty.bytes() + self.referenced.bytes()
    }

    /// Keys must be less than this.
    pub fn keys_max(&self) -> Key {
        self.index.keys_max().min(self.ram.keys_max())
    }

    /// Brings what is known of some blocks near.
    pub fn warm(&self, keys: impl Iterator<Item = Key>) {
        self.index.warm(keys);
    }

    /// Slots of which not all sectors are valid.
    pub fn partial(&self) -> impl Iterator<Item = Slot> {
        self.partial.keys().copied()
    }

    /// Dirty slots among these.
    pub fn dirty_slots(&self, slots: Range<Slot>) -> u32 {
        self.dirty.ones(slots.start.at(), slots.end.at())
    }
}

/// Copies in RAM: of what the index knows, or of what it does not know and the origin has.
impl Map {
    /// The block, if it is in RAM.
    pub fn ram_get(&mut self, key: Key) -> Option<&[u8]> {
        self.ram.get(key)
    }

    /// Puts a block into RAM.
    pub fn ram_put(&mut self, key: Key, block: &[u8]) {
        self.ram.insert(key, block);
    }

    /// The same, of one that was read from the cache device: see [`Ram::insert_hit`].
    pub fn ram_hit(&mut self, key: Key, block: &[u8]) {
        self.ram.insert_hit(key, block);
    }

    /// Takes a block out of RAM.
    pub fn ram_drop(&mut self, key: Key) {
        self.ram.remove(key);
    }

    /// Blocks of a range leave RAM: those in as great a part of it as these buckets are of the
    /// index. How many places were looked at.
    pub fn ram_drop_some(&mut self, keys: &Range<Key>, buckets: Range<usize>) -> usize {
        self.ram.remove_some(keys, buckets, self.index.bucket_count())
    }

    /// Keys must be less than this for RAM.
    pub fn ram_keys_max(&self) -> Key {
        self.ram.keys_max()
    }

    /// Blocks in RAM, and those that fit.
    pub fn ram_blocks(&self) -> (usize, usize) {
        (self.ram.len(), self.ram.blocks_max())
    }

    /// Whether a block that missed may have a slot now; remembers it if not.
    pub fn admit_miss(&mut self, key: Key) -> bool {
        self.admission.admit_miss(key)
    }

    /// What clients read had to go: from now on not everything is worth a slot.
    pub fn was_full(&mut self) {
        self.admission.was_full();
    }
}

/// Those who look through it bucket by bucket.
impl Map {
    /// Buckets of the index.
    pub fn bucket_count(&self) -> usize {
        self.index.bucket_count()
    }

    /// The shape of the index.
    pub fn shape(&self) -> Shape {
        self.index.shape()
    }

    /// Calls `each` for the entries of buckets `from..to`.
    pub fn scan(&self, from: usize, to: usize, each: impl FnMut(Key, Located)) {
        self.index.scan(from, to, each);
    }

    /// As [`Map::scan`], of the entries in wanted slots alone.
    pub fn scan_slots(
        &self,
        from: usize,
        to: usize,
        wanted: impl Fn(Slot) -> bool,
        each: impl FnMut(Key, Located),
    ) {
        self.index.scan_slots(from, to, wanted, each);
    }

    /// A bucket as a checkpoint holds it.
    pub fn bucket(&self, bucket: usize) -> BucketItem {
        let mut item = self.index.bucket(bucket);
        for (way, slot) in self.index.slots_in(bucket) {
            item.dirty |= u8::from(self.is_dirty(slot)) << way;
        }
        item
    }

    /// The slots in a bucket of which not all sectors are valid, with those that are.
    pub fn partial_in(&self, bucket: usize) -> impl Iterator<Item = (Slot, u8)> {
        let slots = (!self.partial.is_empty()).then(|| self.index.slots_in(bucket));
        let masks = slots.into_iter().flatten().map(|(_, slot)| (slot, self.mask(slot)));
        masks.filter(|&(_, mask)| mask != MASK_FULL)
    }

    /// Keys for which there was no place in their buckets.
    pub fn stashed(&self) -> impl Iterator<Item = Key> {
        self.index.stashed()
    }

    /// Whether what moves from bucket to bucket is remembered.
    pub fn tracks_moves(&self) -> bool {
        self.index.tracks_moves()
    }

    /// Says whether what moves from bucket to bucket is remembered.
    pub fn track_moves(&mut self, on: bool) {
        self.index.track_moves(on);
    }

    /// Entries that have changed their bucket since the last call.
    pub fn take_moved(&mut self) -> Vec<(Key, Located)> {
        self.index.take_moved()
    }
}

/// A start, which fills it from a checkpoint.
impl Map {
    /// Forgets all blocks; the index gets this shape, for a pool of so many slots.
    pub fn reset(&mut self, shape: Shape, slots: u32) {
        self.index = Index::with_shape(shape);
        self.dirty = Bits::new(slots as usize);
        self.partial.clear();
    }

    /// Makes its index one of this shape, empty if it was another. Whether there is memory for it.
    pub fn reshape(&mut self, shape: Shape) -> bool {
        if self.index.shape() != shape {
            let Some(index) = Index::try_with_shape(shape) else { return false };
            self.index = index;
        }
        true
    }

    /// Takes the index out and leaves an empty one of this shape.
    pub fn replace_index(&mut self, shape: Shape) -> Index {
        std::mem::replace(&mut self.index, Index::with_shape(shape))
    }

    /// Fills a bucket. Whether it may look like this.
    pub fn set_bucket(&mut self, bucket: usize, item: &BucketItem, slots: u32) -> bool {
        self.index.set_bucket(bucket, item, slots)
    }

    /// Drops of some buckets all entries but those of which `keep` knows whether they are dirty (0
    /// or 1; as often dirty as not, so without a branch) and which sectors are valid.
    pub fn sift(
        &mut self,
        buckets: Range<usize>,
        mut keep: impl FnMut(usize, usize, Key, Located) -> Option<(u8, u8)>,
    ) {
        self.index.sift(buckets, |bucket, way, key, located| {
            let Some((dirty, mask)) = keep(bucket, way, key, located) else { return false };
            self.dirty.or(located.slot.at(), dirty);
            if mask != MASK_FULL {
                self.partial.insert(located.slot, mask);
            }
            true
        });
    }
}

/// The index that a pool of `slots` wants.
pub(crate) fn index_shape(slots: u32, tuning: &Tuning) -> Shape {
    Shape::new(slots, (f64::from(live_max(slots)) * tuning.index_share) as u32)
}

/// Blocks that a pool of `slots` can hold at once, about: reclaim keeps one segment in 32 free.
fn live_max(slots: u32) -> u32 {
    slots - slots / 32
}
