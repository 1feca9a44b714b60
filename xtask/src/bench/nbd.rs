//! Read hits over NBD against `nbdkit memory`, which does nothing but answer from memory, in
//! alternating rounds of the same run. All on memory: what is compared is the way from socket to
//! data and back. Both servers' processor time is told beside the rate: it says more on a machine
//! that has other work.

use super::daemon::{Daemon, Directory, processor_seconds};
use super::results::{Results, Row, Target};
use super::{fio, ratios};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ROUNDS: usize = 7;
const SECONDS: f64 = 4.0;
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

/// One of the two servers.
struct Server {
    name: &'static str,
    target: Vec<String>,
    pid: u32,
    /// Requests a second, by round.
    iops: Vec<f64>,
    /// Microseconds of processor time a request, by round.
    processor: Vec<f64>,
}

impl Server {
    fn new(name: &'static str, target: Vec<String>, pid: u32) -> Server {
        Server { name, target, pid, iops: Vec::new(), processor: Vec::new() }
    }

    fn round(&mut self, results: &mut Results, round: usize) -> Result<()> {
        let before = processor_seconds(self.pid)?;
        let name = format!("nbd-{round}-{}", self.name);
        let iops = fio::run(results, &name, &[], &self.target, READ)?.iops();
        let used = processor_seconds(self.pid)? - before;
        self.iops.push(iops);
        self.processor.push(used * 1e6 / (iops * SECONDS));
        Ok(())
    }
}

/// Runs the comparison.
///
/// # Errors
/// If a program is missing or fails.
pub fn run(results: &mut Results) -> Result<()> {
    let (directory, cache) = Directory::with_cache("nbd")?;
    results.scrub(directory.path(), "$DIR");
    let daemon = Daemon::start(&directory, &[])?;
    let add =
        ["cache", "ram:1G", "--with", &cache, "--mode", "writeback", "--name", "hit", "--yes"];
    daemon.forebay(&add)?;
    let nbdkit = Nbdkit::start(directory.path())?;
    let ours = fio::nbd_target(&daemon.nbd_socket(), "hit");
    let mut ours = Server::new("forebay", ours, daemon.pid());
    let mut theirs = Server::new("nbdkit", fio::nbd_target(&nbdkit.1, ""), nbdkit.0.id());
    // Both hold real data in memory before anything is measured.
    // In random order: a sequential stream would pass the cache by.
    let fill = format!("--rw=randwrite {SET} --iodepth=8");
    fio::run(results, "nbd-fill-forebay", &[], &ours.target, &fill)?;
    fio::run(results, "nbd-fill-nbdkit", &[], &theirs.target, &fill)?;
    fio::run(results, "nbd-warm-forebay", &[], &ours.target, READ)?;
    for round in 0..ROUNDS {
        // Neither is always the first.
        let (first, second) =
            if round % 2 == 0 { (&mut theirs, &mut ours) } else { (&mut ours, &mut theirs) };
        first.round(results, round)?;
        second.round(results, round)?;
    }
    let volume = daemon.forebay(&["volume", "show", "hit", "-o", "json"])?;
    let words = ["forebay", "volume", "show", "hit", "-o", "json"].map(String::from);
    results.raw("nbd-volume.json", &words, &volume)?;
    add_rows(results, ours, theirs);
    Ok(())
}

fn add_rows(results: &mut Results, ours: Server, theirs: Server) {
    let (rate, time) =
        (ratios(&ours.iops, &theirs.iops), ratios(&theirs.processor, &ours.processor));
    let note = "unix socket, 4 KiB random reads, depth 32, 256 MiB, all hits";
    results.row(Row::new("NBD read hit, Forebay", ours.iops, "IOPS", Target::None, note));
    results.row(Row::new("the same, nbdkit memory", theirs.iops, "IOPS", Target::None, "same run"));
    let note = "round by round; nbd-volume.json says where the hits came from";
    let what = "NBD read hit, Forebay / nbdkit memory";
    results.row(Row::new(what, rate, "×", Target::AtLeast(1.0), note));
    let what = "processor time a request, Forebay";
    let note = "the whole daemon, user and system";
    results.row(Row::new(what, ours.processor, "µs", Target::None, note));
    let what = "processor time a request, nbdkit memory";
    results.row(Row::new(what, theirs.processor, "µs", Target::None, "all its threads"));
    let what = "processor time a request, nbdkit memory / Forebay";
    results.row(Row::new(what, time, "×", Target::None, "round by round"));
}
