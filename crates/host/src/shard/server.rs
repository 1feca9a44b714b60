//! What all shards of a process share to serve NBD.

use super::mailbox::{Mailbox, Message};
use crate::frontend::nbd::{Budget, ExportTable, Limits};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What clients may make the process hold.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// Clients connected at once.
    pub clients_max: usize,
    /// Bytes of requests of all clients at once.
    pub bytes_max: u64,
    /// Limits of each connection.
    pub connection: Limits,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits { clients_max: 512, bytes_max: 512 << 20, connection: Limits::default() }
    }
}

/// The exports and the limits of a process, and the shards behind them.
pub struct NbdServer {
    /// The exports. Whoever adds a volume inserts its export here.
    pub exports: Arc<ExportTable>,
    pub(super) limits: Arc<Limits>,
    pub(super) budget: Arc<Budget>,
    shards: Mutex<BTreeMap<u32, Arc<Mailbox>>>,
}

impl NbdServer {
    /// A server without exports.
    pub fn new(limits: ServerLimits) -> Arc<NbdServer> {
        Arc::new(NbdServer {
            exports: Arc::new(ExportTable::new()),
            limits: Arc::new(limits.connection),
            budget: Arc::new(Budget::new(limits.bytes_max, limits.clients_max)),
            shards: Mutex::default(),
        })
    }

    /// Clients connected to all shards.
    pub fn clients(&self) -> usize {
        self.budget.clients()
    }

    /// Counts a client, unless there are too many.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Place> {
        self.budget.enter().then(|| Place(Arc::clone(&self.budget)))
    }

    /// Counts a client in the place of another one.
    pub(super) fn enter_anyway(&self) -> Place {
        self.budget.enter_anyway();
        Place(Arc::clone(&self.budget))
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

/// A client's place among those that are counted; dropping it gives it back.
pub(super) struct Place(Arc<Budget>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.leave();
    }
}
