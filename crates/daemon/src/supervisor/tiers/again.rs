//! Volumes over tiers that are found again on their devices: they were removed, or come from
//! elsewhere.

use super::create::SECTOR;
use super::memory_bytes;
use crate::convert::hex;
use crate::state::{Chosen, MemberState, TieredState, WitnessState};
use crate::supervisor::Supervisor;
use crate::supervisor::late::in_time;
use crate::supervisor::volume::origin_error;
use forebay_api::hint::{Care, Flag};
use forebay_api::reply::Done;
use forebay_api::request::VolumeCreateTiered;
use forebay_api::size::{Size, human};
use forebay_api::told::MissingDevice;
use forebay_api::{ApiError, Hint, Outcome, Told};
use forebay_format::superblock::field_text;
use forebay_format::tier::{EXTENT_SIZE, Superblock, SuperblockBlock};
use forebay_host::origin::tiered::Member;
use forebay_tier::{Assembled, assemble};
use std::sync::Arc;

/// A set that is on devices already.
pub(super) struct Found {
    known: TieredState,
    /// What was chosen for it before, if that is known here.
    chosen: Option<Chosen>,
    /// Its devices that were not named.
    missing: Vec<MissingDevice>,
}

impl Supervisor {
    /// The set of this name that all of the devices belong to.
    pub(super) fn found_again(
        &self,
        wanted: &VolumeCreateTiered,
        devices: &[String],
    ) -> Result<Option<Found>, ApiError> {
        if wanted.force || devices.iter().any(|uri| memory_bytes(uri).is_some()) {
            return Ok(None);
        }
        let Some(found) = superblocks(wanted, devices)? else { return Ok(None) };
        let name = &wanted.name;
        let first = &found[0].block;
        let is_of = |it: &Superblock| {
            it.block.set == first.set && field_text(&it.block.name) == *name && !it.is_ephemeral()
        };
        if !found.iter().all(is_of) {
            return Ok(None);
        }
        check_twins(name, &found, devices)?;
        let Some(assembled) = assemble(&found) else { return Ok(None) };
        check_all_used(name, &assembled, devices)?;
        let block = &assembled.superblock.block;
        let entries = assembled.superblock.members().iter().zip(&assembled.found);
        let entries: Vec<_> = entries.filter(|(entry, _)| entry.is_used()).collect();
        let slots: u64 = entries.iter().map(|(entry, _)| u64::from(entry.slots.get())).sum();
        let (bytes, capacity) = (block.bytes.get(), slots * EXTENT_SIZE);
        if let Some(size) = &wanted.size {
            check_size(name, size, (bytes, capacity))?;
        }
        let state = self.store.get();
        let left = state.left.iter().find(|it| it.set == hex(&block.set));
        let (mut members, mut missing) = (Vec::new(), Vec::new());
        for (entry, number) in entries {
            let uri = match number {
                Some(number) => Some(&devices[*number]),
                None => {
                    let was = left.and_then(|it| it.uris.get(&hex(&entry.uuid)));
                    missing.push(MissingDevice {
                        tier: entry.tier,
                        identity: hex(&entry.uuid),
                        was: was.cloned(),
                    });
                    was
                }
            };
            members.extend(uri.map(|uri| MemberState {
                uri: uri.clone(),
                uuid: hex(&entry.uuid),
                tier: entry.tier,
                use_percent: 100,
                unsettled: false,
            }));
        }
        members.sort_by_key(|it| it.tier);
        if !missing.is_empty() && !wanted.allow_missing {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let text = format!("volume {name} is on these devices, but {}", missing.join(", and "));
            return Err(ApiError::refused(text)
                .hint(Hint::SeeTo { what: Care::MissingTier })
                .hint(Hint::Again { with: Flag::AllowMissing }));
        }
        let mut chosen = left.and_then(|it| it.chosen.clone());
        if let Some(it) = &mut chosen {
            it.placement = wanted.placement.unwrap_or(it.placement);
        }
        let known = known_again(wanted, chosen.clone().unwrap_or_default(), (block, members));
        let known = TieredState { overcommit: known.overcommit || bytes > capacity, ..known };
        Ok(Some(Found { known, chosen, missing }))
    }

    /// Serves a set that is on the devices already.
    pub(super) fn adopt(
        self: &Arc<Self>,
        wanted: &VolumeCreateTiered,
        pool: Option<String>,
        Found { known, chosen, missing }: Found,
    ) -> Result<Done, ApiError> {
        let name = &wanted.name;
        let settings = match &chosen {
            Some(chosen) => chosen.choices().map(|chosen| Told::AsBefore { chosen }),
            None => Some(Told::ChosenUnknown { volume: name.clone() }),
        };
        let lacks = missing.into_iter().map(|missing| Told::Lacks { missing });
        if wanted.dry_run {
            let told = Told::WouldServe { volume: name.clone() };
            let mut planned = Done::new(Outcome::Planned, told);
            planned.told.extend(lacks);
            planned.told.extend(settings);
            return Ok(planned);
        }
        self.check_memory()?;
        self.add_over(wanted, pool, known)?;
        let mut done = self.how_to_use(name, false)?;
        done.outcome = Outcome::Changed;
        let first = Told::ServedAgain { volume: name.clone() };
        done.told.put(0, [first].into_iter().chain(lacks).chain(settings));
        Ok(done)
    }
}

/// What is remembered of a set that is found again: what was chosen for it before, and what is
/// asked for now.
fn known_again(
    wanted: &VolumeCreateTiered,
    chosen: Chosen,
    (block, members): (&SuperblockBlock, Vec<MemberState>),
) -> TieredState {
    let Chosen { overcommit, placement, rate, pins, paused, window } = chosen;
    TieredState {
        name: wanted.name.clone(),
        set: hex(&block.set),
        members,
        overcommit: overcommit || wanted.overcommit,
        overcommit_lent: false,
        placement: wanted.placement.unwrap_or(placement),
        rate,
        pins,
        paused,
        window,
        boot: None,
        emptied: None,
        witness: WitnessState::default(),
    }
}

/// The superblocks of all devices; `None` if one has none.
fn superblocks(
    wanted: &VolumeCreateTiered,
    devices: &[String],
) -> Result<Option<Vec<Superblock>>, ApiError> {
    let devices = devices.to_vec();
    in_time(&format!("look at the devices of {}", wanted.name), move || {
        let look = |uri: &String| {
            let member = Member::open(uri).map_err(|error| origin_error(uri, &error))?;
            member.superblock().map_err(|error| origin_error(uri, &error.into()))
        };
        devices.iter().map(look).collect()
    })
}

/// Refuses two devices that say that they are the same one: nobody can tell which is right.
fn check_twins(name: &str, found: &[Superblock], devices: &[String]) -> Result<(), ApiError> {
    let own = |it: &Superblock| it.members().get(usize::from(it.block.member)).map(|it| it.uuid);
    for (number, superblock) in found.iter().enumerate() {
        let twin = found[..number].iter().position(|it| own(it) == own(superblock));
        if let Some(twin) = twin {
            let text = format!(
                "{} and {} are the same device of volume {name}: one is a copy of the other",
                devices[twin], devices[number]
            );
            return Err(ApiError::refused(text).hint(Hint::SeeTo { what: Care::Twin }));
        }
    }
    Ok(())
}

/// Refuses a device that the others know better than it knows itself.
fn check_all_used(name: &str, set: &Assembled, devices: &[String]) -> Result<(), ApiError> {
    let is_used = |given: &usize| set.found.contains(&Some(*given));
    let Some(other) = (0..devices.len()).find(|given| !is_used(given)) else { return Ok(()) };
    let device = &devices[other];
    let text = format!("{device} is no device of volume {name} any more, or an older copy of one");
    Err(ApiError::refused(text).hint(Hint::SeeTo { what: Care::Twin }))
}

/// Refuses a size that a volume which is there does not have; `capacity` is what shares are of.
pub(super) fn check_size(
    name: &str,
    size: &str,
    (bytes, capacity): (u64, u64),
) -> Result<(), ApiError> {
    let size = size.parse::<Size>().map_err(ApiError::usage)?.of(capacity) / SECTOR * SECTOR;
    if size == bytes {
        return Ok(());
    }
    let text = format!("volume {name} is there, and has {}, not {}", human(bytes), human(size));
    Err(ApiError::refused(text).hint(Hint::Grow { volume: name.to_string() }))
}
