//! A file system on the device: made, filled and verified, trimmed, checked.

use super::machine::{Machine, tool};
use crate::command::output;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::FileExt;

/// A kind of file system.
pub struct Kind {
    name: &'static str,
    /// Makes it; the device follows.
    make: &'static [&'static str],
    /// Checks it, changing nothing; the device follows.
    check: &'static [&'static str],
}

/// ext4.
pub const EXT4: Kind =
    Kind { name: "ext4", make: &["mkfs.ext4", "-q", "-F"], check: &["e2fsck", "-f", "-n"] };
/// xfs.
pub const XFS: Kind =
    Kind { name: "xfs", make: &["mkfs.xfs", "-q", "-f"], check: &["xfs_repair", "-n"] };
/// btrfs.
pub const BTRFS: Kind = Kind {
    name: "btrfs",
    make: &["mkfs.btrfs", "-q", "-f"],
    check: &["btrfs", "check", "--readonly"],
};

fn on(words: &[&'static str], device: &str) -> Result<String> {
    let words: Vec<&str> = words.iter().copied().chain([device]).collect();
    tool(&words)
}

/// Runs the whole life of a file system.
///
/// # Errors
/// The first step that fails.
pub fn run(kind: &Kind) -> Result<()> {
    let mut machine = Machine::start(kind.name, 512 << 20)?;
    let device = machine.device();
    limits(&device)?;
    on(kind.make, &device)?;
    machine.mount()?;
    output(&mut machine.fio(&["--rw=randwrite", "--iodepth=16", "--fsync=64", "--do_verify=1"]))?;
    let trimmed = tool(&["fstrim", "-v", &machine.mount_point()])?;
    ensure!(!trimmed.contains(": 0 B"), "nothing was trimmed: {trimmed}");
    output(&mut machine.fio(&["--rw=randwrite", "--verify_only=1"]))?;
    machine.unmount()?;
    on(kind.check, &device)?;
    zeroes(&device)?;
    machine.finish()
}

/// What the kernel was told of the device.
fn limits(device: &str) -> Result<()> {
    let name = device.trim_start_matches("/dev/");
    let read = |what: &str| -> Result<String> {
        let path = format!("/sys/block/{name}/{what}");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        Ok(text.trim().to_string())
    };
    ensure!(read("queue/write_cache")? == "write back", "FLUSH must arrive");
    ensure!(read("queue/discard_max_bytes")? != "0", "discards must arrive");
    ensure!(read("queue/write_zeroes_max_bytes")? != "0", "write-zeroes must arrive");
    ensure!(read("queue/logical_block_size")? == "4096", "the block size");
    ensure!(read("loop/dio")? == "1", "direct I/O");
    Ok(())
}

/// `blkdiscard -z` leaves zeros, and touches nothing beside.
fn zeroes(device: &str) -> Result<()> {
    let file = fs::File::options().read(true).write(true).open(device)?;
    file.write_all_at(&[0xa5; 3 << 20], 64 << 20)?;
    file.sync_all()?;
    tool(&["blkdiscard", "-f", "-z", "-o", "65M", "-l", "1M", device])?;
    let mut seen = vec![0; 3 << 20];
    file.read_exact_at(&mut seen, 64 << 20)?;
    let parts: Vec<bool> = seen.chunks(1 << 20).map(|part| part.iter().all(|b| *b == 0)).collect();
    ensure!(parts == [false, true, false], "zeros are where they should not be: {parts:?}");
    ensure!(seen[..1 << 20].iter().all(|byte| *byte == 0xa5), "the bytes before were changed");
    Ok(())
}
