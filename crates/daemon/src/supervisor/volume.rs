//! Making volumes and bringing them back.

use super::find::is_not_served;
use super::fstab;
use super::late::{Awaited, in_time};
use super::leave::{dirty_bytes, drop_dirty, or_lose};
use super::plan::{content_of, same_file};
use super::{COMMAND_TIMEOUT, FoundVolume, Supervisor, random_uuid, shard_error};
use crate::convert::device_error;
use crate::export::{Offer, Space};
use crate::state::{Standing, VolumeState, owner_of};
use forebay_api::hint::{Bytes, Choice, Pools, When};
use forebay_api::reply::{Done, State, VolumeInfo};
use forebay_api::request::{
    ChangedOrigin, ORIGIN_BYTES_MAX, VolumeAttach, VolumeCreate, check_name,
};
use forebay_api::tiers::SCHEME;
use forebay_api::{ApiError, ErrorKind, Hint, Mode, Outcome, Told};
use forebay_engine::{CommandReply, VolumeSpec};
use forebay_format::superblock::VOLUMES_MAX;
use forebay_host::device::content::has_small_sectors;
use forebay_host::device::{Content, identify};
use forebay_host::frontend::VolumeBytes;
use forebay_host::origin::tiered::TieredError;
use forebay_host::origin::{Origin, OriginError};
use std::path::Path;
use std::sync::Arc;

/// Refuses what is no origin, before it is opened.
pub(super) fn check_origin(uri: &str) -> Result<(), ApiError> {
    if uri.is_empty() || uri.len() > ORIGIN_BYTES_MAX {
        let text = format!(
            "the origin's URI has {} bytes, and a pool remembers {ORIGIN_BYTES_MAX}",
            uri.len()
        );
        return Err(ApiError::usage(text).hint(Hint::Choose { what: Choice::ShorterPath }));
    }
    if Path::new(uri).is_absolute() {
        let content = content_of(Path::new(uri))?;
        if let Content::Pool { .. } = content {
            let text = format!("the origin {uri} holds {content}: it is a cache device");
            return Err(ApiError::refused(text).hint(Hint::Choose { what: Choice::Swapped }));
        }
    }
    Ok(())
}

/// What is told of an origin, or a device of a tier, that cannot be opened.
pub(super) fn origin_error(uri: &str, error: &OriginError) -> ApiError {
    let kind = match error {
        OriginError::Device(error) => device_error(error).kind,
        OriginError::Scheme { .. } => ErrorKind::Usage,
        OriginError::Tiered(TieredError::Create(_)) => ErrorKind::Refused,
        _ => ErrorKind::Failed,
    };
    let text = error.to_string();
    let what = if uri.starts_with(SCHEME) { "the tiers" } else { "the origin" };
    match (text.starts_with(uri), error) {
        (_, OriginError::Tiered(_)) => ApiError::new(kind, text),
        (true, _) => ApiError::new(kind, format!("{what} {text}")),
        (false, _) => ApiError::new(kind, format!("{what} {uri}: {text}")),
    }
}

impl Supervisor {
    /// Opens an origin for a volume.
    ///
    /// # Errors
    /// It cannot be used, or is a cache device: whoever swaps the two would lose the origin's data.
    pub(super) fn open_origin(self: &Arc<Self>, uri: &str) -> Result<Origin, ApiError> {
        let (supervisor, own) = (Arc::clone(self), uri.to_string());
        in_time(&format!("open the origin {uri}"), move || {
            check_origin(&own)?;
            supervisor.open_source(&own).map_err(|error| origin_error(&own, &error))
        })
    }

    /// `is_new`: nobody can have put anything on it yet that its origin does not show.
    pub(super) fn how_to_use(&self, name: &str, is_new: bool) -> Result<Done, ApiError> {
        let volume = self.volume(name)?;
        let (own, size_bytes) = (name.to_string(), Bytes(volume.bytes));
        let told = match volume.pool.is_empty() {
            true => Told::OnTiers { volume: own, size_bytes },
            false => Told::Cached {
                volume: own,
                size_bytes,
                origin: volume.origin.clone(),
                cache_bytes: Bytes(self.pool(&volume.pool)?.capacity_bytes),
                mode: volume.mode,
            },
        };
        let mut done = Done::new(Outcome::Changed, told);
        if let Some((cause, hint)) = self.exports.trouble(name, None) {
            let why = cause.to_string();
            done.told.extend([Told::Degraded { why }, Told::DegradedAction { hint }]);
        }
        done.told.extend(self.how_to_reach(&volume, is_new));
        done.told.push(Told::Watch);
        done.volume = Some(volume);
        Ok(done)
    }

    /// How a volume is used, as it is exported.
    fn how_to_reach(&self, volume: &VolumeInfo, is_new: bool) -> Vec<Told> {
        let Some(export) = volume.export.clone() else { return Vec::new() };
        if export.starts_with('/') {
            let (device, origin) = (export, volume.origin.clone());
            let mut told = vec![Told::UseAt { device: device.clone() }];
            let mount = Told::Mount { device: device.clone() };
            match in_time("look at the origin", move || {
                identify(Path::new(&origin)).map_err(|error| device_error(&error))
            }) {
                Ok(Content::Known(what)) => {
                    told.extend([Told::Holds { content: what.to_string() }, mount]);
                }
                _ if is_new => told.extend([Told::TryMkfs { device }, mount]),
                _ => {}
            }
            return told;
        }
        if let Some(path) = export.strip_prefix("vhost-user:") {
            let path = path.to_string();
            let disk = Told::GuestDisk { path: path.clone() };
            return vec![Told::ReachGuest { path }, Told::GuestMemory, disk];
        }
        let (uri, socket) = (export, self.nbd_socket.display().to_string());
        let name = || volume.name.clone();
        vec![
            Told::ReachAt { uri: uri.clone() },
            Told::TryNbdinfo { uri: uri.clone() },
            Told::AsFile { volume: name(), uri },
            Told::AsDisk { socket: socket.clone(), volume: name() },
            Told::AsGuestDisk { socket, volume: name() },
        ]
    }

    /// The pool that a volume goes to.
    pub(super) fn pool_for(&self, wanted: Option<&str>) -> Result<String, ApiError> {
        if let Some(name) = wanted {
            let why = match self.open_pool(name) {
                Ok(open) => open.bypass,
                Err(error) => Some(error),
            };
            let pool = self.inner().pools.get(name).cloned();
            return match (why, pool) {
                (None, _) => Ok(name.to_string()),
                (Some(why), Some(pool)) => Err(self.closed_pool(&pool, why)),
                (Some(why), None) => Err(why),
            };
        }
        let mut names: Vec<String> = self.inner().pools.keys().cloned().collect();
        names.retain(|name| owner_of(name).is_none());
        match &names[..] {
            [] => Err(ApiError::usage("there is no pool yet").hint(Hint::CreateFirstPool)),
            [only] => self.pool_for(Some(only)),
            _ => Err(ApiError::usage("there are several pools")
                .hint(Hint::ChoosePool { pools: Pools(names) })),
        }
    }

    /// Refuses a volume that is one too many for its pool, before anything is made.
    pub(super) fn check_count(&self, pool: &str) -> Result<(), ApiError> {
        let snapshot = self.open_pool(pool)?.handle.snapshot();
        let snapshot = snapshot.map_err(|error| shard_error(pool, &error))?;
        match snapshot.volumes.len() >= VOLUMES_MAX {
            true => Err(ApiError::refused(format!(
                "pool {pool} has {VOLUMES_MAX} volumes, as many as it can hold; use another pool"
            ))),
            false => Ok(()),
        }
    }

    pub(super) fn volume_create(
        self: &Arc<Self>,
        request: &VolumeCreate,
    ) -> Result<Done, ApiError> {
        check_name(&request.name).map_err(ApiError::usage)?;
        self.exports.check(request.export)?;
        if let Some(done) = self.is_this_volume(request)? {
            return Ok(done);
        }
        let pool = self.pool_for(request.pool.as_deref())?;
        self.check_count(&pool)?;
        let name = &request.name;
        self.check_not_stacked(&request.origin)?;
        self.check_no_tier(&request.origin)?;
        if request.dry_run {
            let bytes = self.open_origin(&request.origin)?.bytes();
            let mode = request.mode.unwrap_or_default();
            let (volume, origin, size_bytes) = (name.clone(), request.origin.clone(), Bytes(bytes));
            let told = Told::WouldMakeVolume { volume, size_bytes, origin, pool, mode };
            let mut planned = Done::new(Outcome::Planned, told);
            planned.told.extend(fstab::warnings(&request.origin, name));
            return Ok(planned);
        }
        // Before udev's links lead to the volume instead of its origin.
        let warnings = fstab::warnings(&request.origin, name);
        self.volume_add(request, &pool)?;
        let mut done = self.how_to_use(name, true)?;
        done.told.extend(warnings);
        Ok(done)
    }

    /// The volume of this name, origin and pool, if it is there. Another one of its name or on its
    /// origin is an error.
    pub(super) fn same_volume(
        &self,
        request: &VolumeCreate,
    ) -> Result<Option<VolumeInfo>, ApiError> {
        let name = &request.name;
        let mut same = None;
        for other in self.volumes() {
            let same_origin = same_file(&other.origin, &request.origin);
            if other.name != *name {
                if same_origin && other.state != State::Detached {
                    let text = format!("{} is the origin of volume {}", other.origin, other.name);
                    return Err(ApiError::conflict(text));
                }
                continue;
            }
            let same_pool = request.pool.as_ref().is_none_or(|pool| *pool == other.pool);
            if !same_origin || !same_pool {
                let text = format!(
                    "there is a volume {name:?} on {} in pool {}",
                    other.origin, other.pool
                );
                return Err(ApiError::conflict(text).hint(Hint::Choose { what: Choice::NameFlag }));
            }
            same = Some(other);
        }
        Ok(same)
    }

    /// What there is to say when exactly this volume is there.
    fn is_this_volume(&self, request: &VolumeCreate) -> Result<Option<Done>, ApiError> {
        let Some(there) = self.same_volume(request)? else { return Ok(None) };
        let name = &request.name;
        if there.state == State::Detached {
            return Err(ApiError::conflict(format!("volume {name} is there, and detached"))
                .hint(Hint::attach(name, When::BringBack)));
        }
        if there.state == State::Offline {
            return Err(is_not_served(ErrorKind::Conflict, name, there.attention));
        }
        if let Some(mode) = request.mode.filter(|mode| *mode != there.mode) {
            let text = format!("volume {name} is there, in mode {}", there.mode);
            return Err(
                ApiError::conflict(text).hint(Hint::SwitchMode { volume: name.clone(), mode })
            );
        }
        if request.dry_run {
            let told = Told::IsThere { volume: name.clone() };
            return Ok(Some(Done::new(Outcome::Planned, told)));
        }
        let mut done = self.how_to_use(name, false)?;
        done.outcome = Outcome::Unchanged;
        Ok(Some(done))
    }

    /// Adds a volume to an open pool, offers it and remembers it.
    pub(super) fn volume_add(
        self: &Arc<Self>,
        request: &VolumeCreate,
        pool: &str,
    ) -> Result<(), ApiError> {
        self.open_pool(pool)?;
        let origin = self.open_origin(&request.origin)?;
        let mode = request.mode.unwrap_or_default();
        if let Some(notice) = origin.notice() {
            tracing::info!(volume = request.name.as_str(), "{notice}");
        }
        let bytes = origin.bytes();
        let before = self.store.get().volume(&request.name).cloned();
        let small_sectors = match (&before, &origin) {
            // As it was: what is on it by now may be known to the cache only.
            (Some(before), _) => before.small_sectors,
            (None, Origin::File(device)) => has_small_sectors(device)
                .map_err(|e| ApiError::failed(format!("read {}: {e}", request.origin)))?,
            (None, _) => false,
        };
        self.remember(|all| {
            all.put_volume(VolumeState {
                name: request.name.clone(),
                pool: pool.to_string(),
                origin: request.origin.clone(),
                mode,
                export: request.export,
                bytes,
                may_be_dirty: mode.plan().write_dirty,
                standing: Standing::Served,
                accepted_origin: None,
                rested: None,
                small_sectors,
            });
        })?;
        // Of another volume, that had the name before.
        self.inner().jobs.remove(&request.name);
        let what = (request.name.as_str(), request.origin.as_str());
        let offer = self.add_to_engine(pool, what, origin, bytes, mode);
        let offer = offer.map_err(|error| {
            let undone = self.remember(|all| {
                all.volumes.retain(|volume| volume.name != request.name);
                all.volumes.extend(before);
            });
            undone.err().unwrap_or(error)
        })?;
        self.export_volume(pool, &request.name, &offer)?;
        tracing::info!(pool, volume = request.name.as_str(), mode = mode.name(), "volume added");
        Ok(())
    }

    /// Adds a volume with this name and URI to the engine of an open pool. Returns how it is to be
    /// offered.
    pub(super) fn add_to_engine(
        &self,
        pool: &str,
        (name, uri): (&str, &str),
        origin: Origin,
        bytes: u64,
        mode: Mode,
    ) -> Result<Offer, ApiError> {
        let spec = VolumeSpec {
            name: name.to_string(),
            origin: uri.to_string(),
            bytes,
            uuid: random_uuid()?,
            fingerprint: origin.fingerprint().encode(),
            mode,
            volatile_cache: origin.volatile_cache(),
            exact_flushes: origin.answers_each_flush() && owner_of(pool).is_some(),
            stripe_blocks: origin.stripe_blocks(),
        };
        let (space, bytes) = (Space::of(&origin), VolumeBytes::new(bytes));
        let reply = self.open_pool(pool)?.handle.add_volume(spec, origin, COMMAND_TIMEOUT);
        match reply.map_err(|error| shard_error(pool, &error))? {
            CommandReply::Added(volume) => Ok(Offer { volume, bytes, space, mode }),
            CommandReply::Failed(why) => Err(ApiError::failed(why)),
            other => Err(ApiError::failed(format!("the pool answered {other:?}"))),
        }
    }

    /// Keeps for `status` why a volume is not served.
    pub(super) fn note_problem(&self, pool: &str, volume: &str, error: ApiError) {
        self.has_problem(pool, volume, error.hint(Hint::attach(volume, When::Mended)));
    }

    /// The volume's origin is no longer a problem.
    pub(super) fn forget_problem(&self, pool: &str, volume: &str) {
        self.with_open(pool, |open| {
            open.problems.remove(volume);
            open.late.remove(volume);
        });
    }

    pub(super) fn volume_attach(
        self: &Arc<Self>,
        request: &VolumeAttach,
    ) -> Result<Done, ApiError> {
        let mut done = match &request.origin {
            Some(origin) => self.attach_on(request, origin)?,
            None => self.attach(request)?,
        };
        if done.outcome != Outcome::Planned {
            self.tell_of_tiers(&request.name, &mut done);
        }
        Ok(done)
    }

    pub(super) fn attach(self: &Arc<Self>, request: &VolumeAttach) -> Result<Done, ApiError> {
        let (name, known) = (&request.name, self.store.get().volume(&request.name).cloned());
        let planned = |told: Told| Ok(Done::new(Outcome::Planned, told));
        if let Some(known) = known.as_ref().filter(|_| request.changed == ChangedOrigin::KeepDirty)
            && let Some(would) = self.accept_what_is_here(&known.pool, request.dry_run)?
        {
            return Ok(would);
        }
        match (self.find_volume(name), known) {
            (Ok(found), Some(known)) if found.open.bypass.is_some() => {
                if request.dry_run {
                    return planned(Told::WouldReopenPool { pool: known.pool });
                }
                self.attach_without_pool(&known)?;
                self.how_it_is_used(name)
            }
            (Ok(found), _) => {
                if let Some(done) = self.reopen_tiers(&found, request.dry_run)? {
                    return Ok(done);
                }
                let offline = found.snapshot.view.offline.is_some();
                let served = !offline && !found.open.problems.contains_key(name);
                // One that a job takes out of service gets no other.
                let stays = served && self.no_job(name).is_ok();
                let lost = stays && self.exports.is_renewable(name, found.snapshot.ports);
                if lost && !request.dry_run {
                    self.exports.renew(&found.open.handle, name)?;
                    return self.how_to_use(name, false);
                }
                if !lost && served {
                    if request.dry_run {
                        return planned(Told::StaysInService { volume: name.clone() });
                    }
                    return self.is_attached(&found);
                }
                if request.dry_run {
                    return planned(self.plan_attach(&found, request.changed)?);
                }
                self.attach_offline(&found, request.changed)?;
                self.how_to_use(name, false)
            }
            (Err(error), None) => Err(error),
            (Err(_), Some(known)) => {
                if request.dry_run {
                    return planned(self.plan_open(&known));
                }
                self.attach_without_pool(&known)?;
                if self.find_volume(name).is_err() {
                    let create = VolumeCreate {
                        name: name.clone(),
                        origin: known.origin.clone(),
                        pool: Some(known.pool.clone()),
                        mode: Some(known.mode),
                        export: known.export,
                        dry_run: false,
                    };
                    self.volume_add(&create, &known.pool)?;
                    self.forget_problem(&known.pool, name);
                }
                self.how_it_is_used(name)
            }
        }
    }

    /// What there is to say of a volume that is attached and served already.
    fn is_attached(&self, found: &FoundVolume) -> Result<Done, ApiError> {
        let view = &found.snapshot.view;
        let told = Told::InService { volume: view.name.clone() };
        if view.poisoned {
            let volume = view.name.clone();
            return Err(ApiError::conflict(told.to_string()).hint(Hint::Reattach { volume }));
        }
        let mut done = self.how_to_use(&view.name, false)?;
        done.outcome = Outcome::Unchanged;
        done.told.push_first(told);
        Ok(done)
    }

    /// What attaching a volume would do whose pool is not open.
    fn plan_open(&self, volume: &VolumeState) -> Told {
        let (volume, pool) = (volume.name.clone(), volume.pool.clone());
        match self.why_closed(&pool) {
            Some(why) => Told::WouldTryPool { pool, why: why.message },
            None => Told::WouldAttach { volume, pool },
        }
    }

    /// What [`Supervisor::attach_offline`] would do.
    fn plan_attach(
        self: &Arc<Self>,
        found: &FoundVolume,
        changed: ChangedOrigin,
    ) -> Result<Told, ApiError> {
        let name = &found.snapshot.view.name;
        let accepts = found.snapshot.view.lost && changed == ChangedOrigin::KeepDirty;
        let late = found.open.late.contains_key(name) && changed != ChangedOrigin::DropDirty;
        let planned = match late && !accepts {
            true => Err(found.open.problems[name].clone()),
            false => self.plan_origin(found, changed),
        };
        planned.map_err(|error| or_lose(error, name, dirty_bytes(found)))
    }

    /// Brings a volume back whose origin was missing or is not as the pool remembers it.
    fn attach_offline(
        self: &Arc<Self>,
        found: &FoundVolume,
        changed: ChangedOrigin,
    ) -> Result<(), ApiError> {
        let name = &found.snapshot.view.name;
        if found.snapshot.view.lost && changed == ChangedOrigin::KeepDirty {
            return self.accept_instead(found);
        }
        if found.open.late.contains_key(name) && changed != ChangedOrigin::DropDirty {
            // It comes by itself.
            return Err(found.open.problems[name].clone());
        }
        if changed == ChangedOrigin::DropDirty {
            // The origin has to answer, soon, and be usable before anything is given up.
            drop(self.look_at(&Awaited::from(&found.snapshot.view))?);
            drop(self.open_origin(&found.snapshot.view.origin)?);
            drop_dirty(found)?;
            return self.replace_origin(found);
        }
        let brought = self.bring_origin(found, changed == ChangedOrigin::KeepDirty);
        let open = self.open_pool(&found.pool)?;
        let problem = brought.err().or_else(|| open.problems.get(name).cloned());
        problem.map_or(Ok(()), |error| Err(or_lose(error, name, dirty_bytes(found))))
    }
}
