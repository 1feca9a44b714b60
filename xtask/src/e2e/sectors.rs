//! Disks full of data that was made for sectors of 512 bytes: they can be used with a cache in
//! front.

use super::machine::{Machine, tool};
use anyhow::{Result, ensure};
use std::fs;

const TEXT: &str = "there before the cache";

/// Runs through it.
///
/// # Errors
/// The first step that fails.
pub fn run() -> Result<()> {
    let small_ext4 = |origin: &str| {
        // Without a mount: the image is made with what is in a directory.
        let files = format!("{origin}.files");
        fs::create_dir(&files)?;
        fs::write(format!("{files}/old"), TEXT)?;
        tool(&["mkfs.ext4", "-q", "-F", "-b", "1024", "-d", &files, origin]).map(drop)
    };
    let ext4 = Machine::start_on("sectors-ext4", 64 << 20, small_ext4)?;
    used(ext4, Some("old"), &["e2fsck", "-f", "-n"])?;
    let xfs = |origin: &str| tool(&["mkfs.xfs", "-q", "-s", "size=512", origin]).map(drop);
    let xfs = Machine::start_on("sectors-xfs", 320 << 20, xfs)?;
    used(xfs, None, &["xfs_repair", "-n"])
}

/// Reads and writes, across a kill of the daemon, and looks at the origin when all is home.
fn used(mut machine: Machine, old: Option<&str>, check: &[&str]) -> Result<()> {
    let sectors = |machine: &Machine| {
        let name = machine.device()[5..].to_owned();
        fs::read_to_string(format!("/sys/block/{name}/queue/logical_block_size"))
    };
    ensure!(sectors(&machine)?.trim() == "512", "sectors of {}", sectors(&machine)?);
    machine.mount()?;
    let place = machine.mount_point();
    if let Some(old) = old {
        ensure!(fs::read_to_string(format!("{place}/{old}"))? == TEXT, "the old file");
    }
    fs::write(format!("{place}/new"), TEXT)?;
    machine.daemon.kill_and_start()?;
    fs::write(format!("{place}/newer"), TEXT)?;
    machine.unmount()?;
    machine.mount()?;
    for name in ["new", "newer"] {
        ensure!(fs::read_to_string(format!("{place}/{name}"))? == TEXT, "the file {name}");
    }
    machine.unmount()?;
    ensure!(sectors(&machine)?.trim() == "512", "sectors after a start");
    let device = machine.device();
    tool(&[check, &[device.as_str()]].concat())?;
    machine.finish()
}
