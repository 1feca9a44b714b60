//! Read hits from a block device over FUSE against a loop device on a bare file, in alternating
//! rounds of the same run. All on memory: what is compared is the way from the block layer to the
//! data and back. Needs root, FUSE and loop devices.

use super::daemon::{Daemon, Directory, processor_seconds};
use super::loop_device::Loop;
use super::results::{Results, Row, Target};
use super::{fio, ratios};
use anyhow::Result;
use std::path::Path;

const ROUNDS: usize = 7;
const SECONDS: f64 = 4.0;
const BYTES: u64 = 256 << 20;
const FILL: &str = "--rw=randwrite --size=256m --bs=4k --iodepth=8";
const READ: &str =
    "--rw=randread --norandommap --iodepth=32 --time_based --runtime=4 --size=256m --bs=4k";
const ALONE: &str =
    "--rw=randread --norandommap --iodepth=1 --time_based --runtime=4 --size=256m --bs=4k";

/// Runs the comparison.
///
/// # Errors
/// If a program, a right or a device is missing, or a program fails.
pub fn run(results: &mut Results) -> Result<()> {
    let (directory, cache) = Directory::with_cache("fuse")?;
    results.scrub(directory.path(), "$DIR");
    let bare = Loop::attach(&directory.file("bare", BYTES)?, &["--direct-io=on", "-b", "4096"])?;
    let mut daemon = Daemon::start(&directory, &[])?;
    let ours = directory.path().join("state/dev/hit");
    daemon.forebay(&[
        "cache",
        "ram:256M",
        "--with",
        &cache,
        "--mode",
        "writeback",
        "--name",
        "hit",
        "--yes",
        "--export",
        "loop",
    ])?;
    let measured = rounds(results, &daemon, &ours, bare.path());
    // In order, so that no device is left: a daemon that is killed leaves it to the next one.
    let removed = daemon.forebay(&["volume", "remove", "hit", "--yes", "--force"]);
    daemon.stop()?;
    measured?;
    removed.map(drop)
}

fn rounds(results: &mut Results, daemon: &Daemon, ours: &Path, bare: &Path) -> Result<()> {
    let (ours, bare) = (fio::device_target(ours), fio::device_target(bare));
    fio::run(results, "fuse-fill-forebay", &[], &ours, FILL)?;
    fio::run(results, "fuse-fill-bare", &[], &bare, FILL)?;
    fio::run(results, "fuse-warm-forebay", &[], &ours, READ)?;
    let mut deep = (Vec::new(), Vec::new(), Vec::new());
    let mut alone = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let read = |results: &mut Results, name: &str, target: &[String], how| {
            fio::run(results, &format!("fuse-{round}-{name}"), &[], target, how)
        };
        // Neither is always the first.
        if round % 2 == 0 {
            deep.1.push(read(results, "bare", &bare, READ)?.iops());
        }
        let before = processor_seconds(daemon.pid())?;
        let iops = read(results, "forebay", &ours, READ)?.iops();
        let used = processor_seconds(daemon.pid())? - before;
        deep.0.push(iops);
        deep.2.push(used * 1e6 / (iops * SECONDS));
        if round % 2 == 1 {
            deep.1.push(read(results, "bare", &bare, READ)?.iops());
        }
        alone.0.push(read(results, "forebay-alone", &ours, ALONE)?.iops());
        alone.1.push(read(results, "bare-alone", &bare, ALONE)?.iops());
    }
    let volume = daemon.forebay(&["volume", "show", "hit", "-o", "json"])?;
    let words = ["forebay", "volume", "show", "hit", "-o", "json"].map(String::from);
    results.raw("fuse-volume.json", &words, &volume)?;
    let rate = ratios(&deep.0, &deep.1);
    let note = "io_uring, direct, 4 KiB random reads, depth 32, 256 MiB, all hits";
    results.row(Row::new("loop over FUSE, Forebay", deep.0, "IOPS", Target::None, note));
    results.row(Row::new("loop over a tmpfs file", deep.1, "IOPS", Target::None, "same run"));
    let what = "loop over FUSE / loop over a tmpfs file";
    let note = "round by round; the classic transport";
    results.row(Row::new(what, rate, "×", Target::AtLeast(0.8), note));
    let note = "the whole daemon, user and system";
    results.row(Row::new("processor time a request", deep.2, "µs", Target::AtMost(2.5), note));
    let rate = ratios(&alone.0, &alone.1);
    results.row(Row::new("depth 1, Forebay", alone.0, "IOPS", Target::None, ""));
    results.row(Row::new("depth 1, bare", alone.1, "IOPS", Target::None, ""));
    results.row(Row::new("depth 1, Forebay / bare", rate, "×", Target::None, "round by round"));
    Ok(())
}
