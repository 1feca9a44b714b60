//! A mounted file system grows with the origin under it: the file, the volume, the device, and then
//! btrfs, while fio writes. (To grow a mounted ext4 takes a right that root of a container may not
//! have.)

use super::machine::{Machine, tool};
use crate::command::output;
use anyhow::{Result, ensure};
use std::fs;

const FIRST: u64 = 128 << 20;
const BEFORE: u64 = 160 << 20;
const AFTER: u64 = 512 << 20;

/// Runs through it.
///
/// # Errors
/// The first step that fails.
pub fn run() -> Result<()> {
    let mut machine = Machine::start("growth", FIRST)?;
    let device = machine.device();
    let origin = fs::File::options().write(true).open(machine.directory.path().join("origin"))?;
    // Nobody uses it: nothing makes the kernel look at the file but the command.
    grow(&machine, &origin, BEFORE)?;
    tool(&["mkfs.btrfs", "-q", "-f", &device])?;
    machine.mount()?;
    let mut fio = machine.fio(&["--rw=randwrite", "--size=32M", "--do_verify=1"]);
    let writer = fio.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    let writer = writer.stderr(std::process::Stdio::piped()).spawn()?;
    let said = grow(&machine, &origin, AFTER)?;
    ensure!(said.contains("has grown from 160M to 512M"), "{said}");
    ensure!(said.contains("resize2fs"), "what to do next: {said}");
    tool(&["btrfs", "filesystem", "resize", "max", &machine.mount_point()])?;
    let fio = writer.wait_with_output()?;
    ensure!(fio.status.success(), "fio: {}", String::from_utf8_lossy(&fio.stderr));
    // More than there was before.
    let large = format!("{}/large", machine.mount_point());
    fs::write(&large, vec![0x5a; (BEFORE + BEFORE / 2) as usize])?;
    tool(&["sync", "-f", &large])?;
    machine.daemon.kill_and_start()?;
    machine.wait_until_served()?;
    tool(&["sh", "-c", "echo 3 > /proc/sys/vm/drop_caches"])?;
    ensure!(fs::read(&large)?.iter().all(|byte| *byte == 0x5a), "what was written is there");
    output(&mut machine.fio(&["--rw=randwrite", "--size=32M", "--verify_only=1"]))?;
    machine.unmount()?;
    tool(&["btrfs", "check", "--readonly", &device])?;
    // Who makes the same volume again is not told to try a command that would erase it.
    machine.daemon.forebay(&["volume", "drain", "disk"])?;
    let file = |name: &str| machine.directory.path().join(name).display().to_string();
    let (origin, cache) = (file("origin"), file("cache"));
    let again = ["cache", &origin, "--with", &cache, "--name", "disk", "--export", "loop", "--yes"];
    let said = machine.daemon.forebay(&again)?;
    ensure!(said.contains("it holds     btrfs file system"), "{said}");
    ensure!(!said.contains("mkfs"), "{said}");
    machine.finish()
}

/// Makes the origin larger, and the volume: the device shows it.
fn grow(machine: &Machine, origin: &fs::File, bytes: u64) -> Result<String> {
    origin.set_len(bytes)?;
    let said = machine.daemon.forebay(&["volume", "resize", "disk"])?;
    let sectors = fs::read_to_string(format!("/sys/block/{}/size", &machine.device()[5..]))?;
    ensure!(
        sectors.trim() == (bytes / 512).to_string(),
        "the device has {sectors} sectors: {said}"
    );
    Ok(said)
}
