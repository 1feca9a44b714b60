//! Whether anybody stops: the longest time in which no request of all ended.
//!
//! A small cache before a simulated hard disk is filled from empty by more writes than the disk
//! takes; then pools of one, two and three devices take reads and writes of several sizes
//! ([`mixed`]). Each is served by a real daemon over NBD, in real time: what else runs on the
//! machine lengthens the gaps, never shortens them.

mod answers;
pub mod drain;
mod mixed;

use super::daemon::{Daemon, Directory, peak_memory_bytes};
use super::fio;
use super::results::{Results, Row, Target};
use super::spindle::PRESET;
use answers::Answers;
use anyhow::{Context, Result};
use std::path::Path;

/// Longest time, in seconds, in which nobody may get an answer.
const GAP_MAX: f64 = 0.5;
const MIB: u64 = 1 << 20;
const FILL: &str = "--rw=randwrite --norandommap --bs=4k --iodepth=16 --time_based \
                    --disable_slat=1 --disable_clat=1";

/// A pool that fills up.
struct Fill {
    name: &'static str,
    rounds: usize,
    seconds: usize,
    cache_mib: u64,
    disk_mib: u64,
}

const SHORT: Fill = Fill { name: "gap", rounds: 3, seconds: 40, cache_mib: 256, disk_mib: 1024 };
const LONG: Fill =
    Fill { name: "gap-long", rounds: 1, seconds: 300, cache_mib: 1024, disk_mib: 4096 };

/// What the rounds of a fill measured.
#[derive(Default)]
struct Measured {
    gap: Vec<f64>,
    longest: Vec<f64>,
    rate: Vec<f64>,
    worst_of_mean: Vec<f64>,
    peak_mib: Vec<f64>,
}

/// Runs the short fill and the mixed loads.
///
/// # Errors
/// If a program is missing or fails, or a request fails or hangs.
pub fn run(results: &mut Results) -> Result<()> {
    SHORT.run(results)?;
    mixed::run(results)
}

/// Runs the fill of a larger pool, for minutes.
///
/// # Errors
/// If a program is missing or fails.
pub fn run_long(results: &mut Results) -> Result<()> {
    LONG.run(results)
}

impl Fill {
    fn run(&self, results: &mut Results) -> Result<()> {
        let mut measured = Measured::default();
        for round in 0..self.rounds {
            self.round(results, round, &mut measured)?;
        }
        self.add_rows(results, measured);
        Ok(())
    }

    /// Fills an empty cache for the time that was set.
    fn round(&self, results: &mut Results, round: usize, measured: &mut Measured) -> Result<()> {
        let name = format!("{}-{round}", self.name);
        let directory = Directory::in_memory(&name)?;
        results.scrub(directory.path(), "$DIR");
        let disk = directory.file("disk", self.disk_mib * MIB)?;
        let origin = format!("spindle:{}?preset={PRESET}", disk.display());
        let mut daemon = Daemon::start(&directory, &[])?;
        add_volume(&daemon, &directory, &origin, &[self.cache_mib])?;
        let log = directory.path().join("fio");
        let load = format!(
            "{FILL} --runtime={} --size={}m --write_lat_log={}",
            self.seconds,
            self.disk_mib,
            log.display()
        );
        let target = fio::nbd_target(&daemon.nbd_socket(), "vol");
        let limit = ["timeout".to_string(), (self.seconds + 60).to_string()];
        let rate = fio::run(results, &name, &limit, &target, &load)?.write_iops;
        let log = std::fs::read_to_string(directory.path().join("fio_lat.1.log"))
            .context("read fio's log of latencies")?;
        let answers = Answers::of_fio(&log)?;
        let words = [format!("fio_lat.1.log of {name}, by second")];
        results.raw(&format!("{name}-seconds.txt"), &words, &answers.table(self.seconds))?;
        measured.gap.push(answers.longest_gap(self.seconds as f64));
        measured.longest.push(answers.longest());
        measured.rate.push(rate);
        measured.worst_of_mean.push(answers.worst_of_mean(self.seconds));
        measured.peak_mib.push(peak_memory_bytes(daemon.pid())? / MIB as f64);
        keep_state(results, &daemon, &name)?;
        // What is dirty would take the disk minutes; nothing of it is wanted any more.
        daemon.kill();
        Ok(())
    }

    fn add_rows(&self, results: &mut Results, measured: Measured) {
        let note = format!(
            "cache of {} MiB in memory, preset {PRESET} of {} MiB, fio randwrite 4 KiB, depth 16, \
             {} s from an empty cache",
            self.cache_mib, self.disk_mib, self.seconds
        );
        let mut row = |what: &str, values, unit, target, note: &str| {
            let what = format!("first fill, {} MiB: {what}", self.cache_mib);
            results.row(Row::new(&what, values, unit, target, note));
        };
        let target = Target::AtMost(GAP_MAX);
        row("longest gap of all writers", measured.gap, "s", target, &note);
        row("longest write", measured.longest, "s", Target::None, "the same runs");
        row("writes", measured.rate, "IOPS", Target::None, "the same runs");
        let note = "of whole seconds; `-seconds.txt` has each";
        row("worst second / mean", measured.worst_of_mean, "×", Target::None, note);
        let note = "the daemon's peak of resident memory";
        row("memory", measured.peak_mib, "MiB", Target::None, note);
    }
}

/// Adds the volume `vol` in write-back, on a new pool of devices of so many MiB.
fn add_volume(
    daemon: &Daemon,
    directory: &Directory,
    origin: &str,
    devices_mib: &[u64],
) -> Result<()> {
    let mut words = vec!["cache".to_string(), origin.to_string()];
    for (at, mib) in devices_mib.iter().enumerate() {
        let device = directory.file(&format!("cache-{at}"), mib * MIB)?;
        words.extend(["--with".to_string(), text(&device)?]);
    }
    words.extend(["--mode", "writeback", "--name", "vol", "--yes"].map(String::from));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    daemon.forebay(&words).map(drop)
}

/// Keeps what the daemon says of itself after a load, and its log.
fn keep_state(results: &mut Results, daemon: &Daemon, name: &str) -> Result<()> {
    let words = ["forebay", "status", "-o", "json"];
    let status = daemon.forebay_within(mixed::LIMIT, &words[1..])?;
    results.raw(&format!("{name}-status.json"), &words.map(String::from), &status)?;
    let log = std::fs::read_to_string(daemon.state().join("log"))?;
    results.raw(&format!("{name}-log.txt"), &["forebayd".to_string()], &log)
}

fn text(path: &Path) -> Result<String> {
    Ok(path.to_str().context("a path of text")?.to_string())
}
