//! Power cuts while extents move: a volume over two tiers, of which everything is pinned to the one
//! and to the other, again and again, under the load and under the check.

use super::daemon::{Daemon, forebay, wait_for_volume};
use super::nbd::Client;
use super::{Guest, output, power, run as run_program, wait_until};
use anyhow::{Context, Result, ensure};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How long one command may take.
const LIMIT: Duration = Duration::from_secs(20);
/// How long it may take until something has moved.
const STIRRED: Duration = Duration::from_secs(30);

/// One life without a cache.
///
/// # Errors
/// What failed.
pub fn run(guest: &Guest) -> Result<()> {
    live(guest, &[])
}

/// One life with a write-back cache above.
///
/// # Errors
/// What failed.
pub fn run_cached(guest: &Guest) -> Result<()> {
    live(guest, &["--pool", "above", "--mode", "writeback"])
}

fn live(guest: &Guest, cached: &[&str]) -> Result<()> {
    let mut daemon = Daemon::start_on(guest)?;
    let (fast, slow) = (disk(guest, "pool")?, disk(guest, "origin")?);
    if guest.number("life") == 0 {
        if !cached.is_empty() {
            forebay(&["pool", "create", "above", &disk(guest, "second")?, "--yes"])?;
        }
        let tiers = ["volume", "create", "data", "--tier", &fast, "--tier", &slow];
        let more = ["--size", "32M", "--export", "nbd", "--yes"];
        forebay(&[&tiers, &more[..], cached].concat())?;
        forebay(&["tier", "set", "data", "--rate", "1G"])?;
    }
    wait_for_volume()?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let stirrer = scope.spawn(|| stir(&is_over));
        let lived = power::live(guest, &mut Client::connect(&daemon.nbd(), "data")?, moves);
        is_over.store(true, Ordering::Relaxed);
        stirrer.join().expect("it does not panic").and(lived)
    })?;
    // Only the last life gets here.
    forebay(&["tier", "evacuate", "data", "0"])?;
    daemon.end()?;
    run_program("/usr/bin/forebay", &["inspect", &fast, &slow]).map(drop)
}

fn disk(guest: &Guest, name: &str) -> Result<String> {
    Ok(guest.disk(name)?.to_str().context("a plain name")?.to_string())
}

/// Has everything move to and fro, until it is over.
fn stir(is_over: &AtomicBool) -> Result<()> {
    let all = format!("0-{}", (32 << 20) / 512 - 1);
    for tier in ["1", "0"].iter().cycle() {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let pinned =
            output("/usr/bin/forebay", &["tier", "pin", "data", &all, "--tier", tier], LIMIT)?;
        let why = String::from_utf8_lossy(&pinned.stderr).into_owned();
        ensure!(pinned.status.success(), "pin to tier {tier}: {why}");
    }
    forebay(&["tier", "unpin", "data", &all]).map(drop)
}

/// Waits until something has moved in this life.
fn moves() -> Result<()> {
    wait_until("something moves", STIRRED, || {
        let shown = output("/usr/bin/forebay", &["tier", "show", "data", "-o", "json"], LIMIT)?;
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout)?;
        Ok(shown["tiers"]["moved_bytes"].as_u64().context("it counts what moved")? > 0)
    })
}
