//! Origins that hang: opening one may take for ever, and takes nobody along. A start waits a moment
//! for all of them together; who comes later is served from then on.

use super::listen::{Offer, Space};
use super::origin::{Returned, is_origin_in_use};
use super::{COMMAND_TIMEOUT, Supervisor, lock, shard_error};
use crate::convert::api_mode;
use forebay_api::{ApiError, ErrorKind};
use forebay_engine::VolumeId;
use forebay_format::superblock::{VolumeEntry, field_text};
use forebay_host::fingerprint::Fingerprint;
use forebay_host::frontend::VolumeBytes;
use forebay_host::limit::within;
use forebay_host::origin::{Origin, OriginError};
use forebay_host::rest::Rest;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// How long all origins together may take at a start before it goes on without those that are left.
const START_PATIENCE: Duration = Duration::from_secs(3);
/// How long a pool waits for its own after that.
const POOL_PATIENCE: Duration = Duration::from_millis(200);
/// How long a command waits for an origin, and anybody for the devices of a pool. Longer than one
/// waits for what a process that was killed has left open.
const ORIGIN_LIMIT: Duration = Duration::from_secs(20);
/// How long a look at a path may take where it is only looked at.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// How often to look whether a late origin is flushed.
const PAUSE: Duration = Duration::from_millis(50);

/// An open origin, and what there is to know of it: all that may hang is behind us.
pub(super) struct Looked {
    pub origin: Origin,
    pub fingerprint: Fingerprint,
    pub rest: Option<Rest>,
}

/// An origin that is being opened.
pub(super) type Coming = Receiver<Result<Looked, OriginError>>;

/// A volume whose origin has not been opened in time.
pub(super) struct Late {
    pub entry: VolumeEntry,
    pub coming: Coming,
}

impl Late {
    pub fn name(&self) -> String {
        field_text(&self.entry.name)
    }
}

/// What is told of an origin that hangs.
pub(super) fn not_yet(uri: &str, waited: Duration) -> ApiError {
    let text = format!("the origin {uri} has not answered for {:.0} s", waited.as_secs_f64());
    ApiError::failed(text)
        .action("see whether the disk, file server or program behind it works")
        .action("nothing else is needed: the volume is served as soon as it answers")
}

/// The file that a path leads to, if that is told in time.
pub(super) fn real_path(path: &str) -> Option<PathBuf> {
    let own = path.to_string();
    within(LOOK_LIMIT, "follow the path", move || std::fs::canonicalize(own)).ok()
}

/// Whether there is something at a path; nothing, if that is not told in time.
pub(super) fn is_there(path: &str) -> bool {
    let own = path.to_string();
    within(LOOK_LIMIT, "look", move || Ok(Path::new(&own).exists())).unwrap_or(false)
}

/// Carries out what may hang with an origin or a cache device, on another thread.
///
/// # Errors
/// Those of `act`, or no end in time. It goes on then, and what it opens is closed again.
pub(super) fn in_time<T: Send + 'static>(
    what: &str,
    act: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let acted = within(ORIGIN_LIMIT, what, move || Ok(act()));
    acted.unwrap_or_else(|error| {
        let error = ApiError::failed(error.to_string());
        Err(error.action("see whether the disk, file server or program behind it works"))
    })
}

impl Supervisor {
    /// Begins to open an origin.
    pub(super) fn begin_to_open(self: &Arc<Self>, uri: &str) -> Result<Coming, ApiError> {
        let (send, coming) = sync_channel(1);
        let (supervisor, uri) = (Arc::clone(self), uri.to_string());
        let open = move || {
            let opened = supervisor.patiently(|| Origin::open(&uri), is_origin_in_use);
            let _ = send.send(opened.map(|origin| {
                // The pool flushes it, too, and tells if it fails; it shall not be what hangs.
                if let Origin::File(device) = &origin {
                    let _ = device.file().sync_data();
                }
                // What cannot be read now will be told when it is used.
                let rest = Rest::of(&origin).ok().flatten();
                Looked { fingerprint: origin.fingerprint(), rest, origin }
            }));
        };
        let thread = std::thread::Builder::new().name("origin".to_string()).spawn(open);
        let system = |error| ApiError::failed(format!("start a thread: {error}"));
        thread.map(|_| coming).map_err(system)
    }

    /// Until when a pool waits for its origins.
    pub(super) fn origin_deadline(&self) -> Instant {
        let now = Instant::now();
        if self.inner().opened {
            return now + ORIGIN_LIMIT;
        }
        let mut inner = self.inner();
        let all = *inner.origins_until.get_or_insert(now + START_PATIENCE);
        all.max(now + POOL_PATIENCE)
    }

    /// Waits for an origin on a thread of its own, and serves its volume when it is there.
    pub(super) fn follow_late(self: &Arc<Self>, pool: &str, late: Late) {
        let (supervisor, pool, name) = (Arc::clone(self), pool.to_string(), late.name());
        let Ok(number) = self.open_pool(&pool).map(|open| open.handle.number()) else { return };
        let follow = move || {
            let Ok(looked) = late.coming.recv() else { return };
            let name = late.name();
            match supervisor.late_is_here(&pool, number, &late.entry, looked) {
                Ok(()) => tracing::info!(volume = name.as_str(), "its origin is here now"),
                Err(error) => {
                    tracing::error!(volume = name.as_str(), "{}", error.message);
                    supervisor.not_late(&pool, number, &name, Some(error));
                }
            }
        };
        let thread = std::thread::Builder::new().name("late".to_string()).spawn(follow);
        if let Err(error) = thread {
            tracing::error!(volume = name.as_str(), "start a thread: {error}");
        }
    }

    /// Ends that a volume counts as late, with what is the matter with it instead.
    fn not_late(&self, pool: &str, number: u32, name: &str, problem: Option<ApiError>) {
        let mut inner = self.inner();
        let open = inner.pools.get_mut(pool).and_then(|pool| pool.open.as_mut().ok());
        let Some(open) = open.filter(|open| open.handle.number() == number) else { return };
        if open.late.remove(name) {
            open.problems.remove(name);
            open.problems.extend(problem.map(|problem| (name.to_string(), problem)));
        }
    }

    /// Whether the pool is as it was when it was opened without this origin.
    fn waits_for(&self, pool: &str, number: u32, name: &str) -> bool {
        let open = self.open_pool(pool).ok();
        let open = open.filter(|open| open.handle.number() == number && !self.is_stopping());
        open.is_some_and(|open| open.late.contains(name))
    }

    fn late_is_here(
        self: &Arc<Self>,
        pool: &str,
        number: u32,
        entry: &VolumeEntry,
        looked: Result<Looked, OriginError>,
    ) -> Result<(), ApiError> {
        let (name, uri) = (field_text(&entry.name), field_text(&entry.origin));
        let changes = lock(&self.changes);
        if !self.waits_for(pool, number, &name) {
            return Ok(());
        }
        let looked = looked.map_err(|error| cannot_be_used(&uri, &name, &error))?;
        let Looked { origin, fingerprint, rest } = looked;
        let changed = match self.check_origin(entry, &name, &fingerprint, false)? {
            None => self.check_rest(&name, rest, false)?,
            changed => changed,
        };
        if let Some(error) = changed {
            drop(origin);
            self.not_late(pool, number, &name, Some(error));
            return self.settle_volume(pool, &name, Returned::Changed);
        }
        let (volume, space) = (VolumeId(entry.id.get()), Space::of(&origin));
        let handle = self.open_pool(pool)?.handle;
        let back = handle.origin_back(volume, origin, COMMAND_TIMEOUT);
        back.map_err(|error| shard_error(pool, &error))?;
        drop(changes);
        loop {
            if !self.waits_for(pool, number, &name) {
                return Ok(());
            }
            let snapshot = handle.snapshot().map_err(|error| shard_error(pool, &error))?;
            let mut views = snapshot.volumes.into_iter().map(|volume| volume.view);
            match views.find(|view| view.id == volume) {
                None => return Ok(()),
                Some(view) if view.offline.is_none() => break,
                Some(_) => std::thread::sleep(PAUSE),
            }
        }
        let _changes = lock(&self.changes);
        if self.waits_for(pool, number, &name) {
            self.not_late(pool, number, &name, None);
            let mode = forebay_engine::Mode::from_raw(entry.mode).map(api_mode).unwrap_or_default();
            let bytes = VolumeBytes::new(entry.bytes.get());
            self.export_volume(pool, &name, &Offer { volume, bytes, space, mode })?;
            self.nbd_mend();
        }
        Ok(())
    }
}

/// What is told of an origin that cannot be opened.
pub(super) fn cannot_be_used(uri: &str, name: &str, error: &OriginError) -> ApiError {
    let text = format!("the origin {uri} cannot be used: {error}");
    ApiError::new(ErrorKind::Failed, text)
        .action(format!("when it is back: forebay volume attach {name}"))
}
