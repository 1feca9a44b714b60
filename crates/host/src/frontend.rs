//! How clients reach a volume.
#![forbid(unsafe_code)]

use forebay_format::{BLOCK_SIZE, SECTOR_SIZE};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub mod fuse;
pub mod nbd;
pub mod nbd_kernel;
pub(crate) mod port;
pub mod ublk;
pub mod vhost;

/// What all addresses and lengths of clients are multiples of, in bytes.
pub const SECTOR_BYTES: u64 = SECTOR_SIZE as u64;
/// Bytes of a sector of a block device whose size and users allow that.
const LARGE_SECTOR_BYTES: u64 = BLOCK_SIZE as u64;

/// Bytes of a sector of the block device that a volume of so many bytes is shown as. `small`:
/// somebody needs small ones, whatever the size is.
pub fn sector_bytes(bytes: u64, small: bool) -> u64 {
    let large = bytes.is_multiple_of(LARGE_SECTOR_BYTES) && !small;
    if large { LARGE_SECTOR_BYTES } else { SECTOR_BYTES }
}

/// The size of a volume in bytes, a multiple of 512: one number for all front ends that show it, so
/// that each knows when the volume has grown.
#[derive(Debug, Clone)]
pub struct VolumeBytes(Arc<AtomicU64>);

impl VolumeBytes {
    /// For the front ends of one volume.
    pub fn new(bytes: u64) -> VolumeBytes {
        assert!(bytes.is_multiple_of(SECTOR_BYTES));
        VolumeBytes(Arc::new(AtomicU64::new(bytes)))
    }

    /// The size now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The volume has grown: the engine takes requests up to here.
    pub fn grow(&self, bytes: u64) {
        assert!(bytes.is_multiple_of(SECTOR_BYTES));
        self.0.fetch_max(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_large_where_nothing_speaks_against_it() {
        assert_eq!(sector_bytes(1 << 20, false), 4096);
        assert_eq!(sector_bytes(1 << 20, true), 512);
        assert_eq!(sector_bytes((1 << 20) + 512, false), 512);
    }
}
