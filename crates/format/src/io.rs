//! What I/O is made of: buffers, names, times, and how it ended. The machines (the engine, and the
//! tiers below it) and those who carry out what they want speak of it in these words.

mod buf;

pub use buf::{Buf, BufPool};

/// Nanoseconds since the executor started. Never goes backwards.
pub type Time = u64;

/// An I/O, named by the machine that wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// Why a request or an I/O failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum IoError {
    /// The device failed, or the only copy of the data is unreadable.
    #[error("input/output error")]
    Io,
    /// The range is outside the volume or not a multiple of 512.
    #[error("invalid argument")]
    Invalid,
    /// A write behind the end of the volume, or no space.
    #[error("no space")]
    NoSpace,
    /// The device cannot do it.
    #[error("not supported")]
    Unsupported,
    /// The volume is not served: unknown, detached, or its origin or dirty data is missing.
    #[error("no such device")]
    Gone,
    /// The engine stops.
    #[error("shutting down")]
    Shutdown,
}

/// The end of an I/O. `buf` is the buffer that the effect carried.
#[derive(Debug)]
pub struct Completion {
    /// How it ended. A failed write may have changed any part of its range.
    pub result: Result<(), IoError>,
    /// The effect's buffer; empty for effects without one.
    pub buf: Buf,
}
