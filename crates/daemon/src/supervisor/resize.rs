//! Volumes that grow with their origins, while they are in use: first the engine, durably, then
//! every front end that shows their size.

use super::guest::{GuestDisk, GuestServer};
use super::listen::Offer;
use super::{COMMAND_TIMEOUT, FoundVolume, Inner, Supervisor, shard_error};
use forebay_api::reply::Done;
use forebay_api::request::VolumeResize;
use forebay_api::size::{Size, human};
use forebay_api::{ApiError, Outcome};
use forebay_engine::{Command, CommandReply};
use forebay_format::BLOCK_SIZE;
use forebay_host::frontend::SECTOR_BYTES;
use forebay_host::frontend::nbd::Export;
use forebay_host::frontend::nbd_kernel::KernelNbd;
use forebay_host::frontend::ublk::UblkDevice;
use forebay_host::loop_device::LoopDevice;
use std::path::PathBuf;
use std::sync::Arc;

impl Supervisor {
    /// Has the engine grow a volume. First it is remembered: what cannot be is not done.
    fn grow(&self, found: &FoundVolume, bytes: u64) -> Result<Outcome, ApiError> {
        let view = &found.snapshot.view;
        let known = self.inner().store.get().volume(&view.name).map(|known| known.bytes);
        self.remember_bytes(&view.name, bytes).map_err(super::nothing_changed)?;
        let reply = found.open.handle.command(Command::Resize(view.id, bytes), COMMAND_TIMEOUT);
        let why = match reply {
            Ok(CommandReply::Changed) => return Ok(Outcome::Changed),
            Ok(CommandReply::Failed(why)) => ApiError::refused(why),
            Ok(_) => return Ok(Outcome::Unchanged),
            Err(error) => shard_error(&found.pool, &error),
        };
        self.remember_bytes(&view.name, known.unwrap_or(view.bytes))?;
        Err(why)
    }

    fn remember_bytes(&self, name: &str, bytes: u64) -> Result<(), ApiError> {
        self.remember(|all| {
            if let Some(volume) = all.volume_mut(name) {
                volume.bytes = bytes;
            }
        })
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
                .action(format!("bring it back first: forebay volume attach {name}"))
        })?;
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
        if bytes > origin {
            let text = format!("the origin of volume {name} has {}, not {will}", human(origin));
            return Err(ApiError::refused(text).action(format!(
                "make the origin larger first, then: forebay volume resize {name}"
            )));
        }
        if bytes < view.bytes {
            let text = format!("volume {name} has {was} and cannot be made smaller");
            return Err(ApiError::refused(text).action(format!(
                "remove it, make the origin smaller, and add it again: forebay volume remove {name}"
            )));
        }
        if wanted.dry_run {
            let text = match bytes == view.bytes {
                true => format!("volume {name} has {was} already"),
                false => format!("would grow volume {name} from {was} to {will}"),
            };
            return Ok(Done::new(Outcome::Planned, text));
        }
        let outcome = self.grow(&found, bytes)?;
        if outcome == Outcome::Changed {
            tracing::info!(pool = found.pool, volume = name.as_str(), bytes, "volume grown");
        }
        // Of one that has its size already too: a front end may have failed to show it.
        let (problems, hints) = self.show_size(&found.pool, name, bytes);
        let mut done = match outcome {
            Outcome::Changed => {
                Done::new(outcome, format!("volume {name} has grown from {was} to {will}"))
            }
            _ => Done::new(outcome, format!("volume {name} has {was} already")),
        };
        done.messages.extend(problems);
        if outcome == Outcome::Changed {
            done.messages.extend(hints);
        }
        done.volume = Some(self.volume(name)?);
        Ok(done)
    }
}

impl Supervisor {
    /// Has every front end of a volume show its new size. Returns what went wrong, and what is to
    /// be done next.
    fn show_size(&self, pool: &str, name: &str, bytes: u64) -> (Vec<String>, Vec<String>) {
        let (mut problems, mut hints) = (Vec::new(), Vec::new());
        let mut note = |path: PathBuf, shown: std::io::Result<()>| {
            let path = path.display();
            match shown {
                Ok(()) => hints.push(format!("grow what is on it, for example: resize2fs {path}")),
                Err(error) => problems.push(format!("{path} still shows the old size: {error}")),
            }
        };
        // The kernel may take its time to answer: not under the lock.
        let Shown { looped, ublk, export, nbd, guest, missing } = self.inner().shown(pool, name);
        if let Some(offer) = missing {
            offer.bytes.grow(bytes);
        }
        if let Some((device, offer)) = looped {
            offer.bytes.grow(bytes);
            note(device.path(), device.resize());
        }
        if let Some((device, offer)) = ublk {
            offer.bytes.grow(bytes);
            note(device.path(), device.resize(bytes));
        }
        if let Some(export) = export {
            export.bytes.grow(bytes);
            match nbd {
                Some(device) => note(device.path(), device.resize(bytes)),
                None => hints.push("clients see it when they connect again".to_string()),
            }
        }
        if let Some((server, offer)) = guest {
            offer.bytes.grow(bytes);
            hints.push(server.tell_size().to_string());
        }
        (problems, hints)
    }
}

/// Two sizes for people, in bytes where they would look the same.
fn two_sizes(a: u64, b: u64) -> (String, String) {
    match human(a) == human(b) && a != b {
        true => (format!("{a} bytes"), format!("{b} bytes")),
        false => (human(a), human(b)),
    }
}

/// The front ends of a volume.
struct Shown {
    looped: Option<(LoopDevice, Offer)>,
    ublk: Option<(UblkDevice, Offer)>,
    export: Option<Arc<Export>>,
    nbd: Option<KernelNbd>,
    guest: Option<(GuestServer, Offer)>,
    /// Of a device that could not be made.
    missing: Option<Offer>,
}

impl Inner {
    fn shown(&self, pool: &str, name: &str) -> Shown {
        let looped = self.devices.get(name);
        let ublk = self.ublk.get(name);
        let open = self.pools.get(pool).and_then(|pool| pool.open.as_ref().ok());
        let nbd = self.nbd.get(name);
        Shown {
            looped: looped.and_then(|it| Some((it.loop_device, it.offer.clone()?))),
            ublk: ublk.and_then(|it| Some((it.device, it.offer.clone()?))),
            export: open.and_then(|open| open.exports.get(name).cloned()),
            nbd: nbd.and_then(|it| KernelNbd::find(it.index, &it.backend)),
            guest: self.guests.get(name).map(GuestDisk::shown),
            missing: self.no_device.get(name).and_then(|missing| missing.offer().cloned()),
        }
    }
}
