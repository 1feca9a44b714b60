//! What FLUSHes of an origin have to cover, and cover.
//!
//! A FLUSH covers the writes that had ended when it was sent. Once one has failed that should have
//! covered a client's, no later one can promise that: an origin may forget what it could not make
//! durable. Some origins know better: they remember which writes they owe, and fail each FLUSH that
//! would not cover them. Of these a FLUSH that succeeds is believed, whatever failed before.

use crate::event::{IoError, Time};
use crate::ids::Written;
use crate::limits::{FLUSH_RETRY_NS, ORIGIN_HANGS_NS};

/// The FLUSHes of one origin.
#[derive(Debug)]
pub(crate) struct OriginFlush {
    /// Whether the origin has a volatile cache.
    volatile: bool,
    /// Whether it answers each FLUSH for itself: one that succeeds covers all that was written.
    exact: bool,
    /// Of such a one a FLUSH has failed that should have covered a client's writes, and that no
    /// client had asked for: the next one of a client's fails.
    unheard: bool,
    /// Writes to the origin that have ended.
    written: Written,
    /// Of these, how many are durable.
    flushed: Written,
    /// The last client write is this one.
    client_written: Written,
    /// The FLUSH under way covers this many.
    inflight: Option<Written>,
    /// Somebody waits for more than the FLUSH under way covers.
    wanted: Written,
    /// A FLUSH failed that should have covered client writes: none can be promised durable any
    /// more.
    poisoned: bool,
    /// So what of it is cached may be newer than what the origin has, and is still in the cache.
    doubtful: bool,
    /// Who asked for the volume's removal was not told yet.
    untold: bool,
    /// They were told when so much was written.
    told: Option<Written>,
    /// The origin may show what it will forget: it failed a FLUSH, and clients know.
    forgets: bool,
    /// FLUSHes that failed.
    failures: u64,
    /// Not to be tried again before.
    retry_at: Time,
    /// When the one under way was sent.
    sent_at: Time,
    /// How long the last one took, in nanoseconds.
    took_ns: Time,
}

impl OriginFlush {
    /// Nothing was written. Without a volatile cache what is written is durable.
    pub(super) fn new(volatile: bool, exact: bool) -> OriginFlush {
        OriginFlush {
            volatile,
            exact,
            unheard: false,
            written: Written::NONE,
            flushed: Written::NONE,
            client_written: Written::NONE,
            inflight: None,
            wanted: Written::NONE,
            poisoned: false,
            doubtful: false,
            untold: false,
            told: None,
            forgets: false,
            failures: 0,
            retry_at: 0,
            sent_at: 0,
            took_ns: 0,
        }
    }

    /// What others wrote there, or an earlier life whose write was under way, may not be durable:
    /// who reads it and then flushes counts on it.
    pub(super) fn others_wrote(&mut self) {
        self.written = Written::NONE.next();
    }

    /// A client of the life before wrote there: that counts as one write that is not durable,
    /// unless nobody is `there` to flush it.
    pub(crate) fn clients_wrote(&mut self, there: bool) {
        self.written = Written::NONE.next();
        self.client_written = self.written;
        self.flushed = if there && self.volatile { Written::NONE } else { self.written };
    }

    /// The origin is there now. What a client of the life before may have written there is not
    /// durable: that was left open as long as nobody could flush it.
    pub(crate) fn came_back(&mut self) {
        if self.volatile {
            self.flushed = self.written.before();
        }
    }

    /// A write to the origin has ended.
    pub(crate) fn write_ended(&mut self, by_client: bool) {
        self.written = self.written.next();
        if by_client {
            self.client_written = self.written;
        }
        if !self.volatile {
            self.flushed = self.written;
        }
    }

    /// Somebody wants so many writes durable. Whether they are not.
    pub(crate) fn want(&mut self, written: Written) -> bool {
        let more = written > self.flushed;
        if more {
            self.wanted = self.wanted.max(written);
        }
        more
    }

    /// From when on a FLUSH may be sent, if one is wanted and none is under way.
    pub(crate) fn may_go_at(&self) -> Option<Time> {
        let wanted = self.wanted > self.flushed && self.inflight.is_none();
        wanted.then_some(self.retry_at)
    }

    /// A FLUSH is on its way.
    pub(crate) fn sent(&mut self, now: Time) {
        self.inflight = Some(self.written);
        self.sent_at = now;
    }

    /// The FLUSH under way has ended. But for a planted bug it `counts` if it failed. If those have
    /// failed with it that waited for so many writes, and no later ones, they are told.
    pub(crate) fn ended(
        &mut self,
        now: Time,
        result: Result<(), IoError>,
        counts: bool,
    ) -> Option<Written> {
        self.took_ns = now - self.sent_at;
        let covers = self.inflight.take().expect("a FLUSH of this origin was under way");
        if result.is_ok() && !self.unheard {
            self.flushed = self.flushed.max(covers);
            self.forgets = false;
            self.untold &= !self.exact || self.poisoned;
            return None;
        }
        self.retry_at = now + FLUSH_RETRY_NS;
        match (counts, self.exact) {
            (false, _) => return None,
            (true, false) => self.failed(),
            (true, true) => {
                self.failures += 1;
                self.untold |= self.is_lost_perhaps();
                self.unheard |= self.client_written > self.flushed;
                self.wanted = if self.wanted > covers { self.wanted } else { Written::NONE };
            }
        }
        self.exact.then_some(covers)
    }

    /// A client was told that such a FLUSH has failed.
    pub(crate) fn heard(&mut self) {
        self.unheard = false;
    }

    /// The FLUSH with which an origin comes into service was tried often enough.
    pub(crate) fn first_ended(&mut self, result: Result<(), IoError>) {
        match result {
            Ok(()) => self.flushed = self.written,
            Err(_) => self.failures += 1,
        }
    }

    /// What clients wrote, and nobody flushed, may be lost: no later FLUSH can promise it.
    pub(crate) fn lost_perhaps(&mut self) {
        let lost = self.client_written > self.flushed;
        self.poisoned |= lost;
        self.doubtful |= lost;
        self.untold |= self.is_lost_perhaps();
    }

    /// Whether what clients wrote may be lost, and, of an origin that answers for itself, more than
    /// who removes the volume was told of.
    fn is_lost_perhaps(&self) -> bool {
        let is_known = self.told.is_some_and(|told| self.client_written <= told);
        self.client_written > self.flushed && !(self.exact && is_known)
    }

    /// A FLUSH failed, or the origin was lost before one.
    fn failed(&mut self) {
        self.lost_perhaps();
        self.failures += 1;
        self.wanted = Written::NONE;
    }

    /// The origin was lost, and is there again: a FLUSH that is under way covers nothing of what it
    /// had taken before.
    pub(crate) fn origin_was_lost(&mut self) {
        self.failed();
        self.inflight = self.inflight.map(|_| Written::NONE);
    }

    /// Clients know that the origin has failed a FLUSH, and what is cached of it is given up.
    pub(crate) fn clients_know(&mut self) {
        self.forgets = true;
        self.doubtful = false;
    }

    /// Whether who asks for the volume's removal has to be told that the origin has failed a FLUSH.
    pub(super) fn is_untold(&self) -> bool {
        self.untold
    }

    /// They are told, if they have to be. Whether they have.
    pub(crate) fn tell(&mut self) -> bool {
        let is_told = std::mem::take(&mut self.untold);
        if is_told {
            self.told = Some(self.written);
        }
        is_told
    }

    /// They are told that the origin cannot be flushed, whoever wrote what is there.
    pub(crate) fn tell_anyway(&mut self) {
        self.untold = true;
        self.tell();
    }

    /// Whether they know that nothing of what is written may be durable. Another origin has to be
    /// flushed in any case.
    pub(super) fn is_given_up(&self) -> bool {
        self.exact && self.told.is_some_and(|told| told >= self.written)
    }

    /// Whether the origin answers each FLUSH for itself.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Writes that have ended.
    pub(crate) fn written(&self) -> Written {
        self.written
    }

    /// What a client's FLUSH has to cover.
    pub(crate) fn client_written(&self) -> Written {
        self.client_written
    }

    /// Whether so many writes are durable.
    pub(crate) fn is_durable(&self, written: Written) -> bool {
        written <= self.flushed
    }

    /// All that was written, if not all of it is durable.
    pub(crate) fn undurable(&self) -> Option<Written> {
        (self.flushed < self.written).then_some(self.written)
    }

    /// Whether a FLUSH is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.inflight.is_some()
    }

    /// FLUSHes that failed.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Whether the origin has a volatile cache.
    pub(crate) fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// Whether no write of a client can be promised durable any more.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Whether what is cached may be newer than what the origin has.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Whether the origin may show what it will forget: that is not worth a place in the cache.
    pub(crate) fn forgets(&self) -> bool {
        self.forgets
    }

    /// How long the last one took, in nanoseconds.
    pub(crate) fn took_ns(&self) -> Time {
        self.took_ns
    }

    /// From when on the FLUSH under way counts as one that hangs: it takes much longer than the
    /// last one did; but the last one may have been one that hung.
    pub(super) fn hangs_from(&self) -> Option<Time> {
        let long = (4 * self.took_ns).clamp(ORIGIN_HANGS_NS, 2 * ORIGIN_HANGS_NS);
        self.inflight.map(|_| self.sent_at + long)
    }
}
