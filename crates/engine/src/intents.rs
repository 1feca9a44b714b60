//! Intents: where an origin may hold what a power cut takes back, because clients wrote there past
//! the cache since it was last flushed. After a crash the clean blocks there do not count. However
//! many there are, they fit into a checkpoint: beyond a number of ranges all of the volume is one.

use std::collections::BTreeMap;

/// The intents of one volume.
#[derive(Debug, Default)]
pub(crate) struct Intents {
    /// Marked ranges, as first block and blocks, each with the dirty-class record that marks it.
    ranges: BTreeMap<(u64, u64), u64>,
    /// The record that marks all of the volume.
    whole: Option<u64>,
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
    pub(crate) fn marked(&self, first: u64, blocks: u64) -> Option<u64> {
        self.ranges.get(&(first, blocks)).copied().max(self.whole)
    }

    /// A record marks a range, or without one all of the volume.
    pub(crate) fn mark(&mut self, range: Option<(u64, u64)>, dseq: u64) {
        match range {
            Some(range) => {
                self.ranges.insert(range, dseq);
            }
            None => self.whole = Some(dseq),
        }
    }

    /// The origin was flushed: marks up to this record are over.
    pub(crate) fn end(&mut self, mark_dseq: u64) {
        self.ranges.retain(|_, &mut dseq| dseq > mark_dseq);
        self.whole = self.whole.filter(|&dseq| dseq > mark_dseq);
    }

    /// What is marked, as first block, blocks, and the record that says so.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let ranges = self.ranges.iter().map(|(&(first, blocks), &dseq)| (first, blocks, dseq));
        ranges.chain(self.whole.map(|dseq| (0, u64::MAX, dseq)))
    }
}
