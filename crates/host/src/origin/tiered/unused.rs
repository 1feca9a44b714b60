//! What of a device no tier uses (`--use 80%`), or used until it was removed: an SSD that knows
//! that writes faster, and lives longer.

use super::{Member, share_of};
use crate::device::Device;
use forebay_format::tier::EXTENT_SIZE;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// Bytes that are given back at a time: no device is kept busy for long by one call.
const PIECE_BYTES: u64 = 1 << 30;
/// What is not given back by then stays as it is: nobody waits longer, and somebody else may own
/// the device thereafter.
const LIMIT: Duration = Duration::from_secs(5);

/// A device from some offset to its end, which nobody writes.
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
        let offset = share_of(self.bytes(), use_percent).next_multiple_of(EXTENT_SIZE);
        Unused { device: Arc::clone(device), offset }.some()
    }
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = if self.offset == 0 { "all" } else { "the end" };
        let mebibytes = (self.device.info().bytes - self.offset) >> 20;
        write!(f, "{part} of {} ({mebibytes}M)", self.device.path().display())
    }
}

impl Unused {
    /// A device that is used no more; `None` where nobody cares.
    pub fn all(device: &Arc<Device>) -> Option<Unused> {
        Unused { device: Arc::clone(device), offset: 0 }.some()
    }

    fn some(self) -> Option<Unused> {
        let info = self.device.info();
        (self.offset < info.bytes && info.discard && !info.in_memory).then_some(self)
    }

    /// Tells the device that it may do with it what it likes: what is there is lost.
    ///
    /// # Errors
    /// The device cannot, or not all of it.
    pub fn give_back(self) -> io::Result<()> {
        let (mut at, end) = (self.offset, self.device.info().bytes);
        let begin = Instant::now();
        while at < end {
            if begin.elapsed() > LIMIT {
                let done = format!("{}M are done in {} s", at >> 20, LIMIT.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, done));
            }
            let len = PIECE_BYTES.min(end - at);
            self.device.discard(at, len)?;
            at += len;
        }
        Ok(())
    }
}
