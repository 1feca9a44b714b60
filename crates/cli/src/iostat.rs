//! `iostat`: rates between two looks at the counters.

use crate::args::{Format, IostatArgs};
use crate::output::{self, Column};
use crate::printed;
use crate::show::unexpected;
use forebay_api::size::human;
use forebay_api::stats::{Counters, Histogram, VolumeCounters};
use forebay_api::tiers::TierDevice;
use forebay_api::{ApiError, Body, Client, Request, SCHEMA};
use forebay_format::BLOCK_SIZE;
use serde::Serialize;
use std::time::{Duration, Instant};

/// What happened to one volume in a while.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rates {
    volume: String,
    /// Seconds that this is about.
    seconds: f64,
    reads_per_s: f64,
    writes_per_s: f64,
    read_bytes_per_s: f64,
    write_bytes_per_s: f64,
    /// Share of read requests answered wholly from the cache.
    hit_ratio: Option<f64>,
    writeback_bytes_per_s: f64,
    /// Now.
    dirty_bytes: u64,
    read_p50_ns: Option<u64>,
    read_p99_ns: Option<u64>,
    write_p50_ns: Option<u64>,
    write_p99_ns: Option<u64>,
    flush_p50_ns: Option<u64>,
    flush_p99_ns: Option<u64>,
    /// Of the devices of its tiers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tiers: Vec<TierRates>,
}

/// What clients did on a device of a volume's tiers, and what moved.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierRates {
    tier: u8,
    device: String,
    reads_per_s: f64,
    writes_per_s: f64,
    read_bytes_per_s: f64,
    write_bytes_per_s: f64,
    /// What a read took there, on the average; `None` without any.
    read_ns: Option<f64>,
    write_ns: Option<f64>,
    moved_in_bytes_per_s: f64,
    moved_out_bytes_per_s: f64,
}

impl TierRates {
    fn new(now: &TierDevice, before: Option<&TierDevice>, seconds: f64) -> TierRates {
        let rate = |of: fn(&TierDevice) -> u64| {
            // The volume may have been opened anew in between.
            let was = before.map(of).filter(|was| *was <= of(now)).unwrap_or(0);
            (of(now) - was) as f64 / seconds.max(1e-9)
        };
        let average = |ns: fn(&TierDevice) -> u64, count: fn(&TierDevice) -> u64| {
            let count = rate(count);
            (count > 0.0).then(|| rate(ns) / count)
        };
        TierRates {
            tier: now.tier,
            device: now.device.clone(),
            reads_per_s: rate(|it| it.reads),
            writes_per_s: rate(|it| it.writes),
            read_bytes_per_s: rate(|it| it.read_bytes),
            write_bytes_per_s: rate(|it| it.written_bytes),
            read_ns: average(|it| it.read_ns, |it| it.reads),
            write_ns: average(|it| it.write_ns, |it| it.writes),
            moved_in_bytes_per_s: rate(|it| it.moved_in_bytes),
            moved_out_bytes_per_s: rate(|it| it.moved_out_bytes),
        }
    }

    fn text(&self) -> String {
        format!(
            "  tier {} {}: {} reads/s ({}/s, {} ms each), {} writes/s ({}/s, {} ms each), moves \
             {}/s in, {}/s out",
            self.tier,
            self.device,
            count(self.reads_per_s),
            bytes(self.read_bytes_per_s),
            each(self.read_ns),
            count(self.writes_per_s),
            bytes(self.write_bytes_per_s),
            each(self.write_ns),
            bytes(self.moved_in_bytes_per_s),
            bytes(self.moved_out_bytes_per_s)
        )
    }
}

impl Rates {
    fn new(now: &VolumeCounters, before: &VolumeCounters, seconds: f64) -> Rates {
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds.max(1e-9);
        let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
        let both = |now: &Histogram, before: &Histogram| {
            let latency = now.since(before);
            (latency.quantile_ns(0.5), latency.quantile_ns(0.99))
        };
        let (own, old) = (&now.stats, &before.stats);
        let (read_p50_ns, read_p99_ns) = both(&own.read_latency, &old.read_latency);
        let (write_p50_ns, write_p99_ns) = both(&own.write_latency, &old.write_latency);
        let (flush_p50_ns, flush_p99_ns) = both(&own.flush_latency, &old.flush_latency);
        Rates {
            volume: now.name.clone(),
            seconds,
            reads_per_s: rate(own.reads, old.reads),
            writes_per_s: rate(own.writes, old.writes),
            read_bytes_per_s: rate(own.read_bytes, old.read_bytes),
            write_bytes_per_s: rate(own.write_bytes, old.write_bytes),
            hit_ratio: now.hit_ratio_since(before),
            writeback_bytes_per_s: rate(bytes(own.writeback_blocks), bytes(old.writeback_blocks)),
            dirty_bytes: own.dirty_bytes(),
            read_p50_ns,
            read_p99_ns,
            write_p50_ns,
            write_p99_ns,
            flush_p50_ns,
            flush_p99_ns,
            tiers: now
                .tiers
                .iter()
                .map(|it| {
                    let was = before.tiers.iter().find(|was| was.device == it.device);
                    TierRates::new(it, was, seconds)
                })
                .collect(),
        }
    }
}

fn milliseconds(p50: Option<u64>, p99: Option<u64>) -> String {
    let text = |ns: Option<u64>| {
        ns.map_or_else(|| "-".to_string(), |ns| format!("{:.2}", ns as f64 / 1e6))
    };
    format!("{}/{}", text(p50), text(p99))
}

fn raw_ns(p50: Option<u64>, p99: Option<u64>) -> String {
    let text = |ns: Option<u64>| ns.map_or_else(String::new, |ns| ns.to_string());
    format!("{}/{}", text(p50), text(p99))
}

fn each(ns: Option<f64>) -> String {
    ns.map_or_else(|| "-".to_string(), |ns| format!("{:.2}", ns / 1e6))
}

fn count(rate: f64) -> String {
    if rate < 9999.5 { format!("{rate:.0}") } else { format!("{:.1}k", rate / 1000.0) }
}

fn bytes(rate: f64) -> String {
    human(rate as u64)
}

const RATES: &[Column<Rates>] = &[
    Column::words("VOLUME", "volume", |r| r.volume.clone()),
    Column::number("READ/s", "reads_per_s", |r| r.reads_per_s, count),
    Column::number("WRITE/s", "writes_per_s", |r| r.writes_per_s, count),
    Column::number("READ B/s", "read_bytes_per_s", |r| r.read_bytes_per_s, bytes),
    Column::number("WRITE B/s", "write_bytes_per_s", |r| r.write_bytes_per_s, bytes),
    Column::ratio("HIT", "hit_ratio", |r| r.hit_ratio),
    Column::number("HOME B/s", "writeback_bytes_per_s", |r| r.writeback_bytes_per_s, bytes),
    Column::bytes("DIRTY", "dirty_bytes", |r| r.dirty_bytes),
];

const LATENCIES: &[Column<Rates>] = &[
    Column::numbers(
        "READ p50/p99 ms",
        "read_p50_p99_ns",
        |r| milliseconds(r.read_p50_ns, r.read_p99_ns),
        |r| raw_ns(r.read_p50_ns, r.read_p99_ns),
    ),
    Column::numbers(
        "WRITE p50/p99 ms",
        "write_p50_p99_ns",
        |r| milliseconds(r.write_p50_ns, r.write_p99_ns),
        |r| raw_ns(r.write_p50_ns, r.write_p99_ns),
    ),
    Column::numbers(
        "FLUSH p50/p99 ms",
        "flush_p50_p99_ns",
        |r| milliseconds(r.flush_p50_ns, r.flush_p99_ns),
        |r| raw_ns(r.flush_p50_ns, r.flush_p99_ns),
    ),
];

/// One report: rates of every volume between two looks.
fn report(now: &Counters, before: &Counters, seconds: f64) -> Vec<Rates> {
    let none = VolumeCounters::default();
    now.volumes
        .iter()
        .map(|volume| {
            let same = |other: &&VolumeCounters| {
                // A volume of that name whose counters went back is another one.
                other.name == volume.name
                    && other.pool == volume.pool
                    && other.stats.reads <= volume.stats.reads
            };
            Rates::new(volume, before.volumes.iter().find(same).unwrap_or(&none), seconds)
        })
        .collect()
}

/// Prints reports until there were enough. The first is about the time since the start.
///
/// # Errors
/// The daemon does not answer, or standard output is closed.
pub fn run(client: &Client, format: Format, args: &IostatArgs) -> Result<u8, ApiError> {
    let count = match (args.interval, args.count) {
        (None, _) => 1,
        (Some(_), count) => count.unwrap_or(u64::MAX),
    };
    let (latency, verbose) = (args.latency, args.verbose);
    let reports = Reports { format, latency, verbose, several: args.interval.is_some() };
    let pause = Duration::from_secs_f64(args.interval.unwrap_or(1.0));
    let (mut before, mut at) = (Counters::default(), Instant::now());
    let mut printed_count = 0;
    let mut first = true;
    while printed_count < count {
        let patience = if first { Duration::ZERO } else { OUTAGE_MAX };
        let (now, when) = look(client, pause, patience)?;
        let mut seconds = (when - at).as_secs_f64();
        // One that is younger than the last look counts anew.
        if first || now.uptime_s < seconds {
            (before, seconds) = (Counters::default(), now.uptime_s);
        }
        if !(first && args.skip_first) {
            let mut rates = report(&now, &before, seconds);
            if !args.verbose {
                rates.iter_mut().for_each(|it| it.tiers.clear());
            }
            print(reports, &rates, printed_count == 0)?;
            printed_count += 1;
        }
        (before, at, first) = (now, when, false);
        if printed_count < count {
            std::thread::sleep(pause);
        }
    }
    Ok(0)
}

/// How long a daemon that answered before is waited for.
const OUTAGE_MAX: Duration = Duration::from_secs(600);

/// Asks for the counters. A daemon that does not answer is waited for: it may be on its way back.
fn look(
    client: &Client,
    pause: Duration,
    patience: Duration,
) -> Result<(Counters, Instant), ApiError> {
    let begin = Instant::now();
    let mut is_told = false;
    loop {
        match client.ask(&Request::Counters) {
            Ok(Body::Counters(counters)) => return Ok((counters, Instant::now())),
            Ok(body) => return Err(unexpected(&body)),
            Err(error) if begin.elapsed() >= patience => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    eprintln!("forebay: {}; looking again", error.message);
                }
                std::thread::sleep(pause);
            }
        }
    }
}

/// Which reports are printed.
#[derive(Clone, Copy)]
struct Reports {
    format: Format,
    latency: bool,
    verbose: bool,
    /// There may be others.
    several: bool,
}

/// Prints one of the reports.
fn print(
    Reports { format, latency, verbose, several }: Reports,
    rates: &[Rates],
    first: bool,
) -> Result<(), ApiError> {
    let columns = [RATES, if latency { LATENCIES } else { &[] }].concat();
    let document = serde_json::json!({"schema": SCHEMA, "kind": "iostat", "volumes": rates});
    match format {
        Format::Csv => {
            let lines = match verbose {
                true => output::csv_lines(&headings(&columns), &with_tiers(&columns, rates)),
                false => output::csv(&columns, rates),
            };
            printed(output::lines(&lines[usize::from(!first)..]))
        }
        // One document after another is none: each report is one line.
        Format::Json if several => printed(output::json_line(&document)),
        _ => printed(output::rows(format, &document, &columns, rates, |it| {
            it.tiers.iter().map(TierRates::text).collect()
        })),
    }
}

/// What follows the columns of volumes where devices of tiers have rows, too.
const OF_TIERS: [&str; 6] =
    ["tier", "device", "read_ns", "write_ns", "moved_in_bytes_per_s", "moved_out_bytes_per_s"];

fn headings(columns: &[Column<Rates>]) -> Vec<String> {
    columns.iter().map(|column| column.key).chain(OF_TIERS).map(str::to_string).collect()
}

/// The row of each volume, and below it those of the devices of its tiers. What one of them does
/// not have is empty.
fn with_tiers(columns: &[Column<Rates>], rates: &[Rates]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for volume in rates {
        let own = columns.iter().map(|column| column.raw(volume));
        rows.push(own.chain(OF_TIERS.map(|_| String::new())).collect());
        for it in &volume.tiers {
            let shared = columns.iter().map(|column| match column.key {
                "volume" => volume.volume.clone(),
                "reads_per_s" => it.reads_per_s.to_string(),
                "writes_per_s" => it.writes_per_s.to_string(),
                "read_bytes_per_s" => it.read_bytes_per_s.to_string(),
                "write_bytes_per_s" => it.write_bytes_per_s.to_string(),
                _ => String::new(),
            });
            let ns = |ns: Option<f64>| ns.map_or_else(String::new, |ns| ns.to_string());
            let own = [
                it.tier.to_string(),
                it.device.clone(),
                ns(it.read_ns),
                ns(it.write_ns),
                it.moved_in_bytes_per_s.to_string(),
                it.moved_out_bytes_per_s.to_string(),
            ];
            rows.push(shared.chain(own).collect());
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::stats::VolumeStats;
    use forebay_api::tiers::DeviceState;

    fn counters(reads: u64, hits: u64) -> Counters {
        let volume = VolumeCounters {
            name: "vz".to_string(),
            pool: "fast".to_string(),
            stats: VolumeStats {
                reads,
                read_hits_full: hits,
                read_misses: reads - hits,
                ..VolumeStats::default()
            },
            ..VolumeCounters::default()
        };
        Counters { volumes: vec![volume], ..Counters::default() }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let rates = report(&counters(300, 150), &counters(100, 50), 2.0);
        assert_eq!(rates[0].reads_per_s, 100.0);
        assert_eq!(rates[0].hit_ratio, Some(0.5));
        assert_eq!(rates[0].read_p50_ns, None);
        // The daemon was started anew in between.
        let rates = report(&counters(30, 30), &counters(100, 50), 2.0);
        assert_eq!(rates[0].reads_per_s, 15.0);
        assert_eq!(rates[0].hit_ratio, Some(1.0));
    }

    fn device() -> TierDevice {
        TierDevice {
            tier: 0,
            device: String::new(),
            state: DeviceState::Ok,
            leaving: false,
            holds_map: false,
            bytes: 0,
            used_bytes: 0,
            reads: 0,
            read_bytes: 0,
            read_ns: 0,
            writes: 0,
            written_bytes: 0,
            write_ns: 0,
            moved_in_bytes: 0,
            moved_out_bytes: 0,
            read_errors: 0,
            write_errors: 0,
            no_room_errors: 0,
            full: false,
            failing: false,
            map_lost: false,
            waits_s: 0,
            cut_to_bytes: None,
        }
    }

    /// It was 0 %, as if there were a cache that never had anything.
    #[test]
    fn without_a_cache_there_is_no_hit_ratio() {
        let mut now = counters(30, 0);
        now.volumes[0].pool = String::new();
        assert_eq!(report(&now, &Counters::default(), 2.0)[0].hit_ratio, None);
    }

    #[test]
    fn rows_of_tiers_have_the_columns_of_volumes_and_their_own() {
        let device = TierDevice {
            tier: 1,
            device: "/dev/a,b".to_string(),
            reads: 8,
            read_bytes: 4096,
            read_ns: 32,
            ..device()
        };
        let mut now = counters(30, 0);
        now.volumes[0].tiers = vec![device];
        let rates = report(&now, &Counters::default(), 2.0);
        let lines = output::csv_lines(&headings(RATES), &with_tiers(RATES, &rates));
        let shared = "volume,reads_per_s,writes_per_s,read_bytes_per_s,write_bytes_per_s,\
                      hit_ratio,writeback_bytes_per_s,dirty_bytes";
        let own = "tier,device,read_ns,write_ns,moved_in_bytes_per_s,moved_out_bytes_per_s";
        assert_eq!(lines[0], format!("{shared},{own}"));
        assert_eq!(lines[1], "vz,15,0,0,0,0.0000,0,0,,,,,,");
        assert_eq!(lines[2], "vz,4,0,2048,0,,,,1,\"/dev/a,b\",4,,0,0");
    }
}
