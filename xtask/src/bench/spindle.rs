//! What a warm cache does for a hard disk: the same mixed workload on the simulated one and on the
//! cache in front of another of its kind, in alternating rounds.
//!
//! The bare disk is served by the same daemon, in `passthrough` with nothing cached, so that both
//! are reached over NBD. A third file beside the cache device takes the same workload directly: it
//! says how fast the fast device is at that moment, and so what limits the cache.

use super::daemon::{Daemon, Directory};
use super::results::{Results, Row, Target};
use super::{fio, ratios};
use anyhow::{Context, Result};

const ROUNDS: usize = 3;
/// The simulated drive.
pub const PRESET: &str = "nas-5400";
const MIXED: &str = "--rw=randrw --rwmixread=75 --norandommap --bs=4k --iodepth=64 --size=1g \
                     --time_based --runtime=10";
const FILL: &str = "--rw=write --bs=1m --iodepth=4 --size=1g";
const WARM: &str = "--rw=randwrite --bs=64k --iodepth=16 --size=1g";

/// Runs the comparison.
///
/// # Errors
/// If a program is missing or fails.
pub fn run(results: &mut Results) -> Result<()> {
    let directory = Directory::create(None, "spindle")?;
    results.scrub(directory.path(), "$DIR");
    let daemon = Daemon::start(&directory, &[])?;
    add_spindle(&daemon, &directory, "bare", "passthrough")?;
    add_spindle(&daemon, &directory, "warm", "writeback")?;
    let bare = fio::nbd_target(&daemon.nbd_socket(), "bare");
    let cached = fio::nbd_target(&daemon.nbd_socket(), "warm");
    let fast = fio::device_target(&directory.file("fast", 1 << 30)?);
    fio::run(results, "spindle-warm-up", &[], &cached, WARM)?;
    fio::run(results, "spindle-fast-fill", &[], &fast, FILL)?;
    let (mut bare_rounds, mut cached_rounds) = (Vec::new(), Vec::new());
    let mut fast_rounds = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("spindle-{round}-bare");
        bare_rounds.push(fio::run(results, &name, &[], &bare, MIXED)?.iops());
        let name = format!("spindle-{round}-cached");
        cached_rounds.push(fio::run(results, &name, &[], &cached, MIXED)?.iops());
        let name = format!("spindle-{round}-fast");
        fast_rounds.push(fio::run(results, &name, &[], &fast, MIXED)?.iops());
    }
    let quotients = ratios(&cached_rounds, &bare_rounds);
    let of_fast = ratios(&cached_rounds, &fast_rounds);
    let note = format!("preset {PRESET}, 4 KiB, 75 % reads, depth 64, over 1 GiB");
    results.row(Row::new("75/25 on the bare spindle", bare_rounds, "IOPS", Target::None, &note));
    let note = "all of the 1 GiB is in the cache; writeback runs meanwhile";
    results.row(Row::new(
        "75/25 cached, write-back, warm",
        cached_rounds,
        "IOPS",
        Target::None,
        note,
    ));
    let note = "a file on the same disk as the cache device, io_uring, past the page cache";
    results.row(Row::new("75/25 on the bare fast device", fast_rounds, "IOPS", Target::None, note));
    let what = "75/25 cached and warm / bare spindle";
    results.row(Row::new(what, quotients, "×", Target::AtLeast(40.0), "round by round"));
    let what = "75/25 cached and warm / bare fast device";
    results.row(Row::new(what, of_fast, "×", Target::None, "round by round"));
    Ok(())
}

/// Adds the volume `name` on a new simulated disk of 16 GiB, with a cache of 4 GiB.
///
/// # Errors
/// If the daemon refuses it.
pub fn add_spindle(daemon: &Daemon, directory: &Directory, name: &str, mode: &str) -> Result<()> {
    let disk = directory.file(name, 16 << 30)?;
    let origin = format!("spindle:{}?preset={PRESET}", disk.display());
    let device = directory.file(&format!("{name}.cache"), 4 << 30)?;
    let device = device.to_str().context("a path of text")?;
    let add = ["cache", &origin, "--with", device, "--mode", mode, "--name", name, "--yes"];
    daemon.forebay(&add).map(drop)
}
