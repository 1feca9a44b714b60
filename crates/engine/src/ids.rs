//! Numbers that are not to be mistaken for each other: each has a type of its own, which can do no
//! more than makes sense for it. They are plain numbers only where bytes are read or written.

use std::ops::{Add, Sub};

/// A number that devices know.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($raw:ident)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[repr(transparent)]
        pub struct $name($raw);

        impl $name {
            /// As the log or a checkpoint has it.
            #[inline]
            pub const fn of(raw: $raw) -> $name {
                $name(raw)
            }

            /// For the log or a checkpoint.
            #[inline]
            pub const fn raw(self) -> $raw {
                self.0
            }
        }
    };
}

number! {
    /// Position of a record in the order of all records, of either class. Zero is before the first.
    Seq(u64)
}

number! {
    /// Position of a record among those of the dirty class; there are no gaps. Zero is before the
    /// first, and what needs no record.
    Dseq(u64)
}

number! {
    /// A block of a volume, as one number over all volumes of the pool: that of the volume's first
    /// block and the block's own, which is a plain number.
    Key(u64)
}

number! {
    /// A place for one block: segment × blocks of a segment + block in the segment. In RAM, a place
    /// there.
    Slot(u32)
}

number! {
    /// Number of a segment over all devices of the pool.
    SegmentId(u32)
}

impl Seq {
    /// Behind all records.
    pub const MAX: Seq = Seq(u64::MAX);

    /// The next record's.
    #[inline]
    pub const fn next(self) -> Seq {
        Seq(self.0 + 1)
    }

    /// That of the record before.
    #[inline]
    pub const fn before(self) -> Seq {
        Seq(self.0 - 1)
    }
}

impl Dseq {
    /// Before the first record.
    pub const NONE: Dseq = Dseq(0);
    /// Behind all records.
    pub const MAX: Dseq = Dseq(u64::MAX);

    /// The next record's.
    #[inline]
    pub const fn next(self) -> Dseq {
        Dseq(self.0 + 1)
    }

    /// That of the record before, if there is one.
    #[inline]
    pub const fn before(self) -> Dseq {
        Dseq(self.0.saturating_sub(1))
    }

    /// That of a record which so many others are before.
    #[inline]
    pub const fn behind(self, records: u64) -> Dseq {
        Dseq(self.0 + records)
    }
}

impl Key {
    /// The first of all.
    pub const FIRST: Key = Key(0);
    /// Behind all blocks.
    pub const MAX: Key = Key(u64::MAX);

    /// The keys from this one to `last`.
    #[inline]
    pub fn to(self, last: Key) -> impl DoubleEndedIterator<Item = Key> + Clone {
        (self.0..=last.0).map(Key)
    }

    /// The keys from this one up to `end`.
    #[inline]
    pub fn up_to(self, end: Key) -> impl DoubleEndedIterator<Item = Key> + Clone {
        (self.0..end.0).map(Key)
    }
}

impl Add<u64> for Key {
    type Output = Key;

    #[inline]
    fn add(self, blocks: u64) -> Key {
        Key(self.0 + blocks)
    }
}

impl Sub<u64> for Key {
    type Output = Key;

    #[inline]
    fn sub(self, blocks: u64) -> Key {
        Key(self.0 - blocks)
    }
}

impl Sub for Key {
    type Output = u64;

    #[inline]
    fn sub(self, first: Key) -> u64 {
        self.0 - first.0
    }
}

impl Slot {
    /// Where it is in a list of all slots.
    #[inline]
    pub const fn at(self) -> usize {
        self.0 as usize
    }

    /// The slot so many behind this one.
    #[inline]
    pub const fn behind(self, slots: u32) -> Slot {
        Slot(self.0 + slots)
    }

    /// How many slots it is behind another one.
    #[inline]
    pub const fn since(self, first: Slot) -> u32 {
        self.0 - first.0
    }
}

/// Number of a unit: a segment with its partner, or one that has none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct UnitId(u32);

impl UnitId {
    /// That which is at this place in a list of all units.
    #[inline]
    pub const fn nth(at: u32) -> UnitId {
        UnitId(at)
    }

    /// Where it is in a list of all units.
    #[inline]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// So many writes to an origin, since the start: what has ended of them, what is durable and what
/// has to be is one such number each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Written(u64);

impl Written {
    /// None.
    pub const NONE: Written = Written(0);

    /// With the next one.
    #[inline]
    pub const fn next(self) -> Written {
        Written(self.0 + 1)
    }

    /// Without the last one, if there is one.
    #[inline]
    pub const fn before(self) -> Written {
        Written(self.0.saturating_sub(1))
    }
}
