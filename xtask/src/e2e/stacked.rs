//! What lies on a volume, or is used through a loop device, is neither an origin nor a cache.

use super::machine::{Machine, tool};
use anyhow::{Result, ensure};

/// Runs through it.
///
/// # Errors
/// The first step that fails.
pub fn run() -> Result<()> {
    let mut machine = Machine::start("stacked", 64 << 20)?;
    let (device, link) = (machine.device(), machine.link().display().to_string());
    tool(&["mkfs.ext4", "-q", "-F", &device])?;
    machine.mount()?;
    let image = format!("{}/image", machine.mount_point());
    tool(&["truncate", "-s", "16M", &image])?;
    let file = machine.directory.file("file", 16 << 20)?.display().to_string();
    let refused = |words: &[&str], because: &str| {
        let (done, said) = machine.daemon.said(words)?;
        ensure!(!done && said.contains(because), "{words:?} does not say `{because}`: {said}");
        anyhow::Ok(())
    };
    let create = ["volume", "create", "top", "--export", "nbd", "--origin"];
    for origin in [&device, &link, &image] {
        refused(&[&create[..], &[origin]].concat(), "which is volume disk")?;
    }
    refused(&["cache", &file, "--with", &image, "--name", "top"], "which is volume disk")?;
    let other = tool(&["losetup", "-f", "--show", &file])?;
    let looped = refused(&[&create[..], &[&file]].concat(), "in use by /dev/loop");
    tool(&["losetup", "-d", other.trim()])?;
    looped?;
    let (done, said) = machine.daemon.said(&[&create[..], &[&file]].concat())?;
    ensure!(done, "{said}");
    machine.daemon.forebay(&["volume", "remove", "top", "--yes"])?;
    // A loop device over what is a tier already.
    machine.daemon.forebay(&["volume", "create", "tiers", "--export", "nbd", "--tier", &file])?;
    let over = tool(&["losetup", "-f", "--show", &file])?;
    let words = ["volume", "create", "top", "--export", "nbd", "--force", "-y", "--tier"];
    let looped = refused(&[&words[..], &[over.trim()]].concat(), "is a tier of volume tiers");
    tool(&["losetup", "-d", over.trim()])?;
    looped?;
    machine.daemon.forebay(&["volume", "remove", "tiers", "--yes"])?;
    machine.unmount()?;
    machine.finish()
}
