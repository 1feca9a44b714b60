//! Making and destroying pools.

use super::Supervisor;
use super::bypass::with_dirty;
use super::late::in_time;
use super::plan::{Wanted, content_of, same_file, whole_pool_on};
use crate::convert::{hex, pool_error, unhex};
use crate::state::{PoolState, State};
use forebay_api::hint::{Bytes, Choice, Devices, Dirty, Flag, When};
use forebay_api::reply::Done;
use forebay_api::request::{Change, PoolCreate};
use forebay_api::told::Paths;
use forebay_api::{ApiError, Hint, Hold, Outcome, Told};
use forebay_engine::{Buf, Witness};
use forebay_format::BLOCK_SIZE;
use forebay_format::layout::CHECKPOINT_OFFSET;
use forebay_host::device::{Access, Content, Device};
use forebay_host::pool::{format_pool, read_pool};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes at the start of a device that are zeroed when its pool is destroyed.
const WIPE_BYTES: u64 = 64 << 20;

/// How a pool came to be there.
pub(super) enum Made {
    /// It was open already.
    WasOpen,
    /// It was on the devices and is open now.
    Opened,
    /// It is new.
    Created,
}

impl Supervisor {
    pub(super) fn pool_create(self: &Arc<Self>, request: &PoolCreate) -> Result<Done, ApiError> {
        let wanted = Wanted {
            name: &request.name,
            devices: &request.devices,
            ram: request.ram.as_deref(),
            force: request.force,
            keep_dirty: request.keep_dirty,
        };
        wanted.check()?;
        wanted.devices.iter().try_for_each(|device| self.check_not_stacked(device))?;
        wanted.devices.iter().try_for_each(|device| self.check_no_origin(device))?;
        if self.is_this_pool(&wanted)? {
            let told = Told::PoolIsOpen { pool: request.name.clone() };
            let mut done = Done::new(Outcome::Unchanged, told);
            done.pool = Some(self.pool(&request.name)?);
            return Ok(done);
        }
        if request.dry_run {
            return self.pool_dry_run(&wanted);
        }
        let made = self.pool_make(&wanted)?;
        let info = self.pool(&request.name)?;
        let (pool, capacity_bytes) = (request.name.clone(), Bytes(info.capacity_bytes));
        let told = match made {
            Made::Opened => Told::PoolOpened { pool, capacity_bytes },
            _ => Told::PoolMade { pool, capacity_bytes },
        };
        let mut done = Done::new(Outcome::Changed, told);
        done.pool = Some(info);
        Ok(done)
    }

    /// Whether exactly this pool is open. Another one of its name, or on its devices, is an error.
    fn is_this_pool(&self, wanted: &Wanted) -> Result<bool, ApiError> {
        let same = |pool: &PoolState| {
            pool.devices.len() == wanted.devices.len()
                && pool.devices.iter().all(|a| wanted.devices.iter().any(|b| same_file(a, b)))
        };
        if let Some(user) = self.pool_using(wanted.devices) {
            if user.name == wanted.name && same(&user) {
                return Ok(self.open_pool(wanted.name).is_ok_and(|open| open.bypass.is_none()));
            }
            let (name, devices) = (&user.name, user.devices.join(" "));
            let text = format!("the pool {name} uses these devices or some of them ({devices})");
            return Err(ApiError::refused(text)
                .hint(Hint::DestroyPool { pool: name.clone(), when: When::NobodyNeeds }));
        }
        if self.inner().pools.contains_key(wanted.name) {
            let text = format!("there is a pool {:?} on other devices", wanted.name);
            return Err(ApiError::conflict(text).hint(Hint::Choose { what: Choice::Name }));
        }
        Ok(false)
    }

    pub(super) fn pool_dry_run(&self, wanted: &Wanted) -> Result<Done, ApiError> {
        if let Some(uuid) = self.there_already(wanted)? {
            drop(self.open_devices(wanted.devices, Access::Exclusive)?);
            let told = Told::WouldOpenPool { pool: wanted.name.to_string() };
            let mut done = Done::new(Outcome::Planned, told);
            if self.witness_of(wanted.name, &uuid)? == Witness::Missing {
                done.told.push(match wanted.keep_dirty {
                    false => Told::AgeUnknown,
                    true => Told::WouldKeepDirty,
                });
            }
            return Ok(done);
        }
        self.check_awaited(wanted.name)?;
        // As for real, for a moment: what is in use is refused now as then.
        let devices = self.open_devices(wanted.devices, Access::Exclusive)?;
        let plan = self.plan(wanted, &devices)?;
        let full = plan.devices.iter().any(|device| !device.holds.is_empty());
        let pool = wanted.name.to_string();
        let told = match (full, wanted.force) {
            (false, _) => Told::WouldMakePool { pool },
            (true, true) => Told::WouldOverwrite { pool },
            (true, false) => Told::WouldBeRefused,
        };
        let mut done = Done::new(Outcome::Planned, told);
        done.plan = Some(plan);
        Ok(done)
    }

    /// Makes or opens the pool, and remembers it.
    pub(super) fn pool_make(self: &Arc<Self>, wanted: &Wanted) -> Result<Made, ApiError> {
        let state = PoolState {
            name: wanted.name.to_string(),
            devices: wanted.devices.to_vec(),
            ram_bytes: wanted.ram_bytes()?,
        };
        self.check_memory()?;
        let there = self.there_already(wanted)?;
        if let (Some(uuid), true) = (&there, wanted.keep_dirty) {
            self.note_witness(wanted.name, uuid, Witness::Accepted)?;
        }
        if there.is_none() {
            self.check_awaited(wanted.name)?;
            let devices = self.open_devices(wanted.devices, Access::Exclusive)?;
            // Before memory: what a device holds matters more to whoever mistyped its name.
            for device in devices.iter() {
                self.check_content(device.path(), wanted.force)?;
            }
            let plan = self.plan(wanted, &devices)?;
            let options = wanted.options(wanted.force);
            let made = in_time(&format!("write the pool {}", wanted.name), move || {
                format_pool(&devices, &options).map_err(|error| pool_error(&error))
            })?;
            let uuid = made.superblocks[0].header.pool_uuid;
            self.note_witness(wanted.name, &uuid, Witness::default())?;
            // One of this name that nobody waits for: should its devices come back, they are old.
            self.give_up(wanted.name, None)?;
            self.remember(|all| all.seen.retain(|seen| seen.name != wanted.name))?;
            tracing::info!(
                pool = wanted.name,
                capacity_bytes = plan.capacity_bytes,
                ram_bytes = plan.ram.total_bytes,
                "pool made"
            );
        }
        let before = self.store.get();
        let is_known = before.seen(&state.name).is_some();
        self.while_opening(&state.name, || {
            self.close_bypass(&state.name)?;
            match is_known {
                true => self.start_known_pool(&state),
                false => {
                    self.start_pool(&state).map_err(|error| self.not_taken(&state, &before, error))
                }
            }
        })?;
        self.remember(|all| {
            all.pools.retain(|pool| pool.name != state.name);
            all.pools.push(state);
        })?;
        Ok(if there.is_some() { Made::Opened } else { Made::Created })
    }

    /// The identity of the pool of this name that is on the devices, unless it is overwritten.
    fn there_already(&self, wanted: &Wanted) -> Result<Option<[u8; 16]>, ApiError> {
        let there = whole_pool_on(wanted.devices)?.filter(|_| !wanted.force);
        Ok(there.filter(|(name, _)| name == wanted.name).map(|(_, uuid)| uuid))
    }

    /// A pool that came from elsewhere, or whose state directory was lost, is not opened.
    fn not_taken(&self, pool: &PoolState, before: &State, error: ApiError) -> ApiError {
        // It comes from elsewhere the next time, too.
        let forgotten = self.remember(|all| {
            all.seen.retain(|seen| seen.name != pool.name);
            all.volumes.retain(|it| it.pool != pool.name || before.volume(&it.name).is_some());
        });
        if let Err(error) = forgotten {
            tracing::warn!("{}", error.message);
        }
        match error.hold {
            Some(Hold::UnknownAge) => error.hint(Hint::CreatePool {
                pool: pool.name.clone(),
                devices: Devices::Paths(pool.devices.clone()),
                dirty: Dirty::Keep,
                when: When::IsNewest,
            }),
            _ => error,
        }
    }

    /// Refuses to make a pool anew of which volumes are waiting for the old one: what only that one
    /// holds would not be looked for any more, and would be taken for new when it is back.
    fn check_awaited(&self, name: &str) -> Result<(), ApiError> {
        let memory = self.store.get();
        let mut awaiting = memory.served_by(name).peekable();
        if awaiting.peek().is_none() {
            return Ok(());
        }
        let names: Vec<&str> = memory.served_by(name).map(|it| it.name.as_str()).collect();
        let text = format!(
            "these devices do not hold the pool {name} that there was, and it has the volumes {}",
            names.join(", ")
        );
        let error = ApiError::refused(text).hint(Hint::CreatePool {
            pool: name.to_string(),
            devices: Devices::AllOfThem,
            dirty: Dirty::Stays,
            when: When::DevicesBack,
        });
        Err(awaiting.fold(error, |error, volume| match volume.may_be_dirty {
            true => with_dirty(error, volume),
            false => error.hint(Hint::remove(&volume.name, When::WithoutIt)),
        }))
    }

    fn check_content(&self, path: &Path, force: bool) -> Result<(), ApiError> {
        let content = content_of(path)?;
        if force || content.is_empty() {
            return Ok(());
        }
        let shown = path.display();
        let error = ApiError::refused(format!("{shown} holds {content}; it was not touched"));
        Err(match content {
            Content::Pool { name, .. } if !name.is_empty() => error
                .hint(Hint::CreatePool {
                    pool: name,
                    devices: Devices::All,
                    dirty: Dirty::Stays,
                    when: When::UseThatPool,
                })
                .hint(Hint::Again { with: Flag::ForceOverwrite }),
            _ => error
                .hint(Hint::LookAtFile { path: shown.to_string() })
                .hint(Hint::Again { with: Flag::ForceOverwrite }),
        })
    }

    pub(super) fn pool_destroy(&self, request: &Change) -> Result<Done, ApiError> {
        let name = &request.name;
        let info = self.pool(name)?;
        if !info.volumes.is_empty() {
            let volumes = info.volumes.join(", ");
            let error = ApiError::refused(format!("pool {name} serves the volumes {volumes}"));
            return Err(info
                .volumes
                .iter()
                .fold(error, |error, volume| error.hint(Hint::remove(volume, When::First))));
        }
        let paths: Vec<String> = info.devices.iter().map(|device| device.path.clone()).collect();
        if request.dry_run {
            let (pool, devices) = (name.clone(), Paths(paths));
            return Ok(Done::new(Outcome::Planned, Told::WouldDestroyPool { pool, devices }));
        }
        self.check_memory()?;
        let opened = self.open_pool(name).ok();
        let is_missing = opened.as_ref().is_none_or(|open| open.bypass.is_some());
        if is_missing || info.devices.iter().any(|device| !device.present) {
            // What is away now is old when it is back.
            self.give_up(name, None)?;
        }
        match &opened {
            Some(open) => self.close_pool(name, open)?,
            None => drop(self.inner().pools.remove(name)),
        }
        if let Some(uuid) = unhex(&info.uuid)
            && let Err(error) = self.note_witness(name, &uuid, Witness::Missing)
        {
            tracing::warn!("{}", error.message);
        }
        self.inner().falls.remove(name);
        self.remember(|all| {
            all.pools.retain(|pool| pool.name != *name);
            all.seen.retain(|seen| seen.name != *name);
        })?;
        if is_missing {
            let told = Told::PoolForgotten { pool: name.clone() };
            return Ok(Done::new(Outcome::Changed, told));
        }
        let (mut wiped, mut failed) = (Vec::new(), Vec::new());
        for device in paths {
            match wipe_device(&device, &info.uuid) {
                Ok(()) => wiped.push(device),
                Err(error) => failed.push(Told::NotWiped { device, why: error.message }),
            }
        }
        tracing::info!(pool = name, "pool destroyed");
        let told = Told::PoolDestroyed { pool: name.clone(), devices: Paths(wiped) };
        let mut done = Done::new(Outcome::Changed, told);
        done.told.extend(failed);
        Ok(done)
    }

    /// Undoes [`Supervisor::pool_make`] of a new pool when what it was made for failed.
    pub(super) fn pool_undo(&self, name: &str) {
        let undone = self.pool_destroy(&Change { name: name.to_string(), ..Change::default() });
        if let Err(error) = undone {
            tracing::warn!(pool = name, "take the new pool off its devices again: {error}");
        }
    }
}

/// Takes a pool off a device, if that is what its path leads to.
fn wipe_device(path: &str, pool: &str) -> Result<(), ApiError> {
    let on_disk = read_pool(&[path.into()], Access::Exclusive);
    let on_disk = on_disk.map_err(|error| ApiError::failed(error.to_string()))?;
    if hex(&on_disk.superblock.header.pool_uuid) != pool {
        return Err(ApiError::failed(format!("{path} holds another pool")));
    }
    on_disk.devices.iter().filter_map(|slot| slot.device.as_ref().ok()).try_for_each(wipe)
}

/// Zeroes both superblock copies, so that nobody takes the device for a pool, and of a small pool
/// the checkpoints too, so that an unused one leaves no trace. What is zero already is not written:
/// it may be a hole, and the file system full.
pub(super) fn wipe(device: &Device) -> Result<(), ApiError> {
    let bytes = device.info().bytes / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
    let mut chunk = Buf::zeroed(CHECKPOINT_OFFSET as usize);
    let mut offset = 0;
    while offset < bytes.min(WIPE_BYTES) {
        let len = (bytes - offset).min(chunk.len() as u64);
        let (file, data) = (device.file_for(offset, len), &mut chunk.bytes_mut()[..len as usize]);
        let wiped = file.read_exact_at(data, offset).and_then(|()| {
            if data.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
            data.fill(0);
            file.write_all_at(data, offset)
        });
        wiped.map_err(|error| wipe_error(device, &error))?;
        offset += len;
    }
    device.file().sync_all().map_err(|error| wipe_error(device, &error))
}

fn wipe_error(device: &Device, error: &std::io::Error) -> ApiError {
    ApiError::failed(format!("wipe {}: {error}", device.path().display()))
}
