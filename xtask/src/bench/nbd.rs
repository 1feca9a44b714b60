//! Read hits over NBD against `nbdkit memory`, which does nothing but answer from memory, in
//! alternating rounds of the same run. All on memory: what is compared is the way from socket to
//! data and back.

use super::daemon::{Daemon, Directory};
use super::results::{Results, Row, Target};
use super::{fio, median};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ROUNDS: usize = 5;
const SET: &str = "--size=256m --bs=4k";
const READ: &str =
    "--rw=randread --norandommap --iodepth=32 --time_based --runtime=4 --size=256m --bs=4k";

/// `nbdkit memory`, ended when dropped.
struct Nbdkit(Child, PathBuf);

impl Nbdkit {
    fn start(directory: &Path) -> Result<Nbdkit> {
        let socket = directory.join("nbdkit.sock");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix"]).arg(&socket).args(["memory", "1G"]);
        let child =
            command.stdin(Stdio::null()).spawn().context("start nbdkit; is it installed?")?;
        let nbdkit = Nbdkit(child, socket);
        for _ in 0..100 {
            if nbdkit.1.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(nbdkit)
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the comparison.
///
/// # Errors
/// If a program is missing or fails.
pub fn run(results: &mut Results) -> Result<()> {
    let memory = Path::new("/dev/shm");
    let directory = Directory::create(memory.is_dir().then_some(memory), "nbd")?;
    results.scrub(directory.path(), "$DIR");
    let cache = directory.file("cache", 1 << 30)?;
    let cache = cache.to_str().context("a path of text")?;
    let daemon = Daemon::start(&directory, &[])?;
    let add = ["cache", "ram:1G", "--with", cache, "--mode", "writeback", "--name", "hit", "--yes"];
    daemon.forebay(&add)?;
    let nbdkit = Nbdkit::start(directory.path())?;
    let ours = fio::nbd_target(&daemon.nbd_socket(), "hit");
    let theirs = fio::nbd_target(&nbdkit.1, "");
    // Both hold real data in memory before anything is measured.
    // In random order: a sequential stream would pass the cache by.
    let fill = format!("--rw=randwrite {SET} --iodepth=8");
    fio::run(results, "nbd-fill-forebay", &[], &ours, &fill)?;
    fio::run(results, "nbd-fill-nbdkit", &[], &theirs, &fill)?;
    fio::run(results, "nbd-warm-forebay", &[], &ours, READ)?;
    let (mut our_rounds, mut their_rounds) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("nbd-{round}-nbdkit");
        their_rounds.push(fio::run(results, &name, &[], &theirs, READ)?.iops());
        let name = format!("nbd-{round}-forebay");
        our_rounds.push(fio::run(results, &name, &[], &ours, READ)?.iops());
    }
    let volume = daemon.forebay(&["volume", "show", "hit", "-o", "json"])?;
    let words = ["forebay", "volume", "show", "hit", "-o", "json"].map(String::from);
    results.raw("nbd-volume.json", &words, &volume)?;
    let ratio = median(&our_rounds) / median(&their_rounds);
    add_rows(results, our_rounds, their_rounds, ratio);
    Ok(())
}

fn add_rows(results: &mut Results, ours: Vec<f64>, theirs: Vec<f64>, ratio: f64) {
    let row = |what: &str, values, unit, target, note: &str| Row {
        what: what.into(),
        values,
        unit,
        target,
        note: note.into(),
    };
    let note = "unix socket, 4 KiB random reads, depth 32, 256 MiB, all hits";
    results.row(row("NBD read hit, Forebay", ours, "IOPS", Target::None, note));
    results.row(row("the same, nbdkit memory", theirs, "IOPS", Target::None, "same run"));
    let note = "medians; nbd-volume.json says where the hits came from";
    let what = "NBD read hit, Forebay / nbdkit memory";
    results.row(row(what, vec![ratio], "×", Target::AtLeast(1.0), note));
}
