//! The index: block → slot and checksum, in 9.14 bytes an entry, exact.
//!
//! A bucketed cuckoo table (two candidate buckets of seven entries; Pagh & Rodler 2001, bucketised
//! as in Fan et al., "Cuckoo Filter", 2014) with quotienting: the bucket's number is part of the
//! key and is not stored (Knuth, TAOCP 3, exercise 6.4-13). A key is permuted, `x = tag × buckets +
//! bucket`, and an entry holds only the tag. One entry has 73 bits: 32 of checksum, 40 that slot
//! and tag share, and one that says which of the two buckets it is in; seven of them fill a cache
//! line.
//!
//! The checksum lives here and not beside the data because a block must be verified with one I/O.

mod bits;

pub use bits::Bits;

use crate::ids::{Key, Slot};
use forebay_format::checkpoint::{BUCKET_WAYS as WAYS, BucketItem, TableItem};
use std::ops::Range;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

/// Bits that slot and tag share.
const BODY_BITS: u32 = 40;
/// Share of the entries in use for which the table is made. At 0.97, seven-way buckets still find
/// room within a few moves; what does not fit goes to the stash.
const LOAD_MAX: f64 = 0.97;
/// How much larger than its pool wants a table may be that a checkpoint has: a larger one is a lie.
const TUNED_MAX: usize = 32;
/// Entries moved for one insertion before it goes to the stash.
const MOVES_MAX: usize = 512;

/// What the index says of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// The slot that holds the block.
    pub slot: Slot,
    /// CRC-32C of the block there.
    pub crc: u32,
}

#[repr(C, align(64))]
#[derive(FromZeros, PartialEq, Eq)]
struct Bucket {
    crc: [u32; WAYS],
    low: [u32; WAYS],
    /// Nine bits for each entry.
    high: u64,
}

impl Bucket {
    fn body(&self, way: usize) -> u64 {
        (self.high >> (9 * way) & 0x1ff) << 32 | u64::from(self.low[way])
    }

    fn set(&mut self, way: usize, body: u64, crc: u32) {
        self.low[way] = body as u32;
        self.high = self.high & !(0x1ff << (9 * way)) | (body >> 32) << (9 * way);
        self.crc[way] = crc;
    }
}

/// What the buckets of a table mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    buckets: usize,
    slot_bits: u32,
    key_bits: u32,
}

impl Shape {
    /// The shape for about `entries` entries, of slots below `slots`.
    pub fn new(slots: u32, entries: u32) -> Shape {
        let entries = f64::from(entries.max(16)) / LOAD_MAX;
        let buckets = (entries / WAYS as f64).ceil() as usize;
        // Slots are stored plus one: zero is "empty".
        let slot_bits = 32 - slots.max(16).leading_zeros();
        Shape { buckets, slot_bits, key_bits: BODY_BITS - slot_bits + buckets.ilog2() }
    }

    /// The shape in which a checkpoint was written. `None`: there is no such table.
    pub fn of(item: &TableItem) -> Option<Shape> {
        let buckets = item.buckets.get() as usize;
        let (slot_bits, key_bits) = (u32::from(item.slot_bits), u32::from(item.key_bits));
        let tag_bits = BODY_BITS.checked_sub(slot_bits)?;
        let sound = buckets > 0 && slot_bits > 0 && key_bits == tag_bits + buckets.ilog2();
        sound.then_some(Shape { buckets, slot_bits, key_bits })
    }

    /// Whether a table of so many slots may be so large, whatever it was tuned to when it was made.
    pub fn suits(&self, slots: u32) -> bool {
        self.buckets <= TUNED_MAX * Shape::new(slots, slots).buckets
    }

    /// Keys must be less than this.
    pub fn keys_max(&self) -> Key {
        Key::of(1 << self.key_bits)
    }

    /// The shape as a checkpoint has it.
    pub fn item(&self) -> TableItem {
        TableItem {
            buckets: U32::new(self.buckets as u32),
            slot_bits: self.slot_bits as u8,
            key_bits: self.key_bits as u8,
            reserved: U16::new(0),
        }
    }

    fn permute(&self, key: Key) -> u64 {
        let mask = self.keys_max().raw() - 1;
        let shift = self.key_bits.div_ceil(2);
        let x = key.raw().wrapping_mul(MULTIPLIER) & mask;
        let x = (x ^ x >> shift).wrapping_mul(MULTIPLIER) & mask;
        x ^ x >> shift
    }

    fn unpermute(&self, x: u64) -> Key {
        const INVERSE: u64 = inverse(MULTIPLIER);
        let mask = self.keys_max().raw() - 1;
        let shift = self.key_bits.div_ceil(2);
        let x = (x ^ x >> shift).wrapping_mul(INVERSE) & mask;
        Key::of((x ^ x >> shift).wrapping_mul(INVERSE) & mask)
    }

    fn home(&self, key: Key) -> (usize, u64) {
        debug_assert!(key < self.keys_max());
        let x = self.permute(key);
        let count = self.buckets as u64;
        ((x % count) as usize, x / count)
    }

    /// The other bucket of an entry with this tag. An involution. A number below `count` comes from
    /// 32 random bits by multiplication (Lemire 2019), which costs less than a division.
    fn other(&self, bucket: usize, tag: u64) -> usize {
        let count = self.buckets;
        let random = (tag + 1).wrapping_mul(MULTIPLIER) >> 32;
        let distance = ((random * count as u64) >> 32) as usize;
        if distance >= bucket { distance - bucket } else { distance + count - bucket }
    }

    fn slot_mask(&self) -> u64 {
        (1 << self.slot_bits) - 1
    }

    fn pack(&self, tag: u64, slot: Slot, second: bool) -> u64 {
        (tag << self.slot_bits | (u64::from(slot.raw()) + 1)) << 1 | u64::from(second)
    }

    /// Tag, slot and whether it is in its second bucket; `None` for an empty way.
    fn unpack(&self, body: u64) -> Option<(u64, Slot, bool)> {
        let slot = body >> 1 & self.slot_mask();
        (slot != 0)
            .then(|| (body >> 1 >> self.slot_bits, Slot::of((slot - 1) as u32), body & 1 == 1))
    }

    /// The key of an entry with this tag in this bucket.
    fn key_at(&self, bucket: usize, tag: u64, second: bool) -> Key {
        let other = self.other(bucket, tag);
        let home = if second { other } else { bucket };
        self.unpermute(tag * self.buckets as u64 + home as u64)
    }
}

/// The table.
pub struct Index {
    buckets: Vec<Bucket>,
    shape: Shape,
    len: usize,
    /// Entries that found no room. Stays all but empty; keeps an insertion from ever failing.
    stash: std::collections::BTreeMap<Key, Located>,
    /// Which way to move next; makes the walk differ without a random source.
    rotor: usize,
    /// While a scan runs: entries that were placed or moved, maybe over its cursor.
    moved: Option<Vec<(Key, Located)>>,
}

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Inverse of an odd number modulo 2^64 (Newton).
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut round = 0;
    while round < 6 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        round += 1;
    }
    x
}

impl Index {
    /// A table for about `entries` entries, of slots below `slots`.
    pub fn new(slots: u32, entries: u32) -> Index {
        Index::with_shape(Shape::new(slots, entries))
    }

    /// An empty table of this shape.
    pub fn with_shape(shape: Shape) -> Index {
        Index::try_with_shape(shape).expect("memory for the index")
    }

    /// An empty table of this shape, where there is memory for it. It takes none before it fills.
    pub fn try_with_shape(shape: Shape) -> Option<Index> {
        let buckets = Bucket::new_vec_zeroed(shape.buckets).ok()?;
        Some(Index { buckets, shape, len: 0, stash: Default::default(), rotor: 0, moved: None })
    }

    /// What its buckets mean.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Keys must be less than this.
    pub fn keys_max(&self) -> Key {
        self.shape.keys_max()
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that the table takes.
    pub fn bytes(&self) -> u64 {
        (self.buckets.len() * size_of::<Bucket>() + self.stash.len() * 32) as u64
    }

    /// Buckets, for [`Index::scan`].
    pub fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    #[inline]
    fn find(&self, key: Key) -> Option<(usize, usize)> {
        let (first, tag) = self.shape.home(key);
        self.find_in(first, tag, false)
            .or_else(|| self.find_in(self.shape.other(first, tag), tag, true))
    }

    fn find_in(&self, bucket: usize, tag: u64, second: bool) -> Option<(usize, usize)> {
        let entries = &self.buckets[bucket];
        let slot = self.shape.slot_mask() << 1;
        let wanted = self.shape.pack(tag, Slot::of(0), second) & !slot;
        // The low words first, all at once: few get past them, and only these are put together.
        let (low, mask) = (wanted as u32, !slot as u32);
        let mut maybe = 0_u32;
        for way in 0..WAYS {
            maybe |= u32::from((entries.low[way] ^ low) & mask == 0) << way;
        }
        while maybe != 0 {
            let way = maybe.trailing_zeros() as usize;
            let body = entries.body(way);
            if body & !slot == wanted && body & slot != 0 {
                return Some((bucket, way));
            }
            maybe &= maybe - 1;
        }
        None
    }

    /// Where `key` is.
    #[inline]
    pub fn get(&self, key: Key) -> Option<Located> {
        match self.find(key) {
            Some((bucket, way)) => {
                let entries = &self.buckets[bucket];
                let (_, slot, _) = self.shape.unpack(entries.body(way)).expect("found");
                Some(Located { slot, crc: entries.crc[way] })
            }
            None if self.stash.is_empty() => None,
            None => self.stash.get(&key).copied(),
        }
    }

    /// Brings the buckets of these keys into the processor's cache: many misses at once cost little
    /// more than one, and each of the lookups that follow would have one or two.
    pub fn warm(&self, keys: impl Iterator<Item = Key>) {
        let touch = |key| {
            let (first, tag) = self.shape.home(key);
            self.buckets[first].high ^ self.buckets[self.shape.other(first, tag)].high
        };
        std::hint::black_box(keys.map(touch).fold(0, |sum, high| sum ^ high));
    }

    /// Puts `key` at `located`; what was there before is returned.
    pub fn insert(&mut self, key: Key, located: Located) -> Option<Located> {
        if let Some((bucket, way)) = self.find(key) {
            let (tag, old_slot, second) =
                self.shape.unpack(self.buckets[bucket].body(way)).expect("found");
            let old = Located { slot: old_slot, crc: self.buckets[bucket].crc[way] };
            let body = self.shape.pack(tag, located.slot, second);
            self.buckets[bucket].set(way, body, located.crc);
            return Some(old);
        }
        if let Some(entry) = self.stash.get_mut(&key) {
            return Some(std::mem::replace(entry, located));
        }
        self.len += 1;
        if let Some(moved) = &mut self.moved {
            moved.push((key, located));
        }
        self.place(key, located);
        None
    }

    fn place(&mut self, key: Key, located: Located) {
        let (first, tag) = self.shape.home(key);
        let second = self.shape.other(first, tag);
        for (bucket, which) in [(first, false), (second, true)] {
            if let Some(way) = self.empty_way(bucket) {
                let body = self.shape.pack(tag, located.slot, which);
                self.buckets[bucket].set(way, body, located.crc);
                return;
            }
        }
        self.displace(first, tag, located);
    }

    fn empty_way(&self, bucket: usize) -> Option<usize> {
        let entries = &self.buckets[bucket];
        (0..WAYS).find(|&way| self.shape.unpack(entries.body(way)).is_none())
    }

    /// Puts an entry into a full bucket; the one that gives way goes to its other bucket, and so
    /// on.
    fn displace(&mut self, bucket: usize, tag: u64, located: Located) {
        let (mut bucket, mut tag, mut located, mut second) = (bucket, tag, located, false);
        for _ in 0..MOVES_MAX {
            if let Some(way) = self.empty_way(bucket) {
                let body = self.shape.pack(tag, located.slot, second);
                self.buckets[bucket].set(way, body, located.crc);
                return;
            }
            self.rotor = (self.rotor + 1) % WAYS;
            let way = self.rotor;
            let (old_tag, old_slot, old_second) =
                self.shape.unpack(self.buckets[bucket].body(way)).expect("the bucket is full");
            let old = Located { slot: old_slot, crc: self.buckets[bucket].crc[way] };
            let body = self.shape.pack(tag, located.slot, second);
            self.buckets[bucket].set(way, body, located.crc);
            let old_key = self.shape.key_at(bucket, old_tag, old_second);
            if let Some(moved) = &mut self.moved {
                moved.push((old_key, old));
            }
            (tag, located, second) = (old_tag, old, !old_second);
            bucket = self.shape.other(bucket, old_tag);
        }
        let key = self.shape.key_at(bucket, tag, second);
        self.stash.insert(key, located);
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: Key) -> Option<Located> {
        let removed = match self.find(key) {
            Some((bucket, way)) => {
                let entries = &self.buckets[bucket];
                let (_, slot, _) = self.shape.unpack(entries.body(way)).expect("found");
                let old = Located { slot, crc: entries.crc[way] };
                self.buckets[bucket].set(way, 0, 0);
                Some(old)
            }
            None => self.stash.remove(&key),
        };
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// Calls `each` for the entries of buckets `from..to`. A scan in slices sees each entry that
    /// does not change at least once if [`Index::track_moves`] is on and [`Index::take_moved`] is
    /// looked at too.
    pub fn scan(&self, from: usize, to: usize, each: impl FnMut(Key, Located)) {
        self.scan_slots(from, to, |_| true, each);
    }

    /// As [`Index::scan`], of the entries only whose slots are wanted: much faster where few are,
    /// because the others' keys need not be computed.
    pub fn scan_slots(
        &self,
        from: usize,
        to: usize,
        wanted: impl Fn(Slot) -> bool,
        mut each: impl FnMut(Key, Located),
    ) {
        for bucket in from..to.min(self.buckets.len()) {
            let entries = &self.buckets[bucket];
            for way in 0..WAYS {
                let entry =
                    self.shape.unpack(entries.body(way)).filter(|&(_, slot, _)| wanted(slot));
                if let Some((tag, slot, second)) = entry {
                    let key = self.shape.key_at(bucket, tag, second);
                    each(key, Located { slot, crc: entries.crc[way] });
                }
            }
        }
        if from == 0 {
            for (&key, &located) in self.stash.iter().filter(|(_, located)| wanted(located.slot)) {
                each(key, located);
            }
        }
    }

    /// One bucket for a checkpoint, its dirty bits still clear.
    pub fn bucket(&self, bucket: usize) -> BucketItem {
        let Bucket { crc, low, high } = &self.buckets[bucket];
        BucketItem {
            crc: crc.map(U32::new),
            low: low.map(U32::new),
            high: U64::new(*high),
            dirty: 0,
        }
    }

    /// The slots of the entries in a bucket, and their places there.
    pub fn slots_in(&self, bucket: usize) -> impl Iterator<Item = (usize, Slot)> {
        let entries = &self.buckets[bucket];
        // A place without an entry is all zeros, and so are most buckets of a cache that fills.
        let ways = if entries.high == 0 && entries.low == [0; WAYS] { 0 } else { WAYS };
        let slot = |way| self.shape.unpack(entries.body(way)).map(|(_, slot, _)| (way, slot));
        (0..ways).filter_map(slot)
    }

    /// Puts a bucket back, for [`Index::sift`] to count. Whether all its slots are below `slots`.
    pub fn set_bucket(&mut self, bucket: usize, item: &BucketItem, slots: u32) -> bool {
        let (crc, low) = (item.crc.map(|crc| crc.get()), item.low.map(|low| low.get()));
        let put = Bucket { crc, low, high: item.high.get() };
        // Slots are stored plus one, and zero stands for none.
        let fits = |way| (put.body(way) >> 1 & self.shape.slot_mask()) <= u64::from(slots);
        let good = (0..WAYS).all(fits);
        // What is empty stays untouched, and takes no memory.
        if put != self.buckets[bucket] {
            self.buckets[bucket] = put;
        }
        good
    }

    /// Looks at each entry in buckets that were put back, with its bucket and its place there, and
    /// takes those out that `keep` refuses.
    pub fn sift(
        &mut self,
        buckets: Range<usize>,
        mut keep: impl FnMut(usize, usize, Key, Located) -> bool,
    ) {
        let shape = self.shape;
        for (bucket, entries) in buckets.clone().zip(&mut self.buckets[buckets]) {
            for way in 0..WAYS {
                let Some((tag, slot, second)) = shape.unpack(entries.body(way)) else { continue };
                let located = Located { slot, crc: entries.crc[way] };
                if keep(bucket, way, shape.key_at(bucket, tag, second), located) {
                    self.len += 1;
                } else {
                    entries.set(way, 0, 0);
                }
            }
        }
    }

    /// Entries that are in no bucket.
    pub fn stashed(&self) -> impl Iterator<Item = Key> {
        self.stash.keys().copied()
    }

    /// Whether entries that are placed or move are remembered.
    pub fn tracks_moves(&self) -> bool {
        self.moved.is_some()
    }

    /// Starts or stops to remember entries that are placed or move.
    pub fn track_moves(&mut self, on: bool) {
        match (on, &self.moved) {
            (true, None) => self.moved = Some(Vec::new()),
            (false, Some(_)) => self.moved = None,
            _ => {}
        }
    }

    /// Entries that were placed or moved since the last call.
    pub fn take_moved(&mut self) -> Vec<(Key, Located)> {
        self.moved.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn key_of(n: u64, max: Key) -> Key {
        Key::of(n.wrapping_mul(0xd134_2543_de82_ef95).rotate_left(23) % max.raw())
    }

    #[test]
    fn agrees_with_a_map_at_full_load() {
        for slots in [16, 100, 5_000, 70_000_u32] {
            let mut index = Index::new(slots, slots);
            let mut map = BTreeMap::new();
            let mut n = 0;
            while map.len() < slots as usize {
                n += 1;
                let key = key_of(n, index.keys_max());
                let located =
                    Located { slot: Slot::of((n % u64::from(slots)) as u32), crc: n as u32 };
                assert_eq!(index.insert(key, located), map.insert(key, located));
                if n % 5 == 0 {
                    let gone = key_of(n / 2, index.keys_max());
                    assert_eq!(index.remove(gone), map.remove(&gone));
                }
            }
            assert_eq!(index.len(), map.len());
            let mut seen = BTreeMap::new();
            index.scan(0, index.bucket_count(), |key, located| {
                assert!(seen.insert(key, located).is_none());
            });
            assert_eq!(seen, map);
            assert!(map.iter().all(|(&key, &located)| index.get(key) == Some(located)));
            assert!(index.stash.len() <= slots as usize / 1000 + 1, "{}", index.stash.len());
        }
    }

    #[test]
    fn a_sliced_scan_misses_nothing_that_stays() {
        let mut index = Index::new(20_000, 20_000);
        let mut map = BTreeMap::new();
        for n in 0..18_000 {
            let key = key_of(n, index.keys_max());
            let located = Located { slot: Slot::of(n as u32), crc: 1 };
            index.insert(key, located);
            map.insert(key, located);
        }
        index.track_moves(true);
        let mut seen = BTreeMap::new();
        let mut from = 0;
        let mut n = 18_000;
        while from < index.bucket_count() {
            index.scan(from, from + 10, |key, located| {
                seen.insert(key, located);
            });
            from += 10;
            for _ in 0..5 {
                n += 1;
                let located = Located { slot: Slot::of((n % 20_000) as u32), crc: 2 };
                index.insert(key_of(n, index.keys_max()), located);
            }
            for (key, located) in index.take_moved() {
                seen.insert(key, located);
            }
        }
        assert!(map.iter().all(|(key, located)| seen.get(key) == Some(located)));
    }

    /// A forged checkpoint had the index of a pool of some megabytes be one of 256 GiB.
    #[test]
    fn a_table_that_its_pool_cannot_fill_is_told_from_others() {
        let of = |entries| Shape::new(1000, entries);
        assert!(of(10).suits(1000) && of(1000).suits(1000) && of(18_000).suits(1000));
        assert!(!of(100_000).suits(1000));
    }

    #[test]
    fn an_entry_takes_less_than_ten_bytes_at_full_load() {
        let slots = 1 << 20;
        let index = Index::new(slots, slots);
        let per_entry = index.bytes() as f64 / f64::from(slots);
        assert!(per_entry < 9.7, "{per_entry}");
        assert!(index.keys_max() >= Key::of(1 << 36), "{:?}", index.keys_max());
    }
}
