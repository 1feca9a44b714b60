//! The origins of a pool's volumes: opened, and checked that they are the right ones.

use super::late::{Awaited, Late, Looked, cannot_be_used, not_yet};
use super::{FoundVolume, Supervisor};
use crate::convert::{hex, unhex};
use crate::state::{Standing, VolumeState};
use forebay_api::hint::{Dirty, When};
use forebay_api::request::{Export as ExportKind, VolumeCreate};
use forebay_api::{ApiError, Hint, Mode};
use forebay_engine::{Command, VolumeId};
use forebay_format::superblock::{VolumeEntry, field_text};
use forebay_host::device::DeviceError;
use forebay_host::fingerprint;
use forebay_host::origin::{Origin, OriginError};
use forebay_host::pool::PoolOnDisk;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// What is known of a volume's origin before the pool opens.
pub(super) struct Origins {
    pub usable: Vec<(VolumeId, Origin)>,
    pub problems: BTreeMap<String, ApiError>,
    /// Volumes whose origin has not been opened in time. They have a problem, too.
    pub late: Vec<Late>,
    /// Volumes that are not as the pool remembers them.
    pub returned: Vec<(String, Returned)>,
}

/// What happened to a volume without its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Returned {
    /// Its origin is there, but not the one that the pool remembers.
    Changed,
    /// It was served from its origin alone.
    Bypassed,
    /// It was removed.
    GivenUp,
}

impl Returned {
    /// What that means for the volume, when nothing of it is dirty.
    pub fn meaning(self) -> &'static str {
        match self {
            Returned::Changed => {
                "its origin was changed; nothing was dirty, so its cached blocks are forgotten"
            }
            Returned::Bypassed => {
                "it was served without its pool meanwhile, so its cached blocks are forgotten"
            }
            Returned::GivenUp => "it was removed while its pool was missing, and is forgotten",
        }
    }
}

impl Supervisor {
    /// Opens the origins of a pool's volumes and checks that they are the right ones.
    pub(super) fn open_origins(
        self: &Arc<Self>,
        pool: &str,
        on_disk: &PoolOnDisk,
    ) -> Result<Origins, ApiError> {
        let mut origins = Origins {
            usable: Vec::new(),
            problems: BTreeMap::new(),
            late: Vec::new(),
            returned: Vec::new(),
        };
        let mut coming = Vec::new();
        let pool_uuid = hex(&on_disk.uuid());
        for entry in &on_disk.superblock.volumes {
            let (name, uri) = (field_text(&entry.name), field_text(&entry.origin));
            let returned = self.returned(&pool_uuid, &name);
            if returned != Some(Returned::GivenUp) {
                self.know_volume(pool, entry, &name, &uri)?;
            }
            if let Some(returned) = returned {
                let settling =
                    ApiError::failed(returned.meaning()).hint(Hint::attach(&name, When::Again));
                origins.problems.insert(name.clone(), settling);
                origins.returned.push((name, returned));
                continue;
            }
            coming.push((Awaited::from(entry), self.begin_to_open(&uri)?));
        }
        let (begin, deadline) = (Instant::now(), self.origin_deadline());
        for (volume, coming) in coming {
            let (name, uri) = (volume.name.clone(), volume.uri.as_str());
            let looked = match coming.recv_timeout(deadline - Instant::now().min(deadline)) {
                Ok(Ok(looked)) => looked,
                late_or_failed => {
                    let error = match &late_or_failed {
                        Ok(Err(error)) => cannot_be_used(uri, &name, error),
                        _ => not_yet(uri, begin.elapsed()),
                    };
                    tracing::error!(pool, volume = name.as_str(), "{}", error.message);
                    origins.problems.insert(name, error);
                    if late_or_failed.is_err() {
                        origins.late.push(Late { volume, coming });
                    }
                    continue;
                }
            };
            match self.differs(&volume, &looked)? {
                None => origins.usable.push((volume.id, looked.origin)),
                Some(error) => {
                    tracing::warn!(pool, volume = name.as_str(), "{}", error.message);
                    origins.problems.insert(name.clone(), error);
                    origins.returned.push((name, Returned::Changed));
                }
            }
        }
        Ok(origins)
    }

    /// What happened to a volume of this pool while the pool was missing, if something did.
    pub(super) fn returned(&self, pool_uuid: &str, name: &str) -> Option<Returned> {
        let state = self.store.get();
        if state.is_given_up(pool_uuid, Some(name)) {
            return Some(Returned::GivenUp);
        }
        let known = state.volume(name)?;
        (known.standing == Standing::Bypassed).then_some(Returned::Bypassed)
    }

    /// What is told of an origin that is not the one that the pool remembers, or that was accepted
    /// in its place, or that somebody wrote to; and whether it may be accepted now.
    pub(super) fn other_origin(&self, volume: &Awaited, now: &Looked) -> Option<(ApiError, bool)> {
        let (name, uri) = (volume.name.as_str(), volume.uri.as_str());
        let known = self.store.get().volume(name).cloned();
        let accepted = known.and_then(|known| unhex(&known.accepted_origin?));
        let right = accepted.unwrap_or(volume.fingerprint);
        match fingerprint::check(&right, volume.bytes, &now.fingerprint) {
            Err(mismatch @ fingerprint::Mismatch::Shrunk { .. }) => {
                let shrank = ApiError::refused(format!("the origin {uri} was changed: {mismatch}"))
                    .hint(Hint::attach(name, When::GrownBack))
                    .hint(drop_it(name));
                Some((shrank, false))
            }
            Err(mismatch) => Some((changed_origin(uri, name, &mismatch.to_string()), true)),
            Ok(()) => self.was_written(name, now.rest.as_ref()).map(|written| (written, true)),
        }
    }

    /// From now on this is the right origin of a volume, and no other.
    pub(super) fn accept_origin(
        &self,
        volume: &Awaited,
        fingerprint: &[u8; 32],
    ) -> Result<(), ApiError> {
        self.store.change_volume(&volume.name, |volume| {
            volume.accepted_origin = Some(hex(fingerprint));
            volume.rested = None;
        })
    }

    /// Remembers a volume that the superblock names, before it is served: with the devices gone,
    /// this is all that is left to say whether anything is lost.
    fn know_volume(
        &self,
        pool: &str,
        entry: &VolumeEntry,
        name: &str,
        uri: &str,
    ) -> Result<(), ApiError> {
        let mode = Mode::from_raw(entry.mode).unwrap_or_default();
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
                may_be_dirty: mode.plan().write_dirty || dirty,
                standing: match known.as_ref().map(|known| known.standing) {
                    Some(Standing::Bypassed) => Standing::Bypassed,
                    _ => Standing::Served,
                },
                small_sectors: known.as_ref().is_some_and(|known| known.small_sectors),
                accepted_origin: known.as_ref().and_then(|known| known.accepted_origin.clone()),
                rested: known.and_then(|known| known.rested),
            });
        })
    }

    /// Puts the origin as it is now under a volume, and forgets what was cached of it.
    pub(super) fn replace_origin(self: &Arc<Self>, found: &FoundVolume) -> Result<(), ApiError> {
        let view = &found.snapshot.view;
        // The kernel keeps its requests until the volume is there again.
        self.exports.park(&view.name);
        let what = format!("forget what was cached of {}", view.name);
        found.command(Command::RemoveVolume(view.id), &what)?;
        let export = self.store.get().volume(&view.name).map(|known| known.export);
        let request = VolumeCreate {
            name: view.name.clone(),
            origin: view.origin.clone(),
            pool: Some(found.pool.clone()),
            mode: Some(view.mode),
            export: export.unwrap_or_default(),
            dry_run: false,
        };
        self.forget_problem(&found.pool, &view.name);
        self.volume_add(&request, &found.pool)
    }
}

/// The refusal of an origin that is not as it was, with the choices.
pub(super) fn changed_origin(uri: &str, name: &str, how: &str) -> ApiError {
    ApiError::refused(format!("the origin {uri} was changed: {how}"))
        .hint(drop_it(name))
        .hint(Hint::keep_dirty(name, When::CacheIsRight))
}

fn drop_it(name: &str) -> Hint {
    Hint::Attach { volume: name.to_string(), dirty: Dirty::Drop, when: When::OriginIsRight }
}

pub(super) fn is_origin_in_use(error: &OriginError) -> bool {
    match error {
        OriginError::Device(error) => matches!(error, DeviceError::InUse { .. }),
        // A modelled disk has no kind of error for this.
        OriginError::Spindle(error) => error.to_string().contains("in use by another process"),
        _ => false,
    }
}
