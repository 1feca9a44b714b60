//! Opening pools: their devices, the origins of their volumes, the shard, the exports.

use super::{NOTICES_KEPT, Opened, Pool, Supervisor, lock, shard_error};
use crate::convert::{api_mode, pool_error};
use crate::state::PoolState;
use forebay_api::ApiError;
use forebay_api::reply::DeviceInfo;
use forebay_api::request::{ChangedOrigin, VolumeCreate};
use forebay_engine::{Notice, Tuning, VolumeId};
use forebay_format::BLOCK_SIZE;
use forebay_format::superblock::field_text;
use forebay_host::Backend;
use forebay_host::device::{Access, DeviceError};
use forebay_host::notice::{HostNotice, NoticeSink};
use forebay_host::pool::{PoolError, PoolOnDisk, read_pool};
use forebay_host::shard::{ShardHandle, ShardSettings};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long recovery may take before a request stops waiting for it. It goes on.
const OPEN_TIMEOUT: Duration = Duration::from_secs(100);
/// How long after the start of the daemon a device may still be in use by the one before.
const IN_USE_PATIENCE: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Opens all pools that the configuration and the state name, and makes the configured volumes.
    /// What fails is logged, shown by `status`, and stops nothing else.
    pub fn open_all(self: &Arc<Self>) {
        let _changes = lock(&self.changes);
        let mut wanted: Vec<PoolState> = self.config_pools();
        for pool in self.inner().store.get().pools.clone() {
            if !wanted.iter().any(|other| other.name == pool.name) {
                wanted.push(pool);
            }
        }
        // All recoveries start before the first is waited for.
        let mut started = Vec::new();
        for pool in &wanted {
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            match self.launch_pool(pool, None) {
                Ok(changed) => started.push((&pool.name, changed)),
                Err(error) => self.pool_failed(pool, error),
            }
        }
        for (name, changed) in started {
            if let Err(error) = self.settle_pool(name, &changed) {
                tracing::error!(pool = name.as_str(), "{}", error.message);
            }
        }
        self.config_volumes();
        self.inner().opened = true;
        tracing::info!("ready");
    }

    fn config_pools(&self) -> Vec<PoolState> {
        let machine = super::machine_ram_bytes();
        let pools = self.config.pools.iter().map(|pool| PoolState {
            name: pool.name.clone(),
            devices: pool.devices.clone(),
            ram_bytes: pool.ram.map(|size| size.of(machine)),
        });
        pools.collect()
    }

    fn config_volumes(self: &Arc<Self>) {
        for volume in &self.config.volumes {
            let known = self.inner().store.get().volume(&volume.name).is_some();
            if known || self.find_volume(&volume.name).is_ok() {
                continue;
            }
            let request = VolumeCreate {
                name: volume.name.clone(),
                origin: volume.origin.clone(),
                pool: volume.pool.clone(),
                mode: Some(volume.mode),
                export: volume.export,
                dry_run: false,
            };
            if let Err(error) = self.volume_create(&request) {
                let name = volume.name.as_str();
                tracing::error!(volume = name, "the configured volume: {}", error.message);
            }
        }
    }

    fn pool_failed(&self, pool: &PoolState, error: ApiError) {
        tracing::error!(pool = pool.name.as_str(), "{}", error.message);
        let again = format!("then: forebay pool create {} {}", pool.name, pool.devices.join(" "));
        let failed = Pool {
            name: pool.name.clone(),
            paths: pool.devices.clone(),
            open: Err(error.action("bring its devices back").action(again)),
        };
        self.inner().pools.insert(pool.name.clone(), failed);
    }

    /// Opens a pool and waits until it serves.
    pub(super) fn start_pool(self: &Arc<Self>, pool: &PoolState) -> Result<(), ApiError> {
        let changed = self.launch_pool(pool, None)?;
        self.settle_pool(&pool.name, &changed)
    }

    /// Opens a pool again, after an origin came back or was accepted as it is.
    pub(super) fn reopen_pool(
        self: &Arc<Self>,
        name: &str,
        accept: (&str, ChangedOrigin),
    ) -> Result<(), ApiError> {
        let open = self.open_pool(name)?;
        let paths = self.inner().pools.get(name).map(|pool| pool.paths.clone());
        let stored = self.inner().store.get().pools.iter().find(|pool| pool.name == name).cloned();
        let state = stored.unwrap_or_else(|| PoolState {
            name: name.to_string(),
            devices: paths.unwrap_or_default(),
            ram_bytes: Some(open.ram.total_bytes),
        });
        tracing::info!(pool = name, "opening the pool again; its clients have to connect again");
        self.inner().pools.remove(name);
        self.move_listeners(name);
        open.handle.stop(super::STOP_TIMEOUT).map_err(|error| shard_error(name, &error))?;
        drop(open);
        let launched = self.launch_pool(&state, Some(accept));
        let changed = launched.inspect_err(|error| self.pool_failed(&state, error.clone()))?;
        self.settle_pool(name, &changed)
    }

    /// At the start, tries again for a while when something is in use: a daemon that was killed
    /// holds its devices until the kernel has ended its I/O.
    pub(super) fn patiently<T, E>(
        &self,
        mut open: impl FnMut() -> Result<T, E>,
        is_in_use: fn(&E) -> bool,
    ) -> Result<T, E> {
        loop {
            match open() {
                Err(error) if is_in_use(&error) => {
                    if self.inner().opened || self.started.elapsed() > IN_USE_PATIENCE {
                        return Err(error);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                opened => return opened,
            }
        }
    }

    /// Starts the shard of a pool. Its volumes are exported at once: requests wait until it is
    /// open. Returns the volumes whose origin was changed.
    fn launch_pool(
        self: &Arc<Self>,
        pool: &PoolState,
        accept: Option<(&str, ChangedOrigin)>,
    ) -> Result<Vec<String>, ApiError> {
        let paths: Vec<PathBuf> = pool.devices.iter().map(PathBuf::from).collect();
        let on_disk = self
            .patiently(|| read_pool(&paths, Access::Exclusive), is_pool_in_use)
            .map_err(|error| pool_error(&error))?;
        let found = on_disk.name();
        if found != pool.name {
            let devices = pool.devices.join(" ");
            let text = format!("{devices} hold the pool {found:?}, not {:?}", pool.name);
            return Err(ApiError::refused(text)
                .action(format!("use its name: forebay pool create {found} {devices}")));
        }
        for finding in &on_disk.findings {
            tracing::warn!(pool = pool.name.as_str(), "{finding}");
        }
        let opened = self.start_shard(pool, on_disk, accept)?;
        let changed = opened.1;
        let mut inner = self.inner();
        let entry =
            Pool { name: pool.name.clone(), paths: pool.devices.clone(), open: Ok(opened.0) };
        inner.pools.insert(pool.name.clone(), entry);
        drop(inner);
        self.ensure_listening()?;
        Ok(changed)
    }

    fn start_shard(
        self: &Arc<Self>,
        pool: &PoolState,
        on_disk: PoolOnDisk,
        accept: Option<(&str, ChangedOrigin)>,
    ) -> Result<(Opened, Vec<String>), ApiError> {
        let header = on_disk.superblock.header;
        let block = BLOCK_SIZE as u64;
        let segment_bytes = u64::from(header.segment_blocks.get()) * block;
        let count = usize::from(header.device_count.get());
        let segments: u64 =
            header.devices[..count].iter().map(|d| u64::from(d.segment_count.get())).sum();
        let slots = segments * u64::from(header.segment_blocks.get());
        let ram = self.ram_need(&pool.name, slots, pool.ram_bytes)?;
        let volumes = on_disk.superblock.volumes.clone();
        let origins = self.open_origins(&pool.name, &volumes, accept)?;
        let (uuid, findings) = (on_disk.uuid(), on_disk.findings.clone());
        let devices = device_infos(pool, &on_disk);
        let number = {
            let mut inner = self.inner();
            inner.number_next += 1;
            inner.number_next
        };
        let notices = Arc::new(Mutex::new(VecDeque::new()));
        let settings = ShardSettings {
            pool: on_disk,
            origins: origins.usable,
            state_dir: self.state_dir.clone(),
            ram_bytes: ram.tier_bytes,
            tuning: Tuning::default(),
            backend: Backend::Auto,
            number,
            server: Arc::clone(&self.server),
            notices: notice_sink(pool.name.clone(), Arc::clone(&notices)),
        };
        let handle =
            ShardHandle::start(settings).map_err(|error| shard_error(&pool.name, &error))?;
        let mut opened = Opened {
            handle,
            uuid,
            ram,
            segment_bytes,
            capacity_bytes: slots * block,
            devices,
            findings,
            problems: origins.problems,
            exports: BTreeMap::new(),
            notices,
        };
        for entry in &volumes {
            let volume = VolumeId(entry.id.get());
            let name = field_text(&entry.name);
            let mode = forebay_engine::Mode::from_raw(entry.mode).map(api_mode);
            if !opened.problems.contains_key(&name) {
                let mode = mode.unwrap_or_default();
                self.export(&mut opened, &name, volume, entry.bytes.get(), mode);
            }
        }
        Ok((opened, origins.changed))
    }

    /// Waits until a pool is open, and then puts right what only an open pool can: a changed origin
    /// under a volume without dirty data only costs the cached blocks.
    fn settle_pool(self: &Arc<Self>, name: &str, changed: &[String]) -> Result<(), ApiError> {
        let open = self.open_pool(name)?;
        if let Err(error) = open.handle.wait_open(OPEN_TIMEOUT) {
            let error = shard_error(name, &error);
            let mut inner = self.inner();
            if let Some(pool) = inner.pools.get_mut(name) {
                pool.open = Err(error.clone());
            }
            drop(inner);
            open.exports.keys().for_each(|export| drop(self.server.exports.remove(export)));
            self.move_listeners(name);
            return Err(error);
        }
        for volume in changed {
            let found = self.find_volume(volume)?;
            let dirty = found.snapshot.stats.dirty_blocks;
            if dirty > 0 || found.snapshot.stats.lost_blocks > 0 {
                tracing::error!(
                    pool = name,
                    volume = volume.as_str(),
                    "its origin was changed and {dirty} blocks are dirty: it is not served"
                );
                continue;
            }
            tracing::warn!(
                pool = name,
                volume = volume.as_str(),
                "its origin was changed; nothing was dirty, so its cached blocks are forgotten"
            );
            self.replace_origin(&found)?;
        }
        self.note_clean(name);
        Ok(())
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
                if clean.contains(&volume.name.as_str()) && !volume.mode.may_be_dirty() {
                    volume.may_be_dirty = false;
                }
            }
        });
        if let Err(error) = noted {
            tracing::warn!(pool, "note that nothing is dirty: {error}");
        }
    }
}

fn is_pool_in_use(error: &PoolError) -> bool {
    matches!(error, PoolError::Device(DeviceError::InUse { .. }))
}

fn device_infos(pool: &PoolState, on_disk: &PoolOnDisk) -> Vec<DeviceInfo> {
    let given = |path: &Path| {
        let shown = path.display().to_string();
        pool.devices.iter().find(|given| **given == shown).cloned().unwrap_or(shown)
    };
    let devices = on_disk.devices.iter().enumerate().map(|(index, slot)| DeviceInfo {
        path: match &slot.device {
            Ok(device) => given(device.path()),
            Err(_) => pool.devices.get(index).cloned().unwrap_or_else(|| "?".to_string()),
        },
        bytes: slot.entry.bytes.get(),
        segments: u64::from(slot.entry.segment_count.get()),
        present: slot.device.is_ok(),
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
                | Notice::BadBlock { lost: true, .. },
            ) => {
                tracing::error!(pool = pool.as_str(), "{text}");
                true
            }
            HostNotice::Engine(Notice::WritebackFailed { .. } | Notice::BadBlock { .. })
            | HostNotice::IoFailed { .. }
            | HostNotice::IoSlow { .. }
            | HostNotice::Suppressed(_) => {
                tracing::warn!(pool = pool.as_str(), "{text}");
                false
            }
            HostNotice::Engine(Notice::Opened { .. } | Notice::Repaired(_))
            | HostNotice::Text(_) => {
                tracing::info!(pool = pool.as_str(), "{text}");
                false
            }
        };
        if matters {
            let mut kept = lock(&kept);
            if !kept.contains(&text) {
                kept.push_back(text);
            }
            while kept.len() > NOTICES_KEPT {
                kept.pop_front();
            }
        }
    })
}
