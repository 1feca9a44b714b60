//! What each volume is offered by, and why by that.
//!
//! - A volume has one export, in one place: here. What is done to it is a verb of [`Export`].
//! - Two never change one export at once: who does holds the daemon's lock on changes, or is the
//!   volume's job. The lock in here is held for moments, so that questions are answered meanwhile:
//!   an export to which something is done that takes its time is not in the table until then.
//! - A block device outlives the daemon, and the kernel keeps its requests while nobody serves it:
//!   `find` knows it again, `up` serves it, `park` leaves it for a while, `down` ends it unless
//!   somebody uses it, `leave` is the end of the daemon. A device that is there is served again,
//!   whatever would be chosen now.
//! - Who asks for a certain kind gets that or nothing. NBD takes the place of a device only where
//!   the choice was ours.

mod guest;
mod holding;
mod kinds;
mod links;
mod looped;
mod machine;
mod nbd;
mod nbd_kernel;
mod offer;
mod ublk;

pub use holding::{Holding, run_holder};
pub use machine::boot;
pub use offer::{Offer, Space};

use crate::lock::lock;
use crate::place::Place;
use crate::state::Store;
use forebay_api::hint::{Until, When};
use forebay_api::request::Export as Kind;
use forebay_api::told::GuestSees;
use forebay_api::{ApiError, Cause, Hint, Mode, Told};
use forebay_host::frontend::nbd_kernel::KernelNbd;
use forebay_host::shard::{NbdServer, ShardHandle};
use kinds::Export;
use links::Links;
use looped::{Looped, can_loop};
use machine::Machine;
use nbd_kernel::{NbdKernel, can_nbd_kernel};
use offer::Volume;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use ublk::can_ublk;

/// Directory beside the sockets with a file for each device, which a rule of udev reads.
const UDEV: &str = "udev";

/// The exports of all volumes.
pub struct Exports {
    machine: Machine,
    all: Mutex<BTreeMap<String, Exported>>,
}

/// How a volume is offered.
struct Exported {
    by: Export,
    /// Nothing is offered yet by a device that waits for its volume.
    offered: Option<Offered>,
}

struct Offered {
    offer: Offer,
    /// Number of the shard.
    shard: u32,
    /// Why by this and nothing else.
    why: String,
}

impl Exported {
    /// A device that waits for its volume, if this is one.
    fn waiting(by: Export) -> Option<Exported> {
        by.device().is_some().then_some(Exported { by, offered: None })
    }
}

impl Exports {
    /// Finds what an earlier daemon left, and ends what nothing can serve again.
    pub fn find(
        place: &Place,
        store: &Arc<Store>,
        server: &Arc<NbdServer>,
        (holding, held): (&Arc<Holding>, Vec<(String, OwnedFd)>),
    ) -> Exports {
        let nbd_socket = place.nbd_socket();
        let notes = place.is_system().then(|| nbd_socket.with_file_name(UDEV));
        let machine = Machine {
            links: Links::new(place.device_dir(), notes),
            holding: Arc::clone(holding),
            store: Arc::clone(store),
            server: Arc::clone(server),
            nbd_socket,
            is_system: place.is_system(),
        };
        let looped = Looped::find(&machine, held).into_iter();
        let looped = looped.map(|(name, it)| (name, Export::Loop(it, None)));
        let ublk = ublk::find(&machine).into_iter();
        let ublk = ublk.map(|(name, it)| (name, Export::Ublk(it, None)));
        let nbd = NbdKernel::find(&machine).into_iter();
        let found = looped.chain(nbd.map(|(name, it)| (name, Export::NbdKernel(it)))).chain(ublk);
        let all = found.filter_map(|(name, by)| Some((name, Exported::waiting(by)?))).collect();
        let exports = Exports { machine, all: Mutex::new(all) };
        let known: Vec<PathBuf> = exports.devices().into_iter().map(|(_, path)| path).collect();
        exports.machine.links.prune(&known);
        exports
    }

    fn take(&self, name: &str) -> Option<Exported> {
        lock(&self.all).remove(name)
    }

    fn put(&self, name: &str, exported: Exported) {
        lock(&self.all).insert(name.to_string(), exported);
    }

    /// Asks one export.
    fn ask<T>(&self, name: &str, question: impl FnOnce(&Exported) -> T) -> Option<T> {
        lock(&self.all).get(name).map(question)
    }

    /// Does something to all exports of a shard, or to all that there are; what is returned stays.
    fn each(&self, of: Option<u32>, act: impl Fn(&str, Exported) -> Option<Exported> + Sync) {
        let is_meant = |it: &Exported| {
            of.is_none_or(|shard| it.offered.as_ref().is_some_and(|own| own.shard == shard))
        };
        let act = &act;
        std::thread::scope(|scope| {
            for name in self.names(is_meant) {
                let Some(own) = self.take(&name) else { continue };
                let is_guest = matches!(own.by, Export::Guest(_));
                let act = move || {
                    if let Some(stays) = act(&name, own) {
                        self.put(&name, stays);
                    }
                };
                // Beside each other: one that has requests at an origin that hangs takes its time.
                match is_guest {
                    true => drop(scope.spawn(act)),
                    false => act(),
                }
            }
        });
    }

    /// Refuses an export that this machine cannot make.
    pub fn check(&self, kind: Kind) -> Result<(), ApiError> {
        match kind {
            Kind::Loop => can_loop(),
            Kind::Ublk => can_ublk(),
            Kind::NbdKernel => can_nbd_kernel(),
            Kind::Auto | Kind::Nbd | Kind::VhostUser | Kind::None => Ok(()),
        }
    }

    /// The way to make a volume visible, and why it is this one.
    fn choose(&self, asked: Kind) -> (Kind, String) {
        if asked != Kind::Auto {
            return (asked, format!("{}, as asked", asked.name()));
        }
        if !self.machine.is_system {
            let why = "nbd: a daemon with a state directory of its own makes no block devices \
                       unless asked (--export ublk or loop)";
            return (Kind::Nbd, why.to_string());
        }
        match (can_ublk(), can_loop()) {
            (Ok(()), _) => (Kind::Ublk, "ublk: its driver is there".to_string()),
            (Err(no_ublk), Ok(())) => (Kind::Loop, format!("loop: {}", no_ublk.message)),
            (Err(no_ublk), Err(no_loop)) => {
                (Kind::Nbd, format!("nbd: {}; {}", no_ublk.message, no_loop.message))
            }
        }
    }

    /// Offers a volume to clients, unless it shall not be: by the device that is there, or by what
    /// is asked for.
    pub fn up(&self, shard: &ShardHandle, name: &str, offer: &Offer) {
        let (machine, volume) = (&self.machine, &Volume { shard, name, offer });
        let asked = machine.store.get().volume(name).map(|known| known.export).unwrap_or_default();
        let (kind, mut why) = self.choose(asked);
        let before = self.take(name);
        let taken = before.and_then(|it| it.by.take_over(machine, volume));
        let what = if taken.is_some() { "taken over" } else { "made" };
        if let Some(other) = taken.as_ref().map(Export::kind).filter(|other| *other != kind) {
            why = format!("{}: its block device was there", other.name());
        }
        let make = |kind| Export::make(kind, machine, volume);
        let by = taken.map_or_else(|| make(kind), Ok).or_else(|error| {
            tracing::error!(volume = name, "its block device: {}", error.message);
            why = format!("no block device: {}", error.message);
            if asked == Kind::Auto { make(Kind::Nbd) } else { Err(error) }
        });
        let by = by.unwrap_or_else(Export::Missing);
        if let Some(device) = by.device() {
            machine.links.put(name, &device, machine.is_ephemeral(name));
            tracing::info!(volume = name, "block device {} {what}", device.display());
        }
        let offered = Some(Offered { offer: offer.clone(), shard: shard.number(), why });
        self.put(name, Exported { by, offered });
    }

    fn nbd_kernel<T>(&self, name: &str, act: impl FnOnce(&mut NbdKernel) -> T) -> Option<T> {
        match &mut lock(&self.all).get_mut(name)?.by {
            Export::NbdKernel(nbd) => Some(act(nbd)),
            _ => None,
        }
    }

    /// Makes the kernel's NBD devices that are to be, and replaces their connections that ended.
    /// Our server has to listen.
    pub fn mend(&self) {
        let is_due = |it: &Exported| matches!(&it.by, Export::NbdKernel(nbd) if nbd.is_due());
        let is_due = |it: &Exported| it.offered.is_some() && is_due(it);
        for name in self.names(is_due) {
            let Some(mut device) = self.nbd_kernel(&name, NbdKernel::take) else { continue };
            let mended = nbd_kernel::mend(&self.machine, &name, &mut device);
            if let Err(error) = &mended {
                tracing::error!(volume = name.as_str(), "its block device: {}", error.message);
            }
            self.nbd_kernel(&name, |nbd| nbd.put(device, mended.err()));
        }
    }

    /// Starts another holder of open files if it has ended: for those of the exports, and for
    /// `others`.
    pub fn watch_holder(&self, others: Vec<(&String, BorrowedFd)>) {
        let all = lock(&self.all);
        let own = all.iter().filter_map(|(name, it)| match &it.by {
            Export::Loop(looped, _) => Some((name, looped.fuse())),
            _ => None,
        });
        self.machine.holding.watch(own.chain(others));
    }

    /// Has nobody serve a volume's device for a while: the kernel keeps its requests. A virtual
    /// machine reconnects by itself.
    pub fn park(&self, name: &str) {
        if let Some(Exported { by, offered }) = self.take(name) {
            let by = by.park(&self.machine, name);
            self.put(name, Exported { by, offered });
        }
    }

    /// A shard ends, and with it what it does for its volumes.
    pub fn park_all(&self, shard: &ShardHandle) {
        self.each(Some(shard.number()), |name, it| {
            Exported::waiting(it.by.lose_shard(&self.machine, name))
        });
    }

    /// Offers a volume no longer, unless somebody uses its device. With `force`, whoever uses it
    /// gets errors. Returns how the volume was offered, to offer it again.
    pub fn down(&self, name: &str, force: bool) -> Result<Option<Offer>, ApiError> {
        let Some(it) = self.take(name) else { return Ok(None) };
        if let Err(error) = it.by.release(name, force) {
            self.put(name, it);
            return Err(error);
        }
        it.by.end(&self.machine, name);
        Ok(it.offered.map(|offered| offered.offer))
    }

    /// Offers a volume anew whose device was taken away, or could not be made before.
    pub fn renew(&self, shard: &ShardHandle, name: &str) -> Result<(), ApiError> {
        let Some(it) = self.take(name) else { return Ok(()) };
        it.by.end(&self.machine, name);
        if let Some(Offered { offer, .. }) = it.offered {
            self.up(shard, name, &offer);
        }
        let missing = self.ask(name, |it| match &it.by {
            Export::Missing(error) => Err(error.clone()),
            _ => Ok(()),
        });
        missing.unwrap_or(Ok(()))
    }

    /// At the stop: ends the devices that nobody uses. Those in use wait for the next daemon.
    pub fn leave(&self) {
        self.each(None, |name, Exported { by, offered }| {
            by.leave(&self.machine, name).map(|by| Exported { by, offered })
        });
    }

    /// Has clients of a volume see its new size. Returns what is to be done next.
    ///
    /// # Errors
    /// What went wrong.
    pub fn resize(&self, name: &str, bytes: u64) -> Result<Option<Told>, Told> {
        let Some(it) = self.take(name) else { return Ok(None) };
        if let Some(Offered { offer, .. }) = &it.offered {
            offer.bytes.grow(bytes);
        }
        let shown = it.by.resize(bytes);
        self.put(name, it);
        shown
    }

    /// Tells clients what a new mode means for them.
    pub fn set_mode(&self, name: &str, mode: Mode) {
        if let Some(offered) = lock(&self.all).get_mut(name).and_then(|it| it.offered.as_mut()) {
            offered.offer.mode = mode;
        }
        nbd::set_mode(&self.machine, name, mode);
    }

    /// By what a volume is reached, and why by that.
    pub fn shown(&self, name: &str) -> (Option<String>, Option<String>) {
        let shown = self.ask(name, |it| {
            let why = it.offered.as_ref().map(|offered| offered.why.clone());
            let by = match (&it.by, it.by.device()) {
                (Export::Guest(guest), _) => {
                    let path = format!("vhost-user:{}", guest.path().display());
                    let deaf = why.as_ref().filter(|_| guest.is_deaf());
                    let deaf = deaf.map(|why| format!("{why}; {}", GuestSees::Deaf));
                    return (Some(path), deaf.or(why));
                }
                (by, Some(device)) if !by.waits() => Some(self.machine.links.shown(name, device)),
                (Export::Nbd | Export::NbdKernel(_), _) => Some(self.machine.uri(name)),
                _ => None,
            };
            (by, why)
        });
        shown.unwrap_or_default()
    }

    /// What is the matter with a volume's device, and what to do, as far as that can be told
    /// without knowing how many `ports` its pool has for it.
    pub fn trouble(&self, name: &str, ports: Option<usize>) -> Option<(Cause, Hint)> {
        let again = |when| Hint::attach(name, when);
        self.ask(name, |it| match &it.by {
            by if by.is_lost(ports) => Some((Cause::DeviceTaken, again(When::MakeAgain))),
            Export::Missing(error) => {
                let why = error.message.clone();
                Some((Cause::NoDevice { why }, again(When::Again)))
            }
            Export::NbdKernel(nbd) => {
                Some((nbd.trouble()?, Hint::Wait { until: Until::Connected }))
            }
            _ => None,
        })?
    }

    /// Whether [`Exports::renew`] is to do something.
    pub fn is_renewable(&self, name: &str, ports: usize) -> bool {
        let is_missing = |it: &Exported| matches!(it.by, Export::Missing(_));
        self.ask(name, |it| is_missing(it) || it.by.is_lost(Some(ports))) == Some(true)
    }

    /// Whether a volume has a block device, or a machine's disk, whoever serves it now.
    pub fn has_device(&self, name: &str) -> bool {
        let has = |it: &Exported| it.by.device().is_some() || it.by.kind() == Kind::VhostUser;
        self.ask(name, has) == Some(true)
    }

    /// Connections to our server that are a volume's own device; whether that is in use is looked
    /// at apart.
    pub fn own_connections(&self, name: &str) -> usize {
        let own = self.nbd_kernel(name, |nbd| nbd.device().map(KernelNbd::connections));
        own.flatten().unwrap_or(0)
    }

    /// The block devices of all volumes.
    pub fn devices(&self) -> Vec<(String, PathBuf)> {
        let all = lock(&self.all);
        all.iter().filter_map(|(name, it)| Some((name.clone(), it.by.device()?))).collect()
    }

    /// The volumes whose block devices are in use.
    pub fn users(&self) -> Vec<String> {
        self.names(|it| it.by.is_in_use().unwrap_or(false))
    }

    fn names(&self, which: impl Fn(&Exported) -> bool) -> Vec<String> {
        let all = lock(&self.all);
        all.iter().filter(|(_, it)| which(it)).map(|(name, _)| name.clone()).collect()
    }
}
