//! Counts of what the worlds went through, so that a green run can be asked what it proves.

use forebay_engine::stats::{PoolStats, VolumeStats};
use std::collections::BTreeMap;

/// Rare things and how often they happened, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    marks: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// Counts one.
    pub fn mark(&mut self, name: &'static str) {
        self.add(name, 1);
    }

    /// Counts several.
    pub fn add(&mut self, name: &'static str, count: u64) {
        if count > 0 {
            *self.marks.entry(name).or_default() += count;
        }
    }

    /// How often it happened.
    pub fn count(&self, name: &str) -> u64 {
        self.marks.get(name).copied().unwrap_or(0)
    }

    /// Adds another world's counts.
    pub fn merge(&mut self, other: &Coverage) {
        for (name, count) in &other.marks {
            self.add(name, *count);
        }
    }

    /// All counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.marks.iter().map(|(name, count)| (*name, *count))
    }

    /// What the engine counted in one life.
    pub fn pool(&mut self, stats: &PoolStats) {
        self.add("segments dropped", stats.segments_dropped);
        self.add("segments cleaned", stats.segments_cleaned);
        self.add("checkpoints", stats.checkpoints);
        self.add("records", stats.records);
        self.add("blocks discarded", stats.discarded_bytes / forebay_format::BLOCK_SIZE as u64);
        self.add("write stalls", stats.write_stalls);
        self.add("reads held", stats.reads_held);
        self.add("holds cut short", stats.holds_cut);
        self.add(
            "blocks reinserted",
            stats.written_bytes.reinsert / forebay_format::BLOCK_SIZE as u64,
        );
        self.add("blocks filled", stats.written_bytes.fill / forebay_format::BLOCK_SIZE as u64);
        self.add("blocks mirrored", stats.written_bytes.mirror / forebay_format::BLOCK_SIZE as u64);
        self.add("lives degraded", u64::from(stats.degraded));
    }

    /// What the engine counted for one volume in one life.
    pub fn volume(&mut self, stats: &VolumeStats) {
        self.add("reads hit", stats.read_hits_full);
        self.add("reads hit in part", stats.read_hits_partial);
        self.add("reads missed", stats.read_misses);
        self.add("bytes read from RAM", stats.read_bytes_ram);
        self.add("bytes read from the cache", stats.read_bytes_cache);
        self.add("blocks written back", stats.writeback_blocks);
        self.add("bad blocks", stats.bad_blocks);
        self.add("lost blocks", stats.lost_blocks);
        for (reason, &count) in forebay_engine::stats::REASONS.iter().zip(&stats.not_cached) {
            self.add(reason, count);
        }
    }
}
