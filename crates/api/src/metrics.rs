//! The metrics, declared once: Prometheus text, and the reference in the documents, come from
//! [`METRICS`].
//!
//! Only counters and gauges in base units; no ratios, because whoever reads them divides over the
//! window of interest.

mod sample;

use crate::reply::{State, Status};
use crate::stats::{Counters, PoolStats, VolumeCounters, VolumeStats};
use crate::tiers::{DeviceState, TierDevice};
use forebay_format::BLOCK_SIZE;
use forebay_format::stats::Written;
use sample::{histogram, line};
use std::fmt::Write;

/// What kind of number a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by upper bound.
    Histogram,
}

/// Where a metric gets its samples.
#[derive(Clone, Copy)]
enum Source {
    Volume(fn(&VolumeStats) -> Samples),
    Pool(fn(&PoolStats) -> Samples),
    PoolErrors,
    Latency,
    VolumeState,
    /// Of each device of tiers.
    Tier(fn(&TierDevice) -> u64),
    /// Writes for which no device of the tiers had room.
    NoRoom,
    Ephemeral,
    Build,
    Uptime,
}

/// One metric.
pub struct Metric {
    /// Name, with `_total` on counters.
    pub name: &'static str,
    /// Kind.
    pub kind: Kind,
    /// What it counts, in which unit.
    pub help: &'static str,
    source: Source,
}

type Samples = Vec<(&'static str, String, f64)>;

/// One sample with no label of its own.
fn plain(value: u64) -> Samples {
    vec![("", String::new(), value as f64)]
}

/// One sample of what is counted in blocks.
fn bytes(blocks: u64) -> Samples {
    plain(blocks * BLOCK_SIZE as u64)
}

/// One sample for each `(value of the label, count)`.
fn each(label: &'static str, values: &[(&str, u64)]) -> Samples {
    values.iter().map(|(name, value)| (label, (*name).to_string(), *value as f64)).collect()
}

const fn metric(name: &'static str, kind: Kind, source: Source, help: &'static str) -> Metric {
    Metric { name, kind, help, source }
}

use Kind::{Counter, Gauge};
use Source::{Pool, Tier, Volume};

/// Every metric.
pub const METRICS: &[Metric] = &[
    metric("forebay_build_info", Gauge, Source::Build, "Always 1; the version is a label."),
    metric("forebay_uptime_seconds", Gauge, Source::Uptime, "Seconds since the daemon started."),
    metric(
        "forebay_volume_state",
        Gauge,
        Source::VolumeState,
        "1 for the state that the volume is in, 0 for the others.",
    ),
    metric(
        "forebay_read_requests_total",
        Counter,
        Volume(|v| {
            let values = [
                ("hit", v.read_hits_full),
                ("partial", v.read_hits_partial),
                ("miss", v.read_misses),
            ];
            each("result", &values)
        }),
        "Read requests, by how much of them the cache answered.",
    ),
    metric(
        "forebay_read_bytes_total",
        Counter,
        Volume(|v| {
            let values = [
                ("ram", v.read_bytes_ram),
                ("cache", v.read_bytes_cache),
                ("origin", v.read_bytes_origin),
            ];
            each("source", &values)
        }),
        "Bytes of read requests, by where they came from.",
    ),
    metric("forebay_write_requests_total", Counter, Volume(|v| plain(v.writes)), "Write requests."),
    metric(
        "forebay_write_bytes_total",
        Counter,
        Volume(|v| {
            each("target", &[("cache", v.write_bytes_cache), ("origin", v.write_bytes_origin)])
        }),
        "Bytes of write requests, by what acknowledged them.",
    ),
    metric(
        "forebay_flush_requests_total",
        Counter,
        Volume(|v| plain(v.flushes)),
        "FLUSH requests.",
    ),
    metric(
        "forebay_discard_requests_total",
        Counter,
        Volume(|v| plain(v.discards)),
        "Discard and write-zeroes requests.",
    ),
    metric(
        "forebay_discard_bytes_total",
        Counter,
        Volume(|v| plain(v.discard_bytes)),
        "Bytes of discard and write-zeroes requests.",
    ),
    metric(
        "forebay_request_errors_total",
        Counter,
        Volume(|v| plain(v.errors)),
        "Requests answered with an error.",
    ),
    metric(
        "forebay_not_cached_blocks_total",
        Counter,
        Volume(|v| {
            let values: Vec<_> = v.not_cached_by_name().into_iter().collect();
            each("reason", &values)
        }),
        "Blocks of 4096 bytes that were not cached, by reason.",
    ),
    metric(
        "forebay_cached_bytes",
        Gauge,
        Volume(|v| bytes(v.cached_blocks)),
        "Bytes in the cache.",
    ),
    metric("forebay_dirty_bytes", Gauge, Volume(|v| bytes(v.dirty_blocks)), "Dirty bytes."),
    metric(
        "forebay_writeback_bytes_total",
        Counter,
        Volume(|v| bytes(v.writeback_blocks)),
        "Bytes sent home.",
    ),
    metric(
        "forebay_writeback_writes_total",
        Counter,
        Volume(|v| plain(v.writeback_writes)),
        "Writes to the origin that sent them.",
    ),
    metric(
        "forebay_origin_flushes_total",
        Counter,
        Volume(|v| plain(v.origin_flushes)),
        "FLUSHes sent to the origin.",
    ),
    metric(
        "forebay_bad_blocks_total",
        Counter,
        Volume(|v| plain(v.bad_blocks)),
        "Blocks whose checksum did not match when read from a cache device.",
    ),
    metric(
        "forebay_lost_blocks_total",
        Counter,
        Volume(|v| plain(v.lost_blocks)),
        "Dirty blocks whose only good copy is lost.",
    ),
    metric(
        "forebay_request_duration_seconds",
        Kind::Histogram,
        Source::Latency,
        "Time from the arrival of a request to its answer.",
    ),
    metric(
        "forebay_pool_written_bytes_total",
        Counter,
        Pool(|p| {
            let w = &p.written_bytes;
            let values = [
                ("checkpoint", w.checkpoint),
                ("dirty", w.dirty),
                ("fill", w.fill),
                ("header", w.header),
                ("mirror", w.mirror),
                ("reinsert", w.reinsert),
            ];
            // Of a pool that is closed there is nothing to tell.
            if *w == Written::default() { Vec::new() } else { each("cause", &values) }
        }),
        "Bytes written to cache devices, by cause.",
    ),
    metric("forebay_pool_records_total", Counter, Pool(|p| plain(p.records)), "Records written."),
    metric(
        "forebay_pool_flushes_total",
        Counter,
        Pool(|p| plain(p.cache_flushes)),
        "FLUSHes sent to cache devices.",
    ),
    metric(
        "forebay_pool_discarded_bytes_total",
        Counter,
        Pool(|p| plain(p.discarded_bytes)),
        "Bytes of freed segments that cache devices were told of (TRIM).",
    ),
    metric(
        "forebay_pool_segments_reclaimed_total",
        Counter,
        Pool(|p| each("how", &[("dropped", p.segments_dropped), ("cleaned", p.segments_cleaned)])),
        "Segments made free, by whether blocks had to be moved.",
    ),
    metric(
        "forebay_pool_checkpoints_total",
        Counter,
        Pool(|p| plain(p.checkpoints)),
        "Checkpoints written.",
    ),
    metric("forebay_pool_segments", Gauge, Pool(|p| plain(p.segments)), "Segments."),
    metric("forebay_pool_segments_free", Gauge, Pool(|p| plain(p.segments_free)), "Free segments."),
    metric(
        "forebay_pool_room_bytes",
        Gauge,
        Pool(|p| {
            let room = [p.room_free_blocks, p.room_coming_blocks, p.room_writable_blocks];
            let [free, coming, writable] = room.map(|blocks| blocks * BLOCK_SIZE as u64);
            each("what", &[("free", free), ("coming", coming), ("writable", writable)])
        }),
        "Room in the log: free, free when what is under way ends, and what writers may count on.",
    ),
    metric(
        "forebay_pool_capacity_bytes",
        Gauge,
        Pool(|p| bytes(p.slots)),
        "Bytes that the pool can hold.",
    ),
    metric(
        "forebay_pool_cached_bytes",
        Gauge,
        Pool(|p| bytes(p.cached_blocks)),
        "Bytes that the pool holds.",
    ),
    metric(
        "forebay_pool_memory_bytes",
        Gauge,
        Pool(|p| {
            let tier = p.ram_blocks * BLOCK_SIZE as u64;
            each("use", &[("index", p.index_bytes), ("tier", tier)])
        }),
        "Memory in use.",
    ),
    metric(
        "forebay_pool_write_stalls_total",
        Counter,
        Pool(|p| plain(p.write_stalls)),
        "Times that a write waited for space.",
    ),
    metric(
        "forebay_pool_degraded",
        Gauge,
        Pool(|p| plain(u64::from(p.degraded))),
        "1 when a cache device has failed.",
    ),
    metric(
        "forebay_pool_internal_errors_total",
        Counter,
        Source::PoolErrors,
        "Times that the pool's thread ended by an internal error.",
    ),
    metric(
        "forebay_tier_size_bytes",
        Gauge,
        Tier(|it| it.bytes),
        "Bytes for data on a device of a volume's tiers.",
    ),
    metric("forebay_tier_used_bytes", Gauge, Tier(|it| it.used_bytes), "Bytes of them in use."),
    metric(
        "forebay_tier_missing",
        Gauge,
        Tier(|it| u64::from(it.state == DeviceState::Missing)),
        "1 where a device of a volume's tiers is missing.",
    ),
    metric(
        "forebay_tier_reads_total",
        Counter,
        Tier(|it| it.reads),
        "Reads of clients on a device of a volume's tiers.",
    ),
    metric(
        "forebay_tier_read_bytes_total",
        Counter,
        Tier(|it| it.read_bytes),
        "Bytes that they read.",
    ),
    metric(
        "forebay_tier_read_nanoseconds_total",
        Counter,
        Tier(|it| it.read_ns),
        "Nanoseconds that those reads took, all together.",
    ),
    metric(
        "forebay_tier_writes_total",
        Counter,
        Tier(|it| it.writes),
        "Writes of clients on a device of a volume's tiers.",
    ),
    metric(
        "forebay_tier_written_bytes_total",
        Counter,
        Tier(|it| it.written_bytes),
        "Bytes that they wrote.",
    ),
    metric(
        "forebay_tier_write_nanoseconds_total",
        Counter,
        Tier(|it| it.write_ns),
        "Nanoseconds that those writes took, all together.",
    ),
    metric(
        "forebay_tier_moved_in_bytes_total",
        Counter,
        Tier(|it| it.moved_in_bytes),
        "Bytes that moved to a device of a volume's tiers.",
    ),
    metric(
        "forebay_tier_moved_out_bytes_total",
        Counter,
        Tier(|it| it.moved_out_bytes),
        "Bytes that moved away from a device of a volume's tiers.",
    ),
    metric(
        "forebay_tier_read_errors_total",
        Counter,
        Tier(|it| it.read_errors),
        "Reads that a device of a volume's tiers has failed.",
    ),
    metric(
        "forebay_tier_write_errors_total",
        Counter,
        Tier(|it| it.write_errors),
        "Writes and flushes that it has failed.",
    ),
    metric(
        "forebay_tier_no_room_total",
        Counter,
        Tier(|it| it.no_room_errors),
        "Writes that found no room on it, though it has free places: what it lies on is full.",
    ),
    metric(
        "forebay_tiers_refused_writes_total",
        Counter,
        Source::NoRoom,
        "Writes that were refused (ENOSPC) because no device of a volume's tiers had room.",
    ),
    metric(
        "forebay_volume_ephemeral",
        Gauge,
        Source::Ephemeral,
        "1 for a volume whose content ends with the machine.",
    ),
];

const STATES: [State; 6] =
    [State::Opening, State::Ok, State::Draining, State::Degraded, State::Offline, State::Detached];

/// What tiers had no room for, of each volume that has some.
fn no_room(out: &mut String, metric: &str, counters: &Counters) {
    for volume in counters.volumes.iter().filter(|it| !it.tiers.is_empty()) {
        let labels = [("volume", volume.name.as_str()), ("pool", &volume.pool)];
        let sample = ("", String::new(), volume.no_room_writes as f64);
        line(out, metric, &labels, &sample);
    }
}

/// The Prometheus text (format 0.0.4) of everything.
pub fn prometheus(counters: &Counters, status: &Status) -> String {
    let mut out = String::new();
    for metric in METRICS {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(out, "# HELP {} {}", metric.name, metric.help);
        let _ = writeln!(out, "# TYPE {} {kind}", metric.name);
        match metric.source {
            Source::Volume(samples) => {
                for volume in &counters.volumes {
                    let labels = [("volume", volume.name.as_str()), ("pool", &volume.pool)];
                    samples(&volume.stats)
                        .iter()
                        .for_each(|s| line(&mut out, metric.name, &labels, s));
                }
            }
            Source::Pool(samples) => {
                for pool in &counters.pools {
                    let labels = [("pool", pool.name.as_str())];
                    samples(&pool.stats)
                        .iter()
                        .for_each(|s| line(&mut out, metric.name, &labels, s));
                }
            }
            Source::PoolErrors => {
                for pool in &counters.pools {
                    let sample = ("", String::new(), pool.internal_errors as f64);
                    line(&mut out, metric.name, &[("pool", pool.name.as_str())], &sample);
                }
            }
            Source::Tier(value) => {
                for volume in &counters.volumes {
                    tiers(&mut out, metric.name, volume, value);
                }
            }
            Source::NoRoom => no_room(&mut out, metric.name, counters),
            Source::Ephemeral => {
                for volume in &status.volumes {
                    let labels = [("volume", volume.name.as_str()), ("pool", &volume.pool)];
                    let is_so = volume.tiers.as_ref().is_some_and(|tiers| tiers.ephemeral);
                    let sample = ("", String::new(), f64::from(u8::from(is_so)));
                    line(&mut out, metric.name, &labels, &sample);
                }
            }
            Source::Latency => latencies(&mut out, metric.name, counters),
            Source::VolumeState => {
                for volume in &status.volumes {
                    let labels = [("volume", volume.name.as_str()), ("pool", &volume.pool)];
                    for state in STATES {
                        let value = f64::from(u8::from(state == volume.state));
                        let sample = ("state", state.name().to_string(), value);
                        line(&mut out, metric.name, &labels, &sample);
                    }
                }
            }
            Source::Build => {
                let sample = ("version", env!("CARGO_PKG_VERSION").to_string(), 1.0);
                line(&mut out, metric.name, &[], &sample);
            }
            Source::Uptime => {
                line(&mut out, metric.name, &[], &("", String::new(), counters.uptime_s));
            }
        }
    }
    out
}

fn tiers(out: &mut String, name: &str, volume: &VolumeCounters, value: fn(&TierDevice) -> u64) {
    for device in &volume.tiers {
        let tier = device.tier.to_string();
        let labels = [
            ("volume", volume.name.as_str()),
            ("tier", tier.as_str()),
            ("device", device.device.as_str()),
        ];
        line(out, name, &labels, &("", String::new(), value(device) as f64));
    }
}

fn latencies(out: &mut String, name: &str, counters: &Counters) {
    for volume in &counters.volumes {
        let ops = [
            ("read", &volume.stats.read_latency),
            ("write", &volume.stats.write_latency),
            ("flush", &volume.stats.flush_latency),
        ];
        for (op, latency) in ops {
            let labels = [("volume", volume.name.as_str()), ("pool", &volume.pool), ("op", op)];
            histogram(out, name, &labels, latency);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Attention;
    use crate::stats::VolumeCounters;
    use forebay_format::stats::Reason;

    #[test]
    fn names_follow_the_conventions() {
        for metric in METRICS {
            assert!(metric.name.starts_with("forebay_"), "{}", metric.name);
            let total = metric.name.ends_with("_total");
            assert_eq!(total, metric.kind == Kind::Counter, "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn the_text_has_each_sample_once_and_cumulative_buckets() {
        let mut volume = VolumeCounters {
            name: "v\"z".to_string(),
            pool: "p".to_string(),
            stats: VolumeStats { read_hits_full: 3, ..VolumeStats::default() },
            ..VolumeCounters::default()
        };
        volume.stats.not_cached[Reason::Sequential as usize] = 7;
        // Two values of 1.0 to 1.3 µs, one of more than 17 s.
        volume.stats.read_latency.counts[40] = 2;
        volume.stats.read_latency.counts[159] = 1;
        volume.stats.read_latency.sum_ns = 2_000_000_000;
        let counters = Counters { volumes: vec![volume], ..Counters::default() };
        let status = Status {
            state: State::Ok,
            volumes: Vec::new(),
            pools: Vec::new(),
            attention: Attention::default(),
        };
        let text = prometheus(&counters, &status);
        let label = "{volume=\"v\\\"z\",pool=\"p\"";
        let bucket = format!("forebay_request_duration_seconds_bucket{label},op=\"read\"");
        for wanted in [
            format!("forebay_read_requests_total{label},result=\"hit\"}} 3\n"),
            format!("forebay_not_cached_blocks_total{label},reason=\"sequential\"}} 7\n"),
            format!("{bucket},le=\"0.000001024\"}} 0\n"),
            format!("{bucket},le=\"0.000002048\"}} 2\n"),
            format!("{bucket},le=\"+Inf\"}} 3\n"),
            format!("forebay_request_duration_seconds_sum{label},op=\"read\"}} 2\n"),
            format!("forebay_request_duration_seconds_count{label},op=\"read\"}} 3\n"),
        ] {
            assert!(text.contains(&wanted), "{wanted}\n{text}");
        }
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let names = |line: &str| line.rsplit_once(' ').unwrap().0.to_string();
        lines.sort_unstable();
        lines.dedup_by_key(|line| names(line));
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(lines.len(), samples);
    }
}
