//! Volumes by their names. What is remembered of a volume says which pool to ask for it.

use super::absent::is_own_coming;
use super::bypass::closed_to;
use super::{COMMAND_TIMEOUT, FoundVolume, Opened, Supervisor, shard_error};
use crate::state::{VolumeState, owner_of};
use forebay_api::config::nearest;
use forebay_api::hint::{Until, When};
use forebay_api::reply::Attention;
use forebay_api::{ApiError, ErrorKind, Hint};
use forebay_engine::{Command, CommandReply};

/// What is told of a volume that is there and not served.
pub(super) fn is_not_served(kind: ErrorKind, name: &str, why: Attention) -> ApiError {
    let text = format!("volume {name} is not served: {}", why.causes.texts().join("; "));
    ApiError { hints: why.hints, ..ApiError::new(kind, text) }
}

impl FoundVolume {
    /// Has the engine do what it does at once.
    pub(super) fn command(&self, command: Command, what: &str) -> Result<(), ApiError> {
        let reply = self.open.handle.command(command, COMMAND_TIMEOUT);
        match reply.map_err(|error| shard_error(&self.pool, &error))? {
            CommandReply::Failed(why) => Err(ApiError::failed(format!("{what}: {why}"))),
            _ => Ok(()),
        }
    }
}

impl Supervisor {
    /// The volume with this name, if its pool is open and serves it.
    pub(super) fn find_volume(&self, name: &str) -> Result<FoundVolume, ApiError> {
        if let Some(known) = self.store.get().volume(name) {
            let open = self.inner().pools.get(&known.pool).map(|pool| pool.open.clone());
            let found = match &open {
                Some(Ok(open)) => self.find_in(&known.pool, open, name)?,
                _ => None,
            };
            return found.ok_or_else(|| self.not_served(known, open));
        }
        // One that was removed while its pool was missing is there until that is settled.
        let pools = self.open_pools();
        for (pool, open) in &pools {
            if let Some(found) = self.find_in(pool, open, name)? {
                return Ok(found);
            }
        }
        let memory = self.store.get();
        let known: Vec<&str> = memory.volumes.iter().map(|volume| volume.name.as_str()).collect();
        let error = ApiError::not_found(format!("no volume {name:?}"));
        Err(match nearest(name, &known) {
            Some(near) => error.hint(Hint::DidYouMean { volume: near.to_string() }),
            None => error.hint(Hint::ListVolumes),
        })
    }

    fn find_in(
        &self,
        pool: &str,
        open: &Opened,
        name: &str,
    ) -> Result<Option<FoundVolume>, ApiError> {
        let snapshot = open.handle.snapshot().map_err(|error| shard_error(pool, &error))?;
        let found = snapshot.volumes.into_iter().find(|volume| volume.view.name == name);
        let (pool, open) = (pool.to_string(), open.clone());
        Ok(found.map(|snapshot| FoundVolume { pool, open, snapshot }))
    }

    /// Why a volume that is known is not served.
    fn not_served(&self, known: &VolumeState, pool: Option<Result<Opened, ApiError>>) -> ApiError {
        let name = &known.name;
        let opened = self.inner().opened;
        let is_own = owner_of(&known.pool).is_some();
        let comes = is_own && pool.as_ref().is_some_and(|it| is_own_coming(known, it, opened));
        if comes || self.inner().is_opening(&known.pool) {
            let text = match is_own {
                true => format!("the tiers of volume {name} are being opened"),
                false => format!("pool {} of volume {name} is being opened", known.pool),
            };
            return ApiError::failed(text).hint(Hint::Wait { until: Until::Opened });
        }
        if let Some(error) = self.dirty_in_missing(known) {
            return error;
        }
        match pool {
            Some(Err(error)) => closed_to(error, known),
            Some(Ok(open)) if open.problems.contains_key(name) => open.problems[name].clone(),
            _ => ApiError::conflict(format!("volume {name} is detached"))
                .hint(Hint::attach(name, When::BringBack)),
        }
    }
}
