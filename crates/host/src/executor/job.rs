//! One I/O on a file or block device, and how it is done with plain system calls.

use super::goal::Goal;
use crate::device::{Device, PUNCH};
use forebay_engine::Distrust;
use forebay_engine::{Buf, IoError, OpId, Time};
use forebay_sys as sys;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of zeros written in one call where a device cannot zero by itself.
const ZEROS_BYTES: usize = 256 << 10;
/// `fallocate` modes: give the space back, zero in place; neither changes the size.
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Work {
    Read,
    Write,
    Flush,
    Zero {
        len: u64,
        unmap: bool,
    },
    Discard {
        len: u64,
    },
    /// Write down what to distrust, in this file.
    Distrust {
        file: PathBuf,
        note: Distrust,
    },
}

/// One I/O under way.
#[derive(Debug)]
pub(super) struct Job {
    pub op: OpId,
    /// Who asked uses the numbers of operations again; this one is not.
    pub number: u64,
    pub goal: Goal,
    /// `None` for work without a device.
    pub device: Option<Arc<Device>>,
    pub work: Work,
    pub offset: u64,
    /// Bytes of the I/O.
    pub len: u64,
    /// Its data, while no other has it: the ring, or whoever writes it.
    pub buf: Buf,
    /// Bytes of the buffer that are through.
    pub done: usize,
    /// Times that the kernel wanted it tried again.
    pub tries: u32,
    /// Looks at it since the ring has it.
    pub looks: u32,
    pub started: Time,
    /// When the device was given it, if it was in line.
    pub given: Option<Time>,
    /// Whether its slowness was told.
    pub told: bool,
    /// The engine was told that it failed, and has another buffer in the place of this one. The
    /// kernel may still use this one: it lives until the I/O has ended.
    pub given_up: bool,
}

impl Job {
    /// What it is, for messages.
    pub fn verb(&self) -> &'static str {
        match self.work {
            Work::Read => "read",
            Work::Write => "write",
            Work::Flush => "flush",
            Work::Zero { .. } => "zero",
            Work::Discard { .. } => "discard",
            Work::Distrust { .. } => "write the distrust note",
        }
    }

    /// Does the work from start to end on this thread. `data` is what is to be written.
    pub fn perform(&mut self, data: &[u8]) -> io::Result<()> {
        if let Work::Distrust { file, note } = &self.work {
            return super::distrust::write(file, note);
        }
        let device = Arc::clone(self.device.as_ref().expect("work on a device has one"));
        let (offset, len) = (self.offset, self.len);
        let file = device.file_for(offset, len);
        match self.work {
            Work::Read => file.read_exact_at(self.buf.bytes_mut(), offset),
            Work::Write => file.write_all_at(data, offset),
            Work::Flush => device.file().sync_data(),
            Work::Zero { unmap: true, .. } => {
                sys::file::fallocate(device.file(), PUNCH, offset, len)
            }
            Work::Zero { unmap: false, .. } => zero(&device, offset, len),
            Work::Discard { .. } => device.discard(offset, len),
            Work::Distrust { .. } => unreachable!("done above"),
        }
    }
}

fn unsupported(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV))
}

fn zero(device: &Device, offset: u64, len: u64) -> io::Result<()> {
    match sys::file::fallocate(device.file(), ZERO, offset, len) {
        // Not aligned to the device's blocks, or not able to: then zeros are data like any other.
        Err(e) if unsupported(&e) || e.raw_os_error() == Some(libc::EINVAL) => {}
        other => return other,
    }
    let zeros = Buf::zeroed(ZEROS_BYTES.min(len as usize));
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let piece = (end - at).min(zeros.len() as u64);
        device.file_for(at, piece).write_all_at(&zeros.bytes()[..piece as usize], at)?;
        at += piece;
    }
    Ok(())
}

/// What the engine is told of an error.
pub(super) fn io_error(work: &Work, e: &io::Error) -> IoError {
    let gives_back = matches!(work, Work::Zero { unmap: true, .. } | Work::Discard { .. });
    match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => IoError::NoSpace,
        // What a device says that cannot punch this hole. Zeroing without giving back never gets here.
        Some(libc::EINVAL) if gives_back => IoError::Unsupported,
        _ if unsupported(e) && gives_back => IoError::Unsupported,
        _ => IoError::Io,
    }
}
