//! What of a volume cannot be read.

use crate::part::BLOCK;
use crate::tiers::Tiers;
use forebay_format::tier::{EXTENT_BLOCKS, EXTENT_SIZE};
use std::ops::Range;

impl Tiers {
    /// The bytes that cannot be read: of extents whose member is not there or was given up all, of
    /// others the blocks that are lost. In order, and as few ranges as there can be; each step
    /// looks at as many extents as are sound in between.
    pub fn lost(&self) -> impl Iterator<Item = Range<u64>> {
        let mut runs = (0..self.extents()).flat_map(|extent| self.lost_of(extent)).peekable();
        std::iter::from_fn(move || {
            let mut range = runs.next()?;
            while let Some(next) = runs.next_if(|next| next.start == range.end) {
                range.end = next.end;
            }
            Some(range)
        })
    }

    /// Those of an extent.
    fn lost_of(&self, extent: u32) -> Vec<Range<u64>> {
        let first = u64::from(extent) * EXTENT_SIZE;
        let place = self.place_of(extent);
        if place.is_some_and(|(member, _)| !self.set.is_here(member)) {
            return std::iter::once(first..first + EXTENT_SIZE).collect();
        }
        let lost = self.map.lost(extent);
        let mut runs: Vec<Range<u64>> = Vec::new();
        if lost.is_empty() {
            return runs;
        }
        for block in (0..EXTENT_BLOCKS).filter(|&block| lost.has(block)) {
            let from = first + block as u64 * BLOCK;
            match runs.last_mut() {
                Some(run) if run.end == from => run.end += BLOCK,
                _ => runs.push(from..from + BLOCK),
            }
        }
        runs
    }
}
