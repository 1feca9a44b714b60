//! Sectors that rot, and those that cannot be read.

use super::{Disk, Fault, IoKind};
use crate::rng::Rng;
use forebay_engine::Time;
use forebay_format::SECTOR_SIZE;
use std::ops::Range;

impl Disk {
    /// Whether reading the sector fails at this time, once in a while or always.
    pub fn is_unreadable(&self, sector: u64, now: Time) -> bool {
        let fault = |fault: &Fault| fault.covers(IoKind::Read, sector, sector + 1, now);
        now >= self.dead_from || self.unreadable.contains(&sector) || self.faults.iter().any(fault)
    }

    /// Whether any of these sectors cannot be read until it is written again.
    pub fn has_unreadable(&self, sectors: Range<u64>) -> bool {
        self.unreadable.range(sectors).next().is_some()
    }

    /// Bytes there turn into others, durably, or cannot be read until they are written again.
    pub fn rot(&mut self, sectors: Range<u64>, unreadable: bool, rng: &mut Rng) {
        for sector in sectors {
            let mut bytes = [0; SECTOR_SIZE];
            self.current.read(sector, &mut bytes);
            if unreadable {
                self.unreadable.insert(sector);
            } else {
                let bit = rng.below(8 * SECTOR_SIZE as u64);
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
                self.poke(sector, &bytes);
            }
        }
    }
}
