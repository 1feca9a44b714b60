//! Opening pools: their devices, the origins of their volumes, the shard, the exports.

use super::late::{Awaited, Late, in_time};
use super::origin::Returned;
use super::{NOTICES_KEPT, Opened, Supervisor, lock, shard_error};
use crate::convert::pool_error;
use crate::export::{Offer, Space};
use crate::parts::Parts;
use crate::state::{PoolState, owner_of};
use forebay_api::hint::When;
use forebay_api::reply::DeviceInfo;
use forebay_api::{ApiError, ErrorKind, Hint, Hold};
use forebay_engine::{Notice, OpenError, Tuning, VolumeId, WhyClosed, Witness};
use forebay_format::BLOCK_SIZE;
use forebay_host::Backend;
use forebay_host::device::{Access, DeviceError};
use forebay_host::frontend::VolumeBytes;
use forebay_host::notice::{HostNotice, NoticeSink};
use forebay_host::pool::{PoolError, PoolOnDisk, read_pool};
use forebay_host::shard::{ShardError, ShardHandle, ShardSettings};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long recovery may take before a request stops waiting for it. It goes on.
const OPEN_TIMEOUT: Duration = Duration::from_secs(100);
/// How long after the start of the daemon a device may still be in use by the one before.
const IN_USE_PATIENCE: Duration = Duration::from_secs(5);

/// A pool whose shard was started, with the volumes that are not as it remembers them, and those
/// whose origin is not here yet.
pub(super) type Started = (Opened, Vec<(String, Returned)>, Vec<Late>);

impl Supervisor {
    /// Opens all pools that the configuration and the state name, and makes the configured volumes.
    /// What fails is logged, shown by `status`, and stops nothing else.
    pub fn open_all(self: &Arc<Self>) {
        let _changes = lock(&self.changes);
        let mut wanted: Vec<PoolState> = self.config_pools();
        for pool in self.store.get().pools.clone() {
            if !wanted.iter().any(|other| other.name == pool.name) {
                wanted.push(pool);
            }
        }
        self.wait_for_disks(&wanted);
        let without = self.begin_owns();
        // All recoveries start before the first is waited for.
        let mut started = Vec::new();
        for pool in &wanted {
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            match self.launch_pool(pool) {
                Ok(returned) => started.push((pool, returned)),
                Err(error) => self.pool_failed(pool, error),
            }
        }
        for (pool, returned) in started {
            match self.settle_pool(&pool.name, &returned) {
                Err(error) if error.kind == ErrorKind::NotFound => self.pool_failed(pool, error),
                Err(error) => tracing::error!(pool = pool.name.as_str(), "{}", error.message),
                Ok(()) => {}
            }
        }
        self.serve_owns(without);
        self.config_volumes();
        self.opened_anyway();
        tracing::info!("ready");
    }

    /// No more pools are tried: who waits for that goes on.
    pub fn opened_anyway(&self) {
        self.inner().opened = true;
        self.opened.notify_all();
    }

    fn config_pools(&self) -> Vec<PoolState> {
        let machine = self.memory.there_bytes;
        let pools = self.config.pools.iter().map(|pool| PoolState {
            name: pool.name.clone(),
            devices: pool.devices.clone(),
            ram_bytes: pool.ram.map(|size| size.of(machine)),
        });
        pools.collect()
    }

    /// A pool cannot be opened: its volumes go on without it where they can.
    pub(super) fn pool_failed(self: &Arc<Self>, pool: &PoolState, error: ApiError) {
        if error.kind == ErrorKind::NotFound {
            return self.pool_missing(pool, error);
        }
        self.pool_closed(pool, error);
    }

    /// Remembers why a pool is not open.
    pub(super) fn pool_closed(&self, pool: &PoolState, error: ApiError) {
        tracing::error!(pool = pool.name.as_str(), "{}", error.message);
        self.enter(pool, Err(error));
    }

    /// Opens a pool and waits until it serves.
    pub(super) fn start_pool(self: &Arc<Self>, pool: &PoolState) -> Result<(), ApiError> {
        if let Some(volume) = owner_of(&pool.name) {
            return self.start_own(volume);
        }
        let changed = self.launch_pool(pool)?;
        self.settle_pool(&pool.name, &changed)
    }

    /// As [`Supervisor::start_pool`]; one that cannot be opened stays known, with the reason.
    pub(super) fn start_known_pool(self: &Arc<Self>, pool: &PoolState) -> Result<(), ApiError> {
        self.start_pool(pool).inspect_err(|error| self.keep_why(pool, error))
    }

    fn keep_why(self: &Arc<Self>, pool: &PoolState, error: &ApiError) {
        if self.open_pool(&pool.name).is_err() {
            self.pool_failed(pool, error.clone());
        }
    }

    /// At the start, tries again for a while when something is in use: a daemon that was killed
    /// holds its devices until the kernel has ended its I/O. A pool that fell does, too.
    pub(super) fn patiently<T, E>(
        &self,
        mut open: impl FnMut() -> Result<T, E>,
        is_in_use: fn(&E) -> bool,
    ) -> Result<T, E> {
        loop {
            match open() {
                Err(error) if is_in_use(&error) => {
                    if !self.is_patient() {
                        return Err(error);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                opened => return opened,
            }
        }
    }

    fn is_patient(&self) -> bool {
        let inner = self.inner();
        match inner.picked_up {
            Some(since) => since.elapsed() < IN_USE_PATIENCE,
            None => !inner.opened && self.started.elapsed() < IN_USE_PATIENCE,
        }
    }

    /// Starts the shard of a pool. Its volumes are exported at once: requests wait until it is
    /// open. Returns the volumes whose origin was changed.
    fn launch_pool(
        self: &Arc<Self>,
        pool: &PoolState,
    ) -> Result<Vec<(String, Returned)>, ApiError> {
        self.check_rests(&pool.name)?;
        let gives_up = self.inner().given_up.remove(&pool.name);
        let paths: Vec<PathBuf> = pool.devices.iter().map(PathBuf::from).collect();
        let supervisor = Arc::clone(self);
        let what = format!("read the devices of pool {}", pool.name);
        let mut on_disk = in_time(&what, move || {
            supervisor
                .patiently(|| read_pool(&paths, Access::Exclusive), is_pool_in_use)
                .map_err(|error| pool_error(&error))
        })?;
        let found = on_disk.name();
        if found != pool.name {
            let devices = pool.devices.join(" ");
            let holds = if pool.devices.len() == 1 { "holds" } else { "hold" };
            let text = format!("{devices} {holds} the pool {found:?}, not {:?}", pool.name);
            return Err(ApiError::refused(text).hint(Hint::create_pool(
                &found,
                &pool.devices,
                When::UseItsName,
            )));
        }
        self.check_identity(&on_disk)?;
        let witness = self.check_newest(&mut on_disk)?;
        if gives_up {
            on_disk.give_up_absent();
        }
        if on_disk.devices.iter().all(|slot| slot.device.is_err()) {
            // Their superblock is all that can be used of them.
            return Err(ApiError::not_found(on_disk.findings.join("; ")));
        }
        self.note_seen(pool, &on_disk)?;
        for finding in &on_disk.findings {
            tracing::warn!(pool = pool.name.as_str(), "{finding}");
        }
        let (opened, returned, late) = self.start_shard(pool, on_disk, Some(witness))?;
        self.enter(pool, Ok(opened));
        late.into_iter().for_each(|late| self.follow_late(&pool.name, late));
        self.listen();
        Ok(returned)
    }

    pub(super) fn start_shard(
        self: &Arc<Self>,
        pool: &PoolState,
        on_disk: PoolOnDisk,
        witness: Option<Witness>,
    ) -> Result<Started, ApiError> {
        let header = on_disk.superblock.header;
        let block = BLOCK_SIZE as u64;
        let segment_bytes = u64::from(header.segment_blocks.get()) * block;
        let count = usize::from(header.device_count.get());
        let segments: u64 =
            header.devices[..count].iter().map(|d| u64::from(d.segment_count.get())).sum();
        let slots = segments * u64::from(header.segment_blocks.get());
        let ram = self.ram_need(&pool.name, slots, pool.ram_bytes)?;
        let volumes = on_disk.superblock.volumes.clone();
        let origins = self.open_origins(&pool.name, &on_disk)?;
        let (uuid, findings) = (on_disk.uuid(), on_disk.findings.clone());
        let (parts, failed) = (Parts::of(&on_disk), Arc::default());
        let devices = device_infos(pool, &on_disk);
        let number = {
            let mut inner = self.inner();
            inner.number_next += 1;
            inner.number_next
        };
        let spaces: BTreeMap<VolumeId, Space> =
            origins.usable.iter().map(|(id, origin)| (*id, Space::of(origin))).collect();
        let notices = Arc::new(Mutex::new(VecDeque::new()));
        let sink = notice_sink(pool.name.clone(), Arc::clone(&notices));
        let settings = ShardSettings {
            pool: on_disk,
            origins: origins.usable,
            state_dir: self.state_dir.clone(),
            ram_bytes: ram.tier_bytes,
            witness,
            tuning: Tuning::default(),
            backend: Backend::Auto,
            number,
            server: Arc::clone(&self.server),
            notices: self.watching_tiers(self.watching(&pool.name, (&parts, &failed), sink)),
        };
        let handle =
            ShardHandle::start(settings).map_err(|error| shard_error(&pool.name, &error))?;
        let opened = Opened {
            handle,
            uuid,
            ram,
            segment_bytes,
            capacity_bytes: slots * block,
            devices,
            findings,
            parts,
            problems: origins.problems,
            late: origins.late.iter().map(Late::name).collect(),
            notices,
            failed,
            bypass: None,
        };
        for Awaited { id: volume, name, bytes, mode, .. } in volumes.iter().map(Awaited::from) {
            if !opened.problems.contains_key(&name) {
                let space = spaces.get(&volume).copied().unwrap_or_default();
                let bytes = VolumeBytes::new(bytes);
                self.exports.up(&opened.handle, &name, &Offer { volume, bytes, space, mode });
            }
        }
        Ok((opened, origins.returned, origins.late))
    }

    /// Waits until a pool is open, and then puts right what only an open pool can.
    fn settle_pool(
        self: &Arc<Self>,
        name: &str,
        returned: &[(String, Returned)],
    ) -> Result<(), ApiError> {
        let open = self.open_pool(name)?;
        match open.handle.wait_open(OPEN_TIMEOUT) {
            Ok(()) => {
                self.serves(name);
                self.note_begun(name, &open.parts)?;
            }
            Err(ShardError::OpenFailed(why)) => {
                // Nothing was written: it is as if the devices were missing.
                self.close_pool(name, &open)?;
                return Err(not_opened(name, &why));
            }
            Err(error) => return Err(shard_error(name, &error)),
        }
        for (volume, returned) in returned {
            self.settle_volume(name, volume, *returned)?;
        }
        self.note_clean(name);
        Ok(())
    }

    /// A changed origin under a volume without dirty data only costs the cached blocks, and so does
    /// a volume that went on while its pool was missing.
    pub(super) fn settle_volume(
        self: &Arc<Self>,
        pool: &str,
        volume: &str,
        returned: Returned,
    ) -> Result<(), ApiError> {
        let found = self.find_volume(volume)?;
        let dirty = found.snapshot.stats.dirty_blocks;
        if returned != Returned::Changed {
            tracing::warn!(pool, volume, "{}", returned.meaning());
            return self.settle_returned(&found, returned).or_else(|error| {
                tracing::error!(pool, volume, "{}", error.message);
                self.note_problem(pool, volume, error);
                Ok(())
            });
        }
        if dirty > 0 || found.snapshot.stats.lost_blocks > 0 {
            tracing::error!(
                pool,
                volume,
                "its origin was changed and {dirty} blocks are dirty: it is not served"
            );
            return Ok(());
        }
        tracing::warn!(pool, volume, "{}", returned.meaning());
        self.replace_origin(&found)
    }

    /// Notes which volumes of a pool cannot have dirty data any more.
    pub(super) fn note_clean(&self, pool: &str) {
        let Ok(open) = self.open_pool(pool) else { return };
        let Ok(snapshot) = open.handle.snapshot() else { return };
        let clean: Vec<&str> = snapshot
            .volumes
            .iter()
            .filter(|volume| !volume.view.mode.plan().write_dirty)
            .filter(|volume| volume.stats.dirty_blocks == 0)
            .map(|volume| volume.view.name.as_str())
            .collect();
        let noted = self.remember(|all| {
            for volume in all.volumes.iter_mut().filter(|volume| volume.pool == pool) {
                if clean.contains(&volume.name.as_str()) && !volume.mode.plan().write_dirty {
                    volume.may_be_dirty = false;
                }
            }
        });
        if let Err(error) = noted {
            tracing::warn!(pool, "note that nothing is dirty: {error}");
        }
    }
}

fn not_opened(name: &str, error: &OpenError) -> ApiError {
    let hold = match error.why {
        WhyClosed::DirtyIsAway => Some(Hold::DirtyIsAway),
        WhyClosed::OlderState => Some(Hold::OlderState),
        WhyClosed::UnknownAge => Some(Hold::UnknownAge),
        WhyClosed::Other => None,
    };
    ApiError { hold, ..ApiError::not_found(format!("pool {name}: {error}")) }
}

fn is_pool_in_use(error: &PoolError) -> bool {
    matches!(error, PoolError::Device(DeviceError::InUse { .. }))
}

pub(super) fn device_infos(pool: &PoolState, on_disk: &PoolOnDisk) -> Vec<DeviceInfo> {
    let given = |path: &Path| {
        let shown = path.display().to_string();
        pool.devices.iter().find(|given| **given == shown).cloned().unwrap_or(shown)
    };
    let used = |path: &&String| {
        let mut used = on_disk.devices.iter().filter_map(|slot| slot.device.as_ref().ok());
        used.any(|device| given(device.path()) == **path)
    };
    let header = &on_disk.superblock.header;
    let segment_bytes = u64::from(header.segment_blocks.get()) * BLOCK_SIZE as u64;
    // Of those that are not used nobody tells which is which, but one is none of the others.
    let mut unused = pool.devices.iter().filter(|path| !used(path));
    let devices = on_disk.devices.iter().map(|slot| DeviceInfo {
        path: match &slot.device {
            Ok(device) => given(device.path()),
            Err(_) => unused.next().cloned().unwrap_or_else(|| "?".to_string()),
        },
        bytes: slot.entry.bytes.get(),
        segments: u64::from(slot.entry.segment_count.get()),
        least_bytes: header.segments_offset.get()
            + u64::from(slot.entry.segment_count.get()) * segment_bytes,
        present: slot.device.is_ok(),
        serial: slot.device.as_ref().ok().and_then(|device| device.info().serial.clone()),
        unused_s: None,
    });
    devices.collect()
}

/// Logs a pool's notices, and keeps those that an administrator should see in `status`.
fn notice_sink(pool: String, kept: Arc<Mutex<VecDeque<String>>>) -> NoticeSink {
    Box::new(move |notice: HostNotice| {
        let text = notice.to_string();
        let matters = match &notice {
            HostNotice::Engine(
                Notice::OpenFailed(_)
                | Notice::DeviceFailed(..)
                | Notice::LogBroken
                | Notice::DistrustFailed
                | Notice::BadBlock { lost: true, .. },
            )
            | HostNotice::DeviceHangs { .. }
            | HostNotice::IoFailed { no_space: true, is_tier: false, .. } => {
                tracing::error!(pool = pool.as_str(), "{text}");
                true
            }
            HostNotice::Tiers(..) => {
                tracing::warn!(pool = pool.as_str(), "{text}");
                true
            }
            HostNotice::Engine(Notice::WritebackFailed { .. } | Notice::BadBlock { .. })
            | HostNotice::IoFailed { .. }
            | HostNotice::NoRoom(_)
            | HostNotice::Cut { .. }
            | HostNotice::IoSlow { .. }
            | HostNotice::Repeated(..)
            | HostNotice::Suppressed(_) => {
                tracing::warn!(pool = pool.as_str(), "{text}");
                false
            }
            HostNotice::Engine(
                Notice::Opened { .. }
                | Notice::Repaired(_)
                | Notice::DeviceLeft(_)
                | Notice::DeviceCame(_),
            )
            | HostNotice::Text(_) => {
                tracing::info!(pool = pool.as_str(), "{text}");
                false
            }
        };
        if matters {
            let mut kept = lock(&kept);
            // Of a full file system once is enough.
            let is_new = !matches!(notice, HostNotice::IoFailed { .. }) || kept.is_empty();
            if is_new && !kept.contains(&text) {
                kept.push_back(text);
            }
            while kept.len() > NOTICES_KEPT {
                kept.pop_front();
            }
        }
    })
}
