//! The map: which extent lives where, in pages; and its head, from which on the journal counts.
//!
//! A page is written to the doubles first, then in its place: a torn write leaves one of both. A
//! page says up to which record of the journal it knows everything; later records are replayed over
//! it, each of which has all that is known of its extent. So it does not matter which of the pages
//! reached the device before a crash, nor whether a page is read from another holder.

use super::Place;
use crate::{BLOCK_SIZE, FormatError, checksum_without};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Marks a page.
pub const PAGE_MAGIC: [u8; 8] = *b"FbTrPage";
const HEAD_MAGIC: [u8; 8] = *b"FbTrHead";
/// Extents of one page.
pub const PAGE_ENTRIES: u32 = 580;
/// [`PageEntry::place`] of an extent that has none.
pub const PLACE_NONE: u32 = u32::MAX;
const CRC_FIELD: usize = 8;

/// Pages of a map of so many extents.
pub fn pages_of(extents: u32) -> u32 {
    extents.div_ceil(PAGE_ENTRIES)
}

/// The head of a page.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct PageHeader {
    /// [`PAGE_MAGIC`].
    pub magic: [u8; 8],
    /// CRC-32C of the page, this field as zero.
    pub crc: U32,
    /// Which page of the map.
    pub number: U32,
    /// First half of the set's uuid.
    pub set: U64,
    /// The page knows what records up to this one say.
    pub seq: U64,
}

/// An extent in a page.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct PageEntry {
    /// [`super::Place::number`], or [`PLACE_NONE`].
    pub place: U32,
    /// Pieces of 64 KiB that are written, one bit each.
    pub pieces: U16,
    /// Low seven bits: heat, four to the octave. Bit 7: more is known, in the journal.
    pub heat: u8,
}

impl PageEntry {
    /// Bit of `heat`: the journal has the blocks that are written.
    pub const FINE: u8 = 0x80;
    /// An extent that was never written.
    pub const NONE: PageEntry =
        PageEntry { place: U32::new(PLACE_NONE), pieces: U16::new(0), heat: 0 };

    /// Whether the journal has the blocks that are written.
    pub fn is_fine(&self) -> bool {
        self.heat & PageEntry::FINE != 0
    }

    /// Whether what is written is where a member can be.
    fn is_possible(&self) -> bool {
        match self.place.get() {
            PLACE_NONE => self.pieces.get() == 0 && !self.is_fine(),
            place => Place::of_number(place).is_some(),
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct PageBlock {
    header: PageHeader,
    entries: [PageEntry; PAGE_ENTRIES as usize],
    reserved: [u8; 4],
}

const _: () = assert!(size_of::<PageBlock>() == BLOCK_SIZE);
const _: () = assert!(std::mem::offset_of!(PageHeader, crc) == CRC_FIELD);

/// A page in memory.
#[derive(Debug, Clone)]
pub struct Page {
    /// Which page of the map.
    pub number: u32,
    /// It knows what records up to this one say.
    pub seq: u64,
    /// Its extents.
    pub entries: Vec<PageEntry>,
}

impl Page {
    /// Encodes the page of the set whose uuid begins with `set`.
    pub fn encode(&self, set: u64, out: &mut [u8]) {
        let header = PageHeader {
            magic: PAGE_MAGIC,
            crc: U32::new(0),
            number: U32::new(self.number),
            set: U64::new(set),
            seq: U64::new(self.seq),
        };
        let mut block = PageBlock {
            header,
            entries: [PageEntry::NONE; PAGE_ENTRIES as usize],
            reserved: [0; 4],
        };
        block.entries[..self.entries.len()].copy_from_slice(&self.entries);
        block.header.crc = U32::new(checksum_without(block.as_bytes(), CRC_FIELD));
        out.copy_from_slice(block.as_bytes());
    }

    /// Decodes a page of that set.
    ///
    /// # Errors
    /// Says whether the bytes are not ours, damaged or impossible.
    pub fn decode(set: u64, bytes: &[u8]) -> Result<Page, FormatError> {
        let what = "map page of a tier";
        let block = PageBlock::ref_from_bytes(bytes).expect("one block");
        if block.header.magic != PAGE_MAGIC || block.header.set.get() != set {
            return Err(FormatError::NotOurs { what });
        }
        if checksum_without(bytes, CRC_FIELD) != block.header.crc.get() {
            return Err(FormatError::Damaged { what });
        }
        let (number, seq) = (block.header.number.get(), block.header.seq.get());
        if seq > u64::MAX / 2 {
            return Err(FormatError::Invalid { what, field: "seq" });
        }
        if !block.entries.iter().all(PageEntry::is_possible) {
            return Err(FormatError::Invalid { what, field: "place" });
        }
        Ok(Page { number, seq, entries: block.entries.to_vec() })
    }
}

/// The head of the map as it lies on a holder. Two copies, written in turn.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct HeadBlock {
    /// Marks it.
    pub magic: [u8; 8],
    /// CRC-32C of the block, this field as zero.
    pub crc: U32,
    /// Zero.
    pub reserved: U32,
    /// First half of the set's uuid.
    pub set: U64,
    /// Life in which the records of the journal count that are at or behind `tail`.
    pub epoch: U64,
    /// First record that counts; the first of all is 1. What those before say is in the pages.
    pub tail: U64,
    /// Zero.
    pub reserved_tail: [u8; 4056],
}

const _: () = assert!(size_of::<HeadBlock>() == BLOCK_SIZE);

/// The head of the map in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Head {
    /// Life of the records that count.
    pub epoch: u64,
    /// First record that counts.
    pub tail: u64,
}

impl Head {
    /// Encodes one copy.
    pub fn encode(&self, set: u64, out: &mut [u8]) {
        let mut block = HeadBlock {
            magic: HEAD_MAGIC,
            crc: U32::new(0),
            reserved: U32::new(0),
            set: U64::new(set),
            epoch: U64::new(self.epoch),
            tail: U64::new(self.tail),
            reserved_tail: [0; 4056],
        };
        block.crc = U32::new(checksum_without(block.as_bytes(), CRC_FIELD));
        out.copy_from_slice(block.as_bytes());
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// Says whether the bytes are not ours, damaged or impossible.
    pub fn decode(set: u64, bytes: &[u8]) -> Result<Head, FormatError> {
        let what = "map head of a tier";
        let block = HeadBlock::ref_from_bytes(bytes).expect("one block");
        if block.magic != HEAD_MAGIC || block.set.get() != set {
            return Err(FormatError::NotOurs { what });
        }
        if checksum_without(bytes, CRC_FIELD) != block.crc.get() {
            return Err(FormatError::Damaged { what });
        }
        let tails = 1..=u64::MAX / 2;
        if !tails.contains(&block.tail.get()) || block.epoch.get() > u64::MAX / 2 {
            return Err(FormatError::Invalid { what, field: "tail" });
        }
        Ok(Head { epoch: block.epoch.get(), tail: block.tail.get() })
    }
}
