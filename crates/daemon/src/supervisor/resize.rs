//! Volumes that grow with their origins, while they are in use: first the engine, durably, then
//! every front end that shows their size.

use super::late::origin_bytes;
use super::{COMMAND_TIMEOUT, FoundVolume, Supervisor, shard_error};
use forebay_api::hint::{Bytes, Care, When};
use forebay_api::reply::Done;
use forebay_api::request::VolumeResize;
use forebay_api::size::{Size, human};
use forebay_api::told::FromTo;
use forebay_api::{ApiError, Hint, Outcome, Told};
use forebay_engine::{Command, CommandReply};
use forebay_format::BLOCK_SIZE;
use forebay_host::frontend::SECTOR_BYTES;
use std::sync::Arc;

impl Supervisor {
    /// Has the engine grow a volume. First it is remembered: what cannot be is not done.
    fn grow(&self, found: &FoundVolume, bytes: u64) -> Result<Outcome, ApiError> {
        let view = &found.snapshot.view;
        let known = self.store.get().volume(&view.name).map(|known| known.bytes);
        let remember = |bytes| self.store.change_volume(&view.name, |volume| volume.bytes = bytes);
        remember(bytes).map_err(super::nothing_changed)?;
        let reply = found.open.handle.command(Command::Resize(view.id, bytes), COMMAND_TIMEOUT);
        let why = match reply {
            Ok(CommandReply::Changed) => return Ok(Outcome::Changed),
            Ok(CommandReply::Failed(why)) => ApiError::refused(why),
            Ok(_) => return Ok(Outcome::Unchanged),
            Err(error) => shard_error(&found.pool, &error),
        };
        remember(known.unwrap_or(view.bytes))?;
        Err(why)
    }

    pub(super) fn volume_resize(self: &Arc<Self>, wanted: &VolumeResize) -> Result<Done, ApiError> {
        let name = &wanted.name;
        let found = self.find_volume(name)?;
        self.refuse_in_bypass(&found, "grow")?;
        let view = &found.snapshot.view;
        let origin = origin_bytes(&found)?.filter(|_| view.offline.is_none()).ok_or_else(|| {
            let why = view.offline.as_deref().unwrap_or("its origin is missing");
            ApiError::conflict(format!("volume {name} is not served: {why}"))
                .hint(Hint::attach(name, When::BringBackFirst))
        })?;
        let (origin, most) = match &found.snapshot.tiers {
            Some(tiers) => self.tiers_can_hold(&found, tiers, origin),
            None => (origin, origin),
        };
        let down = |bytes: u64, to: u64| bytes / to * to;
        let bytes = match &wanted.size {
            Some(size) => {
                let size = size.parse::<Size>().map_err(ApiError::usage)?;
                down(size.of(origin), SECTOR_BYTES)
            }
            // In whole blocks, so that it can grow again.
            None => down(origin, BLOCK_SIZE as u64).max(view.bytes.min(down(origin, SECTOR_BYTES))),
        };
        if bytes > most {
            return Err(too_large(&found, (view.bytes, bytes), most));
        }
        if bytes < view.bytes {
            return Err(too_small(&found));
        }
        let size = FromTo { from_bytes: view.bytes, to_bytes: bytes };
        if wanted.dry_run {
            let told = match bytes == view.bytes {
                true => has_size(name, bytes),
                false => Told::WouldGrow { volume: name.clone(), size },
            };
            return Ok(Done::new(Outcome::Planned, told));
        }
        if found.snapshot.tiers.is_some() {
            self.grow_tiers(&found, bytes)?;
        }
        let outcome = self.grow(&found, bytes)?;
        if outcome == Outcome::Changed {
            tracing::info!(pool = found.pool, volume = name.as_str(), bytes, "volume grown");
        }
        // Of one that has its size already too: a front end may have failed to show it.
        let shown = self.exports.resize(name, bytes);
        let told = match outcome {
            Outcome::Changed => Told::Grown { volume: name.clone(), size },
            _ => has_size(name, bytes),
        };
        let mut done = Done::new(outcome, told);
        if let Some(tiers) = &found.snapshot.tiers {
            done.told.extend(self.what_the_map_cuts(name, tiers, bytes));
        }
        match shown {
            Ok(hint) if outcome == Outcome::Changed => done.told.extend(hint),
            Ok(_) => {}
            Err(problem) => done.told.push(problem),
        }
        done.volume = Some(self.volume(name)?);
        Ok(done)
    }
}

fn has_size(name: &str, bytes: u64) -> Told {
    Told::HasSize { volume: name.to_string(), size_bytes: Bytes(bytes) }
}

/// What is told of a size that is less than a volume has.
fn too_small(found: &FoundVolume) -> ApiError {
    let view = &found.snapshot.view;
    let text = format!("volume {} has {} and cannot be made smaller", view.name, human(view.bytes));
    // What has no origin has none that could be made smaller.
    ApiError::refused(text).hint(match &found.snapshot.tiers {
        Some(_) => Hint::SeeTo { what: Care::NewVolume },
        None => Hint::remove(&view.name, When::MakeSmaller),
    })
}

/// What is told of a size that the origin does not have.
fn too_large(found: &FoundVolume, (is, wanted): (u64, u64), origin: u64) -> ApiError {
    let size = FromTo { from_bytes: origin, to_bytes: wanted };
    let (name, (has, will)) = (&found.snapshot.view.name, size.texts());
    match &found.snapshot.tiers {
        Some(tiers) if origin == tiers.bytes_max => {
            let map = format!("the map of volume {name} was made with room for {has}");
            ApiError::refused(format!("{map}, not {will}"))
                .hint(Hint::SeeTo { what: Care::NewVolume })
        }
        Some(_) => {
            let text = format!("the tiers of volume {name} hold {has}, not {will}");
            let error = ApiError::refused(text).hint(Hint::SeeTo { what: Care::TiersMore });
            // In whole mebibytes, as sizes are typed.
            match origin >> 20 {
                size_mib if size_mib << 20 > is => {
                    error.hint(Hint::GrowTo { volume: name.clone(), size_mib })
                }
                _ => error,
            }
        }
        None => {
            let text = format!("the origin of volume {name} has {has}, not {will}");
            ApiError::refused(text).hint(Hint::Resize { volume: name.clone() })
        }
    }
}
