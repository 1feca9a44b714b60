//! The origin of a write-back volume hangs: what only the cache holds is kept, written onto a copy
//! of the disk by ddrescue, and given up without waiting for the origin.

use super::hangs::{BYTES, SOON, Sick, io, until};
use crate::bench::daemon::{Daemon, Directory};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const BLOCK: usize = 4096;
/// Blocks that are written, and how far they are from each other.
const BLOCKS: usize = 64;
const APART: usize = 256 << 10;
/// What qemu-io writes.
const WRITTEN: u8 = 0xcd;
/// What is on the disk before.
const BEFORE: u8 = 0x5a;
/// After ten seconds it is known that an origin hangs.
const TOLD: Duration = Duration::from_secs(20);

/// Runs through it.
///
/// # Errors
/// The first step that fails.
pub fn run() -> Result<()> {
    let directory = Directory::create(None, "e2e-rescue")?;
    let sick = Sick::mount(&directory)?;
    fs::write(sick.image(), vec![BEFORE; BYTES as usize])?;
    let cache = directory.file("cache", BYTES)?.display().to_string();
    let mut daemon = Daemon::start(&directory, &[])?;
    let origin = sick.path().display().to_string();
    let words = ["cache", &origin, "--with", &cache, "--mode", "writeback", "--name", "sick"];
    let make = [&words[..], &["--export", "nbd", "--yes"]].concat();
    daemon.forebay(&make)?;
    sick.signal("-STOP")?;
    let done = while_it_hangs(&daemon, &directory);
    sick.signal("-CONT")?;
    done?;
    until(SOON, "the origin is used by a new volume", || Ok(daemon.said(&make)?.0))?;
    daemon.stop()
}

fn while_it_hangs(daemon: &Daemon, directory: &Directory) -> Result<()> {
    io(daemon, "sick", "write", SOON)?;
    // What is dirty is on its way home, and does not get there; and somebody reads.
    let uri = format!("nbd+unix:///sick?socket={}", daemon.nbd_socket().display());
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", &uri, "-c", "read 128k 4k"]).stdin(Stdio::null());
    let mut stuck = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let done = (|| {
        std::thread::sleep(Duration::from_secs(2));
        keep(daemon, directory)?;
        until(TOLD, "status names the origin that hangs", || {
            Ok(daemon.said(&["status"])?.1.contains("has not ended an I/O for"))
        })?;
        keep(daemon, directory)?;
        ensure!(stuck.try_wait()?.is_none(), "the origin does not hang");
        let remove = ["volume", "remove", "sick", "--drop-dirty", "--yes", "--force"];
        let told = daemon.forebay_within(SOON, &remove)?;
        ensure!(told.contains("256K of dirty data is lost"), "{told}");
        let (_, left) = daemon.said(&["volume", "list"])?;
        ensure!(!left.contains("sick"), "it is still there: {left}");
        until(SOON, "who waits for the origin is told", || Ok(stuck.try_wait()?.is_some()))
    })();
    let _ = stuck.kill();
    let _ = stuck.wait();
    done
}

/// Keeps what is dirty, and compares what a disk with that on it has.
fn keep(daemon: &Daemon, directory: &Directory) -> Result<()> {
    let kept = directory.path().join("kept.img").display().to_string();
    let words = ["volume", "rescue", "sick", "--to", &kept, "--force"];
    let told = daemon.forebay_within(SOON, &words)?;
    ensure!(told.contains("256K in 64 range(s)"), "{told}");
    let disk = directory.path().join("disk.img");
    let mut wanted = vec![BEFORE; BYTES as usize];
    fs::write(&disk, &wanted)?;
    apply(directory.path(), &disk)?;
    for n in 0..BLOCKS {
        wanted[n * APART..][..BLOCK].fill(WRITTEN);
    }
    ensure!(fs::read(&disk)? == wanted, "the disk has something else than what was written");
    Ok(())
}

/// As the command line says how.
fn apply(directory: &Path, disk: &Path) -> Result<()> {
    let _ = fs::remove_file(directory.join("applied.map"));
    let mut command = Command::new("ddrescue");
    command.args(["--force", "--domain-mapfile=kept.map", "kept.img"]).arg(disk);
    command.arg("applied.map").current_dir(directory).stdout(Stdio::null());
    ensure!(command.status().context("start ddrescue")?.success(), "ddrescue failed");
    Ok(())
}
