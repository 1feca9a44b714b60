//! What is remembered of the devices of a set, and what the set says itself: where they differ, the
//! set is right.
//!
//! A device that joins is remembered before the set knows it, and one that leaves until the set
//! knows it no more. A kill in between leaves one that is no member: it is dropped when the set is
//! opened next, or when somebody changes its tiers.

use super::memory_bytes;
use crate::convert::hex;
use crate::state::{MemberState, TieredState};
use crate::supervisor::Supervisor;
use forebay_api::ApiError;
use forebay_host::origin::tiered::TiersSnapshot;
use forebay_tier::At;
use std::collections::BTreeMap;

/// The tier of each member, by its identity.
pub(super) fn numbers_of(now: &TiersSnapshot) -> BTreeMap<String, u8> {
    let used = now.view.members.iter().zip(&now.uuids);
    let used = used.filter(|(it, _)| it.state != forebay_tier::MemberState::None);
    used.map(|(it, uuid)| (hex(uuid), it.tier)).collect()
}

impl Supervisor {
    pub(super) fn remember_member(
        &self,
        name: &str,
        at: At,
        new: MemberState,
    ) -> Result<(), ApiError> {
        self.remember(|all| {
            let Some(tiers) = all.tiered.iter_mut().find(|it| it.name == name) else { return };
            if let At::Before(tier) = at {
                let later = tiers.members.iter_mut().filter(|it| it.tier >= tier);
                later.for_each(|it| it.tier += 1);
                tiers.pins.iter_mut().filter(|it| it.tier >= tier).for_each(|it| it.tier += 1);
            }
            tiers.members.push(new);
            tiers.members.sort_by_key(|it| it.tier);
        })
    }

    /// Forgets a device; with `at`, it never came.
    pub(super) fn forget_member(
        &self,
        name: &str,
        uuid: &str,
        at: Option<At>,
    ) -> Result<(), ApiError> {
        self.remember(|all| {
            let Some(tiers) = all.tiered.iter_mut().find(|it| it.name == name) else { return };
            tiers.members.retain(|it| it.uuid != uuid);
            if at.is_none() {
                let TieredState { members, pins, .. } = tiers;
                pins.retain(|pin| members.iter().any(|it| it.tier == pin.tier));
            }
            if let Some(At::Before(tier)) = at {
                let later = tiers.members.iter_mut().filter(|it| it.tier > tier);
                later.for_each(|it| it.tier -= 1);
                tiers.pins.iter_mut().filter(|it| it.tier > tier).for_each(|it| it.tier -= 1);
            }
        })?;
        self.memories.let_go(name, |member| member != uuid);
        Ok(())
    }

    /// Notes that these devices are to join or to leave, and that nobody has heard yet how it went.
    pub(super) fn unsettle_members(&self, name: &str, uuids: &[String]) -> Result<(), ApiError> {
        self.remember(|all| all.set_unsettled(name, uuids, true))
    }

    /// Notes that somebody has. Where that cannot be noted, the next start asks the set.
    pub(super) fn settle_members(&self, name: &str, uuids: &[String]) {
        if let Err(error) = self.remember(|all| all.set_unsettled(name, uuids, false)) {
            tracing::warn!(volume = name, "which devices its tiers are: {}", error.message);
        }
    }

    /// Brings what is remembered into line with what the set says: which devices it has, and what
    /// their tiers are called. What is remembered then, and what was dropped.
    pub(super) fn follow_set(
        &self,
        known: &TieredState,
        now: &TiersSnapshot,
    ) -> (TieredState, Vec<MemberState>) {
        let (numbers, mut learnt) = (numbers_of(now), known.clone());
        let follow = |tiers: &mut TieredState| {
            let dropped = tiers.keep_members(|it| numbers.contains_key(&it.uuid));
            tiers.renumber(&numbers);
            dropped
        };
        let dropped = follow(&mut learnt);
        let name = known.name.as_str();
        if learnt == *known {
            return (learnt, dropped);
        }
        let change = self.store.change(|all| {
            // Another set may have this name since that was opened.
            let own = all.tiered.iter_mut().filter(|it| it.name == name && it.set == known.set);
            own.for_each(|it| drop(follow(it)));
        });
        match change {
            Ok(()) => {
                self.memories.let_go(name, |uuid| !dropped.iter().any(|it| it.uuid == uuid));
            }
            Err(error) => {
                tracing::error!(volume = name, "which devices its tiers are: {}", error.message);
            }
        }
        for MemberState { uri, .. } in &dropped {
            tracing::warn!(
                volume = name,
                "{uri} is no device of its tiers: it was being added or removed when that was cut \
                 short; it is not remembered any more"
            );
        }
        (learnt, dropped)
    }

    /// Drops devices that are remembered and are no members: nobody is adding one now. One that is
    /// still to become a member counts as one.
    pub(super) fn drop_strays(&self, name: &str, now: &TiersSnapshot) -> Vec<MemberState> {
        let state = self.store.get();
        state.tiers_of(name).map_or_else(Vec::new, |known| self.follow_set(known, now).1)
    }
}

/// What is remembered of a set whose content is gone, without devices that were to join or to leave
/// when the machine went down, and do not say that they are of it.
pub(super) fn without_strays(
    known: &TieredState,
    is_ours: impl Fn(&MemberState) -> bool,
) -> TieredState {
    let mut known = known.clone();
    let is_stray =
        |it: &MemberState| it.unsettled && memory_bytes(&it.uri).is_none() && !is_ours(it);
    let dropped = known.keep_members(|it| !is_stray(it));
    for MemberState { uri, .. } in dropped {
        tracing::warn!(
            volume = known.name,
            "{uri} was being added to its tiers, or removed, when the machine went down: it is \
             left out"
        );
    }
    known.members.iter_mut().for_each(|it| it.unsettled = false);
    known
}
