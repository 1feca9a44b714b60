//! What a cache does for a hard disk, on the simulated one: a mixed workload that is warm, and a
//! burst of random writes sent home.

use super::daemon::{Daemon, Directory};
use super::fio;
use super::results::{Results, Row, Target};
use anyhow::{Context, Result};
use std::time::Instant;

const PRESET: &str = "nas-5400";
const MIXED: &str = "--rw=randrw --rwmixread=75 --norandommap --bs=4k --iodepth=64 --size=1g \
                     --time_based --runtime=20";
const WARM: &str = "--rw=randwrite --bs=64k --iodepth=16 --size=1g";
const BARE_WRITES: &str = "--rw=randwrite --norandommap --bs=4k --iodepth=64 --size=8g \
                           --time_based --runtime=20";
const BURST_WRITES: u64 = 65_536;

/// Runs both.
///
/// # Errors
/// If a program is missing or fails.
pub fn run(results: &mut Results) -> Result<()> {
    let directory = Directory::create(None, "spindle")?;
    results.scrub(directory.path(), "$DIR");
    let daemon = Daemon::start(&directory, &[])?;
    for (name, mode) in [("bare", "passthrough"), ("mixed", "writeback"), ("burst", "writeback")] {
        let disk = directory.file(name, 16 << 30)?;
        let origin = format!("spindle:{}?preset={PRESET}", disk.display());
        let device = directory.file(&format!("{name}.cache"), 4 << 30)?;
        let device = device.to_str().context("a path of text")?;
        let add = ["cache", &origin, "--with", device, "--mode", mode, "--name", name, "--yes"];
        daemon.forebay(&add)?;
    }
    mixed(results, &daemon)?;
    burst(results, &daemon)
}

fn mixed(results: &mut Results, daemon: &Daemon) -> Result<()> {
    let bare = fio::nbd_target(&daemon.nbd_socket(), "bare");
    let cached = fio::nbd_target(&daemon.nbd_socket(), "mixed");
    fio::run(results, "spindle-mixed-warm-up", &[], &cached, WARM)?;
    let (mut bare_rounds, mut cached_rounds) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let name = format!("spindle-mixed-{round}-bare");
        bare_rounds.push(fio::run(results, &name, &[], &bare, MIXED)?.iops());
        let name = format!("spindle-mixed-{round}-cached");
        cached_rounds.push(fio::run(results, &name, &[], &cached, MIXED)?.iops());
    }
    let ratio = super::median(&cached_rounds) / super::median(&bare_rounds);
    let note = format!("preset {PRESET}, 4 KiB, 75 % reads, depth 64, over 1 GiB");
    results.row(row("75/25 on the bare spindle", bare_rounds, "IOPS", Target::None, &note));
    let note = "all of the 1 GiB is in the cache; writeback runs meanwhile";
    results.row(row("75/25 cached, write-back, warm", cached_rounds, "IOPS", Target::None, note));
    let what = "75/25 cached and warm / bare spindle";
    results.row(row(what, vec![ratio], "×", Target::AtLeast(40.0), "medians"));
    Ok(())
}

fn burst(results: &mut Results, daemon: &Daemon) -> Result<()> {
    let bare = fio::nbd_target(&daemon.nbd_socket(), "bare");
    let cached = fio::nbd_target(&daemon.nbd_socket(), "burst");
    let bare_rate = fio::run(results, "spindle-writes-bare", &[], &bare, BARE_WRITES)?.iops();
    let burst = format!(
        "--rw=randwrite --norandommap --bs=4k --iodepth=64 --size=8g --number_ios={BURST_WRITES}"
    );
    let start = Instant::now();
    fio::run(results, "spindle-burst", &[], &cached, &burst)?;
    let words = ["forebay", "volume", "drain", "burst", "--yes"];
    let drained = daemon.forebay(&words[1..])?;
    let seconds = start.elapsed().as_secs_f64();
    results.raw("spindle-drain.txt", &words.map(String::from), &drained)?;
    let home_rate = BURST_WRITES as f64 / seconds;
    let note = "4 KiB random writes over 8 GiB, depth 64";
    results.row(row("bare spindle, random writes", vec![bare_rate], "IOPS", Target::None, note));
    let note = "65,536 writes, from the first write of the burst to the end of the drain";
    results.row(row("dirty burst sent home", vec![home_rate], "blocks/s", Target::None, note));
    let what = "dirty burst sent home / bare spindle";
    results.row(row(what, vec![home_rate / bare_rate], "×", Target::AtLeast(5.0), ""));
    Ok(())
}

fn row(what: &str, values: Vec<f64>, unit: &'static str, target: Target, note: &str) -> Row {
    Row { what: what.into(), values, unit, target, note: note.into() }
}
