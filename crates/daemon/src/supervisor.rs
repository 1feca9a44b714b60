//! The supervisor: which pools are open, which volumes they serve, and every change of that.
//!
//! Two locks. `changes` is held by whoever changes something, for as long as that takes, so that
//! two changes never meet; `inner` only for moments, so that questions are answered during a
//! change. A lock is never held while a shard is asked.

mod absent;
mod boot;
mod bypass;
mod cache;
mod device;
mod fstab;
mod guest;
mod holding;
mod job;
mod late;
mod leave;
mod link;
mod listen;
mod lost;
mod nbd_kernel;
mod newest;
mod open;
mod origin;
mod plan;
mod pool;
mod resize;
mod rest;
mod stacked;
mod ublk;
mod view;
mod volume;

pub use holding::run_holder;

use crate::convert::hex;
use crate::place::Place;
use crate::sampler::Samples;
use crate::state::{State, Store, is_full};
use bypass::closed_to;
use device::{Choice, Device, NoDevice};
use forebay_api::config::{Config, nearest};
use forebay_api::reply::{DaemonInfo, DeviceInfo, Done};
use forebay_api::{ApiError, Body, RamNeed, Request};
use forebay_engine::{CommandReply, VolumeId};
use forebay_host::frontend::nbd::{Export, Tls, TlsConfig};
use forebay_host::frontend::nbd_kernel::KernelNbd;
use forebay_host::hold::Holder;
use forebay_host::shard::{NbdServer, ServerLimits, ShardError, ShardHandle, VolumeSnapshot};
use guest::GuestDisk;
use job::JobCell;
use listen::Listening;
use newest::{Failed, Parts};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use ublk::Ublk;

/// How long a pool may take to stop before it is left alone. What it did not finish, the next start
/// does.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a command that does not drain may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a change waits for the pools to be opened at the start.
const OPEN_ALL_TIMEOUT: Duration = Duration::from_secs(110);
/// Notices that are kept for `status`, for each pool.
const NOTICES_KEPT: usize = 8;
/// Share of the machine's memory that all pools together may take when nothing is configured: a
/// half.
const RAM_SHARE: u64 = 2;

/// All that the daemon serves.
pub struct Supervisor {
    state_dir: PathBuf,
    /// The daemon of this machine, and not one for a trial.
    is_system: bool,
    nbd_socket: PathBuf,
    listen: Option<SocketAddr>,
    /// For TCP. The unix socket belongs to one user anyway.
    tls: Tls,
    config: Config,
    ram_cap_bytes: u64,
    started: Instant,
    server: Arc<NbdServer>,
    changes: Mutex<()>,
    /// Who holds open what the devices need, beside this process. Locked before `inner`.
    holder: Mutex<Option<Holder>>,
    inner: Mutex<Inner>,
    /// Told when [`Inner::opened`] is set.
    opened: Condvar,
    stopping: AtomicBool,
}

/// What changes.
struct Inner {
    store: Store,
    pools: BTreeMap<String, Pool>,
    jobs: BTreeMap<String, Arc<JobCell>>,
    /// Block devices of the kernel, by volume. Some wait for their volume.
    devices: BTreeMap<String, Device>,
    /// NBD devices of the kernel, by volume.
    nbd: BTreeMap<String, KernelNbd>,
    /// Those of ublk, by volume.
    ublk: BTreeMap<String, Ublk>,
    /// Sockets for virtual machines, by volume.
    guests: BTreeMap<String, GuestDisk>,
    /// Where the links to block devices are.
    device_dir: PathBuf,
    /// How each volume is made visible, and why.
    choices: BTreeMap<String, Choice>,
    /// Volumes that do not have the device that was asked for.
    no_device: BTreeMap<String, NoDevice>,
    samples: Samples,
    listening: Option<Listening>,
    /// What keeps NBD clients out.
    unheard: Vec<ApiError>,
    number_next: u32,
    /// A pool that is opened anew.
    opening: Option<String>,
    /// Pools of which an administrator gives up what only the missing devices hold.
    given_up: BTreeSet<String>,
    /// The pools of the configuration and the state were tried once.
    opened: bool,
    /// How long a start waits for origins.
    origins_until: Option<Instant>,
}

/// A pool that is open, or should be.
#[derive(Clone)]
struct Pool {
    name: String,
    /// Paths as they were given.
    paths: Vec<String>,
    open: Result<Opened, ApiError>,
}

/// An open pool.
#[derive(Clone)]
struct Opened {
    handle: ShardHandle,
    uuid: [u8; 16],
    ram: RamNeed,
    segment_bytes: u64,
    capacity_bytes: u64,
    devices: Vec<DeviceInfo>,
    /// What was wrong with the devices when it was opened.
    findings: Vec<String>,
    /// Its devices, and which of them are used.
    parts: Parts,
    /// Volumes whose origin could not be used, by name.
    problems: BTreeMap<String, ApiError>,
    /// Those of them whose origin is still awaited.
    late: BTreeMap<String, VolumeId>,
    /// What clients are offered, by name.
    exports: BTreeMap<String, Arc<Export>>,
    /// The newest notices that an administrator should see.
    notices: Arc<Mutex<VecDeque<String>>>,
    /// What has failed since.
    failed: Arc<Mutex<Failed>>,
    /// This is a pool in memory, in the place of one whose devices are missing; and why.
    bypass: Option<ApiError>,
}

/// A volume of an open pool.
struct FoundVolume {
    pool: String,
    open: Opened,
    snapshot: VolumeSnapshot,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked changed nothing halfway: each change ends in one assignment.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn shard_error(pool: &str, error: &ShardError) -> ApiError {
    ApiError::failed(format!("pool {pool}: {error}"))
}

/// The state cannot be written.
fn store_error(dir: &Path, error: &anyhow::Error) -> ApiError {
    match is_full(error) {
        true => {
            let text = format!("the state directory {} is full: {error:#}", dir.display());
            ApiError::failed(text).action("make room there")
        }
        false => ApiError::failed(format!("{error:#}"))
            .action(format!("see to it that forebayd can write to {}", dir.display())),
    }
}

/// Says of a change that it was not begun.
fn nothing_changed(error: ApiError) -> ApiError {
    let text =
        format!("nothing was changed, because it could not be remembered: {}", error.message);
    ApiError { message: text, ..error }
}

/// With certificates, clients over TCP must use TLS.
fn load_tls(config: &Config) -> anyhow::Result<Tls> {
    let (Some(certificate), Some(key)) = (&config.nbd_certificate, &config.nbd_key) else {
        return Ok(Tls::Off);
    };
    let authorities = config.nbd_client_ca.as_deref().map(Path::new);
    let tls = TlsConfig::load(Path::new(certificate), Path::new(key), authorities)?;
    Ok(Tls::Require(tls))
}

/// Bytes of memory of this machine.
fn machine_ram_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(1 << 30, |kib| kib << 10)
}

impl Inner {
    /// Whether a pool that is not here may be in a moment.
    fn is_opening(&self, pool: &str) -> bool {
        let is_awaited = !self.opened || self.opening.as_deref() == Some(pool);
        is_awaited && !self.pools.contains_key(pool)
    }
}

impl Supervisor {
    /// A supervisor without open pools yet.
    ///
    /// # Errors
    /// The certificates for TLS cannot be used.
    pub fn new(
        place: &Place,
        config: Config,
        store: Store,
        listen: Option<SocketAddr>,
    ) -> anyhow::Result<Arc<Supervisor>> {
        let machine = machine_ram_bytes();
        let ram_cap_bytes = config.ram.map_or(machine / RAM_SHARE, |size| size.of(machine));
        let tls = load_tls(&config)?;
        // A daemon that was killed left it. Clients find it again when there is something to serve.
        let _ = std::fs::remove_file(place.nbd_socket());
        let inner = Inner {
            store,
            pools: BTreeMap::new(),
            jobs: BTreeMap::new(),
            devices: BTreeMap::new(),
            nbd: BTreeMap::new(),
            ublk: BTreeMap::new(),
            guests: BTreeMap::new(),
            device_dir: place.device_dir(),
            choices: BTreeMap::new(),
            no_device: BTreeMap::new(),
            samples: Samples::default(),
            listening: None,
            unheard: Vec::new(),
            number_next: 1,
            opening: None,
            given_up: BTreeSet::new(),
            opened: false,
            origins_until: None,
        };
        let supervisor = Supervisor {
            state_dir: place.state_dir().to_path_buf(),
            is_system: place.is_system(),
            nbd_socket: place.nbd_socket(),
            listen,
            tls,
            config,
            ram_cap_bytes,
            started: Instant::now(),
            server: NbdServer::new(ServerLimits::default()),
            changes: Mutex::new(()),
            holder: Mutex::new(None),
            inner: Mutex::new(inner),
            opened: Condvar::new(),
            stopping: AtomicBool::new(false),
        };
        supervisor.devices_find();
        Ok(Arc::new(supervisor))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Answers a request. May take as long as the disks do.
    pub fn handle(self: &Arc<Self>, request: &Request) -> Body {
        self.dispatch(request).unwrap_or_else(|error| Body::Error { error })
    }

    fn dispatch(self: &Arc<Self>, request: &Request) -> Result<Body, ApiError> {
        let done = |done: Done| Body::Done(Box::new(done));
        Ok(match request {
            Request::Daemon => Body::Daemon(self.daemon()),
            Request::Status => Body::Status(self.status()),
            Request::Counters => Body::Counters(self.counters()),
            Request::PoolList => Body::Pools { pools: self.pools() },
            Request::PoolShow(named) => Body::Pools { pools: vec![self.pool(&named.name)?] },
            Request::VolumeList => Body::Volumes { volumes: self.volumes() },
            Request::VolumeShow(named) => {
                Body::Volumes { volumes: vec![self.volume(&named.name)?] }
            }
            Request::Why(named) => Body::Why(self.why(&named.name)?),
            Request::Job(named) => Body::Job { job: self.job(&named.name) },
            Request::JobCancel(named) => done(self.job_cancel(&named.name)?),
            change => {
                self.wait_until_opened();
                let _changes = lock(&self.changes);
                if self.stopping.load(Ordering::Relaxed) {
                    return Err(ApiError::conflict("the daemon is stopping"));
                }
                done(self.change(change)?)
            }
        })
    }

    /// Waits until the pools that are known were tried: a change that came first would meet them
    /// half open, or make one that is then opened a second time.
    fn wait_until_opened(&self) {
        let waits = |inner: &mut Inner| !inner.opened && !self.stopping.load(Ordering::Relaxed);
        drop(self.opened.wait_timeout_while(self.inner(), OPEN_ALL_TIMEOUT, waits));
    }

    /// Carries out a change, with the lock on changes held.
    fn change(self: &Arc<Self>, request: &Request) -> Result<Done, ApiError> {
        match request {
            Request::Cache(wanted) => self.cache(wanted),
            Request::PoolCreate(wanted) => self.pool_create(wanted),
            Request::PoolDestroy(wanted) => self.pool_destroy(wanted),
            Request::VolumeCreate(wanted) => self.volume_create(wanted),
            Request::VolumeAttach(wanted) => self.volume_attach(wanted),
            Request::VolumeMode(wanted) => self.volume_mode(wanted),
            Request::VolumeResize(wanted) => self.volume_resize(wanted),
            Request::VolumeDrain(wanted) => self.volume_drain(wanted),
            Request::VolumeDetach(wanted) => self.volume_detach(wanted),
            Request::VolumeRemove(wanted) => self.volume_remove(wanted),
            other => Err(ApiError::usage(format!("{other:?} changes nothing"))),
        }
    }

    fn daemon(&self) -> DaemonInfo {
        DaemonInfo {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            state_dir: self.state_dir.display().to_string(),
            nbd_socket: self.nbd_socket.display().to_string(),
            nbd_listen: self.listen.map(|address| address.to_string()),
            ram_cap_bytes: self.ram_cap_bytes,
        }
    }

    /// Changes what is remembered, durably.
    fn remember(&self, change: impl FnOnce(&mut State)) -> Result<(), ApiError> {
        let changed = self.inner().store.change(change);
        changed.map_err(|error| store_error(&self.state_dir, &error))
    }

    /// Refuses a change that could not be remembered when it is done.
    fn check_memory(&self) -> Result<(), ApiError> {
        let written = self.inner().store.rewrite();
        written.map_err(|error| nothing_changed(store_error(&self.state_dir, &error)))
    }

    /// Opens a pool, and has its volumes said to be opening meanwhile.
    fn while_opening<T>(&self, pool: &str, open: impl FnOnce() -> T) -> T {
        self.inner().opening = Some(pool.to_string());
        let opened = open();
        self.inner().opening = None;
        opened
    }

    /// The open pools, by name.
    fn open_pools(&self) -> Vec<(String, Opened)> {
        let inner = self.inner();
        let open = inner.pools.values().filter_map(|pool| {
            pool.open.as_ref().ok().map(|open| (pool.name.clone(), open.clone()))
        });
        open.collect()
    }

    /// The open pool with this name.
    fn open_pool(&self, name: &str) -> Result<Opened, ApiError> {
        match self.inner().pools.get(name) {
            Some(pool) => pool.open.clone(),
            None => Err(self.no_such_pool(name)),
        }
    }

    fn no_such_pool(&self, name: &str) -> ApiError {
        let error = ApiError::not_found(format!("no pool {name:?}"));
        error.action("see which there are: forebay pool list")
    }

    /// The volume with this name, if its pool is open and serves it.
    fn find_volume(&self, name: &str) -> Result<FoundVolume, ApiError> {
        let mut names = Vec::new();
        for (pool, open) in self.open_pools() {
            let snapshot = open.handle.snapshot().map_err(|error| shard_error(&pool, &error))?;
            for volume in snapshot.volumes {
                if volume.view.name == name {
                    return Ok(FoundVolume { pool, open, snapshot: volume });
                }
                names.push(volume.view.name);
            }
        }
        let inner = self.inner();
        if let Some(known) = inner.store.get().volume(name) {
            let known = known.clone();
            if inner.is_opening(&known.pool) {
                let text = format!("pool {} of volume {name} is being opened", known.pool);
                return Err(ApiError::failed(text).action("wait a moment: forebay status"));
            }
            let pool = inner.pools.get(&known.pool).map(|pool| pool.open.clone());
            drop(inner);
            if let Some(error) = self.dirty_in_missing(&known) {
                return Err(error);
            }
            match pool {
                Some(Err(error)) => return Err(closed_to(error, &known)),
                Some(Ok(open)) if open.problems.contains_key(name) => {
                    return Err(open.problems[name].clone());
                }
                _ => {}
            }
            return Err(ApiError::conflict(format!("volume {name} is detached"))
                .action(format!("bring it back: forebay volume attach {name}")));
        }
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        let error = ApiError::not_found(format!("no volume {name:?}"));
        Err(match nearest(name, &known) {
            Some(near) => error.action(format!("did you mean {near}?")),
            None => error.action("see which there are: forebay volume list"),
        })
    }

    /// Where a file or directory of ours lies that does not outlive the machine.
    fn beside_sockets(&self, name: &str) -> PathBuf {
        self.nbd_socket.with_file_name(name)
    }

    /// Stops everything in order: jobs end, checkpoints are written, pools are marked clean.
    pub fn shutdown(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.opened.notify_all();
        let jobs: Vec<Arc<JobCell>> = self.inner().jobs.values().cloned().collect();
        jobs.iter().for_each(|job| job.cancel());
        let _changes = lock(&self.changes);
        self.wait_for_users();
        self.stop_listening();
        self.devices_leave();
        let pools = std::mem::take(&mut self.inner().pools);
        for pool in pools.into_values() {
            let Ok(open) = pool.open else { continue };
            let served = self.served_volumes(&open);
            match open.handle.stop(STOP_TIMEOUT) {
                Ok(CommandReply::Failed(why)) => {
                    tracing::error!(pool = pool.name, "stop: {why}; the next start recovers");
                }
                Ok(_) => {
                    tracing::info!(pool = pool.name, "stopped");
                    self.note_rest(&pool.name, &served);
                }
                Err(error) => {
                    tracing::error!(pool = pool.name, "stop: {error}; the next start recovers");
                }
            }
        }
    }
}

/// Random bytes for an identity.
fn random_uuid() -> Result<[u8; 16], ApiError> {
    use std::io::Read;
    let mut uuid = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut uuid))
        .map_err(|error| ApiError::failed(format!("read /dev/urandom: {error}")))?;
    Ok(uuid)
}

/// How a fingerprint is remembered.
fn fingerprint_text(fingerprint: &[u8; 32]) -> String {
    hex(fingerprint)
}
