//! What is counted: one set for each volume, one for the pool. The engine counts, and what it has
//! counted travels as it is. Counters only grow; whoever shows them divides.
//!
//! As JSON everything has the units of those who read it: what is counted in blocks here is bytes
//! there, in a field of that name.

use crate::BLOCK_SIZE;
use std::collections::BTreeMap;

#[cfg(feature = "serde")]
mod json;

/// Why a block was not served from, or not put into, the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Reason {
    /// The mode does not cache it.
    Mode = 0,
    /// Part of a sequential stream.
    Sequential = 1,
    /// Seen for the first time: admitted at the second miss.
    FirstMiss = 2,
    /// A write reached the block while it was being read.
    Overtaken = 3,
    /// No free segment.
    NoSpace = 4,
    /// The cache device has failed.
    DeviceFailed = 5,
    /// The pool is still being opened, or stops.
    NotReady = 6,
    /// The cache device has enough to write.
    DeviceBusy = 7,
}

/// Names of the reasons, by their number, as metrics and `forebay why` spell them.
pub const REASONS: [&str; 8] = [
    "mode",
    "sequential",
    "first-miss",
    "overtaken",
    "no-space",
    "device-failed",
    "not-ready",
    "device-busy",
];

/// A latency histogram: bucket `n` counts values in `[2^n, 2^(n+1))` nanoseconds, in four linear
/// parts each.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Histogram {
    /// Counts; bucket `4 * n + part`. Sent without the zeros at the end.
    #[cfg_attr(feature = "serde", serde(with = "json::counts"))]
    pub counts: [u64; Histogram::BUCKETS],
    /// Sum of all values, in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    /// Buckets: 40 powers of two (18 minutes), four parts each.
    pub const BUCKETS: usize = 160;

    /// Counts one value.
    pub fn record(&mut self, ns: u64) {
        let value = ns.max(4);
        let power = 63 - value.leading_zeros() as usize;
        let part = (value >> (power - 2)) as usize & 3;
        self.counts[(4 * power + part).min(Histogram::BUCKETS - 1)] += 1;
        self.sum_ns += ns;
    }

    /// Least value of bucket `index`, in nanoseconds.
    pub fn floor_ns(index: usize) -> u64 {
        let (power, part) = (index / 4, index as u64 % 4);
        if power < 2 { 0 } else { (4 + part) << (power - 2) }
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Histogram) -> Histogram {
        let count = |index: usize| self.counts[index].saturating_sub(before.counts[index]);
        let sum_ns = self.sum_ns.saturating_sub(before.sum_ns);
        Histogram { counts: std::array::from_fn(count), sum_ns }
    }

    /// The least bucket boundary that `fraction` (0 to 1) of the values do not exceed, in
    /// nanoseconds; `None` when nothing was counted.
    pub fn quantile_ns(&self, fraction: f64) -> Option<u64> {
        let wanted = (self.count() as f64 * fraction).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Some(Histogram::floor_ns(index + 1));
            }
        }
        None
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; Histogram::BUCKETS], sum_ns: 0 }
    }
}

/// Counts of one volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VolumeStats {
    /// Read requests.
    pub reads: u64,
    /// Bytes of read requests.
    pub read_bytes: u64,
    /// Read requests answered wholly from RAM or cache device.
    pub read_hits_full: u64,
    /// Read requests answered partly from the cache.
    pub read_hits_partial: u64,
    /// Read requests answered wholly from the origin.
    pub read_misses: u64,
    /// Bytes of reads served from RAM.
    pub read_bytes_ram: u64,
    /// Bytes of reads served from a cache device.
    pub read_bytes_cache: u64,
    /// Bytes of reads served from the origin.
    pub read_bytes_origin: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes of write requests.
    pub write_bytes: u64,
    /// Bytes of writes accepted by the cache (dirty).
    pub write_bytes_cache: u64,
    /// Bytes of writes sent straight to the origin.
    pub write_bytes_origin: u64,
    /// FLUSH requests.
    pub flushes: u64,
    /// Discard and write-zeroes requests.
    pub discards: u64,
    /// Bytes of discard and write-zeroes requests.
    pub discard_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Blocks not cached, by [`Reason`]. Sent by its name.
    #[cfg_attr(feature = "serde", serde(with = "json::reasons"))]
    pub not_cached: [u64; REASONS.len()],
    /// Blocks in the cache.
    #[cfg_attr(feature = "serde", serde(rename = "cached_bytes", with = "json::blocks"))]
    pub cached_blocks: u64,
    /// Dirty blocks among them.
    #[cfg_attr(feature = "serde", serde(rename = "dirty_bytes", with = "json::blocks"))]
    pub dirty_blocks: u64,
    /// Blocks sent home.
    #[cfg_attr(feature = "serde", serde(rename = "writeback_bytes", with = "json::blocks"))]
    pub writeback_blocks: u64,
    /// Writes to the origin that sent them.
    pub writeback_writes: u64,
    /// FLUSHes sent to the origin.
    pub origin_flushes: u64,
    /// Blocks whose checksum did not match when read from a cache device.
    pub bad_blocks: u64,
    /// Dirty blocks whose only good copy is lost.
    pub lost_blocks: u64,
    /// Read latency.
    pub read_latency: Histogram,
    /// Write latency.
    pub write_latency: Histogram,
    /// FLUSH latency.
    pub flush_latency: Histogram,
}

impl VolumeStats {
    /// What reads found in the cache.
    pub fn hits(&self) -> Hits {
        let (full, partial) = (self.read_hits_full, self.read_hits_partial);
        Hits { full, partial, misses: self.read_misses }
    }

    /// Bytes that are newer than at the origin.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_blocks * BLOCK_SIZE as u64
    }

    /// Blocks not cached, by the name of the reason.
    pub fn not_cached_by_name(&self) -> BTreeMap<&'static str, u64> {
        by_name(self.not_cached)
    }
}

fn by_name(not_cached: [u64; REASONS.len()]) -> BTreeMap<&'static str, u64> {
    REASONS.into_iter().zip(not_cached).collect()
}

/// Read requests, by what of them the cache had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hits {
    /// All.
    pub full: u64,
    /// A part.
    pub partial: u64,
    /// Nothing.
    pub misses: u64,
}

impl Hits {
    /// Share of read requests answered wholly from the cache since `before`; `None` without reads.
    pub fn ratio_since(self, before: Hits) -> Option<f64> {
        let hits = self.full.saturating_sub(before.full);
        let partial = self.partial.saturating_sub(before.partial);
        let misses = self.misses.saturating_sub(before.misses);
        let all = hits + partial + misses;
        (all > 0).then(|| hits as f64 / all as f64)
    }
}

/// Counts of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PoolStats {
    /// Bytes written to cache devices, by cause. Sent as an empty object while there are none, as
    /// of a pool that is closed.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::written"))]
    pub written_bytes: Written,
    /// Records written.
    pub records: u64,
    /// FLUSHes sent to cache devices.
    pub cache_flushes: u64,
    /// Bytes of freed segments that cache devices were told of (TRIM).
    pub discarded_bytes: u64,
    /// Segments freed without reading or writing a block.
    pub segments_dropped: u64,
    /// Segments emptied by moving blocks.
    pub segments_cleaned: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Segments.
    pub segments: u64,
    /// Free segments.
    pub segments_free: u64,
    /// Blocks of the log that are free for dirty data.
    #[cfg_attr(feature = "serde", serde(rename = "room_free_bytes", with = "json::blocks"))]
    pub room_free_blocks: u64,
    /// Blocks that will be free when what is under way has ended.
    #[cfg_attr(feature = "serde", serde(rename = "room_coming_bytes", with = "json::blocks"))]
    pub room_coming_blocks: u64,
    /// Blocks that a writer may count on: what is free, less what makes room.
    #[cfg_attr(feature = "serde", serde(rename = "room_writable_bytes", with = "json::blocks"))]
    pub room_writable_blocks: u64,
    /// Slots in all.
    #[cfg_attr(feature = "serde", serde(rename = "capacity_bytes", with = "json::blocks"))]
    pub slots: u64,
    /// Blocks in the index: those that the pool holds.
    #[cfg_attr(feature = "serde", serde(rename = "cached_bytes", with = "json::blocks"))]
    pub cached_blocks: u64,
    /// Blocks in the RAM tier.
    #[cfg_attr(feature = "serde", serde(rename = "ram_tier_bytes", with = "json::blocks"))]
    pub ram_blocks: u64,
    /// Blocks that fit the RAM tier.
    #[cfg_attr(feature = "serde", serde(rename = "ram_tier_bytes_max", with = "json::blocks"))]
    pub ram_blocks_max: u64,
    /// Bytes of the index in RAM.
    pub index_bytes: u64,
    /// Times that a write waited for space.
    pub write_stalls: u64,
    /// Reads of an origin that waited for a writeback slice to end.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub reads_held: u64,
    /// Times that such reads went on before the slice had ended, because it took too long.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub holds_cut: u64,
    /// Whether a cache device has failed.
    pub degraded: bool,
    /// Dirty blocks that are on two devices.
    #[cfg_attr(feature = "serde", serde(rename = "dirty_two_copies_bytes", with = "json::blocks"))]
    pub dirty_two_copies_blocks: u64,
    /// Dirty blocks that are on one device only, or in a pool of one.
    #[cfg_attr(feature = "serde", serde(rename = "dirty_one_copy_bytes", with = "json::blocks"))]
    pub dirty_one_copy_blocks: u64,
}

/// Bytes written to cache devices, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Written {
    /// Checkpoints and superblocks.
    pub checkpoint: u64,
    /// Dirty data (payload).
    pub dirty: u64,
    /// Read fills and written-through data (payload).
    pub fill: u64,
    /// Record headers.
    pub header: u64,
    /// Second copies of dirty data.
    pub mirror: u64,
    /// Live blocks moved out of segments (payload).
    pub reinsert: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_ends_of_buckets() {
        // 100 ns lies in [96, 112): power 6, part 2.
        let mut latency = Histogram::default();
        (0..99).for_each(|_| latency.record(100));
        assert_eq!(latency.quantile_ns(0.5), Some(112));
        latency.record(2048);
        assert_eq!(latency.quantile_ns(0.99), Some(112));
        assert_eq!(latency.quantile_ns(1.0), Some(2048 + 512));
        assert_eq!(Histogram::default().quantile_ns(0.5), None);
        assert_eq!(latency.since(&latency), Histogram::default());
    }

    #[test]
    fn the_hit_ratio_counts_partial_hits_as_no_hits() {
        let before = Hits { full: 5, ..Hits::default() };
        let now = Hits { full: 8, partial: 1, misses: 2 };
        assert_eq!(now.ratio_since(before), Some(0.5));
        assert_eq!(now.ratio_since(now), None);
    }
}
