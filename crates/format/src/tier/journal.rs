//! The journal of the map: a ring of records of one block each, numbered without gaps.
//!
//! An entry says all that is known of its extent, so replaying it twice, or over a page that knows
//! it already, is harmless. A record also says up to which one everything was flushed, data
//! included, when it was written (`confirmed`): after a power loss what is behind the greatest such
//! number is forgotten, because the journal may have reached its device where the data did not.
//! Another life's records are told by their epoch, those of an earlier turn of the ring by their
//! number, a torn one by its checksum.

use super::{Blocks, PLACE_NONE, Place};
use crate::{BLOCK_SIZE, FormatError, checksum_without};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Marks a record.
pub const RECORD_MAGIC: [u8; 8] = *b"FbTrJrnl";
/// Most entries of a record.
pub const ENTRIES_MAX: usize = (BLOCK_SIZE - size_of::<RecordHeader>()) / size_of::<EntryBlock>();
const CRC_FIELD: usize = 8;
const WHAT: &str = "journal record of a tier";

/// The head of a record.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RecordHeader {
    /// [`RECORD_MAGIC`].
    pub magic: [u8; 8],
    /// CRC-32C of the block, this field as zero.
    pub crc: U32,
    /// Entries.
    pub count: U16,
    /// Zero.
    pub reserved: U16,
    /// First half of the set's uuid.
    pub set: U64,
    /// Life of the set.
    pub epoch: U64,
    /// Number of the record.
    pub seq: U64,
    /// All that records up to this one tell of was durable before this record was written.
    pub confirmed: U64,
    /// Records up to this one were durable themselves: if one of them is missing, the journal is
    /// damaged.
    pub durable: U64,
    /// Zero.
    pub reserved_tail: [u8; 8],
}

/// An entry of a record as it lies on a holder.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct EntryBlock {
    /// The extent.
    pub extent: U32,
    /// [`Place::number`], or [`PLACE_NONE`].
    pub place: U32,
    /// One of [`EntryKind`].
    pub kind: u8,
    /// Heat, as in [`super::PageEntry`].
    pub heat: u8,
    /// Zero.
    pub reserved: [u8; 6],
    /// A bit for each block.
    pub blocks: [U64; 4],
}

const _: () = assert!(size_of::<RecordHeader>() == 64);
const _: () = assert!(size_of::<EntryBlock>() == 48);
const _: () = assert!(std::mem::offset_of!(RecordHeader, crc) == CRC_FIELD);

/// What an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// Where the extent lives, and its written blocks. The others read as zeros.
    State = 1,
    /// Its blocks that are lost: reading them fails until they are written.
    Lost = 2,
}

/// All that is known of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What it says.
    pub kind: EntryKind,
    /// The extent.
    pub extent: u32,
    /// [`Place::number`], or [`PLACE_NONE`].
    pub place: u32,
    /// Heat, as in [`super::PageEntry`].
    pub heat: u8,
    /// The blocks.
    pub blocks: Blocks,
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Life of the set.
    pub epoch: u64,
    /// Its number.
    pub seq: u64,
    /// What was durable before it was written.
    pub confirmed: u64,
    /// Records up to this one were durable themselves.
    pub durable: u64,
    /// What it says.
    pub entries: Vec<Entry>,
}

impl Record {
    /// Encodes a record of the set whose uuid begins with `set`.
    pub fn encode(&self, set: u64, out: &mut [u8]) {
        assert!(out.len() == BLOCK_SIZE && self.entries.len() <= ENTRIES_MAX);
        let header = RecordHeader {
            magic: RECORD_MAGIC,
            crc: U32::new(0),
            count: U16::new(self.entries.len() as u16),
            reserved: U16::new(0),
            set: U64::new(set),
            epoch: U64::new(self.epoch),
            seq: U64::new(self.seq),
            confirmed: U64::new(self.confirmed),
            durable: U64::new(self.durable),
            reserved_tail: [0; 8],
        };
        out.fill(0);
        let (head, rest) = out.split_at_mut(size_of::<RecordHeader>());
        head.copy_from_slice(header.as_bytes());
        let rooms = rest.chunks_exact_mut(size_of::<EntryBlock>());
        for (room, entry) in rooms.zip(&self.entries) {
            let block = EntryBlock {
                extent: U32::new(entry.extent),
                place: U32::new(entry.place),
                kind: entry.kind as u8,
                heat: entry.heat,
                reserved: [0; 6],
                blocks: entry.blocks.0.map(U64::new),
            };
            room.copy_from_slice(block.as_bytes());
        }
        let crc = checksum_without(out, CRC_FIELD);
        out[CRC_FIELD..CRC_FIELD + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes a record of that set.
    ///
    /// # Errors
    /// Says whether the bytes are not ours, damaged or impossible.
    pub fn decode(set: u64, bytes: &[u8]) -> Result<Record, FormatError> {
        assert_eq!(bytes.len(), BLOCK_SIZE);
        let (header, rest) = RecordHeader::read_from_prefix(bytes).expect("one block");
        if header.magic != RECORD_MAGIC || header.set.get() != set {
            return Err(FormatError::NotOurs { what: WHAT });
        }
        if checksum_without(bytes, CRC_FIELD) != header.crc.get() {
            return Err(FormatError::Damaged { what: WHAT });
        }
        let (epoch, seq) = (header.epoch.get(), header.seq.get());
        let (confirmed, durable) = (header.confirmed.get(), header.durable.get());
        let count = usize::from(header.count.get());
        if count > ENTRIES_MAX || confirmed >= seq || durable > confirmed || seq > u64::MAX / 2 {
            return Err(FormatError::Invalid { what: WHAT, field: "seq" });
        }
        let rooms = rest.chunks_exact(size_of::<EntryBlock>()).take(count);
        let entries = rooms.map(decode_entry).collect::<Result<_, _>>()?;
        Ok(Record { epoch, seq, confirmed, durable, entries })
    }
}

fn decode_entry(room: &[u8]) -> Result<Entry, FormatError> {
    let block = EntryBlock::read_from_bytes(room).expect("one entry");
    let kind = match block.kind {
        1 => EntryKind::State,
        2 => EntryKind::Lost,
        _ => return Err(FormatError::Invalid { what: WHAT, field: "kind" }),
    };
    let (extent, place) = (block.extent.get(), block.place.get());
    let blocks = Blocks(block.blocks.map(|word| word.get()));
    let is_nowhere = place == PLACE_NONE && (kind == EntryKind::Lost || blocks.is_empty());
    if !is_nowhere && Place::of_number(place).is_none() {
        return Err(FormatError::Invalid { what: WHAT, field: "place" });
    }
    Ok(Entry { kind, extent, place, heat: block.heat, blocks })
}
