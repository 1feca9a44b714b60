//! The superblock: who this device is, where its parts lie, which volumes the pool serves, and the
//! life (epoch) of the log.
//!
//! Two copies, written alternately and never both in one go: a torn write leaves the other copy,
//! which is one generation older and still true. It protects against: a device of another pool
//! (uuids), a stale device that was away (generation, epoch), a torn write (checksum, two copies),
//! records of an earlier life of the log (epoch), a newer version's features (feature bits).

use crate::{
    BLOCK_SIZE, FORMAT_VERSION, FormatError, Layout, POOL_DEVICES_MAX, SECTOR_SIZE, VOLUME_ID_MAX,
    address::BLOCKS_MAX,
    checksum_without,
    layout::{CHECKPOINT_OFFSET, SEGMENTS_MAX, SEGMENTS_MIN},
    name::{NAME_BYTES_MAX, RawName},
};
use std::ops::RangeInclusive;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

mod joined;

pub use joined::{INCOMPAT_JOINED, JoinedEntry};

/// "Forebay1" as bytes on the device.
pub const MAGIC: [u8; 8] = *b"Forebay1";
/// Bytes of one superblock copy.
pub const SUPERBLOCK_SIZE: usize = 32 << 10;
/// Most volumes of one pool.
pub const VOLUMES_MAX: usize = (SUPERBLOCK_SIZE - BLOCK_SIZE) / size_of::<VolumeEntry>();
/// Most bytes of a volume: 4 PiB, of which an [`crate::Address`] can name every block.
pub const VOLUME_BYTES_MAX: u64 = BLOCKS_MAX * BLOCK_SIZE as u64;
/// Incompatible features that this build understands.
pub const INCOMPAT_KNOWN: u64 = INCOMPAT_JOINED;
/// Features without which this build may still read, but not write.
pub const RO_COMPAT_KNOWN: u64 = 0;
/// `checkpoint_area` when there is no checkpoint yet.
pub const CHECKPOINT_NONE: u8 = 0xff;
/// Blocks that a segment may have. The upper end, 256 MiB, bounds what a start reads of one
/// segment.
pub const SEGMENT_BLOCKS: RangeInclusive<u32> = 2..=1 << 16;
/// Greatest value of what is counted up.
const COUNTER_MAX: u64 = u64::MAX / 2;
const CRC_FIELD: usize = 12;
const WHAT: &str = "superblock";

/// One device of the pool, as every device of the pool remembers it.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct DeviceEntry {
    /// Identity of the device, random.
    pub uuid: [u8; 16],
    /// 1: this superblock was written without it.
    pub away: U32,
    /// Segments on the device; [`crate::Pairing`] numbers them.
    pub segment_count: U32,
    /// Bytes of the device when the pool was made.
    pub bytes: U64,
}

/// One volume that the pool serves.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct VolumeEntry {
    /// Number of the volume, never used again after it is removed.
    pub id: U32,
    /// 0 free, 1 in use.
    pub used: u8,
    /// The mode, as `engine::Mode` numbers them.
    pub mode: u8,
    /// Zero.
    pub reserved: [u8; 2],
    /// Size in bytes, a multiple of 512.
    pub bytes: U64,
    /// Identity of the volume, random.
    pub uuid: [u8; 16],
    /// Name, UTF-8, padded with zeros.
    pub name: [u8; NAME_BYTES_MAX],
    /// Identity of the origin as the host computes it (serial, size, samples); opaque here.
    pub fingerprint: [u8; 32],
    /// URI of the origin, UTF-8, padded with zeros: for people and for `attach`.
    pub origin: [u8; 128],
}

/// The first block of a superblock copy; the volume table follows it.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// Version of the format.
    pub version: U32,
    /// CRC-32C of the whole copy, this field as zero.
    pub crc: U32,
    /// Features that an older version may ignore.
    pub features_compat: U64,
    /// Features that an older version may read but not write.
    pub features_ro_compat: U64,
    /// Features that an older version must refuse.
    pub features_incompat: U64,
    /// Identity of the pool, random.
    pub pool_uuid: [u8; 16],
    /// Name of the pool, UTF-8, padded with zeros.
    pub pool_name: [u8; NAME_BYTES_MAX],
    /// Grows by one with each write of a superblock; the greater valid copy is the true one.
    pub generation: U64,
    /// Life of the log; grows by one each time that the pool is opened for writing, before any
    /// record.
    pub epoch: U64,
    /// Index of this device in `devices`.
    pub device_index: U16,
    /// Devices of the pool.
    pub device_count: U16,
    /// Number of the next volume.
    pub volume_id_next: U32,
    /// Blocks of one segment.
    pub segment_blocks: U32,
    /// 1 after an orderly stop: nothing to roll forward beyond the checkpoint.
    pub clean: u8,
    /// Checkpoint area in use (0 or 1) or [`CHECKPOINT_NONE`].
    pub checkpoint_area: u8,
    /// Shards of the pool. One in this version.
    pub shard_count: U16,
    /// Bytes of one checkpoint area.
    pub checkpoint_area_bytes: U64,
    /// First byte of the first segment.
    pub segments_offset: U64,
    /// Generation of the checkpoint in use, repeated in each of its chunks.
    pub checkpoint_generation: U64,
    /// Blocks of the checkpoint in use.
    pub checkpoint_blocks: U64,
    /// Roll-forward starts behind this sequence number.
    pub checkpoint_seq: U64,
    /// Last dirty-class sequence number at `checkpoint_seq`.
    pub checkpoint_dseq: U64,
    /// Epoch in which the checkpoint was begun.
    pub checkpoint_epoch: U64,
    /// The checkpoint before, in the other area, with which a damaged one is replaced: its
    /// generation, or 0 for none.
    pub previous_generation: U64,
    /// As `checkpoint_blocks`, of the checkpoint before.
    pub previous_blocks: U64,
    /// As `checkpoint_seq`, of the checkpoint before.
    pub previous_seq: U64,
    /// As `checkpoint_dseq`, of the checkpoint before.
    pub previous_dseq: U64,
    /// As `checkpoint_epoch`, of the checkpoint before. Where it is another, the life that it is of
    /// ended at `checkpoint_dseq`.
    pub previous_epoch: U64,
    /// The devices of the pool.
    pub devices: [DeviceEntry; POOL_DEVICES_MAX],
    /// Blocks at the start of the checkpoint in use that hold the index. What follows is read
    /// first.
    pub checkpoint_index_blocks: U64,
    /// As `checkpoint_index_blocks`, of the checkpoint before.
    pub previous_index_blocks: U64,
    /// By device, where [`INCOMPAT_JOINED`] is set.
    pub joined: [JoinedEntry; POOL_DEVICES_MAX],
    /// Zero.
    pub reserved_tail: [u8; 2936],
}

const _: () = assert!(size_of::<Header>() == BLOCK_SIZE);
const _: () = assert!(size_of::<VolumeEntry>() == 256);
const _: () = assert!(size_of::<DeviceEntry>() == 32);
const _: () = assert!(BLOCK_SIZE + VOLUMES_MAX * size_of::<VolumeEntry>() == SUPERBLOCK_SIZE);
const _: () = assert!(std::mem::offset_of!(Header, crc) == CRC_FIELD);

/// A superblock in memory.
#[derive(Debug, Clone)]
pub struct Superblock {
    /// The first block.
    pub header: Header,
    /// The volumes in use, in any order.
    pub volumes: Vec<VolumeEntry>,
}

impl Superblock {
    /// Encodes one copy, with the checksum filled in, into [`SUPERBLOCK_SIZE`] bytes.
    pub fn encode(&self, out: &mut [u8]) {
        assert_eq!(out.len(), SUPERBLOCK_SIZE);
        assert!(self.volumes.len() <= VOLUMES_MAX);
        out.fill(0);
        let mut header = self.header;
        header.magic = MAGIC;
        header.version = U32::new(FORMAT_VERSION);
        header.crc = U32::new(0);
        out[..BLOCK_SIZE].copy_from_slice(header.as_bytes());
        let slots = out[BLOCK_SIZE..].chunks_exact_mut(size_of::<VolumeEntry>());
        for (slot, volume) in slots.zip(&self.volumes) {
            slot.copy_from_slice(VolumeEntry { used: 1, ..*volume }.as_bytes());
        }
        let crc = checksum_without(out, CRC_FIELD);
        out[CRC_FIELD..CRC_FIELD + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes one copy. A copy with read-only compatible features of a newer version is returned:
    /// ask [`Superblock::writable`] before the first write to the pool.
    ///
    /// # Errors
    /// Says whether the bytes are not ours, damaged, too new or impossible.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, FormatError> {
        assert_eq!(bytes.len(), SUPERBLOCK_SIZE);
        let header = Header::read_from_bytes(&bytes[..BLOCK_SIZE]).expect("one block");
        if header.magic != MAGIC {
            return Err(FormatError::NotOurs { what: WHAT });
        }
        if checksum_without(bytes, CRC_FIELD) != header.crc.get() {
            return Err(FormatError::Damaged { what: WHAT });
        }
        let version = header.version.get();
        if version > FORMAT_VERSION {
            return Err(FormatError::TooNewVersion { what: WHAT, version });
        }
        if (1..FORMAT_VERSION).contains(&version) {
            return Err(FormatError::TooOld { what: WHAT, version });
        }
        let missing = header.features_incompat.get() & !INCOMPAT_KNOWN;
        if missing != 0 {
            return Err(FormatError::TooNew { what: WHAT, missing });
        }
        check_values(&header)?;
        check_devices(&header)?;
        check_name(header.pool_name)?;
        let volumes = decode_volumes(&bytes[BLOCK_SIZE..])?;
        let next = header.volume_id_next.get();
        if next == 0 || volumes.iter().any(|volume| volume.id.get() >= next) {
            invalid("volume_id_next")?;
        }
        Ok(Superblock { header, volumes })
    }

    /// Whether this build may write to the pool.
    ///
    /// # Errors
    /// [`FormatError::ReadOnly`] if the pool has features that this build may read past but not
    /// write.
    pub fn writable(&self) -> Result<(), FormatError> {
        let missing = self.header.features_ro_compat.get() & !RO_COMPAT_KNOWN;
        match missing {
            0 => Ok(()),
            _ => Err(FormatError::ReadOnly { what: WHAT, missing }),
        }
    }

    /// A superblock of zeros, to fill in.
    pub fn empty() -> Superblock {
        let mut header = Header::new_zeroed();
        header.shard_count = U16::new(1);
        header.checkpoint_area = CHECKPOINT_NONE;
        header.volume_id_next = U32::new(1);
        Superblock { header, volumes: Vec::new() }
    }

    /// The layout of the device that this copy describes.
    pub fn layout(&self) -> Layout {
        let own = &self.header.devices[usize::from(self.header.device_index.get())];
        Layout {
            checkpoint_area_bytes: self.header.checkpoint_area_bytes.get(),
            segments_offset: self.header.segments_offset.get(),
            segment_blocks: self.header.segment_blocks.get(),
            segment_count: own.segment_count.get(),
        }
    }

    /// The greater valid copy of two, and what was wrong with a copy that was passed over.
    ///
    /// # Errors
    /// The first copy's error if neither is valid.
    pub fn choose(
        copies: [Result<Superblock, FormatError>; 2],
    ) -> Result<(Superblock, Option<FormatError>), FormatError> {
        match copies {
            [Ok(a), Ok(b)] => {
                let newer =
                    if a.header.generation.get() >= b.header.generation.get() { a } else { b };
                Ok((newer, None))
            }
            [Ok(a), Err(e)] | [Err(e), Ok(a)] => Ok((a, Some(e))),
            [Err(FormatError::NotOurs { .. }), Err(e)] => Err(e),
            [Err(e), Err(_)] => Err(e),
        }
    }
}

fn invalid(field: &'static str) -> Result<(), FormatError> {
    Err(FormatError::Invalid { what: WHAT, field })
}

fn check_name(name: [u8; NAME_BYTES_MAX]) -> Result<(), FormatError> {
    let name = RawName(name);
    name.checked().map(drop).ok_or(FormatError::BadName { what: WHAT, name })
}

/// Checks each value of the header on its own. After this and [`check_devices`], no arithmetic on
/// offsets and counts of the superblock can overflow.
/// What is counted up from one write, record or life to the next has room left: nobody gets near.
fn check_counters(header: &Header) -> Result<(), FormatError> {
    let counters = [
        ("generation", header.generation),
        ("epoch", header.epoch),
        ("checkpoint_generation", header.checkpoint_generation),
        ("checkpoint_seq", header.checkpoint_seq),
        ("checkpoint_dseq", header.checkpoint_dseq),
        ("checkpoint_epoch", header.checkpoint_epoch),
        ("previous_generation", header.previous_generation),
        ("previous_seq", header.previous_seq),
        ("previous_dseq", header.previous_dseq),
        ("previous_epoch", header.previous_epoch),
    ];
    let joined = header.joined.iter().flat_map(|it| [it.epoch, it.seq, it.checkpoint]);
    let mut counters = counters.into_iter().chain(joined.map(|value| ("joined", value)));
    match counters.find(|(_, value)| value.get() > COUNTER_MAX) {
        Some((field, _)) => invalid(field),
        None => Ok(()),
    }
}

fn check_values(header: &Header) -> Result<(), FormatError> {
    if header.version.get() == 0 {
        return invalid("version");
    }
    let count = usize::from(header.device_count.get());
    if count == 0 || count > POOL_DEVICES_MAX {
        return invalid("device_count");
    }
    if usize::from(header.device_index.get()) >= count {
        return invalid("device_index");
    }
    if !SEGMENT_BLOCKS.contains(&header.segment_blocks.get()) {
        return invalid("segment_blocks");
    }
    if header.shard_count.get() != 1 {
        return invalid("shard_count");
    }
    if header.clean > 1 {
        return invalid("clean");
    }
    if header.checkpoint_area > 1 && header.checkpoint_area != CHECKPOINT_NONE {
        return invalid("checkpoint_area");
    }
    check_counters(header)?;
    let area_blocks = header.checkpoint_area_bytes.get() / BLOCK_SIZE as u64;
    if !header.checkpoint_area_bytes.get().is_multiple_of(BLOCK_SIZE as u64) {
        return invalid("checkpoint_area_bytes");
    }
    if header.checkpoint_blocks.get() > area_blocks {
        return invalid("checkpoint_blocks");
    }
    if header.previous_blocks.get() > area_blocks {
        return invalid("previous_blocks");
    }
    if header.checkpoint_index_blocks.get() > header.checkpoint_blocks.get() {
        return invalid("checkpoint_index_blocks");
    }
    if header.previous_index_blocks.get() > header.previous_blocks.get() {
        return invalid("previous_index_blocks");
    }
    Ok(())
}

/// Checks that the parts of each device follow one another and fit the device, and that the numbers
/// of the pool's segments and slots fit their types.
fn check_devices(header: &Header) -> Result<(), FormatError> {
    let segment_bytes = u64::from(header.segment_blocks.get()) * BLOCK_SIZE as u64;
    let segments_offset = header.segments_offset.get();
    let areas = header.checkpoint_area_bytes.get().checked_mul(2);
    let areas_end = areas.and_then(|areas| areas.checked_add(CHECKPOINT_OFFSET));
    if areas_end.is_none_or(|end| end > segments_offset)
        || !segments_offset.is_multiple_of(BLOCK_SIZE as u64)
    {
        return invalid("segments_offset");
    }
    let mut total = 0_u64;
    for device in &header.devices[..usize::from(header.device_count.get())] {
        let segments = device.segment_count.get();
        if segments < SEGMENTS_MIN {
            return invalid("segment_count");
        }
        let end = segments_offset.checked_add(u64::from(segments) * segment_bytes);
        if end.is_none_or(|end| end > device.bytes.get()) {
            return invalid("segment_count");
        }
        total += u64::from(segments);
    }
    if total > u64::from(SEGMENTS_MAX)
        || total * u64::from(header.segment_blocks.get()) >= u64::from(u32::MAX)
    {
        return invalid("segment_count");
    }
    Ok(())
}

/// The volumes in use of a volume table.
fn decode_volumes(table: &[u8]) -> Result<Vec<VolumeEntry>, FormatError> {
    let mut volumes: Vec<VolumeEntry> = Vec::new();
    for slot in table.chunks_exact(size_of::<VolumeEntry>()) {
        let volume = VolumeEntry::read_from_bytes(slot).expect("256 bytes");
        match volume.used {
            0 => continue,
            1 => {}
            _ => invalid("volume used")?,
        }
        let is_number = (1..=VOLUME_ID_MAX).contains(&volume.id.get());
        if !is_number || volumes.iter().any(|other| other.id == volume.id) {
            invalid("volume id")?;
        }
        if !volume.bytes.get().is_multiple_of(SECTOR_SIZE as u64) {
            invalid("volume bytes")?;
        }
        if volume.bytes.get() > VOLUME_BYTES_MAX {
            invalid("volume bytes")?;
        }
        check_name(volume.name)?;
        if volumes.iter().any(|other| other.name == volume.name) {
            invalid("volume name")?;
        }
        volumes.push(volume);
    }
    Ok(volumes)
}

/// Copies `text` into a fixed field, cut at a character boundary, padded with zeros.
pub fn text_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let mut end = text.len().min(N);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    field[..end].copy_from_slice(&text.as_bytes()[..end]);
    field
}

/// The text in a fixed field, up to the first zero; what is not UTF-8 is replaced.
pub fn field_text(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// What a new pool is made of.
#[derive(Debug, Clone)]
pub struct PoolSpec {
    /// Name, at most 64 bytes.
    pub name: String,
    /// Identity, random.
    pub uuid: [u8; 16],
    /// Bytes and identity of each device.
    pub devices: Vec<(u64, [u8; 16])>,
    /// Blocks of one segment; `None` for what suits the size.
    pub segment_blocks: Option<u32>,
}

/// The superblocks of a new pool, one for each device.
///
/// # Errors
/// [`FormatError::TooSmall`] for a device that is too small, [`FormatError::Invalid`] for too many
/// devices or a pool beyond 2^32 slots (16 TiB).
pub fn new_pool(spec: &PoolSpec) -> Result<Vec<Superblock>, FormatError> {
    let invalid = |field| FormatError::Invalid { what: "pool", field };
    if spec.devices.is_empty() || spec.devices.len() > POOL_DEVICES_MAX {
        return Err(invalid("number of devices"));
    }
    let pool_bytes = spec.devices.iter().try_fold(0_u64, |sum, device| sum.checked_add(device.0));
    let fits = |bytes: &u64| bytes / (BLOCK_SIZE as u64) < u64::from(u32::MAX);
    let pool_bytes = pool_bytes.filter(fits).ok_or(invalid("size (more than 16 TiB)"))?;
    let segment_blocks =
        spec.segment_blocks.unwrap_or_else(|| Layout::segment_blocks_for(pool_bytes));
    if !SEGMENT_BLOCKS.contains(&segment_blocks) {
        return Err(invalid("segment size"));
    }
    let mut base = Superblock::empty();
    base.header.pool_uuid = spec.uuid;
    base.header.pool_name = text_field(&spec.name);
    base.header.generation = U64::new(1);
    base.header.device_count = U16::new(spec.devices.len() as u16);
    base.header.segment_blocks = U32::new(segment_blocks);
    base.header.clean = 1;
    for (entry, &(bytes, uuid)) in base.header.devices.iter_mut().zip(&spec.devices) {
        let layout = Layout::plan(bytes, pool_bytes, segment_blocks)?;
        *entry = DeviceEntry {
            uuid,
            away: U32::new(0),
            segment_count: U32::new(layout.segment_count),
            bytes: U64::new(bytes),
        };
        base.header.checkpoint_area_bytes = U64::new(layout.checkpoint_area_bytes);
        base.header.segments_offset = U64::new(layout.segments_offset);
    }
    let segments = base.header.devices.iter().map(|device| u64::from(device.segment_count.get()));
    if segments.sum::<u64>() > u64::from(SEGMENTS_MAX) {
        return Err(invalid("segment size (too small for so many bytes)"));
    }
    let of_device = |index: usize| {
        let mut copy = base.clone();
        copy.header.device_index = U16::new(index as u16);
        copy
    };
    Ok((0..spec.devices.len()).map(of_device).collect())
}

#[cfg(test)]
mod tests;
