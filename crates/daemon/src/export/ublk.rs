//! Volumes as block devices of ublk. The kernel itself keeps such a device and its requests while
//! nobody serves it; the daemon remembers its number, and a mark by which it is known again.

use super::machine::{Machine, boot, load_module};
use super::offer::{Port, Volume};
use crate::convert::random_uuid;
use crate::state::UblkState;
use forebay_api::hint::Reach;
use forebay_api::request::Export as Kind;
use forebay_api::{ApiError, Hint};
use forebay_host::frontend::ublk::{self, UblkDevice, Wanted};
use forebay_host::shard::PortSetup;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The node of the driver, and the module that brings it.
const CONTROL: &str = "/dev/ublk-control";
const MODULE: &str = "ublk_drv";
/// How long the kernel may take to give back what waits for requests of a device that rests.
/// Nothing is lost by leaving the rest of it: it ends with the process.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether this process can make devices of ublk.
///
/// # Errors
/// What is missing, and what to do.
pub(super) fn can_ublk() -> Result<(), ApiError> {
    if forebay_host::is_root() && !Path::new(CONTROL).exists() {
        load_module(MODULE);
    }
    ublk::is_available().map_err(|error| failed(&error, ApiError::refused))
}

/// Finds the devices that an earlier daemon left.
pub(super) fn find(machine: &Machine) -> Vec<(String, UblkDevice)> {
    let boot = boot();
    let mut found = Vec::new();
    for state in &machine.store.get().ublk {
        let device = match state.boot == boot {
            true => UblkDevice::find(state.number, state.mark).unwrap_or_else(|error| {
                tracing::warn!(volume = state.volume.as_str(), "{error}");
                None
            }),
            false => None,
        };
        match device {
            Some(device) => found.push((state.volume.clone(), device)),
            None => forget(machine, &state.volume),
        }
    }
    found
}

pub(super) fn make(machine: &Machine, volume: &Volume) -> Result<(UblkDevice, Port), ApiError> {
    let Volume { name, offer, .. } = *volume;
    can_ublk()?;
    let uuid = random_uuid()?;
    let (mark, _) = uuid.split_first_chunk::<8>().expect("sixteen bytes");
    let wanted = Wanted {
        bytes: offer.bytes.get(),
        mark: u64::from_ne_bytes(*mark),
        discard: offer.space.punches,
        small_sectors: machine.has_small_sectors(name),
        number: None,
        unprivileged: !forebay_host::is_root(),
        // For tests, and against a driver whose better way is broken.
        plain_copy: std::env::var_os("FOREBAY_UBLK_COPY").is_some_and(|value| value == "1"),
    };
    let error = |error| failed(&error, ApiError::failed);
    let device = UblkDevice::add(&wanted).map_err(error)?;
    let remembered = machine.store.change(|all| {
        all.ublk.retain(|it| it.volume != name);
        all.ublk.push(UblkState {
            volume: name.to_string(),
            boot: boot(),
            number: device.number,
            mark: wanted.mark,
        });
    });
    let served = remembered.and_then(|()| serve(&device, volume, UblkDevice::start).map_err(error));
    served.map(|port| (device, port)).inspect_err(|_| {
        // The first error is the one that counts.
        let _ = device.stop();
        let _ = device.delete();
        forget(machine, name);
    })
}

/// Attaches a port, and then does what makes the kernel send requests.
fn serve(
    device: &UblkDevice,
    volume: &Volume,
    begin: fn(&UblkDevice) -> io::Result<()>,
) -> io::Result<Port> {
    let setup = device.open(volume.offer.volume)?;
    let port = Port::attach(volume.shard, PortSetup::Ublk(setup))?;
    if let Err(error) = begin(device) {
        // Ends what the port waits for. The first error is the one that counts.
        let _ = device.stop();
        port.detach(volume.name);
        return Err(error);
    }
    Ok(port)
}

/// Serves a device that nobody serves.
pub(super) fn take_over(device: &UblkDevice, volume: &Volume) -> io::Result<Port> {
    device.take_over()?;
    let port = serve(device, volume, UblkDevice::taken_over)?;
    let bytes = volume.offer.bytes.get();
    if device.bytes().is_ok_and(|now| now != bytes)
        && let Err(error) = device.resize(bytes)
    {
        tracing::warn!("{}: {error}", device.path().display());
    }
    Ok(port)
}

/// Has nobody serve it for a while.
///
/// # Errors
/// The kernel cannot keep its requests; it is served as before.
pub(super) fn park(device: &UblkDevice, port: &mut Option<Port>, name: &str) -> io::Result<()> {
    if port.is_some() {
        device.quiesce()?;
    }
    if let Some(Port { shard, key }) = port.take()
        && let Err(error) = shard.rest_port(device, key, REST_TIMEOUT)
    {
        tracing::warn!(volume = name, "{error}");
    }
    Ok(())
}

/// Takes a device away, with errors for those who still use it.
pub(super) fn end(device: &UblkDevice, port: Option<Port>, machine: &Machine, name: &str) {
    let warn = |error: io::Error| tracing::warn!(volume = name, "{error}");
    device.stop().unwrap_or_else(warn);
    if let Some(port) = port {
        port.detach(name);
    }
    device.delete().unwrap_or_else(warn);
    machine.links.remove(name, &device.path());
    forget(machine, name);
}

fn forget(machine: &Machine, name: &str) {
    machine.forget(name, |all| all.ublk.retain(|it| it.volume != name));
}

fn failed(error: &io::Error, kind: fn(String) -> ApiError) -> ApiError {
    kind(error.to_string()).hint(Hint::use_export(&[Kind::Loop, Kind::Nbd], Reach::Other))
}
