//! Sweep: clean blocks that are of no use any more leave the index in slices, however many they
//! are.

use crate::engine::Engine;
use crate::event::{CommandId, CommandReply, VolumeId};
use crate::ids::Key;
use crate::index::Located;
use crate::limits::SEEN_BUCKET_STEPS;

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

impl Engine {
    pub(crate) fn sweep(&mut self, sweep: Sweep) {
        if !self.ends.sweeps.due.contains(&sweep) {
            self.ends.sweeps.due.push(sweep);
        }
    }

    /// Looks on in a slice of the index.
    pub(crate) fn sweep_more(&mut self) {
        let Some(&sweep) = self.ends.sweeps.due.first() else { return };
        let from = self.ends.sweeps.at;
        let most = (from + self.tuning().scan_buckets).min(self.map.bucket_count());
        let range = match sweep {
            Sweep::All | Sweep::Unreachable => Key::FIRST..Key::MAX,
            Sweep::Volume(id) | Sweep::Removed(id, _) => {
                self.volume(id).map_or(Key::FIRST..Key::FIRST, |v| v.base()..v.base() + v.blocks())
            }
        };
        let wanted = |key, Located { slot, .. }: Located| {
            let there = sweep == Sweep::Unreachable && self.segments.reachable(slot);
            range.contains(&key) && !there && !self.map.is_dirty(slot)
        };
        let (to, keys) = self.gather_keys(from, most, wanted);
        self.io.did((to - from) * SEEN_BUCKET_STEPS);
        if let Sweep::Removed(..) = sweep {
            self.ram_ends(&range, from..to);
        }
        for key in keys {
            self.map.ram_drop(key);
            self.forget(key);
        }
        self.ends.sweeps.at = to;
        if to == self.map.bucket_count() {
            self.ends.sweeps.at = 0;
            self.swept(sweep);
        }
    }

    /// A sweep has come to the end of the index. What moved there meanwhile may have been passed
    /// over.
    fn swept(&mut self, sweep: Sweep) {
        let left = match sweep {
            Sweep::Removed(id, _) => self.vol(id).stats.cached_blocks,
            Sweep::Volume(id) => {
                self.volume(id).map_or(0, |v| v.stats.cached_blocks - v.dirty.len())
            }
            Sweep::All | Sweep::Unreachable => 0,
        };
        if left > 0 {
            return;
        }
        self.ends.sweeps.due.remove(0);
        if let Sweep::Removed(id, command) = sweep {
            self.checkpoint_spoilt();
            self.volumes.remove(id);
            self.reqs.forget_volume(id);
            self.answer(command, CommandReply::Changed);
        }
    }
}
