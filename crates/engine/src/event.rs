//! The only words that the engine and its executors exchange.
//!
//! An executor (the host, or the simulator) feeds [`Event`]s to
//! [`Engine::handle`](crate::Engine::handle), calls [`Engine::settle`](crate::Engine::settle) after
//! each batch of them, and carries out the [`Effect`]s. Every I/O effect is answered by exactly one
//! [`Event::Done`], in any order.

use crate::open_error::OpenError;
use crate::settings::Distrust;
use forebay_format::io::Buf;
pub use forebay_format::io::{Completion, IoError, OpId, Time};
use forebay_format::mode::Mode;

/// A client's request, named by the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A command, named by the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// A volume of the pool, by the number in its superblock entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u32);

/// A cache device of the pool, by its index in the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u8);

/// Where an I/O goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A cache device.
    Cache(DeviceId),
    /// The origin of a volume.
    Origin(VolumeId),
}

/// What a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Fill the request's buffer (its length is the request's) from `offset`.
    Read,
    /// Write the request's buffer at `offset`.
    Write,
    /// Make durable all writes that were acknowledged before this request was submitted.
    Flush,
    /// The client no longer needs `len` bytes at `offset`. Afterwards they read as zeros or as
    /// before.
    Discard,
    /// `len` bytes at `offset` read as zeros from now on.
    WriteZeroes {
        /// The origin may give the space back.
        unmap: bool,
    },
    /// Bring `len` bytes at `offset` into the cache.
    Prefetch,
}

/// A client's request. `offset` and `len` are bytes, multiples of 512, within the volume.
#[derive(Debug)]
pub struct Request {
    /// The volume.
    pub volume: VolumeId,
    /// What is asked.
    pub kind: RequestKind,
    /// First byte.
    pub offset: u64,
    /// Bytes. Equals the buffer's length for reads and writes.
    pub len: u64,
    /// Answer only when durable (writes, discards, zeroes).
    pub fua: bool,
    /// Data of a write, or room for a read; empty otherwise. Comes back in the reply.
    pub buf: Buf,
}

/// What an administrator asks. Each is answered by one [`Effect::CommandDone`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Starts to serve a volume whose origin the executor can reach. Answered when it is durable in
    /// the superblock.
    AddVolume(Box<VolumeSpec>),
    /// Drains the volume, forgets its clean blocks and removes it.
    RemoveVolume(VolumeId),
    /// Fails, once, if the removal of the volume would: its origin has failed a FLUSH, and what was
    /// written there may be lost.
    TellLoss(VolumeId),
    /// Switches the mode; when dirty blocks may not stay in the new mode, drains first.
    SetMode(VolumeId, Mode),
    /// Sends all dirty blocks home. The volume goes on in its mode.
    Drain(VolumeId),
    /// Ends a drain, removal or mode switch that still runs; the volume stays as it was.
    Cancel(VolumeId),
    /// Makes a volume larger, up to so many bytes; its origin has them. Answered when that is
    /// durable in the superblock: until then no request goes beyond the old end.
    Resize(VolumeId, u64),
    /// Drops the dirty blocks of a volume that lie on a device that is lost, or all of them when
    /// the volume is not served because its origin was changed. What the origin holds counts.
    ForceDropDirty(VolumeId),
    /// The origin of a volume is lost: all I/O there fails until [`Command::OriginBack`]. What is
    /// cached is served on, and what can be written into the cache is.
    OriginLost(VolumeId),
    /// The origin of a volume, which is not there, is called so from now on. Answered when that is
    /// durable in the superblock: whoever opens the pool looks for it there.
    CallOrigin(VolumeId, String),
    /// The origin of a volume that was missing when the pool was opened is there, and is the right
    /// one. It is flushed, and then the volume is served.
    ///
    /// Also of one that was lost since ([`Command::OriginLost`]): no I/O on what it was before is
    /// under way, and what that had not made durable may be gone.
    OriginBack {
        /// The volume.
        volume: VolumeId,
        /// It is another origin, or has been written to, and was accepted: dirty blocks go there,
        /// and clean ones are forgotten before the volume is served.
        changed: bool,
    },
    /// Does without a cache device from now on, as if it had failed. Refused where it holds the
    /// only copy of something dirty. Answered when the others durably call it away and no write is
    /// under way on it: another device can have its place.
    LetGo(DeviceId),
    /// Takes an empty device in, in the place of one that failed or was let go. Answered when it is
    /// durably a device of the pool; dirty blocks get their second copy back from then on.
    TakeIn(Box<NewDevice>),
    /// Writes a checkpoint and marks the pool clean. Afterwards the engine refuses requests.
    Shutdown,
}

/// A cache device to take in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDevice {
    /// The place that it gets: I/O of this device goes to the new one from now on.
    pub device: DeviceId,
    /// Its identity: new, whatever was on it.
    pub uuid: [u8; 16],
    /// Its bytes.
    pub bytes: u64,
    /// Whether it has a volatile write cache.
    pub volatile_cache: bool,
    /// Whether it gains from being told which bytes are free.
    pub discards: bool,
}

/// A volume to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Name, at most 64 bytes.
    pub name: String,
    /// URI of the origin, at most 128 bytes.
    pub origin: String,
    /// Size in bytes, a multiple of 512.
    pub bytes: u64,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Identity of the origin.
    pub fingerprint: [u8; 32],
    /// The mode to start in.
    pub mode: Mode,
    /// Whether the origin has a volatile write cache.
    pub volatile_cache: bool,
    /// Whether the origin answers each FLUSH for itself: one that succeeds covers all that was
    /// written before it, though others failed. Only for a volume of which nothing is cached.
    pub exact_flushes: bool,
    /// Blocks of a stripe of the origin; see [`crate::OriginSettings`].
    pub stripe_blocks: u32,
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandReply {
    /// Done, and something changed.
    Changed,
    /// Nothing had to change.
    Unchanged,
    /// The volume that was added.
    Added(VolumeId),
    /// Not done. The text says why and what to do next.
    Failed(String),
}

/// What the executor tells the engine.
#[derive(Debug)]
pub enum Event {
    /// A client's request.
    Submit(RequestId, Request),
    /// The end of an I/O.
    Done(OpId, Completion),
    /// An administrator's command.
    Command(CommandId, Command),
    /// Time has passed: due at the latest at [`Engine::deadline`](crate::Engine::deadline).
    Tick,
}

/// What the engine tells the executor to do.
#[derive(Debug)]
pub enum Effect {
    /// Fill `buf` (its length tells how much) from `offset`.
    Read {
        /// Name of the I/O.
        op: OpId,
        /// Where from.
        target: Target,
        /// First byte; a multiple of 512, as is the length.
        offset: u64,
        /// Room for the data.
        buf: Buf,
    },
    /// Write `buf` at `offset`.
    Write {
        /// Name of the I/O.
        op: OpId,
        /// Where to.
        target: Target,
        /// First byte; a multiple of 512, as is the length.
        offset: u64,
        /// The data.
        buf: Buf,
    },
    /// Make durable all writes to the target that completed before this effect was issued.
    Flush {
        /// Name of the I/O.
        op: OpId,
        /// What to flush.
        target: Target,
    },
    /// Make `len` bytes at `offset` read as zeros. With `unmap`, only if the target can do it by
    /// giving the space back, else [`IoError::Unsupported`] and nothing has changed.
    Zero {
        /// Name of the I/O.
        op: OpId,
        /// Where.
        target: Target,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Give the space back.
        unmap: bool,
    },
    /// The content of these bytes is no longer needed; a hint. Any later content is legal.
    Discard {
        /// Name of the I/O.
        op: OpId,
        /// Where.
        target: Target,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The cache device lost our trust while the volumes go on without it. Write the note down,
    /// durably and on another medium, in place of the one before; then answer.
    Distrust {
        /// Name of the I/O.
        op: OpId,
        /// What must not be used again.
        note: Distrust,
    },
    /// Answer a client. `buf` is the request's buffer.
    Reply {
        /// The request.
        id: RequestId,
        /// How it ended.
        result: Result<(), IoError>,
        /// The request's buffer, filled for a read that succeeded.
        buf: Buf,
    },
    /// Answer a command.
    CommandDone {
        /// The command.
        id: CommandId,
        /// The answer.
        reply: CommandReply,
    },
    /// Something that an administrator should know.
    Notice(Notice),
}

/// Something that an administrator should know. Stable names; the host logs and counts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The pool is open and serves.
    Opened {
        /// Records that were rolled forward.
        records: u64,
        /// Blocks in the index.
        blocks: u64,
        /// Dirty blocks among them.
        dirty: u64,
    },
    /// The pool cannot be opened; nothing was written. The text says why and what to do.
    OpenFailed(OpenError),
    /// A cache device failed and is no longer used.
    DeviceFailed(DeviceId, String),
    /// A cache device is no longer used, as a command said.
    DeviceLeft(DeviceId),
    /// A device has taken the place of one that was not used any more.
    DeviceCame(DeviceId),
    /// A record of the log was lost while a device failed: nothing behind it would be recovered, so
    /// the cache is not used any more.
    LogBroken,
    /// A block read from a cache device was wrong. Clean ones were read from the origin instead.
    BadBlock {
        /// The volume.
        volume: VolumeId,
        /// The block.
        block: u64,
        /// Whether its only good copy is lost.
        lost: bool,
    },
    /// An origin failed to write a block home; it stays dirty and is tried again.
    WritebackFailed {
        /// The volume.
        volume: VolumeId,
        /// The first block.
        block: u64,
    },
    /// No cache device works, and what must not be used again could not be noted elsewhere: writes
    /// fail until it can.
    DistrustFailed,
    /// A damaged structure was replaced by its other copy.
    Repaired(String),
}
