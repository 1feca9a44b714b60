//! Two devices at once: a program that compares what is behind them does not take them for one.

use super::machine::{Machine, tool};
use anyhow::{Result, ensure};
use std::fs;

/// Runs through it.
///
/// # Errors
/// The first step that fails.
pub fn run() -> Result<()> {
    let (mut mounted, other) =
        (Machine::start("twins-1", 64 << 20)?, Machine::start("twins-2", 160 << 20)?);
    tool(&["mkfs.ext4", "-q", "-F", &mounted.device()])?;
    mounted.mount()?;
    let behind = |machine: &Machine| {
        fs::read_to_string(format!("/sys/block/{}/loop/backing_file", &machine.device()[5..]))
    };
    // The names of the volumes are the same.
    ensure!(behind(&mounted)? != behind(&other)?, "both are {}", behind(&other)?);
    // It refuses a device when the file behind it is that of a mounted one.
    tool(&["mkfs.btrfs", "-q", &other.device()])?;
    mounted.unmount()?;
    other.finish()?;
    mounted.finish()
}
