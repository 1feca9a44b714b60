//! Volumes as block devices of ublk. The kernel itself keeps such a device and its requests while
//! nobody serves it; the daemon remembers its number, and a mark by which it is known again.

use super::listen::Offer;
use super::{COMMAND_TIMEOUT, Supervisor};
use crate::state::UblkState;
use forebay_api::ApiError;
use forebay_host::frontend::ublk::{self, UblkDevice, Wanted};
use forebay_host::shard::{PortSetup, ShardHandle};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The node of the driver, and the module that brings it.
const CONTROL: &str = "/dev/ublk-control";
const MODULE: &str = "ublk_drv";
/// How long loading the module may take.
const MODPROBE_LIMIT: Duration = Duration::from_secs(10);
/// How long the kernel may take to give back what waits for requests of a device that rests.
/// Nothing is lost by leaving the rest of it: it ends with the process.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// A device. The kernel keeps its requests while nobody serves it.
pub(super) struct Ublk {
    pub device: UblkDevice,
    /// The port that serves it: its shard and its key.
    pub port: Option<(ShardHandle, u32)>,
    /// How the volume was offered by it.
    pub offer: Option<Offer>,
}

/// Whether this process can make devices of ublk.
///
/// # Errors
/// What is missing, and what to do.
pub(super) fn can_ublk() -> Result<(), ApiError> {
    if forebay_host::is_root() && !Path::new(CONTROL).exists() {
        load_module(MODULE);
    }
    ublk::is_available().map_err(|error| {
        ApiError::refused(error.to_string()).action("or use --export loop or --export nbd")
    })
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

impl Supervisor {
    /// Finds the devices that an earlier daemon left.
    pub(super) fn ublk_find(&self) {
        let boot = super::holding::boot();
        let known = self.inner().store.get().ublk.clone();
        for state in known {
            let found = match state.boot == boot {
                true => UblkDevice::find(state.number, state.mark).unwrap_or_else(|error| {
                    tracing::warn!(volume = state.volume.as_str(), "{error}");
                    None
                }),
                false => None,
            };
            match found {
                Some(device) => {
                    let ublk = Ublk { device, port: None, offer: None };
                    self.inner().ublk.insert(state.volume.clone(), ublk);
                }
                None => self.ublk_unremember(&state.volume),
            }
        }
    }

    fn ublk_unremember(&self, name: &str) {
        if let Err(error) = self.remember(|all| all.ublk.retain(|it| it.volume != name)) {
            tracing::warn!(volume = name, "{}", error.message);
        }
    }

    /// Makes a volume's device, or serves the one that is there.
    pub(super) fn ublk_up(
        &self,
        shard: &ShardHandle,
        name: &str,
        offer: &Offer,
    ) -> Result<(), ApiError> {
        let known = self.inner().ublk.remove(name);
        let taken = known.and_then(|ublk| match take_over(shard, &ublk.device, offer) {
            Ok(key) => Some((ublk.device, key)),
            Err(error) => {
                tracing::error!(volume = name, "its block device is lost: {error}");
                self.ublk_forget(name, ublk);
                None
            }
        });
        let what = if taken.is_some() { "taken over" } else { "made" };
        let (device, key) = match taken {
            Some(taken) => taken,
            None => self.ublk_new(shard, name, offer)?,
        };
        self.device_link(name, &device.path());
        let port = Some((shard.clone(), key));
        self.inner()
            .ublk
            .insert(name.to_string(), Ublk { device, port, offer: Some(offer.clone()) });
        tracing::info!(volume = name, "block device {} {what}", device.path().display());
        Ok(())
    }

    fn ublk_new(
        &self,
        shard: &ShardHandle,
        name: &str,
        offer: &Offer,
    ) -> Result<(UblkDevice, u32), ApiError> {
        can_ublk()?;
        let uuid = super::random_uuid()?;
        let (mark, _) = uuid.split_first_chunk::<8>().expect("sixteen bytes");
        let wanted = Wanted {
            bytes: offer.bytes.get(),
            mark: u64::from_ne_bytes(*mark),
            discard: offer.space.punches,
            small_sectors: self.has_small_sectors(name),
            number: None,
            unprivileged: !forebay_host::is_root(),
            // For tests, and against a driver whose better way is broken.
            plain_copy: std::env::var_os("FOREBAY_UBLK_COPY").is_some_and(|value| value == "1"),
        };
        let device = UblkDevice::add(&wanted).map_err(|error| failed(&error))?;
        let made = self
            .remember(|all| {
                all.ublk.retain(|it| it.volume != name);
                all.ublk.push(UblkState {
                    volume: name.to_string(),
                    boot: super::holding::boot(),
                    number: device.number,
                    mark: wanted.mark,
                });
            })
            .and_then(|()| serve(shard, &device, offer, UblkDevice::start).map_err(|e| failed(&e)));
        match made {
            Ok(key) => Ok((device, key)),
            Err(error) => {
                // The first error is the one that counts.
                let _ = device.stop();
                let _ = device.delete();
                self.ublk_unremember(name);
                Err(error)
            }
        }
    }

    /// Has nobody serve a volume's device for a while: the kernel keeps its requests, if it can.
    pub(super) fn ublk_park(&self, name: &str) {
        let Some(mut ublk) = self.inner().ublk.remove(name) else { return };
        let Some((shard, key)) = ublk.port.take() else {
            self.inner().ublk.insert(name.to_string(), ublk);
            return;
        };
        if let Err(error) = ublk.device.quiesce() {
            tracing::warn!(volume = name, "{error}; its block device ends");
            ublk.port = Some((shard, key));
            return self.ublk_forget(name, ublk);
        }
        if let Err(error) = shard.rest_port(&ublk.device, key, REST_TIMEOUT) {
            tracing::warn!(volume = name, "{error}");
        }
        self.inner().ublk.insert(name.to_string(), ublk);
    }

    /// The shard ends, and with it its ports.
    pub(super) fn ublk_park_all(&self, shard: &ShardHandle) {
        for ublk in self.inner().ublk.values_mut() {
            if ublk.port.as_ref().is_some_and(|(own, _)| own.number() == shard.number()) {
                ublk.port = None;
            }
        }
    }

    /// Ends a volume's device, unless it is in use. With `force`, whoever uses it gets errors.
    /// Returns how the volume was offered, or nothing if it has no such device.
    pub(super) fn ublk_down(
        &self,
        name: &str,
        force: bool,
    ) -> Option<Result<Option<Offer>, ApiError>> {
        let ublk = self.inner().ublk.remove(name)?;
        let path = ublk.device.path();
        let in_use = !force && ublk.device.is_in_use().unwrap_or(true);
        if in_use {
            self.inner().ublk.insert(name.to_string(), ublk);
            let text = format!("the block device {} of volume {name} is in use", path.display());
            return Some(Err(ApiError::refused(text)
                .action(format!("unmount it: umount {}", path.display()))
                .action("or let those who use it have errors: --force")));
        }
        let offer = ublk.offer.clone();
        self.ublk_forget(name, ublk);
        Some(Ok(offer))
    }

    /// Takes a device away, with errors for those who still use it.
    fn ublk_forget(&self, name: &str, ublk: Ublk) {
        let Ublk { device, port, .. } = ublk;
        let warn = |error: &dyn std::fmt::Display| tracing::warn!(volume = name, "{error}");
        if let Err(error) = device.stop() {
            warn(&error);
        }
        if let Some((shard, key)) = port
            && let Err(error) = shard.detach_port(key, COMMAND_TIMEOUT)
        {
            warn(&error);
        }
        if let Err(error) = device.delete() {
            warn(&error);
        }
        self.device_unlink(name, &device.path());
        self.ublk_unremember(name);
    }

    /// At the stop: ends the devices that nobody uses. Those in use wait for the next daemon.
    pub(super) fn ublk_leave(&self) {
        let names: Vec<String> = self.inner().ublk.keys().cloned().collect();
        for name in names {
            let Some(Err(error)) = self.ublk_down(&name, false) else { continue };
            tracing::info!(volume = name.as_str(), "{}; it waits", error.message);
            let Some(ublk) = self.inner().ublk.remove(&name) else { continue };
            // Kernels that cannot let it rest notice that the process ends.
            if ublk.device.quiesce().is_ok()
                && let Some((shard, key)) = ublk.port
                && let Err(error) = shard.rest_port(&ublk.device, key, REST_TIMEOUT)
            {
                tracing::warn!(volume = name.as_str(), "{error}");
            }
        }
    }
}

/// Serves a device that had another server.
fn take_over(shard: &ShardHandle, device: &UblkDevice, offer: &Offer) -> std::io::Result<u32> {
    device.take_over()?;
    let key = serve(shard, device, offer, UblkDevice::taken_over)?;
    let bytes = offer.bytes.get();
    if device.bytes().is_ok_and(|now| now != bytes)
        && let Err(error) = device.resize(bytes)
    {
        tracing::warn!("{}: {error}", device.path().display());
    }
    Ok(key)
}

/// Attaches a port, and then does what makes the kernel send requests.
fn serve(
    shard: &ShardHandle,
    device: &UblkDevice,
    offer: &Offer,
    begin: fn(&UblkDevice) -> std::io::Result<()>,
) -> std::io::Result<u32> {
    let setup = device.open(offer.volume)?;
    let attached = shard.attach_port(PortSetup::Ublk(setup), COMMAND_TIMEOUT);
    let key = attached.map_err(std::io::Error::other)?;
    begin(device).inspect_err(|_| {
        // Ends what the port waits for. The first error is the one that counts.
        let _ = device.stop();
        let _ = shard.detach_port(key, COMMAND_TIMEOUT);
    })?;
    Ok(key)
}

fn failed(error: &std::io::Error) -> ApiError {
    ApiError::failed(error.to_string()).action("or use --export loop or --export nbd")
}
