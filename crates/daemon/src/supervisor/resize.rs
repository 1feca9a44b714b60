//! Volumes that grow with their origins, while they are in use: first the engine, durably, then
//! every front end that shows their size.

use super::{COMMAND_TIMEOUT, FoundVolume, Supervisor, shard_error};
use forebay_api::hint::{Care, When};
use forebay_api::reply::Done;
use forebay_api::request::VolumeResize;
use forebay_api::size::{Size, human};
use forebay_api::{ApiError, Hint, Outcome};
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
        let (view, handle) = (&found.snapshot.view, &found.open.handle);
        let failed = |error| shard_error(&found.pool, &error);
        let origin = handle.origin_bytes(view.id).map_err(failed)?;
        let origin = origin.filter(|_| view.offline.is_none()).ok_or_else(|| {
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
        let (was, will) = two_sizes(view.bytes, bytes);
        if bytes > most {
            return Err(too_large(&found, most, &will));
        }
        if bytes < view.bytes {
            let text = format!("volume {name} has {was} and cannot be made smaller");
            return Err(ApiError::refused(text).hint(Hint::remove(name, When::MakeSmaller)));
        }
        if wanted.dry_run {
            let text = match bytes == view.bytes {
                true => format!("volume {name} has {was} already"),
                false => format!("would grow volume {name} from {was} to {will}"),
            };
            return Ok(Done::new(Outcome::Planned, text));
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
        let mut done = match outcome {
            Outcome::Changed => {
                Done::new(outcome, format!("volume {name} has grown from {was} to {will}"))
            }
            _ => Done::new(outcome, format!("volume {name} has {was} already")),
        };
        if let Some(tiers) = &found.snapshot.tiers {
            done.messages.extend(self.what_the_map_cuts(name, tiers, bytes));
        }
        match shown {
            Ok(hint) if outcome == Outcome::Changed => done.messages.extend(hint),
            Ok(_) => {}
            Err(problem) => done.messages.push(problem),
        }
        done.volume = Some(self.volume(name)?);
        Ok(done)
    }
}

/// What is told of a size that the origin does not have.
fn too_large(found: &FoundVolume, origin: u64, will: &str) -> ApiError {
    let (name, has) = (&found.snapshot.view.name, human(origin));
    match &found.snapshot.tiers {
        Some(tiers) if origin == tiers.bytes_max => {
            let map = format!("the map of volume {name} was made with room for {has}");
            ApiError::refused(format!("{map}, not {will}"))
                .hint(Hint::SeeTo { what: Care::NewVolume })
        }
        Some(_) => {
            let text = format!("the tiers of volume {name} hold {has}, not {will}");
            ApiError::refused(text).hint(Hint::SeeTo { what: Care::TiersFull })
        }
        None => {
            let text = format!("the origin of volume {name} has {has}, not {will}");
            ApiError::refused(text).hint(Hint::Resize { volume: name.clone() })
        }
    }
}

/// Two sizes for people, in bytes where they would look the same.
fn two_sizes(a: u64, b: u64) -> (String, String) {
    match human(a) == human(b) && a != b {
        true => (format!("{a} bytes"), format!("{b} bytes")),
        false => (human(a), human(b)),
    }
}
