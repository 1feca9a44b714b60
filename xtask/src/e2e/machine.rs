//! What this machine has, and a daemon with a volume on it.

use crate::bench::daemon::{Daemon, Directory};
use crate::command::output;
use anyhow::{Context, Result, ensure};
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How long any single program may take, in seconds.
const LIMIT: &str = "120";

/// What a test lacks.
pub enum Missing {
    /// A program that could be installed.
    Program(&'static str),
    /// A file system that this kernel does not know.
    Kernel(&'static str),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Program(name) => write!(f, "{name} is not installed"),
            Missing::Kernel(name) => write!(f, "this kernel has no {name}"),
        }
    }
}

/// Why this machine can have no block devices over FUSE; `None`: it can.
pub fn without_devices() -> Option<String> {
    ["/dev/fuse", "/dev/loop-control"].into_iter().find_map(|path| {
        let opened = File::options().read(true).write(true).open(path);
        opened.err().map(|error| format!("{path}: {error} (are the module and the right there?)"))
    })
}

/// What of this is missing.
pub fn missing(programs: &[&'static str], kernel: Option<&'static str>) -> Option<Missing> {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if let Some(name) = kernel.filter(|name| !known.split_whitespace().any(|it| it == *name)) {
        // A module that can be loaded is as good.
        let mut load = Command::new("modprobe");
        let loaded = load.args(["-q", name]).status().is_ok_and(|status| status.success());
        if !loaded {
            return Some(Missing::Kernel(name));
        }
    }
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&dirs).collect();
    let there = |name: &str| dirs.iter().any(|dir| dir.join(name).is_file());
    programs.iter().find(|name| !there(name)).map(|name| Missing::Program(name))
}

/// Runs a program with a time limit and returns what it printed.
pub fn tool(words: &[&str]) -> Result<String> {
    let mut command = Command::new("timeout");
    output(command.args(["-k", "5", LIMIT]).args(words).stdin(Stdio::null()))
}

/// A daemon with one volume as a block device. Whatever a test did, dropping it takes everything
/// away again.
pub struct Machine {
    pub daemon: Daemon,
    pub directory: Directory,
    device: Option<PathBuf>,
    mounted: bool,
}

impl Machine {
    /// Starts one; the volume has `bytes` and is written back.
    pub fn start(name: &str, bytes: u64) -> Result<Machine> {
        Machine::start_on(name, bytes, |_| Ok(()))
    }

    /// As [`Machine::start`], after something was put on the origin.
    pub fn start_on(name: &str, bytes: u64, fill: impl Fn(&str) -> Result<()>) -> Result<Machine> {
        let directory = Directory::create(None, &format!("e2e-{name}"))?;
        let cache = directory.file("cache", 256 << 20)?;
        Machine::start_in(directory, bytes, &[cache], fill)
    }

    /// As [`Machine::start_on`], with these cache devices.
    pub fn start_in(
        directory: Directory,
        bytes: u64,
        caches: &[PathBuf],
        fill: impl Fn(&str) -> Result<()>,
    ) -> Result<Machine> {
        fs::create_dir(directory.path().join("mnt"))?;
        let origin = directory.file("origin", bytes)?.display().to_string();
        let daemon = Daemon::start(&directory, &[])?;
        let mut machine = Machine { daemon, directory, device: None, mounted: false };
        fill(&origin)?;
        let caches: Vec<String> = caches.iter().map(|path| path.display().to_string()).collect();
        let mut words = vec!["cache", origin.as_str()];
        words.extend(caches.iter().flat_map(|cache| ["--with", cache.as_str()]));
        words.extend(["--mode", "writeback", "--name", "disk", "--yes", "--export", "loop"]);
        machine.daemon.forebay(&words)?;
        machine.find_device()?;
        Ok(machine)
    }

    /// Follows the link to the device.
    pub fn find_device(&mut self) -> Result<()> {
        let device = fs::read_link(self.link()).context("follow the link to the device")?;
        self.device = Some(device);
        Ok(())
    }

    /// The link to the volume's device.
    pub fn link(&self) -> PathBuf {
        self.daemon.state().join("dev/disk")
    }

    /// The device.
    pub fn device(&self) -> String {
        self.device.as_ref().map_or_else(String::new, |device| device.display().to_string())
    }

    /// Where it is mounted.
    pub fn mount_point(&self) -> String {
        self.directory.path().join("mnt").display().to_string()
    }

    /// Mounts the device.
    pub fn mount(&mut self) -> Result<()> {
        tool(&["mount", &self.device(), &self.mount_point()])?;
        self.mounted = true;
        Ok(())
    }

    /// Unmounts it.
    pub fn unmount(&mut self) -> Result<()> {
        tool(&["umount", &self.mount_point()])?;
        self.mounted = false;
        Ok(())
    }

    /// Writes and verifies with fio below the mount point.
    pub fn fio(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        let directory = format!("--directory={}", self.mount_point());
        command.args(["-k", "5", LIMIT, "fio", "--name=verify", "--output-format=json"]);
        command.args([directory.as_str(), "--ioengine=io_uring", "--direct=1", "--bs=4k"]);
        command.args(["--size=64M", "--verify=crc32c", "--verify_fatal=1"]);
        command.arg("--verify_state_save=0").args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Waits until the daemon serves the volume.
    pub fn wait_until_served(&self) -> Result<()> {
        self.daemon.wait_until_says("/dev/disk\"")
    }

    /// Takes the volume away in order, and looks that nothing is left of it.
    pub fn finish(mut self) -> Result<()> {
        let link = self.link();
        self.daemon.forebay(&["volume", "remove", "disk", "--yes"])?;
        ensure!(fs::symlink_metadata(&link).is_err(), "{} is left", link.display());
        let device = self.device.take().context("there was a device")?;
        ensure!(!is_configured(&device), "{} is left", device.display());
        Ok(())
    }
}

/// Whether a loop device has a file behind it.
pub fn is_configured(device: &Path) -> bool {
    let name = device.file_name().map(|name| name.to_string_lossy().into_owned());
    Path::new("/sys/block").join(name.unwrap_or_default()).join("loop/backing_file").exists()
}

/// The process that holds open files for the daemon with this state directory.
pub fn holder(state: &Path) -> Option<u32> {
    let socket = state.join("holder.sock").display().to_string();
    let entries = fs::read_dir("/proc").ok()?.flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split('\0').any(|word| word == "hold") && words.split('\0').any(|it| it == socket)
    })
}

impl Drop for Machine {
    fn drop(&mut self) {
        let quietly = |words: &[&str]| {
            let mut command = Command::new("timeout");
            command.args(["-k", "2", "10"]).args(words).stdin(Stdio::null());
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        };
        // In the order in which each can still be answered; then those who answered.
        if self.mounted {
            quietly(&["umount", &self.mount_point()]);
        }
        if self.device.is_some() {
            quietly(&["losetup", "-d", &self.device()]);
        }
        self.daemon.kill();
        if let Some(pid) = holder(self.daemon.state()) {
            quietly(&["kill", "-9", &pid.to_string()]);
        }
        if self.mounted {
            quietly(&["umount", "-l", &self.mount_point()]);
        }
        if self.device.as_ref().is_some_and(|device| is_configured(device)) {
            quietly(&["losetup", "-d", &self.device()]);
        }
    }
}
