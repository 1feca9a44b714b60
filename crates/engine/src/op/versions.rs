//! Versions: blocks that come into the map, become clean there and leave it. The units' counts and
//! the volumes' dirty sets follow here (I2), in service as in recovery's replay;
//! `recovery/load/place.rs` fills them with a whole checkpoint at once.

use crate::engine::Engine;
use crate::ids::{Key, Slot};
use crate::index::Located;
use crate::limits::{BURY_STEPS, CLEAN_STEPS, ENDS_MAX, PLACES_PER_STEP};
use std::ops::Range;

impl Engine {
    /// Points the index at a new version. The old version's slot is dead from here on. Whether that
    /// was dirty.
    pub(crate) fn install(&mut self, key: Key, located: Located, dirty: bool, mask: u8) -> bool {
        let old = self.map.place(key, located);
        let before = old.map(|old| self.bury(old.slot));
        self.map.hold(located.slot, dirty, mask);
        self.segments.lives(located.slot);
        if dirty {
            self.segments.dirtied(located.slot);
        }
        self.volumes.block_placed(key, before, dirty);
        before == Some(true)
    }

    /// A slot is dead: the counts of its unit follow. I2. Whether it held a dirty version, which
    /// the volume is to be told of.
    fn bury(&mut self, slot: Slot) -> bool {
        self.io.did(BURY_STEPS);
        self.void_gathered(slot);
        let dirty = self.clean_slot(slot);
        self.map.bury(slot);
        self.segments.dies(slot);
        dirty
    }

    /// What is in a slot is dirty no more: the count of its unit follows. Whether it was.
    fn clean_slot(&mut self, slot: Slot) -> bool {
        let dirty = self.map.clean(slot);
        if dirty {
            self.io.did(CLEAN_STEPS);
            self.segments.cleaned(slot);
        }
        dirty
    }

    /// The version in `slot` is equal to the origin now.
    pub(crate) fn make_clean(&mut self, key: Key, slot: Slot) {
        if self.clean_slot(slot) {
            self.volumes.block_cleaned(key);
        }
    }

    /// Takes a block out of the index without a word in the log.
    pub(crate) fn forget(&mut self, key: Key) -> Option<Located> {
        let located = self.map.remove(key)?;
        let dirty = self.bury(located.slot);
        self.volumes.block_left(key, dirty);
        Some(located)
    }

    /// Blocks that leave the index, or become clean, in one slice of what ends many.
    pub(crate) fn ends_max(&self) -> usize {
        self.tuning().scan_buckets.min(ENDS_MAX)
    }

    /// The keys of wanted entries in buckets `from..to` of the index: of so many buckets that there
    /// are enough for a slice, or a few more. Where the next slice begins.
    pub(crate) fn gather_keys(
        &self,
        from: usize,
        to: usize,
        wanted: impl Fn(Key, Located) -> bool,
    ) -> (usize, Vec<Key>) {
        let (mut at, mut keys) = (from, Vec::new());
        while at < to && keys.len() < self.ends_max() {
            self.map.scan(at, at + 1, |key, located| {
                if wanted(key, located) {
                    keys.push(key);
                }
            });
            at += 1;
        }
        (at, keys)
    }

    /// See [`crate::map::Map::ram_drop_some`].
    pub(crate) fn ram_ends(&mut self, keys: &Range<Key>, buckets: Range<usize>) {
        let looked = self.map.ram_drop_some(keys, buckets);
        self.io.did(looked / PLACES_PER_STEP);
    }

    /// Whether the index remembers what moves in it: while somebody looks through it in slices.
    pub(crate) fn track_moves(&mut self) {
        let scans = self.pool.checkpoint_scans() || self.reclaim_scanning() || self.ends.scanning();
        self.map.track_moves(scans);
    }

    /// Tells those who look through the index in slices what has moved in it.
    pub(crate) fn moves_seen(&mut self) {
        if !self.map.tracks_moves() {
            return;
        }
        let moved = self.map.take_moved();
        self.pool.placed(moved.iter().map(|&(key, _)| key));
        if self.reclaim_scanning() {
            self.reclaim_saw(&moved);
        }
        self.ends_saw(&moved);
    }

    /// The keys in a range that the index knows.
    fn known(&self, keys: Range<Key>) -> Vec<Key> {
        if keys.end - keys.start <= self.map.len() as u64 {
            return keys.start.up_to(keys.end).filter(|&key| self.map.get(key).is_some()).collect();
        }
        let mut known = Vec::new();
        self.map.scan(0, self.map.bucket_count(), |key, _| {
            if keys.contains(&key) {
                known.push(key);
            }
        });
        known
    }

    /// As [`Engine::forget`], of all blocks in a range; for recovery.
    pub(crate) fn forget_range(&mut self, keys: Range<Key>) {
        for key in self.known(keys) {
            self.forget(key);
        }
    }

    /// As [`Engine::forget_range`], of the clean blocks.
    pub(crate) fn forget_clean_of(&mut self, keys: Range<Key>) {
        for key in self.known(keys) {
            if self.map.has_clean(key) {
                self.forget(key);
            }
        }
    }

    /// As [`Engine::forget`], of a clean block. Whether it was there.
    pub(crate) fn forget_clean(&mut self, key: Key) -> bool {
        let Some(located) = self.map.get(key) else { return false };
        assert!(!self.map.is_dirty(located.slot), "I4: a dirty version is not dropped");
        self.forget(key);
        true
    }

    /// Takes a clean block out of the cache and writes down that it is gone. I11.
    pub(crate) fn drop_clean(&mut self, key: Key) {
        if self.forget_clean(key) && !self.log.is_dead() {
            let (id, block) =
                self.volume_of(key).map(|v| (v.id(), key - v.base())).expect("as above");
            self.note(forebay_format::record::EntryKind::Tombstone, id, block, 1);
        }
    }
}
