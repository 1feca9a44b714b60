//! The only words that a tiered origin and its executors exchange.
//!
//! An executor feeds [`Event`]s to [`Tiers::handle`](crate::Tiers::handle), calls
//! [`Tiers::settle`](crate::Tiers::settle) after each batch of them, and carries out the
//! [`Effect`]s. Every I/O effect is answered by exactly one [`Event::Done`], in any order.

use crate::settings::{MemberSettings, Tuning};
use forebay_format::io::{Buf, Completion, IoError, OpId};
use std::fmt;

/// An I/O on the tiered origin, named by the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId(pub u64);

/// A command, named by the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// A device or memory of a tier, by its number in the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u8);

/// What is asked of the origin. Offsets and lengths are bytes, multiples of 512, within the volume.
#[derive(Debug)]
pub enum Io {
    /// Fill the buffer.
    Read {
        /// First byte.
        offset: u64,
        /// Room for the data; its length tells how much.
        buf: Buf,
    },
    /// Write the buffer. Answered when no killed process can lose it.
    Write {
        /// First byte.
        offset: u64,
        /// The data.
        buf: Buf,
    },
    /// Make durable all that was answered before this was submitted.
    Flush,
    /// These bytes read as zeros from now on.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Give the space back.
        unmap: bool,
    },
    /// The content of these bytes is no longer needed. Afterwards they read as zeros or as before,
    /// each block as one of both until it is written.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// What an administrator asks. Each is answered by one [`Effect::CommandDone`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Moves nothing more until [`Command::Resume`]; what is under way ends.
    Pause,
    /// Moves again.
    Resume,
    /// Moves all extents of these members to others, best to such of the same tier. Answered when
    /// they are empty.
    Evacuate(Vec<MemberId>),
    /// Has those of these members take extents again that leave: their evacuation ends, and that of
    /// others goes on.
    Cancel(Vec<MemberId>),
    /// Adds a member. Answered with [`CommandReply::Added`] when every member knows it, and it
    /// holds the map if that had one holder only.
    Add(Addition),
    /// Removes members that are empty. Others hold the map first if these did. At last their
    /// superblocks are overwritten. The numbers of the tiers that are left stay.
    Remove(Vec<MemberId>),
    /// Gives a member up that is not there, fails or does not answer, for good: it is no member any
    /// more, whatever comes back. The extents that live there are lost: what of them was written
    /// fails to be read until it is written again or discarded.
    GiveUp(MemberId),
    /// Has the numbers of tiers follow each other, where some have gone: 0 is the fastest. What
    /// was pinned to a tier that has gone is not pinned any more.
    CloseUp,
    /// Gives extents a tier of their own, or none: they are moved there when there is room, for
    /// which others leave, and away only to empty who they live on. Forgotten when the set is
    /// closed.
    Pin {
        /// The first extent.
        first: u32,
        /// How many.
        count: u32,
        /// The tier.
        tier: Option<u8>,
    },
    /// Other numbers of the policy count from now on.
    Tune(Tuning),
    /// Makes the volume larger, up to so many bytes.
    Resize(u64),
    /// Writes what is known and marks the set closed. No I/O may be under way or come after it.
    Stop,
}

/// A member to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition {
    /// The number that it gets: what [`Tiers::next_member`](crate::Tiers::next_member) said. I/O on
    /// it may be wanted as soon as the command is given.
    pub member: MemberId,
    /// Identity, random.
    pub uuid: [u8; 16],
    /// Bytes that may be used.
    pub bytes: u64,
    /// Its tier.
    pub at: At,
    /// Its content does not outlive the machine.
    pub is_volatile: bool,
    /// What the executor knows of it.
    pub settings: MemberSettings,
}

/// Where a new member belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// To this tier, which may be a new one.
    Join(u8),
    /// To a new tier of this number: the numbers of tiers from that on grow by one.
    Before(u8),
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandReply {
    /// Done, and something changed.
    Changed,
    /// Nothing had to change.
    Unchanged,
    /// The member takes part, and has this number.
    Added(MemberId),
    /// Not done. It says why.
    Refused(Refusal),
}

/// Why a command was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The rest cannot hold what these members hold, and others that leave: so many extents too
    /// few.
    NoRoom(u32),
    /// There is no such tier.
    NoTier,
    /// None of these members is being emptied.
    NotLeaving,
    /// The volume would be smaller, or larger than the map has room for; or extents are not in it.
    Size,
    /// A device failed meanwhile.
    Failed,
    /// The evacuation was ended by [`Command::Cancel`].
    Cancelled,
    /// Another command of this kind runs.
    Busy,
    /// It is a member already.
    IsMember,
    /// The next new member gets another number, this one.
    OtherNumber(MemberId),
    /// There are 63 members, or 16 tiers, or a number would be beyond; or 4,096 ranges are pinned.
    TooMany,
    /// The device is too small; so many bytes are needed at least.
    TooSmall(u64),
    /// Its content goes with the power, and that of the volume does not.
    Volatile,
    /// All of the tier is being emptied.
    Leaving,
    /// These members are not empty: so many places of them are in use.
    NotEmpty(u32),
    /// Nobody who stays could hold the map: these are all, or all that outlive the machine, or, of
    /// a volume that does not, all that do not.
    LastPersistent,
    /// There is no such member.
    NoMember,
    /// The member is there.
    IsHere,
}

/// What the executor tells.
#[derive(Debug)]
pub enum Event {
    /// An I/O on the origin. Two that are under way at the same time may touch the same block only
    /// if both read.
    Submit(IoId, Io),
    /// The end of an I/O of an effect.
    Done(OpId, Completion),
    /// An administrator's command.
    Command(CommandId, Command),
    /// Time has passed: due at the latest at [`Tiers::deadline`](crate::Tiers::deadline).
    Tick,
}

/// What the executor has to do.
#[derive(Debug)]
pub enum Effect {
    /// Fill `buf` (its length tells how much) from `offset`.
    Read {
        /// Name of the I/O.
        op: OpId,
        /// Where from.
        member: MemberId,
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
        member: MemberId,
        /// First byte; a multiple of 512, as is the length.
        offset: u64,
        /// The data.
        buf: Buf,
    },
    /// Make durable all writes to the member that completed before this effect was issued.
    Flush {
        /// Name of the I/O.
        op: OpId,
        /// What to flush.
        member: MemberId,
    },
    /// The content of these bytes is no longer needed; a hint. Any later content is legal.
    Discard {
        /// Name of the I/O.
        op: OpId,
        /// Where.
        member: MemberId,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Answer an I/O on the origin. The buffer is the one that came with it.
    Reply {
        /// The I/O.
        id: IoId,
        /// How it ended.
        completion: Completion,
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

/// Something that an administrator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The set is open and serves.
    Opened {
        /// Records of the journal that were replayed.
        records: u64,
        /// Extents that live somewhere.
        extents: u64,
        /// What was not flushed before the machine went down is gone.
        cut: bool,
        /// What was not flushed may be gone though it did not: the next FLUSH fails, to say so.
        doubt: bool,
    },
    /// It cannot be opened; nothing was written.
    OpenFailed(OpenError),
    /// A member does not keep the map any more: it failed.
    HolderLost(MemberId),
    /// A member has come to hold the map in the place of one that was lost.
    HolderFound(MemberId),
    /// Blocks of an extent are lost: they were written since the last flush, which failed.
    BlocksLost {
        /// The extent.
        extent: u32,
        /// How many.
        blocks: u32,
    },
    /// An extent cannot be moved now, because a member failed to read or write it.
    MoveFailed {
        /// The extent.
        extent: u32,
        /// Which member.
        member: MemberId,
        /// What it said.
        error: IoError,
    },
}

/// Why a set cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// No member that holds the map is there, or can be read.
    NoMap,
    /// A page of the map is bad in each copy that there is: that of the extents from this one on.
    BadPage(u32),
    /// Records of the journal are missing in each copy that there is, from this one on.
    BadJournal(u64),
    /// The map says that two extents live in one place.
    TwoInOnePlace(u32, u32),
    /// The map says that an extent lives where there is no place.
    NoSuchPlace(u32),
    /// The superblocks or the map cannot be written.
    CannotWrite,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NoMap => f.write_str("no device that holds the map can be read"),
            OpenError::BadPage(extent) => {
                write!(f, "the map is damaged in all its copies, from extent {extent} on")
            }
            OpenError::BadJournal(seq) => {
                write!(f, "the journal of the map is damaged in all its copies, at record {seq}")
            }
            OpenError::TwoInOnePlace(one, other) => {
                write!(f, "the map is damaged: extents {one} and {other} live in one place")
            }
            OpenError::NoSuchPlace(extent) => {
                write!(f, "the map is damaged: extent {extent} lives where no device is")
            }
            OpenError::CannotWrite => f.write_str("the map cannot be written"),
        }
    }
}
