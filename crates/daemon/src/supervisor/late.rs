//! Origins that come later than their pool, and those that come back. Opening one may take for
//! ever, and takes nobody along: a start waits a moment for all of them together, and who comes
//! later is served from then on. Clients of other volumes notice nothing.

use super::leave::dirty_bytes;
use super::origin::{Returned, is_origin_in_use};
use super::{COMMAND_TIMEOUT, FoundVolume, Opened, Supervisor, lock, shard_error};
use crate::convert::hex;
use crate::export::{Offer, Space};
use forebay_api::hint::{Bytes, Care, Until, When};
use forebay_api::request::ChangedOrigin;
use forebay_api::{ApiError, ErrorKind, Hint, Mode, Told};
use forebay_engine::{CommandReply, VolumeId, VolumeView};
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
/// How long a command waits for an origin that hangs: nobody changes anything meanwhile.
const ATTACH_PATIENCE: Duration = Duration::from_secs(3);
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

/// A volume that waits for its origin, as the pool remembers both.
#[derive(Debug, Clone)]
pub(super) struct Awaited {
    pub id: VolumeId,
    pub name: String,
    pub uri: String,
    pub bytes: u64,
    pub mode: Mode,
    pub fingerprint: [u8; 32],
    /// What its origin looks like, where another one is accepted: only when it is served. Until
    /// then a crash may bring back what was cached of the one before.
    pub accepts: Option<[u8; 32]>,
}

impl From<&VolumeEntry> for Awaited {
    fn from(entry: &VolumeEntry) -> Awaited {
        Awaited {
            id: VolumeId(entry.id.get()),
            name: field_text(&entry.name),
            uri: field_text(&entry.origin),
            bytes: entry.bytes.get(),
            mode: forebay_api::Mode::from_raw(entry.mode).unwrap_or_default(),
            fingerprint: entry.fingerprint,
            accepts: None,
        }
    }
}

impl From<&VolumeView> for Awaited {
    fn from(view: &VolumeView) -> Awaited {
        Awaited {
            id: view.id,
            name: view.name.clone(),
            uri: view.origin.clone(),
            bytes: view.bytes,
            mode: view.mode,
            fingerprint: view.fingerprint,
            accepts: None,
        }
    }
}

/// Why an origin is not open.
pub(super) enum NotThere {
    /// It cannot be used.
    Failed(ApiError),
    /// It has not answered yet.
    Late(ApiError, Coming),
}

impl From<NotThere> for ApiError {
    fn from(not_there: NotThere) -> ApiError {
        match not_there {
            NotThere::Failed(error) | NotThere::Late(error, _) => error,
        }
    }
}

/// Whether a volume is served now that waited for its origin.
type Served = Result<bool, ApiError>;

/// A volume whose origin has not been opened in time.
pub(super) struct Late {
    pub volume: Awaited,
    pub coming: Coming,
}

impl Late {
    /// The volume's name and number.
    pub fn name(&self) -> (String, VolumeId) {
        (self.volume.name.clone(), self.volume.id)
    }
}

/// What is told of an origin that hangs.
pub(super) fn not_yet(uri: &str, waited: Duration) -> ApiError {
    let text = format!("the origin {uri} has not answered for {:.0} s", waited.as_secs_f64());
    ApiError::failed(text)
        .hint(Hint::SeeTo { what: Care::DiskOrServer })
        .hint(Hint::Wait { until: Until::OriginAnswers })
}

/// How large the origin of a volume is; `None` where it has none. One that hangs has not told.
pub(super) fn origin_bytes(found: &FoundVolume) -> Result<Option<u64>, ApiError> {
    let (handle, view) = (found.open.handle.clone(), &found.snapshot.view);
    let id = view.id;
    let asked = within(ATTACH_PATIENCE, "ask for its size", move || Ok(handle.origin_bytes(id)));
    let bytes = asked.map_err(|_| not_yet(&view.origin, ATTACH_PATIENCE))?;
    bytes.map_err(|error| shard_error(&found.pool, &error))
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
        Err(error.hint(Hint::SeeTo { what: Care::DiskOrServer }))
    })
}

impl Supervisor {
    /// Begins to open an origin.
    pub(super) fn begin_to_open(self: &Arc<Self>, uri: &str) -> Result<Coming, ApiError> {
        let (send, coming) = sync_channel(1);
        let (supervisor, uri) = (Arc::clone(self), uri.to_string());
        let open = move || {
            let opened = supervisor.patiently(|| supervisor.open_source(&uri), is_origin_in_use);
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
        let Late { volume, coming } = late;
        self.follow(pool, volume, move |supervisor, pool, number, volume| {
            let Ok(looked) = coming.recv() else { return Ok(false) };
            supervisor.late_is_here(pool, number, volume, looked)
        });
    }

    /// Serves a volume on a thread of its own.
    fn follow(
        self: &Arc<Self>,
        pool: &str,
        volume: Awaited,
        serve: impl FnOnce(&Arc<Self>, &str, u32, &Awaited) -> Served + Send + 'static,
    ) {
        let Ok(number) = self.open_pool(pool).map(|open| open.handle.number()) else { return };
        let (supervisor, pool, name) = (Arc::clone(self), pool.to_string(), volume.name.clone());
        let follow = move || {
            let name = volume.name.as_str();
            match serve(&supervisor, &pool, number, &volume) {
                Ok(true) => tracing::info!(volume = name, "its origin is here now"),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(volume = name, "{}", error.message);
                    supervisor.not_late(&pool, number, &volume, error);
                }
            }
        };
        let thread = std::thread::Builder::new().name("late".to_string()).spawn(follow);
        if let Err(error) = thread {
            tracing::error!(volume = name.as_str(), "start a thread: {error}");
        }
    }

    /// Ends that a volume counts as late, with what is the matter with it instead.
    fn not_late(&self, pool: &str, number: u32, volume: &Awaited, problem: ApiError) {
        if self.waits_for(pool, number, volume) {
            self.has_problem(pool, &volume.name, problem);
            self.with_open(pool, |open| {
                open.late.remove(&volume.name);
            });
        }
    }

    /// Whether the pool is as it was when it was opened without this origin.
    pub(super) fn waits_for(&self, pool: &str, number: u32, volume: &Awaited) -> bool {
        let open = self.open_pool(pool).ok();
        let open = open.filter(|open| open.handle.number() == number && !self.is_stopping());
        // Another volume may have its name by now.
        open.is_some_and(|open| open.late.get(&volume.name) == Some(&volume.id))
    }

    fn late_is_here(
        self: &Arc<Self>,
        pool: &str,
        number: u32,
        volume: &Awaited,
        looked: Result<Looked, OriginError>,
    ) -> Served {
        let changes = lock(&self.changes);
        if !self.waits_for(pool, number, volume) {
            return Ok(false);
        }
        let looked = looked.map_err(|error| cannot_be_used(&volume.uri, &volume.name, &error))?;
        if let Some(error) = self.differs(volume, &looked)? {
            drop(looked);
            self.not_late(pool, number, volume, error);
            let settled = self.settle_volume(pool, &volume.name, Returned::Changed);
            return settled.map(|()| false);
        }
        let space = self.give_origin(pool, volume, looked.origin)?;
        drop(changes);
        self.late_is_flushed(pool, number, volume, space)
    }

    /// Serves a volume as soon as its origin was flushed.
    fn late_is_flushed(
        self: &Arc<Self>,
        pool: &str,
        number: u32,
        volume: &Awaited,
        space: Space,
    ) -> Served {
        while self.waits_for(pool, number, volume) && self.not_flushed(pool, volume)?.is_some() {
            std::thread::sleep(PAUSE);
        }
        let _changes = lock(&self.changes);
        let waits = self.waits_for(pool, number, volume);
        if waits {
            self.serve_again(pool, volume, space)?;
        }
        Ok(waits)
    }

    /// Brings a volume back whose origin was missing, or is not as the pool remembers it. What
    /// stands against it is an error, or a problem of the volume.
    pub(super) fn bring_origin(
        self: &Arc<Self>,
        found: &FoundVolume,
        keep: bool,
    ) -> Result<(), ApiError> {
        let (pool, mut volume) = (found.pool.as_str(), Awaited::from(&found.snapshot.view));
        if let Some(returned) = self.returned(&hex(&found.open.uuid), &volume.name) {
            return self.settle_volume(pool, &volume.name, returned);
        }
        if let Some(error) = flushes(found) {
            return Err(error);
        }
        let looked = match self.look_at(&volume) {
            Ok(looked) => looked,
            Err(NotThere::Failed(error)) => {
                self.has_problem(pool, &volume.name, error);
                return Ok(());
            }
            Err(NotThere::Late(error, coming)) => {
                self.is_late(pool, &volume, error);
                self.follow_late(pool, Late { volume, coming });
                return Ok(());
            }
        };
        match self.other_origin(&volume, &looked) {
            Some((_, true)) if keep => volume.accepts = Some(looked.fingerprint.encode()),
            Some((error, _)) => {
                drop(looked);
                self.has_problem(pool, &volume.name, error);
                return self.settle_volume(pool, &volume.name, Returned::Changed);
            }
            None => self.is_ours_now(&volume)?,
        }
        let space = self.give_origin(pool, &volume, looked.origin)?;
        self.serve_when_flushed(pool, volume, space)?;
        tracing::info!(pool, volume = found.snapshot.view.name.as_str(), "attached again");
        Ok(())
    }

    /// Opens the origin of a volume for a command.
    pub(super) fn look_at(self: &Arc<Self>, volume: &Awaited) -> Result<Looked, NotThere> {
        let begin = Instant::now();
        let coming = self.begin_to_open(&volume.uri).map_err(NotThere::Failed)?;
        match coming.recv_timeout(ATTACH_PATIENCE) {
            Ok(Ok(looked)) => Ok(looked),
            Ok(Err(error)) => {
                Err(NotThere::Failed(cannot_be_used(&volume.uri, &volume.name, &error)))
            }
            Err(_) => Err(NotThere::Late(not_yet(&volume.uri, begin.elapsed()), coming)),
        }
    }

    /// What [`Supervisor::bring_origin`] would do, or what stands against it. Nothing is
    /// remembered.
    pub(super) fn plan_origin(
        self: &Arc<Self>,
        found: &FoundVolume,
        changed: ChangedOrigin,
    ) -> Result<Told, ApiError> {
        let volume = Awaited::from(&found.snapshot.view);
        let dirty_bytes = Bytes(dirty_bytes(found));
        if let Some(error) = flushes(found) {
            return Err(error);
        }
        let looked = self.look_at(&volume)?;
        let stats = &found.snapshot.stats;
        let other = self.other_origin(&volume, &looked);
        let volume = volume.name;
        Ok(match other {
            _ if changed == ChangedOrigin::DropDirty => {
                Told::WouldLoseDirty { volume, dirty_bytes }
            }
            None => Told::WouldBringBack { volume },
            Some((_, true)) if changed == ChangedOrigin::KeepDirty => {
                Told::WouldSendToChanged { volume, dirty_bytes }
            }
            Some(_) if stats.dirty_blocks == 0 && stats.lost_blocks == 0 => {
                Told::WouldForgetCached { volume }
            }
            Some((error, _)) => return Err(error),
        })
    }

    /// Serves a volume when its origin was flushed: at once, or later where that takes long.
    fn serve_when_flushed(
        self: &Arc<Self>,
        pool: &str,
        volume: Awaited,
        space: Space,
    ) -> Result<(), ApiError> {
        if let Err(error) = self.wait_flushed(pool, &volume) {
            self.is_late(pool, &volume, error);
            self.follow(pool, volume, move |supervisor, pool, number, volume| {
                supervisor.late_is_flushed(pool, number, volume, space)
            });
            return Ok(());
        }
        self.serve_again(pool, &volume, space)
    }

    /// What is to be told where an origin is not the one that the pool remembers, or somebody wrote
    /// to it. Otherwise what is written from now on is written by us.
    pub(super) fn differs(
        &self,
        volume: &Awaited,
        looked: &Looked,
    ) -> Result<Option<ApiError>, ApiError> {
        match self.other_origin(volume, looked) {
            Some((error, _)) => Ok(Some(error)),
            None => self.is_ours_now(volume).map(|()| None),
        }
    }

    /// Gives the pool the origin of a volume: it flushes it, and answers requests then. Of another
    /// one only what is dirty counts.
    pub(super) fn give_origin(
        &self,
        pool: &str,
        volume: &Awaited,
        origin: Origin,
    ) -> Result<Space, ApiError> {
        let (space, handle) = (Space::of(&origin), self.open_pool(pool)?.handle);
        let changed = volume.accepts.is_some();
        let back = handle.origin_back(volume.id, origin, changed, COMMAND_TIMEOUT);
        match back.map_err(|error| shard_error(pool, &error))? {
            CommandReply::Failed(why) => Err(ApiError::failed(why)),
            _ => Ok(space),
        }
    }

    /// Waits until the pool answers a volume's requests, and not for ever.
    pub(super) fn wait_flushed(&self, pool: &str, volume: &Awaited) -> Result<(), ApiError> {
        let begin = Instant::now();
        while let Some(why) = self.not_flushed(pool, volume)? {
            if begin.elapsed() > ORIGIN_LIMIT {
                return Err(ApiError::failed(why)
                    .hint(Hint::SeeTo { what: Care::Disk })
                    .hint(Hint::Wait { until: Until::Flushed }));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Why the pool does not answer a volume's requests yet. One that was removed is an error.
    fn not_flushed(&self, pool: &str, volume: &Awaited) -> Result<Option<String>, ApiError> {
        let handle = self.open_pool(pool)?.handle;
        let snapshot = handle.snapshot().map_err(|error| shard_error(pool, &error))?;
        let mut views = snapshot.volumes.into_iter().map(|volume| volume.view);
        let view = views.find(|view| view.id == volume.id);
        let gone = || ApiError::not_found(format!("volume {} was removed meanwhile", volume.name));
        view.map(|view| view.offline).ok_or_else(gone)
    }

    fn serve_again(&self, pool: &str, volume: &Awaited, space: Space) -> Result<(), ApiError> {
        if let Some(fingerprint) = &volume.accepts {
            self.accept_origin(volume, fingerprint)?;
        }
        self.forget_problem(pool, &volume.name);
        let (bytes, mode) = (VolumeBytes::new(volume.bytes), volume.mode);
        self.export_volume(pool, &volume.name, &Offer { volume: volume.id, bytes, space, mode })
    }

    pub(super) fn is_late(&self, pool: &str, volume: &Awaited, problem: ApiError) {
        self.has_problem(pool, &volume.name, problem);
        self.with_open(pool, |open| {
            open.late.insert(volume.name.clone(), volume.id);
        });
    }

    pub(super) fn has_problem(&self, pool: &str, name: &str, problem: ApiError) {
        self.with_open(pool, |open| drop(open.problems.insert(name.to_string(), problem)));
    }

    pub(super) fn with_open(&self, pool: &str, act: impl FnOnce(&mut Opened)) {
        if let Some(Ok(open)) = self.inner().pools.get_mut(pool).map(|pool| pool.open.as_mut()) {
            act(open);
        }
    }
}

/// Why a volume is not served that has its origin: the pool tries to flush that again and again.
fn flushes(found: &FoundVolume) -> Option<ApiError> {
    let view = &found.snapshot.view;
    let why = view.offline.as_ref().filter(|_| !found.open.problems.contains_key(&view.name))?;
    let error = ApiError::failed(format!("volume {}: {why}", view.name));
    Some(
        error
            .hint(Hint::SeeTo { what: Care::Disk })
            .hint(Hint::Wait { until: Until::FlushedAtLast }),
    )
}

/// What is told of an origin that cannot be opened.
pub(super) fn cannot_be_used(uri: &str, name: &str, error: &OriginError) -> ApiError {
    let text = format!("the origin {uri} cannot be used: {error}");
    ApiError::new(ErrorKind::Failed, text).hint(Hint::attach(name, When::OriginBack))
}
