//! FLUSH and FUA: the log durable up to here, and the origin too if clients' data was written
//! there.
//!
//! Flushes coalesce. A FLUSH of a device covers what had completed when it was issued, nothing
//! more.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::limits::FLUSH_RETRY_NS;
use crate::op::Op;
use crate::requests::{Queue, ReqKey, Wait};
use std::collections::BTreeSet;

/// FLUSHes of the cache devices.
#[derive(Debug, Default)]
pub(crate) struct CacheFlush {
    /// Device FLUSHes that have not ended.
    pub(crate) pending: u32,
    /// What becomes durable when they all have.
    pub(crate) covers: u64,
    /// As above, in the order of all records.
    pub(crate) covers_seq: u64,
    /// Positions that somebody wants durable.
    pub(crate) wanted: BTreeSet<u64>,
    /// By device: the one FLUSH that is under way, and what the next is for.
    pub(crate) turns: Vec<Turn>,
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
pub(crate) struct Turn {
    under_way: Vec<FlushFor>,
    waiting: Vec<FlushFor>,
}

impl Engine {
    pub(crate) fn flush_begin(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        let volume = self.vol(req.volume);
        let written = volume.flush.client_written;
        // What was acknowledged is in completed records; those under way nobody was promised.
        let mut dseq = self.log.completed_dseq;
        if self.is(Mutant::FlushSkipsDevice) {
            dseq = 0;
        }
        dseq -= u64::from(dseq > 0 && self.is(Mutant::FlushOneShort));
        let written = if self.is(Mutant::FlushSkipsOrigin) { 0 } else { written };
        self.flush_wait(name, dseq, written, false);
    }

    /// The request is answered, or dirty blocks of it end, when the log is durable up to `dseq` and
    /// `written` origin writes are.
    pub(crate) fn flush_wait(&mut self, name: ReqKey, dseq: u64, written: u64, ends: bool) {
        let id = self.reqs.get(name).volume;
        self.reqs.wait(name, Wait::Durable { dseq, written, ends });
        self.want_durable(dseq);
        self.want_origin(id, written);
        self.resume_flushing();
    }

    /// Ends the waits that are over.
    pub(crate) fn resume_flushing(&mut self) {
        let mut at = 0;
        while let Some(&name) = self.reqs.waiting(Queue::Durable).get(at) {
            let req = self.reqs.get(name);
            let Wait::Durable { dseq, written, ends } = req.waits_for() else {
                unreachable!("the others are not listed here");
            };
            let id = req.volume;
            let volume = self.vol(id);
            let poisoned = volume.flush.poisoned && written > 0;
            let lost = self.dead && dseq > self.log.durable_dseq && !volume.dirty.is_empty();
            // A device that failed lacks what is promised now: should it come back when others are
            // missing, these must say so.
            let told = !self.sb.tells_away() || self.is(Mutant::AwayUntold);
            let log = self.dead || (told && dseq <= self.log.durable_dseq);
            let origin = written <= volume.flush.flushed;
            if !(poisoned || lost || (log && origin)) {
                at += 1;
                continue;
            }
            self.reqs.take(Queue::Durable, at);
            if poisoned || lost {
                self.req(name).fail(IoError::Io);
            }
            let doubtful = poisoned && self.vol(id).flush.doubtful;
            match ends {
                true => self.zero_flushed(name),
                false => self.reply(name),
            }
            if doubtful {
                // Clients know now. What the cache has of it would be there until it is evicted,
                // and then no more.
                self.give_up_clean(id);
            }
        }
    }

    /// Somebody wants the log durable up to `dseq`.
    pub(crate) fn want_durable(&mut self, dseq: u64) {
        if dseq > self.log.durable_dseq {
            self.cache_flush.wanted.insert(dseq);
        }
    }

    /// Issues the FLUSHes of the cache devices that are wanted and would help now.
    pub(crate) fn flush_more(&mut self) {
        let CacheFlush { pending, wanted, .. } = &mut self.cache_flush;
        while wanted.first().is_some_and(|&dseq| dseq <= self.log.durable_dseq) {
            wanted.pop_first();
        }
        let helps = wanted.first().is_some_and(|&dseq| dseq <= self.log.completed_dseq);
        if *pending == 0 && helps && !self.dead {
            self.cache_flush.covers = self.log.completed_dseq;
            self.cache_flush.covers_seq = self.log.completed_seq();
            for index in 0..self.segments.devices().len() {
                let device = &self.segments.devices()[index];
                if device.healthy && device.volatile_cache {
                    self.cache_flush.pending += 1;
                    self.device_flush(DeviceId(index as u8), FlushFor::Log);
                }
            }
            if self.cache_flush.pending == 0 {
                self.cache_flushed();
            }
        }
    }

    /// Asks for a FLUSH of a device, of all that was written to it up to now.
    pub(crate) fn device_flush(&mut self, device: DeviceId, why: FlushFor) {
        let turns = &mut self.cache_flush.turns;
        if turns.len() <= usize::from(device.0) {
            turns.resize_with(usize::from(device.0) + 1, Turn::default);
        }
        turns[usize::from(device.0)].waiting.push(why);
        self.device_flush_more(device);
    }

    fn device_flush_more(&mut self, device: DeviceId) {
        let turn = &mut self.cache_flush.turns[usize::from(device.0)];
        if !turn.under_way.is_empty() || turn.waiting.is_empty() {
            return;
        }
        turn.under_way = std::mem::take(&mut turn.waiting);
        self.stats.cache_flushes += 1;
        let op = self.op(Op::DeviceFlush { device });
        self.out.push(Effect::Flush { op, target: Target::Cache(device) });
    }

    /// A device's FLUSH has ended. After one that failed, the device may have dropped what it
    /// should have made durable, and a second would succeed without it: none is tried again.
    pub(crate) fn device_flushed(&mut self, device: DeviceId, result: Result<(), IoError>) {
        let again = result.is_err() && self.is(Mutant::FlushTriedAgain);
        let turn = &mut self.cache_flush.turns[usize::from(device.0)];
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
        self.cache_flush.pending -= 1;
        if self.is(Mutant::FlushCoversLate) {
            self.cache_flush.covers = self.log.completed_dseq;
        }
        let one = self.is(Mutant::FlushOneDevice);
        if (self.cache_flush.pending == 0 || one) && !self.dead {
            self.cache_flushed();
        }
    }

    fn cache_flushed(&mut self) {
        self.log.durable_seq = self.cache_flush.covers_seq;
        self.set_durable(self.cache_flush.covers);
    }

    /// A write to an origin has ended.
    pub(crate) fn origin_written(&mut self, id: VolumeId, by_client: bool) {
        let volume = self.vol_mut(id);
        volume.flush.written += 1;
        if by_client {
            volume.flush.client_written = volume.flush.written;
        }
        if !volume.volatile_cache {
            volume.flush.flushed = volume.flush.written;
        }
    }

    /// Somebody wants `written` origin writes durable.
    pub(crate) fn want_origin(&mut self, id: VolumeId, written: u64) {
        let flush = &mut self.vol_mut(id).flush;
        if written <= flush.flushed {
            return;
        }
        flush.wanted = flush.wanted.max(written);
        self.origin_flush_more(id);
    }

    /// Sends a FLUSH of the origin that is wanted; after a failure not before some time has passed.
    pub(crate) fn origin_flush_more(&mut self, id: VolumeId) {
        let now = self.now;
        if self.vol(id).removing || self.vol(id).adding {
            return; // Everything there is durable already, or the executor does not know it yet.
        }
        let flush = &self.vol(id).flush;
        let wanted = flush.wanted > flush.flushed && flush.inflight.is_none();
        if wanted && now >= flush.retry_at {
            self.origin_flush_send(id);
        }
    }

    /// Sends those that waited for their time.
    pub(crate) fn origin_flushes_more(&mut self) {
        for at in 0..self.volumes.count() {
            self.origin_flush_more(self.volumes.nth(at).id);
        }
    }

    fn origin_flush_send(&mut self, id: VolumeId) {
        self.sync_join(id);
        let now = self.now;
        let volume = self.vol_mut(id);
        volume.flush.inflight = Some(volume.flush.written);
        volume.flush.sent_at = now;
        volume.stats.origin_flushes += 1;
        let op = self.op(Op::OriginFlush { volume: id });
        self.out.push(Effect::Flush { op, target: Target::Origin(id) });
    }

    pub(crate) fn origin_flush_done(&mut self, id: VolumeId, result: Result<(), IoError>) {
        let now = self.now;
        let forgets = self.is(Mutant::FailedFlushForgotten);
        let volume = self.vol_mut(id);
        if result.is_err() {
            volume.flush.retry_at = now + FLUSH_RETRY_NS;
        }
        volume.fills_off &= result.is_err();
        let flush = &mut volume.flush;
        flush.took_ns = now - flush.sent_at;
        let covers = flush.inflight.take().expect("a FLUSH of this origin was under way");
        match result {
            Ok(()) => {
                flush.flushed = flush.flushed.max(covers);
                flush.tries = 0;
            }
            Err(_) if forgets => {}
            Err(_) => flush.failed(),
        }
        self.origin_flush_more(id);
    }
}
