//! Ends: blocks of a range that leave the index for something that a request or a command did or
//! is about to do, in slices, however many they are. Each slice says itself what it ended, so that
//! the log never says less, or more, than the index.

use crate::ends::sweep::Sweeps;
use crate::event::{CommandId, VolumeId};
use crate::ids::Key;
use crate::requests::ReqKey;

mod slice;
mod sweep;

pub(crate) use sweep::Sweep;

/// What ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Clean blocks of a range that is to be zeroed, by key, from this one on.
    CleanByKey(ReqKey, Key),
    /// Clean blocks of a range that has more blocks than the index, by bucket, from this one on.
    CleanByBucket(ReqKey, usize),
    /// They are gone; the log hears of each stretch between dirty blocks, from this key on.
    Stretches(ReqKey, Key),
    /// Dirty blocks of a range that is zeroed, from this key on.
    Zeroed(ReqKey, Key),
    /// All dirty blocks of a volume that is not served.
    GivenUp(VolumeId, CommandId),
    /// Those that cannot be read.
    Unreadable(VolumeId, CommandId),
    /// All, of which is noted elsewhere that they are given up.
    OnDead(VolumeId, CommandId),
}

/// What is to end: the first of it is under way.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    due: Vec<What>,
    slices: u64,
    sweeps: Sweeps,
}

impl Ends {
    /// See `parts.rs`.
    pub(crate) fn progress(&self) -> [u64; 4] {
        [self.slices, self.sweeps.progress(), 0, 0]
    }

    /// Whether clean blocks of this volume go, so that none should come.
    pub(crate) fn empties(&self, id: VolumeId) -> bool {
        self.sweeps.empties(id)
    }

    /// Whether no sweep is due of what leaves the index by a word in the log for all of it.
    pub(crate) fn sweeps_are_done(&self) -> bool {
        self.sweeps.is_done()
    }

    /// Whether more is to end.
    pub(crate) fn are_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Whether the index is looked through by bucket.
    pub(crate) fn scanning(&self) -> bool {
        matches!(self.due.first(), Some(What::CleanByBucket(..)))
    }

    /// Whether all that is dirty of a volume is being given up: it is not served before the end.
    pub(crate) fn gives_up(&self, id: VolumeId) -> bool {
        self.due.iter().any(|what| matches!(what, What::GivenUp(of, _) if *of == id))
    }
}
