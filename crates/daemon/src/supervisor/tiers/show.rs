//! What there is to tell of tiers.

use super::health::STUCK_S;
use super::pace::is_outside;
use crate::convert::hex;
use crate::state::TieredState;
use crate::supervisor::{FoundVolume, Supervisor, shard_error};
use forebay_api::hint::{Bytes, Care, When};
use forebay_api::reply::{Attention, State};
use forebay_api::request::ExplainTiers;
use forebay_api::size::human;
use forebay_api::tiers::{
    DeviceState, ExtentInfo, TierDevice, TierEvacuation, TierPart, TierPending, TiersInfo,
    TiersShown,
};
use forebay_api::told::Lack;
use forebay_api::{ApiError, Body, Cause, Hint};
use forebay_engine::Time;
use forebay_format::BLOCK_SIZE;
use forebay_format::tier::EXTENT_SIZE;
use forebay_host::origin::tiered::{Tiered, TiersSnapshot};
use forebay_tier::{Explained, MemberId, MemberState, MemberView, NotHigher, Pending};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Most extents that one question may be about.
const EXPLAINED_MAX: usize = 4096;
/// Most ranges of what is lost that are told.
const LOST_MAX: usize = 1024;
/// A volume whose tiers are as full as this has to be seen to, in percent.
const FULL_PERCENT: u64 = 95;

impl Supervisor {
    /// The tiers of a volume, as they are shown.
    pub(in crate::supervisor) fn tiers_info(&self, name: &str, now: &TiersSnapshot) -> TiersInfo {
        let state = self.store.get();
        let known = state.tiers_of(name);
        let devices = self.devices_by_member(name, now).into_iter().map(|it| it.1);
        let devices: Vec<TierDevice> = devices.collect();
        let is_cut = |it: &&TierDevice| it.state == DeviceState::Cut;
        let cut_bytes: u64 = devices.iter().filter(is_cut).map(|it| it.used_bytes).sum();
        let bytes = |extents: u32| u64::from(extents) * EXTENT_SIZE;
        let evacuations = now.view.evacuations.iter();
        let pending = now.view.pending.iter();
        TiersInfo {
            placement: known.map(|it| it.placement).unwrap_or_default(),
            ephemeral: now.is_ephemeral,
            overcommit: known.is_some_and(|it| it.overcommit),
            paused: known.map_or(now.view.is_paused, |it| it.paused),
            window: known.and_then(|it| it.window),
            outside_window: known.is_some_and(is_outside),
            capacity_bytes: devices.iter().map(|it| it.bytes).sum(),
            used_bytes: devices.iter().map(|it| it.used_bytes).sum(),
            // Most blocks that are lost beside a file that was cut lived there.
            lost_bytes: bytes(now.view.away)
                + cut_bytes.max(now.view.lost_blocks * BLOCK_SIZE as u64),
            rate_bytes: self.tuning_of_volume(name).move_rate,
            pinned_bytes: known.map_or(0, |it| it.pins.iter().map(|pin| bytes(pin.count)).sum()),
            moved_bytes: devices.iter().map(|it| it.moved_in_bytes).sum(),
            moving: now.view.moving.into(),
            pending: pending
                .map(|(why, moves)| TierPending {
                    reason: why_pending(*why).to_string(),
                    moves: (*moves).into(),
                })
                .chain(known.map_or_else(Vec::new, |it| pins_that_wait(it, &devices)))
                .collect(),
            evacuations: evacuations
                .map(|it| TierEvacuation {
                    part: TierPart {
                        tier: it.tier,
                        devices: it
                            .members
                            .iter()
                            .map(|&it| name_of_member(known, now, it))
                            .collect(),
                        whole_tier: it.is_whole,
                    },
                    left_bytes: bytes(it.left),
                })
                .collect(),
            emptied: known.and_then(|it| it.emptied.clone()),
            devices,
        }
    }

    /// Its devices, the fastest tier first, each with its number.
    pub(super) fn devices_by_member(
        &self,
        name: &str,
        now: &TiersSnapshot,
    ) -> Vec<(MemberId, TierDevice)> {
        let state = self.store.get();
        let known = state.tiers_of(name);
        let used = now.view.members.iter().filter(|it| it.state != MemberState::None);
        let cut = |it: &MemberView| now.cut.get(usize::from(it.member.0)).copied().flatten();
        let mut devices: Vec<(MemberId, TierDevice)> = used
            .map(|it| (it.member, device(it, name_of_member(known, now, it.member), cut(it))))
            .collect();
        devices.sort_by_key(|(_, device)| device.tier);
        devices
    }

    /// What a device of a volume's tiers is called.
    pub(super) fn device_name(&self, volume: &str, uuid: &[u8; 16]) -> String {
        name_of(self.store.get().tiers_of(volume), uuid)
    }

    /// The volume with this name, and its tiers.
    pub(super) fn find_tiers(&self, name: &str) -> Result<(FoundVolume, TiersSnapshot), ApiError> {
        let found = self.find_volume(name)?;
        let Some(tiers) = found.snapshot.tiers.clone() else {
            let origin = &found.snapshot.view.origin;
            let text = format!("volume {name} has no tiers; its origin is {origin}");
            return Err(ApiError::usage(text));
        };
        Ok((found, tiers))
    }

    pub(in crate::supervisor) fn tier_show(&self, name: &str) -> Result<TiersShown, ApiError> {
        let (found, now) = self.find_tiers(name)?;
        let lost = found.open.handle.look_at_tiers(found.snapshot.view.id, lost_ranges);
        let lost: Option<Vec<(u64, u64)>> =
            lost.map_err(|error| shard_error(&found.pool, &error))?;
        Ok(TiersShown {
            volume: name.to_string(),
            tiers: self.tiers_info(name, &now),
            lost: lost.unwrap_or_default(),
        })
    }

    pub(in crate::supervisor) fn explain(&self, wanted: &ExplainTiers) -> Result<Body, ApiError> {
        let (found, _) = self.find_tiers(&wanted.name)?;
        let extents = extents_of(&wanted.ranges, found.snapshot.view.bytes)?;
        let asked = extents.clone();
        let explained =
            found.open.handle.look_at_tiers(found.snapshot.view.id, move |tiered, now| {
                let tiers = tiered.tiers();
                let explain = |extent: &u32| Some((*extent, tiers.explain(*extent)?));
                (asked.iter().filter_map(explain).collect::<Vec<_>>(), tiered.snapshot(now))
            });
        let explained = explained.map_err(|error| shard_error(&found.pool, &error))?;
        let Some((explained, now)) = explained else {
            return Err(ApiError::failed(format!("volume {} is going", wanted.name)));
        };
        let state = self.store.get();
        let known = state.tiers_of(&wanted.name);
        let uri = |member: u8| {
            let uuid = now.uuids.get(usize::from(member))?;
            known.and_then(|it| it.uri_of(uuid)).map(str::to_string)
        };
        let extents = explained.into_iter().map(|(extent, it)| ExtentInfo {
            offset: u64::from(extent) * EXTENT_SIZE,
            tier: it.tier,
            device: it.place.and_then(|(member, _)| uri(member.0)),
            device_offset: it
                .place
                .map(|(_, slot)| now.slots_offset + u64::from(slot) * EXTENT_SIZE),
            since_s: it.place.map(|_| u64::from(now.now_s.saturating_sub(it.since))),
            heat: it.heat.into(),
            written_bytes: u64::from(it.blocks.0) * BLOCK_SIZE as u64,
            lost_bytes: u64::from(it.blocks.1) * BLOCK_SIZE as u64,
            why: why_not_higher(&it, &now, known),
        });
        Ok(Body::Extents { volume: wanted.name.clone(), extents: extents.collect() })
    }

    /// What of a volume is on no device that is here, to be said behind "everything".
    pub(in crate::supervisor) fn what_tiers_lack(&self, name: &str) -> Lack {
        let Ok((_, now)) = self.find_tiers(name) else { return Lack::Nothing };
        let info = self.tiers_info(name, &now);
        let missing = info.devices.iter().filter(|it| it.state == DeviceState::Missing);
        let missing: Vec<String> = missing.map(|it| it.device.clone()).collect();
        match (missing.is_empty(), info.lost_bytes) {
            (true, 0) => Lack::Nothing,
            (true, lost) => Lack::LostBytes(lost),
            (false, _) => Lack::Devices(missing),
        }
    }

    /// Says so, once, when the tiers of a volume come to be almost full.
    pub(in crate::supervisor) fn watch_room(&self) {
        let mut full = BTreeMap::new();
        for (_, open) in self.open_pools() {
            for volume in open.handle.snapshot().map(|it| it.volumes).unwrap_or_default() {
                let (name, Some(now)) = (volume.view.name, &volume.tiers) else { continue };
                if let Some(why) = almost_full(now, &self.tiers_info(&name, now)) {
                    full.insert(name, why);
                }
            }
        }
        let before = std::mem::take(&mut self.inner().almost_full);
        for (name, why) in full.iter().filter(|(name, _)| !before.contains(*name)) {
            tracing::warn!(volume = name.as_str(), "{why}");
        }
        self.inner().almost_full = full.into_keys().collect();
    }

    /// What of a volume's tiers needs attention.
    pub(in crate::supervisor) fn tell_tiers(
        &self,
        name: &str,
        now: &TiersSnapshot,
        state: &mut State,
        attention: &mut Attention,
    ) {
        let info = self.tiers_info(name, now);
        let degrade = |state: &mut State| {
            if *state == State::Ok {
                *state = State::Degraded;
            }
        };
        let missing = info.devices.iter().filter(|it| it.state == DeviceState::Missing);
        let missing: Vec<&TierDevice> = missing.collect();
        let all = self.store.get();
        let was_cut = |uri: &str| all.tiers_of(name).is_some_and(|it| it.was_cut(uri));
        for device in &missing {
            degrade(state);
            let (tier, device) = (device.tier, device.device.clone());
            attention.causes.push(match was_cut(&device) {
                true => Cause::TierWasCut { device, tier },
                false => Cause::TierMissing { device, tier },
            });
        }
        let is_missing = !missing.is_empty();
        if missing.iter().any(|it| !was_cut(&it.device)) {
            attention.hints.push(Hint::attach(name, When::DevicesBack));
        }
        for device in missing {
            let (volume, device) = (name.to_string(), device.device.clone());
            if was_cut(&device) {
                let (volume, device) = (volume.clone(), device.clone());
                attention.hints.push(Hint::RestoreTier { volume, device });
            }
            attention.hints.push(Hint::DropLost { volume, device });
        }
        for it in info.evacuations.iter().filter(|it| it.left_bytes == 0) {
            let (volume, part) = (name.to_string(), it.part.clone());
            attention.hints.push(Hint::RemoveTier { volume, part });
        }
        if super::health::tell(name, &info, attention) {
            degrade(state);
        }
        if info.lost_bytes > 0 {
            degrade(state);
            let (lost_bytes, volume) = (Bytes(info.lost_bytes), name.to_string());
            attention.causes.push(Cause::ExtentsLost { lost_bytes, volume });
            let is_cut = info.devices.iter().any(|it| it.state == DeviceState::Cut);
            // What is to be done was said of the device.
            if !is_missing && !is_cut {
                attention.hints.push(Hint::SeeTo { what: Care::TiersLost });
            }
        }
        let (full, stuck) = (almost_full(now, &info), evacuation_without_room(&info));
        if full.is_some() || !stuck.is_empty() {
            degrade(state);
            attention.causes.extend(full);
            attention.hints.push(Hint::SeeTo { what: Care::TiersFull });
        }
        for TierEvacuation { part, left_bytes } in stuck {
            let (why, left_bytes) = (why_pending(Pending::NoRoom).to_string(), Bytes(left_bytes));
            let volume = name.to_string();
            attention.hints.push(Hint::CancelEvacuation { volume, part: part.clone() });
            attention.causes.push(Cause::CannotBeEmptied { part, left_bytes, why });
        }
        if let Some(why) = &info.emptied {
            attention.causes.push(Cause::BeganEmpty { why: why.clone() });
        }
    }
}

/// What a tier holds on those of its devices that are asked for, without such as leave it: all, if
/// all leave.
pub(super) fn holds(devices: &[TierDevice], tier: u8, is_of: impl Fn(&TierDevice) -> bool) -> u64 {
    let own: Vec<&TierDevice> = devices.iter().filter(|it| it.tier == tier).collect();
    let all_leave = own.iter().all(|it| it.leaving);
    let counts = own.into_iter().filter(|it| (all_leave || !it.leaving) && is_of(it));
    counts.map(|it| it.bytes).sum()
}

/// What is pinned to tiers that do not hold so much, as after a device of one was given up.
pub(super) fn pins_that_wait(known: &TieredState, devices: &[TierDevice]) -> Vec<TierPending> {
    let tiers: BTreeSet<u8> = known.pins.iter().map(|pin| pin.tier).collect();
    let waits = tiers.into_iter().filter_map(|tier| {
        let pinned = known.pins.iter().filter(|pin| pin.tier == tier);
        let pinned: u64 = pinned.map(|pin| u64::from(pin.count)).sum();
        let is_here = |it: &TierDevice| it.state != DeviceState::Missing;
        let holds = holds(devices, tier, is_here) / EXTENT_SIZE;
        let moves = pinned.checked_sub(holds).filter(|&it| it > 0)?;
        let (pinned, holds) = (human(pinned * EXTENT_SIZE), human(holds * EXTENT_SIZE));
        let reason = format!("{pinned} are pinned to tier {tier}, which holds {holds}");
        Some(TierPending { reason, moves })
    });
    waits.collect()
}

fn name_of_member(known: Option<&TieredState>, now: &TiersSnapshot, member: MemberId) -> String {
    let uuid = now.uuids.get(usize::from(member.0));
    uuid.map_or_else(String::new, |uuid| name_of(known, uuid))
}

fn name_of(known: Option<&TieredState>, uuid: &[u8; 16]) -> String {
    let unknown = || format!("unknown device {}", hex(uuid));
    known.and_then(|it| it.uri_of(uuid)).map_or_else(unknown, str::to_string)
}

/// What there is to say of a volume that is larger than its tiers, when they are almost full. Only
/// what takes data counts: not what is being emptied, of which the rest has to go elsewhere,
/// and not a device that is missing or was cut.
pub(super) fn almost_full(now: &TiersSnapshot, info: &TiersInfo) -> Option<Cause> {
    let takes = |it: &&TierDevice| {
        let is_used =
            matches!(it.state, DeviceState::Ok | DeviceState::Failing | DeviceState::NoAnswer);
        is_used && !it.leaving
    };
    let takes: Vec<&TierDevice> = info.devices.iter().filter(takes).collect();
    let capacity: u64 = takes.iter().map(|it| it.bytes).sum();
    let leaving: u64 = info.evacuations.iter().map(|it| it.left_bytes).sum();
    let used: u64 = takes.iter().map(|it| it.used_bytes).sum::<u64>() + leaving;
    let is_larger = u64::from(now.view.extents) * EXTENT_SIZE > capacity;
    if !is_larger || used * 100 < capacity * FULL_PERCENT {
        return None;
    }
    Some(Cause::AlmostFull { left_bytes: Bytes(capacity.saturating_sub(used)) })
}

/// What is being emptied, while there is no room for what is on it.
fn evacuation_without_room(info: &TiersInfo) -> Vec<TierEvacuation> {
    let no_room = why_pending(Pending::NoRoom);
    if !info.pending.iter().any(|it| it.reason == no_room) {
        return Vec::new();
    }
    info.evacuations.iter().filter(|it| it.left_bytes > 0).cloned().collect()
}

/// The ranges of a volume that cannot be read, in order: those that the tiers know to be lost, and
/// what lives on files that were cut.
fn lost_ranges(tiered: &Tiered, at: Time) -> Vec<(u64, u64)> {
    let (tiers, cut) = (tiered.tiers(), tiered.snapshot(at).cut);
    let mut ranges: Vec<Range<u64>> = tiers.lost().take(LOST_MAX).collect();
    if cut.iter().any(Option::is_some) {
        let is_cut = |member: u8| cut.get(usize::from(member)).is_some_and(Option::is_some);
        let lives = |&extent: &u32| tiers.place_of(extent).is_some_and(|it| is_cut(it.0.0));
        let cut = (0..tiers.extents()).filter(lives).map(|extent| {
            let first = u64::from(extent) * EXTENT_SIZE;
            first..first + EXTENT_SIZE
        });
        let mut runs: Vec<Range<u64>> = Vec::new();
        for range in cut {
            let count = runs.len();
            match runs.last_mut() {
                Some(run) if run.end == range.start => run.end = range.end,
                _ if count == LOST_MAX => break,
                _ => runs.push(range),
            }
        }
        ranges.extend(runs);
        ranges.sort_by_key(|it| it.start);
    }
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all.truncate(LOST_MAX);
    all.into_iter().map(|it| (it.start, it.end - it.start)).collect()
}

/// The extents of byte ranges, each once.
pub(super) fn extents_of(ranges: &[(u64, u64)], bytes: u64) -> Result<Vec<u32>, ApiError> {
    let mut extents = Vec::new();
    for &(offset, len) in ranges {
        let end = offset.saturating_add(len.max(1));
        if end > bytes {
            let text = format!(
                "byte {end} is behind the end of the volume, which has {bytes} bytes ({})",
                human(bytes)
            );
            return Err(ApiError::usage(text));
        }
        let (first, last) = (offset / EXTENT_SIZE, (end - 1) / EXTENT_SIZE);
        for extent in first..=last {
            if extents.last() != Some(&(extent as u32)) {
                extents.push(extent as u32);
            }
            if extents.len() > EXPLAINED_MAX {
                let most = human(EXPLAINED_MAX as u64 * EXTENT_SIZE);
                return Err(ApiError::usage(format!("ask for {most} at most at a time")));
            }
        }
    }
    Ok(extents)
}

fn device(it: &MemberView, device: String, cut_to_bytes: Option<u64>) -> TierDevice {
    let waits_s = it.waits_ns / 1_000_000_000;
    TierDevice {
        tier: it.tier,
        device,
        state: match it.state {
            _ if !it.is_here => DeviceState::Missing,
            _ if cut_to_bytes.is_some() => DeviceState::Cut,
            _ if it.is_sick => DeviceState::Failing,
            _ if waits_s >= STUCK_S => DeviceState::NoAnswer,
            MemberState::Leaving => DeviceState::Leaving,
            _ => DeviceState::Ok,
        },
        leaving: it.state == MemberState::Leaving,
        holds_map: it.is_holder,
        bytes: u64::from(it.slots) * EXTENT_SIZE,
        // Places that are being trimmed, or copied to, do not count.
        used_bytes: u64::from(it.extents) * EXTENT_SIZE,
        reads: it.traffic.reads,
        read_bytes: it.traffic.read_bytes,
        read_ns: it.traffic.read_ns,
        writes: it.traffic.writes,
        written_bytes: it.traffic.written_bytes,
        write_ns: it.traffic.write_ns,
        moved_in_bytes: it.traffic.moved_in_bytes,
        moved_out_bytes: it.traffic.moved_out_bytes,
        read_errors: it.errors.reads,
        write_errors: it.errors.writes,
        no_room_errors: it.errors.no_room,
        full: it.is_full,
        failing: it.is_sick,
        map_lost: it.lost_map,
        waits_s,
        cut_to_bytes,
    }
}

fn why_pending(why: Pending) -> &'static str {
    match why {
        Pending::NoRoom => "there is no room where it should go",
        Pending::SourceFails => "where it is cannot be read; it is tried again",
        Pending::TargetFails => "where it should go cannot be written; it is tried again",
        Pending::NoAnswer => "a device does not answer",
        Pending::Away => "the device where it is, is missing",
    }
}

/// The next faster tier than that of an extent, and what is free there; `None` for an extent that
/// has to leave where it is, or is pinned elsewhere.
fn room_above(it: &Explained, now: &TiersSnapshot) -> Option<(u8, u64)> {
    let own = it.tier.filter(|_| it.pinned.is_none())?;
    let used = now.view.members.iter().filter(|it| it.state != MemberState::None);
    let lives_on = |member: MemberId| it.place.is_some_and(|it| it.0 == member);
    let is_leaving = |it: &MemberView| lives_on(it.member) && it.state == MemberState::Leaving;
    if used.clone().any(is_leaving) {
        return None;
    }
    let above = used.clone().map(|it| it.tier).filter(|&tier| tier < own).max()?;
    let takes = |it: &&MemberView| it.tier == above && it.state == MemberState::In;
    let free: u64 = used.filter(takes).map(|it| u64::from(it.free)).sum();
    Some((above, free * EXTENT_SIZE))
}

/// Why an extent is on no faster tier, in words.
fn why_not_higher(it: &Explained, now: &TiersSnapshot, known: Option<&TieredState>) -> String {
    match it.why {
        NotHigher::Unwritten => "nothing of it is written: it takes no space".to_string(),
        NotHigher::Fastest => "it is on the fastest tier".to_string(),
        NotHigher::Moving(to) => {
            let to = now.view.members.get(usize::from(to.0)).map_or(0, |it| it.tier);
            format!("it is on its way to tier {to}")
        }
        NotHigher::Pending(why) => format!("it should move, but {}", why_pending(why)),
        NotHigher::Lost => "the device where it is, is missing".to_string(),
        NotHigher::Pinned => "it is pinned to this tier".to_string(),
        NotHigher::Paused => match known.filter(|it| !it.paused).and_then(|it| it.window) {
            Some(window) => format!("moves wait for their time, {window}"),
            None => "moves are paused".to_string(),
        },
        NotHigher::Spill => "with the placement \"spill\" what has a place stays there".to_string(),
        NotHigher::TooCold { needed } => {
            format!("it is too cold: {:.1} accesses, and {needed:.1} are worth a move", it.heat)
        }
        NotHigher::HigherIsFull { coldest } => format!(
            "the faster tier is full of what is hotter: {:.1} accesses, and the coldest there has \
             {coldest:.1}",
            it.heat
        ),
        NotHigher::Soon => match room_above(it, now) {
            Some((tier, free)) => format!(
                "it is among what moves to tier {tier} next, the hottest first: {} are free there",
                human(free)
            ),
            None => "it is about to move".to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_tier::{Errors, Traffic, View};

    fn member(number: u8, tier: u8, free: u32) -> MemberView {
        MemberView {
            member: MemberId(number),
            tier,
            state: MemberState::In,
            is_here: true,
            is_holder: true,
            is_volatile: false,
            slots: 30,
            used: 30 - free,
            free,
            extents: 30 - free,
            traffic: Traffic::default(),
            errors: Errors::default(),
            is_full: false,
            is_sick: false,
            lost_map: false,
            waits_ns: 0,
        }
    }

    fn snapshot(members: Vec<MemberView>) -> TiersSnapshot {
        let view = View {
            members,
            extents: 60,
            placed: 30,
            away: 0,
            lost: 0,
            lost_blocks: 0,
            moving: 0,
            is_paused: false,
            evacuations: Vec::new(),
            pending: BTreeMap::new(),
        };
        TiersSnapshot {
            view,
            uuids: vec![[1; 16], [2; 16]],
            cut: vec![None, None],
            no_room_writes: 0,
            slots_offset: 0,
            bytes_max: 0,
            now_s: 0,
            is_ephemeral: false,
        }
    }

    /// 27 mebibytes were all about to move, and there was room for two.
    #[test]
    fn what_moves_next_is_told_with_the_room_there_is() {
        let mut explained = Explained {
            place: Some((MemberId(1), 3)),
            tier: Some(1),
            since: 0,
            heat: 9.0,
            pinned: None,
            blocks: (256, 0),
            why: NotHigher::Soon,
        };
        let mut now = snapshot(vec![member(0, 0, 2), member(1, 1, 20)]);
        let why = why_not_higher(&explained, &now, None);
        assert!(why.contains("to tier 0 next") && why.contains("2.0M are free there"), "{why}");
        now.view.members[1].state = MemberState::Leaving;
        assert_eq!(why_not_higher(&explained, &now, None), "it is about to move");
        now.view.members[1].state = MemberState::In;
        explained.pinned = Some(0);
        assert_eq!(why_not_higher(&explained, &now, None), "it is about to move");
    }
}
