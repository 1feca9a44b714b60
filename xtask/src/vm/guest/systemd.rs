//! The unit under a real systemd: its first process boots the machine, mounts volumes from
//! `/etc/fstab`, starts the daemon again when it ends, and stops everything in order.
//!
//! One life after the other: the volumes are made, and the modules of the block devices are loaded
//! by the daemon, inside what the unit allows; a boot without Forebay to compare with; a boot with
//! it, in which the daemon is killed, replaced and stuck; one without the cache disk; and one in
//! which it is back. The short run has neither the second nor the last.

use super::{Guest, output, run, run_for, say, wait_until};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Runs this program in the guest, once it has booted.
pub const UNIT: &str = "\
[Unit]
Description=A scenario
After=multi-user.target

[Service]
ExecStart=/usr/bin/xtask guest
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
";
/// Written through, by a loop device over FUSE: its file is in systemd's store.
const DATA: &str = "/mnt/data";
/// Written back, by ublk.
const SECOND: &str = "/mnt/second";
/// A disk without a cache.
const PLAIN: &str = "/mnt/plain";
const BOOT_LIMIT: Duration = Duration::from_secs(150);
const LIMIT: Duration = Duration::from_secs(60);
/// When the boot without Forebay had its disk mounted, in seconds since systemd started.
const BASELINE: &str = "/var/lib/baseline";
/// Nothing but the daemon, or the kernel for it, loads these.
const MODULES: [&str; 3] = ["loop", "ublk_drv", "nbd"];
/// An origin that is a file.
const FILE: &str = "/var/lib/file";
const FILE_BYTES: u64 = 16 << 20;
const FSTAB: &str = "/etc/fstab";
/// Neither says that the machine can do without it: that is the generator's work.
const WITH_FOREBAY: &str = "\
/dev/forebay/data /mnt/data ext4 defaults 0 2
/dev/forebay/second /mnt/second ext4 defaults,x-systemd.device-timeout=40s 0 2
";
const WITHOUT: &str = "/dev/disk/by-id/virtio-plain /mnt/plain ext4 defaults 0 2\n";
/// Seconds that Forebay may add to a boot.
const ADDED_MAX: f64 = 2.0;
/// And the same for each second that the boot takes without it: software emulation is slower by
/// as much, and varies with what else its machine does.
const ADDED_SHARE_MAX: f64 = 1.5;
/// From this version on systemd keeps open files also while the daemon is stopped, and says so.
const STORE_SINCE: u32 = 254;

fn life(guest: &Guest) -> Result<()> {
    let state = run_for("systemctl", &["is-system-running", "--wait"], BOOT_LIMIT);
    let failed = run("systemctl", &["--failed", "--plain", "--no-legend"])?;
    ensure!(failed.trim().is_empty(), "units that failed: {failed}");
    state.context("the machine runs as it should")?;
    let lives = guest.word("lives").context("the host says what its lives are about")?;
    match lives.split(',').nth(guest.number("life") as usize) {
        Some("make") => {
            make()?;
            if !lives.contains("compare") {
                enable()?;
            }
            Ok(())
        }
        Some("compare") => compare(),
        Some("boot") => boot(),
        Some("without-the-cache") => without_the_cache(),
        Some("with-it-again") => with_it_again(),
        other => bail!("no life {other:?}"),
    }
}

/// One life.
///
/// # Errors
/// What failed.
pub fn run_scenario(guest: &Guest) -> Result<()> {
    life(guest).inspect_err(|_| {
        for unit in ["forebayd.service", "mnt-data.mount", "mnt-second.mount"] {
            let shown = output("systemctl", &["status", "--no-pager", "-l", unit], LIMIT);
            let text = shown.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            println!("{}", text.unwrap_or_default());
        }
    })
}

fn show(unit: &str, property: &str) -> Result<String> {
    let arguments = ["show", unit, "--value", "--property", property];
    Ok(run("systemctl", &arguments)?.trim().to_string())
}

fn mkfs(device: &str) -> Result<()> {
    run("mke2fs", &["-q", "-F", "-t", "ext4", device]).map(drop)
}

fn make() -> Result<()> {
    // On a busy machine the system may be up before udev has made the links.
    let plain = "/dev/disk/by-id/virtio-plain";
    wait_until("udev has linked the disks", Duration::from_secs(60), || {
        Ok(Path::new(plain).exists())
    })?;
    run("udevadm", &["settle"])?;
    mkfs(plain)?;
    let there: Vec<&str> = MODULES.into_iter().filter(|module| is_loaded(module)).collect();
    ensure!(there.is_empty(), "loaded before the daemon starts: {there:?}");
    run("systemctl", &["start", "forebayd"])?;
    // By the names of the kernel: they are to be remembered by names that last.
    let disk = |name: &str| fs::canonicalize(format!("/dev/disk/by-id/virtio-{name}"));
    let (pool, data, second) = (disk("pool")?, disk("origin")?, disk("second")?);
    for (name, origin, mode, export) in
        [("data", data, "writethrough", "loop"), ("second", second, "writeback", "auto")]
    {
        let (origin, pool) = (origin.display().to_string(), pool.display().to_string());
        let words = ["cache", &origin, "--with", &pool, "--name", name, "--mode", mode];
        run("forebay", &[&words[..], &["--export", export, "--yes"]].concat())?;
        mkfs(&format!("/dev/forebay/{name}"))?;
    }
    let status = run("forebay", &["pool", "show", "virtio-pool", "-o", "json"])?;
    ensure!(status.contains("/dev/disk/by-id/virtio-pool"), "a name that lasts: {status}");
    kernel_nbd(&pool)?;
    for module in MODULES {
        ensure!(is_loaded(module), "the daemon has devices of {module}, which is not loaded");
    }
    [DATA, SECOND, PLAIN].into_iter().try_for_each(fs::create_dir_all)?;
    fs::write(FSTAB, WITHOUT).context("write the table of file systems")
}

/// A volume that is there for its module only: none of the others needs it.
fn kernel_nbd(pool: &Path) -> Result<()> {
    fs::File::create(FILE)?.set_len(FILE_BYTES)?;
    let words = ["cache", FILE, "--with", &pool.display().to_string(), "--name", "file"];
    run("forebay", &[&words[..], &["--export", "nbd-kernel", "--yes"]].concat())?;
    let device = fs::canonicalize("/dev/forebay/file")?;
    ensure!(device.starts_with("/dev") && device.display().to_string().contains("nbd"));
    run("forebay", &["volume", "remove", "file", "--yes"])?;
    Ok(fs::remove_file(FILE)?)
}

/// The version of systemd.
fn systemd() -> Result<u32> {
    let text = run("systemctl", &["--version"])?;
    let version = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    version.with_context(|| format!("a version: {text}"))
}

fn is_loaded(module: &str) -> bool {
    Path::new("/sys/module").join(module).exists()
}

/// When a mount was there, in seconds since systemd started.
fn mounted_at(unit: &str) -> Result<f64> {
    let text = show(unit, "ActiveEnterTimestampMonotonic")?;
    let mounted: f64 = text.parse().with_context(|| format!("{unit} was not mounted"))?;
    ensure!(mounted > 0.0, "{unit} was not mounted");
    let own = ["show", "--value", "--property", "UserspaceTimestampMonotonic"];
    let started: f64 = run("systemctl", &own)?.trim().parse().context("when systemd started")?;
    Ok((mounted - started) / 1e6)
}

fn compare() -> Result<()> {
    let at = mounted_at("mnt-plain.mount")?;
    fs::write(BASELINE, at.to_string())?;
    enable()
}

/// What a user does so that the volumes are mounted when the machine starts.
fn enable() -> Result<()> {
    fs::write(FSTAB, WITH_FOREBAY)?;
    run("systemctl", &["enable", "forebayd"]).map(drop)
}

fn is_mounted(place: &str) -> Result<bool> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    Ok(mounts.lines().any(|line| line.split(' ').nth(1) == Some(place)))
}

fn boot() -> Result<()> {
    ensure!(is_mounted(DATA)? && is_mounted(SECOND)?, "the volumes are to be mounted");
    let after = mounted_at("mnt-data.mount")?.max(mounted_at("mnt-second.mount")?);
    let times = Times { before: baseline()?, after };
    times.say();
    names()?;
    let writers = [start_writer(DATA)?, start_writer(SECOND)?];
    let main_only = ["kill", "--kill-whom=main", "--signal=KILL", "forebayd"];
    match systemd()? < STORE_SINCE {
        // A process of the unit holds the loop device's file.
        true => survive("killed", &main_only, true)?,
        false => survive("killed", &["kill", "--signal=KILL", "forebayd"], true)?,
    }
    survive("replaced", &["restart", "forebayd"], false)?;
    run("systemctl", &["stop", "forebayd"])?;
    survive("stopped", &["start", "forebayd"], false)?;
    if systemd()? >= STORE_SINCE {
        let held = show("forebayd", "NFileDescriptorStore")?;
        ensure!(held == "1", "the loop device's file is held");
    }
    stuck()?;
    writers.into_iter().try_for_each(end_writer)?;
    times.check()?;
    keep("first")
}

/// When the disk was mounted in the boot without Forebay, unless there was none.
fn baseline() -> Result<Option<f64>> {
    match Path::new(BASELINE).exists() {
        true => Ok(Some(fs::read_to_string(BASELINE)?.parse()?)),
        false => Ok(None),
    }
}

/// Seconds from the start of systemd until all is mounted.
struct Times {
    before: Option<f64>,
    after: f64,
}

impl Times {
    fn say(&self) {
        let after = self.after;
        say(
            "measured",
            &match self.before {
                Some(before) => format!(
                    "mounted after {before:.2} s without Forebay, {after:.2} s with it: {:.2} s \
                     more",
                    after - before
                ),
                None => format!("mounted after {after:.2} s"),
            },
        );
    }

    fn check(&self) -> Result<()> {
        let Some(before) = self.before else { return Ok(()) };
        let (added, allowed) = (self.after - before, ADDED_MAX.max(ADDED_SHARE_MAX * before));
        ensure!(added < allowed, "a boot takes {added:.2} s longer than {before:.2} s");
        Ok(())
    }
}

/// What udev and systemd know the devices by.
fn names() -> Result<()> {
    let device = fs::canonicalize("/dev/forebay/second")?;
    let by_id = fs::canonicalize("/dev/disk/by-id/forebay-second")?;
    ensure!(by_id == device, "{} and {}", by_id.display(), device.display());
    let device = device.display().to_string();
    let known = run("udevadm", &["info", "--query=property", &device])?;
    for property in ["ID_SERIAL=forebay-second", "ID_MODEL=Forebay_volume", "ID_FS_TYPE=ext4"] {
        ensure!(known.lines().any(|line| line == property), "{property} is not in {known}");
    }
    let uuid = known.lines().find_map(|line| line.strip_prefix("ID_FS_UUID="));
    let link = format!("/dev/disk/by-uuid/{}", uuid.context("udev knows the file system")?);
    let leads = fs::canonicalize(&link)?;
    ensure!(leads == Path::new(&device), "{link} leads to the origin {}", leads.display());
    let status = show("forebayd", "StatusText")?;
    ensure!(status == "2 of 2 volumes served.", "systemd was told `{status}`");
    Ok(())
}

/// How often systemd started the daemon again by itself since somebody last started it.
fn restarts() -> Result<u64> {
    Ok(show("forebayd", "NRestarts")?.parse()?)
}

/// Has the daemon end under load, and waits for the next one.
fn survive(how: &str, deed: &[&str], starts_again: bool) -> Result<()> {
    let before = show("forebayd", "MainPID")?;
    let restarts = restarts()?;
    run_for("systemctl", deed, LIMIT)?;
    let mut more = false;
    wait_until("another daemon serves", LIMIT, || {
        // Asked for one after the other they may be of two moments.
        let asked = ["show", "forebayd", "--property=ActiveState,MainPID,NRestarts"];
        let told = run("systemctl", &asked)?;
        let is = |property: &str| told.lines().find_map(|line| line.strip_prefix(property));
        let pid = is("MainPID=").context("systemd knows the process")?;
        let count: u64 = is("NRestarts=").context("systemd counts starts")?.parse()?;
        more = count > restarts;
        Ok(is("ActiveState=") == Some("active") && pid != "0" && pid != before)
    })?;
    ensure!(more == starts_again, "the daemon was {how}; started again by itself: {more}");
    ensure!(is_mounted(DATA)? && is_mounted(SECOND)?, "the daemon was {how}: still mounted");
    Ok(())
}

/// A daemon that does nothing any more is noticed.
fn stuck() -> Result<()> {
    fs::create_dir_all("/run/systemd/system/forebayd.service.d")?;
    let text = "[Service]\nWatchdogSec=6s\nTimeoutAbortSec=2s\n";
    fs::write("/run/systemd/system/forebayd.service.d/quick.conf", text)?;
    run("systemctl", &["daemon-reload"])?;
    survive("replaced", &["restart", "forebayd"], false)?;
    // Long enough for the watchdog to bite if nobody fed it.
    let before = restarts()?;
    std::thread::sleep(Duration::from_secs(8));
    ensure!(restarts()? == before, "a daemon that works was ended");
    survive("stuck", &["kill", "--kill-whom=main", "--signal=STOP", "forebayd"], true)
}

/// fio writes files with checksums, syncs them, and reads them back.
fn start_writer(place: &str) -> Result<Child> {
    let mut command = Command::new("fio");
    command.args(["--name=writer", "--ioengine=psync", "--bs=4k", "--size=2M", "--fsync=16"]);
    command.args(["--rw=randwrite", "--verify=crc32c", "--verify_state_save=0"]);
    // Writes until the daemon was killed, replaced and stuck.
    command.args(["--time_based", "--runtime=45", "--thinktime=3000"]);
    command.arg(format!("--directory={place}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("start fio")
}

fn end_writer(mut writer: Child) -> Result<()> {
    wait_until("fio ends", Duration::from_secs(100), || Ok(writer.try_wait()?.is_some()))?;
    let output = writer.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "fio: {}: {text}", output.status);
    Ok(())
}

/// Leaves a file on both volumes. What the second one is given stays dirty.
fn keep(name: &str) -> Result<()> {
    for place in [DATA, SECOND] {
        fs::write(format!("{place}/{name}"), format!("{name} of {place}").repeat(1000))?;
    }
    run("sync", &[]).map(drop)
}

fn check(place: &str, name: &str) -> Result<()> {
    let found = fs::read_to_string(format!("{place}/{name}"))?;
    ensure!(found == format!("{name} of {place}").repeat(1000), "{place}/{name} has changed");
    Ok(())
}

/// The cache disk is missing: what is written through goes on, the other mount alone fails, and the
/// journal says which disk it is.
fn without_the_cache() -> Result<()> {
    ensure!(is_mounted(DATA)?, "{DATA} goes on without the cache");
    ensure!(!is_mounted(SECOND)?, "{SECOND} has its newest data on the missing disk");
    check(DATA, "first")?;
    fs::write(format!("{DATA}/second"), format!("second of {DATA}").repeat(1000))?;
    for target in ["local-fs.target", "multi-user.target"] {
        ensure!(show(target, "ActiveState")? == "active", "{target} is to be reached");
    }
    ensure!(show("emergency.target", "ActiveState")? == "inactive", "no emergency");
    let errors = run("journalctl", &["-b", "-u", "forebayd", "-p", "err", "--no-pager"])?;
    let told = errors.lines().find(|line| line.contains("second") && line.contains("serial pool"));
    println!("{}", told.with_context(|| format!("nothing names the disk: {errors}"))?);
    let status = output("forebay", &["status"], LIMIT)?;
    ensure!(status.status.code() == Some(3), "{:?} is not degraded", status.status);
    Ok(())
}

fn with_it_again() -> Result<()> {
    ensure!(is_mounted(DATA)? && is_mounted(SECOND)?, "the volumes are to be mounted");
    check(DATA, "first")?;
    check(DATA, "second")?;
    check(SECOND, "first")?;
    for (name, place) in [("data", DATA), ("second", SECOND)] {
        run("umount", &[place])?;
        run("e2fsck", &["-f", "-n", &format!("/dev/forebay/{name}")])?;
    }
    // By hand: nothing but the daemon itself sees to it that it serves on until this is unmounted.
    run("mount", &["/dev/forebay/data", PLAIN])?;
    fs::write(format!("{PLAIN}/third"), "third".repeat(100_000))?;
    Ok(())
}
