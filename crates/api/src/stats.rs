//! Counters as they travel: what the engine counted, and whose it is.

use crate::tiers::TierDevice;
pub use forebay_format::stats::{Histogram, PoolStats, VolumeStats};
use serde::{Deserialize, Serialize};

/// Counts of one volume.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VolumeCounters {
    /// The volume.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// What was counted.
    #[serde(flatten)]
    pub stats: VolumeStats,
    /// The devices of its tiers, if it has some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierDevice>,
    /// Writes that were refused because none of them had room.
    #[serde(default)]
    pub no_room_writes: u64,
}

impl VolumeCounters {
    /// Share of read requests answered wholly from the cache since `before`; `None` without reads,
    /// or without a cache.
    pub fn hit_ratio_since(&self, before: &VolumeCounters) -> Option<f64> {
        let ratio = self.stats.hits().ratio_since(before.stats.hits());
        ratio.filter(|_| !self.pool.is_empty())
    }
}

/// Counts of one pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PoolCounters {
    /// The pool.
    pub name: String,
    /// What was counted.
    #[serde(flatten)]
    pub stats: PoolStats,
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
    use forebay_format::stats::{REASONS, Reason, Written};
    use serde_json::json;

    #[test]
    fn every_reason_has_a_meaning() {
        for reason in REASONS {
            assert!(!reason_meaning(reason).is_empty(), "{reason}");
        }
    }

    /// Scripts and older versions know these fields.
    #[test]
    fn counters_are_one_flat_object_in_bytes() {
        let mut stats = VolumeStats { dirty_blocks: 3, read_bytes: 5, ..VolumeStats::default() };
        stats.not_cached[Reason::NotReady as usize] = 7;
        stats.read_latency.record(100);
        let volume = VolumeCounters {
            name: "v".to_string(),
            pool: "p".to_string(),
            stats,
            ..VolumeCounters::default()
        };
        let sent = serde_json::to_value(&volume).unwrap();
        assert_eq!((&sent["name"], &sent["read_bytes"]), (&json!("v"), &json!(5)));
        assert_eq!((&sent["dirty_bytes"], &sent["cached_bytes"]), (&json!(3 * 4096), &json!(0)));
        assert_eq!(
            (&sent["not_cached"]["not-ready"], &sent["not_cached"]["mode"]),
            (&json!(7), &json!(0))
        );
        assert_eq!(sent["read_latency"]["counts"].as_array().unwrap().len(), 4 * 6 + 2 + 1);
        assert_eq!(sent["write_latency"], json!({"counts": [], "sum_ns": 0}));
        assert_eq!(sent.as_object().unwrap().len(), 30);
        assert_eq!(serde_json::from_value::<VolumeCounters>(sent).unwrap(), volume);
        let written_bytes = Written { fill: 9, ..Written::default() };
        let stats = PoolStats { written_bytes, slots: 2, degraded: true, ..PoolStats::default() };
        let pool = PoolCounters { name: "p".to_string(), stats, internal_errors: 1 };
        let sent = serde_json::to_value(&pool).unwrap();
        assert_eq!(
            (&sent["written_bytes"]["fill"], &sent["capacity_bytes"]),
            (&json!(9), &json!(8192))
        );
        assert_eq!(sent.as_object().unwrap().len(), 23);
        assert_eq!(serde_json::from_value::<PoolCounters>(sent).unwrap(), pool);
        let sent = serde_json::to_value(PoolCounters::default()).unwrap();
        assert_eq!(sent["written_bytes"], json!({}));
        assert_eq!(serde_json::from_value::<PoolCounters>(sent).unwrap(), PoolCounters::default());
    }
}
