//! What is to live on a certain tier, and how the rest is placed.

use super::show::{extents_of, holds};
use super::tuning_of;
use crate::state::PinState;
use crate::supervisor::{FoundVolume, Supervisor};
use forebay_api::hint::{Bytes, Care};
use forebay_api::reply::Done;
use forebay_api::request::{TierPin, TierSet};
use forebay_api::size::human;
use forebay_api::tiers::{TiersInfo, Window};
use forebay_api::told::{Overcommit, Times};
use forebay_api::{ApiError, Hint, Outcome, Size, Told};
use forebay_format::tier::EXTENT_SIZE;
use forebay_host::origin::tiered::TiersSnapshot;
use forebay_tier::Command;

/// The least rate of moves: at less, one mebibyte takes longer than moves are waited for.
const RATE_MIN: u64 = EXTENT_SIZE;
/// Ranges that may be pinned in a volume.
const PINS_MAX: usize = 4096;

impl Supervisor {
    pub(in crate::supervisor) fn tier_pin(&self, wanted: &TierPin) -> Result<Done, ApiError> {
        let name = &wanted.name;
        let (found, now) = self.find_tiers(name)?;
        let tier = match &wanted.tier {
            Some(tier) => Some(self.named_tier(name, &now, tier)?),
            None => None,
        };
        let extents = extents_of(&wanted.ranges, found.snapshot.view.bytes)?;
        let runs = runs_of(&extents);
        let bytes: u64 = runs.iter().map(|(_, count)| u64::from(*count) * EXTENT_SIZE).sum();
        let (volume, bytes) = (name.clone(), Bytes(bytes));
        let told = match tier {
            Some(tier) => Told::Pinned { pinned_bytes: bytes, volume, tier },
            None => Told::Unpinned { unpinned_bytes: bytes, volume },
        };
        let state = self.store.get();
        let mut pins = state.tiers_of(name).map_or_else(Vec::new, |it| it.pins.clone());
        for &(first, count) in &runs {
            put_pin(&mut pins, (first, count), tier);
        }
        if pins.len() > PINS_MAX {
            let text = format!("a volume has {PINS_MAX} pinned ranges at most");
            return Err(ApiError::refused(text));
        }
        if let Some(tier) = tier {
            check_pinned(&self.tiers_info(name, &now), &pins, tier)?;
        }
        if wanted.dry_run {
            return Ok(Done::new(Outcome::Planned, told));
        }
        self.remember(|all| {
            if let Some(tiers) = all.tiered.iter_mut().find(|it| it.name == *name) {
                tiers.pins = pins;
            }
        })?;
        let mut outcome = Outcome::Unchanged;
        for (first, count) in runs {
            if self.ask_tiers(&found, Command::Pin { first, count, tier })? == Outcome::Changed {
                outcome = Outcome::Changed;
            }
        }
        Ok(Done::new(outcome, told))
    }

    pub(in crate::supervisor) fn tier_set(&self, wanted: &TierSet) -> Result<Done, ApiError> {
        let name = &wanted.name;
        let (found, now) = self.find_tiers(name)?;
        if wanted.overcommit == Some(false) {
            self.check_not_larger(&found, &now)?;
        }
        let rate = match wanted.rate.as_deref().map(str::parse::<Size>).transpose() {
            Ok(Some(Size::Bytes(bytes @ RATE_MIN..))) => Some(bytes),
            Ok(Some(Size::Bytes(_))) => return Err(too_slow(name)),
            Ok(None) => None,
            Ok(Some(_)) => return Err(ApiError::usage("give the rate as a size, such as 100M")),
            Err(why) => return Err(ApiError::usage(why)),
        };
        let window = match wanted.window.as_deref() {
            None => None,
            Some("always") => Some(None),
            Some(text) => Some(Some(text.parse::<Window>().map_err(ApiError::usage)?)),
        };
        let before = self.store.get();
        self.remember(|all| {
            if let Some(tiers) = all.tiered.iter_mut().find(|it| it.name == *name) {
                tiers.placement = wanted.placement.unwrap_or(tiers.placement);
                tiers.rate = rate.or(tiers.rate);
                tiers.window = window.unwrap_or(tiers.window);
                if let Some(overcommit) = wanted.overcommit {
                    (tiers.overcommit, tiers.overcommit_lent) = (overcommit, false);
                }
            }
        })?;
        let state = self.store.get();
        let known = state.tiers_of(name);
        let placement = known.map(|it| it.placement).unwrap_or_default();
        let tuning = known.map(tuning_of).unwrap_or_default();
        let mut outcome = self.ask_tiers(&found, Command::Tune(tuning))?;
        if self.keep_pace(&found)? || before.tiers_of(name) != known {
            outcome = Outcome::Changed;
        }
        let told = Told::Placed {
            volume: name.clone(),
            placement,
            rate_bytes: Bytes(tuning.move_rate),
            window: Times(known.and_then(|it| it.window)),
            overcommit: Overcommit(known.is_some_and(|it| it.overcommit)),
        };
        Ok(Done::new(outcome, told))
    }

    /// Refuses that a volume shall not be larger than its tiers if it is.
    fn check_not_larger(&self, found: &FoundVolume, now: &TiersSnapshot) -> Result<(), ApiError> {
        let (name, bytes) = (&found.snapshot.view.name, found.snapshot.view.bytes);
        let info = self.tiers_info(name, now);
        let stay = info.devices.iter().filter(|it| !it.leaving);
        let hold: u64 = stay.map(|it| it.bytes).sum();
        if bytes <= hold {
            return Ok(());
        }
        let text =
            format!("volume {name} has {}, and its tiers hold {}", human(bytes), human(hold));
        Err(ApiError::refused(text).hint(Hint::SeeTo { what: Care::TiersMore }))
    }
}

fn too_slow(volume: &str) -> ApiError {
    let least = human(RATE_MIN);
    let text = format!("moves copy {least}/s at least: give the rate as a size, such as 100M");
    ApiError::usage(text).hint(Hint::PauseMoves { volume: volume.to_string() })
}

/// Refuses more than fits: what is promised is kept.
fn check_pinned(info: &TiersInfo, pins: &[PinState], tier: u8) -> Result<(), ApiError> {
    let holds = holds(&info.devices, tier, |_| true);
    let pinned = pins.iter().filter(|it| it.tier == tier);
    let pinned: u64 = pinned.map(|it| u64::from(it.count) * EXTENT_SIZE).sum();
    if pinned <= holds {
        return Ok(());
    }
    let (holds, pinned) = (human(holds), human(pinned));
    let text = format!("tier {tier} holds {holds}, and {pinned} would be pinned to it");
    Err(ApiError::refused(text))
}

/// Runs of extents that follow each other, as the first and how many.
fn runs_of(extents: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &extent in extents {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == extent => *count += 1,
            _ => runs.push((extent, 1)),
        }
    }
    runs
}

/// Puts a range into pins that are sorted and apart; `None` takes it out.
fn put_pin(pins: &mut Vec<PinState>, (first, count): (u32, u32), tier: Option<u8>) {
    let end = first + count;
    let mut left = Vec::new();
    for pin in pins.drain(..) {
        let pin_end = pin.first + pin.count;
        if pin_end <= first || pin.first >= end {
            left.push(pin);
            continue;
        }
        if pin.first < first {
            left.push(PinState { count: first - pin.first, ..pin });
        }
        if pin_end > end {
            left.push(PinState { first: end, count: pin_end - end, ..pin });
        }
    }
    left.extend(tier.map(|tier| PinState { first, count, tier }));
    left.sort_by_key(|pin| pin.first);
    // What follows each other on one tier is one.
    for pin in left {
        match pins.last_mut() {
            Some(last) if last.first + last.count == pin.first && last.tier == pin.tier => {
                last.count += pin.count;
            }
            _ => pins.push(pin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_stay_sorted_and_apart() {
        let mut pins = Vec::new();
        put_pin(&mut pins, (10, 10), Some(0));
        put_pin(&mut pins, (20, 5), Some(0));
        assert_eq!(pins, [PinState { first: 10, count: 15, tier: 0 }]);
        put_pin(&mut pins, (12, 3), Some(1));
        put_pin(&mut pins, (0, 11), None);
        let wanted = [(11, 1, 0), (12, 3, 1), (15, 10, 0)];
        assert_eq!(pins, wanted.map(|(first, count, tier)| PinState { first, count, tier }));
        put_pin(&mut pins, (0, 100), None);
        assert!(pins.is_empty());
    }
}
