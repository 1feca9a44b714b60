//! A burst of random writes sent home, against what the hard disk does with random writes itself,
//! in alternating rounds.
//!
//! In address order the disk passes over the gaps between the blocks, so the denser a burst is, the
//! more is gained: a disk of 170 MB/s cannot take more than 1,300 blocks a second that lie 128 KiB
//! apart.

use super::daemon::{Daemon, Directory};
use super::results::{Results, Row, Target};
use super::spindle::{PRESET, add_spindle};
use super::{fio, ratios};
use anyhow::Result;
use std::time::Instant;

const ROUNDS: usize = 3;
const WRITES: u64 = 32_768;
const RANDOM: &str = "--rw=randwrite --norandommap --bs=4k --iodepth=64 --size=4g";

/// Runs the comparison.
///
/// # Errors
/// If a program is missing or fails.
pub fn run(results: &mut Results) -> Result<()> {
    let directory = Directory::create(None, "burst")?;
    results.scrub(directory.path(), "$DIR");
    let daemon = Daemon::start(&directory, &[])?;
    add_spindle(&daemon, &directory, "bare", "passthrough")?;
    add_spindle(&daemon, &directory, "burst", "writeback")?;
    let bare = fio::nbd_target(&daemon.nbd_socket(), "bare");
    let (mut bare_rounds, mut home_rounds) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // What the disk's own cache takes in at once must not count: the time is long against it.
        let writes = format!("{RANDOM} --time_based --runtime=12 --randseed={}", round + 1);
        let name = format!("burst-{round}-bare");
        bare_rounds.push(fio::run(results, &name, &[], &bare, &writes)?.iops());
        home_rounds.push(send_home(results, &daemon, round)?);
    }
    let quotients = ratios(&home_rounds, &bare_rounds);
    let note = format!("preset {PRESET}, 4 KiB random writes over 4 GiB, depth 64");
    results.row(Row::new("bare spindle, random writes", bare_rounds, "IOPS", Target::None, &note));
    let note =
        "32,768 writes, one in 128 KiB of the disk, from the first one to the end of the drain";
    results.row(Row::new("dirty burst sent home", home_rounds, "blocks/s", Target::None, note));
    let what = "dirty burst sent home / bare spindle";
    results.row(Row::new(what, quotients, "×", Target::AtLeast(5.0), "round by round"));
    Ok(())
}

/// Blocks a second, from the first write to the end of the drain.
fn send_home(results: &mut Results, daemon: &Daemon, round: usize) -> Result<f64> {
    let target = fio::nbd_target(&daemon.nbd_socket(), "burst");
    let writes = format!("{RANDOM} --number_ios={WRITES} --randseed={}", round + 1);
    let start = Instant::now();
    fio::run(results, &format!("burst-{round}-writes"), &[], &target, &writes)?;
    let words = ["forebay", "volume", "drain", "burst", "--yes"];
    let drained = daemon.forebay(&words[1..])?;
    let seconds = start.elapsed().as_secs_f64();
    let told = format!("{drained}{WRITES} writes sent home in {seconds:.3} s\n");
    results.raw(&format!("burst-{round}-drain.txt"), &words.map(String::from), &told)?;
    Ok(WRITES as f64 / seconds)
}
