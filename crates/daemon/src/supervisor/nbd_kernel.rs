//! Volumes as `/dev/nbdN`: the kernel is a client of our own NBD server. The daemon looks after its
//! connections: it makes them, and replaces those that ended, its own of an earlier life too.

use super::device::{Again, NoDevice, Way};
use super::ublk::load_module;
use super::{Supervisor, holding};
use crate::state::NbdState;
use forebay_api::ApiError;
use forebay_host::frontend::nbd_kernel::{self, KernelNbd};
use std::sync::TryLockError;
use std::time::{Duration, Instant};

/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Whether this process can make such devices.
///
/// # Errors
/// What is missing, and what to do.
pub(super) fn can_nbd_kernel() -> Result<(), ApiError> {
    let other = "or use --export nbd and a client of NBD";
    if !forebay_host::is_root() {
        return Err(ApiError::refused("an NBD device of the kernel needs root")
            .action("run forebayd as root")
            .action(other));
    }
    if nbd_kernel::is_available().is_err() {
        load_module("nbd");
    }
    nbd_kernel::is_available().map_err(|e| ApiError::refused(e.to_string()).action(other))
}

impl Supervisor {
    /// Finds the devices that an earlier daemon left.
    pub(super) fn nbd_find(&self) {
        let boot = holding::boot();
        let known = self.inner().store.get().nbd.clone();
        for state in known {
            let found = (state.boot == boot).then(|| KernelNbd::find(state.index, &state.backend));
            match found.flatten() {
                Some(device) => drop(self.inner().nbd.insert(state.volume, device)),
                None => self.nbd_unremember(&state.volume),
            }
        }
    }

    fn nbd_unremember(&self, name: &str) {
        if let Err(error) = self.remember(|all| all.nbd.retain(|it| it.volume != name)) {
            tracing::warn!(volume = name, "{}", error.message);
        }
    }

    /// Looks after all devices, unless something is being changed.
    pub fn watch_nbd(&self) {
        let changes = match self.changes.try_lock() {
            Ok(changes) => changes,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.nbd_mend();
        drop(changes);
    }

    /// Makes the devices that are to be, and replaces connections that ended.
    pub(super) fn nbd_mend(&self) {
        let names: Vec<String> = {
            let inner = self.inner();
            if inner.listening.is_none() {
                return;
            }
            let now = Instant::now();
            let due = |name: &&String| match inner.no_device.get(*name) {
                Some(NoDevice { again: Again::At(at), .. }) => *at <= now,
                _ => true,
            };
            let chosen = inner.choices.iter().filter(|(_, choice)| choice.way == Way::NbdKernel);
            let open = || inner.pools.values().filter_map(|pool| pool.open.as_ref().ok());
            let is_served = |name: &&String| open().any(|open| open.exports.contains_key(*name));
            chosen.map(|(name, _)| name).filter(is_served).filter(due).cloned().collect()
        };
        for name in names {
            let done = self.nbd_mend_one(&name);
            let mut inner = self.inner();
            match done {
                Ok(()) => drop(inner.no_device.remove(&name)),
                Err(error) => {
                    tracing::error!(volume = name.as_str(), "its block device: {}", error.message);
                    let again = Again::At(Instant::now() + RETRY);
                    inner.no_device.insert(name, NoDevice { error, again });
                }
            }
        }
    }

    fn nbd_mend_one(&self, name: &str) -> Result<(), ApiError> {
        let failed = |error: std::io::Error| ApiError::failed(error.to_string());
        let known = self.inner().nbd.remove(name);
        if let Some(mut device) = known {
            let mended = device.mend(&self.nbd_socket, name);
            let path = device.path();
            self.inner().nbd.insert(name.to_string(), device);
            let count = mended.map_err(failed)?;
            if count > 0 {
                let path = path.display();
                tracing::info!(volume = name, "block device {path}: {count} new connections");
            }
            return Ok(());
        }
        let backend = format!("forebay-{}", crate::convert::hex(&super::random_uuid()?));
        let small = self.has_small_sectors(name);
        let device = KernelNbd::attach(&self.nbd_socket, name, &backend, small).map_err(failed)?;
        let path = device.path();
        let remembered = self.remember(|all| {
            all.nbd.retain(|it| it.volume != name);
            all.nbd.push(NbdState {
                volume: name.to_string(),
                boot: holding::boot(),
                index: device.index,
                backend,
            });
        });
        if let Err(error) = remembered {
            tracing::warn!(volume = name, "its device ends with forebayd: {}", error.message);
        }
        self.device_link(name, &path);
        self.inner().nbd.insert(name.to_string(), device);
        tracing::info!(volume = name, "block device {} made", path.display());
        Ok(())
    }

    /// Ends a volume's device, unless it is in use. With `force`, whoever uses it gets errors.
    pub(super) fn nbd_down(&self, name: &str, force: bool) -> Result<(), ApiError> {
        let Some(device) = self.inner().nbd.remove(name) else { return Ok(()) };
        let path = device.path();
        if !force && device.is_in_use().unwrap_or(true) {
            self.inner().nbd.insert(name.to_string(), device);
            let text = format!("the block device {} of volume {name} is in use", path.display());
            return Err(ApiError::refused(text)
                .action(format!("unmount it: umount {}", path.display()))
                .action("or let those who use it have errors: --force"));
        }
        if let Err(error) = device.detach() {
            tracing::warn!(volume = name, "{error}");
        }
        self.device_unlink(name, &path);
        self.nbd_unremember(name);
        Ok(())
    }

    /// At the stop: ends the devices that nobody uses. The kernel keeps the requests of others.
    pub(super) fn nbd_leave(&self) {
        let names: Vec<String> = self.inner().nbd.keys().cloned().collect();
        for name in names {
            if let Err(error) = self.nbd_down(&name, false) {
                tracing::info!(volume = name.as_str(), "{}; it waits", error.message);
            }
        }
    }
}
