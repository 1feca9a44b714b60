//! Devices of tiers that were missing and are here again, under whatever names.

use super::search::Elsewhere;
use super::witness::WAS_CUT;
use crate::convert::hex;
use crate::state::{MemberState, TieredState};
use crate::supervisor::late::{Awaited, NotThere};
use crate::supervisor::{COMMAND_TIMEOUT, FoundVolume, Supervisor, shard_error};
use forebay_api::hint::Care;
use forebay_api::reply::{Attention, Done, State};
use forebay_api::told::Names;
use forebay_api::{ApiError, Hint, Outcome, Told};
use forebay_host::origin::tiered::TiersSnapshot;
use forebay_host::shard::ShardError;
use std::sync::Arc;
use std::time::Duration;

/// How long I/O under way on tiers may take to end, before they are opened again.
const REST_TIMEOUT: Duration = Duration::from_secs(8);

impl Supervisor {
    /// Opens the tiers of a volume anew, if devices that were missing are here.
    pub(in crate::supervisor) fn reopen_tiers(
        self: &Arc<Self>,
        found: &FoundVolume,
        dry_run: bool,
    ) -> Result<Option<Done>, ApiError> {
        let view = &found.snapshot.view;
        let Some(now) = &found.snapshot.tiers else { return Ok(None) };
        let state = self.store.get();
        let Some(known) = state.tiers_of(&view.name) else { return Ok(None) };
        let missing = missing_of(known, now);
        if missing.is_empty() {
            return Ok(None);
        }
        if let Some(cut) = missing.iter().find(|it| known.was_cut(&it.uri)) {
            let (volume, device) = (view.name.clone(), cut.uri.clone());
            let error = ApiError::refused(format!("{device} {WAS_CUT}"));
            let restore = Hint::RestoreTier { volume: volume.clone(), device: device.clone() };
            return Err(error.hint(restore).hint(Hint::DropLost { volume, device }));
        }
        let Elsewhere { found: back, twins } = self.found_anew(known, &missing);
        let devices = Names(back.values().cloned().collect());
        if back.is_empty() {
            return match self.has_more_to_attach(found) {
                true => Ok(None),
                false => Err(still_missing(&view.name, &missing, &twins)),
            };
        }
        if dry_run {
            return Ok(Some(Done::new(Outcome::Planned, Told::WouldUseAgain { devices })));
        }
        self.open_again(found)?;
        let (_, now) = self.find_tiers(&view.name)?;
        let missing = missing_of(known, &now);
        if let Some(old) = missing.iter().find_map(|it| back.get(&it.uuid)) {
            return Err(ApiError::refused(is_older(old)));
        }
        let mut done = self.how_to_use(&view.name, false)?;
        done.told.push_first(Told::UsedAgain { devices });
        Ok(Some(done))
    }

    /// Closes the tiers of a volume and opens them again, with what is there now: what clients ask
    /// meanwhile waits.
    fn open_again(self: &Arc<Self>, found: &FoundVolume) -> Result<(), ApiError> {
        let (view, handle) = (&found.snapshot.view, &found.open.handle);
        let failed = |error| shard_error(&found.pool, &error);
        let let_go = || {
            self.exports.park(&view.name);
            handle.origin_lost(view.id, COMMAND_TIMEOUT).map_err(failed)
        };
        match handle.rest_tiers(view.id, REST_TIMEOUT) {
            Ok(true) => {}
            Ok(false) => {
                let text = format!(
                    "volume {}: I/O has been under way for {} s: nothing was changed",
                    view.name,
                    REST_TIMEOUT.as_secs()
                );
                return Err(ApiError::failed(text));
            }
            Err(error @ ShardError::Timeout(_)) => {
                // They do not come to their end. A start finds what a kill would leave.
                let_go()?;
                return Err(failed(error));
            }
            Err(error) => return Err(failed(error)),
        }
        let opened = self.look_at(&Awaited::from(view)).and_then(|looked| {
            let given = handle.replace_tiers(view.id, looked.origin, COMMAND_TIMEOUT);
            given.map_err(|error| NotThere::Failed(failed(error)))
        });
        match opened {
            Ok(true) => Ok(()),
            Ok(false) | Err(NotThere::Late(..)) => {
                let_go()?;
                self.bring_origin(found, false)
            }
            Err(NotThere::Failed(error)) => {
                let_go()?;
                Err(error)
            }
        }
    }

    /// Adds what of a volume's tiers is not as it should be.
    pub(in crate::supervisor) fn tell_of_tiers(&self, name: &str, done: &mut Done) {
        let Ok((_, now)) = self.find_tiers(name) else { return };
        let (mut state, mut attention) = (State::Ok, Attention::default());
        self.tell_tiers(name, &now, &mut state, &mut attention);
        if state == State::Ok {
            return;
        }
        let all = self.store.get();
        let Some(known) = all.tiers_of(name) else { return };
        let mut missing = missing_of(known, &now);
        missing.retain(|it| !known.was_cut(&it.uri));
        let here = self.found_anew(known, &missing).found;
        let old = here.values().map(|it| Told::AlsoDegraded { why: is_older(it) });
        done.told.extend(attention.causes.texts().into_iter().map(|why| Told::Degraded { why }));
        done.told.extend(old);
        let hints = attention.hints.typed().cloned();
        done.told.extend(hints.map(|hint| Told::DegradedAction { hint }));
        done.degraded = true;
    }

    /// Whether a volume is out of service for another reason than a device that is missing.
    fn has_more_to_attach(&self, found: &FoundVolume) -> bool {
        let name = &found.snapshot.view.name;
        found.snapshot.view.offline.is_some()
            || found.open.problems.contains_key(name)
            || self.exports.is_renewable(name, found.snapshot.ports)
    }
}

/// What is said of a device that is where it should be, and is an older copy.
pub(super) fn is_older(device: &str) -> String {
    format!(
        "{device} is here and not used: older than what the volume had there; to compare it with \
         the others: forebay inspect DEVICE ..."
    )
}

/// The devices that a volume misses, as they are remembered.
fn missing_of<'k>(known: &'k TieredState, now: &TiersSnapshot) -> Vec<&'k MemberState> {
    let away = now
        .view
        .members
        .iter()
        .zip(&now.uuids)
        .filter(|(it, _)| !it.is_here && it.state != forebay_tier::MemberState::None);
    let away: Vec<String> = away.map(|(_, uuid)| hex(uuid)).collect();
    known.members.iter().filter(|it| away.contains(&it.uuid)).collect()
}

fn still_missing(name: &str, missing: &[&MemberState], twins: &[String]) -> ApiError {
    let told = missing.iter().map(|it| format!("{}, on tier {}", it.uri, it.tier));
    let told = told.collect::<Vec<_>>().join(", and ");
    if !twins.is_empty() {
        let text = format!(
            "{told}, is still missing: {} all say that they are it, as copies of each other do",
            twins.join(" and ")
        );
        return ApiError::failed(text).hint(Hint::SeeTo { what: Care::Twin });
    }
    let text = format!(
        "{told}, is still missing: it is not there, and no block device of this machine says that \
         it is it"
    );
    ApiError::failed(text).hint(Hint::NameTiers { volume: name.to_string() })
}
