//! Origins: the slow, authoritative stores under the volumes.

pub mod ram;
pub mod spindle;
pub mod units;

use forebay_engine::Buf;

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
