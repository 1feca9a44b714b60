//! What clients do with a volume: how much of it is under way, and when they last did it.

use crate::event::Time;

/// The traffic of one volume.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Requests under way.
    requests: u32,
    /// Writes into the cache among them.
    cache_writes: u32,
    /// Reads of the origin that have not ended.
    origin_reads: u32,
    /// When a client last asked something of the origin.
    origin_used: Time,
    /// When a client last wrote.
    written_at: Time,
}

impl Traffic {
    /// Nobody has done anything, and will be idle from now on.
    pub(super) fn from(now: Time) -> Traffic {
        Traffic { origin_used: now, written_at: now, ..Traffic::default() }
    }

    /// A request came.
    #[inline]
    pub(crate) fn request_came(&mut self) {
        self.requests += 1;
    }

    /// It is answered; it was a write into the cache, or was not.
    #[inline]
    pub(crate) fn request_ended(&mut self, cached: bool) {
        self.requests -= 1;
        self.cache_writes -= u32::from(cached);
    }

    /// A request under way is a write into the cache.
    #[inline]
    pub(crate) fn cache_write_begins(&mut self) {
        self.cache_writes += 1;
    }

    /// It goes to the origin instead.
    pub(crate) fn cache_write_goes_around(&mut self) {
        self.cache_writes -= 1;
    }

    /// A client writes.
    #[inline]
    pub(crate) fn wrote(&mut self, now: Time) {
        self.written_at = now;
    }

    /// A client asks something of the origin.
    pub(crate) fn uses_origin(&mut self, now: Time) {
        self.origin_used = now;
    }

    /// A read of the origin begins.
    pub(crate) fn origin_read_begins(&mut self, now: Time) {
        self.origin_used = now;
        self.origin_reads += 1;
    }

    /// One has ended. How many have not.
    pub(crate) fn origin_read_ended(&mut self, now: Time) -> u32 {
        self.origin_used = now;
        self.origin_reads -= 1;
        self.origin_reads
    }

    /// Whether any request is under way.
    pub(crate) fn has_requests(&self) -> bool {
        self.requests > 0
    }

    /// Writes into the cache under way.
    pub(crate) fn cache_writes(&self) -> u32 {
        self.cache_writes
    }

    /// How long no client has written.
    pub(crate) fn write_idle_ns(&self, now: Time) -> Time {
        now.saturating_sub(self.written_at)
    }

    /// How long no client has used the origin.
    pub(crate) fn origin_idle_ns(&self, now: Time) -> Time {
        match self.origin_reads {
            0 => now.saturating_sub(self.origin_used),
            _ => 0,
        }
    }

    /// When a client last asked something of the origin.
    pub(crate) fn origin_used(&self) -> Time {
        self.origin_used
    }

    /// When a client last did that, or wrote.
    pub(crate) fn last_used(&self) -> Time {
        self.origin_used.max(self.written_at)
    }
}
