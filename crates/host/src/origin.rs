//! Origins: the slow, authoritative stores under the volumes.

mod holes;
pub mod ram;
pub mod spindle;
pub mod tiered;
pub mod units;

use crate::device::{Access, Device, DeviceError};
use crate::fingerprint::Fingerprint;
use forebay_engine::{Buf, Completion, OpId, Time};
pub(crate) use holes::Holes;
use ram::{Ram, RamError};
use spindle::{Spindle, SpindleError};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tiered::{Tiered, TieredError};

/// One I/O for an origin that is not a file descriptor: the `spindle` and `ram` origins take it with
/// `submit(op, io, now)` and answer with one [`forebay_engine::Completion`] each, in any order, from
/// `poll(now, &mut Vec<(OpId, Completion)>)`. Offsets and lengths are bytes, multiples of 512, and were
/// checked against the origin's size.
#[derive(Debug)]
pub enum OriginIo {
    /// Fill `buf` (its length tells how much) from `offset`.
    Read {
        /// First byte.
        offset: u64,
        /// Room for the data; comes back in the completion.
        buf: Buf,
    },
    /// Write `buf` at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// The data; comes back in the completion.
        buf: Buf,
    },
    /// Make durable all writes that completed before this was submitted.
    Flush,
    /// Make `len` bytes at `offset` read as zeros. With `unmap`, only if the space can be given back, else
    /// `IoError::Unsupported` and nothing has changed.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Give the space back.
        unmap: bool,
    },
    /// The content of these bytes is no longer needed; a hint.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

impl OriginIo {
    /// The buffer, if the I/O has one.
    pub fn into_buf(self) -> Buf {
        match self {
            OriginIo::Read { buf, .. } | OriginIo::Write { buf, .. } => buf,
            _ => Buf::empty(),
        }
    }
}

/// Why an origin cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// The file or block device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The `ram:` URI.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// The `spindle:` URI, or its file.
    #[error(transparent)]
    Spindle(#[from] SpindleError),
    /// The devices of a tiered origin, or its map.
    #[error(transparent)]
    Tiered(#[from] TieredError),
    /// A scheme that this version cannot serve.
    #[error(
        "{uri}: origins of the kind {scheme} are not supported yet; give a path, ram:SIZE or \
         spindle:PATH?preset=NAME (a path with a colon: ./{uri})"
    )]
    Scheme {
        /// The whole URI.
        uri: String,
        /// What stands before its colon.
        scheme: String,
    },
    /// Too small to be a volume.
    #[error("{0} holds less than 4096 bytes; an origin must hold at least one block")]
    TooSmall(String),
}

/// An open origin.
#[derive(Debug)]
pub enum Origin {
    /// A file or a block device.
    File(Arc<Device>),
    /// A disk in memory.
    Ram(Box<Ram>, Fingerprint),
    /// A modelled hard disk.
    Spindle(Box<Spindle>, Fingerprint),
    /// Several devices, with a map that says what lives where.
    Tiered(Box<Tiered>),
}

impl Origin {
    /// Opens what a URI names: a path, `ram:40G`, or `spindle:PATH?preset=nas-5400`; for us alone.
    ///
    /// # Errors
    /// Says what is wrong with the URI, or who else uses the device.
    pub fn open(uri: &str) -> Result<Origin, OriginError> {
        let origin = match uri.split_once(':') {
            Some(("ram", size)) => {
                let ram = Ram::open(size)?;
                let fingerprint = Fingerprint::of_instance(ram.bytes());
                Origin::Ram(Box::new(ram), fingerprint)
            }
            Some(("spindle", text)) => {
                let (path, drive) = spindle::parse(text)?;
                let spindle = Spindle::with_drive(&path, drive)?;
                let file = std::fs::File::open(&path)
                    .map_err(|e| DeviceError::system(&path, "open", e))?;
                let fingerprint = Fingerprint::of_file(&file, spindle.bytes());
                Origin::Spindle(Box::new(spindle), fingerprint)
            }
            Some((scheme, _)) if is_scheme(scheme) && !Path::new(uri).exists() => {
                let (uri, scheme) = (uri.to_owned(), scheme.to_owned());
                return Err(OriginError::Scheme { uri, scheme });
            }
            _ => Origin::File(Arc::new(Device::open(Path::new(uri), Access::Exclusive)?)),
        };
        match origin.bytes() {
            0..4096 => Err(OriginError::TooSmall(uri.to_owned())),
            _ => Ok(origin),
        }
    }

    /// Size in bytes, a multiple of 512.
    pub fn bytes(&self) -> u64 {
        let bytes = match self {
            Origin::File(device) => device.info().bytes,
            Origin::Ram(ram, _) => ram.bytes(),
            Origin::Spindle(spindle, _) => spindle.bytes(),
            Origin::Tiered(tiered) => tiered.bytes(),
        };
        whole_sectors(bytes)
    }

    /// What tells its size later.
    pub(crate) fn size(&self) -> OriginSize {
        match self {
            Origin::File(device) => OriginSize::Of(Arc::clone(device)),
            _ => OriginSize::Fixed(self.bytes()),
        }
    }

    /// Whether writes that were acknowledged can be lost until a flush.
    pub fn volatile_cache(&self) -> bool {
        match self {
            Origin::File(device) => device.needs_flush(),
            Origin::Ram(..) => false,
            Origin::Spindle(spindle, _) => spindle.volatile_cache(),
            Origin::Tiered(tiered) => !tiered.is_ephemeral(),
        }
    }

    /// Whether it remembers which writes it owes: a FLUSH fails while one is lost or not durable,
    /// so one that succeeds is to be believed. Of a single device nobody knows what a FLUSH that
    /// failed has lost.
    pub fn answers_each_flush(&self) -> bool {
        matches!(self, Origin::Tiered(_))
    }

    /// Blocks of a stripe of a RAID array; 0 where there are none.
    pub fn stripe_blocks(&self) -> u32 {
        match self {
            Origin::File(device) => device.info().stripe_blocks,
            _ => 0,
        }
    }

    /// Whether it tells where it has no space: a file does, but the shard does not ask where the
    /// answer may not come.
    pub fn sparse(&self) -> bool {
        let tells = |device: &Device| !device.info().is_block && !device.info().may_wait;
        matches!(self, Origin::File(device) if tells(device))
    }

    /// Whether it gives space back at little cost and reads as zeros there: a file, a disk that
    /// knows discard, memory.
    pub fn punches(&self) -> bool {
        match self {
            Origin::File(device) => device.info().discard,
            Origin::Ram(..) => true,
            Origin::Spindle(..) => false,
            Origin::Tiered(_) => true,
        }
    }

    /// Where it has no space.
    pub(crate) fn holes(&self) -> Holes<'_> {
        match self {
            Origin::File(device) if self.sparse() => Holes::of(device.file()),
            _ => Holes::default(),
        }
    }

    /// Whether the content ends with the daemon.
    pub fn ephemeral(&self) -> bool {
        match self {
            Origin::Ram(..) => true,
            Origin::Tiered(tiered) => tiered.is_ephemeral(),
            _ => false,
        }
    }

    /// Which origin it is.
    pub fn fingerprint(&self) -> Fingerprint {
        match self {
            Origin::File(device) => Fingerprint::of_device(device),
            Origin::Ram(_, fingerprint) | Origin::Spindle(_, fingerprint) => *fingerprint,
            Origin::Tiered(tiered) => Fingerprint::of_set(tiered.set(), tiered.bytes()),
        }
    }

    /// Something that an administrator should know about how it was opened.
    pub fn notice(&self) -> Option<&str> {
        match self {
            Origin::File(device) => device.notice(),
            _ => None,
        }
    }

    /// Gives an origin that is not a file its I/O.
    pub(crate) fn submit(&mut self, op: OpId, io: OriginIo, now: Time) {
        match self {
            Origin::File(_) => unreachable!("I/O on a file goes through the driver"),
            Origin::Ram(ram, _) => ram.submit(op, io, now),
            Origin::Spindle(spindle, _) => spindle.submit(op, io, now),
            Origin::Tiered(tiered) => tiered.submit(op, io, now),
        }
    }

    /// Appends what has ended by `now`.
    pub(crate) fn poll(&mut self, now: Time, out: &mut Vec<(OpId, Completion)>) {
        match self {
            // What ends there is told elsewhere: `executor.rs`, `executor/tiers.rs`.
            Origin::File(_) | Origin::Tiered(_) => {}
            Origin::Ram(ram, _) => ram.poll(now, out),
            Origin::Spindle(spindle, _) => spindle.poll(now, out),
        }
    }

    /// When [`Origin::poll`] will have something.
    pub(crate) fn next_due(&self) -> Option<Time> {
        match self {
            Origin::File(_) => None,
            Origin::Ram(ram, _) => ram.next_due(),
            Origin::Spindle(spindle, _) => spindle.next_due(),
            Origin::Tiered(tiered) => tiered.next_due(),
        }
    }
}

/// An odd end is not part of a volume.
fn whole_sectors(bytes: u64) -> u64 {
    bytes / 512 * 512
}

/// What tells the size of an origin, on any thread: to ask a file may take long.
#[derive(Debug)]
pub(crate) enum OriginSize {
    /// A file or a block device, which may grow while it is open.
    Of(Arc<Device>),
    /// The size in bytes that it was opened with.
    Fixed(u64),
}

impl OriginSize {
    /// The size now, in bytes, a multiple of 512.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn bytes(&self) -> io::Result<u64> {
        let bytes = match self {
            OriginSize::Of(device) => device.bytes_now()?,
            OriginSize::Fixed(bytes) => *bytes,
        };
        Ok(whole_sectors(bytes))
    }

    /// Whether the origin is gone for good, and what its path leads to is another one,
    /// or has fewer than `least` bytes.
    pub fn is_gone(&self, least: u64) -> bool {
        match self {
            OriginSize::Of(device) => device.is_gone(least),
            OriginSize::Fixed(_) => false,
        }
    }
}

/// Whether the text before a colon is a URI scheme and not part of a path.
fn is_scheme(text: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(letters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_opened_or_refused_with_advice() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("disk");
        crate::device::create_file(&path, (1 << 20) + 100).unwrap();
        let path = path.to_str().unwrap();
        let file = Origin::open(path).unwrap();
        assert_eq!(file.bytes(), 1 << 20);
        let error = Origin::open(path).unwrap_err().to_string();
        assert!(error.contains("in use"), "{error}");
        drop(file);
        let disk = Origin::open(&format!("spindle:{path}?preset=nas-5400")).unwrap();
        assert!(Origin::open(path).unwrap_err().to_string().contains("in use"));
        assert_eq!(disk.bytes(), 1 << 20);
        let ram = Origin::open("ram:1M").unwrap();
        assert!(ram.ephemeral() && !ram.volatile_cache());
        for (uri, expected) in [
            ("nbd://host/name", "origins of the kind nbd are not supported yet"),
            ("s3://bucket", "kind s3"),
            ("ram:much", "not a size"),
            ("/none/such", "cannot find /none/such"),
        ] {
            let error = Origin::open(uri).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
