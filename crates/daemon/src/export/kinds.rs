//! The kinds of exports, and what each verb means for each of them.

use super::guest::Guest;
use super::looped::Looped;
use super::machine::{Machine, in_use};
use super::nbd_kernel::NbdKernel;
use super::offer::{Port, Volume};
use super::{nbd, ublk};
use forebay_api::request::Export as Kind;
use forebay_api::{ApiError, Told};
use forebay_host::frontend::nbd_kernel::KernelNbd;
use forebay_host::frontend::ublk::UblkDevice;
use std::io;
use std::path::PathBuf;

/// What a volume is offered by. A device that no port serves waits: the kernel keeps its requests.
pub(super) enum Export {
    Nothing,
    /// Nothing, as what was asked for cannot be made.
    Missing(ApiError),
    /// Our NBD server.
    Nbd,
    /// `/dev/nbdN` of the kernel, a client of our NBD server.
    NbdKernel(NbdKernel),
    /// A loop device over a file on FUSE.
    Loop(Looped, Option<Port>),
    /// A block device of ublk.
    Ublk(UblkDevice, Option<Port>),
    /// A vhost-user socket for a virtual machine.
    Guest(Guest),
}

impl Export {
    pub fn make(kind: Kind, machine: &Machine, volume: &Volume) -> Result<Export, ApiError> {
        if let Kind::Auto | Kind::Nbd | Kind::NbdKernel = kind {
            nbd::make(machine, volume);
        }
        Ok(match kind {
            Kind::None => Export::Nothing,
            Kind::Auto | Kind::Nbd => Export::Nbd,
            Kind::NbdKernel => Export::NbdKernel(NbdKernel::new(None)),
            Kind::Loop => {
                let (looped, port) = Looped::make(machine, volume)?;
                Export::Loop(looped, Some(port))
            }
            Kind::Ublk => {
                let (device, port) = ublk::make(machine, volume)?;
                Export::Ublk(device, Some(port))
            }
            Kind::VhostUser => Export::Guest(Guest::make(machine, volume)?),
        })
    }

    /// What it is asked for as.
    pub fn kind(&self) -> Kind {
        match self {
            Export::Nothing | Export::Missing(_) => Kind::None,
            Export::Nbd => Kind::Nbd,
            Export::NbdKernel(_) => Kind::NbdKernel,
            Export::Loop(..) => Kind::Loop,
            Export::Ublk(..) => Kind::Ublk,
            Export::Guest(_) => Kind::VhostUser,
        }
    }

    /// Serves a volume by the device that is there. Everything else, and a device that is lost,
    /// ends.
    pub fn take_over(mut self, machine: &Machine, volume: &Volume) -> Option<Export> {
        let taken = match &mut self {
            Export::Loop(it, port) => {
                it.take_over(volume).map(|own| *port = Some(own)).map_err(|e| Some(e.message))
            }
            Export::Ublk(it, port) => ublk::take_over(it, volume)
                .map(|own| *port = Some(own))
                .map_err(|error| Some(error.to_string())),
            Export::NbdKernel(_) => {
                nbd::make(machine, volume);
                Ok(())
            }
            _ => Err(None),
        };
        let Err(error) = taken else { return Some(self) };
        if let Some(error) = error {
            tracing::error!(volume = volume.name, "its block device is lost: {error}");
        }
        self.end(machine, volume.name);
        None
    }

    /// The block device, whoever serves it now.
    pub fn device(&self) -> Option<PathBuf> {
        match self {
            Export::NbdKernel(nbd) => nbd.device().map(KernelNbd::path),
            Export::Loop(looped, _) => Some(looped.device().path()),
            Export::Ublk(device, _) => Some(device.path()),
            _ => None,
        }
    }

    /// Whether it is a device that waits for its volume.
    pub fn waits(&self) -> bool {
        matches!(self, Export::Loop(_, None) | Export::Ublk(_, None))
    }

    /// Whether it was taken away behind our back, as by `losetup -d`: its pool has no port for it.
    pub fn is_lost(&self, ports: Option<usize>) -> bool {
        ports == Some(0) && matches!(self, Export::Loop(_, Some(_)))
    }

    /// Whether somebody has the block device open, as a mount does.
    ///
    /// # Errors
    /// That cannot be told.
    pub fn is_in_use(&self) -> io::Result<bool> {
        match self {
            Export::NbdKernel(nbd) => nbd.device().map_or(Ok(false), KernelNbd::is_in_use),
            Export::Loop(looped, _) => Ok(looped.device().is_mounted()),
            Export::Ublk(device, _) => device.is_in_use(),
            _ => Ok(false),
        }
    }

    /// Has nobody serve it for a while.
    pub fn park(mut self, machine: &Machine, name: &str) -> Export {
        match &mut self {
            Export::Loop(_, port) => port.take().into_iter().for_each(|port| port.detach(name)),
            Export::Ublk(device, port) => {
                if let Err(error) = ublk::park(device, port, name) {
                    tracing::warn!(volume = name, "{error}; its block device ends");
                    self.end(machine, name);
                    return Export::Nothing;
                }
            }
            Export::Guest(_) => return Export::Nothing,
            _ => {}
        }
        self
    }

    /// Its shard ends, and with it what the shard did for it. Only devices stay.
    pub fn lose_shard(mut self, machine: &Machine, name: &str) -> Export {
        match &mut self {
            Export::Loop(_, port) | Export::Ublk(_, port) => *port = None,
            Export::NbdKernel(_) => nbd::end(machine, name),
            _ => {
                self.end(machine, name);
                return Export::Nothing;
            }
        }
        self
    }

    /// Refuses to end while somebody uses it, unless these are to have errors.
    pub fn release(&self, name: &str, force: bool) -> Result<(), ApiError> {
        match (self, self.device()) {
            (Export::Loop(looped, port), _) => looped.release(name, port.is_some(), force),
            (Export::Guest(guest), _) => guest.release(name, force),
            (_, Some(device)) if !force && self.is_in_use().unwrap_or(true) => {
                Err(in_use(name, &device))
            }
            _ => Ok(()),
        }
    }

    /// Ends it: who still uses it gets errors.
    pub fn end(self, machine: &Machine, name: &str) {
        match self {
            Export::Nothing | Export::Missing(_) | Export::Guest(_) => {}
            Export::Nbd => nbd::end(machine, name),
            Export::NbdKernel(it) => {
                it.end(machine, name);
                nbd::end(machine, name);
            }
            Export::Loop(looped, port) => looped.end(port, machine, name),
            Export::Ublk(device, port) => ublk::end(&device, port, machine, name),
        }
    }

    /// The daemon ends: what nobody uses ends with it. Returns what waits for the next daemon.
    pub fn leave(mut self, machine: &Machine, name: &str) -> Option<Export> {
        if let Export::Guest(_) = self {
            return None;
        }
        let Err(error) = self.release(name, false) else {
            self.end(machine, name);
            return None;
        };
        tracing::info!(volume = name, "{}; it waits", error.message);
        if let Export::Ublk(device, port) = &mut self {
            // Kernels that cannot let it rest notice that the process ends.
            let _ = ublk::park(device, port, name);
        }
        Some(self)
    }

    /// Shows another size. Returns what is to be done next.
    ///
    /// # Errors
    /// What went wrong.
    pub fn resize(&self, bytes: u64) -> Result<Option<Told>, Told> {
        let Some(path) = self.device() else {
            return Ok(match self {
                Export::Guest(guest) => Some(Told::GuestSees { when: guest.tell_size() }),
                Export::Nbd | Export::NbdKernel(_) => Some(Told::ClientsSee),
                _ => None,
            });
        };
        let shown = match self {
            Export::Loop(looped, _) => looped.resize(bytes),
            Export::Ublk(device, _) => device.resize(bytes),
            Export::NbdKernel(nbd) => nbd.device().map_or(Ok(()), |device| device.resize(bytes)),
            _ => Ok(()),
        };
        let device = path.display().to_string();
        match shown {
            Ok(()) => Ok(Some(Told::GrowContent { device })),
            Err(error) => Err(Told::OldSizeShown { device, why: error.to_string() }),
        }
    }
}
