//! What all kinds of exports need of the machine and of the daemon.

use super::holding::Holding;
use super::links::Links;
use crate::state::{State, Store};
use forebay_api::hint::Flag;
use forebay_api::{ApiError, Hint};
use forebay_host::shard::NbdServer;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How long loading a module may take.
const MODPROBE_LIMIT: Duration = Duration::from_secs(10);

/// The surroundings of exports.
pub(super) struct Machine {
    pub links: Links,
    pub holding: Arc<Holding>,
    pub store: Arc<Store>,
    pub server: Arc<NbdServer>,
    /// Of our NBD server; other sockets lie beside it.
    pub nbd_socket: PathBuf,
    /// The daemon of this machine, and not one for a trial.
    pub is_system: bool,
}

impl Machine {
    /// Forgets a device that is gone. It is looked for in vain where that cannot be written.
    pub fn forget(&self, volume: &str, change: impl FnOnce(&mut State)) {
        if let Err(error) = self.store.change(change) {
            tracing::warn!(volume, "{}", error.message);
        }
    }

    /// URI by which clients reach what our NBD server offers.
    pub fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.nbd_socket.display())
    }

    /// Whether the content of a volume ends with the machine.
    pub fn is_ephemeral(&self, volume: &str) -> bool {
        self.store.get().tiers_of(volume).is_some_and(|tiers| tiers.boot.is_some())
    }

    /// Whether the block device of a volume has sectors of 512 bytes whatever its size is.
    pub fn has_small_sectors(&self, volume: &str) -> bool {
        self.store.get().volume(volume).is_some_and(|volume| volume.small_sectors)
    }
}

/// What names this life of the machine: what the kernel held is gone in the next one.
pub fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_string()
}

/// Nothing loads these modules by themselves. If one cannot be loaded, what it brings is missing.
pub(super) fn load_module(module: &'static str) {
    let loaded = forebay_host::limit::within(MODPROBE_LIMIT, "modprobe", move || {
        let mut command = Command::new("modprobe");
        command.args(["-q", module]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).status()
    });
    if let Err(error) = loaded {
        tracing::debug!("{error}");
    }
}

/// The refusal to end a device that somebody uses.
pub(super) fn in_use(volume: &str, device: &Path) -> ApiError {
    let device = device.display().to_string();
    ApiError::refused(format!("the block device {device} of volume {volume} is in use"))
        .hint(Hint::Unmount { device })
        .hint(Hint::Again { with: Flag::ForceUsers })
}
