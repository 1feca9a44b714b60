//! Segments that are freed: the cache device gets their space back.

use super::hangs::until;
use crate::bench::daemon::{Daemon, Directory};
use crate::bench::loop_device::Loop;
use crate::bench::nbd_client::connect;
use anyhow::{Result, ensure};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const CACHE_BYTES: u64 = 512 * MIB;
const PIECES: u64 = 256;
const WRITTEN: u64 = PIECES * MIB;
/// What may stay: superblocks, checkpoints, and the segments that are open.
const STAYS_MAX: u64 = 64 * MIB;
const LIMIT: Duration = Duration::from_secs(60);

/// Runs through it.
///
/// # Errors
/// The first step that fails.
pub fn run() -> Result<()> {
    let directory = Directory::create(None, "e2e-discard")?;
    let file = directory.file("cache", CACHE_BYTES)?;
    let cache = Loop::attach(&file, &[])?;
    ensure!(cache.told("queue/discard_max_bytes")? != "0", "a loop device gives space back");
    let origin = directory.file("origin", WRITTEN)?.display().to_string();
    let daemon = Daemon::start(&directory, &[])?;
    let device = cache.path().display().to_string();
    let words = ["cache", &origin, "--with", &device, "--mode", "writeback", "--name", "disk"];
    daemon.forebay(&[&words[..], &["--yes"]].concat())?;
    let mut client = connect(&daemon.nbd_socket(), "disk", LIMIT)?;
    let piece = vec![0xa5; MIB as usize];
    // In no order: streams go past the cache.
    (0..PIECES).try_for_each(|n| client.write(n * 37 % PIECES * MIB, &piece))?;
    drop(client);
    let full = held(&file)?;
    ensure!(full >= WRITTEN, "{full} bytes of the cache device are in use");
    daemon.forebay(&["volume", "remove", "disk", "--yes"])?;
    until(LIMIT, "the space of what was removed comes back", || Ok(held(&file)? <= STAYS_MAX))
}

fn held(file: &Path) -> Result<u64> {
    Ok(file.metadata()?.blocks() * 512)
}
