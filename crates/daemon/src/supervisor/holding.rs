//! What outlives the daemon: the open files behind block devices, held by systemd or by a process
//! of ours, so that a daemon that is killed or replaced costs its clients a pause and no error.

use super::device::Device;
use super::{Supervisor, lock};
use anyhow::{Context, ensure};
use forebay_api::ApiError;
use forebay_host::frontend::fuse::wire::Agreed;
use forebay_host::hold::{self, Holder};
use forebay_host::loop_device::LoopDevice;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The holder's socket, in the state directory.
const SOCKET: &str = "holder.sock";

/// What names this life of the machine: what the kernel held is gone in the next one.
pub(super) fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_string()
}

/// Runs a holder that listens at `socket`: `forebayd hold SOCKET`.
///
/// # Errors
/// There is one already, or the system refuses.
pub fn run_holder(socket: &Path) -> anyhow::Result<()> {
    ensure!(
        UnixStream::connect(socket).is_err(),
        "{} has a holder; it ends when it holds nothing",
        socket.display()
    );
    let _ = fs::remove_file(socket);
    // It was started as /proc/self/exe, which would be its name in lists of processes.
    let _ = fs::write("/proc/self/comm", "forebayd-hold");
    let listener =
        UnixListener::bind(socket).with_context(|| format!("listen on {}", socket.display()))?;
    let held = hold::serve(&listener);
    let _ = fs::remove_file(socket);
    held.context("hold open files")
}

impl Supervisor {
    /// Finds the devices that an earlier daemon left, and ends those that nothing can serve again.
    pub(super) fn devices_find(&self) {
        self.ublk_find();
        self.nbd_find();
        let socket = self.state_dir.join(SOCKET);
        let holder = match Holder::systemd() {
            Ok(Some(holder)) => Some(holder),
            Ok(None) => Holder::process(&socket).ok(),
            Err(error) => {
                tracing::warn!("systemd's notification socket: {error}");
                Holder::process(&socket).ok()
            }
        };
        let held = holder.as_ref().map(|holder| holder.list());
        let held = match held.transpose() {
            Ok(held) => held.unwrap_or_default(),
            Err(error) => {
                tracing::error!("the holder of open files does not answer: {error}");
                Vec::new()
            }
        };
        *lock(&self.holder) = holder;
        let boot = boot();
        let known = self.inner().store.get().devices.clone();
        for (name, fuse) in held {
            let Some(state) = known.iter().find(|it| it.volume == name && it.boot == boot) else {
                tracing::warn!(volume = name.as_str(), "a device of no volume is let go");
                self.unhold(&name);
                continue;
            };
            let (number, file_system) = (state.number, state.file_system);
            let loop_device = LoopDevice { number, file_system };
            let agreed = Agreed {
                minor: state.fuse_minor,
                flags: state.fuse_flags,
                bytes_max: state.fuse_bytes_max,
            };
            let device = Device { loop_device, agreed, fuse, port: None, offer: None };
            self.inner().devices.insert(name, device);
        }
        for state in known {
            if self.inner().devices.contains_key(&state.volume) {
                continue;
            }
            let (number, file_system) = (state.number, state.file_system);
            if state.boot == boot
                && let Err(error) = (LoopDevice { number, file_system }).end_dead()
            {
                tracing::warn!(volume = state.volume.as_str(), "{error}");
            }
            if let Err(error) = self.remember(|all| all.devices.retain(|it| *it != state)) {
                tracing::warn!("{}", error.message);
            }
        }
        self.udev_prune();
    }

    /// Has a device's open file held.
    pub(super) fn hold(&self, name: &str, file: BorrowedFd) -> Result<(), ApiError> {
        let mut holder = lock(&self.holder);
        let put = self
            .holder_ready(&mut holder)
            .and_then(|holder| holder.put(name, file).context("give the holder an open file"));
        put.map_err(|error| ApiError::failed(format!("{error:#}")))
    }

    /// Has a device's open file held no longer.
    pub(super) fn unhold(&self, name: &str) {
        if let Some(Err(error)) = lock(&self.holder).as_ref().map(|it| it.drop_file(name)) {
            tracing::warn!(volume = name, "the holder of open files: {error}");
        }
    }

    /// A holder that answers, started if there is none.
    fn holder_ready<'h>(&self, holder: &'h mut Option<Holder>) -> anyhow::Result<&'h Holder> {
        if !holder.as_ref().is_some_and(Holder::is_there) {
            let socket = self.state_dir.join(SOCKET);
            let status = Command::new("/proc/self/exe")
                .arg0("forebayd")
                .arg("hold")
                .arg(&socket)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .status()
                .context("start the holder of open files")?;
            ensure!(status.success(), "the holder of open files ended: {status}");
            let started = Holder::process(&socket).context("reach the holder of open files")?;
            *holder = Some(started);
        }
        holder.as_ref().context("a holder was started")
    }

    /// Starts another holder if it has ended, and has everything held again.
    pub fn watch_holder(&self) {
        let mut holder = lock(&self.holder);
        if holder.as_ref().is_none_or(Holder::is_there) {
            return;
        }
        *holder = None;
        let inner = self.inner();
        if inner.devices.is_empty() {
            return;
        }
        tracing::warn!("the holder of open files has ended; another one is started");
        let held = self.holder_ready(&mut holder).and_then(|holder| {
            for (name, device) in &inner.devices {
                holder.put(name, device.fuse.as_fd())?;
            }
            Ok(())
        });
        if let Err(error) = held {
            tracing::error!("block devices end with forebayd: {error:#}");
        }
    }
}
