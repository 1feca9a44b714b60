//! What all shards of a process share to serve NBD.

use super::mailbox::{Mailbox, Message};
use crate::frontend::nbd::{Budget, ExportTable, Limits};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What clients may make the process hold.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// Clients that have chosen an export, at once.
    pub clients_max: usize,
    /// Clients in the handshake at once, of each socket on which they come.
    pub handshakes_max: usize,
    /// Bytes of requests of all clients at once.
    pub bytes_max: u64,
    /// Limits of each connection.
    pub connection: Limits,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            clients_max: 512,
            handshakes_max: 64,
            bytes_max: 512 << 20,
            connection: Limits::default(),
        }
    }
}

/// The exports and the limits of a process, and the shards behind them.
pub struct NbdServer {
    /// The exports. Whoever adds a volume inserts its export here.
    pub exports: Arc<ExportTable>,
    pub(super) handshakes_max: usize,
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
