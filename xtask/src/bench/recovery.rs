//! From `kill -9` to the first answer, with a cache on a real device that is in use.

use super::daemon::{Daemon, Directory};
use super::results::{Results, Row, Target};
use super::{fio, median, nbd_client};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::{Duration, Instant};

const ROUNDS: usize = 3;
const FILL: &str = "--rw=randwrite --bs=64k --iodepth=16 --size=8g";
const UPDATE: &str = "--rw=randwrite --norandommap --bs=4k --iodepth=32 --size=8g \
                      --time_based --runtime=5";

/// Runs the bench.
///
/// # Errors
/// If a program is missing or fails, or the volume does not come back.
pub fn run(results: &mut Results) -> Result<()> {
    let directory = Directory::create(None, "recovery")?;
    results.scrub(directory.path(), "$DIR");
    let (origin, cache) = (directory.file("origin", 8 << 30)?, directory.file("cache", 8 << 30)?);
    let origin = origin.to_str().context("a path of text")?;
    let cache = cache.to_str().context("a path of text")?;
    let mut daemon = Daemon::start(&directory, &[])?;
    let add = ["cache", origin, "--with", cache, "--mode", "writeback", "--name", "vol", "--yes"];
    daemon.forebay(&add)?;
    let target = fio::nbd_target(&daemon.nbd_socket(), "vol");
    fio::run(results, "recovery-fill", &[], &target, FILL)?;
    let mut seconds = Vec::new();
    let mut used = Vec::new();
    for round in 0..ROUNDS {
        fio::run(results, &format!("recovery-{round}-update"), &[], &target, UPDATE)?;
        let before = show(results, &daemon, &format!("recovery-{round}-before.json"))?;
        let start = daemon.kill_and_start()?;
        seconds.push(first_answer(&daemon, start)?);
        let after = show(results, &daemon, &format!("recovery-{round}-after.json"))?;
        eprintln!("    cached bytes before {before}, after {after}");
        used.push(after);
    }
    let gib = median(&used) / (1_u64 << 30) as f64;
    let note = format!("cache in use {gib:.1} GiB; process start and NBD handshake are in it");
    let row = |what: &str, values, target, note: &str| Row {
        what: what.into(),
        values,
        unit: "s",
        target,
        note: note.into(),
    };
    let per_100_gib: Vec<f64> = seconds.iter().map(|value| value * 100.0 / gib).collect();
    results.row(row("first answer after kill -9", seconds, Target::AtMost(1.0), &note));
    let what = "the same, for 100 GiB in use";
    let note = "scaled up, with the constant part";
    results.row(row(what, per_100_gib, Target::AtMost(2.0), note));
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

/// Keeps what `volume show` says, and returns the cached bytes.
fn show(results: &mut Results, daemon: &Daemon, file: &str) -> Result<f64> {
    let words = ["forebay", "volume", "show", "vol", "-o", "json"];
    let raw = daemon.forebay(&words[1..])?;
    results.raw(file, &words.map(String::from), &raw)?;
    let shown: Value = serde_json::from_str(&raw)?;
    find_number(&shown, "cached_bytes").context("`volume show` names no cached_bytes")
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
