//! What is remembered of tiers: which devices they are, and how an administrator wants them used.

use crate::convert::hex;
use forebay_api::tiers::{Placement, Window};
use forebay_api::told::Choices;
use forebay_format::tier::EXTENT_SIZE;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The tiers of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TieredState {
    /// The volume.
    #[serde(deserialize_with = "super::name")]
    pub name: String,
    /// What its devices have in common, as hexadecimal digits.
    pub set: String,
    /// Its devices, the fastest tier first.
    pub members: Vec<MemberState>,
    /// It may be larger than its devices together.
    pub overcommit: bool,
    /// Only an evacuation was allowed that, and it ends when that is cancelled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overcommit_lent: bool,
    /// How data is placed.
    pub placement: Placement,
    /// Most bytes a second that moves copy, where somebody chose that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// What is to live on a certain tier; sorted, and apart from each other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<PinState>,
    /// Nothing moves until an administrator says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// When moves may run, where somebody chose that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Of one that is ephemeral, the life of the machine in which its content began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Why what it held before is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emptied: Option<String>,
    /// What is known against devices that say they are its own.
    #[serde(default, skip_serializing_if = "WitnessState::is_empty")]
    pub witness: WitnessState,
}

/// What is known of the devices of a set beside what they say themselves, of which nothing shows
/// whether it is the newest. It is forgotten with the volume.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WitnessState {
    /// How old the newest of their superblocks was at the last start, or orderly stop
    /// ([`forebay_format::tier::Superblock::age`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    age: Option<Age>,
    /// Identities of those that were cut while they were in use: nobody knows what they still hold.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    cut: BTreeSet<String>,
}

/// What superblocks of one set are compared by.
pub type Age = (u64, u64, u64);

impl WitnessState {
    fn is_empty(&self) -> bool {
        *self == WitnessState::default()
    }

    /// Whether this is older than what was seen of the set.
    pub fn is_older(&self, age: Age) -> bool {
        self.age.is_some_and(|newest| age < newest)
    }

    /// So old is what is seen of the set: the newest is remembered.
    pub fn see(&mut self, age: Age) {
        self.age = self.age.max(Some(age));
    }

    /// The device with this identity was cut.
    pub fn was_cut(&mut self, uuid: String) {
        self.cut.insert(uuid);
    }

    /// Whether the device with this identity was.
    pub fn is_cut(&self, uuid: &str) -> bool {
        self.cut.contains(uuid)
    }

    /// What was cut may have been put back: it is believed.
    pub fn believe(&mut self) {
        self.cut.clear();
    }
}

/// Devices of tiers that nobody serves any more: all there is to go by when some are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftState {
    /// What they have in common, as hexadecimal digits.
    pub set: String,
    /// Where each was, by its identity.
    pub uris: BTreeMap<String, String>,
    /// What was chosen for it. Older versions kept nothing of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Chosen>,
}

/// What an administrator chose for the tiers of a volume: it is written on none of its devices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chosen {
    /// It may be larger than its devices together.
    #[serde(default)]
    pub overcommit: bool,
    /// How data is placed.
    #[serde(default)]
    pub placement: Placement,
    /// Most bytes a second that moves copy.
    #[serde(default)]
    pub rate: Option<u64>,
    /// What is to live on a certain tier.
    #[serde(default)]
    pub pins: Vec<PinState>,
    /// Nothing moves until an administrator says so.
    #[serde(default)]
    pub paused: bool,
    /// When moves may run.
    #[serde(default)]
    pub window: Option<Window>,
}

impl Chosen {
    /// What is told of it; nothing, where it is as if nobody had chosen anything.
    pub fn choices(&self) -> Option<Choices> {
        let choices = Choices {
            pinned_bytes: self.pins.iter().map(|pin| u64::from(pin.count) * EXTENT_SIZE).sum(),
            rate_bytes: self.rate,
            window: self.window,
            paused: self.paused,
            placement: self.placement,
            overcommit: self.overcommit,
        };
        (choices != Choices::default()).then_some(choices)
    }
}

impl TieredState {
    /// Devices, by identity, are on these tiers: what is pinned goes with its tier.
    pub fn renumber(&mut self, now: &BTreeMap<String, u8>) {
        let mut numbers = BTreeMap::new();
        for member in &mut self.members {
            if let Some(&tier) = now.get(&member.uuid) {
                numbers.insert(member.tier, tier);
                member.tier = tier;
            }
        }
        self.members.sort_by_key(|member| member.tier);
        self.pins.retain_mut(|pin| {
            let is_known = numbers.contains_key(&pin.tier);
            pin.tier = numbers.get(&pin.tier).copied().unwrap_or(pin.tier);
            is_known || now.values().any(|&tier| tier == pin.tier)
        });
    }

    /// Drops devices that are none of the set, with what is pinned to a tier that is left without
    /// any. Those that were dropped.
    pub fn keep_members(&mut self, is_member: impl Fn(&MemberState) -> bool) -> Vec<MemberState> {
        let dropped: Vec<_> = self.members.extract_if(.., |it| !is_member(it)).collect();
        if !dropped.is_empty() {
            let TieredState { members, pins, .. } = self;
            pins.retain(|pin| members.iter().any(|it| it.tier == pin.tier));
        }
        dropped
    }

    /// Where the device with this identity is.
    pub fn uri_of(&self, uuid: &[u8; 16]) -> Option<&str> {
        let uuid = hex(uuid);
        self.members.iter().find(|member| member.uuid == uuid).map(|member| member.uri.as_str())
    }

    /// Whether the device that is there was cut while it was in use.
    pub fn was_cut(&self, uri: &str) -> bool {
        let is_it = |it: &&MemberState| self.witness.is_cut(&it.uuid);
        self.members.iter().filter(is_it).any(|it| it.uri == uri)
    }

    /// What is kept of it when nobody serves it any more; nothing of one that is ephemeral.
    pub fn left(&self) -> Option<LeftState> {
        let uri = |it: &MemberState| (it.uuid.clone(), it.uri.clone());
        let uris = self.members.iter().map(uri).collect();
        let chosen = Some(self.chosen());
        self.boot.is_none().then(|| LeftState { set: self.set.clone(), uris, chosen })
    }

    /// What was chosen for it.
    pub fn chosen(&self) -> Chosen {
        Chosen {
            overcommit: self.overcommit && !self.overcommit_lent,
            placement: self.placement,
            rate: self.rate,
            pins: self.pins.clone(),
            paused: self.paused,
            window: self.window,
        }
    }

    /// Devices, by identity, were found where others were before: the names are theirs now. Those
    /// that were not found keep theirs, or get one that is left: no two have the same.
    pub fn rename(&mut self, found: &BTreeMap<String, String>) {
        let names = self.members.iter().map(|it| it.uri.clone());
        let mut left: BTreeSet<String> = names.collect();
        left.retain(|name| !found.values().any(|it| it == name));
        let mut nameless = Vec::new();
        for member in &mut self.members {
            match found.get(&member.uuid) {
                Some(name) => member.uri.clone_from(name),
                None if left.remove(&member.uri) => {}
                None => nameless.push(member),
            }
        }
        nameless.into_iter().zip(left).for_each(|(member, name)| member.uri = name);
    }
}

/// Extents that are to live on a certain tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinState {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// The tier; 0 is the fastest.
    pub tier: u8,
}

/// A device of a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberState {
    /// Where it is: an absolute path, `spindle:…`, or `ram:SIZE`.
    pub uri: String,
    /// Its identity, as hexadecimal digits.
    pub uuid: String,
    /// The tier; 0 is the fastest.
    pub tier: u8,
    /// How much of it is used, in percent.
    pub use_percent: u8,
    /// It was to join or to leave, and nobody has heard how that went: the set says it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsettled: bool,
}
