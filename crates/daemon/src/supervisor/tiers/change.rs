//! Changes of tiers that are in use.

use super::health::check_not_stuck;
use super::show::pins_that_wait;
use crate::supervisor::late::origin_bytes;
use crate::supervisor::plan::same_file;
use crate::supervisor::{FoundVolume, Supervisor, shard_error};
use forebay_api::hint::{Bytes, Care, Choice, Flag, Until, When};
use forebay_api::reply::Done;
use forebay_api::request::TierChange;
use forebay_api::size::human;
use forebay_api::tiers::{DeviceState, TierDevice, TierPart};
use forebay_api::told::{Pace, PartInFull, Times};
use forebay_api::{ApiError, Hint, Outcome, Told};
use forebay_format::tier::{EXTENT_SIZE, MEMBERS_MAX, TIERS_MAX};
use forebay_host::origin::tiered::TiersSnapshot;
use forebay_host::shard::ShardError;
use forebay_tier::{Command, CommandReply, MemberId, MemberState, MemberView, Refusal};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// How long an evacuation is waited for: one that is refused is refused at once.
const REFUSED_WITHIN: Duration = Duration::from_millis(500);

/// A tier that was named, or devices of one, and what is on them.
pub(super) struct NamedPart {
    pub part: TierPart,
    pub members: Vec<MemberId>,
    used_bytes: u64,
    /// Free on the devices that stay, and not for what else leaves.
    elsewhere_bytes: u64,
    /// What those hold, free or not.
    rest_bytes: u64,
    /// All of it is being emptied, with so much left.
    left_bytes: Option<u64>,
    /// Devices of it that are missing, and what lives on them.
    missing: Vec<(String, u64)>,
    /// Whether the volume has no others.
    is_only: bool,
}

impl Supervisor {
    /// The tier of a volume with this number, or with these devices.
    pub(super) fn named_tier(
        &self,
        name: &str,
        now: &TiersSnapshot,
        tier: &str,
    ) -> Result<u8, ApiError> {
        Ok(self.named_part(name, now, tier)?.part.tier)
    }

    /// The tier of a volume with this number, or devices of one, with commas between.
    pub(super) fn named_part(
        &self,
        name: &str,
        now: &TiersSnapshot,
        tier: &str,
    ) -> Result<NamedPart, ApiError> {
        let all = self.devices_by_member(name, now);
        let named = named_devices(name, &all, tier)?;
        let (own, others): (Vec<_>, Vec<_>) = all.iter().partition(|it| named.contains(&it.0));
        let number = own[0].1.tier;
        let takes = |it: &&&(MemberId, TierDevice)| {
            let is_well = !matches!(it.1.state, DeviceState::Missing | DeviceState::Cut);
            is_well && !it.1.leaving
        };
        let staying: Vec<_> = others.iter().filter(takes).collect();
        let leaving = others.iter().filter(|it| it.1.leaving && it.1.state != DeviceState::Missing);
        let leaving_bytes: u64 = leaving.map(|it| it.1.used_bytes).sum();
        let free_bytes: u64 = staying.iter().map(|it| it.1.bytes - it.1.used_bytes).sum();
        let missing = own.iter().filter(|it| it.1.state == DeviceState::Missing);
        let left = |it: &MemberId| u64::from(now.view.members[usize::from(it.0)].used);
        let left_bytes = named.iter().map(left).sum::<u64>() * EXTENT_SIZE;
        Ok(NamedPart {
            part: TierPart {
                tier: number,
                devices: own.iter().map(|it| it.1.device.clone()).collect(),
                whole_tier: others.iter().all(|it| it.1.tier != number),
            },
            used_bytes: own.iter().map(|it| it.1.used_bytes).sum(),
            elsewhere_bytes: free_bytes.saturating_sub(leaving_bytes),
            rest_bytes: staying.iter().map(|it| it.1.bytes).sum(),
            left_bytes: own.iter().all(|it| it.1.leaving).then_some(left_bytes),
            missing: missing.map(|it| (it.1.device.clone(), it.1.used_bytes)).collect(),
            is_only: others.is_empty(),
            members: named,
        })
    }

    /// What is told of pins to a tier that holds less when these devices have left it: to one that
    /// has left as a whole nothing is pinned.
    pub(super) fn pins_without(
        &self,
        name: &str,
        now: &TiersSnapshot,
        named: &NamedPart,
    ) -> Vec<Told> {
        let state = self.store.get();
        let leaves = |(member, it): (MemberId, TierDevice)| {
            let leaving = it.leaving || named.members.contains(&member);
            TierDevice { leaving, ..it }
        };
        let devices: Vec<TierDevice> =
            self.devices_by_member(name, now).into_iter().map(leaves).collect();
        let TierPart { tier, whole_tier, .. } = named.part;
        let Some(known) = state.tiers_of(name).filter(|_| !whole_tier) else { return Vec::new() };
        let mut own = known.clone();
        own.pins.retain(|pin| pin.tier == tier);
        let waits = pins_that_wait(&own, &devices).into_iter();
        waits.map(|it| Told::PinsWait { why: it.reason }).collect()
    }

    /// Refuses to empty what has no place elsewhere, or without which the volume is larger than it
    /// was meant to be. What is to be known of the rest is told.
    pub(super) fn check_emptying(
        &self,
        found: &FoundVolume,
        tier: &NamedPart,
        overcommit: bool,
    ) -> Result<Option<Told>, ApiError> {
        let (name, bytes) = (&found.snapshot.view.name, found.snapshot.view.bytes);
        if let Some((device, lives)) = tier.missing.iter().find(|it| it.1 > 0) {
            let lives = human(*lives);
            let text = format!("{device} is missing, and {lives} that live there cannot move");
            let (volume, device) = (name.clone(), device.clone());
            return Err(ApiError::refused(text)
                .hint(Hint::attach(name, When::DevicesBack))
                .hint(Hint::DropLost { volume, device }));
        }
        if tier.used_bytes > tier.elsewhere_bytes {
            return Err(no_room(tier));
        }
        if bytes.div_ceil(EXTENT_SIZE) * EXTENT_SIZE <= tier.rest_bytes {
            return Ok(None);
        }
        if !overcommit && !self.store.get().tiers_of(name).is_some_and(|it| it.overcommit) {
            let (has, rest) = (human(bytes), human(tier.rest_bytes));
            let others = if tier.part.whole_tier { "tiers" } else { "devices" };
            let text = format!("volume {name} has {has}, and the other {others} hold {rest}");
            return Err(ApiError::refused(text)
                .hint(Hint::SeeTo { what: Care::TiersMore })
                .hint(Hint::Again { with: Flag::Overcommit }));
        }
        let (size_bytes, rest_bytes) = (Bytes(bytes), Bytes(tier.rest_bytes));
        Ok(Some(Told::LargerThanTiers { volume: name.clone(), size_bytes, rest_bytes }))
    }

    /// Refuses to take away that without which there is no volume.
    pub(super) fn check_removal(
        &self,
        found: &FoundVolume,
        tier: &NamedPart,
    ) -> Result<(), ApiError> {
        let view = &found.snapshot.view;
        let (name, number) = (&view.name, tier.part.tier);
        let devices = tier.part.devices.join(", ");
        if tier.is_only {
            let text = format!("tier {number} ({devices}) is the only tier of volume {name}");
            return Err(ApiError::refused(text).hint(Hint::remove(name, When::NotNeeded)));
        }
        let members = tier.members.clone();
        let look = found.open.handle.look_at_tiers(view.id, move |tiered, _| {
            (tiered.tiers().why_not_remove(&members), tiered.is_ephemeral())
        });
        match look.map_err(|error| shard_error(&found.pool, &error))? {
            Some((Some(Refusal::LastPersistent), true)) => {
                let text = format!(
                    "{devices} is the last memory of volume {name}, and only memory holds the map \
                     of a volume that ends with the machine"
                );
                Err(ApiError::refused(text).hint(Hint::SeeTo { what: Care::TierMemory }))
            }
            Some((Some(why), _)) => Err(refused(why)),
            _ => Ok(()),
        }
    }

    /// From now on the volume may be larger than its tiers, until an evacuation that was allowed
    /// this is cancelled. Whether it was not allowed before.
    pub(super) fn allow_overcommit(&self, name: &str) -> Result<bool, ApiError> {
        if self.store.get().tiers_of(name).is_some_and(|it| it.overcommit) {
            return Ok(false);
        }
        self.remember(|all| {
            let own = all.tiered.iter_mut().filter(|it| it.name == name);
            own.for_each(|it| (it.overcommit, it.overcommit_lent) = (true, true));
        })?;
        Ok(true)
    }

    /// Takes back what only an evacuation was allowed, or has it stay.
    pub(super) fn end_overcommit(&self, name: &str, stays: bool) -> Result<(), ApiError> {
        self.remember(|all| {
            let own = all.tiered.iter_mut().filter(|it| it.name == name && it.overcommit_lent);
            own.for_each(|it| (it.overcommit, it.overcommit_lent) = (stays, false));
        })
    }

    pub(in crate::supervisor) fn tier_evacuate(
        &self,
        wanted: &TierChange,
    ) -> Result<Done, ApiError> {
        let name = &wanted.name;
        let (found, now) = self.find_tiers(name)?;
        let tier = self.named_part(name, &now, &wanted.tier)?;
        let (part, used_bytes) = (tier.part.clone(), Bytes(tier.used_bytes));
        if let Some(left) = tier.left_bytes.filter(|_| tier.missing.is_empty()) {
            return Ok(goes_on(name, part, left, wanted.dry_run));
        }
        let larger = self.check_emptying(&found, &tier, wanted.overcommit)?;
        let pins = self.pins_without(name, &now, &tier);
        if wanted.dry_run {
            let pace = self.how_long_to_move(name, tier.used_bytes);
            let told = Told::WouldEvacuate { used_bytes, part: PartInFull(part), pace };
            let mut planned = Done::new(Outcome::Planned, told);
            planned.told.extend(larger);
            planned.told.extend(pins);
            return Ok(planned);
        }
        let is_lent = larger.is_some() && self.allow_overcommit(name)?;
        let view = &found.snapshot.view;
        let command = Command::Evacuate(tier.members.clone());
        let started = found.open.handle.tiers_start(view.id, command);
        let started = started.map_err(|error| shard_error(&found.pool, &error))?;
        let told = match started.recv_timeout(REFUSED_WITHIN) {
            Ok(CommandReply::Changed | CommandReply::Unchanged | CommandReply::Added(_)) => {
                let mut done = Done::new(Outcome::Changed, Told::TierIsEmpty { part });
                done.told.extend(pins);
                return Ok(done);
            }
            Ok(CommandReply::Refused(why)) => {
                if is_lent {
                    self.end_overcommit(name, false)?;
                }
                return Err(match why {
                    Refusal::NoRoom(_) => no_room(&tier),
                    why => refused(why),
                });
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(shard_error(&found.pool, &ShardError::Stopped));
            }
            Err(RecvTimeoutError::Timeout) => Told::Evacuates { used_bytes, part },
        };
        let mut done = Done::new(Outcome::Started, told);
        done.told.push(Told::HowFar { volume: name.clone() });
        done.told.extend(pins);
        Ok(done)
    }

    /// How long it takes to move so much.
    fn how_long_to_move(&self, name: &str, bytes: u64) -> Pace {
        let state = self.store.get();
        let known = state.tiers_of(name);
        if known.is_some_and(|it| it.paused) {
            return Pace::Paused { volume: name.to_string() };
        }
        let rate_bytes = self.tuning_of_volume(name).move_rate;
        let window = Times(known.and_then(|it| it.window));
        Pace::Moves { rate_bytes, seconds: bytes / rate_bytes.max(1), window }
    }

    pub(in crate::supervisor) fn tier_cancel(&self, wanted: &TierChange) -> Result<Done, ApiError> {
        let name = &wanted.name;
        let (found, now) = self.find_tiers(name)?;
        let NamedPart { part, members, .. } = self.named_part(name, &now, &wanted.tier)?;
        let leaving = now.view.members.iter().filter(|it| it.state == MemberState::Leaving);
        let is_named = |it: &MemberView| members.contains(&it.member);
        if !leaving.clone().any(is_named) {
            return Ok(Done::new(Outcome::Unchanged, Told::TierIsInUse { part }));
        }
        if wanted.dry_run {
            return Ok(Done::new(Outcome::Planned, Told::WouldUseTier { part }));
        }
        let is_last = leaving.clone().all(is_named);
        let outcome = self.ask_tiers(&found, Command::Cancel(members.clone()))?;
        if is_last {
            self.end_overcommit(name, false)?;
        }
        Ok(Done::new(outcome, Told::TierUsedAgain { part }))
    }

    /// Bytes that the tiers of a volume hold, which has `bytes`, and most that it can have.
    pub(in crate::supervisor) fn tiers_can_hold(
        &self,
        found: &FoundVolume,
        now: &TiersSnapshot,
        bytes: u64,
    ) -> (u64, u64) {
        let name = &found.snapshot.view.name;
        let overcommit = self.store.get().tiers_of(name).is_some_and(|it| it.overcommit);
        let held = self.tiers_info(name, now).capacity_bytes.min(now.bytes_max).max(bytes);
        (held, if overcommit { now.bytes_max } else { held })
    }

    /// Has the tiers of a volume hold more of it, if they do not.
    pub(in crate::supervisor) fn grow_tiers(
        &self,
        found: &FoundVolume,
        bytes: u64,
    ) -> Result<(), ApiError> {
        let view = &found.snapshot.view;
        let there = origin_bytes(found)?;
        if let Some(now) = &found.snapshot.tiers {
            check_not_stuck(&self.tiers_info(&view.name, now))?;
        }
        match there.is_some_and(|there| there < bytes) {
            true => self.ask_tiers(found, Command::Resize(bytes)).map(drop),
            false => Ok(()),
        }
    }

    /// Has the tiers do what they do at once.
    pub(super) fn ask_tiers(
        &self,
        found: &FoundVolume,
        command: Command,
    ) -> Result<Outcome, ApiError> {
        match self.tell_tiers_to(found, command)? {
            CommandReply::Changed | CommandReply::Added(_) => Ok(Outcome::Changed),
            CommandReply::Unchanged => Ok(Outcome::Unchanged),
            CommandReply::Refused(why) => Err(refused(why)),
        }
    }

    /// As [`Supervisor::ask_tiers`], with the answer as it is.
    pub(super) fn tell_tiers_to(
        &self,
        found: &FoundVolume,
        command: Command,
    ) -> Result<CommandReply, ApiError> {
        let answer = found.open.handle.tiers_start(found.snapshot.view.id, command);
        let answer = answer.map_err(|error| shard_error(&found.pool, &error))?;
        self.answer_of_tiers(found, &answer)
    }

    /// How data of a volume is placed.
    pub(super) fn tuning_of_volume(&self, name: &str) -> forebay_tier::Tuning {
        let state = self.store.get();
        state.tiers_of(name).map(super::tuning_of).unwrap_or_default()
    }
}

/// The members that were named: by the number of their tier, or as devices with commas between.
fn named_devices(
    volume: &str,
    all: &[(MemberId, TierDevice)],
    named: &str,
) -> Result<Vec<MemberId>, ApiError> {
    let unknown = |what: &str| {
        let tiers = all.iter().map(|(_, it)| format!("{} ({})", it.tier, it.device));
        let tiers = tiers.collect::<Vec<_>>().join(", ");
        ApiError::usage(format!("volume {volume} has no tier {what}, but {tiers}"))
    };
    if let Ok(number) = named.parse::<u8>() {
        let own = all.iter().filter(|(_, it)| it.tier == number);
        let own: Vec<MemberId> = own.map(|it| it.0).collect();
        return if own.is_empty() { Err(unknown(named)) } else { Ok(own) };
    }
    // A name may have a comma in it.
    let is_one = all.iter().any(|(_, it)| same_file(&it.device, named));
    let names = if is_one { vec![named] } else { named.split(',').collect() };
    let mut own: Vec<&(MemberId, TierDevice)> = Vec::new();
    for name in names {
        // Memory of one size has one name, whoever it is: one that leaves is meant before others.
        let so_called = all.iter().filter(|(_, it)| same_file(&it.device, name));
        let mut so_called: Vec<_> = so_called.collect();
        so_called.sort_by_key(|(_, it)| !it.leaving);
        let Some(&one) = so_called.first() else { return Err(unknown(name)) };
        let is_new = |it: &&(MemberId, TierDevice)| own.iter().all(|other| other.0 != it.0);
        let Some(next) = so_called.into_iter().find(is_new) else {
            return Err(ApiError::usage(format!("{} is named twice", one.1.device)));
        };
        own.push(next);
    }
    match own.iter().find(|(_, it)| it.tier != own[0].1.tier) {
        Some((_, other)) => Err(ApiError::usage(format!("{} is on another tier", other.device))),
        None => Ok(own.iter().map(|it| it.0).collect()),
    }
}

/// What is told of what is being emptied already.
fn goes_on(name: &str, part: TierPart, left: u64, dry_run: bool) -> Done {
    let outcome = match (left, dry_run) {
        (_, true) => Outcome::Planned,
        (0, false) => Outcome::Unchanged,
        (_, false) => Outcome::Started,
    };
    if left == 0 {
        return Done::new(outcome, Told::TierWasEmpty { part });
    }
    let told = Told::EvacuatesAlready { left_bytes: Bytes(left), part };
    let mut done = Done::new(outcome, told);
    done.told.push(Told::HowFar { volume: name.to_string() });
    done
}

fn no_room(tier: &NamedPart) -> ApiError {
    let text = format!(
        "{} holds {}, and the others have room for {}",
        tier.part,
        human(tier.used_bytes),
        human(tier.elsewhere_bytes)
    );
    ApiError::refused(text).hint(Hint::SeeTo { what: Care::TiersFull })
}

/// Why the tiers did not do what was asked.
pub(super) fn refused(why: Refusal) -> ApiError {
    match why {
        Refusal::NoRoom(extents) => {
            let bytes = human(u64::from(extents) * EXTENT_SIZE);
            ApiError::refused(format!("the other devices have {bytes} too little room"))
        }
        Refusal::NoTier => ApiError::usage("there is no such tier"),
        Refusal::NotLeaving => ApiError::conflict("it is in use, and is not being emptied"),
        Refusal::Size => ApiError::refused("the map of the tiers has no room for such a size"),
        Refusal::Failed => ApiError::failed("a device of the tiers failed meanwhile")
            .hint(Hint::SeeTo { what: Care::Disk }),
        Refusal::Cancelled => ApiError::conflict("it was cancelled"),
        Refusal::IsMember => ApiError::conflict("it is a device of these tiers already"),
        Refusal::OtherNumber(_) => ApiError::failed("another device was added meanwhile"),
        Refusal::TooMany => {
            let text = format!("a volume has {TIERS_MAX} tiers of {MEMBERS_MAX} devices at most");
            ApiError::refused(text)
        }
        Refusal::TooSmall(needed) => {
            let needed = human(needed);
            ApiError::refused(format!("the device is too small: {needed} are needed at least"))
        }
        Refusal::Volatile => {
            let text = "memory ends with the machine, and this volume does not";
            ApiError::refused(text).hint(Hint::Choose { what: Choice::RamAbove })
        }
        Refusal::Leaving => ApiError::conflict("that tier is being emptied"),
        Refusal::NotEmpty(slots) => {
            let left = human(u64::from(slots) * EXTENT_SIZE);
            ApiError::refused(format!("it is not empty yet: {left} are left on it"))
        }
        Refusal::LastPersistent => {
            ApiError::refused("no other device could hold the map of what lives where")
        }
        Refusal::NoMember => ApiError::usage("there is no such device"),
        Refusal::IsHere => ApiError::refused("the device is here, and in use"),
        Refusal::Busy => {
            ApiError::conflict("another tier or device is being emptied, or one joins or leaves")
                .hint(Hint::Wait { until: Until::TierIsEmpty })
        }
    }
}
