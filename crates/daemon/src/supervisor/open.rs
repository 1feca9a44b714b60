//! Opening pools: their devices, the origins of their volumes, the shard, the exports.

use super::{
    COMMAND_TIMEOUT, NOTICES_KEPT, Opened, Pool, Supervisor, fingerprint_text, lock, shard_error,
};
use crate::convert::{api_mode, pool_error};
use crate::state::{PoolState, VolumeState};
use forebay_api::reply::DeviceInfo;
use forebay_api::request::{ChangedOrigin, Export as ExportKind, VolumeCreate};
use forebay_api::{ApiError, Mode};
use forebay_engine::{Command, CommandReply, Notice, Tuning, VolumeId};
use forebay_format::BLOCK_SIZE;
use forebay_format::superblock::{VolumeEntry, field_text};
use forebay_host::Backend;
use forebay_host::device::Access;
use forebay_host::fingerprint;
use forebay_host::notice::{HostNotice, NoticeSink};
use forebay_host::origin::Origin;
use forebay_host::pool::{PoolOnDisk, read_pool};
use forebay_host::shard::{ShardHandle, ShardSettings};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long recovery may take before a request stops waiting for it. It goes on.
const OPEN_TIMEOUT: Duration = Duration::from_secs(100);

/// What is known of a volume's origin before the pool opens.
struct Origins {
    usable: Vec<(VolumeId, Origin)>,
    problems: BTreeMap<String, ApiError>,
    /// Volumes whose origin is there but not the one that the pool remembers.
    changed: Vec<String>,
}

impl Supervisor {
    /// Opens all pools that the configuration and the state name, and makes the configured volumes. What
    /// fails is logged, shown by `status`, and stops nothing else.
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

    /// Starts the shard of a pool. Its volumes are exported at once: requests wait until it is open.
    /// Returns the volumes whose origin was changed.
    fn launch_pool(
        self: &Arc<Self>,
        pool: &PoolState,
        accept: Option<(&str, ChangedOrigin)>,
    ) -> Result<Vec<String>, ApiError> {
        let paths: Vec<PathBuf> = pool.devices.iter().map(PathBuf::from).collect();
        let on_disk = read_pool(&paths, Access::Exclusive).map_err(|error| pool_error(&error))?;
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

    /// Opens the origins of a pool's volumes and checks that they are the right ones.
    fn open_origins(
        &self,
        pool: &str,
        entries: &[VolumeEntry],
        accept: Option<(&str, ChangedOrigin)>,
    ) -> Result<Origins, ApiError> {
        let mut origins =
            Origins { usable: Vec::new(), problems: BTreeMap::new(), changed: Vec::new() };
        for entry in entries {
            let (name, uri) = (field_text(&entry.name), field_text(&entry.origin));
            self.know_volume(pool, entry, &name, &uri)?;
            let origin = match Origin::open(&uri) {
                Ok(origin) => origin,
                Err(error) => {
                    let text = format!("the origin {uri} cannot be used: {error}");
                    let error = ApiError::failed(text)
                        .action(format!("when it is back: forebay volume attach {name}"));
                    tracing::error!(pool, volume = name.as_str(), "{}", error.message);
                    origins.problems.insert(name, error);
                    continue;
                }
            };
            let keep = accept == Some((&name, ChangedOrigin::KeepDirty));
            match self.check_origin(entry, &name, &origin, keep)? {
                None => origins.usable.push((VolumeId(entry.id.get()), origin)),
                Some(error) => {
                    tracing::warn!(pool, volume = name.as_str(), "{}", error.message);
                    origins.problems.insert(name.clone(), error);
                    origins.changed.push(name);
                }
            }
        }
        Ok(origins)
    }

    /// Whether the origin is the one that the pool remembers, or one that was accepted in its place.
    fn check_origin(
        &self,
        entry: &VolumeEntry,
        name: &str,
        origin: &Origin,
        keep: bool,
    ) -> Result<Option<ApiError>, ApiError> {
        let now = origin.fingerprint();
        let mismatch = match fingerprint::check(&entry.fingerprint, entry.bytes.get(), &now) {
            Ok(()) => return Ok(None),
            Err(mismatch) => mismatch,
        };
        let shrank = matches!(mismatch, fingerprint::Mismatch::Shrunk { .. });
        let text = fingerprint_text(&now.encode());
        let known = self.inner().store.get().volume(name).cloned();
        let accepted = known.and_then(|known| known.accepted_origin);
        if !shrank && accepted.as_ref() == Some(&text) {
            return Ok(None);
        }
        if keep && !shrank {
            self.remember(|all| {
                if let Some(volume) = all.volume_mut(name) {
                    volume.accepted_origin = Some(text);
                }
            })?;
            return Ok(None);
        }
        let uri = field_text(&entry.origin);
        let error = ApiError::refused(format!("the origin {uri} was changed: {mismatch}"));
        let drop_it = format!(
            "if the origin is right, and what the cache holds is to be lost: forebay volume attach \
             {name} --drop-dirty"
        );
        Ok(Some(match shrank {
            true => error
                .action(format!("grow it back, then: forebay volume attach {name}"))
                .action(drop_it),
            false => error.action(drop_it).action(format!(
                "if the cache is right, and is to be written to this origin: forebay volume attach \
                 {name} --keep-dirty"
            )),
        }))
    }

    /// Remembers a volume that the superblock names, before it is served: with the devices gone, this is
    /// all that is left to say whether anything is lost.
    fn know_volume(
        &self,
        pool: &str,
        entry: &VolumeEntry,
        name: &str,
        uri: &str,
    ) -> Result<(), ApiError> {
        let mode = forebay_engine::Mode::from_raw(entry.mode).map_or(Mode::default(), api_mode);
        self.remember(|all| {
            let known = all.volume(name).cloned();
            let dirty = known.as_ref().is_none_or(|known| known.may_be_dirty);
            all.put_volume(VolumeState {
                name: name.to_string(),
                pool: pool.to_string(),
                origin: uri.to_string(),
                mode,
                export: known.as_ref().map_or(ExportKind::Auto, |known| known.export),
                bytes: entry.bytes.get(),
                may_be_dirty: mode.may_be_dirty() || dirty,
                accepted_origin: known.and_then(|known| known.accepted_origin),
            });
        })
    }

    /// Waits until a pool is open, and then puts right what only an open pool can: a changed origin under
    /// a volume without dirty data only costs the cached blocks.
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

    /// Puts the origin as it is now under a volume, and forgets what was cached of it.
    pub(super) fn replace_origin(
        self: &Arc<Self>,
        found: &super::FoundVolume,
    ) -> Result<(), ApiError> {
        let view = &found.snapshot.view;
        let reply = found
            .open
            .handle
            .command(Command::RemoveVolume(view.id), COMMAND_TIMEOUT)
            .map_err(|error| shard_error(&found.pool, &error))?;
        if let CommandReply::Failed(why) = reply {
            return Err(ApiError::failed(format!(
                "forget what was cached of {}: {why}",
                view.name
            )));
        }
        let export = self.inner().store.get().volume(&view.name).map(|known| known.export);
        let request = VolumeCreate {
            name: view.name.clone(),
            origin: view.origin.clone(),
            pool: Some(found.pool.clone()),
            mode: Some(api_mode(view.mode)),
            export: export.unwrap_or_default(),
            dry_run: false,
        };
        self.forget_problem(&found.pool, &view.name);
        self.volume_add(&request, &found.pool)
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
