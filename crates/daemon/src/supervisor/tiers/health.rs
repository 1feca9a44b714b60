//! Devices of tiers that are there, and do not do what they should: what `status` says of them, and
//! who waits for them.

use crate::state::owner_of;
use crate::supervisor::{COMMAND_TIMEOUT, FoundVolume, Supervisor, shard_error};
use forebay_api::cause::Failures;
use forebay_api::hint::{Bytes, Care};
use forebay_api::reply::Attention;
use forebay_api::tiers::{DeviceState, TierDevice, TiersInfo};
use forebay_api::told::Names;
use forebay_api::{ApiError, Cause, Hint, Told};
use forebay_host::origin::tiered::TiersSnapshot;
use forebay_host::shard::ShardError;
use forebay_tier::CommandReply;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A device counts as stuck when it has not ended an I/O for so many seconds.
pub(super) const STUCK_S: u64 = 5;

/// How often a device is looked at that may be about to answer.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// Tells of each device that is not well. Whether there is any.
pub(super) fn tell(volume: &str, info: &TiersInfo, attention: &mut Attention) -> bool {
    let mut any = false;
    for it in info.devices.iter().filter(|it| it.state != DeviceState::Missing) {
        let (own, device, tier) = (|| volume.to_string(), || it.device.clone(), it.tier);
        let drop_lost = || Hint::DropLost { volume: own(), device: device() };
        let mut say = |cause: Cause, what: Vec<Hint>| {
            any = true;
            attention.causes.push(cause);
            for hint in what {
                attention.hints.push_new(hint);
            }
        };
        let see_to = |what| vec![Hint::SeeTo { what }];
        if let Some(bytes) = it.cut_to_bytes {
            let cut_to_bytes = Bytes(bytes);
            let restore = Hint::RestoreTier { volume: own(), device: device() };
            say(
                Cause::TierIsCut { device: device(), tier, cut_to_bytes },
                vec![restore, drop_lost()],
            );
            continue;
        }
        if it.full {
            let free_bytes = Bytes(it.bytes.saturating_sub(it.used_bytes));
            say(Cause::TierFull { device: device(), tier, free_bytes }, see_to(Care::RoomBelow));
        }
        if it.map_lost {
            say(Cause::MapCopyLost { device: device(), tier }, see_to(Care::MapCopy));
        }
        if it.failing {
            let errors = Failures { reads: it.read_errors, writes: it.write_errors };
            let fails = Cause::TierFails { device: device(), tier, errors };
            let empty = Hint::EmptyTier { volume: own(), device: device() };
            say(fails, vec![Hint::SeeTo { what: Care::Disk }, empty, drop_lost()]);
        }
        if it.waits_s >= STUCK_S {
            say(stuck(it), vec![Hint::SeeTo { what: Care::SlowDisk }, drop_lost()]);
        }
    }
    any
}

fn stuck(it: &TierDevice) -> Cause {
    Cause::TierSlow { device: it.device.clone(), tier: it.tier, seconds: it.waits_s }
}

/// Refuses what every device of a volume's tiers would have to take part in, while one is stuck.
pub(super) fn check_not_stuck(info: &TiersInfo) -> Result<(), ApiError> {
    match info.devices.iter().find(|it| it.waits_s >= STUCK_S) {
        None => Ok(()),
        Some(it) => {
            let text = format!("{}, and every device has to know of this change", stuck(it));
            Err(ApiError::failed(text).hint(Hint::SeeTo { what: Care::SlowDisk }))
        }
    }
}

impl Supervisor {
    /// The tiers of a volume when each device either ends its I/O, or is known not to: one that
    /// has just begun to hang is waited for until then.
    ///
    /// # Errors
    /// There is no such volume, or it has no tiers.
    pub(super) fn tiers_when_sure(
        &self,
        name: &str,
    ) -> Result<(FoundVolume, TiersSnapshot, TiersInfo), ApiError> {
        let begin = Instant::now();
        loop {
            let (found, now) = self.find_tiers(name)?;
            let info = self.tiers_info(name, &now);
            let is_sure = |it: &TierDevice| it.waits_s < 1 || it.waits_s >= STUCK_S;
            if info.devices.iter().all(is_sure) || begin.elapsed().as_secs() >= STUCK_S {
                return Ok((found, now, info));
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// A volume leaves by force: devices of its tiers that do not answer are not waited for. What
    /// is left is what a kill would leave. It is told.
    ///
    /// # Errors
    /// The tiers cannot be let go of.
    pub(in crate::supervisor) fn leave_stuck(
        &self,
        found: &FoundVolume,
    ) -> Result<Option<Told>, ApiError> {
        let view = &found.snapshot.view;
        if owner_of(&found.pool).is_none() {
            // What a cache holds of it has to go home, whoever waits for it.
            return Ok(None);
        }
        let Ok((.., info)) = self.tiers_when_sure(&view.name) else { return Ok(None) };
        let stuck = || info.devices.iter().filter(|it| it.waits_s >= STUCK_S);
        let Some(seconds) = stuck().map(|it| it.waits_s).max() else { return Ok(None) };
        let devices = Names(stuck().map(|it| it.device.clone()).collect());
        let told = Told::NotWaitedFor { devices, seconds };
        let failed = |error| shard_error(&found.pool, &error);
        found.open.handle.origin_lost(view.id, COMMAND_TIMEOUT).map_err(failed)?;
        tracing::warn!(volume = view.name.as_str(), "{told}");
        Ok(Some(told))
    }

    /// Waits for the answer of tiers, and no longer when a device is stuck that has a part in it.
    pub(super) fn answer_of_tiers(
        &self,
        found: &FoundVolume,
        answer: &Receiver<CommandReply>,
    ) -> Result<CommandReply, ApiError> {
        let begin = Instant::now();
        loop {
            match answer.recv_timeout(Duration::from_secs(STUCK_S + 1)) {
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(shard_error(&found.pool, &ShardError::Stopped));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let name = &found.snapshot.view.name;
            let (_, now) = self.find_tiers(name)?;
            let info = self.tiers_info(name, &now);
            if let Some(it) = info.devices.iter().find(|it| it.waits_s >= STUCK_S) {
                let text = format!("{}; it is done as soon as that answers", stuck(it));
                return Err(ApiError::failed(text).hint(Hint::SeeTo { what: Care::SlowDisk }));
            }
            if begin.elapsed() >= COMMAND_TIMEOUT {
                return Err(shard_error(&found.pool, &ShardError::Timeout(COMMAND_TIMEOUT)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn info(sick: serde_json::Value) -> TiersInfo {
        let mut device = json!({
            "tier": 1, "device": "/dev/sdb", "state": "ok", "holds_map": false,
            "bytes": 64 << 20, "used_bytes": 16 << 20, "reads": 1, "read_bytes": 4096,
            "writes": 0, "written_bytes": 0, "moved_in_bytes": 0, "moved_out_bytes": 0,
        });
        let both = device.as_object_mut().unwrap();
        both.extend(sick.as_object().unwrap().clone());
        let info = json!({
            "placement": "heat", "ephemeral": false, "paused": false, "capacity_bytes": 64 << 20,
            "used_bytes": 16 << 20, "lost_bytes": 0, "moved_bytes": 0, "rate_bytes": 1,
            "pinned_bytes": 0, "moving": 0, "pending": [], "evacuations": [], "devices": [device],
        });
        serde_json::from_value(info).unwrap()
    }

    fn told(sick: serde_json::Value) -> (Vec<String>, Vec<String>) {
        let mut attention = Attention::default();
        let is_told = tell("v", &info(sick), &mut attention);
        assert_eq!(is_told, !attention.causes.is_empty());
        (attention.causes.texts(), attention.hints.texts())
    }

    /// `status` was ok while a tier failed everything that was neither map nor room.
    #[test]
    fn each_device_that_is_not_well_is_named_with_what_to_do() {
        assert_eq!(told(json!({})), (vec![], vec![]));
        for (sick, why, hints) in [
            (
                json!({"failing": true, "read_errors": 7, "write_errors": 1}),
                "/dev/sdb, on tier 1, fails: 7 reads and 1 write so far",
                &[
                    "see whether the disk behind it works",
                    "while it can be read: forebay tier evacuate v /dev/sdb",
                    "or, if it will never be back, and what lives there is lost: forebay tier \
                     remove v /dev/sdb --drop-lost",
                ][..],
            ),
            (
                json!({"full": true, "no_room_errors": 2}),
                "/dev/sdb, on tier 1, has no room for anything new, though 48.0M of it are free",
                &["make room on what the device lies on; it is tried again every 10 s"],
            ),
            (
                json!({"map_lost": true}),
                "/dev/sdb, on tier 1, failed to keep the map",
                &[Care::MapCopy.to_string().as_str()],
            ),
            (
                json!({"waits_s": 9}),
                "/dev/sdb, on tier 1, has not answered for 9 s",
                &[
                    Care::SlowDisk.to_string().as_str(),
                    "or, if it will never be back, and what lives there is lost: forebay tier \
                     remove v /dev/sdb --drop-lost",
                ],
            ),
            (
                json!({"cut_to_bytes": 4096}),
                "/dev/sdb, on tier 1, was cut to 4.0K",
                &[
                    "restore /dev/sdb, all of it, and when the users of the volume have let go: \
                     forebay volume detach v --force, then forebay volume attach v",
                    "or, if it will never be back, and what lives there is lost: forebay tier \
                     remove v /dev/sdb --drop-lost",
                ],
            ),
        ] {
            let (said, told) = told(sick.clone());
            assert!(said.len() == 1 && said[0].starts_with(why), "{sick}: {said:?}");
            assert_eq!(told, hints, "{sick}");
        }
        assert_eq!(told(json!({"state": "missing", "failing": true})).0.len(), 0);
    }

    #[test]
    fn nobody_waits_for_a_device_that_is_stuck() {
        assert!(check_not_stuck(&info(json!({"waits_s": 4}))).is_ok());
        let error = check_not_stuck(&info(json!({"waits_s": 12}))).unwrap_err();
        assert!(error.message.contains("/dev/sdb, on tier 1, has not answered for 12 s"));
    }
}
