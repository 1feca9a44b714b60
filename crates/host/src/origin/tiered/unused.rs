//! What of a device no tier uses (`--use 80%`): an SSD that knows that writes faster, and lives
//! longer.

use super::{Member, share_of};
use crate::device::Device;
use forebay_format::tier::EXTENT_SIZE;
use std::sync::Arc;
use std::{fmt, io};

/// Bytes that are given back at a time: no device is kept busy for long by one call.
const PIECE_BYTES: u64 = 1 << 30;

/// The end of a device, which nobody writes.
#[derive(Debug)]
pub struct Unused {
    device: Arc<Device>,
    offset: u64,
}

impl Member {
    /// What is left of it where so many percent are used; `None` where that is nothing, or where
    /// nobody cares.
    pub fn unused(&self, use_percent: u8) -> Option<Unused> {
        let Member::File(device) = self else { return None };
        let (bytes, info) = (self.bytes(), device.info());
        let offset = share_of(bytes, use_percent).next_multiple_of(EXTENT_SIZE);
        let is_any = offset < bytes && info.discard && !info.in_memory;
        is_any.then(|| Unused { device: Arc::clone(device), offset })
    }
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = (self.device.info().bytes - self.offset) >> 20;
        write!(f, "the end of {} ({mebibytes}M)", self.device.path().display())
    }
}

impl Unused {
    /// Tells the device that it may do with it what it likes: what is there is lost.
    ///
    /// # Errors
    /// The device cannot, or not all of it.
    pub fn give_back(self) -> io::Result<()> {
        let (mut at, end) = (self.offset, self.device.info().bytes);
        while at < end {
            let len = PIECE_BYTES.min(end - at);
            self.device.discard(at, len)?;
            at += len;
        }
        Ok(())
    }
}
