//! FLUSH and FUA: the log durable up to here, and the origin too if clients' data was written
//! there.
//!
//! Flushes coalesce. A FLUSH of a device covers what had completed when it was issued, nothing
//! more.

use crate::Mutant;
use crate::due::Due;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Dseq, Written};
use crate::op::Op;
use crate::requests::{Queue, ReqKey, Wait};

impl Engine {
    pub(crate) fn flush_begin(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        let volume = self.vol(req.volume);
        let written = volume.flush().client_written();
        // What was acknowledged is in completed records; those under way nobody was promised.
        let mut dseq = self.log.completed_dseq();
        if self.is(Mutant::FlushSkipsDevice) {
            dseq = Dseq::NONE;
        }
        if self.is(Mutant::FlushOneShort) {
            dseq = dseq.before();
        }
        let written = if self.is(Mutant::FlushSkipsOrigin) { Written::NONE } else { written };
        self.flush_wait(name, dseq, written, false);
    }

    /// The request is answered, or dirty blocks of it end, when the log is durable up to `dseq` and
    /// `written` origin writes are.
    pub(crate) fn flush_wait(&mut self, name: ReqKey, dseq: Dseq, written: Written, ends: bool) {
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
            let poisoned = volume.flush().is_poisoned() && written > Written::NONE;
            let lost =
                self.log.is_dead() && dseq > self.log.durable_dseq() && !volume.dirty().is_empty();
            // A device that failed lacks what is promised now: should it come back when others are
            // missing, these must say so.
            let told = !self.pool.tells_away() || self.is(Mutant::AwayUntold);
            let log = self.log.is_dead() || (told && dseq <= self.log.durable_dseq());
            let origin = volume.flush().is_durable(written);
            if !(poisoned || lost || (log && origin)) {
                at += 1;
                continue;
            }
            self.reqs.take(Queue::Durable, at);
            if poisoned || lost {
                self.reqs.fail(name, IoError::Io);
            }
            let doubtful = poisoned && self.vol(id).flush().is_doubtful();
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

    /// A write to an origin has ended.
    pub(crate) fn origin_written(&mut self, id: VolumeId, by_client: bool) {
        self.volumes.origin_write_ended(id, by_client);
    }

    /// Somebody wants `written` origin writes durable.
    pub(crate) fn want_origin(&mut self, id: VolumeId, written: Written) {
        if self.volumes.want_flushed(id, written) {
            self.origin_flush_more(id);
        }
    }

    /// Sends a FLUSH of the origin that is wanted; after a failure not before some time has passed.
    pub(crate) fn origin_flush_more(&mut self, id: VolumeId) {
        let now = self.io.now();
        if !self.vol(id).is_there() {
            return; // Everything there is durable already, or the executor does not know it yet.
        }
        if self.vol(id).flush().may_go_at().is_some_and(|at| at <= now) {
            self.origin_flush_send(id);
        }
    }

    /// Sends those that waited for their time.
    pub(crate) fn origin_flushes_more(&mut self) {
        for at in 0..self.volumes.count() {
            self.origin_flush_more(self.volumes.nth(at).id());
        }
    }

    /// When a FLUSH of an origin that failed may be tried again.
    pub(crate) fn origin_flushes_due(&self, due: &mut Due) {
        due.at(self.volumes.iter().filter_map(|v| v.flush().may_go_at()));
    }

    fn origin_flush_send(&mut self, id: VolumeId) {
        self.sync_join(id);
        let now = self.io.now();
        self.volumes.flush_sent(id, now);
        self.io.flush(Op::OriginFlush { volume: id }, Target::Origin(id));
    }

    pub(crate) fn origin_flush_done(&mut self, id: VolumeId, result: Result<(), IoError>) {
        let now = self.io.now();
        let counts = !self.is(Mutant::FailedFlushForgotten);
        if let Some(covers) = self.volumes.flush_ended(id, now, result, counts) {
            self.fail_flushing(id, covers);
        }
        self.origin_flush_more(id);
    }

    /// A FLUSH of the origin has failed: so have those who waited for it, and nobody else. Who asks
    /// from now on is answered by the next one.
    fn fail_flushing(&mut self, id: VolumeId, covers: Written) {
        let mut at = 0;
        while let Some(&name) = self.reqs.waiting(Queue::Durable).get(at) {
            let req = self.reqs.get(name);
            let Wait::Durable { written, ends, .. } = req.waits_for() else {
                unreachable!("the others are not listed here");
            };
            let is_durable = self.vol(id).flush().is_durable(written);
            if req.volume != id || written > covers || is_durable {
                at += 1;
                continue;
            }
            let is_flush = req.kind == RequestKind::Flush;
            self.reqs.take(Queue::Durable, at);
            self.reqs.fail(name, IoError::Io);
            match ends {
                true => self.zero_flushed(name),
                false => self.reply(name),
            }
            if is_flush {
                self.volumes.flush_failure_heard(id);
            }
        }
    }
}
