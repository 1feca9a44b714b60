//! The one command: pool, volume and export in one step.

use super::plan::{Wanted, same_file, whole_pool_on};
use super::pool::Made;
use super::{Supervisor, fstab};
use crate::state::PoolState;
use forebay_api::hint::Devices;
use forebay_api::reply::Done;
use forebay_api::request::{CacheRequest, VolumeCreate, check_name, name_from_origin};
use forebay_api::{ApiError, Hint, Outcome, Told};
use std::sync::Arc;

impl Supervisor {
    pub(super) fn cache(self: &Arc<Self>, request: &CacheRequest) -> Result<Done, ApiError> {
        let name = request.name.clone().unwrap_or_else(|| name_from_origin(&request.origin));
        check_name(&name).map_err(ApiError::usage)?;
        self.exports.check(request.export)?;
        self.check_paths(request)?;
        let user = self.pool_using(&request.devices);
        if let Some(user) = &user {
            check_part_of(user, &request.devices)?;
        }
        let pool_name = match (&user, whole_pool_on(&request.devices)) {
            (Some(user), _) => user.name.clone(),
            (None, Ok(Some((found, _)))) if !request.force => found,
            _ => self.free_pool_name(&request.devices),
        };
        let wanted = Wanted {
            name: &pool_name,
            devices: &request.devices,
            ram: request.ram.as_deref(),
            force: request.force,
            keep_dirty: false,
        };
        wanted.check()?;
        let volume = VolumeCreate {
            name: name.clone(),
            origin: request.origin.clone(),
            pool: Some(pool_name.clone()),
            mode: request.mode,
            export: request.export,
            dry_run: request.dry_run,
        };
        // What stands against the volume is found before a device is written to.
        let is_there = self.same_volume(&volume)?.is_some();
        if request.dry_run && user.is_some() && is_there {
            return self.volume_create(&volume);
        }
        let mut planned = match &user {
            Some(_) => {
                self.pool_for(Some(&pool_name))?;
                if !is_there {
                    self.check_count(&pool_name)?;
                }
                Done::new(Outcome::Planned, Told::WouldUsePool { pool: pool_name.clone() })
            }
            None => self.pool_dry_run(&wanted)?,
        };
        if !is_there || user.is_none() {
            drop(self.open_origin(&request.origin)?);
        }
        if request.dry_run {
            let origin = request.origin.clone();
            let warnings = fstab::warnings(&origin, &name);
            planned.told.push(Told::WouldPutBefore { origin, volume: name });
            planned.told.extend(warnings);
            return Ok(planned);
        }
        let made = match user {
            Some(_) => Made::WasOpen,
            None => self.pool_make(&wanted)?,
        };
        let mut done = self.volume_create(&volume).inspect_err(|_| {
            if let Made::Created = made {
                self.pool_undo(&pool_name);
            }
        })?;
        if !matches!(made, Made::WasOpen) {
            done.outcome = Outcome::Changed;
        }
        done.pool = Some(self.pool(&pool_name)?);
        Ok(done)
    }

    /// Refuses paths that would be used twice.
    fn check_paths(&self, request: &CacheRequest) -> Result<(), ApiError> {
        for device in &request.devices {
            if same_file(device, &request.origin) {
                let text = format!("{device} cannot be both the origin and its cache");
                return Err(ApiError::usage(text));
            }
        }
        let mut paths = request.devices.iter().chain([&request.origin]);
        paths.try_for_each(|path| self.check_not_stacked(path))?;
        request.devices.iter().try_for_each(|device| self.check_no_origin(device))
    }

    /// A name for a new pool, after its first device.
    fn free_pool_name(&self, devices: &[String]) -> String {
        let base = name_from_origin(devices.first().map_or("pool", String::as_str));
        let inner = self.inner();
        let free = |name: &String| !inner.pools.contains_key(name);
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        std::iter::once(base.clone()).chain(numbered).find(free).expect("numbers do not end")
    }
}

/// Refuses devices of which only some are of the pool: the others would be left out, and who named
/// them would think that they are used.
fn check_part_of(pool: &PoolState, devices: &[String]) -> Result<(), ApiError> {
    let is_part = |device: &&String| pool.devices.iter().any(|own| same_file(own, device));
    let others: Vec<&str> =
        devices.iter().filter(|device| !is_part(device)).map(String::as_str).collect();
    if others.is_empty() {
        return Ok(());
    }
    let (name, own, others) = (&pool.name, pool.devices.join(" "), others.join(", "));
    let text = format!("{others} is no device of the pool {name} ({own}), which takes no others");
    Err(ApiError::refused(text)
        .hint(Hint::CacheWith { devices: Devices::Paths(pool.devices.clone()) })
        .hint(Hint::ReplacePool { pool: name.clone() }))
}
