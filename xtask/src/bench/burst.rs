//! A burst of random writes sent home, against what the hard disk does with random writes itself,
//! in alternating rounds.
//!
//! In address order the disk passes over the gaps between the blocks, so the denser a burst is, the
//! more is gained: a disk of 170 MB/s cannot take more than 1,300 blocks a second that lie 128 KiB
//! apart, whoever sends them, and 2,600 that lie 64 KiB apart. Both are measured.

use super::daemon::{Daemon, Directory};
use super::results::{Results, Row, Target};
use super::spindle::{PRESET, add_spindle};
use super::{fio, ratios};
use anyhow::Result;
use std::time::Instant;

const ROUNDS: usize = 3;
/// Writes of a burst, over 4 GiB.
const BURSTS: [u64; 2] = [32_768, 65_536];
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
    let mut bare_rounds = Vec::new();
    let mut home_rounds = BURSTS.map(|_| Vec::new());
    for round in 0..ROUNDS {
        // What the disk's own cache takes in at once must not count: the time is long against it.
        let writes = format!("{RANDOM} --time_based --runtime=12 --randseed={}", round + 1);
        let name = format!("burst-{round}-bare");
        bare_rounds.push(fio::run(results, &name, &[], &bare, &writes)?.iops());
        for (count, rounds) in BURSTS.into_iter().zip(&mut home_rounds) {
            rounds.push(send_home(results, &daemon, round, count)?);
        }
    }
    let note = format!("preset {PRESET}, 4 KiB random writes over 4 GiB, depth 64");
    let bare = bare_rounds.clone();
    results.row(Row::new("bare spindle, random writes", bare_rounds, "IOPS", Target::None, &note));
    for (count, rounds) in BURSTS.into_iter().zip(home_rounds) {
        let quotients = ratios(&rounds, &bare);
        let apart = (4 << 20) / count;
        let note = format!(
            "{count} writes, one in {apart} KiB of the disk, from the first one to the end of the \
             drain"
        );
        let what = format!("dirty burst of {count} sent home");
        results.row(Row::new(&what, rounds, "blocks/s", Target::None, &note));
        let what = format!("the same / bare spindle, {apart} KiB apart");
        results.row(Row::new(&what, quotients, "×", Target::AtLeast(5.0), "round by round"));
    }
    Ok(())
}

/// Blocks a second of a burst of so many writes, from the first one to the end of the drain.
fn send_home(results: &mut Results, daemon: &Daemon, round: usize, count: u64) -> Result<f64> {
    let target = fio::nbd_target(&daemon.nbd_socket(), "burst");
    let writes = format!("{RANDOM} --number_ios={count} --randseed={}", round + 1);
    let start = Instant::now();
    fio::run(results, &format!("burst-{round}-{count}-writes"), &[], &target, &writes)?;
    let words = ["forebay", "volume", "drain", "burst", "--yes"];
    let drained = daemon.forebay(&words[1..])?;
    let seconds = start.elapsed().as_secs_f64();
    let told = format!("{drained}{count} writes sent home in {seconds:.3} s\n");
    results.raw(&format!("burst-{round}-{count}-drain.txt"), &words.map(String::from), &told)?;
    Ok(count as f64 / seconds)
}
