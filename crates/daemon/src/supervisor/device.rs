//! Block devices of the kernel for volumes: which way a volume is made visible, the devices, and
//! their links. A device outlives the daemon: see [`super::holding`].
//!
//! A device here is a loop device over a file on FUSE; those of ublk are in [`super::ublk`].
//! Another kind of device is another [`Way`], and another variant of
//! [`forebay_host::shard::PortSetup`].

use super::link::leads_to;
use super::listen::Offer;
use super::nbd_kernel::can_nbd_kernel;
use super::ublk::can_ublk;
use super::{COMMAND_TIMEOUT, Inner, Supervisor};
use crate::state::DeviceState;
use forebay_api::ApiError;
use forebay_api::request::Export;
use forebay_host::frontend::fuse::{self, FuseSetup, wire::Agreed};
use forebay_host::frontend::nbd_kernel::KernelNbd;
use forebay_host::frontend::sector_bytes;
use forebay_host::loop_device::{self, Ended, LoopDevice};
use forebay_host::shard::{PortSetup, ShardHandle, VolumeSnapshot};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// A way to make a volume visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A block device of ublk.
    Ublk,
    /// A loop device over a file on FUSE.
    Loop,
    /// `/dev/nbdN` of the kernel.
    NbdKernel,
    /// A vhost-user socket for a virtual machine.
    VhostUser,
    /// The daemon's NBD socket.
    Nbd,
    /// Not at all.
    None,
}

/// A way, and why it is this one.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub way: Way,
    pub why: String,
}

/// Why a volume does not have the device that was asked for.
pub(super) struct NoDevice {
    pub error: ApiError,
    pub again: Again,
}

/// When the device is tried again.
pub(super) enum Again {
    /// By itself.
    At(Instant),
    /// When somebody asks; the volume is offered so.
    Asked(Offer),
}

impl NoDevice {
    /// How the volume is offered when the device is made.
    pub fn offer(&self) -> Option<&Offer> {
        match &self.again {
            Again::Asked(offer) => Some(offer),
            Again::At(_) => None,
        }
    }
}

/// A device. The kernel keeps its requests while nobody serves it.
pub(super) struct Device {
    pub loop_device: LoopDevice,
    pub agreed: Agreed,
    pub fuse: OwnedFd,
    /// The port that serves it: its shard and its key.
    pub port: Option<(ShardHandle, u32)>,
    /// How the volume was offered by it.
    pub offer: Option<Offer>,
}

impl Inner {
    /// Whether a volume has a block device, or a machine's disk, whoever serves it now.
    pub(super) fn has_device(&self, volume: &str) -> bool {
        self.devices.contains_key(volume)
            || self.ublk.contains_key(volume)
            || self.nbd.contains_key(volume)
            || self.guests.contains_key(volume)
    }

    /// Why a volume does not have the device that was asked for, and what to do.
    pub(super) fn without_device(&self, volume: &str) -> Option<(String, String)> {
        let NoDevice { error, again } = self.no_device.get(volume)?;
        let action = match again {
            Again::At(_) => "it is tried again every few seconds".to_string(),
            Again::Asked(_) => format!("try again: forebay volume attach {volume}"),
        };
        let what = match self.nbd.contains_key(volume) {
            true => "its block device has no connection",
            false => "it has no block device",
        };
        Some((format!("{what}: {}", error.message), action))
    }

    /// The path of a volume's device, if it is served.
    pub(super) fn shown_device(&self, volume: &str) -> Option<String> {
        let looped = self.devices.get(volume).filter(|device| device.port.is_some());
        let looped = looped.map(|device| device.loop_device.path());
        let ublk = || self.ublk.get(volume).filter(|ublk| ublk.port.is_some());
        let nbd = || self.nbd.get(volume).map(KernelNbd::path);
        let device = looped.or_else(|| Some(ublk()?.device.path())).or_else(nbd)?;
        let link = self.device_dir.join(volume);
        let path = if leads_to(&link, &device) { link } else { device };
        Some(path.display().to_string())
    }
}

/// Whether this process can make loop devices over FUSE.
///
/// # Errors
/// What is missing, and what to do.
fn can_loop() -> Result<(), ApiError> {
    if !forebay_host::is_root() {
        return Err(ApiError::refused("a loop device needs root")
            .action("run forebayd as root, or use --export nbd"));
    }
    for (device, module) in [(fuse::DEVICE, "fuse"), (loop_device::CONTROL, "loop")] {
        if let Err(error) = File::options().read(true).write(true).open(device) {
            return Err(ApiError::refused(format!("a loop device needs {device}: {error}"))
                .action(format!("load the module: modprobe {module}"))
                .action("or use --export nbd"));
        }
    }
    Ok(())
}

impl Supervisor {
    /// Refuses an export that this machine cannot make.
    pub(super) fn check_export(&self, export: Export) -> Result<(), ApiError> {
        match export {
            Export::Loop => can_loop(),
            Export::Ublk => can_ublk(),
            Export::NbdKernel => can_nbd_kernel(),
            Export::Auto | Export::Nbd | Export::VhostUser | Export::None => Ok(()),
        }
    }

    /// The way to make a volume visible.
    pub(super) fn choose(&self, wanted: Export) -> Choice {
        let chose = |way, why: &str| Choice { way, why: why.to_string() };
        match wanted {
            Export::None => chose(Way::None, "none, as asked"),
            Export::Nbd => chose(Way::Nbd, "nbd, as asked"),
            Export::Loop => chose(Way::Loop, "loop, as asked"),
            Export::Ublk => chose(Way::Ublk, "ublk, as asked"),
            Export::NbdKernel => chose(Way::NbdKernel, "nbd-kernel, as asked"),
            Export::VhostUser => chose(Way::VhostUser, "vhost-user, as asked"),
            Export::Auto if !self.is_system => chose(
                Way::Nbd,
                "nbd: a daemon with a state directory of its own makes no block devices unless \
                 asked (--export ublk or loop)",
            ),
            Export::Auto => match (can_ublk(), can_loop()) {
                (Ok(()), _) => chose(Way::Ublk, "ublk: its driver is there"),
                (Err(error), Ok(())) => {
                    Choice { way: Way::Loop, why: format!("loop: {}", error.message) }
                }
                (Err(no_ublk), Err(no_loop)) => {
                    let why = format!("nbd: {}; {}", no_ublk.message, no_loop.message);
                    Choice { way: Way::Nbd, why }
                }
            },
        }
    }

    /// Makes a volume's device, or serves the one that is there.
    pub(super) fn device_up(
        &self,
        shard: &ShardHandle,
        name: &str,
        offer: &Offer,
    ) -> Result<(), ApiError> {
        let known = self.inner().devices.remove(name);
        let taken = known.and_then(|device| match self.device_take_over(shard, &device, offer) {
            Ok(port) => Some(Device { port: Some(port), offer: Some(offer.clone()), ..device }),
            Err(error) => {
                tracing::error!(volume = name, "its block device is lost: {}", error.message);
                self.device_forget(name, device);
                None
            }
        });
        let is_new = taken.is_none();
        let device = match taken {
            Some(device) => device,
            None => self.device_new(shard, name, offer)?,
        };
        let path = device.loop_device.path();
        if is_new {
            let held = self
                .remember(|all| all.devices.push(state_of(name, &device)))
                .and_then(|()| self.hold(name, device.fuse.as_fd()));
            if let Err(error) = held {
                tracing::warn!(volume = name, "its device ends with forebayd: {}", error.message);
            }
        }
        self.device_link(name, &path);
        self.inner().devices.insert(name.to_string(), device);
        let what = if is_new { "made" } else { "taken over" };
        tracing::info!(volume = name, "block device {} {what}", path.display());
        Ok(())
    }

    /// Whether the block device of a volume has sectors of 512 bytes whatever its size is.
    pub(super) fn has_small_sectors(&self, name: &str) -> bool {
        self.inner().store.get().volume(name).is_some_and(|volume| volume.small_sectors)
    }

    /// Serves a device that had another owner.
    fn device_take_over(
        &self,
        shard: &ShardHandle,
        device: &Device,
        offer: &Offer,
    ) -> Result<(ShardHandle, u32), ApiError> {
        let fuse = device.fuse.try_clone().map_err(|e| system("keep the FUSE device", &e))?;
        let port = attach(shard, fuse, device.agreed, offer, true)?;
        let there = device.loop_device.is_there();
        if !there.as_ref().is_ok_and(|there| *there) {
            let _ = shard.detach_port(port.1, COMMAND_TIMEOUT);
            let path = device.loop_device.path();
            let why = there.err().map_or("it is another one now".to_string(), |e| e.to_string());
            return Err(ApiError::failed(format!("{}: {why}", path.display())));
        }
        if device.loop_device.bytes().is_ok_and(|bytes| bytes != offer.bytes.get())
            && let Err(error) = device.loop_device.resize()
        {
            tracing::warn!("{}: {error}", device.loop_device.path().display());
        }
        Ok(port)
    }

    fn device_new(
        &self,
        shard: &ShardHandle,
        name: &str,
        offer: &Offer,
    ) -> Result<Device, ApiError> {
        can_loop()?;
        let connection = fuse::connect().map_err(|e| system("make a file on FUSE", &e))?;
        let agreed = connection.agreed;
        let own = connection.device.try_clone().map_err(|e| system("keep the FUSE device", &e))?;
        let port = attach(shard, own, agreed, offer, false)?;
        let block_bytes = sector_bytes(offer.bytes.get(), self.has_small_sectors(name));
        let made = connection
            .open_file(name)
            .and_then(|file| LoopDevice::attach(file, block_bytes as u32, name));
        let loop_device = made.map_err(|error| {
            let _ = shard.detach_port(port.1, COMMAND_TIMEOUT);
            system("make a loop device", &error)
        })?;
        if !offer.space.punches
            && let Err(error) = loop_device.forbid_discard()
        {
            tracing::warn!(volume = name, "discards are offered and will be refused: {error}");
        }
        let fuse = connection.device;
        Ok(Device { loop_device, agreed, fuse, port: Some(port), offer: Some(offer.clone()) })
    }

    /// Whether a volume's device could not be made, and is when somebody asks.
    pub(super) fn device_is_missing(&self, volume: &str) -> bool {
        self.inner().no_device.get(volume).is_some_and(|missing| missing.offer().is_some())
    }

    /// Whether a volume's device was taken away behind our back, as `losetup -d` does.
    pub(super) fn device_is_lost(&self, volume: &VolumeSnapshot) -> bool {
        let inner = self.inner();
        let device = inner.devices.get(&volume.view.name);
        volume.ports == 0 && device.is_some_and(|device| device.port.is_some())
    }

    /// Makes a device anew in place of one that was taken away, or that could not be made before.
    pub(super) fn device_renew(&self, pool: &str, name: &str) -> Result<(), ApiError> {
        let missing = self.inner().no_device.remove(name);
        let device = self.inner().devices.remove(name);
        let missing = missing.and_then(|missing| missing.offer().cloned());
        let offer = missing.or_else(|| device.as_ref().and_then(|device| device.offer.clone()));
        if let Some(device) = device {
            self.device_forget(name, device);
        }
        offer.map_or(Ok(()), |offer| self.export_volume(pool, name, &offer))?;
        let inner = self.inner();
        let failed = inner.no_device.get(name).filter(|missing| missing.offer().is_some());
        failed.map_or(Ok(()), |missing| Err(missing.error.clone()))
    }

    /// Has nobody serve a volume's device for a while: the kernel keeps its requests.
    /// A virtual machine reconnects by itself.
    pub(super) fn device_park(&self, name: &str) {
        self.guest_close(name);
        self.ublk_park(name);
        let port = self.inner().devices.get_mut(name).and_then(|device| device.port.take());
        if let Some((shard, key)) = port
            && let Err(error) = shard.detach_port(key, COMMAND_TIMEOUT)
        {
            tracing::warn!(volume = name, "{error}");
        }
    }

    /// The shard ends, and with it its ports.
    pub(super) fn devices_park(&self, shard: &ShardHandle) {
        self.guests_park(Some(shard));
        self.ublk_park_all(shard);
        for device in self.inner().devices.values_mut() {
            if device.port.as_ref().is_some_and(|(own, _)| own.number() == shard.number()) {
                device.port = None;
            }
        }
    }

    /// Ends a volume's device, unless it is in use. With `force`, whoever uses it gets errors.
    /// Returns how the volume was offered.
    pub(super) fn device_down(&self, name: &str, force: bool) -> Result<Option<Offer>, ApiError> {
        if let Some(offer) = self.guest_down(name, force)? {
            return Ok(Some(offer));
        }
        self.nbd_down(name, force)?;
        if let Some(done) = self.ublk_down(name, force) {
            return done;
        }
        let Some(device) = self.inner().devices.remove(name) else { return Ok(None) };
        let path = device.loop_device.path();
        let ended = match device.port {
            Some(_) => device.loop_device.end(),
            None if device.loop_device.is_mounted() => Ok(Ended::Busy),
            None => Ok(Ended::Free),
        };
        let refused = match ended {
            Ok(Ended::Free) => None,
            Ok(Ended::Busy) if force => {
                let _ = device.loop_device.end_with_last_user();
                None
            }
            Ok(Ended::Busy) => {
                let text =
                    format!("the block device {} of volume {name} is in use", path.display());
                Some(
                    ApiError::refused(text)
                        .action(format!("unmount it: umount {}", path.display()))
                        .action("or let those who use it have errors: --force"),
                )
            }
            Err(error) => Some(system("end the loop device", &error)),
        };
        let offer = device.offer.clone();
        match refused {
            Some(error) => {
                self.inner().devices.insert(name.to_string(), device);
                Err(error)
            }
            None => {
                self.device_forget(name, device);
                Ok(offer)
            }
        }
    }

    /// Lets go of everything of a device. Its connection ends, and with it what still uses it.
    fn device_forget(&self, name: &str, device: Device) {
        let Device { loop_device, fuse, port, .. } = device;
        if let Some((shard, key)) = port
            && let Err(error) = shard.detach_port(key, COMMAND_TIMEOUT)
        {
            tracing::warn!(volume = name, "{error}");
        }
        self.unhold(name);
        drop(fuse);
        if let Err(error) = loop_device.end_dead() {
            tracing::warn!(volume = name, "{error}");
        }
        self.device_unlink(name, &loop_device.path());
        if let Err(error) = self.remember(|all| all.devices.retain(|it| it.volume != name)) {
            tracing::warn!(volume = name, "{}", error.message);
        }
    }

    /// At the stop: ends the devices that nobody uses. Those in use wait for the next daemon.
    pub(super) fn devices_leave(&self) {
        self.guests_park(None);
        self.ublk_leave();
        self.nbd_leave();
        let names: Vec<String> = self.inner().devices.keys().cloned().collect();
        for name in names {
            match self.device_down(&name, false) {
                Ok(_) => {}
                Err(error) => {
                    tracing::info!(volume = name.as_str(), "{}; it waits", error.message);
                }
            }
        }
    }
}

fn attach(
    shard: &ShardHandle,
    device: OwnedFd,
    agreed: Agreed,
    offer: &Offer,
    taken_over: bool,
) -> Result<(ShardHandle, u32), ApiError> {
    let setup = FuseSetup {
        device,
        volume: offer.volume,
        bytes: offer.bytes.clone(),
        agreed,
        punch: offer.space.punches,
        taken_over,
    };
    let key = shard.attach_port(PortSetup::Fuse(setup), COMMAND_TIMEOUT);
    let key = key.map_err(|error| ApiError::failed(error.to_string()))?;
    Ok((shard.clone(), key))
}

fn system(what: &str, error: &std::io::Error) -> ApiError {
    let text = error.to_string();
    let text = if text.starts_with(what) { text } else { format!("{what}: {text}") };
    ApiError::failed(text).action("or reach the volume without the kernel: --export nbd")
}

fn state_of(name: &str, device: &Device) -> DeviceState {
    DeviceState {
        volume: name.to_string(),
        boot: super::holding::boot(),
        number: device.loop_device.number,
        file_system: device.loop_device.file_system,
        fuse_minor: device.agreed.minor,
        fuse_flags: device.agreed.flags,
        fuse_bytes_max: device.agreed.bytes_max,
    }
}
