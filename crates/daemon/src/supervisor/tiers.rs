//! The sets of devices below volumes with tiers: how they are opened, made, and made anew.
//!
//! What the devices of a set are is remembered in the state directory, by their identities; which
//! of them is which, and where what lives, they say themselves.

mod again;
mod back;
mod change;
mod create;
mod health;
mod holds;
mod members;
mod pace;
mod pins;
mod record;
mod search;
mod show;
mod witness;

use super::Supervisor;
use super::late::in_time;
use super::origin::is_origin_in_use;
use super::plan::file_of;
use crate::convert::{hex, unhex};
use crate::export::boot;
use crate::looks::Seen;
use crate::state::{MemberState, TieredState, WitnessState};
use forebay_api::tiers::{Placement, SCHEME};
use forebay_api::{ApiError, Size};
use forebay_format::superblock::field_text;
use forebay_host::origin::tiered::{
    Member, NewTier, NewTiered, Planned, Tiered, TieredError, Unused,
};
use forebay_host::origin::{Origin, OriginError};
use forebay_tier::Tuning;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use witness::WAS_CUT;

/// Memory that a URI asks for, if it does.
pub(super) fn memory_bytes(uri: &str) -> Option<Result<u64, String>> {
    let size = uri.strip_prefix("ram:")?;
    Some(match size.parse::<Size>() {
        Ok(Size::Bytes(bytes @ 1..)) => Ok(bytes),
        Ok(_) => Err(format!("{uri}: give a size, such as ram:40G")),
        Err(why) => Err(format!("{uri}: {why}")),
    })
}

/// Bytes a second that moves copy at most, where nobody chose a rate.
const MOVE_RATE: u64 = 20 << 20;

/// Of a fast tier that is memory so many per mille are kept free: it takes the bursts of temporary
/// tables. Measured in `bench/results/2026-11-28-tiers`.
const MEMORY_RESERVE_PER_MILLE: u32 = 50;

/// How data is placed, for those who place it.
fn tuning_of(known: &TieredState) -> Tuning {
    let mut tuning = Tuning { move_rate: known.rate.unwrap_or(MOVE_RATE), ..Tuning::default() };
    tuning.placement = match known.placement {
        Placement::Heat => forebay_tier::Placement::Heat,
        Placement::Spill => forebay_tier::Placement::Spill,
    };
    if known.boot.is_some() {
        tuning.reserve_per_mille = MEMORY_RESERVE_PER_MILLE;
    }
    tuning
}

/// Whether a device that somebody uses is of this set: one that is not has only its name.
fn is_of(known: &TieredState, uri: &str) -> bool {
    memory_bytes(uri).is_some() || Seen::at(file_of(uri)).is_some_and(|it| it.set == known.set)
}

/// A device of a set that is to be made.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub uri: String,
    pub tier: u8,
    pub use_percent: u8,
}

/// A set that can be made, and what it was planned from.
pub(super) struct NewTiers {
    pub planned: Planned,
    given: Vec<Given>,
    memory: Vec<Option<(OwnedFd, u64)>>,
    overcommit: bool,
}

impl NewTiers {
    /// Opens devices for a set, and checks that it can be made. Nothing is written.
    ///
    /// # Errors
    /// The first device that cannot be used, or what is wrong with all of them together.
    pub fn plan(spec: &NewTiered, given: Vec<Given>) -> Result<NewTiers, (String, OriginError)> {
        let mut tiers: Vec<NewTier> = Vec::new();
        let mut memory = Vec::new();
        for it in &given {
            let of = |error| (it.uri.clone(), error);
            let (member, own) = match memory_bytes(&it.uri) {
                Some(bytes) => {
                    let bytes = bytes.map_err(|why| of(TieredError::Create(why).into()))?;
                    let file = Member::memory(bytes).map_err(of)?;
                    (Member::of_memory(file.as_fd()).map_err(of)?, Some((file, bytes)))
                }
                None => (Member::open(&it.uri).map_err(of)?, None),
            };
            memory.push(own);
            let tier = usize::from(it.tier);
            tiers.resize_with(tiers.len().max(tier + 1), || NewTier { members: Vec::new() });
            tiers[tier].members.push((member, it.use_percent));
        }
        let planned = Planned::of(spec, tiers).map_err(|error| (String::new(), error.into()))?;
        Ok(NewTiers { planned, given, memory, overcommit: spec.overcommit })
    }

    /// What it was planned from, to plan it anew. Devices are open until it is dropped.
    pub fn given_again(&self) -> Vec<Given> {
        self.given.clone()
    }

    /// Where a device is.
    pub fn uri(&self, number: usize) -> &str {
        &self.given[number].uri
    }

    /// The devices, each with its bytes for data.
    pub fn devices(&self) -> impl Iterator<Item = (&Given, u64)> {
        self.given.iter().zip(self.planned.members().map(|(bytes, _)| bytes))
    }
}

/// Tells a device which part of it no tier uses. Nothing depends on it.
fn give_back(unused: Unused) {
    let text = unused.to_string();
    let failed = |error: std::io::Error| ApiError::failed(error.to_string());
    let given = in_time(&format!("trim {text}"), move || unused.give_back().map_err(failed));
    if let Err(error) = given {
        tracing::warn!("{text} is not used, and was not trimmed: {}", error.message);
    }
}

impl Supervisor {
    /// Opens what the URI of an origin names.
    pub(super) fn open_source(&self, uri: &str) -> Result<Origin, OriginError> {
        match uri.strip_prefix(SCHEME) {
            Some(volume) => Ok(Origin::Tiered(Box::new(self.open_tiers(volume)?))),
            None => Origin::open(uri),
        }
    }

    /// Makes a set. What is to be remembered of it is returned.
    pub(super) fn make_tiers(
        &self,
        name: &str,
        new: NewTiers,
        placement: Placement,
    ) -> Result<(TieredState, Tiered), OriginError> {
        let NewTiers { planned, given, memory, overcommit } = new;
        let uuids: Vec<String> = planned.members().map(|(_, uuid)| hex(&uuid)).collect();
        let of = given.into_iter().zip(&uuids);
        let known = TieredState {
            name: name.to_string(),
            set: hex(&planned.set()),
            members: of
                .map(|(Given { uri, tier, use_percent }, uuid)| MemberState {
                    uri,
                    uuid: uuid.clone(),
                    tier,
                    use_percent,
                    unsettled: false,
                })
                .collect(),
            overcommit,
            overcommit_lent: false,
            placement,
            rate: None,
            pins: Vec::new(),
            paused: false,
            window: None,
            boot: planned.is_ephemeral().then(boot),
            emptied: None,
            witness: WitnessState::default(),
        };
        let unused = planned.unused();
        let made = planned.make(tuning_of(&known))?;
        unused.into_iter().for_each(give_back);
        for (uuid, memory) in uuids.iter().zip(memory) {
            if let Some((file, bytes)) = memory {
                self.memories.keep(name, uuid, file, bytes);
            }
        }
        Ok((known, made))
    }

    /// Opens the set of a volume. Devices that are missing take with them what lives there, and no
    /// more.
    fn open_tiers(&self, name: &str) -> Result<Tiered, OriginError> {
        let state = self.store.get();
        let Some(known) = state.tiers_of(name) else {
            let why = format!("nothing is remembered of the tiers of volume {name}");
            return Err(TieredError::Create(why).into());
        };
        if let Some(why) = self.is_over(known) {
            return self.make_anew(known, why);
        }
        let (members, uris) = self.open_members(known)?;
        if known.boot.is_none() {
            self.check_age(known, &members)?;
        }
        let tuning = tuning_of(known);
        let mut tiered = Tiered::open(members, unhex(&known.set), tuning)?;
        if known.boot.is_none() {
            self.note_age(name, tiered.age());
        }
        let used: Vec<usize> = tiered.given().map(|(_, index)| index).collect();
        for (_, uri) in uris.iter().enumerate().filter(|(index, _)| !used.contains(index)) {
            tracing::error!(volume = name, "a tier is missing: {}", back::is_older(uri));
        }
        let known = &self.follow_set(known, &tiered.snapshot(0)).0;
        begin_moves(&mut tiered, known);
        let found = tiered.given().map(|(uuid, index)| (hex(&uuid), uris[index].clone()));
        // Memory has no name of its own.
        self.rename_members(known, &found.filter(|it| memory_bytes(&it.1).is_none()).collect());
        Ok(tiered)
    }

    /// Opens the devices of a set that are here, under whatever names, with those.
    fn open_members(&self, known: &TieredState) -> Result<(Vec<Member>, Vec<String>), OriginError> {
        let name = known.name.as_str();
        let (mut members, mut uris, mut here) = (Vec::new(), Vec::new(), BTreeSet::new());
        for member in &known.members {
            if known.witness.is_cut(&member.uuid) {
                tracing::error!(volume = name, "{} {WAS_CUT}", member.uri);
                continue;
            }
            match self.open_member(name, member) {
                Ok(opened) => {
                    let superblock = opened.superblock().ok().flatten();
                    here.extend(superblock.and_then(|it| Seen::of(&it)).map(|it| it.uuid));
                    members.push(opened);
                    uris.push(member.uri.clone());
                }
                Err(error) if is_origin_in_use(&error) && is_of(known, &member.uri) => {
                    return Err(error);
                }
                Err(error) => tracing::error!(volume = name, "a tier is missing: {error}"),
            }
        }
        if let (true, Some(cut)) =
            (members.is_empty(), known.members.iter().find(|it| known.was_cut(&it.uri)))
        {
            let why = format!(
                "{} {WAS_CUT}; if it is whole again: forebay volume remove {name}, then forebay \
                 volume create {name} with it",
                cut.uri
            );
            return Err(TieredError::Create(why).into());
        }
        let lacks = |it: &&MemberState| {
            memory_bytes(&it.uri).is_none()
                && !here.contains(&it.uuid)
                && !known.witness.is_cut(&it.uuid)
        };
        let missing = known.members.iter().filter(lacks).map(|it| it.uuid.as_str());
        for uri in self.look_elsewhere(&known.set, &missing.collect()).found.into_values() {
            match Member::open(&uri) {
                Ok(opened) => {
                    members.push(opened);
                    uris.push(uri);
                }
                Err(error) if is_origin_in_use(&error) => return Err(error),
                Err(error) => tracing::error!(volume = name, "a tier is missing: {error}"),
            }
        }
        Ok((members, uris))
    }

    /// Devices have the names under which they were found: what they are they say themselves.
    fn rename_members(&self, known: &TieredState, found: &BTreeMap<String, String>) {
        let mut renamed = known.clone();
        renamed.rename(found);
        if renamed == *known {
            return;
        }
        for (now, before) in renamed.members.iter().zip(&known.members) {
            if now.uri != before.uri {
                let (tier, uri) = (now.tier, &now.uri);
                tracing::warn!(volume = known.name, "{}, on tier {tier}, is {uri} now", before.uri);
            }
        }
        let change = self.store.change(|all| {
            let own = all.tiered.iter_mut().filter(|it| it.name == known.name);
            own.for_each(|it| it.rename(found));
        });
        if let Err(error) = change {
            tracing::error!(volume = known.name, "names of devices: {}", error.message);
        }
    }

    fn open_member(&self, name: &str, member: &MemberState) -> Result<Member, OriginError> {
        match memory_bytes(&member.uri) {
            None => Member::open(&member.uri),
            Some(_) => self.memories.open(name, &member.uuid).unwrap_or_else(|| {
                Err(TieredError::Create(format!("the memory {} is gone", member.uri)).into())
            }),
        }
    }

    /// Why what an ephemeral set held is gone, if it is.
    fn is_over(&self, known: &TieredState) -> Option<&'static str> {
        let began = known.boot.as_ref()?;
        if *began != boot() {
            return Some("the machine was started anew");
        }
        let is_memory = |it: &&MemberState| memory_bytes(&it.uri).is_some();
        let mut memory = known.members.iter().filter(is_memory);
        let is_here = memory.all(|it| self.memories.has(&known.name, &it.uuid));
        (!is_here).then_some("the process that held its memory has ended")
    }

    /// Makes an ephemeral set again whose content is gone: nothing of it is served from anywhere.
    fn make_anew(&self, known: &TieredState, why: &str) -> Result<Tiered, OriginError> {
        let name = known.name.as_str();
        let known = &record::without_strays(known, |it| check_is_ours(known, it).is_ok());
        let given = known.members.iter().map(|it| Given {
            uri: it.uri.clone(),
            tier: it.tier,
            use_percent: it.use_percent,
        });
        for member in known.members.iter().filter(|it| memory_bytes(&it.uri).is_none()) {
            check_is_ours(known, member)?;
        }
        let bytes = self.store.get().volume(name).map(|volume| volume.bytes);
        let spec = NewTiered { name: name.to_string(), bytes, overcommit: known.overcommit };
        let new = NewTiers::plan(&spec, given.collect()).map_err(|(_, error)| error)?;
        let (state, mut made) = self.make_tiers(name, new, known.placement)?;
        begin_moves(&mut made, known);
        tracing::warn!(volume = name, "it is empty: {why}, and its content with it");
        let emptied = Some(why.to_string());
        let remembered = self.remember(|all| {
            all.tiered.retain(|it| it.name != name);
            let TieredState { rate, pins, paused, window, .. } = known.clone();
            all.tiered.push(TieredState { emptied, rate, pins, paused, window, ..state.clone() });
        });
        remembered.map_err(|error| TieredError::Create(error.message))?;
        self.memories.let_go(name, |uuid| state.members.iter().any(|it| it.uuid == uuid));
        Ok(made)
    }
}

/// A device that is to be used anew has to be the one that the set was on.
fn check_is_ours(known: &TieredState, member: &MemberState) -> Result<(), OriginError> {
    let opened = Member::open(&member.uri)?;
    let is_tmpfs = opened.is_volatile();
    // It may have been made anew before, when that could not be remembered.
    let is_ours = opened.superblock()?.map(|it| {
        hex(&it.block.set) == known.set
            || (it.is_ephemeral() && field_text(&it.block.name) == known.name)
    });
    if is_ours.unwrap_or(is_tmpfs) {
        return Ok(());
    }
    let why = format!("{} is no device of volume {}", member.uri, known.name);
    Err(TieredError::Create(why).into())
}

/// Has tiers that were just opened move what should move. What is pinned comes first: it would
/// leave its tier.
fn begin_moves(tiered: &mut Tiered, known: &TieredState) {
    known.pins.iter().for_each(|pin| tiered.pin(pin.first, pin.count, pin.tier));
    if !pace::rests(known) {
        tiered.move_on();
    }
}
