//! What only the cache holds of a volume, from the engine that serves its pool: no origin is asked,
//! be it gone or hanging.

use super::{FoundVolume, Supervisor, shard_error};
use crate::rescue::{answer, of_daemon};
use forebay_api::hint::Devices;
use forebay_api::request::VolumeRescue;
use forebay_api::{ApiError, Hint, RescuePart};
use forebay_format::BLOCK_SIZE;

/// Looks for dirty blocks that one request makes: then it is answered, and asked again.
const LOOKS_MAX: usize = 64;

impl Supervisor {
    pub(super) fn volume_rescue(&self, wanted: &VolumeRescue) -> Result<RescuePart, ApiError> {
        let found = self.find_volume(&wanted.name)?;
        self.refuse_without_cache(&found.pool, "hold what is not on its tiers")?;
        self.refuse_in_bypass(&found, "be rescued")?;
        self.check_is_read(&found)?;
        let (view, handle) = (&found.snapshot.view, &found.open.handle);
        let failed = |error| shard_error(&found.pool, &error);
        let (block, blocks) = (BLOCK_SIZE as u64, view.bytes.div_ceil(BLOCK_SIZE as u64));
        let mut from = wanted.from / block;
        let mut dirty = handle.dirty(view.id, from..blocks).map_err(failed)?;
        for _ in 1..LOOKS_MAX {
            from = dirty.next;
            if !dirty.blocks.is_empty() || from >= blocks {
                break;
            }
            dirty = handle.dirty(view.id, from..blocks).map_err(failed)?;
        }
        let mut part = handle.read_dirty((view.id, view.bytes), &dirty).map_err(failed)?;
        // What has gone home meanwhile is no loss.
        part.unread = part
            .unread
            .into_iter()
            .filter_map(|one| {
                let at = one.0.offset / block;
                match handle.dirty(view.id, at..at + one.0.bytes.div_ceil(block)) {
                    Ok(now) if now.blocks.is_empty() => None,
                    Ok(_) => Some(Ok(one)),
                    Err(error) => Some(Err(failed(error))),
                }
            })
            .collect::<Result<_, _>>()?;
        let next = (dirty.next < blocks).then_some(dirty.next * block);
        let about = (wanted.from == 0).then(|| of_daemon(&found.pool, &found.snapshot));
        Ok(RescuePart { about, next, ..answer(part, wanted.dry_run) })
    }

    /// Refuses a volume of which the engine reads nothing: its origin was not there when the pool
    /// was opened, or could not be flushed.
    fn check_is_read(&self, found: &FoundVolume) -> Result<(), ApiError> {
        let view = &found.snapshot.view;
        let Some(why) = view.offline.as_ref().filter(|_| !view.lost) else { return Ok(()) };
        let name = &view.name;
        let text = format!(
            "volume {name} is not served since pool {} was opened ({why}), and what the cache \
             holds of it cannot be read while forebayd serves that pool",
            found.pool
        );
        let devices = found.open.devices.iter().filter(|it| it.present).map(|it| it.path.clone());
        let devices = Devices::Paths(devices.collect());
        Err(ApiError::conflict(text).hint(Hint::RescueFrom { volume: name.clone(), devices }))
    }
}
