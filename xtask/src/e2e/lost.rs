//! The program behind an origin ends while the volume's block device is in use, and comes again.

use super::hangs::{BYTES, SOON, Sick, until};
use crate::bench::daemon::{Daemon, Directory};
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

const BLOCK: usize = 4096;
/// What is written before the loss, and during it; and where nobody has been.
const BEFORE: u64 = 1 << 20;
const DURING: u64 = 2 << 20;
const ELSEWHERE: u64 = 32 << 20;

/// Runs through it.
///
/// # Errors
/// The first step that fails.
pub fn run() -> Result<()> {
    let directory = Directory::create(None, "e2e-lost")?;
    let mut sick = Sick::mount(&directory)?;
    let cache = directory.file("cache", BYTES)?.display().to_string();
    let daemon = Daemon::start(&directory, &[])?;
    let origin = sick.path().display().to_string();
    let words = ["cache", &origin, "--with", &cache, "--mode", "writeback", "--name", "disk"];
    daemon.forebay(&[&words[..], &["--export", "loop", "--yes"]].concat())?;
    let link = daemon.state().join("dev/disk");
    let device = fs::read_link(&link).context("follow the link to the device")?;
    let user = File::options().read(true).write(true).open(&device)?;
    write(&user, BEFORE)?;
    sick.pull_out()?;
    until(SOON, "status says that the origin is lost", || {
        // Only who asks for what is not cached is told.
        let _ = user.read_at(&mut [0; BLOCK], ELSEWHERE);
        Ok(daemon.said(&["status"])?.1.contains("is lost"))
    })?;
    write(&user, DURING)?;
    let dirty = dirty_bytes(&daemon)?;
    ensure!(dirty >= BLOCK as u64, "{dirty} bytes are dirty");
    let (removed, told) = daemon.said(&["volume", "remove", "disk", "--drop-dirty", "--yes"])?;
    ensure!(!removed && told.contains("in use"), "{told}");
    let left = dirty_bytes(&daemon)?;
    ensure!(left >= dirty, "what is refused gave {dirty} bytes up: {left} are left");
    sick.plug_in()?;
    until(SOON, "the origin is used again", || Ok(daemon.said(&["status"])?.0))?;
    user.read_at(&mut [0; BLOCK], ELSEWHERE + BYTES / 4).context("read what is not cached")?;
    daemon.forebay(&["volume", "drain", "disk"])?;
    drop(user);
    daemon.forebay(&["volume", "remove", "disk", "--yes"])?;
    let home = File::open(sick.image())?;
    for at in [BEFORE, DURING] {
        let mut block = [0; BLOCK];
        home.read_exact_at(&mut block, at)?;
        ensure!(block == [at as u8 ^ 0xa5; BLOCK], "what was written at {at} is not at home");
    }
    Ok(())
}

fn write(user: &File, at: u64) -> Result<()> {
    user.write_all_at(&[at as u8 ^ 0xa5; BLOCK], at)?;
    Ok(user.sync_all()?)
}

fn dirty_bytes(daemon: &Daemon) -> Result<u64> {
    let (_, told) = daemon.said(&["volume", "show", "disk", "-o", "json"])?;
    let volume: serde_json::Value = serde_json::from_str(&told)?;
    volume["dirty_bytes"].as_u64().with_context(|| format!("no dirty bytes in {told}"))
}
