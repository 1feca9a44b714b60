//! What only the cache holds of a volume, from the engine that serves its pool: no origin is asked,
//! be it gone or hanging.

use super::{FoundVolume, Supervisor, shard_error};
use crate::rescue::{answer, of_daemon};
use forebay_api::hint::Devices;
use forebay_api::request::VolumeRescue;
use forebay_api::{ApiError, Hint, RescuePart};
use forebay_format::BLOCK_SIZE;
use forebay_host::rescue::Unread;

/// Looks for dirty blocks that one request makes: then it is answered, and asked again.
const LOOKS_MAX: usize = 64;

impl Supervisor {
    pub(super) fn volume_rescue(&self, wanted: &VolumeRescue) -> Result<RescuePart, ApiError> {
        let found = self.find_volume(&wanted.name)?;
        self.refuse_without_cache(&found.pool, "hold what is not on its tiers")?;
        self.refuse_in_bypass(&found, "be rescued")?;
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
        let mut unread = Vec::new();
        for (span, why) in part.unread {
            let at = span.offset / block;
            let still = handle.dirty(view.id, at..at + span.bytes.div_ceil(block));
            match (still.map_err(failed)?.blocks.is_empty(), why) {
                (true, _) => {}
                (false, Unread::NotServed) => return Err(not_read(&found)),
                (false, why) => unread.push((span, why)),
            }
        }
        part.unread = unread;
        let next = (dirty.next < blocks).then_some(dirty.next * block);
        let about = (wanted.from == 0).then(|| of_daemon(&found.pool, &found.snapshot));
        Ok(RescuePart { about, next, ..answer(part, wanted.dry_run) })
    }
}

/// What is told of a volume of which the engine reads nothing.
fn not_read(found: &FoundVolume) -> ApiError {
    let (view, pool) = (&found.snapshot.view, &found.pool);
    let name = &view.name;
    let why = view.offline.as_deref().unwrap_or("its origin is gone");
    let text = format!(
        "pool {pool} reads nothing of volume {name} ({why}): what the cache holds of it cannot be \
         read while forebayd serves that pool"
    );
    let devices = found.open.devices.iter().filter(|it| it.present).map(|it| it.path.clone());
    let devices = Devices::Paths(devices.collect());
    ApiError::conflict(text).hint(Hint::RescueFrom { volume: name.clone(), devices })
}
