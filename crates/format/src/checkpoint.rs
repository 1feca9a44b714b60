//! The checkpoint: the index and the segment table at one position of the log, so that a start
//! reads it and rolls forward from there instead of reading the whole log.
//!
//! A stream of chunks, each of whole blocks with its own checksum and the checkpoint's generation:
//! it protects against torn chunks, chunks of an older checkpoint in the same area, and missing
//! chunks (the superblock says how many blocks there are). Two areas are used in turn, and a
//! segment is reused only when neither checkpoint needs its records, so a damaged checkpoint is
//! replaced by the one before.

use crate::{Address, BLOCK_SIZE, FORMAT_VERSION, FormatError, checksum_without};
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
    /// [`BlockItem`]s: what became of keys that were placed in the index while it was written.
    Blocks = 2,
    /// [`VolumeItem`]s: what each volume's clean entries may be trusted up to, its marked regions
    /// and its keys.
    Volumes = 3,
    /// [`BucketItem`]s: the index.
    Buckets = 4,
    /// [`MaskItem`]s: blocks of which only some sectors are valid.
    Masks = 5,
    /// One [`TableItem`]; the first chunk.
    Table = 6,
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
    /// Number of the first bucket, for [`ChunkKind::Buckets`]; else zero.
    pub first: U32,
}

/// One segment that has ever been opened, with its partner if it has one.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct SegmentItem {
    /// Greatest sequence number in the segment.
    pub last_seq: U64,
    /// The segment; of two partners the first.
    pub segment: U32,
    /// Its generation.
    pub generation: U32,
    /// Zero.
    pub reserved: U32,
    /// [`SEGMENT_DIRTY_CLASS`], [`SEGMENT_FREE`], [`SEGMENT_OPEN`].
    pub flags: U32,
}

/// Bit of [`SegmentItem::flags`]: it holds dirty-class records.
pub const SEGMENT_DIRTY_CLASS: u32 = 1;
/// Bit of [`SegmentItem::flags`]: it is free; listed for its generation.
pub const SEGMENT_FREE: u32 = 2;
/// Bit of [`SegmentItem::flags`]: records were still being appended to it.
pub const SEGMENT_OPEN: u32 = 4;
/// Bit of [`SegmentItem::flags`]: it was opened while the checkpoint was written. All that it holds
/// is in records behind the checkpoint; an entry that points into it is of its life before.
pub const SEGMENT_FRESH: u32 = 8;

/// Entries of a bucket.
pub const BUCKET_WAYS: usize = 7;

/// The shape of the index's table: what its buckets mean.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct TableItem {
    /// Buckets.
    pub buckets: U32,
    /// Bits of an entry that name its slot.
    pub slot_bits: u8,
    /// Bits of a key.
    pub key_bits: u8,
    /// Zero.
    pub reserved: U16,
}

/// One bucket of the index, as it lies in RAM: a start copies it instead of putting its entries in
/// one by one.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct BucketItem {
    /// CRC-32C of each entry's block.
    pub crc: [U32; BUCKET_WAYS],
    /// Low bits of each entry: slot plus one, and tag.
    pub low: [U32; BUCKET_WAYS],
    /// Nine more bits of each entry.
    pub high: U64,
    /// Bit `n`: entry `n` is dirty.
    pub dirty: u8,
}

impl BucketItem {
    /// Entries in the bucket of a table with these bits for slots.
    pub fn entries(&self, slot_bits: u8) -> u32 {
        let slots = ((1_u64 << slot_bits.min(40)) - 1) << 1;
        let used = |way: &usize| {
            let high = self.high.get() >> (9 * way) & 0x1ff;
            (high << 32 | u64::from(self.low[*way].get())) & slots != 0
        };
        (0..BUCKET_WAYS).filter(used).count() as u32
    }
}

/// The valid sectors of a block that is not valid as a whole.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct MaskItem {
    /// Where it is.
    pub slot: U32,
    /// Valid sectors.
    pub mask: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

/// What became of one key that was placed in the index while the buckets were written: whatever the
/// buckets say of it is void.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct BlockItem {
    /// The block.
    pub address: Address,
    /// Slot that holds it: segment × segment blocks + block in the segment. [`SLOT_NONE`]: none.
    pub slot: U32,
    /// CRC-32C of the block.
    pub crc: U32,
    /// Bit 0: dirty.
    pub flags: u8,
    /// Valid sectors.
    pub mask: u8,
    /// Zero.
    pub reserved: U16,
}

/// Bit of [`BlockItem::flags`].
pub const FLAG_DIRTY: u8 = 1;
/// [`BlockItem::slot`] of a key that is not in the index any more.
pub const SLOT_NONE: u32 = u32::MAX;

/// One fact about a volume.
#[repr(C)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct VolumeItem {
    /// The volume, and the first block with an intent or the key of the volume's first block.
    pub address: Address,
    /// For an intent: its dirty-class number. For a key: blocks of the volume.
    pub aux: U64,
    /// For an intent: how many blocks it marks; `u32::MAX`: up to the end of the volume.
    pub blocks: U32,
    /// [`VOLUME_INTENT`] or [`VOLUME_KEYS`].
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

/// [`VolumeItem::kind`]: its address is the first block with an intent.
pub const VOLUME_INTENT: u8 = 0;
/// [`VolumeItem::kind`]: its address has a key in place of a block.
pub const VOLUME_KEYS: u8 = 1;

const _: () = assert!(size_of::<ChunkHeader>() == 48);
const _: () = assert!(size_of::<SegmentItem>() == 24);
const _: () = assert!(size_of::<BlockItem>() == 20);
const _: () = assert!(size_of::<VolumeItem>() == 24);
const _: () = assert!(size_of::<TableItem>() == 8);
const _: () = assert!(size_of::<BucketItem>() == 65);
const _: () = assert!(size_of::<MaskItem>() == 8);
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
    /// Keys that were placed.
    Blocks(Vec<BlockItem>),
    /// Volume facts.
    Volumes(Vec<VolumeItem>),
    /// Buckets, from this one on.
    Buckets(u32, Vec<BucketItem>),
    /// Blocks that are valid in part.
    Masks(Vec<MaskItem>),
    /// The shape of the table.
    Table(TableItem),
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
        4 => size_of::<BucketItem>(),
        5 => size_of::<MaskItem>(),
        6 => size_of::<TableItem>(),
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
        3 => Chunk::Volumes(items(body)),
        4 => Chunk::Buckets(header.first.get(), items(body)),
        5 => Chunk::Masks(items(body)),
        _ => Chunk::Table(*items(body).first().ok_or(invalid("count"))?),
    };
    Ok((chunk, blocks))
}

fn items<T: FromBytes>(body: &[u8]) -> Vec<T> {
    body.chunks_exact(size_of::<T>())
        .map(|bytes| T::read_from_bytes(bytes).expect("exact size"))
        .collect()
}
