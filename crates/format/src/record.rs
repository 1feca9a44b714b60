//! The record: one self-certifying write to a segment. One header block, then the payload blocks.
//!
//! Header and payload travel in one write. The header's checksum covers header and entries, each
//! entry carries the checksum of its payload block: so a torn record is recognised whatever part of
//! it is missing. It protects against: torn writes (checksums), records of an earlier life of the
//! log (epoch) or of the segment (generation), misdirected writes (segment, offset), a hole in the
//! log (`dseq` has no gaps), rot mistaken for the end of the log (`durable_dseq`).

use crate::{Address, BLOCK_SIZE, FormatError, checksum_without};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Marks a record header.
pub const MAGIC: [u8; 8] = *b"FbRecord";
/// Most entries of one record.
pub const ENTRIES_MAX: usize = (BLOCK_SIZE - size_of::<RecordHeader>()) / size_of::<Entry>();
/// Most payload blocks of one record.
pub const PAYLOAD_BLOCKS_MAX: usize = 128;
const CRC_FIELD: usize = 8;

const _: () = assert!(PAYLOAD_BLOCKS_MAX <= ENTRIES_MAX);

/// What an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum EntryKind {
    /// A payload block newer than the origin; `mask` tells which sectors.
    Dirty = 1,
    /// A payload block equal to the origin.
    Clean = 2,
    /// `aux` blocks from `block` are no longer cached, whatever came before.
    Tombstone = 3,
    /// The version of `block` in slot `aux` is durable at the origin too.
    MarkClean = 4,
    /// Segment `block`, in its generation `aux`, holds nothing any more.
    SegmentFree = 5,
    /// Origin writes may be under way in `aux` blocks from `block` of the volume, or not durable.
    Intent = 6,
    /// The volume's origin is flushed: its intents in dirty-class records up to `aux` are over.
    SyncPoint = 7,
    /// No clean block of the volume from before counts any more.
    CleanDrop = 8,
    /// The volume was removed: nothing of it counts any more.
    VolumeDrop = 9,
    /// A payload block that was replaced before its record was written: it says nothing.
    Void = 10,
}

impl EntryKind {
    /// The kind with number `raw`, if there is one.
    pub fn from_raw(raw: u8) -> Option<EntryKind> {
        use EntryKind::*;
        const BY_NUMBER: [EntryKind; 10] = [
            Dirty,
            Clean,
            Tombstone,
            MarkClean,
            SegmentFree,
            Intent,
            SyncPoint,
            CleanDrop,
            VolumeDrop,
            Void,
        ];
        BY_NUMBER.get(usize::from(raw).wrapping_sub(1)).copied()
    }

    /// Whether a payload block belongs to the entry.
    pub fn has_payload(self) -> bool {
        matches!(self, EntryKind::Dirty | EntryKind::Clean | EntryKind::Void)
    }
}

/// Which stream a record belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordClass {
    /// Part of the dirty-class sequence: recovery accepts these up to the first gap.
    Dirty = 1,
    /// Only clean payload: may be missing without harm.
    Clean = 2,
}

/// One entry of a record.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct Entry {
    /// The volume, and a block of it or what the kind says.
    pub address: Address,
    /// What the kind says.
    pub aux: U64,
    /// CRC-32C of the payload block.
    pub crc: U32,
    /// Zero.
    pub reserved: [u8; 2],
    /// An [`EntryKind`].
    pub kind: u8,
    /// Valid sectors of the payload block, bit 0 the first.
    pub mask: u8,
}

impl Entry {
    /// An entry without payload.
    pub fn plain(kind: EntryKind, volume: u32, block: u64, aux: u64) -> Entry {
        Entry {
            address: Address::new(volume, block),
            aux: U64::new(aux),
            crc: U32::new(0),
            reserved: [0; 2],
            kind: kind as u8,
            mask: 0,
        }
    }

    /// Whether it has a block that no sector of counts: nobody means that.
    fn lacks_mask(&self) -> bool {
        matches!(self.kind(), EntryKind::Dirty | EntryKind::Clean) && self.mask == 0
    }

    /// The kind. Entries of a decoded record always have one.
    pub fn kind(&self) -> EntryKind {
        EntryKind::from_raw(self.kind).expect("checked when the record was decoded")
    }
}

/// The fixed part of a record's header block; the entries follow it.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct RecordHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// CRC-32C of the header block up to the last entry, this field as zero.
    pub crc: U32,
    /// Version of the format.
    pub version: U16,
    /// A [`RecordClass`].
    pub class: u8,
    /// Zero.
    pub flags: u8,
    /// First half of the pool's uuid.
    pub pool: U64,
    /// Life of the log in which it was written.
    pub epoch: U64,
    /// Position in the order of all records.
    pub seq: U64,
    /// Position among the dirty-class records, without gaps; for a clean record, the last one
    /// before it.
    pub dseq: U64,
    /// Every dirty-class record up to here was durable when this one was written.
    pub durable_dseq: U64,
    /// Segment it was written to. A dirty-class record is the same, byte for byte, in the partner
    /// of that segment ([`crate::Pairing`]).
    pub segment: U32,
    /// Generation of that segment and its partner.
    pub segment_generation: U32,
    /// Block in the segment at which the header lies.
    pub offset: U32,
    /// Entries.
    pub entry_count: U16,
    /// Payload blocks.
    pub payload_blocks: U16,
    /// Every record of this life, of either class, up to this `seq` was durable when this one was
    /// written, header and payload. 0: nothing is known.
    pub durable_seq: U64,
    /// Zero.
    pub reserved: [u8; 16],
}

const _: () = assert!(size_of::<RecordHeader>() == 96);
const _: () = assert!(size_of::<Entry>() == 24);
const _: () = assert!(std::mem::offset_of!(RecordHeader, crc) == CRC_FIELD);

/// Writes a header block. `header.magic`, `crc`, `version`, `entry_count` and `payload_blocks` are
/// filled in.
pub fn encode(header: &RecordHeader, entries: &[Entry], block: &mut [u8]) {
    assert_eq!(block.len(), BLOCK_SIZE);
    assert!(entries.len() <= ENTRIES_MAX);
    let payload = entries.iter().filter(|entry| entry.kind().has_payload()).count();
    assert!(payload <= PAYLOAD_BLOCKS_MAX);
    assert!(!entries.iter().any(Entry::lacks_mask));
    let mut header = *header;
    header.magic = MAGIC;
    header.version = U16::new(crate::FORMAT_VERSION as u16);
    header.crc = U32::new(0);
    header.entry_count = U16::new(entries.len() as u16);
    header.payload_blocks = U16::new(payload as u16);
    let used = size_of::<RecordHeader>() + size_of_val(entries);
    block[..size_of::<RecordHeader>()].copy_from_slice(header.as_bytes());
    block[size_of::<RecordHeader>()..used].copy_from_slice(entries.as_bytes());
    block[used..].fill(0);
    let crc = checksum_without(&block[..used], CRC_FIELD);
    block[CRC_FIELD..CRC_FIELD + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Reads a header block. The payload is not looked at.
///
/// # Errors
/// Says whether the bytes are not a record, damaged, or impossible.
pub fn decode(block: &[u8]) -> Result<(RecordHeader, Vec<Entry>), FormatError> {
    const WHAT: &str = "record";
    assert_eq!(block.len(), BLOCK_SIZE);
    let (header, rest) = RecordHeader::read_from_prefix(block).expect("one block");
    if header.magic != MAGIC {
        return Err(FormatError::NotOurs { what: WHAT });
    }
    let count = usize::from(header.entry_count.get());
    if count > ENTRIES_MAX {
        return Err(FormatError::Damaged { what: WHAT });
    }
    let used = size_of::<RecordHeader>() + count * size_of::<Entry>();
    if checksum_without(&block[..used], CRC_FIELD) != header.crc.get() {
        return Err(FormatError::Damaged { what: WHAT });
    }
    let invalid = |field| Err(FormatError::Invalid { what: WHAT, field });
    if u32::from(header.version.get()) != crate::FORMAT_VERSION {
        return invalid("version");
    }
    if header.class != RecordClass::Dirty as u8 && header.class != RecordClass::Clean as u8 {
        return invalid("class");
    }
    let entries: Vec<Entry> = rest[..count * size_of::<Entry>()]
        .chunks_exact(size_of::<Entry>())
        .map(|bytes| Entry::read_from_bytes(bytes).expect("24 bytes"))
        .collect();
    if entries.iter().any(|entry| EntryKind::from_raw(entry.kind).is_none()) {
        return invalid("entry kind");
    }
    if entries.iter().any(Entry::lacks_mask) {
        return invalid("mask");
    }
    let payload = entries.iter().filter(|entry| entry.kind().has_payload()).count();
    if payload != usize::from(header.payload_blocks.get()) || payload > PAYLOAD_BLOCKS_MAX {
        return invalid("payload_blocks");
    }
    Ok((header, entries))
}
