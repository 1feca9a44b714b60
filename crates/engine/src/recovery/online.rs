//! Origins are flushed at a start (I12). A volume whose origin cannot be flushed comes back when it
//! can.

use crate::Mutant;
use crate::due::Due;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::Dseq;
use crate::limits::*;
use crate::op::Op;

impl Engine {
    pub(crate) fn recover_flush(&mut self, volume: VolumeId, tries: u8) {
        self.io.flush(Op::RecoverFlush { volume, tries }, Target::Origin(volume));
    }

    pub(crate) fn recover_flush_done(
        &mut self,
        id: VolumeId,
        tries: u8,
        result: Result<(), IoError>,
    ) {
        if result.is_err() && !self.is(Mutant::FailedFlushForgotten) {
            self.volumes.lost_perhaps(id);
        }
        if result.is_err() && tries + 1 < FLUSH_TRIES {
            return self.recover_flush(id, tries + 1);
        }
        let retry_at = self.io.now() + OFFLINE_RETRY_NS;
        self.volumes.first_flush_ended(id, result, retry_at);
        self.recovering(|opening, _| {
            opening.flushes -= 1;
            Ok(())
        });
    }

    /// When origins that could not be flushed are tried again.
    pub(crate) fn online_due(&self, due: &mut Due) {
        due.at(self.volumes.iter().filter_map(|v| v.service().due()));
    }

    /// Volumes whose origin could not be flushed come back when it can.
    pub(crate) fn online_more(&mut self) {
        for at in 0..self.volumes.count() {
            let volume = self.volumes.nth(at);
            let id = volume.id();
            let said = if self.log.is_dead() { Dseq::MAX } else { self.log.durable_dseq() };
            let due = volume.service().is_due(self.io.now(), said);
            let ends = self.ends.gives_up(id) || self.ends.empties(id);
            if due && !volume.is_leaving() && !ends {
                // Until the answer is here it counts as being tried.
                self.volumes.is_tried(id);
                self.recover_flush(id, 0);
            }
        }
    }
}
