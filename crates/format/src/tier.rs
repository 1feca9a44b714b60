//! What is on the members of a tiered origin: who they are, and the map that says where each extent
//! lives.
//!
//! ```text
//! 0         64 KiB    128 KiB  192 KiB  256 KiB    512 KiB                        slots_offset
//! | super A | super B | head A | head B | doubles | journal (ring) | map pages | | slot 0 | …
//! ```
//!
//! Every member has this layout; those named as holders in the superblock keep the map. Each
//! structure says what it protects against.

mod journal;
mod map;
mod superblock;
pub mod survey;

pub use journal::{ENTRIES_MAX, Entry, EntryBlock, EntryKind, RECORD_MAGIC, Record, RecordHeader};
pub use map::{
    Head, HeadBlock, PAGE_ENTRIES, PAGE_MAGIC, PLACE_NONE, Page, PageEntry, PageHeader, pages_of,
};
pub use superblock::{
    MAGIC, MEMBERS_MAX, MemberEntry, Superblock, SuperblockBlock, TIERS_MAX, UNHELD, VERSION,
    member_state,
};

use crate::BLOCK_SIZE;

/// Unit of tiering, in bytes.
pub const EXTENT_SIZE: u64 = 1 << 20;
/// Blocks of an extent; one bit each in [`Blocks`].
pub const EXTENT_BLOCKS: usize = EXTENT_SIZE as usize / BLOCK_SIZE;
/// Byte offsets of the two superblock copies of a member.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 << 10];
/// Byte offsets of the two copies of the head of the map.
pub const HEAD_OFFSETS: [u64; 2] = [128 << 10, 192 << 10];
/// Where pages are written first, before they are written in their place.
pub const DOUBLES_OFFSET: u64 = 256 << 10;
/// Pages that are written at a time.
pub const DOUBLES_MAX: usize = 64;
/// Where the journal begins.
pub const JOURNAL_OFFSET: u64 = DOUBLES_OFFSET + (DOUBLES_MAX * BLOCK_SIZE) as u64;
/// Most slots of one member: 64 TiB.
pub const SLOTS_MAX: u32 = (1 << SLOT_BITS) - 1;
const SLOT_BITS: u32 = 26;

/// Where the parts of one member lie, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierLayout {
    /// Blocks of the journal.
    pub journal_blocks: u32,
    /// Extents that the map has room for.
    pub extents_max: u32,
}

impl TierLayout {
    /// Most extents of a volume: 2 PiB.
    pub const EXTENTS_MAX: u32 = 1 << 31;
    /// Most blocks of a journal.
    pub const JOURNAL_BLOCKS_MAX: u32 = 1 << 20;
    /// A journal of so many blocks is enough for any map.
    const JOURNAL_BLOCKS_ENOUGH: u32 = 2048;

    /// Least blocks of a journal for a map of so many extents: what each checkpoint says again,
    /// up to two entries an extent, is a quarter of it at most.
    pub fn journal_blocks_min(extents_max: u32) -> u32 {
        let records = (2 * u64::from(extents_max)).div_ceil(ENTRIES_MAX as u64);
        let enough = Self::JOURNAL_BLOCKS_ENOUGH;
        (4 * records).clamp(64, enough.into()) as u32
    }

    /// Where the pages of the map begin.
    pub fn pages_offset(&self) -> u64 {
        JOURNAL_OFFSET + u64::from(self.journal_blocks) * BLOCK_SIZE as u64
    }

    /// Where the first slot begins.
    pub fn slots_offset(&self) -> u64 {
        let pages = u64::from(pages_of(self.extents_max)) * BLOCK_SIZE as u64;
        (self.pages_offset() + pages).next_multiple_of(EXTENT_SIZE)
    }

    /// Slots on a member of so many bytes.
    pub fn slots(&self, bytes: u64) -> u32 {
        let room = bytes.saturating_sub(self.slots_offset()) / EXTENT_SIZE;
        u32::try_from(room).unwrap_or(SLOTS_MAX).min(SLOTS_MAX)
    }

    /// Where the record with this number lies.
    pub fn record_offset(&self, seq: u64) -> u64 {
        JOURNAL_OFFSET + seq % u64::from(self.journal_blocks) * BLOCK_SIZE as u64
    }

    /// Where this page of the map lies.
    pub fn page_offset(&self, page: u32) -> u64 {
        self.pages_offset() + u64::from(page) * BLOCK_SIZE as u64
    }

    /// Where this slot lies.
    pub fn slot_offset(&self, slot: u32) -> u64 {
        self.slots_offset() + u64::from(slot) * EXTENT_SIZE
    }
}

/// One slot of one member: where an extent can live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u32);

impl Place {
    /// Slot `slot` of member `member`.
    pub fn new(member: u8, slot: u32) -> Place {
        assert!(usize::from(member) < MEMBERS_MAX && slot < SLOTS_MAX);
        Place(u32::from(member) << SLOT_BITS | slot)
    }

    /// The member.
    pub fn member(self) -> u8 {
        (self.0 >> SLOT_BITS) as u8
    }

    /// The slot on the member.
    pub fn slot(self) -> u32 {
        self.0 & SLOTS_MAX
    }

    /// As a number, for the map.
    pub fn number(self) -> u32 {
        self.0
    }

    /// From a number in the map; `None` for none, and for one that no member has.
    pub fn of_number(number: u32) -> Option<Place> {
        let place = Place(number);
        let is_possible = usize::from(place.member()) < MEMBERS_MAX && place.slot() < SLOTS_MAX;
        is_possible.then_some(place)
    }
}

/// Blocks of one extent, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Blocks(pub [u64; 4]);

impl Blocks {
    /// No block.
    pub const NONE: Blocks = Blocks([0; 4]);
    /// All blocks.
    pub const ALL: Blocks = Blocks([u64::MAX; 4]);
    /// Blocks of one bit of [`Blocks::pieces`].
    pub const PIECE: usize = EXTENT_BLOCKS / 16;

    /// These blocks, from the first up to the second, not included.
    pub fn range(from: usize, end: usize) -> Blocks {
        assert!(from <= end && end <= EXTENT_BLOCKS);
        let below = |end: usize, word: usize| {
            let bits = end.saturating_sub(word * 64).min(64);
            if bits == 64 { u64::MAX } else { (1 << bits) - 1 }
        };
        Blocks(std::array::from_fn(|word| below(end, word) & !below(from, word)))
    }

    /// Those of whole pieces, sixteen bits.
    pub fn of_pieces(pieces: u16) -> Blocks {
        Blocks(std::array::from_fn(|word| {
            let four = pieces >> (4 * word) & 0xf;
            (0..4).filter(|bit| four >> bit & 1 == 1).map(|bit| 0xffff << (16 * bit)).sum()
        }))
    }

    /// Pieces of which all blocks are here.
    pub fn pieces(&self) -> u16 {
        let is_whole = |piece: &usize| self.0[piece / 4] >> (16 * (piece % 4)) & 0xffff == 0xffff;
        (0..16).filter(is_whole).map(|piece| 1 << piece).sum()
    }

    /// Whether this block is among them.
    pub fn has(&self, block: usize) -> bool {
        self.0[block / 64] >> (block % 64) & 1 == 1
    }

    /// Those that are here, or there.
    pub fn or(&self, other: Blocks) -> Blocks {
        Blocks(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Those that are here and there.
    pub fn and(&self, other: Blocks) -> Blocks {
        Blocks(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Those that are here and not there.
    pub fn without(&self, other: Blocks) -> Blocks {
        Blocks(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Blocks::NONE
    }

    /// Whether each piece is here as a whole or not at all.
    pub fn is_whole_pieces(&self) -> bool {
        Blocks::of_pieces(self.pieces()) == *self
    }

    /// First and last, if there are any.
    pub fn bounds(&self) -> Option<(usize, usize)> {
        let first = self.0.iter().position(|word| *word != 0)?;
        let last = self.0.iter().rposition(|word| *word != 0)?;
        let from = first * 64 + self.0[first].trailing_zeros() as usize;
        Some((from, last * 64 + 63 - self.0[last].leading_zeros() as usize))
    }
}

#[cfg(test)]
mod tests;
