//! The device's way through a day: in use it is neither taken away nor lost by a stop of the
//! daemon; unused it goes with it; a holder that dies is replaced.

use super::machine::{Machine, holder, is_configured, tool};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the daemon may take to notice that its holder is gone.
const NOTICE: Duration = Duration::from_secs(5);

/// Whether this process has a connection open.
fn holds(pid: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.into_iter().any(|it| fs::read_link(it.path()).is_ok_and(|to| to == *"/dev/fuse"))
}

/// While nobody serves a mounted device, other loop devices are listed, made, used and ended: all
/// that hung (`losetup` asks each device for the file behind it).
fn others_go_on(machine: &Machine) -> Result<()> {
    let other = machine.directory.file("other", 16 << 20)?.display().to_string();
    // Longer than the kernel believed what it knew of the file.
    std::thread::sleep(Duration::from_millis(1500));
    let begin = Instant::now();
    // Five seconds: who hangs is ended, and the test fails.
    let within = |words: &[&str]| tool(&[&["timeout", "-s", "KILL", "5"][..], words].concat());
    let listed = within(&["losetup", "-a"])?;
    ensure!(listed.contains("/forebay:disk."), "{listed}");
    within(&["losetup", "-j", &other])?;
    let took = begin.elapsed();
    ensure!(took < Duration::from_secs(1), "to list loop devices took {took:?}");
    let device = within(&["losetup", "-f", "--show", &other])?.trim().to_string();
    let used = within(&["mkfs.ext4", "-q", "-F", &device]);
    let used = used.and_then(|_| within(&["blkid", "-p", &device]));
    let used = used.and_then(|_| within(&["df"]));
    let ended = within(&["losetup", "-d", &device]);
    ensure!(used?.contains(&machine.mount_point()), "df names what is mounted");
    ended.map(drop)
}

/// Runs through it.
///
/// # Errors
/// The first step that fails.
pub fn run() -> Result<()> {
    let mut machine = Machine::start("life", 64 << 20)?;
    let device = machine.device();
    tool(&["mkfs.ext4", "-q", "-F", &device])?;
    machine.mount()?;
    let file = Path::new(&machine.mount_point()).join("file");
    fs::write(&file, "kept")?;
    let refused = machine.daemon.forebay(&["volume", "detach", "disk", "--yes"]);
    ensure!(refused.is_err(), "a mounted device was taken away");
    ensure!(fs::read_to_string(&file)? == "kept", "the refusal changed nothing");

    machine.daemon.stop()?;
    ensure!(is_configured(Path::new(&device)), "the device in use was lost by the stop");
    others_go_on(&machine)?;
    machine.daemon.start_again()?;
    machine.wait_until_served()?;
    fs::write(&file, "written after the stop")?;
    tool(&["sync", "-f", &machine.mount_point()])?;

    let first = holder(machine.daemon.state()).context("somebody holds the device")?;
    tool(&["kill", "-9", &first.to_string()])?;
    let end = Instant::now() + NOTICE;
    while !holder(machine.daemon.state()).is_some_and(holds) {
        ensure!(Instant::now() < end, "no other holder was started");
        std::thread::sleep(Duration::from_millis(50));
    }
    tool(&["kill", "-STOP", &machine.daemon.pid().to_string()])?;
    let went_on = others_go_on(&machine);
    tool(&["kill", "-CONT", &machine.daemon.pid().to_string()])?;
    went_on?;
    machine.daemon.kill_and_start()?;
    machine.wait_until_served()?;
    ensure!(fs::read_to_string(&file)? == "written after the stop", "the file");
    machine.unmount()?;

    machine.daemon.stop()?;
    ensure!(!is_configured(Path::new(&device)), "the unused device is left after the stop");
    ensure!(holder(machine.daemon.state()).is_none(), "the holder is left after the stop");
    machine.daemon.start_again()?;
    machine.wait_until_served()?;
    machine.find_device()?;

    // Both at once: what is lost is said by errors, and the next daemon cleans up.
    let lost_device = machine.device();
    let second = holder(machine.daemon.state()).context("somebody holds the device")?;
    tool(&["kill", "-9", &second.to_string()])?;
    machine.daemon.kill();
    let read = format!("if={}", machine.device());
    let lost = tool(&["dd", &read, "of=/dev/null", "bs=4k", "count=1", "iflag=direct"]);
    ensure!(lost.is_err(), "a device that nobody serves must not seem to work");
    machine.daemon.start_again()?;
    machine.wait_until_served()?;
    machine.find_device()?;
    let left = is_configured(Path::new(&lost_device));
    ensure!(!left || machine.device() == lost_device, "{lost_device} is left");
    let read = format!("if={}", machine.device());
    tool(&["dd", &read, "of=/dev/null", "bs=4k", "count=1", "iflag=direct"])?;
    // Taken away by somebody else: said, and mended by one command.
    tool(&["losetup", "-d", &machine.device()])?;
    let status = machine.daemon.forebay(&["status"]);
    ensure!(status.is_err(), "a device that is gone needs attention");
    machine.daemon.forebay(&["volume", "attach", "disk"])?;
    machine.find_device()?;
    let read = format!("if={}", machine.device());
    tool(&["dd", &read, "of=/dev/null", "bs=4k", "count=1", "iflag=direct"])?;
    machine.finish()
}
