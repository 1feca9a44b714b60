//! When what moves between tiers may move: an administrator's pause, and a part of each day.

use crate::state::TieredState;
use crate::supervisor::{FoundVolume, Supervisor};
use forebay_api::reply::Done;
use forebay_api::told::Times;
use forebay_api::{ApiError, Outcome, Told};
use forebay_host::clock::local_minute;
use forebay_tier::Command;
use std::sync::TryLockError;

/// Whether nothing is to move now.
pub(super) fn rests(known: &TieredState) -> bool {
    known.paused || is_outside(known)
}

/// Whether it is not the time for moves.
pub(super) fn is_outside(known: &TieredState) -> bool {
    known.window.is_some_and(|window| !window.has(local_minute()))
}

impl Supervisor {
    pub(in crate::supervisor) fn tier_pause(
        &self,
        name: &str,
        pause: bool,
    ) -> Result<Done, ApiError> {
        let (found, _) = self.find_tiers(name)?;
        let mut outcome = Outcome::Unchanged;
        self.remember(|all| {
            let tiers = all.tiered.iter_mut().find(|it| it.name == name && it.paused != pause);
            if let Some(tiers) = tiers {
                tiers.paused = pause;
                outcome = Outcome::Changed;
            }
        })?;
        if self.keep_pace(&found)? {
            outcome = Outcome::Changed;
        }
        let state = self.store.get();
        let window = state.tiers_of(name).filter(|it| is_outside(it)).and_then(|it| it.window);
        let volume = name.to_string();
        let told = match pause {
            true => Told::Paused { volume },
            false => Told::Resumed { volume, window: Times(window) },
        };
        Ok(Done::new(outcome, told))
    }

    /// Has the tiers of a volume rest, or not. Whether they did otherwise.
    pub(super) fn keep_pace(&self, found: &FoundVolume) -> Result<bool, ApiError> {
        let (name, state) = (&found.snapshot.view.name, self.store.get());
        let (Some(known), Some(now)) = (state.tiers_of(name), &found.snapshot.tiers) else {
            return Ok(false);
        };
        let rests = rests(known);
        if now.view.is_paused == rests {
            return Ok(false);
        }
        self.ask_tiers(found, if rests { Command::Pause } else { Command::Resume })?;
        Ok(true)
    }

    /// Begins and ends the rest of volumes that have a time for it.
    pub(in crate::supervisor) fn watch_windows(&self) {
        let state = self.store.get();
        let timed = state.tiered.iter().filter(|it| it.window.is_some());
        let timed: Vec<&TieredState> = timed.collect();
        if timed.is_empty() {
            return;
        }
        let _changes = match self.changes.try_lock() {
            // Who changes something may change this.
            Err(TryLockError::WouldBlock) => return,
            changes => changes,
        };
        for known in timed {
            let name = known.name.as_str();
            let Ok(found) = self.find_volume(name) else { continue };
            match self.keep_pace(&found) {
                Ok(true) if rests(known) => tracing::info!(volume = name, "its moves rest"),
                Ok(true) => tracing::info!(volume = name, "its moves go on"),
                Ok(false) => {}
                Err(error) => tracing::warn!(volume = name, "its moves: {}", error.message),
            }
        }
    }
}
