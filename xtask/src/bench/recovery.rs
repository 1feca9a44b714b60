//! From `kill -9` to the first answer, with a small and a large cache that are full and in use, on
//! a real device. What the large one takes longer is what the size costs; the rest is the same for
//! any size: the start of a process, the end of the old one, and one NBD handshake.

use super::daemon::{Daemon, Directory};
use super::results::{Results, Row, Target};
use super::{fio, median, nbd_client};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const SIZES_GIB: [u64; 2] = [1, 5];
const GIB: f64 = (1_u64 << 30) as f64;

/// A cache that is killed again and again.
struct Cache {
    name: String,
    gib: u64,
    // Before the directory in which it works.
    daemon: Daemon,
    _directory: Directory,
    /// From the start of the new process to the first answer, in seconds, by round.
    seconds: Vec<f64>,
    /// Bytes of the cache in use after it, by round.
    used: Vec<f64>,
}

impl Cache {
    /// Makes it, and fills it with random blocks.
    fn create(results: &mut Results, gib: u64) -> Result<Cache> {
        let name = format!("recovery-{gib}g");
        let directory = Directory::create(None, &name)?;
        results.scrub(directory.path(), "$DIR");
        let (origin, device) =
            (directory.file("origin", gib << 30)?, directory.file("cache", gib << 30)?);
        let origin = origin.to_str().context("a path of text")?;
        let device = device.to_str().context("a path of text")?;
        let daemon = Daemon::start(&directory, &[])?;
        let add =
            ["cache", origin, "--with", device, "--mode", "writeback", "--name", "vol", "--yes"];
        daemon.forebay(&add)?;
        let target = fio::nbd_target(&daemon.nbd_socket(), "vol");
        let fill = format!("--rw=randwrite --bs=64k --iodepth=16 --size={gib}g");
        fio::run(results, &format!("{name}-fill"), &[], &target, &fill)?;
        let (seconds, used) = (Vec::new(), Vec::new());
        Ok(Cache { name, gib, daemon, _directory: directory, seconds, used })
    }

    /// Writes for a while, kills, and waits for the first answer.
    fn round(&mut self, results: &mut Results, round: usize) -> Result<()> {
        let target = fio::nbd_target(&self.daemon.nbd_socket(), "vol");
        let update = format!(
            "--rw=randwrite --norandommap --bs=4k --iodepth=32 --size={}g --time_based --runtime=3",
            self.gib
        );
        let name = format!("{}-{round}", self.name);
        fio::run(results, &format!("{name}-update"), &[], &target, &update)?;
        self.show(results, &format!("{name}-before.json"))?;
        let start = self.daemon.kill_and_start()?;
        self.seconds.push(first_answer(&self.daemon, start)?);
        let used = self.show(results, &format!("{name}-after.json"))?;
        self.used.push(used);
        Ok(())
    }

    /// Keeps what `volume show` says, and returns the bytes in use.
    fn show(&self, results: &mut Results, file: &str) -> Result<f64> {
        let words = ["forebay", "volume", "show", "vol", "-o", "json"];
        let raw = self.daemon.forebay(&words[1..])?;
        results.raw(file, &words.map(String::from), &raw)?;
        let shown: Value = serde_json::from_str(&raw)?;
        find_number(&shown, "used_bytes").context("`volume show` names no used_bytes")
    }
}

/// Runs the bench.
///
/// # Errors
/// If a program is missing or fails, or the volume does not come back.
pub fn run(results: &mut Results) -> Result<()> {
    let mut caches = Vec::new();
    for gib in SIZES_GIB {
        caches.push(Cache::create(results, gib)?);
    }
    for round in 0..ROUNDS {
        for cache in &mut caches {
            cache.round(results, round)?;
        }
    }
    let row = |what: String, values, target, note: &str| Row {
        what,
        values,
        unit: "s",
        target,
        note: note.into(),
    };
    for cache in &caches {
        let what = format!("first answer after kill -9, {} GiB of cache", cache.gib);
        let note = format!("{:.2} GiB in use; with process start", median(&cache.used) / GIB);
        results.row(row(what, cache.seconds.clone(), Target::AtMost(1.0), &note));
    }
    let [small, large] = &caches[..] else { unreachable!("two sizes") };
    let gib = (median(&large.used) - median(&small.used)) / GIB;
    let grows = |(large, small): (&f64, &f64)| (large - small) * 100.0 / gib;
    let grown = large.seconds.iter().zip(&small.seconds).map(grows).collect();
    let note = "what the larger cache takes longer, round by round, scaled to 100 GiB";
    results.row(row("recovery of 100 GiB in use".into(), grown, Target::AtMost(2.0), note));
    let whole = large.seconds.iter().map(|value| value * 100.0 * GIB / median(&large.used));
    let note = "the larger one's whole time scaled up, as if its constant part grew too";
    results.row(row("the same, bounded from above".into(), whole.collect(), Target::None, note));
    Ok(())
}

/// Seconds from `start` to the first block that was read.
fn first_answer(daemon: &Daemon, start: Instant) -> Result<f64> {
    while start.elapsed() < Duration::from_secs(120) {
        if nbd_client::read_first_block(&daemon.nbd_socket(), "vol").is_ok() {
            return Ok(start.elapsed().as_secs_f64());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    bail!("the volume does not come back after kill -9")
}

/// The first number with this key, at any depth.
fn find_number(value: &Value, key: &str) -> Option<f64> {
    match value {
        Value::Object(map) => map
            .get(key)
            .and_then(Value::as_f64)
            .or_else(|| map.values().find_map(|value| find_number(value, key))),
        Value::Array(values) => values.iter().find_map(|value| find_number(value, key)),
        _ => None,
    }
}
