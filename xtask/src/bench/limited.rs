//! Write-back 4 KiB random writes against the raw fast device, which the kernel limits in IOPS.
//!
//! Two loop devices on memory, both limited by the kernel's own throttle (cgroup v1, blkio) to the
//! same reads and writes a second for everything that runs in the group: fio writes to one of them
//! directly, and the daemon, in the same group, uses the other as its cache device. Needs root;
//! without it, or without that controller, the row says that it was not measured.

use super::daemon::{Daemon, Directory};
use super::loop_device::Loop;
use super::results::{Results, Row, Target};
use super::{fio, ratios};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

const ROUNDS: usize = 3;
const LIMIT_IOPS: u64 = 5000;
const BLKIO: &str = "/sys/fs/cgroup/blkio";
const WRITE: &str =
    "--rw=randwrite --norandommap --bs=4k --iodepth=64 --size=512m --time_based --runtime=8";

/// A control group, removed when dropped (by then it is empty).
struct Group(PathBuf);

impl Group {
    fn create(devices: &[&Loop]) -> Result<Group> {
        let path = Path::new(BLKIO).join(format!("forebay-bench-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        let group = Group(path);
        for device in devices {
            let limit = format!("{} {LIMIT_IOPS}", device.told("dev")?);
            std::fs::write(group.0.join("blkio.throttle.write_iops_device"), &limit)?;
            std::fs::write(group.0.join("blkio.throttle.read_iops_device"), &limit)?;
        }
        Ok(group)
    }

    /// The words that start a program within the group.
    fn prefix(&self) -> Vec<String> {
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        ["sh", "-c", &script, "sh"].map(String::from).to_vec()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Runs the comparison.
///
/// # Errors
/// If a program is missing or fails.
pub fn run(results: &mut Results) -> Result<()> {
    let limiter = Path::new(BLKIO).join("blkio.throttle.write_iops_device");
    if std::fs::File::options().write(true).open(&limiter).is_err() {
        results.row(Row {
            what: "write-back against the raw fast device, limited in IOPS".into(),
            values: vec![],
            unit: "×",
            target: Target::AtLeast(1.5),
            note: "not measured: needs root and the blkio controller of cgroup v1".into(),
        });
        return Ok(());
    }
    let directory = Directory::create(Some(Path::new("/dev/shm")), "limited")?;
    results.scrub(directory.path(), "$DIR");
    let raw = Loop::attach(&directory.file("raw", 2 << 30)?, &[])?;
    let cache = Loop::attach(&directory.file("cache", 2 << 30)?, &[])?;
    let group = Group::create(&[&raw, &cache])?;
    results.scrub(&group.0, "$GROUP");
    let (ours, theirs) = compare(results, &directory, &raw, &cache, &group)?;
    let quotients = ratios(&ours, &theirs);
    let row = |what: &str, values, unit, target, note: String| Row {
        what: what.into(),
        values,
        unit,
        target,
        note,
    };
    let note = format!("4 KiB random writes, depth 64, {LIMIT_IOPS} IOPS allowed");
    results.row(row("raw fast device", theirs, "IOPS", Target::None, note));
    let note = "its cache device has the same limit, in the same group".to_string();
    results.row(row("Forebay, write-back, over NBD", ours, "IOPS", Target::None, note));
    let what = "write-back / raw fast device";
    let note = "round by round".to_string();
    results.row(row(what, quotients, "×", Target::AtLeast(1.5), note));
    Ok(())
}

fn compare(
    results: &mut Results,
    directory: &Directory,
    raw: &Loop,
    cache: &Loop,
    group: &Group,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let origin = directory.file("origin", 1 << 30)?;
    let origin = origin.to_str().context("a path of text")?;
    let device = cache.path().to_str().context("a path of text")?;
    let daemon = Daemon::start(directory, &group.prefix())?;
    let add = ["cache", origin, "--with", device, "--mode", "writeback", "--name", "fast", "--yes"];
    daemon.forebay(&add)?;
    let ours_target = fio::nbd_target(&daemon.nbd_socket(), "fast");
    let raw_target = fio::device_target(raw.path());
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("limited-{round}-raw");
        theirs.push(fio::run(results, &name, &group.prefix(), &raw_target, WRITE)?.iops());
        let name = format!("limited-{round}-forebay");
        ours.push(fio::run(results, &name, &[], &ours_target, WRITE)?.iops());
    }
    Ok((ours, theirs))
}
