//! How clients reach a volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub mod fuse;
pub mod nbd;
pub mod nbd_kernel;
pub(crate) mod port;
pub mod ublk;
pub mod vhost;

/// The size of a volume in bytes, a multiple of 512: one number for all front ends that show it, so
/// that each knows when the volume has grown.
#[derive(Debug, Clone)]
pub struct VolumeBytes(Arc<AtomicU64>);

impl VolumeBytes {
    /// For the front ends of one volume.
    pub fn new(bytes: u64) -> VolumeBytes {
        assert!(bytes.is_multiple_of(512));
        VolumeBytes(Arc::new(AtomicU64::new(bytes)))
    }

    /// The size now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The volume has grown: the engine takes requests up to here.
    pub fn grow(&self, bytes: u64) {
        assert!(bytes.is_multiple_of(512));
        self.0.fetch_max(bytes, Ordering::Relaxed);
    }
}
