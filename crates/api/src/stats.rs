//! Counters as they travel. They only grow; whoever shows them divides.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A latency histogram: bucket `4 n + part` counts values from `2^n` nanoseconds, in four linear
/// parts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Counts, without the zeros at the end.
    pub counts: Vec<u64>,
    /// Sum of all values, in nanoseconds.
    pub sum_ns: u64,
}

impl Latency {
    /// Values counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Latency) -> Latency {
        let old = before.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(old).map(|(new, old)| new.saturating_sub(old));
        Latency { counts: counts.collect(), sum_ns: self.sum_ns.saturating_sub(before.sum_ns) }
    }

    /// Upper end of bucket `index`, in nanoseconds.
    pub fn ceiling_ns(index: usize) -> u64 {
        let (power, part) = ((index + 1) / 4, (index as u64 + 1) % 4);
        if power < 2 { 0 } else { (4 + part) << (power - 2) }
    }

    /// The least bucket boundary that `fraction` (0 to 1) of the values do not exceed, in
    /// nanoseconds; `None` when nothing was counted.
    pub fn quantile_ns(&self, fraction: f64) -> Option<u64> {
        let wanted = (self.count() as f64 * fraction).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Some(Latency::ceiling_ns(index));
            }
        }
        None
    }

    /// Mean in nanoseconds; `None` when nothing was counted.
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count())
    }
}

/// Counts of one volume.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VolumeCounters {
    /// The volume.
    pub name: String,
    /// Its pool.
    pub pool: String,
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
    /// Blocks not cached, by reason.
    pub not_cached: BTreeMap<String, u64>,
    /// Bytes in the cache now.
    pub cached_bytes: u64,
    /// Dirty bytes among them now.
    pub dirty_bytes: u64,
    /// Bytes sent home.
    pub writeback_bytes: u64,
    /// Writes to the origin that sent them.
    pub writeback_writes: u64,
    /// FLUSHes sent to the origin.
    pub origin_flushes: u64,
    /// Blocks whose checksum did not match when read from a cache device.
    pub bad_blocks: u64,
    /// Dirty blocks whose only good copy is lost.
    pub lost_blocks: u64,
    /// Read latency.
    pub read_latency: Latency,
    /// Write latency.
    pub write_latency: Latency,
    /// FLUSH latency.
    pub flush_latency: Latency,
}

impl VolumeCounters {
    /// Share of read requests answered wholly from the cache since `before`; `None` without reads.
    pub fn hit_ratio_since(&self, before: &VolumeCounters) -> Option<f64> {
        let hits = self.read_hits_full.saturating_sub(before.read_hits_full);
        let partial = self.read_hits_partial.saturating_sub(before.read_hits_partial);
        let misses = self.read_misses.saturating_sub(before.read_misses);
        let all = hits + partial + misses;
        (all > 0).then(|| hits as f64 / all as f64)
    }
}

/// Counts of one pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PoolCounters {
    /// The pool.
    pub name: String,
    /// Bytes written to cache devices, by cause: `dirty`, `fill`, `reinsert`, `header`,
    /// `checkpoint`, `mirror`.
    pub written_bytes: BTreeMap<String, u64>,
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
    /// Segments now.
    pub segments: u64,
    /// Free segments now.
    pub segments_free: u64,
    /// Bytes of the log that are free for dirty data now.
    pub room_free_bytes: u64,
    /// Bytes that will be free when what is under way has ended.
    pub room_coming_bytes: u64,
    /// Bytes that a writer may count on now.
    pub room_writable_bytes: u64,
    /// Bytes that the pool can hold.
    pub capacity_bytes: u64,
    /// Bytes that it holds.
    pub cached_bytes: u64,
    /// Bytes in the RAM tier now.
    pub ram_tier_bytes: u64,
    /// Bytes that fit the RAM tier.
    pub ram_tier_bytes_max: u64,
    /// Bytes of the index in RAM now.
    pub index_bytes: u64,
    /// Times that a write waited for space.
    pub write_stalls: u64,
    /// Whether a cache device has failed.
    pub degraded: bool,
    /// Times that its thread ended by an internal error, since the daemon started.
    #[serde(default)]
    pub internal_errors: u64,
}

/// All counters at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Seconds since the daemon started.
    pub uptime_s: f64,
    /// By volume.
    pub volumes: Vec<VolumeCounters>,
    /// By pool.
    pub pools: Vec<PoolCounters>,
}

/// What it means, in words, that something was not cached for this reason of the engine.
pub fn reason_meaning(reason: &str) -> &'static str {
    match reason {
        "mode" => "the mode does not cache it",
        "sequential" => "part of a long sequential stream, which the origin does well",
        "first-miss" => "seen for the first time; the second miss caches it",
        "overtaken" => "a write reached the block while it was being read",
        "no-space" => "no free segment at that moment",
        "device-failed" => "the cache device has failed",
        "device-busy" => "the cache device had enough to write",
        "not-ready" => "the pool was being opened or stopped",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_ends_of_buckets() {
        // 100 ns lies in [96, 112): power 6, part 2.
        let mut latency = Latency::default();
        latency.counts.resize(27, 0);
        latency.counts[4 * 6 + 2] = 99;
        assert_eq!(latency.quantile_ns(0.5), Some(112));
        latency.counts.resize(45, 0);
        latency.counts[4 * 11] = 1;
        assert_eq!(latency.quantile_ns(0.99), Some(112));
        assert_eq!(latency.quantile_ns(1.0), Some(2048 + 512));
        assert_eq!(Latency::default().quantile_ns(0.5), None);
        assert_eq!(latency.since(&latency).count(), 0);
    }

    #[test]
    fn the_hit_ratio_counts_partial_hits_as_no_hits() {
        let before = VolumeCounters { read_hits_full: 5, ..VolumeCounters::default() };
        let now = VolumeCounters {
            read_hits_full: 8,
            read_hits_partial: 1,
            read_misses: 2,
            ..VolumeCounters::default()
        };
        assert_eq!(now.hit_ratio_since(&before), Some(0.5));
        assert_eq!(now.hit_ratio_since(&now), None);
    }
}
