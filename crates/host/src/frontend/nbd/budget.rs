//! What one client, and all clients together, may make the server hold.

use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Bytes of one read or write.
    pub payload_bytes_max: u64,
    /// Bytes of one request to the engine; larger ones are divided. A multiple of 4096.
    pub part_bytes_max: u64,
    /// Parts of one request without data that the engine has at once.
    pub parts_max: usize,
    /// Answers that wait to be sent, in bytes without data, before no more input is taken.
    pub output_bytes_max: usize,
    /// Blocks that one block-status request looks at, and extents that it reports, at most.
    pub status_blocks_max: u64,
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
            payload_bytes_max: 64 << 20,
            part_bytes_max: 1 << 20,
            parts_max: 16,
            output_bytes_max: 256 << 10,
            status_blocks_max: 1 << 16,
            status_extents_max: 4096,
            handshake_ms: 10_000,
            stalled_ms: 60_000,
            retry_ms: 10,
        }
    }
}

/// Bytes that the requests of all connections may hold together. Shared by all sessions.
#[derive(Debug)]
pub struct Budget {
    used: AtomicU64,
    bytes_max: u64,
}

impl Budget {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Budget {
        Budget { used: AtomicU64::new(0), bytes_max }
    }

    /// Takes `bytes`, if they are left.
    pub(super) fn take(&self, bytes: u64) -> bool {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max)
            })
            .is_ok()
    }

    /// Takes `bytes`, left or not: what keeps a connection moving when the budget is used up.
    pub(super) fn take_anyway(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives `bytes` back.
    pub(super) fn give(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes);
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
