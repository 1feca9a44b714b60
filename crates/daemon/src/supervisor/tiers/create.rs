//! Making volumes over tiers: everything that stands against one is told before anything is
//! written.

use super::again::check_size;
use super::holds::what_is_lost;
use super::{Given, NewTiers, memory_bytes};
use crate::state::{TieredState, own_pool};
use crate::supervisor::Supervisor;
use crate::supervisor::late::in_time;
use crate::supervisor::plan::{file_of, same_file};
use crate::supervisor::volume::origin_error;
use forebay_api::hint::{Bytes, Choice, Flag, When};
use forebay_api::reply::{Done, State};
use forebay_api::request::{
    ChangedOrigin, VolumeAttach, VolumeCreate, VolumeCreateTiered, check_name,
};
use forebay_api::size::{Size, human};
use forebay_api::tiers::SCHEME;
use forebay_api::told::{Ephemeral, Names, UsePercent};
use forebay_api::{ApiError, ErrorKind, Hint, Mode, Outcome, Told};
use forebay_format::tier::{MEMBERS_MAX, TIERS_MAX};
use forebay_host::origin::tiered::NewTiered;
use std::sync::Arc;

/// What the size of a volume is a multiple of, in bytes.
pub(super) const SECTOR: u64 = 512;

impl Supervisor {
    pub(in crate::supervisor) fn tiered_create(
        self: &Arc<Self>,
        wanted: &VolumeCreateTiered,
    ) -> Result<Done, ApiError> {
        check_name(&wanted.name).map_err(ApiError::usage)?;
        self.exports.check(wanted.export)?;
        let devices = check_words(wanted)?;
        if let Some(done) = self.is_this_tiered(wanted)? {
            return Ok(done);
        }
        devices.iter().try_for_each(|uri| self.check_free(uri))?;
        let pool = match &wanted.pool {
            Some(pool) => {
                let pool = self.pool_for(Some(pool))?;
                self.check_count(&pool)?;
                Some(pool)
            }
            None => None,
        };
        if let Some(found) = self.found_again(wanted, &devices)? {
            return self.adopt(wanted, pool, found);
        }
        let mut destroys = None;
        match wanted.force {
            true => destroys = what_is_lost(&devices)?,
            false => devices.iter().try_for_each(|uri| self.check_empty(uri, &devices))?,
        }
        self.check_memory_of(&devices)?;
        let new = plan_of(wanted)?;
        if let (true, Some(number)) = (wanted.durable, new.planned.volatile().next()) {
            return Err(not_durable(new.uri(number)));
        }
        check_map(new.planned.map_bytes(), self.tiers_left_bytes())?;
        let asks = asks_of(&wanted.name, &new);
        if wanted.dry_run {
            let mut planned = Done::new(Outcome::Planned, would_make(wanted, &new));
            planned.told.extend(device_lines(&new));
            planned.asks = destroys.into_iter().chain(asks).collect();
            return Ok(planned);
        }
        if let (Some(why), false) = (&asks, wanted.accept_ephemeral) {
            return Err(ApiError::refused(why.to_string()).hint(Hint::Again { with: Flag::Yes }));
        }
        self.check_memory()?;
        let (supervisor, name) = (Arc::clone(self), wanted.name.clone());
        let placement = wanted.placement.unwrap_or_default();
        let made = in_time(&format!("make the tiers of {name}"), move || {
            let made = supervisor.make_tiers(&name, new, placement);
            made.map(|(known, _)| known).map_err(|error| origin_error(&name, &error))
        })?;
        self.add_over(wanted, pool, made)?;
        let mut done = self.how_to_use(&wanted.name, true)?;
        done.outcome = Outcome::Changed;
        Ok(done)
    }

    /// Remembers the tiers of a volume, and serves it.
    pub(super) fn add_over(
        self: &Arc<Self>,
        wanted: &VolumeCreateTiered,
        pool: Option<String>,
        known: TieredState,
    ) -> Result<(), ApiError> {
        let name = &wanted.name;
        self.remember(|all| {
            all.tiered.retain(|it| it.name != *name);
            all.left.retain(|it| it.set != known.set);
            all.tiered.push(known);
        })?;
        let has_pool = pool.is_some();
        let pool = pool.unwrap_or_else(|| own_pool(name));
        let request = VolumeCreate {
            name: name.clone(),
            origin: format!("{SCHEME}{name}"),
            pool: Some(pool.clone()),
            mode: Some(match has_pool {
                true => wanted.mode.unwrap_or_default(),
                false => Mode::PassThrough,
            }),
            export: wanted.export,
            dry_run: false,
        };
        let added = match has_pool {
            true => self.volume_add(&request, &pool),
            false => self.open_own(name).and_then(|()| self.volume_add(&request, &pool)),
        };
        added.inspect_err(|_| {
            if !has_pool {
                self.close_own(name);
            }
            self.memories.let_go(name, |_| false);
            if let Err(error) = self.remember(|all| all.tiered.retain(|it| it.name != *name)) {
                tracing::warn!(volume = name.as_str(), "{}", error.message);
            }
        })
    }

    /// Serves a volume from its own devices, if these are those, under the names that they have
    /// now.
    fn are_own_devices(
        self: &Arc<Self>,
        wanted: &VolumeCreateTiered,
    ) -> Result<Option<Done>, ApiError> {
        let state = self.store.get();
        let Some(known) = state.tiers_of(&wanted.name).filter(|_| !wanted.force) else {
            return Ok(None);
        };
        let devices: Vec<String> = wanted.tiers.iter().flatten().cloned().collect();
        let told = self.take_names_over(known, &devices, wanted.dry_run)?;
        let Some(told) = told else { return Ok(None) };
        if wanted.dry_run {
            let would = Told::WouldServe { volume: wanted.name.clone() };
            let mut planned = Done::new(Outcome::Planned, would);
            planned.told.extend(told);
            return Ok(Some(planned));
        }
        let (name, changed) = (wanted.name.clone(), ChangedOrigin::Refuse);
        let mut done =
            self.volume_attach(&VolumeAttach { name, changed, origin: None, dry_run: false })?;
        done.outcome = Outcome::Changed;
        done.told.put(0, told);
        Ok(Some(done))
    }

    /// What there is to say when exactly this volume is there. Another one of its name is an error.
    fn is_this_tiered(
        self: &Arc<Self>,
        wanted: &VolumeCreateTiered,
    ) -> Result<Option<Done>, ApiError> {
        let name = &wanted.name;
        let Some(there) = self.volumes().into_iter().find(|volume| volume.name == *name) else {
            return Ok(None);
        };
        let state = self.store.get();
        let devices: Vec<&String> = wanted.tiers.iter().flatten().collect();
        let is_same = state.tiers_of(name).is_some_and(|known| {
            known.members.len() == devices.len()
                && known.members.iter().zip(devices).all(|(it, uri)| same_file(&it.uri, uri))
        });
        if !is_same && let Some(done) = self.are_own_devices(wanted)? {
            return Ok(Some(done));
        }
        if !is_same {
            let text = format!("there is a volume {name:?} on {}", there.origin);
            return Err(ApiError::conflict(text).hint(Hint::Choose { what: Choice::Name }));
        }
        if let (Some(tiers), Some(size)) = (&there.tiers, &wanted.size) {
            check_size(name, size, (there.bytes, tiers.capacity_bytes))
                .map_err(|error| ApiError { kind: ErrorKind::Failed, ..error })?;
        }
        if matches!(there.state, State::Detached | State::Offline) {
            let text = format!("volume {name} is there, and not served");
            return Err(ApiError::conflict(text).hint(Hint::attach(name, When::BringBack)));
        }
        if wanted.dry_run {
            let told = Told::IsThere { volume: name.clone() };
            return Ok(Some(Done::new(Outcome::Planned, told)));
        }
        let mut done = self.how_to_use(name, false)?;
        done.outcome = Outcome::Unchanged;
        Ok(Some(done))
    }

    /// Refuses a device that something of ours uses.
    pub(super) fn check_free(&self, uri: &str) -> Result<(), ApiError> {
        if memory_bytes(uri).is_some() {
            return Ok(());
        }
        let path = file_of(uri);
        self.check_not_stacked(path)?;
        self.check_no_origin(path)?;
        match self.pool_using(&[path.to_string()]) {
            None => Ok(()),
            Some(pool) => {
                let text = format!("{path} is a cache device of the pool {}", pool.name);
                Err(ApiError::refused(text).hint(Hint::Choose { what: Choice::Device }))
            }
        }
    }

    /// Refuses memory that is not there.
    pub(super) fn check_memory_of(&self, devices: &[String]) -> Result<(), ApiError> {
        let sizes = devices.iter().filter_map(|uri| memory_bytes(uri)?.ok());
        let wanted: u64 = sizes.sum();
        let left = self.tiers_left_bytes();
        if wanted <= left {
            return Ok(());
        }
        let there = if self.memory.is_limited { "its control group allows" } else { "there is" };
        let text = format!(
            "tiers of {} of memory are wanted, and {} can be given to them: {there} {}, of which \
             {} is for pools, clients and the daemon itself{}",
            human(wanted),
            human(left),
            human(self.memory.there_bytes),
            human(self.memory.there_bytes - left - self.memories.bytes()),
            match self.memories.bytes() {
                0 => String::new(),
                bytes => format!(", and {} for other tiers", human(bytes)),
            }
        );
        Err(ApiError::refused(text).hint(Hint::Choose { what: Choice::LessMemory }))
    }
}

/// Refuses a volume whose map has no room in memory.
fn check_map(needed: u64, left: u64) -> Result<(), ApiError> {
    if needed <= left {
        return Ok(());
    }
    let (needed, left) = (human(needed), human(left));
    let text = format!(
        "the map of so large a volume takes {needed} of memory, and {left} can be given to it"
    );
    Err(ApiError::refused(text).hint(Hint::Choose { what: Choice::SmallerVolume }))
}

/// What can be said of a request without a look at anything. All its devices are returned.
fn check_words(wanted: &VolumeCreateTiered) -> Result<Vec<String>, ApiError> {
    let devices: Vec<String> = wanted.tiers.iter().flatten().cloned().collect();
    let (tiers, count) = (wanted.tiers.len(), devices.len());
    if !(1..=usize::from(TIERS_MAX)).contains(&tiers) || wanted.tiers.iter().any(Vec::is_empty) {
        let text = format!("a volume has 1 to {TIERS_MAX} tiers, and here are {tiers}");
        return Err(ApiError::usage(text));
    }
    if count > MEMBERS_MAX {
        let text = format!("the tiers of a volume have {MEMBERS_MAX} devices at most, not {count}");
        return Err(ApiError::usage(text));
    }
    if !(1..=100).contains(&wanted.use_percent.unwrap_or(100)) {
        return Err(ApiError::usage("of a device 1% to 100% are used"));
    }
    if wanted.pool.is_none() && wanted.mode.is_some() {
        let text = "a volume without a cache has no mode; give --pool, too";
        return Err(ApiError::usage(text));
    }
    for (index, uri) in devices.iter().enumerate() {
        match memory_bytes(uri) {
            Some(Err(why)) => return Err(ApiError::usage(why)),
            Some(Ok(_)) if wanted.durable => return Err(not_durable(uri)),
            Some(Ok(_)) => {}
            None => {
                let path = file_of(uri);
                if !path.starts_with('/') {
                    return Err(ApiError::usage(format!("the path {path:?} is not absolute")));
                }
                if devices[..index].iter().any(|other| same_file(file_of(other), path)) {
                    return Err(ApiError::usage(format!("the device {path} is named twice")));
                }
            }
        }
    }
    Ok(devices)
}

fn not_durable(uri: &str) -> ApiError {
    let text = format!("{uri} does not outlive the machine, and so no volume with it");
    ApiError::usage(text).hint(Hint::Choose { what: Choice::RamAbove })
}

/// What is asked for, planned on open devices.
fn plan_of(wanted: &VolumeCreateTiered) -> Result<NewTiers, ApiError> {
    let use_percent = wanted.use_percent.unwrap_or(100);
    let tiers = (0..).zip(&wanted.tiers);
    let given = tiers.flat_map(|(tier, uris)| {
        uris.iter().map(move |uri| Given {
            uri: uri.clone(),
            tier,
            use_percent: if memory_bytes(uri).is_some() { 100 } else { use_percent },
        })
    });
    let given: Vec<Given> = given.collect();
    let size = wanted.size.as_deref().map(str::parse::<Size>).transpose();
    let size = size.map_err(ApiError::usage)?;
    let spec = NewTiered {
        name: wanted.name.clone(),
        bytes: match size {
            Some(Size::Bytes(bytes)) => Some(bytes / SECTOR * SECTOR),
            _ => None,
        },
        overcommit: wanted.overcommit,
    };
    let name = wanted.name.clone();
    in_time(&format!("open the tiers of {name}"), move || {
        let of = |(uri, error): (String, _)| match uri.is_empty() {
            true => origin_error(&name, &error),
            false => origin_error(&uri, &error),
        };
        let planned = NewTiers::plan(&spec, given).map_err(of)?;
        let Some(share) = size.filter(|size| matches!(size, Size::PerMille(_))) else {
            return Ok(planned);
        };
        let bytes = Some(share.of(planned.planned.bytes()) / SECTOR * SECTOR);
        let given = planned.given_again();
        drop(planned);
        NewTiers::plan(&NewTiered { bytes, ..spec }, given).map_err(of)
    })
}

/// What would be risked.
fn asks_of(name: &str, new: &NewTiers) -> Option<Told> {
    let volatile = new.planned.volatile().map(|number| new.uri(number).to_string());
    let volatile: Vec<String> = volatile.collect();
    let (volume, devices) = (name.to_string(), Names(volatile));
    (!devices.0.is_empty()).then_some(Told::EndsWithMachine { volume, devices })
}

fn would_make(wanted: &VolumeCreateTiered, new: &NewTiers) -> Told {
    Told::WouldMakeTiers {
        volume: wanted.name.clone(),
        size_bytes: Bytes(new.planned.bytes()),
        tiers: wanted.tiers.len(),
        placement: wanted.placement.unwrap_or_default(),
        ephemeral: Ephemeral(new.planned.is_ephemeral()),
    }
}

fn device_lines(new: &NewTiers) -> impl Iterator<Item = Told> {
    new.devices().map(|(given, bytes)| Told::TierDevice {
        tier: given.tier,
        device: given.uri.clone(),
        data_bytes: Bytes(bytes),
        use_percent: UsePercent(given.use_percent),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume of 100 TiB on small files, in a control group of 512 MiB, had the daemon killed.
    #[test]
    fn a_map_that_has_no_room_in_memory_is_refused() {
        assert!(check_map(1600 << 20, 2 << 30).is_ok());
        let refused = check_map(1600 << 20, 300 << 20).unwrap_err();
        assert!(refused.message.contains("takes 1.6G of memory, and 300M"), "{refused:?}");
    }
}
