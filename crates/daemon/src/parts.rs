//! The devices that a pool is made of: which of them are used; and what has failed of them, and of
//! the origins under them.

use crate::convert::hex;
use forebay_engine::VolumeId;
use forebay_host::pool::PoolOnDisk;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One that failed, and is there, is looked at again after so long.
const AGAIN: Duration = Duration::from_secs(5);

/// Identities of a pool's devices, by their index, and which of them are used.
#[derive(Debug, Clone)]
pub struct Parts(Vec<(String, bool)>);

/// What of a pool has failed since it was opened.
#[derive(Debug, Clone, Default)]
pub struct Failed {
    /// Devices, by their index, and since when.
    pub devices: BTreeMap<usize, Instant>,
    /// Identities of devices that came in the place of others.
    pub came: BTreeMap<usize, String>,
    /// The log: no device is used any more.
    pub log: bool,
    /// Origins, an I/O of which failed.
    pub origins: Suspects,
}

impl Parts {
    /// Of this pool.
    pub fn of(on_disk: &PoolOnDisk) -> Parts {
        let slots = on_disk.devices.iter();
        Parts(slots.map(|slot| (hex(&slot.entry.uuid), slot.device.is_ok())).collect())
    }

    /// Those that are used.
    pub fn used(&self) -> impl Iterator<Item = &String> {
        self.0.iter().filter(|(_, used)| *used).map(|(uuid, _)| uuid)
    }

    /// Those that are not.
    pub fn absent(&self) -> impl Iterator<Item = &String> {
        self.0.iter().filter(|(_, used)| !*used).map(|(uuid, _)| uuid)
    }

    /// The identity of one.
    pub fn uuid(&self, index: usize) -> Option<&String> {
        self.0.get(index).map(|(uuid, _)| uuid)
    }
}

/// Origins of a pool that failed an I/O.
#[derive(Debug, Clone, Default)]
pub struct Suspects {
    suspicions: BTreeMap<VolumeId, Suspicion>,
    /// Somebody asks all of them for their sizes.
    in_round: bool,
}

#[derive(Debug, Clone, Copy)]
enum Suspicion {
    /// It is to be looked at.
    New,
    /// Somebody does.
    LookedAt,
    /// It was there.
    Dismissed(Instant),
}

impl Suspects {
    /// Begins to ask all origins for their sizes, unless somebody does. Whether the caller is to.
    pub fn begins_round(&mut self) -> bool {
        !std::mem::replace(&mut self.in_round, true)
    }

    /// All have been asked.
    pub fn ends_round(&mut self) {
        self.in_round = false;
    }

    /// The origin of a volume failed an I/O.
    pub fn failed(&mut self, volume: VolumeId) {
        let suspicion = self.suspicions.entry(volume).or_insert(Suspicion::New);
        if matches!(suspicion, Suspicion::Dismissed(at) if at.elapsed() >= AGAIN) {
            *suspicion = Suspicion::New;
        }
    }

    /// The origins that are to be looked at: the caller does.
    pub fn take_new(&mut self) -> Vec<VolumeId> {
        let new = self.suspicions.iter_mut().filter(|(_, it)| matches!(it, Suspicion::New));
        new.map(|(&volume, it)| {
            *it = Suspicion::LookedAt;
            volume
        })
        .collect()
    }

    /// One was looked at: it was there, or it was lost and is back.
    pub fn looked_at(&mut self, volume: VolumeId, was_lost: bool) {
        match was_lost {
            true => self.suspicions.remove(&volume),
            false => self.suspicions.insert(volume, Suspicion::Dismissed(Instant::now())),
        };
    }
}
