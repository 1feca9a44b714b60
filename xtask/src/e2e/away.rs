//! The cache device is away when the daemon starts, while the volume's device is mounted: who wants
//! to give the volume up is told that it is in use, and can free it all the same.

use super::machine::{Machine, is_configured, tool};
use anyhow::{Result, ensure};
use std::fs;
use std::path::Path;

/// Runs through it.
///
/// # Errors
/// The first step that fails.
pub fn run() -> Result<()> {
    let mut machine = Machine::start("away", 64 << 20)?;
    let device = machine.device();
    tool(&["mkfs.ext4", "-q", "-F", &device])?;
    machine.mount()?;
    let file = Path::new(&machine.mount_point()).join("file");
    fs::write(&file, "dirty")?;
    tool(&["sync", "-f", &machine.mount_point()])?;
    let cache = machine.directory.path().join("cache");
    let away = machine.directory.path().join("cache.away");

    fs::rename(&cache, &away)?;
    machine.daemon.kill_and_start()?;
    let refused = |words: &[&str], because: &str| {
        let (done, said) = machine.daemon.said(words)?;
        ensure!(!done && said.contains(because), "{words:?} does not say `{because}`: {said}");
        anyhow::Ok(())
    };
    refused(&["volume", "detach", "disk"], "do not use the origin")?;
    refused(&["volume", "remove", "disk", "--drop-dirty", "--yes"], "--force")?;
    // Nothing happened: with the device back all goes on.
    fs::rename(&away, &cache)?;
    machine.daemon.kill_and_start()?;
    machine.wait_until_served()?;
    ensure!(fs::read_to_string(&file)? == "dirty", "the file");
    fs::write(&file, "dirty again")?;
    tool(&["sync", "-f", &machine.mount_point()])?;

    fs::rename(&cache, &away)?;
    machine.daemon.kill_and_start()?;
    let (done, said) = machine.daemon.said(&["volume", "detach", "disk", "--force"])?;
    ensure!(done, "detach --force: {said}");
    // The mount has errors now, and can be taken away.
    machine.unmount()?;
    ensure!(!is_configured(Path::new(&device)), "{device} is left");
    fs::rename(&away, &cache)?;
    machine.daemon.kill_and_start()?;
    let (done, said) = machine.daemon.said(&["volume", "attach", "disk"])?;
    ensure!(done, "attach: {said}");
    machine.wait_until_served()?;
    machine.find_device()?;
    machine.mount()?;
    ensure!(fs::read_to_string(&file)? == "dirty again", "what was durable is there");
    machine.unmount()?;
    machine.finish()
}
