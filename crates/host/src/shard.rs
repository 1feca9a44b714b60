//! One pool at work: a thread that owns an engine, its devices and its clients' sockets, and the handle by
//! which other threads reach it.

mod clients;
mod dirty;
mod gone;
mod mailbox;
mod patience;
mod ports;
mod replace;
mod run;
mod server;
mod tiers;

pub use mailbox::{Answer, ListenerSocket};
pub use ports::PortSetup;
pub use server::{NbdServer, ServerLimits};

use crate::driver::{Backend, Driver};
use crate::executor::{Executor, read_distrust};
use crate::frontend::nbd::Tls;
use crate::frontend::ublk::UblkDevice;
use crate::limit::within;
use crate::notice::NoticeSink;
use crate::origin::Origin;
use crate::origin::tiered::TiersSnapshot;
use crate::pool::PoolOnDisk;
use crate::witness::WitnessFile;
use forebay_engine::Distrust;
use forebay_engine::stats::{PoolStats, VolumeStats};
use forebay_engine::{
    Command, CommandReply, DeviceSettings, OpenError, OriginSettings, Request, Settings, State,
    Target, Tuning, VolumeId, VolumeSpec, VolumeView, Witness,
};
use forebay_sys::waker::Waker;
use mailbox::{Mailbox, Message};
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After this time a device that rests is told once more to give back what waits.
const REST_AGAIN: Duration = Duration::from_millis(50);

/// What a shard is started with.
pub struct ShardSettings {
    /// The pool. Its devices are used from now on.
    pub pool: PoolOnDisk,
    /// The origins of the superblock's volumes that can be reached and are the right ones.
    pub origins: Vec<(VolumeId, Origin)>,
    /// Where what must be remembered outside of the pool is kept. On another medium than the pool.
    pub state_dir: PathBuf,
    /// Bytes of the RAM tier.
    pub ram_bytes: u64,
    /// The engine's tuning.
    pub tuning: Tuning,
    /// How I/O is done.
    pub backend: Backend,
    /// Number of the pool in [`crate::frontend::nbd::Export::pool`], unique in the server.
    pub number: u32,
    /// What all shards of the process serve together.
    pub server: Arc<NbdServer>,
    /// What is known of the pool's log, see [`crate::witness::read`]; `None` where no witness is
    /// kept: the pool does not outlive its shard.
    pub witness: Option<Witness>,
    /// Takes notices, on the shard's thread.
    pub notices: NoticeSink,
}

/// Why a shard did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// The system refused.
    #[error("cannot {0}: {1}")]
    System(&'static str, io::Error),
    /// No answer in time. What was asked may still happen.
    #[error("the pool did not answer in {0:?}; it goes on trying")]
    Timeout(Duration),
    /// The shard has stopped.
    #[error("the pool is stopped")]
    Stopped,
    /// The shard's thread panicked, with these words. See [`ShardHandle::fell`].
    #[error("an internal error of the pool's thread: {0}")]
    Fell(String),
    /// Too much was asked and not answered.
    #[error("the pool has {0} requests waiting; ask again later")]
    Full(usize),
    /// The pool could not be opened.
    #[error("{0}")]
    OpenFailed(OpenError),
}

/// One volume at one moment.
#[derive(Debug, Clone)]
pub struct VolumeSnapshot {
    /// What the engine knows of it.
    pub view: VolumeView,
    /// Its counts.
    pub stats: VolumeStats,
    /// NBD clients connected to it.
    pub clients: usize,
    /// Block devices of the kernel that it is behind.
    pub ports: usize,
    /// The tiers of its origin, if that has some.
    pub tiers: Option<TiersSnapshot>,
}

/// A pool at one moment.
#[derive(Debug, Clone)]
pub struct ShardSnapshot {
    /// Where the engine stands.
    pub state: State,
    /// The volumes.
    pub volumes: Vec<VolumeSnapshot>,
    /// The pool's counts.
    pub pool: PoolStats,
    /// Clients connected to this shard.
    pub clients: usize,
    /// I/O under way on devices.
    pub io_under_way: usize,
    /// Whether I/O goes through io_uring.
    pub io_uring: bool,
    /// Devices that have not ended an I/O for ten seconds and more, and for how many.
    pub slow: Vec<(Target, u32)>,
}

struct Inner {
    mailbox: Arc<Mailbox>,
    number: u32,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Inner {
    /// A shard that nobody can reach stops.
    fn drop(&mut self) {
        let (reply, _) = sync_channel(1);
        self.mailbox.post(Message::Stop(reply));
    }
}

/// The way to a shard from other threads.
#[derive(Clone)]
pub struct ShardHandle(Arc<Inner>);

impl ShardHandle {
    /// Starts the thread of a pool. Requests may be submitted at once; they wait until it is open.
    ///
    /// # Errors
    /// The system refuses a thread or a file descriptor, or the distrust note cannot be read.
    pub fn start(settings: ShardSettings) -> Result<ShardHandle, ShardError> {
        let system = |what| move |e| ShardError::System(what, e);
        let waker = Waker::new().map_err(system("make an eventfd"))?;
        let mailbox = Arc::new(Mailbox::new(waker.clone()));
        let distrust = read_distrust(&settings.state_dir, &settings.pool.uuid())
            .map_err(system("read the pool's distrust note"))?;
        let number = settings.number;
        let server = Arc::clone(&settings.server);
        let own = Arc::clone(&mailbox);
        let (ready, started) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(format!("forebay-shard{number}"))
            .spawn(move || match Driver::new(settings.backend, &waker) {
                Ok((driver, notice)) => {
                    server.add_shard(number, Arc::clone(&own));
                    let _ = ready.send(Ok(()));
                    let mailbox = Arc::clone(&own);
                    let build = || build(settings, driver, notice, distrust, waker, mailbox);
                    match catch_unwind(AssertUnwindSafe(build)) {
                        Ok(shard) => run::run(shard),
                        Err(panic) => {
                            server.remove_shard(number);
                            own.close(Some(run::words_of(panic.as_ref())));
                        }
                    }
                }
                Err(e) => {
                    let _ = ready.send(Err(e));
                }
            })
            .map_err(system("start a thread"))?;
        let started = started.recv().map_err(|_| ShardError::Stopped)?;
        started.map_err(system("set up I/O"))?;
        let inner = Inner { mailbox, number, thread: Mutex::new(Some(thread)) };
        Ok(ShardHandle(Arc::new(inner)))
    }

    /// The pool's number among the server's.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Waits until the pool is open.
    ///
    /// # Errors
    /// The engine's reason, or no end in time.
    pub fn wait_open(&self, timeout: Duration) -> Result<(), ShardError> {
        let end = Instant::now() + timeout;
        loop {
            match self.snapshot()?.state {
                State::Opening if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                State::Opening => return Err(ShardError::Timeout(timeout)),
                State::Failed(why) => return Err(ShardError::OpenFailed(why)),
                State::Serving | State::Stopping => return Ok(()),
            }
        }
    }

    /// Gives the engine a command and waits for its answer.
    ///
    /// # Errors
    /// No answer in time: the command goes on.
    pub fn command(&self, command: Command, timeout: Duration) -> Result<CommandReply, ShardError> {
        receive(&self.command_start(command)?, timeout)
    }

    /// Gives the engine a command whose answer may take long: a drain, a removal, a mode switch.
    ///
    /// # Errors
    /// The shard has stopped.
    pub fn command_start(&self, command: Command) -> Result<Receiver<CommandReply>, ShardError> {
        self.ask(|reply| Message::Command(Box::new(command), None, reply))
    }

    /// Starts to serve a volume on an open origin.
    ///
    /// # Errors
    /// No answer in time.
    pub fn add_volume(
        &self,
        spec: VolumeSpec,
        origin: Origin,
        timeout: Duration,
    ) -> Result<CommandReply, ShardError> {
        let command = Box::new(Command::AddVolume(Box::new(spec)));
        let reply = self.ask(|reply| Message::Command(command, Some(Box::new(origin)), reply))?;
        receive(&reply, timeout)
    }

    /// Whether the origin of a volume is gone, and its path leads nowhere or to another one; or it
    /// has fewer than `least` bytes.
    ///
    /// # Errors
    /// The shard has stopped, or the origin does not answer in time.
    pub fn origin_is_gone(
        &self,
        volume: VolumeId,
        least: u64,
        limit: Duration,
    ) -> Result<bool, ShardError> {
        let asked = self.ask(|reply| Message::OriginSize(volume, reply))?;
        let Some(origin) = receive(&asked, limit)? else { return Ok(false) };
        within(limit, "read the origin", move || Ok(origin.is_gone(least)))
            .map_err(|e| ShardError::System("read the origin", e))
    }

    /// Gives a volume its origin that the pool was opened without, or that was gone. When it is
    /// flushed, the volume is served.
    ///
    /// # Errors
    /// No answer in time.
    pub fn origin_back(
        &self,
        volume: VolumeId,
        origin: Origin,
        changed: bool,
        timeout: Duration,
    ) -> Result<CommandReply, ShardError> {
        let origin = Box::new(origin);
        let ask = |reply| Message::OriginBack(volume, origin, changed, reply);
        receive(&self.ask(ask)?, timeout)
    }

    /// Gives the engine a request. The receiver gets one answer, or is closed if the shard stops.
    ///
    /// # Errors
    /// The shard has stopped, or too many requests wait.
    pub fn submit(&self, request: Request) -> Result<Receiver<Answer>, ShardError> {
        self.ask(|reply| Message::Submit(request, reply))
    }

    /// The pool at this moment.
    ///
    /// # Errors
    /// The shard has stopped, or is stuck.
    pub fn snapshot(&self) -> Result<ShardSnapshot, ShardError> {
        receive(&self.ask(Message::Snapshot)?, Duration::from_secs(30))
    }

    /// The size that the origin of a volume has now, in bytes, if the volume has one. What is no
    /// file and no block device keeps the size that it was opened with.
    ///
    /// # Errors
    /// The shard has stopped, or the system does not tell.
    pub fn origin_bytes(&self, volume: VolumeId) -> Result<Option<u64>, ShardError> {
        let asked = self.ask(|reply| Message::OriginSize(volume, reply))?;
        let size = receive(&asked, Duration::from_secs(30))?;
        let bytes = size.map(|size| size.bytes()).transpose();
        bytes.map_err(|e| ShardError::System("ask the origin's size", e))
    }

    /// What the shard's thread said when it panicked, if it did: from then on the pool is as after
    /// `kill -9`, and all that was acknowledged is on its devices.
    pub fn fell(&self) -> Option<String> {
        self.0.mailbox.fell()
    }

    /// Whether the thread has ended. Before that nobody may open the pool again: I/O of its may be
    /// under way.
    pub fn has_ended(&self) -> bool {
        let thread = self.0.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Whether the thread still does its work: it answers in time, or has ended.
    pub fn is_alive(&self, timeout: Duration) -> bool {
        let answer = self.ask(Message::Snapshot).and_then(|answer| receive(&answer, timeout));
        !matches!(answer, Err(ShardError::Timeout(_) | ShardError::Full(_)))
    }

    /// Accepts NBD clients of all shards on this socket, until [`ShardHandle::unlisten`].
    ///
    /// # Errors
    /// The shard has stopped, or the system refuses.
    pub fn listen(&self, socket: ListenerSocket, tls: Tls) -> Result<u32, ShardError> {
        let reply = self.ask(|reply| Message::Listen(socket, tls, reply))?;
        receive(&reply, Duration::from_secs(30))?.map_err(|e| ShardError::System("listen", e))
    }

    /// Accepts no more clients on the socket with this number. Connected ones stay.
    pub fn unlisten(&self, listener: u32) {
        self.0.mailbox.post(Message::Unlisten(listener));
    }

    /// Serves a volume of this pool as a block device of the kernel. Returns the port's key, for
    /// [`ShardHandle::detach_port`].
    ///
    /// # Errors
    /// No answer in time, or the kernel refuses.
    pub fn attach_port(&self, setup: PortSetup, timeout: Duration) -> Result<u32, ShardError> {
        let reply = self.ask(|reply| Message::Attach(Box::new(setup), reply))?;
        receive(&reply, timeout)?.map_err(|e| ShardError::System("serve the block device", e))
    }

    /// Ends a port: it takes no more requests, answers those that it has, and closes its
    /// descriptors.
    ///
    /// # Errors
    /// No answer in time: it goes on ending. There is no port with this key.
    pub fn detach_port(&self, port: u32, timeout: Duration) -> Result<(), ShardError> {
        let reply = self.ask(|reply| Message::Detach(port, reply))?;
        ended(receive(&reply, timeout)?)
    }

    /// As [`ShardHandle::detach_port`], of several, whose requests end beside each other: all of
    /// them in `timeout`. How each ended, in their order.
    pub fn detach_ports(&self, ports: &[u32], timeout: Duration) -> Vec<Result<(), ShardError>> {
        let end = Instant::now() + timeout;
        let ask = |port: &u32| self.ask(|reply| Message::Detach(*port, reply));
        let asked: Vec<_> = ports.iter().map(ask).collect();
        let left = || end.saturating_duration_since(Instant::now());
        asked.into_iter().map(|reply| ended(receive(&reply?, left())?)).collect()
    }

    /// Ends the port of a ublk device that rests ([`UblkDevice::quiesce`]).
    ///
    /// A device that is told to rest gives back what waits for requests. What the port answers
    /// after that waits again, and nobody gives it back before the device is told once more.
    ///
    /// # Errors
    /// As [`ShardHandle::detach_port`].
    pub fn rest_port(
        &self,
        device: &UblkDevice,
        port: u32,
        timeout: Duration,
    ) -> Result<(), ShardError> {
        let reply = self.ask(|reply| Message::Detach(port, reply))?;
        let end = Instant::now() + timeout;
        loop {
            match receive(&reply, REST_AGAIN) {
                Err(ShardError::Timeout(_)) if Instant::now() < end => {
                    // Where it refuses, the port does not end, and that is told.
                    let _ = device.quiesce();
                }
                done => return ended(done?),
            }
        }
    }

    /// Finishes what runs, writes a checkpoint, closes all connections and ends the thread.
    ///
    /// # Errors
    /// Not done in time. The engine's own failure is in the reply.
    pub fn stop(&self, timeout: Duration) -> Result<CommandReply, ShardError> {
        let reply = self.ask(Message::Stop)?;
        let reply = receive(&reply, timeout)?;
        let thread = self.0.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(thread) = thread {
            // It panics at most while it drops what is left.
            let _ = thread.join();
        }
        Ok(reply)
    }

    fn ask<T>(
        &self,
        message: impl FnOnce(std::sync::mpsc::SyncSender<T>) -> Message,
    ) -> Result<Receiver<T>, ShardError> {
        let (reply, answer) = sync_channel(1);
        self.0.mailbox.send(message(reply))?;
        Ok(answer)
    }
}

fn ended(port: io::Result<()>) -> Result<(), ShardError> {
    port.map_err(|e| ShardError::System("end the block device", e))
}

fn receive<T>(answer: &Receiver<T>, timeout: Duration) -> Result<T, ShardError> {
    answer.recv_timeout(timeout).map_err(|e| match e {
        RecvTimeoutError::Timeout => ShardError::Timeout(timeout),
        RecvTimeoutError::Disconnected => ShardError::Stopped,
    })
}

fn build(
    settings: ShardSettings,
    mut driver: Driver,
    notice: Option<String>,
    distrust: Distrust,
    waker: Waker,
    mailbox: Arc<Mailbox>,
) -> run::Shard {
    let uuid = settings.pool.uuid();
    let volumes = &settings.pool.superblock.volumes;
    let origins: BTreeMap<VolumeId, Origin> = settings.origins.into_iter().collect();
    let origin_settings = volumes.iter().map(|entry| {
        let volume = VolumeId(entry.id.get());
        let origin = origins.get(&volume);
        OriginSettings {
            volume,
            present: origin.is_some(),
            volatile_cache: origin.is_none_or(Origin::volatile_cache),
            stripe_blocks: origin.map_or(0, Origin::stripe_blocks),
        }
    });
    let devices: Vec<_> = settings
        .pool
        .devices
        .into_iter()
        .map(|slot| ((slot.entry.bytes.get(), slot.presence), slot.device.ok()))
        .collect();
    let device_settings = devices.iter().map(|((bytes, presence), device)| DeviceSettings {
        bytes: device.as_ref().map_or(*bytes, |device| device.info().bytes),
        volatile_cache: device.as_ref().is_none_or(|device| device.needs_flush()),
        // What a file gives back it may not get again: only a block device is told.
        discards: device.as_ref().is_some_and(|it| it.info().is_block && it.info().discard),
        presence: *presence,
    });
    let engine_settings = Settings {
        devices: device_settings.collect(),
        origins: origin_settings.collect(),
        superblock: settings.pool.superblock.clone(),
        distrust,
        witness: settings.witness.unwrap_or_default(),
        ram_bytes: settings.ram_bytes,
        tuning: settings.tuning,
    };
    let opened = devices.iter().flat_map(|(_, device)| device.as_ref()?.notice());
    let opened = opened.chain(origins.values().filter_map(Origin::notice));
    let texts: Vec<String> = opened.map(str::to_owned).chain(notice).collect();
    let executor = Executor::new(
        devices.into_iter().map(|(_, device)| device).collect(),
        origins,
        (&settings.state_dir, &uuid),
        &mut driver,
        waker,
    );
    let witness = settings.witness.map(|_| WitnessFile::new(&settings.state_dir, &uuid));
    let links = run::Links { mailbox, server: settings.server, number: settings.number, witness };
    run::Shard::new(engine_settings, driver, executor, links, settings.notices, texts)
}

#[cfg(test)]
mod tests;
