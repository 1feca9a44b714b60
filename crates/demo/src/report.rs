//! What was seen, as lines of a table and as sentences.

use super::stage::{Row, Show};
use super::tiers::{BURST_MIB, Placed, RAM_MIB};
use serde::Serialize;

/// One line of the table. Rates are per second, ratios 0 to 1.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// What was measured.
    pub name: &'static str,
    /// Requests a second of the mixed workload.
    pub iops: f64,
    /// Megabytes a second of the mixed workload.
    pub megabytes: f64,
    /// Median latency in milliseconds.
    pub p50_ms: f64,
    /// The latency that 99 % of the requests did not exceed, in milliseconds.
    pub p99_ms: f64,
    /// Share of reads that the cache answered.
    pub hits: Option<f64>,
    /// IOPS over those of the bare disk.
    pub factor: f64,
    /// Megabytes a second of the sequential workload.
    pub sequential_megabytes: f64,
    /// Those over the bare disk's.
    pub sequential_factor: f64,
    /// Share of its bytes that the cache answered.
    pub sequential_hits: Option<f64>,
    /// The latency that 99 % of its requests did not exceed, in milliseconds.
    pub sequential_p99_ms: f64,
}

/// Whether something that must hold held.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// Whether it held.
    pub good: bool,
    /// What was looked at and what was seen.
    pub text: String,
}

/// One column of the table: for people, and for programs where it is a number.
pub struct Column {
    /// Heading for people.
    pub title: &'static str,
    /// Heading for programs.
    pub key: &'static str,
    /// What people read of a line.
    pub text: fn(&Line) -> String,
    /// What programs read of it, if that is something else.
    pub raw: Option<fn(&Line) -> String>,
}

const fn number(
    title: &'static str,
    key: &'static str,
    text: fn(&Line) -> String,
    raw: fn(&Line) -> String,
) -> Column {
    Column { title, key, text, raw: Some(raw) }
}

/// The columns of the table.
pub const COLUMNS: &[Column] = &[
    Column { title: "", key: "name", text: |line| line.name.to_string(), raw: None },
    number("IOPS", "iops", |l| format!("{:.0}", l.iops), |l| l.iops.to_string()),
    number("MB/s", "megabytes", |l| format!("{:.1}", l.megabytes), |l| l.megabytes.to_string()),
    number("P50 ms", "p50_ms", |l| millis(l.p50_ms), |l| l.p50_ms.to_string()),
    number("P99 ms", "p99_ms", |l| millis(l.p99_ms), |l| l.p99_ms.to_string()),
    number("HITS", "hits", |l| percent(l.hits), |l| raw(l.hits)),
    number("FACTOR", "factor", |l| factor(l.factor), |l| l.factor.to_string()),
    number(
        "SEQ MB/s",
        "sequential_megabytes",
        |l| format!("{:.0}", l.sequential_megabytes),
        |l| l.sequential_megabytes.to_string(),
    ),
    number(
        "P99 ms",
        "sequential_p99_ms",
        |l| millis(l.sequential_p99_ms),
        |l| l.sequential_p99_ms.to_string(),
    ),
    number("HITS", "sequential_hits", |l| percent(l.sequential_hits), |l| raw(l.sequential_hits)),
    number(
        "FACTOR",
        "sequential_factor",
        |l| factor(l.sequential_factor),
        |l| l.sequential_factor.to_string(),
    ),
];

fn raw(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| share.to_string())
}

/// Milliseconds with as many digits as they deserve.
pub fn millis(ms: f64) -> String {
    match ms {
        ms if ms < 0.1 => format!("{ms:.3}"),
        ms if ms < 10.0 => format!("{ms:.2}"),
        ms => format!("{ms:.0}"),
    }
}

/// A share as a percentage, rounded down: 100 % means all. A dash for none.
pub fn percent(share: Option<f64>) -> String {
    match share {
        None => "-".to_string(),
        Some(share) if share >= 1.0 => "100 %".to_string(),
        Some(share) => format!("{:.1} %", (share * 1000.0).floor() / 10.0),
    }
}

/// How many times.
pub fn factor(factor: f64) -> String {
    if factor < 10.0 { format!("{factor:.2} x") } else { format!("{factor:.0} x") }
}

/// A number with its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The table's lines; the first row is what the others are compared with.
pub fn lines(show: &Show) -> Vec<Line> {
    let Some(bare) = show.rows.first() else { return Vec::new() };
    let (iops, stream) = (bare.mixed.iops(), bare.sequential.megabytes());
    let line = |row: &Row| Line {
        name: row.name,
        iops: row.mixed.iops(),
        megabytes: row.mixed.megabytes(),
        p50_ms: row.mixed.latency_ms(0.50),
        p99_ms: row.mixed.latency_ms(0.99),
        hits: row.hits,
        factor: row.mixed.iops() / iops,
        sequential_megabytes: row.sequential.megabytes(),
        sequential_factor: row.sequential.megabytes() / stream,
        sequential_hits: row.sequential_hits,
        sequential_p99_ms: row.sequential.latency_ms(0.99),
    };
    show.rows.iter().map(line).collect()
}

impl Show {
    /// Whether nothing was lost, wrong or refused.
    pub fn is_good(&self) -> bool {
        verdicts(self).iter().all(|verdict| verdict.good)
    }
}

/// What one way to place data on tiers has shown. Rates are per second.
#[derive(Debug, Clone, Serialize)]
pub struct TiersLine {
    /// The way.
    pub placement: &'static str,
    /// Megabytes a second of writing in a row, through the moment in which the memory is full.
    pub fill_megabytes: f64,
    /// Requests a second on what found no room in memory, in the end.
    pub iops: f64,
    /// Megabytes a second of new data after a rest.
    pub burst_megabytes: f64,
}

/// The ways to place data on tiers.
pub fn tiers(show: &Show) -> Vec<TiersLine> {
    let line = |it: &Placed| TiersLine {
        placement: it.placement,
        fill_megabytes: it.fill.megabytes(),
        iops: it.iops_at_last(),
        burst_megabytes: it.burst.megabytes(),
    };
    show.tiers.iter().map(line).collect()
}

/// How moving compares with not moving, once both were played.
fn tiers_in_words(show: &Show) -> Option<Verdict> {
    let lines = tiers(show);
    let of = |way: &str| lines.iter().find(|it| it.placement == way);
    let (heat, spill) = (of("heat")?, of("spill")?);
    let text = format!(
        "Scratch space of {RAM_MIB} MiB of memory and a disk, the memory full of older data: what \
         found no room there takes {} requests a second where data move, and {} where they do \
         not; {BURST_MIB} MiB of new data are written at {:.0} MB/s, and {:.0}.",
        grouped(heat.iops as u64),
        grouped(spill.iops as u64),
        heat.burst_megabytes,
        spill.burst_megabytes
    );
    Some(Verdict { good: true, text })
}

/// What must hold, and whether it did.
pub fn verdicts(show: &Show) -> Vec<Verdict> {
    let mut verdicts = verdicts_of_cache(show);
    verdicts.extend(tiers_in_words(show));
    verdicts
}

fn verdicts_of_cache(show: &Show) -> Vec<Verdict> {
    let (crash, home) = (&show.crash, &show.home);
    let (files, bytes) = show.files;
    let verified = crash.verified.checked;
    vec![
        Verdict {
            good: show.broken_files.is_empty() && show.file_checks > 0,
            text: match show.broken_files.len() {
                0 => format!(
                    "All {files} files ({} MB) on the disk are what they were: read back through \
                     their file system and compared by checksum {} times.",
                    bytes / 1_000_000,
                    show.file_checks
                ),
                count => {
                    format!("{count} files are broken, the first is {}.", show.broken_files[0])
                }
            },
        },
        Verdict {
            good: show.checked.1 == 0 && show.errors == 0,
            text: format!(
                "{} reads of the workload were compared with what had been written: {} were wrong. \
                 {} requests failed.",
                grouped(show.checked.0),
                show.checked.1,
                show.errors
            ),
        },
        Verdict {
            good: crash.verified.wrong == 0 && verified == crash.written as u64,
            text: format!(
                "After kill -9 in the middle of a write-back run, with {} MB not yet at home and \
                 {} writes under way: {} of {} written blocks read back, {} acknowledged ones \
                 lost.",
                crash.dirty_bytes / 1_000_000,
                crash.unsettled,
                grouped(verified),
                grouped(crash.written as u64),
                crash.verified.wrong
            ),
        },
        Verdict {
            good: true,
            text: format!(
                "The new daemon answered its first read {} ms after its start, and the cache was \
                 warm: {} of the first {} reads were hits.",
                crash.first_read.as_millis(),
                percent(crash.verified_hits),
                grouped(verified)
            ),
        },
        Verdict {
            good: home.read.wrong == 0 && home.read.checked == home.blocks as u64,
            text: format!(
                "In the end {} MB were sent home in {:.1} s ({} blocks a second), and the disk \
                 without cache or daemon held {} of {} written blocks as they should be.",
                home.dirty_bytes / 1_000_000,
                home.elapsed.as_secs_f64(),
                grouped((home.dirty_bytes as f64 / 4096.0 / home.elapsed.as_secs_f64()) as u64),
                grouped(home.read.checked - home.read.wrong),
                grouped(home.blocks as u64)
            ),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!([0.0123, 1.234, 532.1].map(millis), ["0.012", "1.23", "532"]);
        assert_eq!([0.994, 3.456, 412.3].map(factor), ["0.99 x", "3.46 x", "412 x"]);
        assert_eq!((percent(Some(0.9987)), percent(None)), ("99.8 %".into(), "-".into()));
    }
}
