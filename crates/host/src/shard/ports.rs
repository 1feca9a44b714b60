//! The shard's ports: front ends that are block devices of a kernel, the host's or a guest's.

use crate::driver::{Driver, Loan, PORT_KEYS};
use crate::frontend::fuse::{FusePort, FuseSetup};
use crate::frontend::port::{PortAnswer, PortLink, PortRequest};
use crate::frontend::ublk::{UblkPort, UblkSetup};
use crate::frontend::vhost::{QueuePort, QueueSetup};
use crate::notice::Notices;
use forebay_engine::{BufPool, Keyed, VolumeId};
use std::io;
use std::sync::mpsc::SyncSender;

/// Ports of one shard.
const PORTS_MAX: usize = 4096;
const _: () = assert!(PORTS_MAX <= PORT_KEYS as usize);

/// What a port is made of: descriptors that are open and set up, so that nothing blocks the shard's
/// thread.
#[derive(Debug)]
pub enum PortSetup {
    /// A file on FUSE.
    Fuse(FuseSetup),
    /// A queue of a guest's disk.
    Vhost(QueueSetup),
    /// A device of ublk.
    Ublk(UblkSetup),
}

/// One port, by its kind.
enum Port {
    Fuse(Box<FusePort>),
    Vhost(Box<QueuePort>),
    Ublk(Box<UblkPort>),
}

impl Port {
    fn new(setup: PortSetup) -> Port {
        match setup {
            PortSetup::Fuse(setup) => Port::Fuse(Box::new(FusePort::new(setup))),
            PortSetup::Vhost(setup) => Port::Vhost(Box::new(QueuePort::new(setup))),
            PortSetup::Ublk(setup) => Port::Ublk(Box::new(UblkPort::new(setup))),
        }
    }

    fn volume(&self) -> VolumeId {
        match self {
            Port::Fuse(fuse) => fuse.volume,
            Port::Vhost(queue) => queue.volume,
            Port::Ublk(ublk) => ublk.volume,
        }
    }

    /// Prepares it to take requests. If it fails, nothing is under way.
    fn start(&mut self, link: &mut PortLink) -> io::Result<()> {
        match self {
            Port::Fuse(fuse) => fuse.start(link),
            Port::Vhost(queue) => queue.start(link),
            Port::Ublk(ublk) => ublk.start(link),
        }
    }

    /// What it started on the driver has ended.
    fn arrived(&mut self, link: &mut PortLink, tag: u32, (result, loan): (i32, Loan)) {
        match self {
            Port::Fuse(fuse) => fuse.arrived(link, tag, (result, loan)),
            Port::Vhost(queue) => queue.arrived(link, tag, result),
            Port::Ublk(ublk) => ublk.arrived(link, tag, (result, loan)),
        }
    }

    /// The engine has answered.
    fn complete(&mut self, link: &mut PortLink, tag: u32, answer: PortAnswer) {
        match self {
            Port::Fuse(fuse) => fuse.complete(link, tag, answer),
            Port::Vhost(queue) => queue.complete(link, tag, answer),
            Port::Ublk(ublk) => ublk.complete(link, tag, answer),
        }
    }

    /// Starts on the driver what is to be started, once after all that happened.
    fn arm(&mut self, link: &mut PortLink) {
        match self {
            Port::Fuse(fuse) => fuse.arm(link),
            Port::Vhost(queue) => queue.arm(link),
            // Whatever happens to it starts the next at once.
            Port::Ublk(_) => {}
        }
    }

    /// Whether it is to be looked at, because its other end does not tell of requests.
    fn is_attentive(&self) -> bool {
        match self {
            Port::Vhost(queue) => queue.is_attentive(),
            Port::Fuse(_) | Port::Ublk(_) => false,
        }
    }

    /// Looks for requests, at the cost of a few reads of memory. Whether there were some.
    fn look(&mut self, link: &mut PortLink) -> bool {
        match self {
            Port::Vhost(queue) => queue.look(link),
            Port::Fuse(_) | Port::Ublk(_) => false,
        }
    }

    /// It is not looked at any more: its other end must tell. Whether there were more requests.
    fn park(&mut self, link: &mut PortLink) -> bool {
        match self {
            Port::Vhost(queue) => queue.park(link),
            Port::Fuse(_) | Port::Ublk(_) => false,
        }
    }

    /// Takes no more requests. Those that it has are answered, except with
    /// [`IoError::Shutdown`](forebay_engine::IoError::Shutdown): who serves the device next is
    /// asked again. With `leaving` the shard ends, and the driver with it.
    fn stop(&mut self, leaving: bool) {
        match self {
            Port::Fuse(fuse) => fuse.stop(),
            Port::Vhost(queue) => queue.stop(),
            Port::Ublk(ublk) => ublk.stop(leaving),
        }
    }

    /// Whether the kernel's end is there.
    fn is_connected(&self) -> bool {
        match self {
            Port::Fuse(fuse) => fuse.is_connected(),
            // The device of a queue ends the port when the guest leaves.
            Port::Vhost(_) => true,
            Port::Ublk(ublk) => ublk.is_connected(),
        }
    }

    /// Whether neither the engine nor the kernel has anything of it.
    fn is_at_rest(&self) -> bool {
        match self {
            Port::Fuse(fuse) => fuse.is_at_rest(),
            Port::Vhost(queue) => queue.is_at_rest(),
            Port::Ublk(ublk) => ublk.is_at_rest(),
        }
    }

    fn release(self, bufs: &mut BufPool) {
        match self {
            Port::Fuse(fuse) => fuse.release(bufs),
            Port::Vhost(queue) => queue.release(bufs),
            Port::Ublk(_) => {}
        }
    }
}

struct Entry {
    port: Port,
    stopping: bool,
    /// Waits in `touched`.
    touched: bool,
    /// Stands in `attentive`.
    attentive: bool,
    /// Who is told that it is gone.
    waiting: Vec<SyncSender<io::Result<()>>>,
}

/// All ports of a shard.
pub(super) struct Ports {
    ports: Keyed<Entry>,
    bufs: BufPool,
    requests: Vec<PortRequest>,
    /// Ports to look at before the next wait.
    touched: Vec<u32>,
    /// Ports that are looked at for requests.
    attentive: Vec<u32>,
}

impl Ports {
    pub fn new(unused_bytes_max: usize) -> Ports {
        Ports {
            ports: Keyed::default(),
            bufs: BufPool::new(unused_bytes_max).looking(forebay_sys::memory::is_there),
            requests: Vec::new(),
            touched: Vec::new(),
            attentive: Vec::new(),
        }
    }

    /// Ports of this volume whose other end is there.
    pub fn count_on(&self, volume: VolumeId) -> usize {
        let on_it = |port: &Port| port.volume() == volume && port.is_connected();
        self.ports.iter().filter(|(_, entry)| on_it(&entry.port)).count()
    }

    /// Takes a port in. Returns its key.
    pub fn attach(
        &mut self,
        driver: &mut Driver,
        notices: &mut Notices,
        setup: PortSetup,
    ) -> io::Result<u32> {
        if self.ports.len() >= PORTS_MAX {
            return Err(io::Error::other("the pool has too many block devices"));
        }
        let entry = Entry {
            port: Port::new(setup),
            stopping: false,
            touched: false,
            attentive: false,
            waiting: Vec::new(),
        };
        let key = self.ports.insert(entry);
        let started = self.with(driver, notices, key, |port, link| port.start(link));
        if let Err(e) = started {
            self.ports.remove(key);
            return Err(e);
        }
        Ok(key)
    }

    /// Lets a port go: tells `reply` when nothing of it is under way and its descriptors are
    /// closed.
    pub fn detach(&mut self, key: u32, reply: SyncSender<io::Result<()>>) {
        match self.ports.get_mut(key) {
            Some(entry) => {
                entry.waiting.push(reply);
                self.stop(key, false);
            }
            None => {
                let _ = reply.send(Err(io::Error::from_raw_os_error(libc::ENODEV)));
            }
        }
    }

    fn stop(&mut self, key: u32, leaving: bool) {
        let entry = self.ports.get_mut(key).expect("known to the caller");
        if !entry.stopping || leaving {
            entry.stopping = true;
            entry.port.stop(leaving);
        }
        self.touch(key);
    }

    /// Lets all ports go.
    pub fn shut_down(&mut self) {
        for key in self.ports.keys() {
            self.stop(key, true);
        }
    }

    fn touch(&mut self, key: u32) {
        let entry = self.ports.get_mut(key).expect("known to the caller");
        if !entry.touched {
            entry.touched = true;
            self.touched.push(key);
        }
    }

    fn with<T>(
        &mut self,
        driver: &mut Driver,
        notices: &mut Notices,
        key: u32,
        act: impl FnOnce(&mut Port, &mut PortLink) -> T,
    ) -> T {
        let entry = self.ports.get_mut(key).expect("a port stays until it is at rest");
        if !entry.touched {
            entry.touched = true;
            self.touched.push(key);
        }
        let (bufs, requests) = (&mut self.bufs, &mut self.requests);
        act(&mut entry.port, &mut PortLink { key, driver, bufs, requests, notices })
    }

    /// What a port started on the driver has ended.
    pub fn arrived(
        &mut self,
        driver: &mut Driver,
        notices: &mut Notices,
        (key, tag): (u32, u32),
        ended: (i32, Loan),
    ) {
        if self.ports.get(key).is_none() {
            // Of a port that left with the shard: its commands end when the ring does.
            return;
        }
        self.with(driver, notices, key, |port, link| port.arrived(link, tag, ended));
    }

    /// The engine answered a port's request.
    pub fn complete(
        &mut self,
        driver: &mut Driver,
        notices: &mut Notices,
        (key, tag): (u32, u32),
        answer: PortAnswer,
    ) {
        self.with(driver, notices, key, |port, link| port.complete(link, tag, answer));
    }

    /// Takes what ports ask of the engine.
    pub fn take_requests(&mut self, out: &mut Vec<PortRequest>) {
        out.append(&mut self.requests);
    }

    /// Starts what ports with which something happened have to start, and lets go of those that are
    /// through.
    pub fn arm_touched(&mut self, driver: &mut Driver, notices: &mut Notices) {
        while let Some(key) = self.touched.pop() {
            let (bufs, requests) = (&mut self.bufs, &mut self.requests);
            let Some(entry) = self.ports.get_mut(key) else { continue };
            entry.port.arm(&mut PortLink { key, driver, bufs, requests, notices });
            entry.touched = false;
            if entry.port.is_attentive() && !std::mem::replace(&mut entry.attentive, true) {
                self.attentive.push(key);
            }
            if entry.stopping && entry.port.is_at_rest() {
                let entry = self.ports.remove(key).expect("seen above");
                entry.port.release(&mut self.bufs);
                for waiting in entry.waiting {
                    let _ = waiting.send(Ok(()));
                }
            }
        }
    }

    /// Looks once for requests at the ports whose other ends do not tell of them. Whether there
    /// were some.
    pub fn look(&mut self, driver: &mut Driver, notices: &mut Notices) -> bool {
        let mut some = false;
        for at in 0..self.attentive.len() {
            let key = self.attentive[at];
            if let Some(entry) = self.ports.get_mut(key) {
                let (bufs, requests) = (&mut self.bufs, &mut self.requests);
                let mut link = PortLink { key, driver, bufs, requests, notices };
                if entry.port.look(&mut link) {
                    some = true;
                    self.touch(key);
                }
            }
        }
        some
    }

    /// Has the other ends of all ports tell of requests from now on: the shard is about to sleep.
    /// Whether there were some.
    pub fn park(&mut self, driver: &mut Driver, notices: &mut Notices) -> bool {
        let mut some = false;
        for key in std::mem::take(&mut self.attentive) {
            let Some(entry) = self.ports.get_mut(key) else { continue };
            entry.attentive = false;
            let (bufs, requests) = (&mut self.bufs, &mut self.requests);
            if entry.port.park(&mut PortLink { key, driver, bufs, requests, notices }) {
                some = true;
                self.touch(key);
            }
        }
        some
    }

    /// Whether no port is left.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Forgets ports that never came to rest: what they have open stays open, as their kernels may
    /// still use it.
    pub fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.ports));
    }
}
