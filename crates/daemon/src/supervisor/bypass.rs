//! A pool whose devices are missing. Its volumes without dirty data are served from their origins
//! alone, through a pool in memory that holds nothing. When the devices are back, what they hold of
//! these volumes is old, and is forgotten.

use super::leave::drop_dirty;
use super::origin::Returned;
use super::{COMMAND_TIMEOUT, FoundVolume, Opened, STOP_TIMEOUT, Supervisor, shard_error};
use crate::convert::{hex, unhex};
use crate::state::{GivenUp, PoolSeen, PoolState, Standing, VolumeState, owner_of};
use forebay_api::hint::{Dirty, Flag, When};
use forebay_api::{ApiError, ErrorKind, Hint, Hold, Mode};
use forebay_engine::Command;
use forebay_host::device::{Access, Device};
use forebay_host::note_distrust;
use forebay_host::origin::Origin;
use forebay_host::pool::{PoolOnDisk, read_pool, stand_in};
use std::path::PathBuf;
use std::sync::Arc;

impl Supervisor {
    /// Remembers how to tell a pool and its devices, before its log begins a new life.
    pub(super) fn note_seen(&self, pool: &PoolState, on_disk: &PoolOnDisk) -> Result<(), ApiError> {
        let serial = |device: &Device| device.info().serial.clone();
        let devices = on_disk.devices.iter().zip(super::open::device_infos(pool, on_disk));
        let devices = devices.map(|(slot, info)| {
            let uuid = hex(&slot.entry.uuid);
            match slot.device.as_ref().ok().and_then(serial) {
                Some(serial) => format!("{} (uuid {uuid}, serial {serial})", info.path),
                None => format!("{} (uuid {uuid})", info.path),
            }
        });
        let mut seen = PoolSeen {
            name: pool.name.clone(),
            uuid: hex(&on_disk.uuid()),
            epoch: on_disk.superblock.header.epoch.get() + 1,
            begun: 0,
            witnessed: true,
            left: Vec::new(),
            devices: devices.collect(),
        };
        self.remember(|all| {
            let before = all.seen(&seen.name).filter(|before| before.uuid == seen.uuid);
            if let Some(before) = before {
                (seen.begun, seen.left) = (before.begun, before.left.clone());
                seen.witnessed = before.witnessed;
            }
            if before.is_none_or(|before| before.epoch + 1 < seen.epoch) {
                // Another machine had it meanwhile, and wrote to the origins.
                let volumes = all.volumes.iter_mut().filter(|volume| volume.pool == seen.name);
                volumes.for_each(|volume| volume.rested = None);
            }
            all.seen.retain(|other| other.name != seen.name);
            all.seen.push(seen);
        })
    }

    /// Refuses a pool that was given up while its devices were missing, and one that only has the
    /// name of the pool that was there.
    pub(super) fn check_identity(&self, on_disk: &PoolOnDisk) -> Result<(), ApiError> {
        let (name, uuid) = (on_disk.name(), hex(&on_disk.uuid()));
        let state = self.store.get();
        if state.is_given_up(&uuid, None) {
            let text = format!(
                "the pool {name} was destroyed while its devices were missing: what they hold is \
                 old"
            );
            return Err(ApiError::refused(text).hint(Hint::Again { with: Flag::ForceNewPool }));
        }
        let other = state.seen(&name).filter(|seen| seen.uuid != uuid);
        let Some(seen) = other else { return Ok(()) };
        let (of, anew) = match state.served_by(&name).next() {
            Some(volume) => (
                format!("the one of volume {}", volume.name),
                Hint::remove(&volume.name, When::WithoutIt),
            ),
            None => (
                "the one that was there".to_string(),
                Hint::DestroyPool { pool: name.clone(), when: When::ForgetThat },
            ),
        };
        let text = format!(
            "the devices hold another pool of the name {name} (uuid {uuid}) than {of} (uuid {})",
            seen.uuid
        );
        Err(ApiError::not_found(text).hint(anew))
    }

    /// Serves what can be served of a pool whose devices are missing, and says what cannot.
    pub(super) fn pool_missing(self: &Arc<Self>, pool: &PoolState, error: ApiError) {
        let seen = self.store.get().seen(&pool.name).cloned();
        let error = self.with_devices(error, &pool.name);
        for volume in self.volumes_of(&pool.name, true) {
            let name = volume.name.as_str();
            tracing::error!(volume = name, "{}", closed_to(error.clone(), &volume).message);
        }
        let served = seen.map_or(Ok(false), |seen| self.bypass(pool, &seen, &error));
        match served {
            Ok(true) => tracing::warn!(
                pool = pool.name.as_str(),
                "its volumes without dirty data are served from their origins alone: {}",
                error.message
            ),
            Ok(false) => self.pool_closed(pool, error),
            Err(failed) => {
                tracing::error!(pool = pool.name.as_str(), "go on without it: {}", failed.message);
                self.pool_closed(pool, error);
            }
        }
    }

    /// Names the devices that a missing pool was seen on.
    fn with_devices(&self, error: ApiError, pool: &str) -> ApiError {
        let state = self.store.get();
        let Some(seen) = state.seen(pool) else { return error };
        if error.kind != ErrorKind::NotFound {
            return error;
        }
        let text = format!("{}; its devices are {}", error.message, seen.devices.join(", "));
        ApiError { message: text, ..error }
    }

    /// The volumes of a pool of which it may hold dirty data, or those that can do without it.
    fn volumes_of(&self, pool: &str, dirty: bool) -> Vec<VolumeState> {
        let state = self.store.get();
        state.served_by(pool).filter(|volume| volume.may_be_dirty == dirty).cloned().collect()
    }

    /// Puts a pool in memory in the place of the missing one, if any volume can do without it.
    fn bypass(
        self: &Arc<Self>,
        pool: &PoolState,
        seen: &PoolSeen,
        why: &ApiError,
    ) -> Result<bool, ApiError> {
        let volumes = self.volumes_of(&pool.name, false);
        let Some(uuid) = unhex(&seen.uuid).filter(|_| !volumes.is_empty()) else {
            return Ok(false);
        };
        // Both are durable before the first write that the pool does not see.
        note_distrust(&self.state_dir, &uuid, seen.epoch).map_err(|error| {
            ApiError::failed(format!("note that the content of {} is old: {error}", pool.name))
        })?;
        self.remember(|all| {
            for volume in &mut all.volumes {
                if volumes.iter().any(|bypassed| bypassed.name == volume.name) {
                    volume.standing = Standing::Bypassed;
                }
            }
        })?;
        let memory = stand_in(&pool.name).map_err(|error| crate::convert::pool_error(&error))?;
        let opened =
            Opened { bypass: Some(why.clone()), ..self.start_shard(pool, memory, None)?.0 };
        let handle = opened.handle.clone();
        self.enter(pool, Ok(opened));
        self.listen();
        handle.wait_open(COMMAND_TIMEOUT).map_err(|error| shard_error(&pool.name, &error))?;
        for volume in &volumes {
            if let Err(error) = self.bypass_volume(volume) {
                let name = volume.name.as_str();
                tracing::error!(pool = pool.name.as_str(), volume = name, "{}", error.message);
            }
        }
        Ok(true)
    }

    /// Serves a volume of a missing pool from its origin alone. What stands against it is kept for
    /// `status`.
    fn bypass_volume(self: &Arc<Self>, volume: &VolumeState) -> Result<(), ApiError> {
        let added = self.bypass_add(volume);
        match &added {
            Ok(()) => self.forget_problem(&volume.pool, &volume.name),
            Err(error) => self.note_problem(&volume.pool, &volume.name, error.clone()),
        }
        added
    }

    fn bypass_add(self: &Arc<Self>, volume: &VolumeState) -> Result<(), ApiError> {
        let origin = self.patiently(|| self.open_origin(&volume.origin), is_refused)?;
        self.pass_through(volume, origin)
    }

    /// Serves a volume from its origin alone, through a pool in memory.
    pub(super) fn pass_through(
        self: &Arc<Self>,
        volume: &VolumeState,
        origin: Origin,
    ) -> Result<(), ApiError> {
        let bytes = origin.bytes();
        if bytes < volume.bytes {
            let (was, uri) = (volume.bytes, &volume.origin);
            let text = format!("the origin {uri} shrank from {was} to {bytes} bytes");
            return Err(ApiError::refused(text));
        }
        let (pool, name) = (volume.pool.as_str(), volume.name.as_str());
        let what = (name, volume.origin.as_str());
        let offer = self.add_to_engine(pool, what, origin, volume.bytes, Mode::PassThrough)?;
        self.export_volume(pool, name, &offer)
    }

    /// Tries again to serve a pool as it should be: its devices were missing. Clients of a pool in
    /// memory are only cut off when the devices are back.
    pub(super) fn reopen_if_missing(self: &Arc<Self>, name: &str) -> Result<(), ApiError> {
        let pool = self.inner().pools.get(name).cloned();
        let pool = pool.ok_or_else(|| self.no_such_pool(name))?;
        match &pool.open {
            Ok(open) if open.bypass.is_none() => return Ok(()),
            Ok(_) => {
                let paths: Vec<PathBuf> = pool.known.devices.iter().map(PathBuf::from).collect();
                read_pool(&paths, Access::ReadOnly)
                    .map_err(|error| crate::convert::pool_error(&error))?;
            }
            Err(_) => {}
        }
        self.while_opening(name, || {
            self.close_bypass(name)?;
            self.start_known_pool(&pool.known)
        })
    }

    /// Ends the pool in memory that stands for a missing one.
    pub(super) fn close_bypass(&self, name: &str) -> Result<(), ApiError> {
        let open = self.inner().pools.get(name).and_then(|pool| pool.open.clone().ok());
        let Some(open) = open.filter(|open| open.bypass.is_some()) else { return Ok(()) };
        tracing::info!(pool = name, "its devices are tried again; clients have to connect again");
        self.close_pool(name, &open)
    }

    /// Brings back a volume of a missing pool: with the pool, or if that is still missing, from its
    /// origin alone.
    pub(super) fn attach_without_pool(
        self: &Arc<Self>,
        found: &VolumeState,
    ) -> Result<(), ApiError> {
        if owner_of(&found.pool).is_some() {
            return self.open_own(&found.name);
        }
        let Err(missing) = self.reopen_if_missing(&found.pool) else { return Ok(()) };
        let missing = closed_to(self.with_devices(missing, &found.pool), found);
        let Ok(open) = self.open_pool(&found.pool) else { return Err(missing) };
        let known = self.volumes_of(&found.pool, false);
        let can = known.iter().any(|volume| volume.name == found.name);
        if open.bypass.is_some() && can && open.problems.contains_key(&found.name) {
            return self.bypass_volume(found);
        }
        Err(missing)
    }

    /// Whether a volume is not served because its pool is missing and holds dirty data of it.
    pub(super) fn dirty_in_missing(&self, volume: &VolumeState) -> Option<ApiError> {
        let pool = self.inner().pools.get(&volume.pool).cloned();
        if !volume.may_be_dirty {
            return None;
        }
        match pool?.open {
            Err(error) => Some(closed_to(error, volume)),
            Ok(open) => match open.problems.get(&volume.name) {
                Some(problem) => Some(with_dirty(problem.clone(), volume)),
                None => open.bypass.map(|error| closed_to(error, volume)),
            },
        }
    }

    /// Refuses what a pool in memory cannot do.
    pub(super) fn refuse_in_bypass(&self, found: &FoundVolume, what: &str) -> Result<(), ApiError> {
        let Some(why) = &found.open.bypass else { return Ok(()) };
        let name = &found.snapshot.view.name;
        let text = format!(
            "volume {name} cannot {what} while the devices of its pool are missing: {}",
            why.message
        );
        let hints = closed(why.clone(), |when| Hint::attach(name, when)).hints;
        Err(ApiError { hints, ..ApiError::conflict(text) }.hint(Hint::remove(name, When::ForGood)))
    }

    /// Remembers that a volume is not to come back with its pool.
    pub(super) fn give_up(&self, pool: &str, volume: Option<&str>) -> Result<(), ApiError> {
        self.remember(|all| {
            let Some(uuid) = all.seen(pool).map(|seen| seen.uuid.clone()) else { return };
            if !all.is_given_up(&uuid, volume) {
                all.given_up.push(GivenUp { pool: uuid, volume: volume.map(str::to_owned) });
            }
        })
    }

    /// Puts right what a pool that was missing holds of a volume that went on without it, or that
    /// was removed meanwhile. Nothing of it was dirty, or it was given up.
    pub(super) fn settle_returned(
        self: &Arc<Self>,
        found: &FoundVolume,
        returned: Returned,
    ) -> Result<(), ApiError> {
        let (view, pool) = (&found.snapshot.view, found.pool.as_str());
        if returned == Returned::Bypassed {
            // It has to be usable before the pool forgets the volume.
            drop(self.open_origin(&view.origin)?);
        }
        drop_dirty(found)?;
        if returned == Returned::Bypassed {
            return self.replace_origin(found);
        }
        found.command(Command::RemoveVolume(view.id), "forget the volume")?;
        self.forget_problem(pool, &view.name);
        let uuid = hex(&found.open.uuid);
        let name = Some(view.name.clone());
        self.remember(|all| all.given_up.retain(|it| it.pool != uuid || it.volume != name))
    }
}

fn is_refused(error: &ApiError) -> bool {
    error.kind == ErrorKind::Refused
}

/// Adds how a pool that is not open comes back, to the reason why it is not.
pub(super) fn closed(mut error: ApiError, again: impl FnOnce(When) -> Hint) -> ApiError {
    if error.kind != ErrorKind::NotFound {
        return error.hint(again(When::Mended));
    }
    error.hints.push_first(again(match error.hold {
        None | Some(Hold::DirtyIsAway) => When::DevicesBack,
        Some(Hold::OlderState) => When::NewestBack,
        Some(Hold::UnknownAge) => When::NotNewest,
    }));
    error
}

/// As [`closed`], of a volume of the pool. What is dirty is given up only where the devices cannot
/// be used: nothing else keeps them from being used again.
pub(super) fn closed_to(error: ApiError, volume: &VolumeState) -> ApiError {
    let is_missing = error.kind == ErrorKind::NotFound;
    let error = closed(error, |when| Hint::attach(&volume.name, when));
    match (volume.may_be_dirty, is_missing) {
        (false, _) => error,
        (true, true) => with_dirty(error, volume),
        (true, false) => {
            let text = format!(
                "{}. Its pool may hold data of volume {} that the origin does not have: do not \
                 use the origin",
                error.message, volume.name
            );
            ApiError { message: text, ..error }
        }
    }
}

/// Adds what it means that the missing pool holds dirty data of a volume.
pub(super) fn with_dirty(error: ApiError, volume: &VolumeState) -> ApiError {
    let text = format!(
        "{}. They may hold data of volume {} that its origin does not have: do not use the origin",
        error.message, volume.name
    );
    let lost =
        Hint::Remove { volume: volume.name.clone(), dirty: Dirty::Drop, when: When::AllLost };
    let goes_on = error.hold.map(|hold| match hold {
        Hold::DirtyIsAway => When::RestLost,
        Hold::OlderState => When::NewestLost,
        Hold::UnknownAge => When::NewestIsHere,
    });
    let error = ApiError { message: text, ..error };
    match goes_on {
        Some(when) => error.hint(Hint::keep_dirty(&volume.name, when)),
        None => error,
    }
    .hint(lost)
}

/// Closes an open pool, whose listeners go elsewhere.
impl Supervisor {
    pub(super) fn close_pool(&self, name: &str, open: &Opened) -> Result<(), ApiError> {
        self.exports.park_all(&open.handle);
        self.inner().pools.remove(name);
        if self.listeners.stop(Some(name)) {
            // Clients are let in elsewhere.
            self.listen();
        }
        let stopped = open.handle.stop(STOP_TIMEOUT);
        stopped.map(drop).map_err(|error| shard_error(name, &error))
    }
}
