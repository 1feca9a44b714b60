//! Replace: a device that failed, or was let go, gives its place to an empty one, while the pool
//! serves.
//!
//! ```text
//! let go      not used any more; the others durably call it away; what was under way on it ends
//! blank       zeros over the superblocks of the new one, FLUSH
//! comes       what is open on it is closed; records go to it too, and do not count yet;
//!             a checkpoint begins, and goes to it too
//! first       the superblock that names this checkpoint and the new device: to that alone, FLUSH
//! belongs     what is on it counts
//! others      the same superblock to the others, FLUSH; the command is answered
//! ```
//!
//! Before *first* is durable a start finds the pool without the new device: it is away, and nothing
//! was promised of it. From then on it finds that superblock, which is the newest, and the others
//! one behind it: the log behind the checkpoint is on the new device too, but for what was open
//! elsewhere. What lives in units of before has one copy until reclaim has emptied them.

use crate::event::{CommandId, DeviceId, NewDevice};
use crate::segment::Since;
use forebay_format::superblock::{DeviceEntry, JoinedEntry};

mod change;

/// How far it is.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// What is under way on a device that is not used any more ends.
    Leaves(DeviceId, CommandId),
    /// The new device is made blank.
    Blank(NewDevice, CommandId),
    /// It is used, and a checkpoint is on its way.
    Comes(NewDevice, Since, CommandId),
    /// Its superblock is written; the entry that was there before.
    First(NewDevice, (DeviceEntry, JoinedEntry), CommandId),
    /// Those of the others are.
    Others(CommandId),
}

impl Phase {
    /// Who is answered at its end.
    pub(super) fn command(&self) -> CommandId {
        match self {
            Phase::Leaves(_, id)
            | Phase::Blank(_, id)
            | Phase::Comes(.., id)
            | Phase::First(.., id)
            | Phase::Others(id) => *id,
        }
    }

    /// Whether the superblock of a device that comes is written before those of the others.
    pub(super) fn first(&self) -> Option<DeviceId> {
        match self {
            Phase::First(new, ..) => Some(new.device),
            _ => None,
        }
    }
}
