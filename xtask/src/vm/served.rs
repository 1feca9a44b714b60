//! A daemon of this machine that serves a guest's disk over vhost-user.

use crate::bench::daemon::{Daemon, Directory};
use anyhow::Result;
use std::fs::File;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
const ORIGIN_BYTES: u64 = 64 * MIB;
const CACHE_BYTES: u64 = 128 * MIB;
/// What starts a daemon that ends when this task is killed.
const ENDS_WITH_US: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];

/// Bytes by which the disk grows at a time.
pub const GROWTH_BYTES: u64 = 32 * MIB;

/// A daemon of this machine with a volume that is a guest's disk.
pub struct Served {
    daemon: Daemon,
    name: String,
    origin: PathBuf,
    // Goes away after the daemon.
    _directory: Directory,
}

impl Served {
    /// Starts it. `name` is what the guest sees as the disk's serial number.
    ///
    /// # Errors
    /// If it does not answer or makes no volume.
    pub fn start(name: &str, kernel: &str, programs: [PathBuf; 2]) -> Result<Served> {
        let directory = Directory::create(None, &format!("served-{kernel}"))?;
        let origin = directory.file("origin", ORIGIN_BYTES)?;
        let cache = directory.file("cache", CACHE_BYTES)?.display().to_string();
        let daemon = Daemon::start_built(&directory, &ENDS_WITH_US.map(str::to_string), programs)?;
        let path = origin.display().to_string();
        let new = ["cache", &path, "--with", &cache, "--name", name, "--mode", "writeback"];
        daemon.forebay(&[&new[..], &["--yes", "--export", "vhost-user"]].concat())?;
        Ok(Served { daemon, name: name.to_string(), origin, _directory: directory })
    }

    /// Where QEMU reaches the disk.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.daemon.state().join("vhost").join(format!("{name}.sock"))
    }

    /// Makes the disk larger under the machine, which goes on.
    ///
    /// # Errors
    /// If the daemon refuses.
    pub fn grow(&mut self) -> Result<()> {
        let origin = File::options().write(true).open(&self.origin)?;
        origin.set_len(origin.metadata()?.len() + GROWTH_BYTES)?;
        self.daemon.forebay(&["volume", "resize", &self.name]).map(drop)
    }

    /// Kills the daemon without warning, and starts another.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn replace(&mut self) -> Result<()> {
        self.daemon.kill();
        self.daemon.start_again()
    }
}
