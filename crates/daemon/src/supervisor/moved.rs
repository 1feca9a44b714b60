//! Volumes whose origin is somewhere else from now on: on a disk that holds a copy of the one that
//! failed, or on the same one under another path. What the cache holds dirty goes along.

use super::find::is_not_served;
use super::late::{Awaited, in_time};
use super::leave::dirty_bytes;
use super::plan::same_file;
use super::volume::check_origin;
use super::{FoundVolume, Supervisor};
use crate::state::{Standing, VolumeState};
use forebay_api::hint::{Bytes, Choice};
use forebay_api::reply::{Done, State, VolumeInfo};
use forebay_api::request::{ChangedOrigin, VolumeAttach};
use forebay_api::size::human;
use forebay_api::tiers::SCHEME;
use forebay_api::{ApiError, ErrorKind, Hint, Outcome, Told};
use forebay_engine::Command;
use forebay_host::rest::{Rest, Since};
use std::sync::Arc;

impl Supervisor {
    /// Attaches a volume whose origin is `origin` from now on.
    pub(super) fn attach_on(
        self: &Arc<Self>,
        request: &VolumeAttach,
        origin: &str,
    ) -> Result<Done, ApiError> {
        let known = self.store.get().volume(&request.name).cloned();
        // Whoever does not know the name says so.
        let Some(known) = known else { return self.attach(request) };
        if known.origin.starts_with(SCHEME) {
            let text = format!("volume {} is over tiers and has no origin", known.name);
            return Err(ApiError::usage(text).hint(Hint::NameTiers { volume: known.name }));
        }
        if same_file(&known.origin, origin) {
            return self.attach(request);
        }
        self.check_unused(origin)?;
        match known.standing {
            Standing::Detached => self.attach_elsewhere(request, known, origin),
            _ => self.move_to(request, &known, origin),
        }
    }

    /// How a volume is used whose pool has just been opened; it may be that it is not served all
    /// the same.
    pub(super) fn how_it_is_used(&self, name: &str) -> Result<Done, ApiError> {
        match self.volume(name)? {
            VolumeInfo { state: State::Offline, attention, .. } => {
                Err(is_not_served(ErrorKind::Failed, name, attention))
            }
            _ => self.how_to_use(name, false),
        }
    }

    /// Refuses what something else is on.
    fn check_unused(&self, origin: &str) -> Result<(), ApiError> {
        if origin.starts_with("ram:") {
            let text = format!("{origin} holds nothing, and ends with forebayd: it is no copy");
            return Err(ApiError::refused(text).hint(Hint::Choose { what: Choice::Device }));
        }
        let own = origin.to_string();
        in_time(&format!("look at {origin}"), move || check_origin(&own))?;
        self.check_not_stacked(origin)?;
        self.check_no_origin(origin)
    }

    /// Of a volume that was taken out of service nothing is cached.
    fn attach_elsewhere(
        self: &Arc<Self>,
        request: &VolumeAttach,
        known: VolumeState,
        origin: &str,
    ) -> Result<Done, ApiError> {
        let bytes = self.check_copy(request, &known, origin)?;
        if request.dry_run {
            let (volume, origin) = (known.name, origin.to_string());
            let told = Told::WouldMoveTo { volume, origin, dirty_bytes: Bytes(0) };
            return Ok(Done::new(Outcome::Planned, told));
        }
        let was = known.origin.clone();
        let moved =
            VolumeState { origin: origin.to_string(), bytes, rested: None, ..known.clone() };
        self.remember(|all| all.put_volume(moved))?;
        let attached = self.attach(request);
        if attached.is_err() {
            self.remember(|all| all.put_volume(known))?;
        }
        Ok(moved_from(attached?, &request.name, was))
    }

    /// Refuses an origin that is too small for a volume, or of which is not known that it is a
    /// copy: of the one before, which may still be there. Returns its bytes.
    fn check_copy(
        self: &Arc<Self>,
        request: &VolumeAttach,
        known: &VolumeState,
        origin: &str,
    ) -> Result<u64, ApiError> {
        let look = |uri: &str| {
            let opened = self.open_origin(uri)?;
            let rest = Rest::of(&opened);
            let rest = rest.map_err(|error| ApiError::failed(format!("read {uri}: {error}")))?;
            Ok::<_, ApiError>((opened.bytes(), rest))
        };
        let (bytes, looked) = look(origin)?;
        check_size(bytes, known.bytes, origin, &known.name)?;
        let before = look(&known.origin).ok().and_then(|(_, rest)| rest);
        let rested = before.map(|rest| rest.encode()).or(known.rested.clone());
        let known = VolumeState { rested, ..known.clone() };
        check_doubt(request, &known, origin, looked.as_ref()).map(|()| bytes)
    }

    /// Of one whose origin is not there the pool remembers what is dirty, and where that belongs.
    fn move_to(
        self: &Arc<Self>,
        request: &VolumeAttach,
        known: &VolumeState,
        origin: &str,
    ) -> Result<Done, ApiError> {
        let found = self.find_volume(&known.name)?;
        self.check_missing(&found)?;
        let volume = Awaited { uri: origin.to_string(), ..Awaited::from(&found.snapshot.view) };
        let looked = self.look_at(&volume)?;
        check_size(looked.origin.bytes(), volume.bytes, origin, &volume.name)?;
        check_doubt(request, known, origin, looked.rest.as_ref())?;
        drop(looked);
        if request.dry_run {
            let told = Told::WouldMoveTo {
                volume: volume.name,
                origin: origin.to_string(),
                dirty_bytes: Bytes(dirty_bytes(&found)),
            };
            return Ok(Done::new(Outcome::Planned, told));
        }
        self.call_origin(&found, origin)?;
        tracing::info!(pool = found.pool.as_str(), volume = known.name.as_str(), "is on {origin}");
        let accept = ChangedOrigin::KeepDirty;
        let attach = VolumeAttach { changed: accept, origin: None, ..request.clone() };
        let done = self.attach(&attach)?;
        Ok(moved_from(done, &known.name, known.origin.clone()))
    }

    /// Refuses a volume that is served from its origin.
    fn check_missing(&self, found: &FoundVolume) -> Result<(), ApiError> {
        let (view, open) = (&found.snapshot.view, &found.open);
        let is_missing =
            view.lost || view.offline.is_some() || open.problems.contains_key(&view.name);
        if is_missing && open.bypass.is_none() {
            return Ok(());
        }
        let text = format!("volume {} is served from {}", view.name, view.origin);
        Err(ApiError::conflict(text).hint(Hint::DetachFirst { volume: view.name.clone() }))
    }

    /// Nobody looks for the one before any more, and the pool says where the new one is. It is not
    /// accepted yet: until then a crash leaves a volume that asks whether it is the right one.
    fn call_origin(&self, found: &FoundVolume, origin: &str) -> Result<(), ApiError> {
        let view = &found.snapshot.view;
        self.with_open(&found.pool, |open| {
            open.late.remove(&view.name);
        });
        let what = format!("remember {origin} as the origin of {}", view.name);
        found.command(Command::CallOrigin(view.id, origin.to_string()), &what)?;
        self.store.change_volume(&view.name, |volume| {
            volume.origin = origin.to_string();
            volume.accepted_origin = None;
            volume.rested = None;
        })
    }
}

/// Adds where a volume was before.
fn moved_from(mut done: Done, name: &str, was: String) -> Done {
    done.told.push(Told::MovedTo { volume: name.to_string(), was });
    done
}

fn check_size(has: u64, needs: u64, origin: &str, volume: &str) -> Result<(), ApiError> {
    if has >= needs {
        return Ok(());
    }
    let (of, lacks) = (human(needs), human(needs - has));
    let text = format!("{origin} is too small for volume {volume}, which has {of}: by {lacks}");
    Err(ApiError::refused(text).hint(Hint::Choose { what: Choice::Device }))
}

fn check_doubt(
    request: &VolumeAttach,
    known: &VolumeState,
    origin: &str,
    looked: Option<&Rest>,
) -> Result<(), ApiError> {
    let doubt = why_no_copy(known, origin, looked);
    match doubt.filter(|_| request.changed != ChangedOrigin::KeepDirty) {
        None => Ok(()),
        Some(doubt) => Err(ApiError::refused(doubt)
            .hint(Hint::AttachOn { volume: known.name.clone(), origin: origin.to_string() })),
    }
}

/// Why it is not known that an origin holds what the one before held.
fn why_no_copy(known: &VolumeState, origin: &str, looked: Option<&Rest>) -> Option<String> {
    let was = known.origin.as_str();
    match (&known.rested, looked) {
        (Some(rested), Some(looked)) if looked.since(rested) != Since::Written => None,
        (Some(_), Some(_)) => Some(format!(
            "{origin} does not begin as {was} did when it was last at rest: it is no copy of that"
        )),
        _ => Some(format!("nothing tells whether {origin} holds what {was} held")),
    }
}
