//! Devices that took the place of another one: what the log and its checkpoints hold that they do
//! not.

use super::{DeviceEntry, Header};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Incompatible feature: a device was replaced, and `joined` says what it does not hold.
pub const INCOMPAT_JOINED: u64 = 1;

/// From when on a device holds what it should, where it took the place of another one.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct JoinedEntry {
    /// Life of the log in which it was taken in; 0: it is there since the pool was made.
    pub epoch: U64,
    /// Records up to this sequence number are not on it.
    pub seq: U64,
    /// Nor are checkpoints up to this generation.
    pub checkpoint: U64,
}

const _: () = assert!(size_of::<JoinedEntry>() == 24);

impl Header {
    /// From when on a device holds what it should. `None`: since the pool was made.
    pub fn joined(&self, device: usize) -> Option<JoinedEntry> {
        let known = self.features_incompat.get() & INCOMPAT_JOINED != 0;
        self.joined.get(device).copied().filter(|it| known && it.epoch.get() > 0)
    }

    /// A device has another one's place.
    pub fn join(&mut self, device: usize, entry: DeviceEntry, joined: JoinedEntry) {
        (self.devices[device], self.joined[device]) = (entry, joined);
        self.features_incompat = U64::new(self.features_incompat.get() | INCOMPAT_JOINED);
    }
}
