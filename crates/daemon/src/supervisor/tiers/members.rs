//! Devices that join the tiers of a volume, and that leave them.

use super::change::refused;
use super::give_back;
use super::health::check_not_stuck;
use super::holds::what_is_lost;
use super::memory_bytes;
use super::record::numbers_of;
use super::show::pins_that_wait;
use crate::convert::{hex, random_uuid};
use crate::state::MemberState;
use crate::supervisor::late::in_time;
use crate::supervisor::plan::{file_of, same_file};
use crate::supervisor::pool::wipe;
use crate::supervisor::volume::origin_error;
use crate::supervisor::{FoundVolume, Supervisor, shard_error};
use forebay_api::hint::{Bytes, Flag};
use forebay_api::reply::Done;
use forebay_api::request::{TierAdd, TierRemove};
use forebay_api::tiers::{DeviceState, TierAt, TierDevice, TierPart, TiersInfo};
use forebay_api::told::{IsHere, Names, PartInFull, Renumbered};
use forebay_api::{ApiError, ErrorKind, Hint, Outcome, Told};
use forebay_format::BLOCK_SIZE;
use forebay_format::tier::{EXTENT_SIZE, TIERS_MAX};
use forebay_host::origin::tiered::{Member, NewDevice, TiersSnapshot, Unused, share_of};
use forebay_tier::{At, Command, CommandReply, MemberId, Refusal};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Supervisor {
    pub(in crate::supervisor) fn tier_add(
        self: &Arc<Self>,
        wanted: &TierAdd,
    ) -> Result<Done, ApiError> {
        let (name, device) = (&wanted.name, &wanted.device);
        let (found, now) = self.find_tiers(name)?;
        self.drop_strays(name, &now);
        let info = self.tiers_info(name, &now);
        if let Some(there) = info.devices.iter().find(|it| same_file(&it.device, device)) {
            return is_there(name, &info, (there, wanted.at));
        }
        let use_percent = wanted.use_percent.unwrap_or(100);
        if !(1..=100).contains(&use_percent) {
            return Err(ApiError::usage("of a device 1% to 100% are used"));
        }
        let (tier, is_closed_up) = tier_for(&info, wanted.at)?;
        check_not_stuck(&info)?;
        self.check_new_device(device, wanted.force)?;
        let (member, memory) = open_new(device)?;
        if member.is_volatile() && !now.is_ephemeral {
            return Err(refused(forebay_tier::Refusal::Volatile));
        }
        let used = share_of(member.bytes(), use_percent);
        let room = used.saturating_sub(now.slots_offset) / EXTENT_SIZE * EXTENT_SIZE;
        let data_bytes = Bytes(room);
        if wanted.dry_run {
            let (device, volume) = (device.clone(), name.clone());
            let told = Told::WouldAddDevice { device, data_bytes, volume, tier };
            let mut planned = Done::new(Outcome::Planned, told);
            if wanted.force {
                planned.asks.extend(what_is_lost(std::slice::from_ref(&wanted.device))?);
            }
            return Ok(planned);
        }
        if is_closed_up {
            self.close_up(&found)?;
        }
        let uuid = random_uuid()?;
        let at = match wanted.at {
            TierAt::Before(tier) => At::Before(tier),
            TierAt::Tier(_) | TierAt::Slowest => At::Join(tier),
        };
        // Memory that is remembered and not kept would be taken for lost, and the volume with it.
        if let Some((file, bytes)) = memory {
            self.memories.keep(name, &hex(&uuid), file, bytes);
        }
        // Remembered first: a device that is remembered and is no member is dropped.
        let uri = device.clone();
        let known = MemberState { uri, uuid: hex(&uuid), tier, use_percent, unsettled: true };
        self.remember_member(name, at, known)
            .inspect_err(|_| self.memories.let_go(name, |member| member != hex(&uuid)))?;
        let unused = member.unused(use_percent);
        let new = NewDevice { uuid, use_percent, at };
        let id = found.snapshot.view.id;
        let answer = found.open.handle.add_member(id, (member, new));
        let answer = answer.map_err(|error| shard_error(&found.pool, &error))?;
        if let CommandReply::Refused(why) = self.answer_of_tiers(&found, &answer)? {
            self.forget_member(name, &hex(&uuid), Some(at))?;
            return Err(refused(why));
        }
        self.settle_members(name, &[hex(&uuid)]);
        unused.into_iter().for_each(give_back);
        let (device, volume) = (device.clone(), name.clone());
        let told = Told::DeviceAdded { volume, data_bytes, device, tier };
        let mut done = Done::new(Outcome::Changed, told);
        done.told.extend(self.how_to_grow(name)?);
        Ok(done)
    }

    /// How to make use of what the tiers of a volume hold, if it can have more of that.
    fn how_to_grow(&self, name: &str) -> Result<Vec<Told>, ApiError> {
        let (found, now) = self.find_tiers(name)?;
        let (has, capacity) =
            (found.snapshot.view.bytes, self.tiers_info(name, &now).capacity_bytes);
        let mut told = Vec::new();
        let most = capacity.min(now.bytes_max);
        if has < most {
            told.push(Told::ToUseIt { volume: name.to_string(), size_mib: most >> 20 });
        }
        if has < now.bytes_max {
            told.extend(self.what_the_map_cuts(name, &now, most));
        }
        Ok(told)
    }

    /// What is told of a volume that has `bytes`, and would have more but for its map.
    pub(in crate::supervisor) fn what_the_map_cuts(
        &self,
        name: &str,
        now: &TiersSnapshot,
        bytes: u64,
    ) -> Option<Told> {
        let capacity = self.tiers_info(name, now).capacity_bytes;
        (bytes == now.bytes_max && bytes < capacity)
            .then_some(Told::MapIsFull { room_bytes: Bytes(now.bytes_max) })
    }

    /// Refuses a device that somebody uses, or that holds something.
    fn check_new_device(&self, device: &str, force: bool) -> Result<(), ApiError> {
        match memory_bytes(device) {
            Some(Err(why)) => return Err(ApiError::usage(why)),
            Some(Ok(_)) => {}
            None if !file_of(device).starts_with('/') => {
                return Err(ApiError::usage(format!("the path {device:?} is not absolute")));
            }
            None => {}
        }
        self.check_free(device)?;
        if !force {
            self.check_empty(device, &[device.to_string()])?;
        }
        self.check_memory_of(&[device.to_string()])
    }

    pub(in crate::supervisor) fn tier_remove(&self, wanted: &TierRemove) -> Result<Done, ApiError> {
        let name = &wanted.name;
        let (found, now) = self.find_tiers(name)?;
        let strays = self.drop_strays(name, &now);
        if let Some(stray) = strays.into_iter().find(|it| same_file(&it.uri, &wanted.tier)) {
            let (device, volume) = (stray.uri, name.clone());
            return Ok(Done::new(Outcome::Changed, Told::IsNoDevice { device, volume }));
        }
        if wanted.drop_lost {
            return self.give_up_device(wanted);
        }
        let tier = self.named_part(name, &now, &wanted.tier)?;
        self.check_removal(&found, &tier)?;
        let larger = self.check_emptying(&found, &tier, wanted.overcommit)?;
        // Whoever empties it first wants to know before that.
        self.check_memory()?;
        let pins = self.pins_without(name, &now, &tier);
        if wanted.dry_run {
            let told = Told::WouldRemoveTier { part: PartInFull(tier.part) };
            let mut planned = Done::new(Outcome::Planned, told);
            planned.told.extend(larger);
            planned.told.extend(pins);
            return Ok(planned);
        }
        let members = tier.members;
        let uuids: Vec<String> =
            members.iter().map(|it| hex(&now.uuids[usize::from(it.0)])).collect();
        // That of one that is being emptied ends with that.
        let is_lent = larger.is_some() && self.allow_overcommit(name)?;
        // By what is open, and not by a name: that may lead to something else by now.
        let id = found.snapshot.view.id;
        let leave = members.clone();
        let own = found.open.handle.look_at_tiers(id, move |it, _| it.devices_of(&leave));
        let own = own.map_err(|error| shard_error(&found.pool, &error))?.unwrap_or_default();
        self.unsettle_members(name, &uuids)?;
        if let Err(error) = self.ask_tiers(&found, Command::Remove(members)) {
            if error.kind != ErrorKind::Failed {
                self.settle_members(name, &uuids);
            }
            if is_lent {
                self.end_overcommit(name, false)?;
            }
            return Err(error);
        }
        // Without it the volume is larger than what is left, cancelled or not.
        self.end_overcommit(name, true)?;
        uuids.iter().try_for_each(|uuid| self.forget_member(name, uuid, None))?;
        let TierPart { tier, devices, whole_tier } = tier.part;
        let (volume, devices) = (name.clone(), Names(devices));
        let told = match whole_tier {
            true => Told::TierRemoved { tier, volume, devices },
            false => Told::DevicesRemoved { tier, volume, devices },
        };
        let mut done = Done::new(Outcome::Changed, told);
        done.told.extend(self.close_up(&found)?);
        done.told.extend(larger);
        done.told.extend(pins);
        for device in own {
            // Whatever was not trimmed when its extents left, and the map that it may have held.
            Unused::all(&device).into_iter().for_each(give_back);
            if let Err(error) = wipe(&device) {
                let device = device.path().display().to_string();
                done.told.push(Told::NotWiped { device, why: error.message });
            }
        }
        Ok(done)
    }

    /// Has the numbers of tiers follow each other, and tells which are others now. A tier without
    /// devices has no number; without this, tiers that come and go would use them all up.
    fn close_up(&self, found: &FoundVolume) -> Result<Option<Told>, ApiError> {
        let name = &found.snapshot.view.name;
        let before = numbers_of(&self.find_tiers(name)?.1);
        if let Err(error) = self.ask_tiers(found, Command::CloseUp) {
            // They are closed up when the next tier has gone.
            tracing::warn!(volume = name.as_str(), "numbers of tiers: {}", error.message);
        }
        let (_, now) = self.find_tiers(name)?;
        if let Some(known) = self.store.get().tiers_of(name) {
            self.follow_set(known, &now);
        }
        let now = numbers_of(&now);
        let pairs = before.iter().filter_map(|(uuid, tier)| Some((*tier, *now.get(uuid)?)));
        let changed: BTreeSet<(u8, u8)> = pairs.filter(|(was, is)| was != is).collect();
        let tiers = Renumbered(changed.into_iter().collect());
        Ok((!tiers.0.is_empty()).then_some(Told::Renumbered { tiers }))
    }

    /// Gives up a device that will never be back.
    fn give_up_device(&self, wanted: &TierRemove) -> Result<Done, ApiError> {
        let name = &wanted.name;
        let (found, now, info) = self.tiers_when_sure(name)?;
        let is_meant = |it: &&TierDevice| {
            same_file(&it.device, &wanted.tier) || wanted.tier.parse() == Ok(it.tier)
        };
        let meant: Vec<&TierDevice> = info.devices.iter().filter(is_meant).collect();
        // One that is missing rather than one that only fails.
        let order =
            [DeviceState::Missing, DeviceState::Cut, DeviceState::Failing, DeviceState::NoAnswer];
        let of_state = |state: &DeviceState| meant.iter().find(|it| it.state == *state);
        let Some(&device) = order.iter().find_map(of_state) else {
            return Err(not_lost(name, &wanted.tier, &meant));
        };
        let uuid_of = |it: &[u8; 16]| self.device_name(name, it) == device.device;
        let Some(number) = now.uuids.iter().position(uuid_of) else {
            return Err(ApiError::failed(format!("{} is not known by its name", device.device)));
        };
        let uuid = hex(&now.uuids[number]);
        let lost_bytes = Bytes(device.used_bytes);
        if wanted.dry_run {
            let is_here = match device.state {
                DeviceState::Cut => IsHere::Cut,
                DeviceState::Failing => IsHere::Failing,
                DeviceState::NoAnswer => IsHere::NoAnswer,
                DeviceState::Missing | DeviceState::Ok | DeviceState::Leaving => IsHere::Missing,
            };
            let device = device.device.clone();
            let told = Told::WouldGiveUpDevice { device, is_here, lost_bytes };
            return Ok(Done::new(Outcome::Planned, told));
        }
        self.check_memory()?;
        let lost_before = now.view.lost_blocks;
        match self.tell_tiers_to(&found, Command::GiveUp(MemberId(number as u8)))? {
            CommandReply::Refused(Refusal::IsHere) => return Err(is_here(name, device)),
            CommandReply::Refused(why) => return Err(refused(why)),
            CommandReply::Changed | CommandReply::Unchanged | CommandReply::Added(_) => {}
        }
        self.forget_member(name, &uuid, None)?;
        // What had just moved there may be where it was before.
        let view = self.find_tiers(name)?.1.view;
        let lives = view.members.get(number).map_or(0, |it| u64::from(it.extents) * EXTENT_SIZE);
        let blocks = view.lost_blocks.saturating_sub(lost_before) * BLOCK_SIZE as u64;
        let lost_bytes = Bytes(lives + blocks);
        let (device, volume) = (device.device.clone(), name.clone());
        let told = Told::DeviceGivenUp { device, volume, lost_bytes };
        let mut done = Done::new(Outcome::Changed, told);
        done.told.extend(self.close_up(&found)?);
        let info = self.tiers_info(name, &self.find_tiers(name)?.1);
        if let Some(known) = self.store.get().tiers_of(name) {
            let waits = pins_that_wait(known, &info.devices).into_iter();
            done.told.extend(waits.map(|it| Told::PinsWait { why: it.reason }));
        }
        let rest = info.capacity_bytes;
        let bytes = found.snapshot.view.bytes;
        if bytes > rest {
            let (volume, size_bytes, rest_bytes) = (name.clone(), Bytes(bytes), Bytes(rest));
            done.told.push(Told::LargerThanTiers { volume, size_bytes, rest_bytes });
        }
        Ok(done)
    }
}

/// What is told of a device that is to be added and is there: that it is, or that it is elsewhere.
fn is_there(
    name: &str,
    info: &TiersInfo,
    (there, at): (&TierDevice, TierAt),
) -> Result<Done, ApiError> {
    let (device, tier) = (&there.device, there.tier);
    let beside = info.devices.iter().filter(|it| it.tier == tier).count() > 1;
    let is_so = match at {
        TierAt::Slowest => true,
        TierAt::Tier(wanted) => wanted == tier,
        TierAt::Before(wanted) => wanted == tier && !beside,
    };
    if is_so {
        let (device, volume) = (device.clone(), name.to_string());
        return Ok(Done::new(Outcome::Unchanged, Told::DeviceIsThere { device, volume }));
    }
    let text = format!("{device} is on tier {tier} of volume {name}, and is not put elsewhere");
    Err(ApiError::refused(text))
}

/// What is wrong with a device that is here.
fn how_it_is_here(device: &TierDevice) -> Option<&'static str> {
    match device.state {
        DeviceState::Cut => Some("was cut"),
        DeviceState::Failing => Some("fails"),
        DeviceState::NoAnswer => Some("does not answer"),
        DeviceState::Missing | DeviceState::Ok | DeviceState::Leaving => None,
    }
}

/// Refuses to give up a device that may be there still: what to do first.
fn is_here(volume: &str, device: &TierDevice) -> ApiError {
    let how = how_it_is_here(device).unwrap_or("answers");
    let device = device.device.clone();
    let text = format!("{device} is here and {how}: what is here is not given up");
    ApiError::refused(text).hint(Hint::TakeAwayTier { volume: volume.to_string(), device })
}

/// Refuses to give up what is neither missing nor fails.
fn not_lost(volume: &str, named: &str, meant: &[&TierDevice]) -> ApiError {
    let Some(device) = meant.first().map(|it| it.device.clone()) else {
        return ApiError::usage(format!("volume {volume} has no tier or device {named}"));
    };
    let text =
        format!("{device} is here, answers, and neither fails nor was cut: it can be emptied");
    let volume = volume.to_string();
    ApiError::usage(text).hint(Hint::EmptyTier { volume, device })
}

/// Opens a device that is to be added, with its memory if it is that.
fn open_new(device: &str) -> Result<(Member, Option<(OwnedFd, u64)>), ApiError> {
    let failed = |error| origin_error(device, &error);
    if let Some(bytes) = memory_bytes(device) {
        let bytes = bytes.map_err(ApiError::usage)?;
        let file = Member::memory(bytes).map_err(failed)?;
        let member = Member::of_memory(file.as_fd()).map_err(failed)?;
        return Ok((member, Some((file, bytes))));
    }
    let own = device.to_string();
    let member = in_time(&format!("open {device}"), move || {
        Member::open(&own).map_err(|error| origin_error(&own, &error))
    })?;
    Ok((member, None))
}

/// The number of the tier of a new device, and whether numbers have to be closed up for it: those
/// of tiers that have gone may be left over from before a kill.
fn tier_for(info: &TiersInfo, at: TierAt) -> Result<(u8, bool), ApiError> {
    let tiers: BTreeSet<u8> = info.devices.iter().map(|it| it.tier).collect();
    let last = tiers.last().copied().unwrap_or(0);
    match at {
        TierAt::Slowest if last + 1 < TIERS_MAX => Ok((last + 1, false)),
        TierAt::Slowest if tiers.len() < usize::from(TIERS_MAX) => Ok((tiers.len() as u8, true)),
        TierAt::Slowest => Err(refused(forebay_tier::Refusal::TooMany)),
        TierAt::Tier(tier) | TierAt::Before(tier) if tiers.contains(&tier) => Ok((tier, false)),
        TierAt::Tier(tier) | TierAt::Before(tier) => {
            let text = format!("there is no tier {tier}; the slowest is {last}");
            Err(ApiError::usage(text).hint(Hint::Again { with: Flag::NoTier }))
        }
    }
}
