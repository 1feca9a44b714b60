//! Devices of sets that are not where they were: found by what is written on them.

use crate::looks::{Everything, Seen};
use crate::state::{MemberState, TieredState};
use crate::supervisor::Supervisor;
use crate::supervisor::late::in_time;
use crate::supervisor::plan::{file_of, same_file};
use forebay_api::{ApiError, Told};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What was found of devices that are not where they were.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// Where they are, by identity.
    pub found: BTreeMap<String, String>,
    /// Names of devices that all say that they are the same one: nobody can tell which is right.
    pub twins: Vec<String>,
}

impl Supervisor {
    /// Looks among the devices of the machine for members of a set.
    pub(super) fn look_elsewhere(&self, set: &str, wanted: &BTreeSet<&str>) -> Elsewhere {
        let mut elsewhere = Elsewhere::default();
        if wanted.is_empty() {
            return elsewhere;
        }
        let all = self.all_devices();
        for uuid in wanted {
            let is_it = |it: &&(String, Seen)| it.1.set == set && it.1.uuid == *uuid;
            let paths: Vec<&String> = all.iter().filter(is_it).map(|it| &it.0).collect();
            match paths[..] {
                [] => {}
                [path] => drop(elsewhere.found.insert((*uuid).to_string(), path.clone())),
                _ => {
                    tracing::error!(
                        "{paths:?} all say that they are the device {uuid} of tiers: none is used"
                    );
                    elsewhere.twins.extend(paths.into_iter().cloned());
                }
            }
        }
        elsewhere
    }

    fn all_devices(&self) -> Everything {
        let (opened, picked_up) = {
            let inner = self.inner();
            (inner.opened, inner.picked_up)
        };
        // A start looks once, and one of a pool that fell.
        let lasts = |at: Instant| !opened || picked_up.is_some_and(|since| at > since);
        self.looks.all(lasts, || self.exports.devices().into_iter().map(|(_, path)| path).collect())
    }

    /// Devices of a set that are where they are known to be, or elsewhere, of those that are
    /// missing: identity and place.
    pub(super) fn found_anew(&self, known: &TieredState, missing: &[&MemberState]) -> Elsewhere {
        // Names may have been exchanged.
        let at_its_name = |it: &&MemberState| {
            let uri = it.uri.clone();
            let seen =
                in_time(&format!("look at {uri}"), move || Ok(Seen::at(file_of(&uri)))).ok()??;
            (seen.set == known.set).then(|| (seen.uuid, it.uri.clone()))
        };
        let mut found: BTreeMap<String, String> = missing.iter().filter_map(at_its_name).collect();
        found.retain(|uuid, _| missing.iter().any(|it| it.uuid == *uuid));
        let others = missing.iter().map(|it| it.uuid.as_str());
        let others = others.filter(|uuid| !found.contains_key(*uuid)).collect();
        let mut elsewhere = self.look_elsewhere(&known.set, &others);
        elsewhere.found.append(&mut found);
        elsewhere
    }

    /// Takes over the names of a volume's own devices. `None`, if these are not all its own.
    pub(super) fn take_names_over(
        &self,
        known: &TieredState,
        devices: &[String],
        dry_run: bool,
    ) -> Result<Option<Vec<Told>>, ApiError> {
        let mut found = BTreeMap::new();
        for device in devices {
            let uri = device.clone();
            let look = move || Ok(Seen::at(file_of(&uri)));
            let seen = in_time(&format!("look at {device}"), look)?;
            let is_own = |it: &Seen| {
                it.set == known.set && known.members.iter().any(|member| member.uuid == it.uuid)
            };
            let Some(seen) = seen.filter(is_own) else { return Ok(None) };
            if found.insert(seen.uuid, device.clone()).is_some() {
                return Ok(None);
            }
        }
        let is_new =
            |it: &&MemberState| found.get(&it.uuid).is_some_and(|now| !same_file(&it.uri, now));
        let told = known.members.iter().filter(is_new).map(|it| Told::DeviceRenamed {
            was: it.uri.clone(),
            tier: it.tier,
            device: found[&it.uuid].clone(),
        });
        let told = told.collect();
        if !dry_run {
            self.remember(|all| {
                let own = all.tiered.iter_mut().filter(|it| it.name == known.name);
                own.for_each(|it| it.rename(&found));
            })?;
        }
        Ok(Some(told))
    }
}
