//! What all shards of a process share to serve NBD.

use super::mailbox::{Mailbox, Message};
use crate::frontend::nbd::{Budget, ExportTable, Limits};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Least bytes of a part of a request, and of what requests share, at which clients can work.
const PART_BYTES_MIN: u64 = 64 << 10;
const SHARED_BYTES_MIN: u64 = 3 << 20;

/// What clients may make the process hold.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// Clients that have chosen an export, at once.
    pub clients_max: usize,
    /// Clients in the handshake at once, of each socket on which they come.
    pub handshakes_max: usize,
    /// Bytes of requests of all clients at once.
    pub bytes_max: u64,
    /// Bytes of unused buffers that a shard keeps for clients, and as much for ports.
    pub unused_bytes_max: usize,
    /// Limits of each connection.
    pub connection: Limits,
}

/// A request of so much is carried out however much others hold, wherever it begins.
const LEAST_BYTES: u64 = 256 << 10;
/// Most clients, however much memory there is.
const CLIENTS_MAX: u64 = 512;

impl ServerLimits {
    /// Limits by which all clients together hold `bytes` at most. Two fifths are for requests, by
    /// shares; the rest lets each connection go on with a small one when these are used up. Where
    /// there is little, parts are smaller, and so is the largest request.
    pub fn within(bytes: u64) -> ServerLimits {
        let shared = (bytes / 5 * 2).max(SHARED_BYTES_MIN);
        let part = (bytes / 1024 + 1).next_power_of_two() / 2;
        let part = part.clamp(PART_BYTES_MIN, 1 << 20);
        let text = part.min(256 << 10);
        let payload = ((shared - 4 * part) / 2 + 1).next_power_of_two() / 2;
        let payload = payload.min(64 << 20);
        let least = part + LEAST_BYTES;
        let each = least + 2 * text;
        let connection = Limits {
            in_flight_bytes_max: payload,
            least_bytes_max: least,
            payload_bytes_max: payload,
            part_bytes_max: part,
            input_bytes: text as usize,
            output_bytes_max: text as usize,
            ..Limits::default()
        };
        ServerLimits {
            clients_max: ((bytes - bytes / 5 * 2) / each).clamp(2, CLIENTS_MAX) as usize,
            bytes_max: shared.min(512 << 20),
            unused_bytes_max: (shared / 8).min(64 << 20) as usize,
            connection,
            ..ServerLimits::default()
        }
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            clients_max: 512,
            handshakes_max: 64,
            bytes_max: 512 << 20,
            unused_bytes_max: 64 << 20,
            connection: Limits::default(),
        }
    }
}

/// The exports and the limits of a process, and the shards behind them.
pub struct NbdServer {
    /// The exports. Whoever adds a volume inserts its export here.
    pub exports: Arc<ExportTable>,
    pub(super) handshakes_max: usize,
    pub(super) unused_bytes_max: usize,
    pub(super) limits: Arc<Limits>,
    pub(super) budget: Arc<Budget>,
    shards: Mutex<BTreeMap<u32, Arc<Mailbox>>>,
}

impl NbdServer {
    /// A server without exports.
    pub fn new(limits: ServerLimits) -> Arc<NbdServer> {
        Arc::new(NbdServer {
            exports: Arc::new(ExportTable::new()),
            handshakes_max: limits.handshakes_max,
            unused_bytes_max: limits.unused_bytes_max,
            limits: Arc::new(limits.connection),
            budget: Arc::new(Budget::new(limits.bytes_max, limits.clients_max)),
            shards: Mutex::default(),
        })
    }

    /// Clients of all shards that have chosen an export, and those that left with requests under
    /// way.
    pub fn clients(&self) -> usize {
        self.budget.clients()
    }

    /// Bytes that requests of clients hold.
    pub fn held_bytes(&self) -> u64 {
        self.budget.used_bytes()
    }

    fn shards(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Arc<Mailbox>>> {
        self.shards.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn add_shard(&self, number: u32, mailbox: Arc<Mailbox>) {
        let before = self.shards().insert(number, mailbox);
        assert!(before.is_none(), "each pool has its own number");
    }

    pub(super) fn remove_shard(&self, number: u32) {
        self.shards().remove(&number);
    }

    /// Sends a message to another shard, or drops it if there is none with this number.
    pub(super) fn forward(&self, number: u32, message: Message) {
        if let Some(mailbox) = self.shards().get(&number) {
            mailbox.post(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_hold_no_more_than_they_are_given() {
        for mib in [6, 32, 100, 256, 1024, 1536, 8192] {
            let bytes = mib << 20;
            let limits = ServerLimits::within(bytes);
            let one = &limits.connection;
            let each = one.least_bytes_max + (one.input_bytes + one.output_bytes_max) as u64;
            assert!(limits.bytes_max + limits.clients_max as u64 * each <= bytes.max(7 << 20));
            assert!(limits.bytes_max >= 2 * one.payload_bytes_max + 4 * one.part_bytes_max);
            assert!(one.payload_bytes_max >= one.part_bytes_max);
        }
        // Enough for 20 clients that do not read, and as many that do.
        assert!(ServerLimits::within(32 << 20).clients_max > 42);
        assert_eq!(ServerLimits::within(1536 << 20).clients_max, 512);
        assert_eq!(ServerLimits::within(1536 << 20).connection.payload_bytes_max, 64 << 20);
    }
}
