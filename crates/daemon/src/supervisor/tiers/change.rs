//! Changes of tiers that are in use.

use super::health::check_not_stuck;
use crate::supervisor::late::origin_bytes;
use crate::supervisor::plan::same_file;
use crate::supervisor::{FoundVolume, Supervisor, shard_error};
use forebay_api::hint::{Bytes, Care, Choice, Flag, Until, When};
use forebay_api::reply::Done;
use forebay_api::request::TierChange;
use forebay_api::size::human;
use forebay_api::tiers::{DeviceState, TierDevice, TiersInfo};
use forebay_api::told::{Names, Pace, Times};
use forebay_api::{ApiError, Hint, Outcome, Told};
use forebay_format::tier::{EXTENT_SIZE, MEMBERS_MAX, TIERS_MAX};
use forebay_host::origin::tiered::TiersSnapshot;
use forebay_host::shard::ShardError;
use forebay_tier::{Command, CommandReply, MemberState, MemberView, Refusal};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// How long an evacuation is waited for: one that is refused is refused at once.
const REFUSED_WITHIN: Duration = Duration::from_millis(500);

/// A tier that was named, and what is on it.
pub(super) struct NamedTier {
    pub number: u8,
    used_bytes: u64,
    /// Free on the tiers that stay.
    elsewhere_bytes: u64,
    /// What those tiers hold, free or not.
    rest_bytes: u64,
    /// It is being emptied, with so much left on it.
    pub left_bytes: Option<u64>,
    pub devices: Vec<String>,
    /// Devices of it that are missing, and what lives on them.
    missing: Vec<(String, u64)>,
    /// Whether the volume has others.
    is_only: bool,
}

impl Supervisor {
    /// The tier of a volume with this number, or with this device.
    pub(super) fn named_tier(
        &self,
        name: &str,
        now: &TiersSnapshot,
        tier: &str,
    ) -> Result<NamedTier, ApiError> {
        let info = self.tiers_info(name, now);
        let is_named =
            |device: &&TierDevice| tier.parse() == Ok(device.tier) || is_in(tier, device);
        let Some(number) = info.devices.iter().find(is_named).map(|it| it.tier) else {
            let tiers = info.devices.iter().map(|it| format!("{} ({})", it.tier, it.device));
            let tiers = tiers.collect::<Vec<_>>().join(", ");
            return Err(ApiError::usage(format!("volume {name} has no tier {tier}, but {tiers}")));
        };
        let (own, others): (Vec<_>, Vec<_>) =
            info.devices.iter().partition(|device| device.tier == number);
        let leaves = |tier: u8| info.evacuations.iter().any(|it| it.tier == tier);
        let stays = |it: &&&TierDevice| match it.state {
            DeviceState::Ok => true,
            DeviceState::Failing | DeviceState::NoAnswer => !leaves(it.tier),
            DeviceState::Missing | DeviceState::Leaving | DeviceState::Cut => false,
        };
        let staying: Vec<_> = others.iter().filter(stays).collect();
        let missing = own.iter().filter(|it| it.state == DeviceState::Missing);
        let leaving = info.evacuations.iter().find(|it| it.tier == number);
        Ok(NamedTier {
            number,
            used_bytes: own.iter().map(|it| it.used_bytes).sum(),
            elsewhere_bytes: staying.iter().map(|it| it.bytes - it.used_bytes).sum(),
            rest_bytes: staying.iter().map(|it| it.bytes).sum(),
            left_bytes: leaving.map(|it| it.left_bytes),
            devices: own.iter().map(|it| it.device.clone()).collect(),
            missing: missing.map(|it| (it.device.clone(), it.used_bytes)).collect(),
            is_only: others.is_empty(),
        })
    }

    /// The tier that is to be emptied: one device of several is not all of it.
    pub(super) fn whole_tier(
        &self,
        verb: &str,
        (name, now): (&str, &TiersSnapshot),
        tier: &str,
    ) -> Result<NamedTier, ApiError> {
        let named = self.named_tier(name, now, tier)?;
        let info = self.tiers_info(name, now);
        let own = info.devices.iter().filter(|it| it.tier == named.number);
        let is_whole = tier.parse() == Ok(named.number) || own.clone().all(|it| is_in(tier, it));
        if let (true, Some(other)) = (is_whole, tier_of_other(&info, tier, named.number)) {
            return Err(ApiError::usage(format!("{other} is on another tier")));
        }
        if is_whole {
            return Ok(named);
        }
        let (number, devices) = (named.number, named.devices.join(" and "));
        let text = format!(
            "tier {number} is {devices}: one device of a tier cannot be taken out alone yet"
        );
        Err(ApiError::refused(text).hint(Hint::WholeTier {
            verb: verb.to_string(),
            volume: name.to_string(),
            tier: number,
        }))
    }

    /// Refuses to empty a tier whose content has no place, or without which the volume is larger
    /// than it was meant to be. What is to be known of the rest is told.
    pub(super) fn check_emptying(
        &self,
        found: &FoundVolume,
        tier: &NamedTier,
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
            let text = format!("volume {name} has {has}, and the other tiers hold {rest}");
            return Err(ApiError::refused(text)
                .hint(Hint::SeeTo { what: Care::TiersMore })
                .hint(Hint::Again { with: Flag::Overcommit }));
        }
        let (size_bytes, rest_bytes) = (Bytes(bytes), Bytes(tier.rest_bytes));
        Ok(Some(Told::LargerThanTiers { volume: name.clone(), size_bytes, rest_bytes }))
    }

    /// Refuses to take a tier away without which there is no volume.
    pub(super) fn check_removal(
        &self,
        found: &FoundVolume,
        tier: &NamedTier,
    ) -> Result<(), ApiError> {
        let view = &found.snapshot.view;
        let (name, number) = (&view.name, tier.number);
        let devices = tier.devices.join(", ");
        if tier.is_only {
            let text = format!("tier {number} ({devices}) is the only tier of volume {name}");
            return Err(ApiError::refused(text).hint(Hint::remove(name, When::NotNeeded)));
        }
        let look = found.open.handle.look_at_tiers(view.id, move |tiered, _| {
            (tiered.tiers().why_not_remove(number), tiered.is_ephemeral())
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
    /// this is cancelled.
    pub(super) fn allow_overcommit(&self, name: &str) -> Result<(), ApiError> {
        self.remember(|all| {
            let own = all.tiered.iter_mut().filter(|it| it.name == name && !it.overcommit);
            own.for_each(|it| (it.overcommit, it.overcommit_lent) = (true, true));
        })
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
        let tier = self.whole_tier("evacuate", (name, &now), &wanted.tier)?;
        let (number, used_bytes) = (tier.number, Bytes(tier.used_bytes));
        if let Some(left) = tier.left_bytes.filter(|_| tier.missing.is_empty()) {
            return Ok(goes_on(name, number, left, wanted.dry_run));
        }
        let larger = self.check_emptying(&found, &tier, wanted.overcommit)?;
        if wanted.dry_run {
            let told = Told::WouldEvacuate {
                used_bytes,
                tier: number,
                devices: Names(tier.devices.clone()),
                pace: self.how_long_to_move(name, tier.used_bytes),
            };
            let mut planned = Done::new(Outcome::Planned, told);
            planned.told.extend(larger);
            return Ok(planned);
        }
        if larger.is_some() {
            self.allow_overcommit(name)?;
        }
        let view = &found.snapshot.view;
        let started = found.open.handle.tiers_start(view.id, Command::Evacuate(number));
        let started = started.map_err(|error| shard_error(&found.pool, &error))?;
        let told = match started.recv_timeout(REFUSED_WITHIN) {
            Ok(CommandReply::Changed | CommandReply::Unchanged | CommandReply::Added(_)) => {
                return Ok(Done::new(Outcome::Changed, Told::TierIsEmpty { tier: number }));
            }
            Ok(CommandReply::Refused(why)) => {
                self.end_overcommit(name, false)?;
                return Err(match why {
                    Refusal::NoRoom(_) => no_room(&tier),
                    why => refused(why),
                });
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(shard_error(&found.pool, &ShardError::Stopped));
            }
            Err(RecvTimeoutError::Timeout) => Told::Evacuates { used_bytes, tier: number },
        };
        let mut done = Done::new(Outcome::Started, told);
        done.told.push(Told::HowFar { volume: name.clone() });
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
        let (found, now) = self.find_tiers(&wanted.name)?;
        let tier = self.named_tier(&wanted.name, &now, &wanted.tier)?.number;
        let is_leaving = |it: &MemberView| it.tier == tier && it.state == MemberState::Leaving;
        if !now.view.members.iter().any(is_leaving) {
            return Ok(Done::new(Outcome::Unchanged, Told::TierIsInUse { tier }));
        }
        if wanted.dry_run {
            return Ok(Done::new(Outcome::Planned, Told::WouldUseTier { tier }));
        }
        let outcome = self.ask_tiers(&found, Command::Cancel(tier))?;
        self.end_overcommit(&wanted.name, false)?;
        Ok(Done::new(outcome, Told::TierUsedAgain { tier }))
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

/// Whether a device is one of those that were named, with commas between.
fn is_in(named: &str, device: &TierDevice) -> bool {
    same_file(&device.device, named) || named.split(',').any(|it| same_file(&device.device, it))
}

/// A device that was named and is not of this tier.
fn tier_of_other<'i>(info: &'i TiersInfo, named: &str, tier: u8) -> Option<&'i str> {
    let mut others = info.devices.iter().filter(|it| it.tier != tier && is_in(named, it));
    others.next().map(|it| it.device.as_str())
}

/// What is told of a tier that is being emptied already.
fn goes_on(name: &str, number: u8, left: u64, dry_run: bool) -> Done {
    let outcome = match (left, dry_run) {
        (_, true) => Outcome::Planned,
        (0, false) => Outcome::Unchanged,
        (_, false) => Outcome::Started,
    };
    if left == 0 {
        return Done::new(outcome, Told::TierWasEmpty { tier: number });
    }
    let told = Told::EvacuatesAlready { left_bytes: Bytes(left), tier: number };
    let mut done = Done::new(outcome, told);
    done.told.push(Told::HowFar { volume: name.to_string() });
    done
}

fn no_room(tier: &NamedTier) -> ApiError {
    let text = format!(
        "tier {} holds {}, and the others have room for {}",
        tier.number,
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
            ApiError::refused(format!("the other tiers have {bytes} too little room"))
        }
        Refusal::NoTier => ApiError::usage("there is no such tier"),
        Refusal::NotLeaving => ApiError::conflict("the tier is in use, and is not being emptied"),
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
            ApiError::refused(format!("the tier is not empty: {left} are left on it"))
        }
        Refusal::LastPersistent => {
            ApiError::refused("no other device could hold the map of what lives where")
        }
        Refusal::NoMember => ApiError::usage("there is no such device"),
        Refusal::IsHere => ApiError::refused("the device is here, and in use"),
        Refusal::Busy => {
            ApiError::conflict("another tier is being emptied, or a device joins or leaves")
                .hint(Hint::Wait { until: Until::TierIsEmpty })
        }
    }
}
