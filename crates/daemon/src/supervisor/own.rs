//! Volumes without a cache. Each has a pool in memory of its own, which holds nothing and passes
//! everything through, so that such a volume is served, exported and watched as any other, by a
//! thread of its own.

use super::late::{Coming, cannot_be_used, not_yet};
use super::{COMMAND_TIMEOUT, Supervisor, lock, shard_error};
use crate::convert::pool_error;
use crate::state::{PoolState, Standing, VolumeState, own_pool, owner_of};
use forebay_api::ApiError;
use forebay_host::origin::Origin;
use forebay_host::pool::stand_in;
use std::sync::Arc;
use std::time::Instant;

/// What stands for a pool has no devices.
fn state_of(name: String) -> PoolState {
    PoolState { name, devices: Vec::new(), ram_bytes: None }
}

/// A volume without a cache whose origin is being opened.
pub(super) type Opening = (VolumeState, Result<Coming, ApiError>);

impl Supervisor {
    /// Opens what stands for the pool of a volume that has none, unless it is open.
    pub(super) fn open_own(self: &Arc<Self>, volume: &str) -> Result<(), ApiError> {
        let pool = state_of(own_pool(volume));
        if self.open_pool(&pool.name).is_ok() {
            return Ok(());
        }
        self.check_rests(&pool.name)?;
        let memory = stand_in(volume).map_err(|error| pool_error(&error))?;
        let opened = self.start_shard(&pool, memory, None)?.0;
        let handle = opened.handle.clone();
        self.enter(&pool, Ok(opened));
        self.listen();
        handle.wait_open(COMMAND_TIMEOUT).map_err(|error| shard_error(&pool.name, &error))?;
        self.serves(&pool.name);
        Ok(())
    }

    /// Ends what stands for the pool of a volume.
    pub(super) fn close_own(&self, volume: &str) {
        let name = own_pool(volume);
        if let Ok(open) = self.open_pool(&name)
            && let Err(error) = self.close_pool(&name, &open)
        {
            tracing::warn!(volume, "{}", error.message);
        }
        self.inner().pools.remove(&name);
    }

    /// Begins to open the origins of all volumes without a cache.
    pub(super) fn begin_owns(self: &Arc<Self>) -> Vec<Opening> {
        let state = self.store.get();
        let own = state.volumes.iter().filter(|volume| {
            owner_of(&volume.pool).is_some() && volume.standing == Standing::Served
        });
        own.map(|volume| (volume.clone(), self.begin_to_open(&volume.origin))).collect()
    }

    /// Serves these volumes, as far as their origins are here.
    pub(super) fn serve_owns(self: &Arc<Self>, volumes: Vec<Opening>) {
        let deadline = self.origin_deadline();
        for (volume, coming) in volumes {
            let name = volume.name.as_str();
            let served =
                self.open_own(name).and_then(|()| self.serve_own(&volume, coming, deadline));
            if let Err(error) = served {
                tracing::error!(volume = name, "{}", error.message);
                self.own_failed(&volume, error);
            }
        }
    }

    /// Opens and serves a volume without a cache whose thread has ended.
    pub(super) fn start_own(self: &Arc<Self>, volume: &str) -> Result<(), ApiError> {
        self.open_own(volume)?;
        let known = self.store.get().volume(volume).cloned();
        let Some(known) = known.filter(|it| it.standing == Standing::Served) else {
            return Ok(());
        };
        let coming = self.begin_to_open(&known.origin);
        self.serve_own(&known, coming, self.origin_deadline()).or_else(|error| {
            self.own_failed(&known, error);
            Ok(())
        })
    }

    fn own_failed(&self, volume: &VolumeState, error: ApiError) {
        match self.open_pool(&volume.pool) {
            Ok(_) => self.note_problem(&volume.pool, &volume.name, error),
            Err(_) => self.pool_closed(&state_of(volume.pool.clone()), error),
        }
    }

    /// Serves a volume when its origin is open: now, or, if that takes too long, later.
    fn serve_own(
        self: &Arc<Self>,
        volume: &VolumeState,
        coming: Result<Coming, ApiError>,
        deadline: Instant,
    ) -> Result<(), ApiError> {
        let (begin, coming) = (Instant::now(), coming?);
        let left = deadline.saturating_duration_since(begin);
        match coming.recv_timeout(left) {
            Ok(looked) => {
                let failed = |error| cannot_be_used(&volume.origin, &volume.name, &error);
                self.put_own(volume, looked.map_err(failed)?.origin)
            }
            Err(_) => {
                self.follow_own(volume.clone(), coming);
                Err(not_yet(&volume.origin, begin.elapsed()))
            }
        }
    }

    /// Serves a volume from its origin, which is open.
    fn put_own(self: &Arc<Self>, volume: &VolumeState, origin: Origin) -> Result<(), ApiError> {
        self.pass_through(volume, origin)?;
        self.forget_problem(&volume.pool, &volume.name);
        Ok(())
    }

    /// Waits for an origin on a thread of its own.
    fn follow_own(self: &Arc<Self>, volume: VolumeState, coming: Coming) {
        let number = self.open_pool(&volume.pool).map(|open| open.handle.number());
        let (supervisor, name) = (Arc::clone(self), volume.name.clone());
        let follow = move || {
            let Ok(looked) = coming.recv() else { return };
            let _changes = lock(&supervisor.changes);
            let open = supervisor.open_pool(&volume.pool);
            let waits = |open: &super::Opened| {
                Ok(open.handle.number()) == number && open.problems.contains_key(&volume.name)
            };
            if supervisor.is_stopping() || !open.is_ok_and(|open| waits(&open)) {
                return;
            }
            let failed = |error| cannot_be_used(&volume.origin, &volume.name, &error);
            let served = looked.map_err(failed);
            let served = served.and_then(|looked| supervisor.put_own(&volume, looked.origin));
            if let Err(error) = served {
                tracing::error!(volume = volume.name.as_str(), "{}", error.message);
                supervisor.own_failed(&volume, error);
            }
        };
        let thread = std::thread::Builder::new().name("late".to_string()).spawn(follow);
        if let Err(error) = thread {
            tracing::error!(volume = name.as_str(), "start a thread: {error}");
        }
    }

    /// Refuses what only a volume with a cache can do.
    pub(super) fn refuse_without_cache(&self, pool: &str, what: &str) -> Result<(), ApiError> {
        match owner_of(pool) {
            None => Ok(()),
            Some(volume) => {
                Err(ApiError::conflict(format!("volume {volume} has no cache, and cannot {what}")))
            }
        }
    }
}
