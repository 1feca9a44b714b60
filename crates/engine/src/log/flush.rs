//! FLUSHes of the cache devices: the log durable up to here, and what else was written there.
//!
//! They coalesce. A FLUSH of a device covers what had completed when it was issued, nothing more.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Dseq, Seq};
use crate::op::Op;
use std::collections::BTreeSet;

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
    pub(super) wanted: BTreeSet<Dseq>,
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

impl Engine {
    /// Somebody wants the log durable up to `dseq`.
    pub(crate) fn want_durable(&mut self, dseq: Dseq) {
        if dseq > self.log.durable_dseq {
            self.log.flushes.wanted.insert(dseq);
        }
    }

    /// Issues the FLUSHes of the cache devices that are wanted and would help now.
    pub(crate) fn flush_more(&mut self) {
        let CacheFlush { pending, wanted, .. } = &mut self.log.flushes;
        while wanted.first().is_some_and(|&dseq| dseq <= self.log.durable_dseq) {
            wanted.pop_first();
        }
        let helps = wanted.first().is_some_and(|&dseq| dseq <= self.log.completed_dseq);
        if *pending == 0 && helps && !self.log.is_dead() {
            self.log.flushes.covers = self.log.completed_dseq;
            self.log.flushes.covers_seq = self.log.completed_seq();
            for index in 0..self.segments.devices().len() {
                let device = &self.segments.devices()[index];
                if device.healthy && device.volatile_cache {
                    self.log.flushes.pending += 1;
                    self.device_flush(DeviceId(index as u8), FlushFor::Log);
                }
            }
            if self.log.flushes.pending == 0 {
                self.cache_flushed();
            }
        }
    }

    /// Asks for a FLUSH of a device, of all that was written to it up to now.
    pub(crate) fn device_flush(&mut self, device: DeviceId, why: FlushFor) {
        let turns = &mut self.log.flushes.turns;
        if turns.len() <= usize::from(device.0) {
            turns.resize_with(usize::from(device.0) + 1, Turn::default);
        }
        turns[usize::from(device.0)].waiting.push(why);
        self.device_flush_more(device);
    }

    fn device_flush_more(&mut self, device: DeviceId) {
        let turn = &mut self.log.flushes.turns[usize::from(device.0)];
        if !turn.under_way.is_empty() || turn.waiting.is_empty() {
            return;
        }
        turn.under_way = std::mem::take(&mut turn.waiting);
        self.log.flushes.sent += 1;
        self.io.flush(Op::DeviceFlush { device }, Target::Cache(device));
    }

    /// A device's FLUSH has ended. After one that failed, the device may have dropped what it
    /// should have made durable, and a second would succeed without it: none is tried again.
    pub(crate) fn device_flushed(&mut self, device: DeviceId, result: Result<(), IoError>) {
        let again = result.is_err() && self.is(Mutant::FlushTriedAgain);
        let turn = &mut self.log.flushes.turns[usize::from(device.0)];
        let mut ended = std::mem::take(&mut turn.under_way);
        if again {
            turn.waiting.append(&mut ended);
            return self.device_flush_more(device);
        }
        if result.is_err() {
            ended.append(&mut turn.waiting);
            self.device_failed(device, "a FLUSH failed");
        }
        for why in ended {
            match why {
                FlushFor::Log => self.log_flushed(),
                FlushFor::Checkpoint => self.checkpoint_flushed(result),
                FlushFor::Superblock => self.superblock_end(),
                FlushFor::Opening => self.recover_flushed(),
            }
        }
        self.device_flush_more(device);
    }

    fn log_flushed(&mut self) {
        self.log.flushes.pending -= 1;
        if self.is(Mutant::FlushCoversLate) {
            self.log.flushes.covers = self.log.completed_dseq;
        }
        let one = self.is(Mutant::FlushOneDevice);
        if (self.log.flushes.pending == 0 || one) && !self.log.is_dead() {
            self.cache_flushed();
        }
    }

    fn cache_flushed(&mut self) {
        self.log.durable_seq = self.log.flushes.covers_seq;
        self.set_durable(self.log.flushes.covers);
    }
}
