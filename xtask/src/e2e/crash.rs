//! `kill -9` of the daemon under a mounted file system: a pause, and no error.

use super::machine::{Machine, tool};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// Kills in a test.
pub const KILLS: u32 = 5;
/// Time between two kills.
pub const BETWEEN: Duration = Duration::from_secs(3);
/// The longest that a request may take, in seconds.
const PAUSE_MAX: f64 = 2.0;

/// Kills the daemon five times under fio, which verifies what it wrote, and checks the file system.
///
/// # Errors
/// An error that fio saw, a pause that was too long, a damaged file system.
pub fn run() -> Result<()> {
    let mut machine = Machine::start("kill", 512 << 20)?;
    let device = machine.device();
    tool(&["mkfs.ext4", "-q", "-F", &device])?;
    machine.mount()?;
    let seconds = format!("--runtime={}", BETWEEN.as_secs() * u64::from(KILLS + 1));
    let mut fio = machine.fio(&["--rw=randrw", "--iodepth=16", "--fsync=32", "--time_based"]);
    let fio = fio.arg(seconds).stdout(Stdio::piped()).spawn().context("start fio")?;
    for _ in 0..KILLS {
        std::thread::sleep(BETWEEN);
        machine.daemon.kill_and_start()?;
    }
    let ended = fio.wait_with_output()?;
    let text = String::from_utf8_lossy(&ended.stdout);
    ensure!(ended.status.success(), "fio failed: {}\n{text}", ended.status);
    let report = &text[text.find('{').context("fio's report")?..];
    let report: Value = serde_json::from_str(report).context("read fio's report")?;
    let job = &report["jobs"][0];
    ensure!(job["error"] == 0, "fio saw error {}", job["error"]);
    let longest = |side: &str| job[side]["clat_ns"]["max"].as_f64().unwrap_or(f64::NAN) / 1e9;
    let pause = longest("read").max(longest("write"));
    println!("e2e kill: {KILLS} kills, no error, the longest request took {pause:.3} s");
    ensure!(pause < PAUSE_MAX, "a request took {pause:.3} s; {PAUSE_MAX} s are allowed");
    machine.wait_until_served()?;
    machine.unmount()?;
    tool(&["e2fsck", "-f", "-n", &device])?;
    machine.finish()
}
