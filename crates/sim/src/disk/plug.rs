//! A disk that is pulled out while it is used, and plugged in again.

use super::Disk;
use crate::content::Content;
use crate::rng::Rng;
use forebay_engine::OpId;
use std::collections::BTreeSet;

/// Whether a disk is plugged in.
#[derive(Debug, Default)]
pub(super) struct Plug {
    is_out: bool,
    /// I/O that was under way when it was pulled out: it may still have been done.
    before: BTreeSet<OpId>,
    /// I/O that came while it was out: that fails, though it may be told later.
    doomed: BTreeSet<OpId>,
}

impl Plug {
    pub fn submitted(&mut self, op: OpId) {
        if self.is_out {
            self.doomed.insert(op);
        }
    }

    pub fn fails(&self, op: OpId, rng: &mut Rng) -> bool {
        self.doomed.contains(&op) || (self.before.contains(&op) && rng.coin())
    }

    pub fn ended(&mut self, op: OpId) {
        self.before.remove(&op);
        self.doomed.remove(&op);
    }
}

impl Disk {
    /// Whether somebody has pulled it out.
    pub fn is_out(&self) -> bool {
        self.plug.is_out
    }

    /// Somebody pulls it out.
    pub fn pull_out(&mut self) {
        self.plug.is_out = true;
        self.plug.before = self.in_flight.keys().copied().collect();
    }

    /// Whether I/O that was under way when it was pulled out has not ended. Until then it cannot be
    /// plugged in.
    pub fn is_awaited(&self) -> bool {
        !self.plug.before.is_empty()
    }

    /// Plugs it in again: what was not durable is gone, or all of it was. Returns what is gone.
    pub fn plug_in(&mut self, rng: &mut Rng) -> Vec<(u64, Content)> {
        assert!(self.is_out() && !self.is_awaited());
        self.plug.is_out = false;
        if rng.one_in(4) { Vec::new() } else { self.forget() }
    }
}
