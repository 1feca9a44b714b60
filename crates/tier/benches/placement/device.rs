//! Devices in virtual time.

use forebay_format::io::Time;

/// Blocks that are moved from or to a disk at a time.
pub const PIECE_OF_DISK: u32 = 64;
const DISK_FLUSH: Time = 80_000_000;
pub const SECOND: Time = 1_000_000_000;

/// A device that does one thing after the other.
pub struct Device {
    latency: Time,
    bytes_per_s: u64,
    seeks: bool,
    free_at: Time,
    head: u64,
    /// Something was written since the last FLUSH.
    is_dirty: bool,
}

impl Device {
    pub fn ssd() -> Device {
        Device {
            latency: 100_000,
            bytes_per_s: 500_000_000,
            seeks: false,
            free_at: 0,
            head: 0,
            is_dirty: false,
        }
    }

    pub fn disk() -> Device {
        Device {
            latency: 8_000_000,
            bytes_per_s: 150_000_000,
            seeks: true,
            free_at: 0,
            head: 0,
            is_dirty: false,
        }
    }

    pub fn take(&mut self, now: Time, offset: u64, len: u64) -> Time {
        let transfer = len * 1_000_000_000 / self.bytes_per_s;
        let seek = if self.seeks && self.head != offset { self.latency } else { 0 };
        self.free_at = self.free_at.max(now) + seek + transfer;
        self.head = offset + len;
        self.free_at + if self.seeks { 0 } else { self.latency }
    }

    pub fn write(&mut self, now: Time, offset: u64, len: u64) -> Time {
        self.is_dirty = true;
        self.take(now, offset, len)
    }

    pub fn flush(&mut self, now: Time) -> Time {
        if self.seeks && std::mem::take(&mut self.is_dirty) {
            self.free_at = self.free_at.max(now) + DISK_FLUSH;
            return self.free_at;
        }
        now
    }
}
