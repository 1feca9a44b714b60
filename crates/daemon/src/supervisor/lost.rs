//! Origins that are lost while their volumes are served, and come back: a disk that was pulled out,
//! a file system behind a file that ended. What is cached is served on, and nobody else notices.
//! The origin is used again as soon as its path leads to it, if it is the right one.

use super::late::{Awaited, Looked, NotThere};
use super::{COMMAND_TIMEOUT, FoundVolume, Supervisor, lock, shard_error};
use crate::parts::Failed;
use forebay_api::hint::{Care, Until, When};
use forebay_api::{ApiError, Hint};
use forebay_engine::{CommandReply, VolumeId, VolumeView};
use forebay_host::shard::{ShardError, ShardHandle};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a failed origin may take to be read.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// How long opening it may hang before it is tried anew.
const HANGS: Duration = Duration::from_secs(300);
/// How often to look for one that is lost.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// What is told of an origin that is lost.
fn is_lost(uri: &str) -> ApiError {
    ApiError::failed(format!(
        "the origin {uri} is lost: what is cached is served, and what else is asked for fails"
    ))
    .hint(Hint::SeeTo { what: Care::Origin })
    .hint(Hint::Wait { until: Until::OriginIsBack })
}

fn suspect_small(handle: &ShardHandle, failed: &Mutex<Failed>) -> Result<(), ShardError> {
    for volume in handle.snapshot()?.volumes {
        let view = volume.view;
        let served = view.offline.is_none() && !view.lost;
        // One that does not tell is not small; an I/O on it fails.
        let bytes = served.then(|| handle.origin_bytes(view.id)).transpose().unwrap_or_default();
        if bytes.flatten().is_some_and(|bytes| bytes < view.bytes) {
            lock(failed).origins.failed(view.id);
        }
    }
    Ok(())
}

impl Supervisor {
    /// Looks at the origins that failed an I/O, each on a thread of its own: it may hang.
    pub fn watch_origins(self: &Arc<Self>) {
        for (pool, open) in self.open_pools() {
            for volume in lock(&open.failed).origins.take_new() {
                let (supervisor, pool, open) = (Arc::clone(self), pool.clone(), open.clone());
                let look = move || {
                    let looked = supervisor.look_after(&pool, &open.handle, volume);
                    let was_lost = looked.unwrap_or_else(|error| {
                        tracing::error!(pool, "{}", error.message);
                        false
                    });
                    lock(&open.failed).origins.looked_at(volume, was_lost);
                };
                let thread = std::thread::Builder::new().name("lost".to_string()).spawn(look);
                if let Err(error) = thread {
                    tracing::error!("start a thread: {error}");
                }
            }
        }
    }

    /// Suspects the origins that are smaller than their volumes: nothing may be asked of them for
    /// long, and to ask for a size is no I/O. It may hang all the same: on threads of their own.
    pub(super) fn watch_sizes(self: &Arc<Self>) {
        for (pool, open) in self.open_pools() {
            if !lock(&open.failed).origins.begins_round() {
                continue;
            }
            let (failed, handle) = (Arc::clone(&open.failed), open.handle.clone());
            let look = move || {
                if let Err(error) = suspect_small(&handle, &failed) {
                    tracing::debug!(pool, "{error}");
                }
                lock(&failed).origins.ends_round();
            };
            let thread = std::thread::Builder::new().name("sizes".to_string()).spawn(look);
            if let Err(error) = thread {
                tracing::error!("start a thread: {error}");
                lock(&open.failed).origins.ends_round();
            }
        }
    }

    /// If the origin of a volume is lost, says so, and waits for it. Whether it was.
    fn look_after(
        self: &Arc<Self>,
        pool: &str,
        handle: &ShardHandle,
        id: VolumeId,
    ) -> Result<bool, ApiError> {
        let failed = |error| shard_error(pool, &error);
        let served = || -> Result<Option<VolumeView>, ApiError> {
            let volumes = handle.snapshot().map_err(failed)?.volumes;
            let mut views = volumes.into_iter().map(|volume| volume.view);
            Ok(views.find(|view| view.id == id && view.offline.is_none() && !view.lost))
        };
        let Some(view) = served()? else { return Ok(false) };
        if !handle.origin_is_gone(id, view.bytes, READ_LIMIT).map_err(failed)? {
            return Ok(false);
        }
        let number = handle.number();
        let volume = {
            let _changes = lock(&self.changes);
            let Some(view) = served()? else { return Ok(false) };
            let volume = Awaited::from(&view);
            if handle.origin_lost(id, COMMAND_TIMEOUT).map_err(failed)? != CommandReply::Changed {
                return Ok(false);
            }
            let error = is_lost(&volume.uri);
            tracing::error!(pool, volume = volume.name.as_str(), "{}", error.message);
            self.is_late(pool, &volume, error);
            volume
        };
        while self.waits_for(pool, number, &volume) {
            std::thread::sleep(LOOK_PAUSE);
            let looked = match self.look_at(&volume) {
                Ok(looked) => looked,
                Err(NotThere::Failed(_)) => continue,
                // One that hangs may do so for ever, and leaves its path to another one meanwhile.
                Err(NotThere::Late(_, coming)) => match coming.recv_timeout(HANGS) {
                    Ok(Ok(looked)) => looked,
                    _ => continue,
                },
            };
            if self.is_found(pool, number, &volume, looked)? {
                break;
            }
        }
        Ok(true)
    }

    /// An administrator puts another origin in the place of one that is lost: what is dirty goes
    /// there, and what is clean is forgotten.
    pub(super) fn accept_instead(self: &Arc<Self>, found: &FoundVolume) -> Result<(), ApiError> {
        let (pool, mut volume) = (found.pool.as_str(), Awaited::from(&found.snapshot.view));
        let looked = self.look_at(&volume)?;
        let other = match self.other_origin(&volume, &looked) {
            Some((error, false)) => return Err(error),
            other => other.is_some(),
        };
        let fingerprint = looked.fingerprint.encode();
        volume.accepts = other.then_some(fingerprint);
        self.give_origin(pool, &volume, looked.origin)?;
        self.wait_flushed(pool, &volume)?;
        if other {
            self.accept_origin(&volume, &fingerprint)?;
        }
        self.forget_problem(pool, &volume.name);
        Ok(())
    }

    /// Uses an origin again that was lost. Whether nobody needs to look for it any more.
    fn is_found(
        self: &Arc<Self>,
        pool: &str,
        number: u32,
        volume: &Awaited,
        looked: Looked,
    ) -> Result<bool, ApiError> {
        let _changes = lock(&self.changes);
        if !self.waits_for(pool, number, volume) {
            return Ok(true);
        }
        // Nobody who uses the volume wants another disk under it: it is looked for on.
        if let Some((other, usable)) = self.other_origin(volume, &looked) {
            let text = format!("{}, and another one is in its place", is_lost(&volume.uri).message);
            let name = volume.name.as_str();
            let error = ApiError::failed(format!("{text}: {}", other.message))
                .hint(Hint::SeeTo { what: Care::RightOrigin });
            let accept = Hint::keep_dirty(name, When::UsedInstead);
            self.is_late(pool, volume, if usable { error.hint(accept) } else { error });
            return Ok(false);
        }
        if let Err(error) = self.give_origin(pool, volume, looked.origin) {
            let (name, why) = (volume.name.as_str(), error.message);
            tracing::warn!(pool, volume = name, "its origin is here, but: {why}");
            return Ok(false);
        }
        self.forget_problem(pool, &volume.name);
        tracing::info!(pool, volume = volume.name.as_str(), "its origin is back");
        Ok(true)
    }
}
