//! The checkpoint: the index and the segment table at one position of the log, so that a start
//! reads it and rolls forward from there instead of reading the whole log.
//!
//! A stream of chunks, each of whole blocks with its own checksum and the checkpoint's generation:
//! it protects against torn chunks, chunks of an older checkpoint in the same area, and missing
//! chunks (the superblock says how many blocks there are). Two areas are used in turn, and a
//! segment is reused only when neither checkpoint needs its records, so a damaged checkpoint is
//! replaced by the one before.

use crate::{BLOCK_SIZE, FORMAT_VERSION, FormatError, checksum_without};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Marks a chunk.
pub const MAGIC: [u8; 8] = *b"FbCheckp";
/// Most blocks of one chunk.
pub const CHUNK_BLOCKS_MAX: usize = 16;
const CRC_FIELD: usize = 8;

/// What a chunk's items are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ChunkKind {
    /// [`SegmentItem`]s.
    Segments = 1,
    /// [`BlockItem`]s: the index.
    Blocks = 2,
    /// [`VolumeItem`]s: what each volume's clean entries may be trusted up to, and its marked
    /// regions.
    Volumes = 3,
}

/// The head of a chunk; the items follow it.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct ChunkHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// CRC-32C of the chunk up to the last item, this field as zero.
    pub crc: U32,
    /// Blocks of the chunk.
    pub blocks: U16,
    /// A [`ChunkKind`].
    pub kind: u8,
    /// Version of the format.
    pub version: u8,
    /// First half of the pool's uuid.
    pub pool: U64,
    /// Generation of the checkpoint.
    pub generation: U64,
    /// Block of the checkpoint at which the chunk lies.
    pub position: U64,
    /// Items in the chunk.
    pub count: U32,
    /// Zero.
    pub reserved_tail: U32,
}

/// One segment that has ever been opened.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct SegmentItem {
    /// Greatest sequence number in the segment.
    pub last_seq: U64,
    /// The segment.
    pub segment: U32,
    /// Its generation.
    pub generation: U32,
    /// Segment of its second copy, or `SEGMENT_NONE`.
    pub twin: U32,
    /// [`SEGMENT_DIRTY_CLASS`], [`SEGMENT_FREE`], [`SEGMENT_OPEN`].
    pub flags: U32,
}

/// Bit of [`SegmentItem::flags`]: it holds dirty-class records.
pub const SEGMENT_DIRTY_CLASS: u32 = 1;
/// Bit of [`SegmentItem::flags`]: it is free; listed for its generation.
pub const SEGMENT_FREE: u32 = 2;
/// Bit of [`SegmentItem::flags`]: records were still being appended to it.
pub const SEGMENT_OPEN: u32 = 4;
/// Bit of [`SegmentItem::flags`]: it is the second copy of another segment.
pub const SEGMENT_TWIN: u32 = 8;

/// One entry of the index.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct BlockItem {
    /// Low 48 bits: the block in the volume. High 16 bits: the volume.
    pub key: U64,
    /// Slot that holds it: segment × segment blocks + block in the segment.
    pub slot: U32,
    /// CRC-32C of the block.
    pub crc: U32,
    /// Bit 0: dirty. Bit 1: lost (dirty, and both copies are unreadable).
    pub flags: u8,
    /// Valid sectors.
    pub mask: u8,
    /// Zero.
    pub reserved: U16,
}

/// Bit of [`BlockItem::flags`].
pub const FLAG_DIRTY: u8 = 1;
/// Bit of [`BlockItem::flags`].
pub const FLAG_LOST: u8 = 2;

/// One fact about a volume.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct VolumeItem {
    /// The region, or the sequence number up to which clean entries are trusted.
    pub value: U64,
    /// For a region: the dirty-class number of its intent.
    pub aux: U64,
    /// The volume.
    pub volume: U16,
    /// 0: `value` is a sequence number. 1: `value` is a region with an intent.
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

const _: () = assert!(size_of::<ChunkHeader>() == 48);
const _: () = assert!(size_of::<SegmentItem>() == 24);
const _: () = assert!(size_of::<BlockItem>() == 20);
const _: () = assert!(size_of::<VolumeItem>() == 24);
const _: () = assert!(std::mem::offset_of!(ChunkHeader, crc) == CRC_FIELD);
const _: () = assert!(FORMAT_VERSION <= u8::MAX as u32);

/// Items that fit a chunk of `blocks` blocks.
pub fn items_per_chunk<T>(blocks: usize) -> usize {
    (blocks * BLOCK_SIZE - size_of::<ChunkHeader>()) / size_of::<T>()
}

/// Writes a chunk of `items` into `out` (whole blocks, at most [`CHUNK_BLOCKS_MAX`]; what is left
/// is zero). `header.magic`, `crc`, `version`, `blocks` and `count` are filled in.
pub fn encode<T: IntoBytes + Immutable>(header: &ChunkHeader, items: &[T], out: &mut [u8]) {
    assert_eq!(out.len() % BLOCK_SIZE, 0);
    assert!(!out.is_empty());
    assert!(out.len() <= CHUNK_BLOCKS_MAX * BLOCK_SIZE);
    let mut header = *header;
    header.magic = MAGIC;
    header.version = FORMAT_VERSION as u8;
    header.crc = U32::new(0);
    header.blocks = U16::new((out.len() / BLOCK_SIZE) as u16);
    header.count = U32::new(items.len() as u32);
    let used = size_of::<ChunkHeader>() + size_of_val(items);
    assert!(used <= out.len());
    out[..size_of::<ChunkHeader>()].copy_from_slice(header.as_bytes());
    out[size_of::<ChunkHeader>()..used].copy_from_slice(items.as_bytes());
    out[used..].fill(0);
    let crc = checksum_without(&out[..used], CRC_FIELD);
    out[CRC_FIELD..CRC_FIELD + 4].copy_from_slice(&crc.to_le_bytes());
}

/// A decoded chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// Segments.
    Segments(Vec<SegmentItem>),
    /// Index entries.
    Blocks(Vec<BlockItem>),
    /// Volume facts.
    Volumes(Vec<VolumeItem>),
}

/// Reads the chunk that starts at `bytes[0]`, and says how many blocks it takes.
///
/// # Errors
/// Says whether it is not a chunk, damaged, of another checkpoint, or impossible.
pub fn decode(
    bytes: &[u8],
    pool: u64,
    generation: u64,
    position: u64,
) -> Result<(Chunk, usize), FormatError> {
    const WHAT: &str = "checkpoint";
    let invalid = |field| FormatError::Invalid { what: WHAT, field };
    let Ok((header, rest)) = ChunkHeader::read_from_prefix(bytes) else {
        return Err(invalid("length"));
    };
    if header.magic != MAGIC {
        return Err(FormatError::NotOurs { what: WHAT });
    }
    let blocks = usize::from(header.blocks.get());
    let item_size = match header.kind {
        1 => size_of::<SegmentItem>(),
        2 => size_of::<BlockItem>(),
        3 => size_of::<VolumeItem>(),
        _ => return Err(FormatError::Damaged { what: WHAT }),
    };
    let items_bytes = (header.count.get() as usize).saturating_mul(item_size);
    let used = size_of::<ChunkHeader>().saturating_add(items_bytes);
    let fits = (1..=CHUNK_BLOCKS_MAX).contains(&blocks)
        && used <= blocks * BLOCK_SIZE
        && blocks * BLOCK_SIZE <= bytes.len();
    if !fits {
        return Err(FormatError::Damaged { what: WHAT });
    }
    if checksum_without(&bytes[..used], CRC_FIELD) != header.crc.get() {
        return Err(FormatError::Damaged { what: WHAT });
    }
    if u32::from(header.version) != FORMAT_VERSION {
        return Err(invalid("version"));
    }
    if header.pool.get() != pool {
        return Err(invalid("pool"));
    }
    if header.generation.get() != generation || header.position.get() != position {
        return Err(invalid("generation"));
    }
    let body = &rest[..items_bytes];
    let chunk = match header.kind {
        1 => Chunk::Segments(items(body)),
        2 => Chunk::Blocks(items(body)),
        _ => Chunk::Volumes(items(body)),
    };
    Ok((chunk, blocks))
}

fn items<T: FromBytes>(body: &[u8]) -> Vec<T> {
    body.chunks_exact(size_of::<T>())
        .map(|bytes| T::read_from_bytes(bytes).expect("exact size"))
        .collect()
}
