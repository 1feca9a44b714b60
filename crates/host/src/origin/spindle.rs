//! The `spindle:` origin: a hard disk with seek, rotation and transfer times over an ordinary file,
//! so that a laptop, a test and the demo can show what a cache does.
//!
//! [`SpindleModel`] says when a command ends; the backing file holds the data. A command touches
//! the file when it ends, so what the disk has acknowledged is in the page cache and survives a
//! `kill -9` of the daemon. The modelled write cache is timing only, and FLUSH does not sync the
//! backing file: a `spindle` is no place for data that must survive a power cut of the real
//! machine. `docs/spindle.md` says what is modelled.

mod cache;
mod drive;
mod geometry;
mod model;
mod uri;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_engine::{IoError, Time};

/// What the interface of a disk speaks of, so that its user needs no other crate.
pub use forebay_engine::{Buf, Completion, OpId};

pub use drive::{Drive, Preset, Stroke};
pub use geometry::Geometry;
pub use model::{Access, Kind, SpindleModel};
pub use uri::{SpindleError, parse};

use super::OriginIo;
use crate::device::PUNCH;

/// The smallest backing file.
const BYTES_MIN: u64 = 1 << 20;

/// A hard disk over a file. `submit`, then `poll` at [`Spindle::next_due`].
#[derive(Debug)]
pub struct Spindle {
    file: File,
    bytes: u64,
    drive: Drive,
    model: SpindleModel,
    under_way: HashMap<u64, OriginIo>,
    ended: Vec<u64>,
    /// I/O that ends without the disk.
    refused: Vec<(OpId, Completion)>,
    now: Time,
}

impl Spindle {
    /// Opens the disk that `text` (what follows `spindle:`) describes, and locks its file.
    pub fn open(text: &str) -> Result<Spindle, SpindleError> {
        let (path, drive) = parse(text)?;
        Spindle::with_drive(&path, drive)
    }

    /// Opens `path` as the given drive, and locks it.
    pub fn with_drive(path: &Path, drive: Drive) -> Result<Spindle, SpindleError> {
        let fail = |what: String, source| SpindleError::File {
            path: path.display().to_string(),
            what,
            source,
        };
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| {
            let what = match e.kind() {
                std::io::ErrorKind::NotFound => {
                    "no such file; make one, for example with truncate -s 8G".to_string()
                }
                _ => format!("cannot be opened for reading and writing: {e}"),
            };
            fail(what, Some(e))
        })?;
        if let Err(error) = file.try_lock() {
            return Err(match error {
                std::fs::TryLockError::WouldBlock => {
                    fail("in use by another process; stop that one first".to_string(), None)
                }
                std::fs::TryLockError::Error(e) => fail(format!("cannot be locked: {e}"), Some(e)),
            });
        }
        let end = file
            .seek(SeekFrom::End(0))
            .map_err(|e| fail(format!("its size cannot be told: {e}"), Some(e)))?;
        let bytes = end / 512 * 512;
        if bytes < BYTES_MIN {
            return Err(fail(
                format!("has {end} bytes; a disk needs at least {BYTES_MIN} bytes: enlarge it"),
                None,
            ));
        }
        Ok(Spindle {
            file,
            bytes,
            model: SpindleModel::new(drive.clone(), bytes),
            drive,
            under_way: HashMap::new(),
            ended: Vec::new(),
            refused: Vec::new(),
            now: 0,
        })
    }

    /// Size in bytes, a multiple of 512.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The disk's figures.
    pub fn drive(&self) -> &Drive {
        &self.drive
    }

    /// Whether the modelled disk acknowledges writes from a volatile cache.
    pub fn volatile_cache(&self) -> bool {
        self.drive.cache_bytes > 0
    }

    /// Gives the disk one I/O. The caller bounds how many are under way.
    pub fn submit(&mut self, op: OpId, io: OriginIo, now: Time) {
        self.now = now;
        let (kind, offset, len) = match &io {
            OriginIo::Read { offset, buf } => (Kind::Read, *offset, buf.len() as u64),
            OriginIo::Write { offset, buf } => (Kind::Write, *offset, buf.len() as u64),
            OriginIo::Flush => (Kind::Flush, 0, 0),
            OriginIo::Zero { offset, len, .. } => (Kind::Zero, *offset, *len),
            OriginIo::Discard { offset, len } => (Kind::Discard, *offset, *len),
        };
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        let aligned = offset.is_multiple_of(512) && len.is_multiple_of(512);
        let empty = len == 0 && kind != Kind::Flush;
        if !inside || !aligned || empty {
            let result = if inside && aligned { Ok(()) } else { Err(IoError::Invalid) };
            self.refused.push((op, Completion { result, buf: io.into_buf() }));
            return;
        }
        let replaced = self.under_way.insert(op.0, io);
        assert!(replaced.is_none(), "an operation's name is its own while it is under way");
        self.model.submit(Access { id: op.0, kind, offset, len }, now);
    }

    /// Appends the completions of what has ended by `now`. Data moves here.
    pub fn poll(&mut self, now: Time, out: &mut Vec<(OpId, Completion)>) {
        self.now = now;
        out.append(&mut self.refused);
        let mut ended = std::mem::take(&mut self.ended);
        self.model.poll(now, &mut ended);
        for id in ended.drain(..) {
            let io = self.under_way.remove(&id).expect("the model names what was submitted");
            let (result, buf) = self.carry_out(io);
            out.push((OpId(id), Completion { result, buf }));
        }
        self.ended = ended;
    }

    /// The file behind the disk, for who opens it.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// When `poll` will have something, or must turn the model on; `None` when the disk is at rest.
    pub fn next_due(&self) -> Option<Time> {
        if self.refused.is_empty() { self.model.next_due() } else { Some(self.now) }
    }

    fn carry_out(&self, io: OriginIo) -> (Result<(), IoError>, Buf) {
        let failed = |_| IoError::Io;
        match io {
            OriginIo::Read { offset, mut buf } => {
                let result = self.file.read_exact_at(buf.bytes_mut(), offset);
                (result.map_err(failed), buf)
            }
            OriginIo::Write { offset, buf } => {
                (self.file.write_all_at(buf.bytes(), offset).map_err(failed), buf)
            }
            OriginIo::Flush => (Ok(()), Buf::empty()),
            OriginIo::Zero { offset, len, unmap: true } => {
                (self.punch(offset, len).map_err(|_| IoError::Unsupported), Buf::empty())
            }
            OriginIo::Zero { offset, len, unmap: false } => {
                (self.write_zeros(offset, len).map_err(failed), Buf::empty())
            }
            OriginIo::Discard { offset, len } => {
                // A hint: a file system that cannot punch holes keeps the bytes.
                let _ = self.punch(offset, len);
                (Ok(()), Buf::empty())
            }
        }
    }

    fn write_zeros(&self, offset: u64, len: u64) -> std::io::Result<()> {
        let zeros = Buf::zeroed(len.min(1 << 20) as usize);
        let mut at = offset;
        while at < offset + len {
            let part = (offset + len - at).min(zeros.len() as u64);
            self.file.write_all_at(&zeros.bytes()[..part as usize], at)?;
            at += part;
        }
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> std::io::Result<()> {
        forebay_sys::file::fallocate(&self.file, PUNCH, offset, len)
    }
}
