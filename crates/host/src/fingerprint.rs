//! Which origin a volume was made for, so that another one is not served under its cached blocks.
//!
//! The content cannot tell: it changes with every write, also while the volume is not attached. So a
//! fingerprint holds what stays: for a block device a hash of its world-wide name or serial number (and
//! partition), for a file a hash of its inode and time of birth, for `ram:` a random number, and for all the
//! size. It tells another disk, a restored copy and a truncated file; that somebody wrote to the origin while
//! it was not served, [`crate::rest`] may tell.
//!
//! ```text
//! 0        1      8          16         32
//! | version | kind | zeros .. | bytes LE | hash (16 bytes) |
//! ```

use crate::device::Device;
use forebay_sys as sys;
use std::os::unix::fs::MetadataExt;

const VERSION: u8 = 1;

/// What the identity was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// Only the size counts: nothing else is known.
    Size = 0,
    /// World-wide name or serial number.
    Serial = 1,
    /// Inode and time of birth.
    Inode = 2,
    /// Random: another one each time.
    Instance = 3,
    /// The identity that the members of a tiered origin have in common.
    Set = 4,
}

/// Identity of an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    kind: Kind,
    bytes: u64,
    hash: [u8; 16],
}

/// Why an origin is not the one that the volume was made for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Smaller than the volume.
    #[error(
        "the origin shrank from {was} to {is} bytes; grow it back to at least {was} bytes, or remove \
         the volume, which gives up the part behind the end"
    )]
    Shrunk {
        /// Bytes when the volume was made.
        was: u64,
        /// Bytes now.
        is: u64,
    },
    /// Another device or file.
    #[error(
        "the origin is another {what} than the one this volume was made for; bring the right one back, \
         or remove the volume, which gives up what is dirty in the cache"
    )]
    Replaced {
        /// What it is.
        what: &'static str,
    },
}

impl Fingerprint {
    /// Identity of an open device that holds `bytes` for a volume.
    pub fn of_device(device: &Device) -> Fingerprint {
        let info = device.info();
        if let Some(serial) = &info.serial {
            let hash = hash(&[serial.as_bytes()]);
            return Fingerprint { kind: Kind::Serial, bytes: info.bytes, hash };
        }
        match info.is_block {
            true => Fingerprint { kind: Kind::Size, bytes: info.bytes, hash: [0; 16] },
            false => Fingerprint::of_file(device.file(), info.bytes),
        }
    }

    /// Identity of an open file that holds `bytes`.
    pub fn of_file(file: &std::fs::File, bytes: u64) -> Fingerprint {
        let Ok(metadata) = file.metadata() else {
            return Fingerprint { kind: Kind::Size, bytes, hash: [0; 16] };
        };
        // Where a file system knows no birth, the inode has to do.
        let born = metadata.created().ok();
        let born = born.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let born = born.map_or(0, |age| age.as_nanos());
        let hash = hash(&[&metadata.ino().to_le_bytes(), &born.to_le_bytes()]);
        Fingerprint { kind: Kind::Inode, bytes, hash }
    }

    /// Identity of an origin whose content ends with this process.
    pub fn of_instance(bytes: u64) -> Fingerprint {
        Fingerprint { kind: Kind::Instance, bytes, hash: sys::random() }
    }

    /// Identity of a tiered origin.
    pub fn of_set(set: [u8; 16], bytes: u64) -> Fingerprint {
        Fingerprint { kind: Kind::Set, bytes, hash: set }
    }

    /// As the superblock keeps it.
    pub fn encode(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[0] = VERSION;
        bytes[1] = self.kind as u8;
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..].copy_from_slice(&self.hash);
        bytes
    }

    /// From the superblock; `None` if another version wrote it, or nobody.
    pub fn decode(bytes: &[u8; 32]) -> Option<Fingerprint> {
        let kind = [Kind::Size, Kind::Serial, Kind::Inode, Kind::Instance, Kind::Set]
            .into_iter()
            .find(|&kind| kind as u8 == bytes[1]);
        let kind = kind.filter(|_| bytes[0] == VERSION)?;
        let size = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        let hash = bytes[16..].try_into().expect("sixteen bytes");
        Some(Fingerprint { kind, bytes: size, hash })
    }
}

/// Checks that the origin is the one whose fingerprint the superblock keeps. A greater one is: the volume
/// keeps its size. An unknown record is not held against it.
///
/// # Errors
/// Says what is wrong and what the choices are.
pub fn check(recorded: &[u8; 32], volume_bytes: u64, now: &Fingerprint) -> Result<(), Mismatch> {
    if now.bytes < volume_bytes {
        return Err(Mismatch::Shrunk { was: volume_bytes, is: now.bytes });
    }
    let Some(was) = Fingerprint::decode(recorded) else { return Ok(()) };
    let what = match (was.kind, now.kind) {
        (Kind::Size, _) | (_, Kind::Size) => return Ok(()),
        (_, Kind::Serial) => "device",
        (_, Kind::Inode) => "file",
        (_, Kind::Set) => "set of tiers",
        (_, Kind::Instance) => "RAM disk (its content ended with the last daemon)",
    };
    match was.kind == now.kind && was.hash == now.hash {
        true => Ok(()),
        false => Err(Mismatch::Replaced { what }),
    }
}

/// FNV-1a of 128 bits: stable over versions, and nobody attacks it.
pub(crate) fn hash(parts: &[&[u8]]) -> [u8; 16] {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = parts.iter().flat_map(|part| part.iter());
    let mix = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    bytes.fold(BASIS, mix).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Access, create_file};
    use tempfile::TempDir;

    fn of(path: &std::path::Path) -> Fingerprint {
        Fingerprint::of_device(&Device::open(path, Access::ReadOnly).unwrap())
    }

    #[test]
    fn a_file_is_known_again_after_writes_growth_and_a_move_but_not_its_copy() {
        let dir = TempDir::new().unwrap();
        let (path, moved, copy) =
            (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
        create_file(&path, 1 << 20).unwrap();
        let recorded = of(&path).encode();
        std::fs::write(&path, vec![1; 2 << 20]).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        assert_eq!(check(&recorded, 1 << 20, &of(&moved)), Ok(()));
        std::fs::copy(&moved, &copy).unwrap();
        let error = check(&recorded, 1 << 20, &of(&copy)).unwrap_err();
        assert_eq!(error, Mismatch::Replaced { what: "file" });
        assert!(error.to_string().contains("bring the right one back, or remove the volume"));
    }

    #[test]
    fn a_shrunken_origin_is_told_with_both_sizes() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("a");
        create_file(&path, 1 << 20).unwrap();
        let recorded = of(&path).encode();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let error = check(&recorded, 1 << 20, &of(&path)).unwrap_err().to_string();
        assert!(error.contains("shrank from 1048576 to 4096 bytes"), "{error}");
    }

    #[test]
    fn a_ram_disk_is_another_one_each_time_and_an_empty_record_fits_all() {
        let first = Fingerprint::of_instance(4096);
        assert_eq!(Fingerprint::decode(&first.encode()), Some(first));
        assert_eq!(check(&first.encode(), 4096, &first), Ok(()));
        assert!(check(&first.encode(), 4096, &Fingerprint::of_instance(4096)).is_err());
        assert_eq!(check(&[0; 32], 4096, &first), Ok(()));
    }
}
