//! A `forebayd` in the guest.

use super::{Guest, output, run, wait_until};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where its log goes.
pub const LOG: &str = "/run/forebayd.log";
/// Where the disk with its state is mounted.
const STATE: &str = "/mnt/state";
/// How long it may take to answer, or a volume to be in service.
const START: Duration = Duration::from_secs(60);

/// A running daemon. Dropping it kills it.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Makes a file system for the daemon's state, if there is none, mounts it, and starts it.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn start_on(guest: &Guest) -> Result<Daemon> {
        mount_state(guest)?;
        Daemon::start()
    }

    /// Starts it on the state that is mounted.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn start() -> Result<Daemon> {
        Daemon::start_by(&mut Command::new("/usr/bin/forebayd"))
    }

    /// As [`Daemon::start_on`], without the rights of root.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn start_as_user(guest: &Guest) -> Result<Daemon> {
        mount_state(guest)?;
        run("chown", &["user", STATE])?;
        let mut command = Command::new("setpriv");
        command.args(["--reuid=user", "--regid=user", "--clear-groups", "--"]);
        Daemon::start_by(command.arg("/usr/bin/forebayd"))
    }

    fn start_by(command: &mut Command) -> Result<Daemon> {
        let log = fs::File::options().create(true).append(true).open(LOG)?;
        command.args(["--state-dir", &format!("{STATE}/forebay")]);
        let child = command.stdin(Stdio::null()).stderr(log).spawn().context("start forebayd")?;
        let mut daemon = Daemon { child };
        wait_until("forebayd answers", START, || {
            let ended = daemon.child.try_wait()?;
            ensure!(ended.is_none(), "forebayd ended: {}", ended.expect("just seen"));
            let status = output("/usr/bin/forebay", &["status"], Duration::from_secs(20))?;
            Ok(matches!(status.status.code(), Some(0 | 3)))
        })?;
        Ok(daemon)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it as `kill -9` does.
    ///
    /// # Errors
    /// If it cannot be killed.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Errors
    /// If it does not.
    pub fn end(&mut self) -> Result<()> {
        run("kill", &["-TERM", &self.child.id().to_string()])?;
        wait_until("forebayd ends", START, || Ok(self.child.try_wait()?.is_some()))
    }

    /// Where NBD clients reach it.
    pub fn nbd(&self) -> PathBuf {
        Path::new(STATE).join("forebay/nbd.sock")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Nobody is left who could be told.
        let _ = self.kill();
    }
}

/// Unmounts the disk with a daemon's state, if there is one.
///
/// # Errors
/// If it cannot be unmounted.
pub fn forget_state() -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    match mounts.lines().any(|line| line.split(' ').nth(1) == Some(STATE)) {
        true => run("umount", &[STATE]).map(drop),
        false => Ok(()),
    }
}

/// Mounts the disk for the daemon's state, with a file system if it has none.
fn mount_state(guest: &Guest) -> Result<()> {
    let disk = guest.disk("state")?;
    let disk = disk.to_str().context("a plain name")?;
    fs::create_dir_all(STATE)?;
    if run("mount", &["-t", "ext4", disk, STATE]).is_err() {
        run("/usr/bin/mke2fs", &["-q", "-t", "ext4", disk])?;
        run("mount", &["-t", "ext4", disk, STATE])?;
    }
    Ok(())
}

/// Runs `forebay` with these arguments.
///
/// # Errors
/// With what it said.
pub fn forebay(arguments: &[&str]) -> Result<String> {
    run("/usr/bin/forebay", arguments)
}

/// Makes the volume `data` on the disks `origin` and `pool`.
///
/// # Errors
/// With what `forebay` said.
pub fn make_volume(guest: &Guest, more: &[&str]) -> Result<()> {
    let (origin, pool) = (guest.disk("origin")?, guest.disk("pool")?);
    let path = |path: &Path| path.to_str().map(str::to_string).context("a plain name");
    let (origin, pool) = (path(&origin)?, path(&pool)?);
    let arguments = ["cache", &origin, "--with", &pool, "--name", "data", "--yes"];
    // What another scenario of this boot wrote is there still, behind the superblocks.
    let force: &[&str] = if guest.shares_boot() { &["--force"] } else { &[] };
    forebay(&[&arguments, force, more].concat()).map(drop)
}

/// Waits until the volume `data` is served.
///
/// # Errors
/// If it is not.
pub fn wait_for_volume() -> Result<()> {
    wait_until("the volume is in service", START, || {
        let shown = output("/usr/bin/forebay", &["status", "-o", "json"], Duration::from_secs(20))?;
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let volume = &status["volumes"][0]["state"];
        Ok(volume == "ok" || volume == "draining")
    })
}
