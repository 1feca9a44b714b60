//! What one client, and all clients together, may make the server hold.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Limits of one connection. The defaults are meant for production; tests set smaller ones.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of data of one option.
    pub option_bytes_max: usize,
    /// Options of one handshake.
    pub options_max: usize,
    /// Bytes of an export name or of a metadata query.
    pub name_bytes_max: usize,
    /// Metadata queries in one option.
    pub queries_max: usize,
    /// Requests of one connection under way at once.
    pub requests_max: usize,
    /// Bytes of requests under way at once, and of answers not sent. One request alone may exceed
    /// it.
    pub in_flight_bytes_max: u64,
    /// Bytes that a connection which has nothing under way may always take, whatever others hold.
    /// At least a part.
    pub least_bytes_max: u64,
    /// Bytes of one read or write.
    pub payload_bytes_max: u64,
    /// Bytes of one request to the engine; larger ones are divided. A multiple of 4096.
    pub part_bytes_max: u64,
    /// The same of a zeroing or a discard. More than what the engine writes as data: a long one
    /// gives space back at the origin, and is not written to the cache device piece by piece.
    pub zeroes_bytes_max: u64,
    /// Bytes of requests without data (zeroing, discard, prefetch, block status) that are asked
    /// of the loop at once: what goes on when the client has left, and what others may have to
    /// wait for at a device. Of zeroing and discard a quarter counts. Requests that go on have
    /// turns.
    pub dataless_bytes_max: u64,
    /// Room for what one receive brings, in bytes.
    pub input_bytes: usize,
    /// Answers that wait to be sent, in bytes without data, before no more input is taken.
    pub output_bytes_max: usize,
    /// Blocks that one block-status request looks at, and extents that it reports, at most.
    pub status_blocks_max: u64,
    /// Blocks that it looks at in one go.
    pub status_slice_blocks: u64,
    /// Extents in one answer to a block-status request.
    pub status_extents_max: usize,
    /// A connection that is not through the handshake after this time should be closed, in
    /// milliseconds.
    pub handshake_ms: u64,
    /// A connection that took none of its output for this time should be closed, in milliseconds.
    pub stalled_ms: u64,
    /// How often to call a paused session again, in milliseconds: another one may have left the
    /// budget.
    pub retry_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            option_bytes_max: 64 << 10,
            options_max: 32,
            name_bytes_max: 4096,
            queries_max: 64,
            requests_max: 1024,
            in_flight_bytes_max: 64 << 20,
            least_bytes_max: 1 << 20,
            payload_bytes_max: 64 << 20,
            part_bytes_max: 1 << 20,
            zeroes_bytes_max: 4 << 20,
            dataless_bytes_max: 4 << 20,
            input_bytes: 256 << 10,
            output_bytes_max: 256 << 10,
            status_blocks_max: 1 << 16,
            status_slice_blocks: 1 << 11,
            status_extents_max: 4096,
            handshake_ms: 10_000,
            stalled_ms: 60_000,
            retry_ms: 10,
        }
    }
}

/// What the clients of one volume hold of a [`Budget`].
#[derive(Debug, Default)]
pub struct Share {
    bytes: AtomicU64,
    clients: AtomicUsize,
}

/// What all clients together may hold: places, and bytes of requests. Shared by all sessions.
///
/// No volume gets more than it leaves to others: one whose requests never end holds half at most,
/// another one half of what is left then (dynamic thresholds, Choudhury and Hahne 1998). So there
/// is always room for one more.
#[derive(Debug)]
pub struct Budget {
    used: AtomicU64,
    bytes_max: u64,
    /// Clients that have chosen a volume.
    clients: AtomicUsize,
    clients_max: usize,
}

impl Budget {
    /// A budget of `bytes_max` bytes, for `clients_max` clients.
    pub fn new(bytes_max: u64, clients_max: usize) -> Budget {
        Budget { used: AtomicU64::new(0), bytes_max, clients: AtomicUsize::new(0), clients_max }
    }

    /// Clients that have chosen a volume. Who left counts until what he asked has ended.
    pub(crate) fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// Counts a client among those of its volume, if they leave as many places to others.
    pub(super) fn choose(&self, share: &Share) -> bool {
        let free = self.clients_max.saturating_sub(self.clients());
        let more = |on_it| (on_it < free).then_some(on_it + 1);
        let chosen = share.clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        self.clients.fetch_add(usize::from(chosen), Ordering::Relaxed);
        chosen
    }

    /// A client that chose this volume is gone.
    pub(super) fn unchoose(&self, share: &Share) {
        share.clients.fetch_sub(1, Ordering::Relaxed);
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes `bytes` for a volume, if it leaves as much to others. One request of each volume is
    /// always taken.
    pub(super) fn take(&self, share: &Share, bytes: u64) -> bool {
        let held = share.bytes.load(Ordering::Relaxed);
        if held == 0 {
            self.take_anyway(share, bytes);
            return true;
        }
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let free = self.bytes_max.saturating_sub(used);
            (held + bytes <= free).then_some(used + bytes)
        });
        if taken.is_ok() {
            share.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    /// Takes `bytes`, left or not: what keeps a connection moving when the budget is used up.
    pub(super) fn take_anyway(&self, share: &Share, bytes: u64) {
        share.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives `bytes` back.
    pub(super) fn give(&self, share: &Share, bytes: u64) {
        let before = share.bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes);
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that may be taken.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes taken now.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}
