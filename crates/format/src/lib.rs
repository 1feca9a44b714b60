//! What is on the devices, byte for byte. `docs/format.md` draws it; this crate is the source.
//!
//! Nothing here performs I/O or decides anything: bytes in, values out, and an error that says what
//! is wrong with the bytes. Every structure carries a magic number, a version and a checksum, and
//! says what it protects against.
//!
//! Beside the bytes are words that the engine and the daemon's replies share: names, modes,
//! counters.
#![forbid(unsafe_code)]

mod address;
pub mod checkpoint;
pub mod io;
pub mod layout;
pub mod mode;
pub mod name;
pub mod pairing;
pub mod record;
pub mod standing;
pub mod stats;
pub mod superblock;
pub mod tier;

pub use address::{Address, VOLUME_ID_MAX};
pub use layout::Layout;
pub use pairing::Pairing;

/// Unit of caching, in bytes.
pub const BLOCK_SIZE: usize = 4096;
/// Unit of addressing of clients and of the crash model, in bytes.
pub const SECTOR_SIZE: usize = 512;
/// Sectors in a block; one bit each in a sector mask.
pub const SECTORS_PER_BLOCK: usize = BLOCK_SIZE / SECTOR_SIZE;
/// The sector mask of a block that is valid as a whole.
pub const MASK_FULL: u8 = 0xff;
/// Most cache devices in one pool.
pub const POOL_DEVICES_MAX: usize = 16;
/// Version of the format that this build writes.
pub const FORMAT_VERSION: u32 = 5;

/// CRC-32C (Castagnoli) of `bytes`.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Checksum of a structure whose own checksum field, the four bytes at `field`, counts as zero.
pub(crate) fn checksum_without(bytes: &[u8], field: usize) -> u32 {
    let head = crc32c::crc32c(&bytes[..field]);
    let head = crc32c::crc32c_append(head, &[0; 4]);
    crc32c::crc32c_append(head, &bytes[field + 4..])
}

/// Why bytes were not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The magic number is not ours: another owner's data, or never written.
    #[error("no Forebay {what} here (magic number missing)")]
    NotOurs {
        /// The structure that was expected.
        what: &'static str,
    },
    /// The checksum does not match: torn, rotten or overwritten.
    #[error("the {what} is damaged (checksum mismatch)")]
    Damaged {
        /// The structure that was expected.
        what: &'static str,
    },
    /// Written by a newer version, with a feature that this build does not know.
    #[error(
        "the {what} needs features {missing:#x} that this version does not have; \
         use a newer Forebay"
    )]
    TooNew {
        /// The structure that was expected.
        what: &'static str,
        /// The feature bits that are not known here.
        missing: u64,
    },
    /// Written by a newer version in a format that this build does not know.
    #[error("the {what} has format version {version}, newer than this build; use a newer Forebay")]
    TooNewVersion {
        /// The structure that was expected.
        what: &'static str,
        /// The version that was found.
        version: u32,
    },
    /// Written by a version before the first release, in a format that no release reads.
    #[error(
        "the {what} has format version {version} of a build before the first release; make the \
         pool anew (dirty data that it holds needs that build)"
    )]
    TooOld {
        /// The structure that was expected.
        what: &'static str,
        /// The version that was found.
        version: u32,
    },
    /// Written by a newer version, with a feature past which this build can read but not write.
    #[error(
        "the {what} has features {missing:#x} that this version must not write to; \
         open it read-only or use a newer Forebay"
    )]
    ReadOnly {
        /// The structure that was expected.
        what: &'static str,
        /// The feature bits that are not known here.
        missing: u64,
    },
    /// The checksum matches but a value makes no sense.
    #[error("the {what} has an impossible value: {field}")]
    Invalid {
        /// The structure that was expected.
        what: &'static str,
        /// The field that is out of range.
        field: &'static str,
    },
    /// The checksum matches, but a name is none that Forebay gives.
    #[error(
        "the {what} has the name {name:?}, which Forebay gives to nothing: somebody made or \
         changed it by other means. Do not use this device unless you know who did; \
         forebay pool create NAME DEVICE --force makes it anew, without what it holds"
    )]
    BadName {
        /// The structure that was expected.
        what: &'static str,
        /// The name.
        name: name::RawName,
    },
    /// The device cannot hold a pool.
    #[error(
        "a cache device needs at least {needed} bytes with this segment size, \
         and this one has {have}"
    )]
    TooSmall {
        /// Bytes needed.
        needed: u64,
        /// Bytes that there are.
        have: u64,
    },
}
