//! What the server offers: volumes by name.

use super::budget::Share;
use crate::frontend::VolumeBytes;
use forebay_engine::VolumeId;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// One volume as clients see it.
#[derive(Debug)]
pub struct Export {
    /// The name that clients ask for, at most 4096 bytes.
    pub name: String,
    /// Text for `nbdinfo`, at most 4096 bytes; may be empty.
    pub description: String,
    /// The pool, by a number of the server's own: a shard or an engine, for example.
    pub pool: u32,
    /// The volume in that pool.
    pub volume: VolumeId,
    /// Its size. Clients learn a new one when they connect again.
    pub bytes: VolumeBytes,
    /// Writes are refused.
    pub read_only: bool,
    /// The origin tells where it has no space.
    pub sparse: bool,
    /// Zeroing costs less than writing zeros would: the mode writes zero entries, or the origin can
    /// punch holes. Requests with the fast-zero flag are refused otherwise. May change with the
    /// mode.
    pub fast_zero: AtomicBool,
    /// What its clients hold.
    pub share: Share,
}

/// All exports of a server. Shared by its sessions; they look only during the handshake.
#[derive(Debug, Default)]
pub struct ExportTable {
    exports: Mutex<BTreeMap<String, Arc<Export>>>,
}

impl ExportTable {
    /// An empty table.
    pub fn new() -> ExportTable {
        ExportTable::default()
    }

    /// Adds an export, or replaces the one with its name. Connected clients keep what they had.
    pub fn insert(&self, export: Export) -> Arc<Export> {
        let export = Arc::new(export);
        self.lock().insert(export.name.clone(), Arc::clone(&export));
        export
    }

    /// Removes an export. Its sessions go on until [`super::Session::shutdown`] is called on them.
    pub fn remove(&self, name: &str) -> Option<Arc<Export>> {
        self.lock().remove(name)
    }

    /// The export with this name. The empty name means the only export, if there is exactly one.
    pub fn find(&self, name: &str) -> Option<Arc<Export>> {
        let exports = self.lock();
        match exports.get(name) {
            Some(export) => Some(Arc::clone(export)),
            None if name.is_empty() && exports.len() == 1 => exports.values().next().cloned(),
            None => None,
        }
    }

    /// All exports, by name.
    pub fn list(&self) -> Vec<Arc<Export>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Export>>> {
        self.exports.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
