//! What an I/O of the host goes to, and so whom its end is told.

use forebay_engine::{Target, VolumeId};
use forebay_tier::MemberId;

/// A device that the executor has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Goal {
    /// The engine's: a cache device, or an origin that is one device.
    Engine(Target),
    /// A member of the tiered origin of a volume: its tiers asked for it.
    Member(VolumeId, MemberId),
}

impl Goal {
    /// What of the engine's waits for it.
    pub fn target(self) -> Target {
        match self {
            Goal::Engine(target) => target,
            Goal::Member(volume, _) => Target::Origin(volume),
        }
    }
}
