//! Why something needs attention, as types: a program acts on the fields, and for people there is
//! one line of text for each, which is declared beside it.

use crate::hint::Bytes;
use crate::lines::{lines, words};
use crate::tiers::TierPart;
use serde::{Deserialize, Serialize};
use std::fmt;

lines! {
    /// One thing that is not as it should be. `"cause"` tells which.
    Cause by "cause" {
        // An error's message, or what the engine or the host noticed.
        Noticed { text: String } = "{text}",

        // The daemon.
        DaemonOpening = "the daemon has not opened all pools yet",

        // A pool and its devices.
        CacheSlow { device: String, seconds: u64 } =
            "the cache device {device} has not ended an I/O for {seconds} s",
        CacheAway { device: String, pool: String, how: Away } =
            "{device}, a cache device of pool {pool}, {how}",
        SomeCacheFailed { pool: String } = "a cache device of pool {pool} has failed",
        Fell { times: Often, last: String, words: String } =
            "it was opened again after an internal error, {times} since forebayd started, last \
             {last}: {words}; nothing that was acknowledged is lost",

        // A volume.
        PoolOpening { pool: String } = "its pool {pool} is being opened",
        TiersOpening = "its tiers are being opened",
        WithoutCache = "it is served from its origin alone, without a cache; nothing is lost",
        BlocksLost { blocks: u64 } =
            "{blocks} blocks are lost: both the cache's copy and its twin are unreadable",
        WritesLost =
            "its origin has lost writes that were not flushed: each FLUSH fails until the volume \
             is attached anew",
        OriginSlow { origin: String, seconds: u64 } =
            "its origin {origin} has not ended an I/O for {seconds} s",
        DeviceTaken = "its block device was taken away",
        NotConnected { why: String } = "its block device has no connection: {why}",
        NoDevice { why: String } = "it has no block device: {why}",

        // Tiers.
        TierMissing { device: String, tier: u8 } = "{device}, on tier {tier}, is missing",
        TierWasCut { device: String, tier: u8 } =
            "{device}, on tier {tier}, was cut while it was in use, and is not used: nobody knows \
             what it still holds",
        TierIsCut { device: String, tier: u8, cut_to_bytes: Bytes } =
            "{device}, on tier {tier}, was cut to {cut_to_bytes} or less while it was in use: what \
             lives on it cannot be read",
        TierFull { device: String, tier: u8, free_bytes: Bytes } =
            "{device}, on tier {tier}, has no room for anything new, though {free_bytes} of it are \
             free: what it lies on is full; the other devices take it as long as they have room",
        MapCopyLost { device: String, tier: u8 } =
            "{device}, on tier {tier}, failed to keep the map: there is one copy of it only",
        TierFails { device: String, tier: u8, errors: Failures } =
            "{device}, on tier {tier}, fails: {errors} so far",
        TierSlow { device: String, tier: u8, seconds: u64 } =
            "{device}, on tier {tier}, has not answered for {seconds} s",
        ExtentsLost { lost_bytes: Bytes, volume: String } =
            "{lost_bytes} of it cannot be read: forebay tier show {volume} --lost",
        AlmostFull { left_bytes: Bytes } =
            "its tiers are almost full, with {left_bytes} left, and the volume is larger than they \
             are: when they are full, writes fail",
        CannotBeEmptied { #[serde(flatten)] part: TierPart, left_bytes: Bytes, why: String } =
            "{part} is being emptied, and {left_bytes} of it cannot move: {why}",
        BeganEmpty { why: String } = "it began empty, because {why}",
    }
}

words! {
    /// Why a cache device is not used.
    Away {
        Failed = "has failed",
        Missing = "is missing",
        Unused = "is not used",
    }
}

/// How many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Often(pub u64);

impl fmt::Display for Often {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("once"),
            times => write!(f, "{times} times"),
        }
    }
}

/// I/O that a device failed; not both are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |count: u64, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            _ => Some(format!("{count} {what}s")),
        };
        let both = [count(self.reads, "read"), count(self.writes, "write")];
        f.write_str(&both.into_iter().flatten().collect::<Vec<_>>().join(" and "))
    }
}
