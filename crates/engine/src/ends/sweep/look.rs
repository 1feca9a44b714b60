//! A sweep looks through the index, and is over when nothing that it wants is left there.

use crate::ends::Sweep;
use crate::engine::Engine;
use crate::event::CommandReply;
use crate::ids::Key;
use crate::index::Located;
use crate::limits::SEEN_BUCKET_STEPS;

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
            Sweep::Removed(id, _) => self.vol(id).stats().cached_blocks,
            Sweep::Volume(id) => {
                self.volume(id).map_or(0, |v| v.stats().cached_blocks - v.dirty().len())
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
            self.writeback.volume_leaves(id);
            self.reqs.forget_volume(id);
            self.answer(command, CommandReply::Changed);
        }
    }
}
