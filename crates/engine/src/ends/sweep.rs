//! Sweep: clean blocks that are of no use any more leave the index in slices, however many they
//! are.

use crate::event::{CommandId, VolumeId};

mod look;

/// Which clean blocks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// All: no cache device works.
    All,
    /// Those that lie on a device that failed, and nowhere else.
    Unreachable,
    /// Those of a volume of which nothing can vouch for.
    Volume(VolumeId),
    /// Those of a volume that is removed; then the command is answered.
    Removed(VolumeId, CommandId),
}

/// The sweeps that are due, the first of them under way.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    due: Vec<Sweep>,
    /// Next bucket of the index.
    at: usize,
}

impl Sweeps {
    /// See `parts.rs`.
    pub(super) fn progress(&self) -> u64 {
        self.due.len() as u64 + ((self.at as u64) << 16)
    }

    /// Whether clean blocks of this volume go, so that none should come.
    pub(super) fn empties(&self, id: VolumeId) -> bool {
        self.due.contains(&Sweep::Volume(id))
    }

    /// Whether none is due of what leaves the index by a word in the log for all of it.
    pub(super) fn is_done(&self) -> bool {
        self.due.iter().all(|sweep| matches!(sweep, Sweep::All | Sweep::Unreachable))
    }
}
