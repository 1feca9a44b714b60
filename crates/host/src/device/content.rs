//! What is on a device, so that nothing is overwritten by mistake.

mod sectors;
mod signatures;

pub use sectors::has_small_sectors;

use super::{Access, Device, DeviceError};
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::superblock::{MAGIC, SUPERBLOCK_SIZE, Superblock, field_text};
use forebay_format::{BLOCK_SIZE, tier};
use forebay_sys as sys;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes at the start of a device in which known owners leave their marks.
const HEAD_BYTES: usize = 1 << 20;
/// Bytes at the end of a device in which known owners leave their marks.
const TAIL_BYTES: usize = 256 << 10;
/// Blocks between head and tail that are looked at for unknown data.
const SAMPLES: u64 = 256;

/// What is on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Nothing but zeros where we looked: head, tail and a sample between.
    Empty,
    /// A device of a Forebay pool.
    Pool {
        /// Name of the pool; empty if both superblock copies are damaged.
        name: String,
        /// Identity of the pool.
        uuid: [u8; 16],
        /// Index of the device in the pool.
        index: u16,
        /// Devices of the pool.
        count: u16,
    },
    /// A member of a tiered volume.
    Tier {
        /// Name of the volume; empty if both superblock copies are damaged.
        name: String,
        /// Identity of the set of its members.
        set: [u8; 16],
        /// The number of the member.
        member: u8,
    },
    /// A file system, partition table or volume manager, as in "ext4 file system, label x".
    Known(String),
    /// Data that we cannot name.
    Unknown,
}

impl Content {
    /// Whether the device may be written over without being told twice.
    pub fn is_empty(&self) -> bool {
        *self == Content::Empty
    }
}

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Content::Empty => f.write_str("nothing"),
            Content::Pool { name, .. } if name.is_empty() => {
                f.write_str("a Forebay pool whose superblocks are damaged")
            }
            Content::Pool { name, uuid, index, count } => write!(
                f,
                "Forebay pool \"{name}\" (uuid {}, device {} of {count})",
                uuid_text(uuid),
                index + 1
            ),
            Content::Tier { name, .. } if name.is_empty() => {
                f.write_str("a member of a tiered volume whose superblocks are damaged")
            }
            Content::Tier { name, set, member } => {
                write!(f, "member {member} of tiered volume \"{name}\" (uuid {})", uuid_text(set))
            }
            Content::Known(what) => f.write_str(what),
            Content::Unknown => f.write_str("unknown data (not zeros)"),
        }
    }
}

/// A uuid as people write it.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Says what is on the file or block device at `path`. Reads only, and takes no lock.
///
/// # Errors
/// It cannot be opened or read.
pub fn identify(path: &Path) -> Result<Content, DeviceError> {
    let device = Device::open(path, Access::ReadOnly)?;
    identify_device(&device).map_err(|e| DeviceError::system(path, "read", e))
}

/// Says what is on an open device.
///
/// # Errors
/// If the device cannot be read.
pub fn identify_device(device: &Device) -> io::Result<Content> {
    // Direct I/O would want aligned memory and a size that is a multiple of the block size.
    let file = File::open(device.path())?;
    let bytes = device.info().bytes;
    let head = read_range(&file, 0, bytes.min(HEAD_BYTES as u64))?;
    let tail_start = bytes.saturating_sub(TAIL_BYTES as u64);
    let tail = read_range(&file, tail_start, bytes - tail_start)?;
    if let Some(pool) = pool_on(&head) {
        return Ok(pool);
    }
    if let Some(member) = tier_on(&head) {
        return Ok(member);
    }
    if let Some(what) = signatures::find(&head, &tail, bytes) {
        return Ok(Content::Known(what));
    }
    let zeros = is_zero(&head) && is_zero(&tail) && middle_is_zero(&file, bytes)?;
    Ok(if zeros { Content::Empty } else { Content::Unknown })
}

fn pool_on(head: &[u8]) -> Option<Content> {
    let copies = SUPERBLOCK_OFFSETS.map(|offset| {
        let start = offset as usize;
        head.get(start..start + SUPERBLOCK_SIZE)
    });
    let valid = copies.map(|copy| copy.and_then(|copy| Superblock::decode(copy).ok()));
    let newest = valid.into_iter().flatten().max_by_key(|copy| copy.header.generation.get());
    if let Some(superblock) = newest {
        let header = &superblock.header;
        return Some(Content::Pool {
            name: field_text(&header.pool_name),
            uuid: header.pool_uuid,
            index: header.device_index.get(),
            count: header.device_count.get(),
        });
    }
    let marked = copies.into_iter().flatten().any(|copy| copy.starts_with(&MAGIC));
    marked.then(|| Content::Pool { name: String::new(), uuid: [0; 16], index: 0, count: 0 })
}

fn tier_on(head: &[u8]) -> Option<Content> {
    let copies = tier::SUPERBLOCK_OFFSETS.map(|offset| {
        let start = offset as usize;
        head.get(start..start + BLOCK_SIZE)
    });
    let valid = copies.map(|copy| copy.and_then(|copy| tier::Superblock::decode(copy).ok()));
    let newest = valid.into_iter().flatten().max_by_key(|copy| copy.block.generation.get());
    if let Some(superblock) = newest {
        let block = &superblock.block;
        let (name, set, member) = (field_text(&block.name), block.set, block.member);
        return Some(Content::Tier { name, set, member });
    }
    let marked = copies.into_iter().flatten().any(|copy| copy.starts_with(&tier::MAGIC));
    marked.then(|| Content::Tier { name: String::new(), set: [0; 16], member: 0 })
}

fn middle_is_zero(file: &File, bytes: u64) -> io::Result<bool> {
    // A sparse file tells where its data is.
    if let Ok(None) = sys::file::seek_data(file, 0) {
        return Ok(true);
    }
    let step = (bytes / SAMPLES).max(4096) & !4095;
    for offset in (0..bytes).step_by(step as usize) {
        if !is_zero(&read_range(file, offset, 4096.min(bytes - offset))?) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn read_range(file: &File, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
