//! Block devices of ublk, and of the kernel's NBD, which must stand the same.

use super::daemon::{Daemon, forebay, make_volume, wait_for_volume};
use super::{Guest, run, run_for, wait_until};
use crate::vm::initramfs::HOST_TESTS;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where the volume's file system is mounted.
pub(super) const MOUNT: &str = "/mnt/data";
/// The links to the volumes' devices, and the one of `data`.
const LINKS: &str = "/mnt/state/forebay/dev";
const LINK: &str = "/mnt/state/forebay/dev/data";
/// How often the daemon ends under a writer.
const ROUNDS: usize = 2;
/// A request that waits for the next daemon takes up to 2 s here, under software emulation. One
/// that a driver's own timer of ten seconds brings back is too late.
const PAUSE_SECONDS_MAX: f64 = 9.0;
const NODES_LIMIT: Duration = Duration::from_secs(20);

/// The host's own tests, which need the driver.
///
/// # Errors
/// If one fails.
pub fn port(_: &Guest) -> Result<()> {
    let words = ["FOREBAY_REQUIRE_UBLK=1", HOST_TESTS, "ublk", "--test-threads=1"];
    run_for("env", &words, Duration::from_secs(150)).map(drop)
}

/// The same tests without it, and what a user is told.
///
/// # Errors
/// If one fails, or the driver is there.
pub fn missing(guest: &Guest) -> Result<()> {
    let there = Path::new("/dev/ublk-control").exists();
    ensure!(!there, "the driver was to be missing");
    let words = [HOST_TESTS, "ublk_port", "--test-threads=1"];
    run_for("env", &words, Duration::from_secs(50))?;
    let _daemon = Daemon::start_on(guest)?;
    let error = make_volume(guest, &["--export", "ublk"]).expect_err("nothing can make it");
    ensure!(format!("{error:#}").contains("modprobe ublk_drv"), "{error:#}");
    Ok(())
}

/// File systems on a device; the daemon is killed under a writer, twice; detach; the origin alone
/// is a clean file system.
///
/// # Errors
/// What failed.
pub fn killed(guest: &Guest) -> Result<()> {
    let device = outlives_the_daemon(guest, "ublk")?;
    ensure!(!device.exists(), "{} is still there", device.display());
    Ok(())
}

/// The same over the kernel's NBD.
///
/// # Errors
/// What failed.
pub fn nbd_killed(guest: &Guest) -> Result<()> {
    let device = outlives_the_daemon(guest, "nbd-kernel")?;
    let name = device.file_name().context("a device has a name")?.to_string_lossy().into_owned();
    let size = fs::read_to_string(format!("/sys/block/{name}/size"))?;
    ensure!(size.trim() == "0", "{name} is still connected");
    refused_without_its_timer()
}

/// Without the kernel's timer a request whose answer died with the daemon would wait for ever: no
/// device is made then, none is left, and it is told. With the timer, the next daemon makes it.
fn refused_without_its_timer() -> Result<()> {
    let names: Vec<String> = (0..16).map(|n| format!("/sys/block/nbd{n}")).collect();
    let devices = || names.iter().filter(|name| Path::new(name).exists());
    ensure!(devices().count() > 0, "there is no nbd device");
    for device in devices() {
        // Nothing can be written to it.
        run("mount", &["--bind", "/dev/full", &format!("{device}/queue/io_timeout")])?;
    }
    let mut daemon = Daemon::start()?;
    wait_until("the daemon answers", NODES_LIMIT, || Ok(forebay(&["pool", "list"]).is_ok()))?;
    let origin = "/run/untimed";
    fs::File::create(origin)?.set_len(8 << 20)?;
    let create = ["volume", "create", "untimed", "--origin", origin, "--export", "nbd-kernel"];
    let said = forebay(&create)?;
    ensure!(said.contains("it has no block device: write /sys/block/nbd"), "{said}");
    for device in devices() {
        let size = fs::read_to_string(format!("{device}/size"))?;
        ensure!(size.trim() == "0", "{device} is left");
        run("umount", &[&format!("{device}/queue/io_timeout")])?;
    }
    // Its mounts are its own.
    daemon.end()?;
    let _daemon = Daemon::start()?;
    let link = Path::new(LINKS).join("untimed");
    wait_until("the device is there", NODES_LIMIT, || Ok(link.exists()))?;
    forebay(&["volume", "remove", "untimed", "--yes"])?;
    fs::remove_file(origin).map_err(Into::into)
}

fn outlives_the_daemon(guest: &Guest, export: &str) -> Result<PathBuf> {
    // As systemd has it: the daemon then takes mounts of its own.
    run("mount", &["--make-rshared", "/"])?;
    let mut daemon = Daemon::start_on(guest)?;
    let device = make(guest, export)?;
    let name = device.file_name().context("a device has a name")?.to_string_lossy().into_owned();
    let queue = |file: &str| fs::read_to_string(format!("/sys/block/{name}/queue/{file}"));
    ensure!(queue("write_cache")?.trim() == "write back", "the kernel must send FLUSH");
    ensure!(queue("fua")?.trim() == "1", "the kernel must send FUA");
    ensure!(queue("write_zeroes_max_bytes")?.trim() != "0", "the kernel must send zeroes");
    let own = fs::read_link(format!("/proc/{}/ns/mnt", daemon.id()))?;
    ensure!(own != fs::read_link("/proc/self/ns/mnt")?, "the daemon shares our mounts");
    make_file_system(&device)?;
    for _ in 0..ROUNDS {
        let writer = start_writer()?;
        std::thread::sleep(Duration::from_secs(2));
        daemon.kill()?;
        std::thread::sleep(Duration::from_millis(300));
        daemon = Daemon::start()?;
        wait_for_volume()?;
        let longest = end_writer(writer)?;
        ensure!(longest < PAUSE_SECONDS_MAX, "a request took {longest:.1} s");
    }
    let refused = forebay(&["volume", "detach", "data", "--yes"]);
    let refused = refused.expect_err("a mounted device stays");
    ensure!(format!("{refused:#}").contains("in use"), "{refused:#}");
    run("fstrim", &["-v", MOUNT])?;
    run("umount", &[MOUNT])?;
    check(&device)?;
    run("blkdiscard", &["-z", "-o", "0", "-l", "1048576", &device.display().to_string()])?;
    ensure!(fs::read(&device)?[..1 << 20].iter().all(|byte| *byte == 0), "zeroes are zeroes");
    make_file_system(&device)?;
    run("umount", &[MOUNT])?;
    forebay(&["volume", "detach", "data", "--yes"])?;
    check(&guest.disk("origin")?)?;
    grows(export)?;
    Ok(device)
}

/// A mounted ext4 grows with its origin. A driver that cannot show the new size says so, and shows
/// it when the device is made anew.
fn grows(export: &str) -> Result<()> {
    const ORIGIN: &str = "/run/growing";
    const BYTES: [u64; 2] = [8 << 20, 24 << 20];
    let file = fs::File::options().create(true).truncate(true).write(true).open(ORIGIN)?;
    file.set_len(BYTES[0])?;
    forebay(&["volume", "create", "growing", "--origin", ORIGIN, "--export", export])?;
    let device = || fs::read_link(format!("{LINKS}/growing")).context("the link to the device");
    let size = || -> Result<u64> {
        let device = device()?;
        let name = device.file_name().context("a device has a name")?.to_string_lossy();
        Ok(fs::read_to_string(format!("/sys/block/{name}/size"))?.trim().parse::<u64>()? * 512)
    };
    ensure!(size()? == BYTES[0], "the device has {} bytes", size()?);
    make_file_system(&device()?)?;
    file.set_len(BYTES[1])?;
    let said = forebay(&["volume", "resize", "growing"])?;
    println!("{}", said.trim());
    if said.contains("still shows the old size") {
        ensure!(export == "ublk", "{export}: {said}");
        run("umount", &[MOUNT])?;
        forebay(&["volume", "detach", "growing", "--yes"])?;
        forebay(&["volume", "attach", "growing"])?;
        run("mount", &["-t", "ext4", &device()?.display().to_string(), MOUNT])?;
    }
    ensure!(size()? == BYTES[1], "the device has {} bytes: {said}", size()?);
    run("/usr/sbin/resize2fs", &[&device()?.display().to_string()])?;
    let large = Path::new(MOUNT).join("large");
    fs::write(&large, vec![7; 2 * BYTES[0] as usize])?;
    run("umount", &[MOUNT])?;
    check(&device()?)?;
    forebay(&["volume", "remove", "growing", "--yes"])?;
    check(Path::new(ORIGIN))?;
    fs::remove_file(ORIGIN).map_err(Into::into)
}

/// The daemon is told to end under a writer, and another one takes over.
///
/// # Errors
/// What failed.
pub fn replaced(guest: &Guest) -> Result<()> {
    let mut daemon = Daemon::start_on(guest)?;
    let device = make(guest, "ublk")?;
    make_file_system(&device)?;
    let writer = start_writer()?;
    for _ in 0..ROUNDS {
        std::thread::sleep(Duration::from_secs(1));
        daemon.end()?;
        daemon = Daemon::start()?;
        wait_for_volume()?;
    }
    end_writer(writer)?;
    run("umount", &[MOUNT])?;
    check(&device)?;
    daemon.end()?;
    ensure!(!device.exists(), "a device that nobody uses ends with the daemon");
    Ok(())
}

/// A daemon without rights, where an administrator lets it have the nodes, as a rule of udev does.
///
/// # Errors
/// What failed.
pub fn unprivileged(guest: &Guest) -> Result<()> {
    run("chown", &["user", "/dev/ublk-control"])?;
    for disk in ["origin", "pool"] {
        run("chown", &["user", &guest.disk(disk)?.display().to_string()])?;
    }
    let nodes = std::thread::spawn(|| {
        wait_until("the nodes appear", NODES_LIMIT, || {
            let nodes = ["/dev/ublkc0", "/dev/ublkb0"];
            let there = nodes.iter().filter(|node| Path::new(node).exists());
            there.clone().try_for_each(|node| run("chown", &["user", node]).map(drop))?;
            Ok(there.count() == 2)
        })
    });
    let _daemon = Daemon::start_as_user(guest)?;
    let device = make(guest, "ublk")?;
    nodes.join().expect("it waits with a limit")?;
    let device = device.display().to_string();
    let fio = ["fio", "--name=user", "--ioengine=psync", "--direct=1", "--bs=4k", "--size=4M"];
    let more = ["--rw=randwrite", "--verify=crc32c", "--verify_state_save=0", "--filename"];
    let user = ["--reuid=user", "--regid=user", "--clear-groups", "--"];
    run("setpriv", &[&user[..], &fio, &more, &[&device]].concat())?;
    forebay(&["volume", "detach", "data", "--yes"])?;
    ensure!(!Path::new(&device).exists(), "{device} is still there");
    Ok(())
}

/// Makes the volume with a device. Returns the device.
fn make(guest: &Guest, export: &str) -> Result<PathBuf> {
    make_volume(guest, &["--mode", "writeback", "--export", export])?;
    let device = fs::read_link(LINK).context("the link to the device")?;
    println!("{} leads to {}", LINK, device.display());
    ensure!(device.exists(), "{} is not there", device.display());
    Ok(device)
}

pub(super) fn make_file_system(device: &Path) -> Result<()> {
    let device = device.display().to_string();
    run("/usr/bin/mke2fs", &["-q", "-F", "-t", "ext4", &device])?;
    fs::create_dir_all(MOUNT)?;
    run("mount", &["-t", "ext4", &device, MOUNT]).map(drop)
}

pub(super) fn check(device: &Path) -> Result<()> {
    run("/usr/bin/e2fsck", &["-f", "-n", &device.display().to_string()]).map(drop)
}

/// fio writes files with checksums, syncs them, and reads them back.
pub(super) fn start_writer() -> Result<Child> {
    let mut command = Command::new("fio");
    command.args(["--name=writer", "--ioengine=psync", "--bs=4k", "--size=2M", "--fsync=16"]);
    command.args(["--rw=randwrite", "--verify=crc32c", "--verify_state_save=0"]);
    command.args(["--thinktime=2000", &format!("--directory={MOUNT}"), "--numjobs=2"]);
    command.arg("--output-format=json");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("start fio")
}

/// Waits until fio is through. Its verify fails on any error. Returns its longest request, in
/// seconds.
pub(super) fn end_writer(mut writer: Child) -> Result<f64> {
    wait_until("fio ends", Duration::from_secs(100), || Ok(writer.try_wait()?.is_some()))?;
    let output = writer.wait_with_output()?;
    if !output.status.success() {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        bail!("fio: {}: {} | {}", output.status, text(&output.stdout), text(&output.stderr));
    }
    let longest = longest_seconds(&output.stdout)?;
    println!("fio: the longest request took {longest:.1} s");
    Ok(longest)
}

/// The longest request of a run of fio, in seconds.
fn longest_seconds(output: &[u8]) -> Result<f64> {
    let start = output.iter().position(|byte| *byte == b'{').context("fio printed no JSON")?;
    let report: Value = serde_json::from_slice(&output[start..])?;
    let jobs = report["jobs"].as_array().context("fio names no jobs")?;
    let longest = |job: &Value| {
        let parts = [&job["write"]["lat_ns"], &job["read"]["lat_ns"], &job["sync"]["lat_ns"]];
        parts.into_iter().filter_map(|part| part["max"].as_f64()).fold(0.0, f64::max)
    };
    Ok(jobs.iter().map(longest).fold(0.0, f64::max) / 1e9)
}
