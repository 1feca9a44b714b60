//! Volumes that our NBD server offers.

use super::machine::Machine;
use super::offer::Volume;
use forebay_api::Mode;
use forebay_host::frontend::nbd::{Export, Share};
use std::sync::atomic::{AtomicBool, Ordering};

/// Offers a volume. Who is connected to one of its name keeps that.
pub(super) fn make(machine: &Machine, &Volume { shard, name, offer }: &Volume) {
    machine.server.exports.insert(Export {
        name: name.to_string(),
        description: format!("Forebay volume {name}, {}", offer.mode),
        pool: shard.number(),
        volume: offer.volume,
        bytes: offer.bytes.clone(),
        read_only: false,
        sparse: offer.space.sparse,
        fast_zero: AtomicBool::new(offer.mode.plan().write_dirty),
        share: Share::default(),
    });
}

/// Tells the clients of a volume, if there are any, what a new mode means for them.
pub(super) fn set_mode(machine: &Machine, name: &str, mode: Mode) {
    if let Some(export) = machine.server.exports.find(name) {
        export.fast_zero.store(mode.plan().write_dirty, Ordering::Relaxed);
    }
}

/// Offers a volume to no more clients.
pub(super) fn end(machine: &Machine, name: &str) {
    machine.server.exports.remove(name);
}
