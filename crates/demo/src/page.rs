//! The page: everything in one file, no script, nothing loaded from elsewhere.

use std::fmt::Write;

use super::load::BIN;
use super::report::{self, Line, factor, grouped, millis, percent};
use super::stage::{self, Show};
use super::svg::{self, Entry, Stretch, escape};
use super::tiers::{self, Placed};

const STYLE: &str = include_str!("page.css");

/// Colour of a row: the cache stands out, what it is compared with does not.
fn class(name: &str) -> &'static str {
    match name {
        "bare disk" => "disk",
        "bare fast device" => "fast",
        _ => "cache",
    }
}

/// The whole page.
pub fn page(show: &Show) -> String {
    let lines = report::lines(show);
    let mut out = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Forebay demo</title>\
         <meta name=viewport content=\"width=device-width\"><style>{STYLE}</style><main>\
         <h1>Forebay demo</h1><p class=lead>A simulated 5400 rpm NAS disk ({} GiB, \
         <code>spindle:</code> preset <code>{}</code>) with a file system full of files, and a \
         file of {} GiB on this machine's own storage as the cache. One workload on all of them: \
         4 KiB at random over a working set of 256 MiB that is spread over the whole disk, 75 % \
         reads, 25 % writes, {} requests under way.</p>",
        stage::ORIGIN_BYTES >> 30,
        stage::PRESET,
        stage::CACHE_BYTES >> 30,
        stage::DEPTH,
    );
    tiles(show, &lines, &mut out);
    plots(&lines, &mut out);
    crash(show, &mut out);
    table(&lines, &mut out);
    tiered(show, &mut out);
    out.push_str("<h2>What was checked</h2><ul class=verdicts>");
    for verdict in report::verdicts(show) {
        let mark = if verdict.good { "good" } else { "bad" };
        let _ = write!(out, "<li class={mark}>{}</li>", escape(&verdict.text));
    }
    let _ = write!(
        out,
        "</ul><p class=foot>Played in {:.0} s by <code>forebay demo</code> {} on {} processors, \
         as an ordinary user. The cache was driven through NBD over a unix socket; the bare disk \
         and the bare fast device were driven directly, which flatters them. The fast device is \
         whatever holds the temporary folder. The disk is a model; <code>docs/spindle.md</code> \
         says how it was held against published figures.</p></main></html>",
        show.elapsed.as_secs_f64(),
        env!("CARGO_PKG_VERSION"),
        std::thread::available_parallelism().map_or(1, usize::from),
    );
    out
}

fn tiles(show: &Show, lines: &[Line], out: &mut String) {
    let warm = lines.iter().find(|line| line.name == "warm, writeback");
    let crash = &show.crash;
    let right = show.files.0 - show.broken_files.len().min(show.files.0);
    let intact = format!("of {} files intact", show.files.0);
    let tiles = [
        (
            warm.map_or("-".into(), |line| factor(line.factor)),
            "the bare disk's IOPS, warm, writeback",
        ),
        (format!("{}", crash.verified.wrong), "acknowledged blocks lost by kill -9"),
        (percent(crash.verified_hits), "hits in the first reads after the restart"),
        (format!("{} ms", crash.first_read.as_millis()), "from start to first read after the kill"),
        (format!("{right}"), intact.as_str()),
    ];
    out.push_str("<div class=tiles>");
    for (number, text) in tiles {
        let _ = write!(out, "<div><b>{}</b><span>{}</span></div>", escape(&number), escape(text));
    }
    out.push_str("</div>");
}

fn plots(lines: &[Line], out: &mut String) {
    let bars: Vec<Entry> = lines
        .iter()
        .map(|line| Entry {
            label: line.name,
            class: class(line.name),
            values: (line.iops, line.iops),
            note: format!("{}  ({})", grouped(line.iops as u64), factor(line.factor)),
        })
        .collect();
    let _ = write!(
        out,
        "<h2>Requests a second</h2><p>Mixed workload; a step to the right is ten times as many. \
         In brackets: compared with the bare disk.</p>{}",
        svg::bars("Requests a second of the mixed workload", "", &bars)
    );
    let spans: Vec<Entry> = lines
        .iter()
        .map(|line| Entry {
            label: line.name,
            class: class(line.name),
            values: (line.p50_ms, line.p99_ms),
            note: format!("{} to {} ms", millis(line.p50_ms), millis(line.p99_ms)),
        })
        .collect();
    let _ = write!(
        out,
        "<h2>How long a request takes</h2><p>Filled dot: half of the requests were faster (p50). \
         Open dot: 99 % were (p99).</p>{}",
        svg::ranges("Latency of the mixed workload", " ms", &spans)
    );
    let streams: Vec<Entry> = lines
        .iter()
        .map(|line| Entry {
            label: line.name,
            class: class(line.name),
            values: (line.sequential_megabytes, line.sequential_megabytes),
            note: format!("{:.0} MB/s", line.sequential_megabytes),
        })
        .collect();
    let _ = write!(
        out,
        "<h2>Reading in a row</h2><p>256 KiB at a time, {} under way, over {} MiB again and \
         again. Disks are good at this, so a cache has little to win.</p>{}",
        stage::DEPTH_SEQUENTIAL,
        stage::SEQUENTIAL_BYTES >> 20,
        svg::bars("Megabytes a second of the sequential workload", "", &streams)
    );
}

fn crash(show: &Show, out: &mut String) {
    let crash = &show.crash;
    let Some(after) = show.rows.iter().find(|row| row.name == "writeback, after kill -9") else {
        return;
    };
    let rate = |timeline: &[u64], seconds: f64| {
        // The last bin is cut off in the middle; what is left of it says nothing.
        let whole = ((seconds / BIN.as_secs_f64()) as usize).max(1).min(timeline.len());
        timeline[..whole].iter().map(|&n| n as f64 / BIN.as_secs_f64()).collect::<Vec<f64>>()
    };
    let stretch = |name: &str, class, seen: &super::load::Seen| Stretch {
        name: name.to_string(),
        class,
        seconds: seen.elapsed.as_secs_f64(),
        values: rate(&seen.timeline, seen.elapsed.as_secs_f64()),
    };
    let stretches = [
        stretch("write-back workload", "cache", &crash.before),
        Stretch {
            name: format!("kill -9: {} ms without answer", crash.gap.as_millis()),
            class: "dead",
            seconds: crash.gap.as_secs_f64(),
            values: Vec::new(),
        },
        stretch("every block read back", "verify", &crash.verified),
        stretch("workload again", "cache", &after.mixed),
    ];
    let _ = write!(
        out,
        "<h2>Killed in the middle</h2><p>Requests a second while the daemon is killed with {} MB \
         of data that only the cache holds, and started again. The reads in a row before the last \
         stretch are left out.</p>{}",
        crash.dirty_bytes / 1_000_000,
        svg::timeline("Requests a second around the kill", &stretches)
    );
}

/// Tiers: how fast, and where each mebibyte lives.
fn tiered(show: &Show, out: &mut String) {
    if show.tiers.is_empty() {
        return;
    }
    let stretch = |it: &Placed, seen: &super::load::Seen, bytes: f64| Stretch {
        name: it.placement.to_string(),
        class: if it.placement == "heat" { "cache" } else { "disk" },
        seconds: seen.elapsed.as_secs_f64(),
        values: seen.timeline.iter().map(|&n| n as f64 * bytes / BIN.as_secs_f64()).collect(),
    };
    let of = |of: fn(&Placed) -> &super::load::Seen, unit| -> Vec<Stretch> {
        show.tiers.iter().map(|it| stretch(it, of(it), unit)).collect()
    };
    let megabytes_of_a_request = f64::from(256 << 10) / 1e6;
    let class = |tier: &Option<u8>| tier.map(|it| if it == 0 { "cache" } else { "disk" });
    let band = |label: String, places: &[Option<u8>]| (label, places.iter().map(class).collect());
    let bands: Vec<(String, Vec<Option<&str>>)> = show
        .tiers
        .iter()
        .flat_map(|it| {
            let [written, used] = &it.places;
            let label = |when: &str| format!("{}, {when}", it.placement);
            [band(label("written"), written), band(label("after use"), used)]
        })
        .collect();
    let _ = write!(
        out,
        "<h2>Tiers</h2><p>Scratch space: {} MiB of memory, and behind it the same kind of disk, as \
         one volume. {} MiB are written in a row, and then the first {} MiB that found no room in \
         memory are used, 4 KiB at random, {} requests under way. <b>spill</b> is what a linear \
         array does: what comes late stays on the disk. With <b>heat</b> data move: what is used \
         comes to the memory, and {} MiB of new data find room there.</p><p>Megabytes a second \
         while it is written, through the moment in which the memory is full:</p>{}<p>Requests a \
         second on what found no room:</p>{}<p>Where each mebibyte lives, from the first to the \
         last (green: in memory; brown: on the disk):</p>{}",
        tiers::RAM_MIB,
        tiers::FILL_MIB,
        tiers::HOT_MIB,
        tiers::DEPTH,
        tiers::BURST_MIB,
        svg::timeline(
            "Megabytes a second while the tiers are filled",
            &of(|it| &it.fill, megabytes_of_a_request)
        ),
        svg::timeline("Requests a second on tiers", &of(|it| &it.mixed, 1.0)),
        svg::bands("Where each mebibyte lives", &bands)
    );
}

fn table(lines: &[Line], out: &mut String) {
    out.push_str(
        "<h2>All numbers</h2><div class=wide><table><thead><tr><th></th><th colspan=6>mixed, 4 \
         KiB</th><th colspan=4>in a row, 256 KiB</th></tr><tr>",
    );
    for column in report::COLUMNS {
        let _ = write!(out, "<th>{}</th>", escape(column.title));
    }
    out.push_str("</tr></thead><tbody>");
    for line in lines {
        let _ = write!(out, "<tr class={}>", class(line.name));
        for column in report::COLUMNS {
            let _ = write!(out, "<td>{}</td>", escape(&(column.text)(line)));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

#[cfg(test)]
mod tests {
    use super::super::load::Seen;
    use super::super::stage::{Crash, Home, Row};
    use super::*;
    use std::time::Duration;

    fn seen(iops: u64, seconds: u64) -> Seen {
        let latency = 64_000_000 / iops;
        Seen {
            requests: iops * seconds,
            bytes: iops * seconds * 4096,
            elapsed: Duration::from_secs(seconds),
            latencies: (0..100).map(|n| (latency * (50 + n) / 100) as u32).collect(),
            timeline: (0..seconds * 10).map(|n| iops / 10 + n % 7 * iops / 200).collect(),
            checked: 1000,
            ..Seen::default()
        }
    }

    fn placed((placement, iops, [first, last]): (&'static str, u64, [u8; 2])) -> Placed {
        let places = |it: u8| vec![Some(it), Some(1), None];
        Placed {
            placement,
            fill: seen(2000, 2),
            mixed: seen(iops, 8),
            burst: seen(iops, 1),
            places: [places(first), places(last)],
        }
    }

    fn show() -> Show {
        let rows = [
            ("bare disk", 130, None),
            ("bare fast device", 48_000, None),
            ("cold, writethrough", 140, Some(0.031)),
            ("warm, writeback", 33_000, Some(0.9996)),
            ("writeback, after kill -9", 32_000, Some(1.0)),
        ];
        let row = |(name, iops, hits): (&'static str, u64, Option<f64>)| Row {
            name,
            mixed: seen(iops, 5),
            sequential: seen(40_000, 2),
            hits,
            sequential_hits: hits,
        };
        Show {
            rows: rows.into_iter().map(row).collect(),
            crash: Crash {
                before: seen(33_000, 4),
                verified: Seen { checked: 60_000, ..seen(30_000, 2) },
                written: 60_000,
                verified_hits: Some(1.0),
                dirty_bytes: 234_000_000,
                first_read: Duration::from_millis(320),
                gap: Duration::from_millis(350),
                unsettled: 17,
            },
            home: Home {
                dirty_bytes: 250_000_000,
                elapsed: Duration::from_secs(5),
                read: Seen { checked: 60_000, ..Seen::default() },
                blocks: 60_000,
            },
            tiers: [("spill", 300, [0, 1]), ("heat", 20_000, [1, 0])].map(placed).into(),
            files: (240, 48_000_000),
            file_checks: 3,
            broken_files: Vec::new(),
            checked: (1_000_000, 0),
            errors: 0,
            elapsed: Duration::from_secs(77),
        }
    }

    #[test]
    fn a_page_stands_alone_and_shows_everything() {
        let mut show = show();
        let page = page(&show);
        if let Some(file) = std::env::var_os("FOREBAY_DEMO_PAGE") {
            std::fs::write(file, &page).expect("the page");
        }
        for needed in [
            "254 x",
            "warm, writeback",
            "99.9 %",
            "48,000",
            "234 MB",
            "17 writes",
            "heat, after use",
        ] {
            assert!(page.contains(needed), "{needed}");
        }
        for name in ["table", "svg", "ul", "main", "div", "path", "text"] {
            let count = |what: String| page.matches(&what).count();
            let opened = count(format!("<{name} ")) + count(format!("<{name}>"));
            let closed = count(format!("</{name}>"));
            let own_end = if name == "path" { opened } else { closed };
            assert_eq!(opened, own_end, "{name}");
        }
        for foreign in ["<script", "http://", "https://", "url(", "@import", "NaN", "inf"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(show.is_good() && !page.contains("class=bad"));
        show.crash.verified.wrong = 1;
        assert!(!show.is_good());
        assert!(super::page(&show).contains("class=bad"));
    }
}
