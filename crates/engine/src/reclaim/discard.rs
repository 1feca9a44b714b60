//! Freed units are given to their devices, as long as the pool serves.

use crate::Mutant;
use crate::due::Due;
use crate::engine::Engine;
use crate::event::*;
use crate::op::Op;
use crate::pool::Stage;

impl Engine {
    /// See `parts.rs`.
    pub(crate) fn discard_more(&mut self) {
        if !matches!(self.pool.stage(), Stage::Serving) {
            return;
        }
        let leaves = self.is(Mutant::DiscardOfOpen);
        for (device, offset, len) in self.segments.discard_begin(self.io.now(), leaves) {
            self.io.discard(Op::Discard { device }, Target::Cache(device), offset, len);
        }
    }

    pub(crate) fn discard_more_due(&self, due: &mut Due) {
        due.at(self.segments.discard_due());
    }

    /// It was a hint: one that refuses goes on as a device that has no use for it.
    pub(crate) fn discard_done(&mut self, device: DeviceId, result: Result<(), IoError>) {
        self.segments.discard_ended(device, result.is_ok(), self.io.now());
    }
}
