//! Volumes as loop devices over files on FUSE. The device lives as long as the kernel's connection
//! to FUSE, which is held open outside of the daemon: see [`super::holding`].

use super::machine::{Machine, boot, in_use};
use super::offer::{Port, Volume};
use crate::state::DeviceState;
use forebay_api::hint::Reach;
use forebay_api::request::Export as Kind;
use forebay_api::{ApiError, Hint};
use forebay_host::frontend::fuse::{self, FuseSetup, wire::Agreed};
use forebay_host::frontend::sector_bytes;
use forebay_host::loop_device::{self, Ended, LoopDevice};
use forebay_host::shard::PortSetup;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A device. The kernel keeps its requests while nobody serves it.
pub(super) struct Looped {
    device: LoopDevice,
    agreed: Agreed,
    fuse: OwnedFd,
}

/// Whether this process can make loop devices over FUSE.
///
/// # Errors
/// What is missing, and what to do.
pub(super) fn can_loop() -> Result<(), ApiError> {
    if !forebay_host::is_root() {
        return Err(ApiError::refused("a loop device needs root").hint(Hint::RunAsRootOrNbd));
    }
    for (device, module) in [(fuse::DEVICE, "fuse"), (loop_device::CONTROL, "loop")] {
        if let Err(error) = File::options().read(true).write(true).open(device) {
            return Err(ApiError::refused(format!("a loop device needs {device}: {error}"))
                .hint(Hint::LoadModule { module: module.to_string() })
                .hint(Hint::use_export(&[Kind::Nbd], Reach::Other)));
        }
    }
    Ok(())
}

impl Looped {
    /// Finds the devices that an earlier daemon left, and ends those that nothing can serve again.
    pub fn find(machine: &Machine, held: Vec<(String, OwnedFd)>) -> Vec<(String, Looped)> {
        let boot = boot();
        let known = &machine.store.get().devices;
        let mut found = Vec::new();
        for (name, fuse) in held {
            let Some(state) = known.iter().find(|it| it.volume == name && it.boot == boot) else {
                tracing::warn!(volume = name.as_str(), "a device of no volume is let go");
                machine.holding.drop_file(&name);
                continue;
            };
            let agreed = Agreed {
                minor: state.fuse_minor,
                flags: state.fuse_flags,
                bytes_max: state.fuse_bytes_max,
            };
            found.push((name, Looped { device: device_of(state), agreed, fuse }));
        }
        for state in known.iter().filter(|it| found.iter().all(|(name, _)| *name != it.volume)) {
            if state.boot == boot
                && let Err(error) = device_of(state).end_dead()
            {
                tracing::warn!(volume = state.volume.as_str(), "{error}");
            }
            machine.forget(&state.volume, |all| all.devices.retain(|it| it != state));
        }
        found
    }

    pub fn make(machine: &Machine, volume: &Volume) -> Result<(Looped, Port), ApiError> {
        let Volume { name, offer, .. } = *volume;
        can_loop()?;
        let connection = fuse::connect().map_err(|e| system("make a file on FUSE", &e))?;
        let agreed = connection.agreed;
        let port = attach(volume, connection.device.as_fd(), agreed, false)?;
        let block_bytes = sector_bytes(offer.bytes.get(), machine.has_small_sectors(name));
        let made = connection
            .open_file(name)
            .and_then(|file| LoopDevice::attach(file, block_bytes as u32, name));
        let device = match made {
            Ok(device) => device,
            Err(error) => {
                port.detach(name);
                return Err(system("make a loop device", &error));
            }
        };
        if !offer.space.punches
            && let Err(error) = device.forbid_discard()
        {
            tracing::warn!(volume = name, "discards are offered and will be refused: {error}");
        }
        let made = Looped { device, agreed, fuse: connection.device };
        let remembered = machine.store.change(|all| all.devices.push(made.state(name)));
        let held = remembered.map_err(|error| error.message).and_then(|()| {
            machine.holding.put(name, made.fuse()).map_err(|error| format!("{error:#}"))
        });
        if let Err(error) = held {
            tracing::warn!(volume = name, "its device ends with forebayd: {error}");
        }
        Ok((made, port))
    }

    fn state(&self, name: &str) -> DeviceState {
        DeviceState {
            volume: name.to_string(),
            boot: boot(),
            number: self.device.number,
            file_system: self.device.file_system,
            fuse_minor: self.agreed.minor,
            fuse_flags: self.agreed.flags,
            fuse_bytes_max: self.agreed.bytes_max,
        }
    }

    /// Serves a device that nobody serves.
    pub fn take_over(&self, volume: &Volume) -> Result<Port, ApiError> {
        let port = attach(volume, self.fuse(), self.agreed, true)?;
        let there = self.device.is_there();
        if !there.as_ref().is_ok_and(|there| *there) {
            port.detach(volume.name);
            let why = there.err().map_or("it is another one now".to_string(), |e| e.to_string());
            return Err(ApiError::failed(format!("{}: {why}", self.device.path().display())));
        }
        if self.device.bytes().is_ok_and(|bytes| bytes != volume.offer.bytes.get())
            && let Err(error) = self.resize(volume.offer.bytes.get())
        {
            tracing::warn!("{}: {error}", self.device.path().display());
        }
        Ok(port)
    }

    /// Shows another size, which the volume has by now.
    pub fn resize(&self, bytes: u64) -> io::Result<()> {
        fuse::tell_size_changed(self.fuse())?;
        self.device.resize(bytes)
    }

    pub fn device(&self) -> LoopDevice {
        self.device
    }

    /// The open file without which it ends.
    pub fn fuse(&self) -> BorrowedFd<'_> {
        self.fuse.as_fd()
    }

    /// Refuses to end while somebody uses it, unless that is wanted.
    pub fn release(&self, name: &str, is_served: bool, force: bool) -> Result<(), ApiError> {
        let ended = match is_served {
            true => self.device.end(),
            false if self.device.is_mounted() => Ok(Ended::Busy),
            false => Ok(Ended::Free),
        };
        match ended {
            Ok(Ended::Free) => Ok(()),
            Ok(Ended::Busy) if force => {
                let _ = self.device.end_with_last_user();
                Ok(())
            }
            Ok(Ended::Busy) => Err(in_use(name, &self.device.path())),
            Err(error) => Err(system("end the loop device", &error)),
        }
    }

    /// Lets go of everything. Its connection ends, and with it what still uses it.
    pub fn end(self, port: Option<Port>, machine: &Machine, name: &str) {
        if let Some(port) = port {
            port.detach(name);
        }
        machine.holding.drop_file(name);
        drop(self.fuse);
        if let Err(error) = self.device.end_dead() {
            tracing::warn!(volume = name, "{error}");
        }
        machine.links.remove(name, &self.device.path());
        machine.forget(name, |all| all.devices.retain(|it| it.volume != name));
    }
}

fn device_of(state: &DeviceState) -> LoopDevice {
    LoopDevice { number: state.number, file_system: state.file_system }
}

fn attach(
    volume: &Volume,
    device: BorrowedFd,
    agreed: Agreed,
    taken_over: bool,
) -> Result<Port, ApiError> {
    let offer = volume.offer;
    let setup = FuseSetup {
        device: device.try_clone_to_owned().map_err(|e| system("keep the FUSE device", &e))?,
        volume: offer.volume,
        bytes: offer.bytes.clone(),
        agreed,
        punch: offer.space.punches,
        taken_over,
    };
    let port = Port::attach(volume.shard, PortSetup::Fuse(setup));
    port.map_err(|error| ApiError::failed(error.to_string()))
}

fn system(what: &str, error: &io::Error) -> ApiError {
    let text = error.to_string();
    let text = if text.starts_with(what) { text } else { format!("{what}: {text}") };
    ApiError::failed(text).hint(Hint::use_export(&[Kind::Nbd], Reach::WithoutKernel))
}
