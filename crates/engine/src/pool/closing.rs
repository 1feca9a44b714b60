//! Closing: requests end, everything gathered is written, a checkpoint, then the clean mark.

use crate::engine::Engine;
use crate::event::*;
use crate::ids::Written;
use crate::limits::SHUTDOWN_FLUSHES_MAX;
use crate::pool::stage::{Asked, Closing, Step};
use crate::pool::{Stage, Then};

impl Engine {
    /// A command closes the pool.
    pub(crate) fn closing_begin(&mut self, command: CommandId) {
        self.close(Step::Ends(Asked { command, failures: self.flush_failures() }));
    }

    fn close(&mut self, step: Step) {
        self.pool.enter(Stage::Stopping(Closing(step)));
    }

    /// Goes on with it.
    pub(crate) fn closing_more(&mut self) {
        let &Stage::Stopping(Closing(step)) = self.pool.stage() else { return };
        let (asked, after) = match step {
            Step::Marking(_) | Step::Closed => return,
            Step::Ends(asked) => (asked, None),
            Step::Checkpoint(asked, after) => (asked, Some(after)),
        };
        if self.flush_failures().saturating_sub(asked.failures) > SHUTDOWN_FLUSHES_MAX {
            self.pool.enter(Stage::Serving);
            let why = "an origin cannot be flushed, so what was written to it last may be lost; \
                       repair it and stop again, or end the process: the log is safe";
            return self.refuse(asked.command, why);
        }
        if self.log.is_dead() {
            if self.reqs.is_empty()
                && self.origins_flushed()
                && self.segments.discarding().is_none()
            {
                self.close(Step::Marking(asked.command));
                self.closed();
            }
            return;
        }
        if !self.reqs.is_empty()
            || self.log.busy()
            || self.writeback_is_busy()
            || self.segments.discarding().is_some()
            || !self.pool.is_idle()
        {
            // What reclaim moves gathers: a record for each block would fill as much as it empties.
            if self.reqs.is_empty() && !self.reclaim.is_moving() {
                for point in crate::log::POINTS {
                    self.send(point);
                }
            }
            return;
        }
        if !self.origins_flushed() || self.pool.checkpoint_runs() {
            return;
        }
        let counted = self.pool.checkpoints();
        if after.is_some_and(|after| counted > after) {
            self.close(Step::Marking(asked.command));
            self.pool.mark_clean();
            return self.superblock_write(Then::Closed);
        }
        self.close(Step::Checkpoint(asked, after.unwrap_or(counted)));
        self.pool.want_checkpoint();
    }

    fn flush_failures(&self) -> u64 {
        self.volumes.iter().map(|v| v.flush().failures()).sum()
    }

    /// Asks for the FLUSHes that the origins still need. Whether there are none.
    fn origins_flushed(&mut self) -> bool {
        let behind: Vec<(VolumeId, Written)> = self
            .volumes
            .iter()
            .filter(|v| v.service().is_on())
            .filter_map(|v| Some((v.id(), v.flush().undurable()?)))
            .collect();
        for &(id, written) in &behind {
            self.want_origin(id, written);
        }
        behind.is_empty()
    }

    /// The pool is closed, as far as it can be.
    pub(crate) fn closed(&mut self) {
        let &Stage::Stopping(Closing(Step::Marking(id))) = self.pool.stage() else { return };
        self.close(Step::Closed);
        if self.log.is_dead() && self.volumes.iter().any(|v| !v.dirty().is_empty()) {
            let why = "the cache device failed while it held dirty blocks, which are nowhere else";
            return self.refuse(id, why);
        }
        if self.volumes.iter().any(|v| v.flush().is_poisoned()) {
            let why = "the pool is closed, but an origin has failed a FLUSH since it was opened: \
                       what was written there before may be lost";
            return self.refuse(id, why);
        }
        self.answer(id, CommandReply::Changed);
    }
}
