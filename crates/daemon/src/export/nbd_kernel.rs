//! Volumes as `/dev/nbdN`: the kernel is a client of our own NBD server. The daemon looks after its
//! connections: it makes them, and replaces those that ended, its own of an earlier life too.

use super::machine::{Machine, boot, load_module};
use crate::convert::{hex, random_uuid};
use crate::state::NbdState;
use forebay_api::{ApiError, Cause, Hint};
use forebay_host::frontend::nbd_kernel::{self, KernelNbd};
use std::io;
use std::time::{Duration, Instant};

/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// An NBD device of the kernel.
pub(super) struct NbdKernel {
    /// Missing until it could be made. The kernel keeps its requests while nobody serves it.
    device: Option<KernelNbd>,
    /// What went wrong with it last.
    error: Option<ApiError>,
    /// When to look after it again.
    due: Instant,
}

/// Whether this process can make such devices.
///
/// # Errors
/// What is missing, and what to do.
pub(super) fn can_nbd_kernel() -> Result<(), ApiError> {
    if !forebay_host::is_root() {
        return Err(ApiError::refused("an NBD device of the kernel needs root")
            .hint(Hint::RunAsRoot)
            .hint(Hint::UseNbdClient));
    }
    if nbd_kernel::is_available().is_err() {
        load_module("nbd");
    }
    nbd_kernel::is_available()
        .map_err(|e| ApiError::refused(e.to_string()).hint(Hint::UseNbdClient))
}

impl NbdKernel {
    /// Of this device, or of one that is to be made.
    pub fn new(device: Option<KernelNbd>) -> NbdKernel {
        NbdKernel { device, error: None, due: Instant::now() }
    }

    /// Finds the devices that an earlier daemon left.
    pub fn find(machine: &Machine) -> Vec<(String, NbdKernel)> {
        let boot = boot();
        let mut found = Vec::new();
        for state in &machine.store.get().nbd {
            let own = (state.boot == boot).then(|| KernelNbd::find(state.index, &state.backend));
            match own.flatten() {
                own @ Some(_) => found.push((state.volume.clone(), NbdKernel::new(own))),
                None => forget(machine, &state.volume),
            }
        }
        found
    }

    pub fn device(&self) -> Option<&KernelNbd> {
        self.device.as_ref()
    }

    /// Whether the device is to be looked after.
    pub fn is_due(&self) -> bool {
        self.due <= Instant::now()
    }

    /// Takes the device out, for as long as it is looked after.
    pub fn take(&mut self) -> Option<KernelNbd> {
        self.device.take()
    }

    /// Puts it back, with what went wrong.
    pub fn put(&mut self, device: Option<KernelNbd>, error: Option<ApiError>) {
        self.device = device;
        self.due = Instant::now() + error.as_ref().map_or(Duration::ZERO, |_| RETRY);
        self.error = error;
    }

    /// What is the matter with it.
    pub fn trouble(&self) -> Option<Cause> {
        let why = self.error.as_ref()?.message.clone();
        Some(match self.device {
            Some(_) => Cause::NotConnected { why },
            None => Cause::NoDevice { why },
        })
    }

    /// Ends the device: whoever uses it gets errors.
    pub fn end(self, machine: &Machine, name: &str) {
        let Some(device) = self.device else { return };
        let path = device.path();
        if let Err(error) = device.detach() {
            tracing::warn!(volume = name, "{error}");
        }
        machine.links.remove(name, &path);
        forget(machine, name);
    }
}

/// Replaces the connections of a device that ended, or makes it.
pub(super) fn mend(
    machine: &Machine,
    name: &str,
    device: &mut Option<KernelNbd>,
) -> Result<(), ApiError> {
    let failed = |error: io::Error| ApiError::failed(error.to_string());
    if let Some(device) = device {
        let count = device.mend(&machine.nbd_socket, name).map_err(failed)?;
        if count > 0 {
            let path = device.path();
            let path = path.display();
            tracing::info!(volume = name, "block device {path}: {count} new connections");
        }
        return Ok(());
    }
    let backend = format!("forebay-{}", hex(&random_uuid()?));
    let small = machine.has_small_sectors(name);
    let made = KernelNbd::attach(&machine.nbd_socket, name, &backend, small).map_err(failed)?;
    let remembered = machine.store.change(|all| {
        all.nbd.retain(|it| it.volume != name);
        all.nbd.push(NbdState {
            volume: name.to_string(),
            boot: boot(),
            index: made.index,
            backend,
        });
    });
    if let Err(error) = remembered {
        tracing::warn!(volume = name, "its device ends with forebayd: {}", error.message);
    }
    machine.links.put(name, &made.path(), machine.is_ephemeral(name));
    tracing::info!(volume = name, "block device {} made", made.path().display());
    *device = Some(made);
    Ok(())
}

fn forget(machine: &Machine, name: &str) {
    machine.forget(name, |all| all.nbd.retain(|it| it.volume != name));
}
