//! The supervisor: which pools are open, which volumes they serve, and every change of that.
//!
//! Two locks. `changes` is held by whoever changes something, for as long as that takes, so that
//! two changes never meet; `inner` only for moments, so that questions are answered during a
//! change. A lock is never held while a shard is asked.

mod absent;
mod boot;
mod bypass;
mod cache;
mod configured;
mod fallen;
mod find;
mod fstab;
mod job;
mod late;
mod leave;
mod lost;
mod moved;
mod newest;
mod open;
mod origin;
mod own;
mod plan;
mod pool;
mod replace;
mod rescue;
mod resize;
mod rest;
mod tiers;
mod view;
mod volume;
mod watch;

use crate::convert::{random_uuid, shard_error};
use crate::export::{Exports, Holding};
use crate::job::JobCell;
use crate::listeners::Listeners;
use crate::lock::lock;
use crate::looks::Looks;
use crate::memories::Memories;
use crate::memory::Memory;
use crate::panics;
use crate::parts::{Failed, Parts};
use crate::place::Place;
use crate::sampler::Samples;
use crate::state::{PoolState, State, Store};
use fallen::Falls;
use forebay_api::config::Config;
use forebay_api::hint::Until;
use forebay_api::reply::{DaemonInfo, DeviceInfo, Done};
use forebay_api::{ApiError, Body, Hint, RamNeed, Request};
use forebay_engine::{CommandReply, VolumeId};
use forebay_host::frontend::nbd::{Tls, TlsConfig};
use forebay_host::shard::{NbdServer, ServerLimits, ShardHandle, VolumeSnapshot};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a pool may take to stop before it is left alone. What it did not finish, the next start
/// does.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a command that does not drain may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a change waits for the pools to be opened at the start.
const OPEN_ALL_TIMEOUT: Duration = Duration::from_secs(110);
/// Notices that are kept for `status`, for each pool.
const NOTICES_KEPT: usize = 8;
/// All that the daemon serves.
pub struct Supervisor {
    state_dir: PathBuf,
    /// The daemon of this machine, and not one for a trial.
    is_system: bool,
    nbd_socket: PathBuf,
    nbd_listen: Option<SocketAddr>,
    config: Config,
    memory: Memory,
    started: Instant,
    server: Arc<NbdServer>,
    store: Arc<Store>,
    /// What the volumes are offered by.
    exports: Exports,
    /// Memory of tiers.
    memories: Memories,
    /// What was seen on devices that might be of tiers.
    looks: Looks,
    listeners: Listeners,
    changes: Mutex<()>,
    inner: Mutex<Inner>,
    /// Told when [`Inner::opened`] is set.
    opened: Condvar,
    stopping: AtomicBool,
}

/// What changes.
#[derive(Default)]
struct Inner {
    pools: BTreeMap<String, Pool>,
    jobs: BTreeMap<String, Arc<JobCell>>,
    samples: Samples,
    number_next: u32,
    /// A pool that is opened anew.
    opening: Option<String>,
    /// Pools of which an administrator gives up what only the missing devices hold.
    given_up: BTreeSet<String>,
    /// The pools of the configuration and the state were tried once.
    opened: bool,
    /// Volumes whose tiers were almost full when they were looked at last.
    almost_full: BTreeSet<String>,
    /// Panics of pools' threads, by the pool.
    falls: BTreeMap<String, Falls>,
    /// Since when a pool that fell is opened again.
    picked_up: Option<Instant>,
    /// How long a start waits for origins.
    origins_until: Option<Instant>,
}

/// A pool that is open, or should be.
#[derive(Clone)]
struct Pool {
    /// As it is to be opened.
    known: PoolState,
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
        let memory = Memory::find(config.ram);
        tracing::info!(
            there_bytes = memory.there_bytes,
            pools_bytes = memory.pools_bytes(),
            clients_bytes = memory.clients_bytes,
            "memory{}",
            if memory.is_limited { ", as the control group allows" } else { "" }
        );
        let listeners = Listeners::new(place.nbd_socket(), listen, load_tls(&config)?);
        let (store, server) =
            (Arc::new(store), NbdServer::new(ServerLimits::within(memory.clients_bytes)));
        let (holding, mut held) = Holding::find(place.state_dir());
        let holding = Arc::new(holding);
        let memories = Memories::find(&holding, &mut held);
        let supervisor = Supervisor {
            exports: Exports::find(place, &store, &server, (&holding, held)),
            memories,
            looks: Looks::default(),
            state_dir: place.state_dir().to_path_buf(),
            is_system: place.is_system(),
            nbd_socket: place.nbd_socket(),
            nbd_listen: listen,
            listeners,
            config,
            memory,
            started: Instant::now(),
            server,
            store,
            changes: Mutex::new(()),
            inner: Mutex::default(),
            opened: Condvar::new(),
            stopping: AtomicBool::new(false),
        };
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
            Request::TierShow(named) => Body::Tiers(Box::new(self.tier_show(&named.name)?)),
            Request::Explain(wanted) => self.explain(wanted)?,
            Request::Why(named) => Body::Why(self.why(&named.name)?),
            Request::Job(named) => Body::Job { job: self.job(&named.name) },
            Request::JobCancel(named) => done(self.job_cancel(&named.name)?),
            Request::VolumeRescue(wanted) => Body::Rescued(Box::new(self.volume_rescue(wanted)?)),
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
        if let Request::VolumeDrain(wanted) = request {
            panics::plant(&wanted.name, || self.inner());
        }
        match request {
            Request::Cache(wanted) => self.cache(wanted),
            Request::PoolCreate(wanted) => self.pool_create(wanted),
            Request::PoolDestroy(wanted) => self.pool_destroy(wanted),
            Request::PoolReplace(wanted) => self.pool_replace(wanted),
            Request::VolumeCreate(wanted) => self.volume_create(wanted),
            Request::VolumeCreateTiered(wanted) => self.tiered_create(wanted),
            Request::VolumeAttach(wanted) => self.volume_attach(wanted),
            Request::TierAdd(wanted) => self.tier_add(wanted),
            Request::TierRemove(wanted) => self.tier_remove(wanted),
            Request::TierPin(wanted) => self.tier_pin(wanted),
            Request::TierSet(wanted) => self.tier_set(wanted),
            Request::TierEvacuate(wanted) => self.tier_evacuate(wanted),
            Request::TierCancel(wanted) => self.tier_cancel(wanted),
            Request::TierPause(named) => self.tier_pause(&named.name, true),
            Request::TierResume(named) => self.tier_pause(&named.name, false),
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
            nbd_listen: self.nbd_listen.map(|address| address.to_string()),
            ram_cap_bytes: self.memory.cap_bytes,
            clients_cap_bytes: self.memory.clients_bytes,
            clients_bytes: self.server.held_bytes(),
        }
    }

    /// Changes what is remembered, durably.
    fn remember(&self, change: impl FnOnce(&mut State)) -> Result<(), ApiError> {
        self.store.change(change)
    }

    /// Refuses a change that could not be remembered when it is done.
    fn check_memory(&self) -> Result<(), ApiError> {
        self.store.rewrite().map_err(nothing_changed)
    }

    /// Remembers how it went with a pool.
    fn enter(&self, known: &PoolState, open: Result<Opened, ApiError>) {
        let pool = Pool { known: known.clone(), open };
        self.inner().pools.insert(known.name.clone(), pool);
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
            pool.open.as_ref().ok().map(|open| (pool.known.name.clone(), open.clone()))
        });
        open.collect()
    }

    /// The open pool with this name.
    fn open_pool(&self, name: &str) -> Result<Opened, ApiError> {
        let open = self.inner().pools.get(name).map(|pool| pool.open.clone());
        open.unwrap_or_else(|| Err(self.no_such_pool(name)))
    }

    fn no_such_pool(&self, name: &str) -> ApiError {
        let is_known = self.store.get().pools.iter().any(|pool| pool.name == name);
        if is_known && self.inner().is_opening(name) {
            let error = ApiError::failed(format!("pool {name} is being opened"));
            return error.hint(Hint::Wait { until: Until::Opened });
        }
        let error = ApiError::not_found(format!("no pool {name:?}"));
        error.hint(Hint::ListPools)
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
        self.listeners.stop(None);
        self.exports.leave();
        let pools = std::mem::take(&mut self.inner().pools);
        for pool in pools.into_values() {
            let (Ok(open), name) = (pool.open, pool.known.name) else { continue };
            let served = self.served_volumes(&open);
            let why = match open.handle.stop(STOP_TIMEOUT) {
                Ok(CommandReply::Failed(why)) => why,
                Err(error) => error.to_string(),
                Ok(_) => {
                    tracing::info!(pool = name, "stopped");
                    self.note_rest(&name, &served);
                    self.note_ages(&served);
                    continue;
                }
            };
            tracing::error!(pool = name, "stop: {why}; the next start recovers");
        }
    }
}
