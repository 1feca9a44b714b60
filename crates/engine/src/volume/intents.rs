//! Intents: where an origin may hold what a power cut takes back, because clients wrote there past
//! the cache since it was last flushed. After a crash the clean blocks there do not count. However
//! many there are, they fit into a checkpoint: beyond a number of ranges all of the volume is one.
//! A sync point ends those before it.

use crate::event::Time;
use crate::ids::{Dseq, Written};
use std::collections::BTreeMap;

/// A sync point being made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sync {
    /// Intents up to this record will be over.
    pub(crate) mark_dseq: Dseq,
    /// Origin writes that must be durable.
    pub(crate) written: Written,
    /// FLUSHes that had failed before.
    pub(crate) failures: u64,
}

/// The intents of one volume.
#[derive(Debug, Default)]
pub(crate) struct Intents {
    /// Marked ranges, as first block and blocks, each with the dirty-class record that marks it.
    ranges: BTreeMap<(u64, u64), Dseq>,
    /// The record that marks all of the volume.
    whole: Option<Dseq>,
    /// The sync point being made.
    sync: Option<Sync>,
    /// When the last one began, or the first intent since came.
    since: Time,
}

impl Intents {
    /// Whether nothing is marked.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.whole.is_none()
    }

    /// Ranges that are marked one by one.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// The newest record that marks this range.
    pub(crate) fn marked(&self, first: u64, blocks: u64) -> Option<Dseq> {
        self.ranges.get(&(first, blocks)).copied().max(self.whole)
    }

    /// A record marks a range, or without one all of the volume.
    pub(crate) fn mark(&mut self, range: Option<(u64, u64)>, dseq: Dseq, now: Time) {
        if self.is_empty() {
            self.since = now;
        }
        match range {
            Some(range) => {
                self.ranges.insert(range, dseq);
            }
            None => self.whole = Some(dseq),
        }
    }

    /// The origin is about to be flushed.
    pub(crate) fn sync_begins(&mut self, sync: Sync, now: Time) {
        self.sync = Some(sync);
        self.since = now;
    }

    /// The sync point being made.
    pub(crate) fn sync(&self) -> Option<Sync> {
        self.sync
    }

    /// Marks up to this record will be over soon: a range that they mark is marked anew.
    pub(crate) fn over_soon(&self) -> Dseq {
        self.sync.map_or(Dseq::NONE, |sync| sync.mark_dseq)
    }

    /// When the last sync point began, or the first intent since came.
    pub(crate) fn since(&self) -> Time {
        self.since
    }

    /// The sync point comes to nothing.
    pub(crate) fn sync_fails(&mut self) {
        self.sync = None;
    }

    /// The origin was flushed: marks up to this record are over.
    pub(crate) fn synced(&mut self, mark_dseq: Dseq) {
        self.sync = None;
        self.ranges.retain(|_, &mut dseq| dseq > mark_dseq);
        self.whole = self.whole.filter(|&dseq| dseq > mark_dseq);
    }

    /// What is marked, as first block, blocks, and the record that says so.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (u64, u64, Dseq)> {
        let ranges = self.ranges.iter().map(|(&(first, blocks), &dseq)| (first, blocks, dseq));
        ranges.chain(self.whole.map(|dseq| (0, u64::MAX, dseq)))
    }
}
