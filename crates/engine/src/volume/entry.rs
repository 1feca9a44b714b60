//! A volume's entry in the superblock: whether it is there, and how large it is. What is being
//! changed does not count before the superblock says so durably (I14).

use crate::event::{VolumeId, VolumeSpec};
use crate::ids::Key;
use crate::settings::OriginSettings;
use crate::volume::Volume;
use forebay_format::BLOCK_SIZE;
use forebay_format::mode::Mode;
use forebay_format::superblock::{VolumeEntry, field_text, text_field};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

/// Who a volume is: that never changes.
#[derive(Debug)]
pub(crate) struct Identity {
    /// Its name.
    pub(crate) name: String,
    /// URI of the origin.
    pub(crate) origin: String,
    /// Identity.
    pub(crate) uuid: [u8; 16],
    /// Identity of the origin.
    pub(crate) fingerprint: [u8; 32],
}

/// Whether a volume is in the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It will be.
    Adding,
    /// It is.
    There,
    /// It will not be any more.
    Removing,
}

/// How large a volume is.
#[derive(Debug)]
pub(super) struct Size {
    /// In bytes.
    bytes: u64,
    /// What is being written to the superblock.
    growing: Option<u64>,
}

impl Size {
    pub(super) fn new(bytes: u64) -> Size {
        Size { bytes, growing: None }
    }
}

impl Volume {
    /// A volume of the superblock; `None` for a mode that this version does not know.
    pub(crate) fn of_entry(
        entry: &VolumeEntry,
        base: Key,
        origin: Option<&OriginSettings>,
    ) -> Option<Volume> {
        let spec = VolumeSpec {
            name: field_text(&entry.name),
            origin: field_text(&entry.origin),
            bytes: entry.bytes.get(),
            uuid: entry.uuid,
            fingerprint: entry.fingerprint,
            mode: Mode::from_raw(entry.mode)?,
            volatile_cache: origin.is_none_or(|origin| origin.volatile_cache),
            // A pool that outlives its process caches.
            exact_flushes: false,
            stripe_blocks: origin.map_or(0, |origin| origin.stripe_blocks),
        };
        let mut volume = Volume::new(VolumeId(entry.id.get()), spec, base);
        if origin.is_none_or(|origin| !origin.present) {
            volume.service.origin_is_missing();
        }
        Some(volume)
    }

    /// The volume's entry in the superblock.
    pub(crate) fn entry(&self) -> VolumeEntry {
        let mut entry = VolumeEntry::new_zeroed();
        entry.id = U32::new(self.id.0);
        entry.used = 1;
        entry.mode = self.mode as u8;
        entry.bytes = U64::new(self.size.growing.unwrap_or(self.size.bytes));
        entry.uuid = self.identity.uuid;
        entry.name = text_field(&self.identity.name);
        entry.fingerprint = self.identity.fingerprint;
        entry.origin = text_field(&self.identity.origin);
        entry
    }

    /// The superblock has it.
    pub(crate) fn added(&mut self) {
        self.life = Life::There;
    }

    /// It leaves the superblock, and its task with that is over.
    pub(crate) fn removal_begins(&mut self) {
        self.life = Life::Removing;
        self.task_ends();
    }

    /// Whether it left the superblock nobody knows; here it goes on.
    pub(crate) fn removal_failed(&mut self) {
        self.life = Life::There;
    }

    /// Whether it is in the superblock, and stays there.
    pub(crate) fn is_there(&self) -> bool {
        self.life == Life::There
    }

    /// Whether it leaves, or has left, the superblock.
    pub(crate) fn is_leaving(&self) -> bool {
        self.life == Life::Removing
    }

    /// Whether what the superblock says of it is being changed, but for the mode.
    pub(crate) fn is_changing(&self) -> bool {
        !self.is_there() || self.size.growing.is_some()
    }

    /// It is to have so many bytes.
    pub(crate) fn grows(&mut self, bytes: u64) {
        self.size.growing = Some(bytes);
    }

    /// Its origin has another name.
    pub(crate) fn origin_is_called(&mut self, origin: String) {
        self.identity.origin = origin;
    }

    /// It has them, if it was to have more. Whether it was.
    pub(crate) fn grown(&mut self) -> bool {
        let grown = self.size.growing.take();
        self.size.bytes = grown.unwrap_or(self.size.bytes);
        grown.is_some()
    }

    /// It stays as large as it is.
    pub(crate) fn growth_failed(&mut self) {
        self.size.growing = None;
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.size.bytes
    }

    /// The first and last key of a stretch, both in bytes.
    pub(crate) fn span(&self, offset: u64, len: u64) -> (Key, Key) {
        let block_bytes = BLOCK_SIZE as u64;
        let last = self.base + (offset + len.max(1) - 1) / block_bytes;
        (self.base + offset / block_bytes, last)
    }

    /// Blocks, the last of which may be cut short.
    pub(crate) fn blocks(&self) -> u64 {
        self.size.bytes.div_ceil(BLOCK_SIZE as u64)
    }

    /// The keys that are its own: from the first, up to this one.
    pub(crate) fn keys(&self) -> (Key, Key) {
        let bytes = self.size.growing.unwrap_or(self.size.bytes);
        (self.base, self.base + bytes.div_ceil(BLOCK_SIZE as u64))
    }
}
