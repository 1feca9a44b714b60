//! Intents: where writes to an origin may be under way. After a crash the clean blocks there do not
//! count. However many there are, they fit into a checkpoint: beyond a number of regions the whole
//! volume is marked.

use std::collections::BTreeMap;

/// The intents of one volume.
#[derive(Debug, Default)]
pub(crate) struct Intents {
    /// Marked regions, each with the dirty-class record that marks it.
    regions: BTreeMap<u64, u64>,
    /// The record that marks all of the volume.
    whole: Option<u64>,
}

impl Intents {
    /// Whether nothing is marked.
    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty() && self.whole.is_none()
    }

    /// Regions that are marked one by one.
    pub(crate) fn regions(&self) -> usize {
        self.regions.len()
    }

    /// The newest record that marks a region.
    pub(crate) fn marked(&self, region: u64) -> Option<u64> {
        self.regions.get(&region).copied().max(self.whole)
    }

    /// A record marks a region, or without one all of the volume.
    pub(crate) fn mark(&mut self, region: Option<u64>, dseq: u64) {
        match region {
            Some(region) => {
                self.regions.insert(region, dseq);
            }
            None => self.whole = Some(dseq),
        }
    }

    /// The origin was flushed: marks up to this record are over.
    pub(crate) fn end(&mut self, mark_dseq: u64) {
        self.regions.retain(|_, &mut dseq| dseq > mark_dseq);
        self.whole = self.whole.filter(|&dseq| dseq > mark_dseq);
    }

    /// What is marked, as first block, blocks, and the record that says so.
    pub(crate) fn marks(&self, region_blocks: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let regions = self.regions.iter();
        let whole = self.whole.map(|dseq| (0, u64::MAX, dseq));
        regions.map(move |(&n, &dseq)| (n * region_blocks, region_blocks, dseq)).chain(whole)
    }
}
