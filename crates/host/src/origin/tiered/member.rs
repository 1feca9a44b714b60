//! The members of a tiered origin: files, block devices, modelled disks, and memory.

use super::super::spindle::Spindle;
use super::super::{Origin, OriginError};
use super::TieredError;
use crate::device::{Access, Device, DeviceError};
use forebay_engine::{Buf, Completion, IoError, OpId};
use forebay_format::BLOCK_SIZE;
use forebay_format::tier::{SUPERBLOCK_OFFSETS, Superblock};
use forebay_sys as sys;
use forebay_tier::{Effect, MemberSettings};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Blocks that are copied at a time: what turns is read and written in long pieces.
const PIECE_BLOCKS_ROTATIONAL: u32 = 64;
/// On what seeks at once short pieces keep others waiting less.
const PIECE_BLOCKS: u32 = 4;

/// What there is to say of a member that is not there.
pub(super) const ABSENT: MemberSettings = MemberSettings {
    is_here: false,
    volatile_cache: true,
    discards: false,
    piece_blocks: PIECE_BLOCKS,
    stripe_blocks: 0,
};

/// A device of a tier.
#[derive(Debug)]
pub enum Member {
    /// A file, a block device, or a file in memory.
    File(Arc<Device>),
    /// A modelled hard disk.
    Spindle(Box<Spindle>),
}

impl Member {
    /// Opens what a URI names, for us alone: a path or `spindle:PATH?preset=NAME`.
    ///
    /// # Errors
    /// As [`Origin::open`].
    pub fn open(uri: &str) -> Result<Member, OriginError> {
        match Origin::open(uri)? {
            Origin::File(device) => Ok(Member::File(device)),
            Origin::Spindle(spindle, _) => Ok(Member::Spindle(spindle)),
            _ => Err(OriginError::Tiered(TieredError::Create(format!(
                "{uri} is no device of a tier; give a path, ram:SIZE or spindle:PATH?preset=NAME"
            )))),
        }
    }

    /// Reserves memory for a tier: a file in memory, which ends when nobody holds it open.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn memory(bytes: u64) -> Result<OwnedFd, OriginError> {
        let memory = sys::file::memory_file(bytes);
        let memory = memory.map_err(|e| DeviceError::system(Path::new("memory"), "reserve", e))?;
        Ok(memory.into())
    }

    /// Opens memory that was reserved, for us alone.
    ///
    /// # Errors
    /// Somebody else uses it.
    pub fn of_memory(memory: BorrowedFd) -> Result<Member, OriginError> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
        Ok(Member::File(Arc::new(Device::open(&path, Access::Exclusive)?)))
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Member::File(device) => device.info().bytes,
            Member::Spindle(spindle) => spindle.bytes(),
        }
    }

    /// Bytes that it was cut to while it was in use.
    pub(super) fn cut_to(&self) -> Option<u64> {
        match self {
            Member::File(device) => device.cut_to(),
            Member::Spindle(_) => None,
        }
    }

    /// Whether its content ends with the machine.
    pub fn is_volatile(&self) -> bool {
        matches!(self, Member::File(device) if device.info().in_memory)
    }

    /// Bytes that I/O on it must be a multiple of.
    pub fn sector_bytes(&self) -> u32 {
        match self {
            Member::File(device) => device.info().logical_block_bytes,
            Member::Spindle(_) => 512,
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        match self {
            // Memory has no name but its size.
            Member::File(device) if device.path().starts_with("/proc/self/fd") => {
                PathBuf::from(format!("ram:{}", device.info().bytes))
            }
            Member::File(device) => device.path().to_owned(),
            Member::Spindle(_) => PathBuf::from("a modelled disk"),
        }
    }

    pub(super) fn file(&self, offset: u64, len: u64) -> &File {
        match self {
            Member::File(device) => device.file_for(offset, len),
            Member::Spindle(spindle) => spindle.file(),
        }
    }

    pub(super) fn settings(&self) -> MemberSettings {
        let rotational = match self {
            Member::File(device) => device.info().rotational,
            Member::Spindle(_) => true,
        };
        MemberSettings {
            is_here: true,
            volatile_cache: match self {
                Member::File(device) => device.needs_flush(),
                Member::Spindle(spindle) => spindle.volatile_cache(),
            },
            discards: matches!(self, Member::File(device) if device.info().discard),
            piece_blocks: if rotational { PIECE_BLOCKS_ROTATIONAL } else { PIECE_BLOCKS },
            stripe_blocks: match self {
                Member::File(device) => device.info().stripe_blocks,
                Member::Spindle(_) => 0,
            },
        }
    }

    /// The newest of its superblocks, if it has one. A copy that cannot be read is as one that is
    /// damaged: the other one counts.
    ///
    /// # Errors
    /// Neither can be read.
    pub fn superblock(&self) -> Result<Option<Superblock>, TieredError> {
        let mut copies = SUPERBLOCK_OFFSETS.map(|offset| (offset, Buf::zeroed(BLOCK_SIZE)));
        if self.bytes() < SUPERBLOCK_OFFSETS[1] + BLOCK_SIZE as u64 {
            return Ok(None);
        }
        let mut errors = Vec::new();
        for (offset, buf) in &mut copies {
            let file = self.file(*offset, BLOCK_SIZE as u64);
            if let Err(source) = file.read_exact_at(buf.bytes_mut(), *offset) {
                buf.bytes_mut().fill(0);
                errors.push(source);
            }
        }
        if errors.len() == copies.len() {
            let source = errors.swap_remove(0);
            return Err(TieredError::Read { path: self.path(), source });
        }
        let [one, other] = &copies;
        Ok(Superblock::newest_of([one.1.bytes(), other.1.bytes()]).ok())
    }

    /// Writes a superblock, in both places, durably.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write_superblock(&self, superblock: &Superblock) -> Result<(), TieredError> {
        let mut buf = Buf::zeroed(BLOCK_SIZE);
        superblock.encode(buf.bytes_mut());
        self.write_both(&buf)
    }

    /// Writes zeros where the superblocks were: it belongs to no set any more.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn forget(&self) -> Result<(), TieredError> {
        self.write_both(&Buf::zeroed(BLOCK_SIZE))
    }

    fn write_both(&self, buf: &Buf) -> Result<(), TieredError> {
        let write = |offset: u64| {
            self.file(offset, BLOCK_SIZE as u64).write_all_at(buf.bytes(), offset)?;
            self.file(0, 0).sync_data()
        };
        let written = SUPERBLOCK_OFFSETS.into_iter().try_for_each(write);
        written.map_err(|source| TieredError::Write { path: self.path(), source })
    }

    pub(super) fn perform(&self, effect: Effect) -> Option<(OpId, Completion)> {
        let (op, result, buf) = match effect {
            Effect::Read { op, offset, mut buf, .. } => {
                let file = self.file(offset, buf.len() as u64);
                (op, file.read_exact_at(buf.bytes_mut(), offset), buf)
            }
            Effect::Write { op, offset, buf, .. } => {
                let file = self.file(offset, buf.len() as u64);
                (op, file.write_all_at(buf.bytes(), offset), buf)
            }
            Effect::Flush { op, .. } => (op, self.file(0, 0).sync_data(), Buf::empty()),
            Effect::Discard { op, .. } => (op, Ok(()), Buf::empty()),
            _ => return None,
        };
        let result = result.map_err(|_| IoError::Io);
        Some((op, Completion { result, buf }))
    }
}
