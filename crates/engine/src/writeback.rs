//! Writeback: slices of dirty blocks go home in LBA order, one FLUSH of the origin each, and only
//! then does a record say that they are clean (I9). A block is sent home only when its version is
//! durable on the cache device: else a crash could leave the origin newer than the log.
//!
//! A slice grows while it runs: what becomes dirty ahead of the sweep still joins it. Few long
//! sweeps cost a disk far less than many short ones, and its FLUSH empties its whole cache.
//!
//! Where clients keep the origin busy, a slice has it for itself: see `alone.rs`.

use crate::event::{Time, VolumeId};

mod alone;
mod course;
mod home;
mod homes;
mod select;
mod slice;
mod stripes;

pub(crate) use slice::Home;

/// The writeback of one shard.
#[derive(Debug, Default)]
pub(crate) struct Writeback {
    /// That of each volume, in the order of their numbers.
    homes: Vec<(VolumeId, Box<Home>)>,
    /// Times that the search for dirty blocks came further.
    looked: u64,
    /// Since when more is dirty than the target.
    over_since: Option<Time>,
    /// Reads that waited for a slice, and slices that kept them for too long.
    reads_held: u64,
    holds_cut: u64,
}

impl Writeback {
    /// The search for dirty blocks has come further, or begins anew.
    fn looks(&mut self) {
        self.looked += 1;
    }

    /// Whether more is dirty now than the target.
    fn is_over(&mut self, over: bool, now: Time) {
        self.over_since = over.then(|| self.over_since.unwrap_or(now));
    }

    /// Since when more is.
    fn over_since(&self) -> Option<Time> {
        self.over_since
    }

    /// See `parts.rs`.
    fn progress(&self) -> u64 {
        let looked = self.looked.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.homes.iter().fold(looked, |all, (_, home)| all.rotate_left(7) ^ home.progress())
    }

    /// Reads that waited for a slice, and times that they went on before its end.
    pub(crate) fn holds(&self) -> [u64; 2] {
        [self.reads_held, self.holds_cut]
    }
}

/// Stretches of set bits: first sector, and the one behind the last.
pub(crate) fn sector_runs(mask: u8) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < 8 && mask >> at & 1 == 0 {
            at += 1;
        }
        let from = at;
        while at < 8 && mask >> at & 1 == 1 {
            at += 1;
        }
        (from < at).then_some((from, at))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn sectors_of_a_mask_are_written_in_stretches() {
        let runs: Vec<_> = super::sector_runs(0b1011_0011).collect();
        assert_eq!(runs, [(0, 2), (4, 6), (7, 8)]);
        assert_eq!(super::sector_runs(0xff).collect::<Vec<_>>(), [(0, 8)]);
        assert_eq!(super::sector_runs(0).count(), 0);
    }
}
