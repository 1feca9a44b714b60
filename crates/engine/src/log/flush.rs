//! FLUSHes of the cache devices: the log durable up to here, and what else was written there.
//!
//! They coalesce. A FLUSH of a device covers what had completed when it was issued, nothing more.

use crate::event::DeviceId;
use crate::ids::{Dseq, Seq};
use crate::log::Log;
use std::collections::BTreeSet;

mod send;

/// FLUSHes of the cache devices.
#[derive(Debug, Default)]
pub(super) struct CacheFlush {
    /// Device FLUSHes that have not ended.
    pending: u32,
    /// What becomes durable when they all have.
    covers: Dseq,
    /// As above, in the order of all records.
    covers_seq: Seq,
    /// Positions that somebody wants durable.
    wanted: BTreeSet<Dseq>,
    /// By device: the one FLUSH that is under way, and what the next is for.
    turns: Vec<Turn>,
    /// How many were sent.
    pub(super) sent: u64,
}

/// What a FLUSH of a cache device is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushFor {
    /// Records.
    Log,
    /// The blocks of a checkpoint.
    Checkpoint,
    /// A superblock.
    Superblock,
    /// What recovery found: it may not have been durable.
    Opening,
}

/// FLUSHes of one cache device. There is one at a time: if another failed beside it, one that
/// succeeded would not say whether what was lost is in it.
#[derive(Debug, Default)]
struct Turn {
    under_way: Vec<FlushFor>,
    waiting: Vec<FlushFor>,
}

impl Log {
    /// Somebody wants it durable up to `dseq`.
    fn wants_durable(&mut self, dseq: Dseq) {
        if dseq > self.durable_dseq {
            self.flushes.wanted.insert(dseq);
        }
    }

    /// The last position that somebody wants durable.
    pub(super) fn wanted_durable(&self) -> Option<Dseq> {
        self.flushes.wanted.last().copied()
    }

    /// Whether FLUSHes of the cache devices are wanted, and would help now.
    fn flush_helps(&mut self) -> bool {
        let CacheFlush { pending, wanted, .. } = &mut self.flushes;
        while wanted.first().is_some_and(|&dseq| dseq <= self.durable_dseq) {
            wanted.pop_first();
        }
        let helps = wanted.first().is_some_and(|&dseq| dseq <= self.completed_dseq);
        *pending == 0 && helps && !self.dead
    }

    /// They are issued: what they cover.
    fn flush_begins(&mut self) {
        self.flushes.covers = self.completed_dseq;
        self.flushes.covers_seq = self.completed_seq();
    }

    /// One of them is issued.
    fn flush_of_one_begins(&mut self) {
        self.flushes.pending += 1;
    }

    /// One of them has ended.
    fn flush_of_one_ends(&mut self) {
        self.flushes.pending -= 1;
    }

    /// Whether all of them have ended.
    fn flush_is_over(&self) -> bool {
        self.flushes.pending == 0
    }

    /// A planted bug: they cover what has completed since.
    fn flush_covers_late(&mut self) {
        self.flushes.covers = self.completed_dseq;
    }

    /// What they cover is durable: up to where.
    fn flushed(&mut self) -> Dseq {
        self.durable_seq = self.flushes.covers_seq;
        self.flushes.covers
    }

    fn turn(&mut self, device: DeviceId) -> &mut Turn {
        let (turns, at) = (&mut self.flushes.turns, usize::from(device.0));
        if turns.len() <= at {
            turns.resize_with(at + 1, Turn::default);
        }
        &mut turns[at]
    }

    /// Whether the next FLUSH of a device can be sent; then it is.
    fn turn_begins(&mut self, device: DeviceId) -> bool {
        let turn = self.turn(device);
        if !turn.under_way.is_empty() || turn.waiting.is_empty() {
            return false;
        }
        turn.under_way = std::mem::take(&mut turn.waiting);
        self.flushes.sent += 1;
        true
    }
}
