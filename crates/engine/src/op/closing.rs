//! Closing: requests end, everything gathered is written, a checkpoint, then the clean mark.

use crate::engine::{Engine, State};
use crate::event::*;
use crate::limits::SHUTDOWN_FLUSHES_MAX;
use crate::op::superblock::Then;

/// How far the pool is closed.
#[derive(Debug, Default)]
pub(crate) struct Closing(Step);

#[derive(Debug, Default, Clone, Copy)]
enum Step {
    /// Nobody asked for it.
    #[default]
    Open,
    /// What is under way ends.
    Ends(Asked),
    /// A checkpoint more than these is waited for.
    Checkpoint(Asked, u64),
    /// The clean mark is written.
    Marking(CommandId),
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    command: CommandId,
    /// FLUSHes of origins that had failed.
    failures: u64,
}

impl Engine {
    /// A command closes the pool.
    pub(crate) fn closing_begin(&mut self, command: CommandId) {
        self.state = State::Stopping;
        self.closing = Closing(Step::Ends(Asked { command, failures: self.flush_failures() }));
    }

    /// Goes on with it.
    pub(crate) fn closing_more(&mut self) {
        let (asked, after) = match self.closing.0 {
            Step::Open | Step::Marking(_) => return,
            Step::Ends(asked) => (asked, None),
            Step::Checkpoint(asked, after) => (asked, Some(after)),
        };
        if self.flush_failures() - asked.failures > SHUTDOWN_FLUSHES_MAX {
            self.closing = Closing(Step::Open);
            self.state = State::Serving;
            let why = "an origin cannot be flushed, so what was written to it last may be lost; \
                       repair it and stop again, or end the process: the log is safe";
            return self.refuse(asked.command, why);
        }
        if self.dead {
            if self.reqs.is_empty() && self.origins_flushed() {
                self.closing = Closing(Step::Marking(asked.command));
                self.closed();
            }
            return;
        }
        if !self.reqs.is_empty() || self.log.busy() || self.writeback_is_busy() || !self.sb.idle() {
            // What reclaim moves gathers: a record for each block would fill as much as it empties.
            if self.reqs.is_empty() && !self.reclaim.is_moving() {
                for point in crate::log::POINTS {
                    self.send(point);
                }
            }
            return;
        }
        if !self.origins_flushed() || self.checkpoint.running() {
            return;
        }
        let counted = self.checkpoint.counted;
        if after.is_some_and(|after| counted > after) {
            self.closing = Closing(Step::Marking(asked.command));
            self.sb.block.header.clean = 1;
            return self.superblock_write(Then::Closed);
        }
        self.closing = Closing(Step::Checkpoint(asked, after.unwrap_or(counted)));
        self.checkpoint.wanted = true;
    }

    fn flush_failures(&self) -> u64 {
        self.volumes.iter().map(|v| v.flush.failures).sum()
    }

    /// Asks for the FLUSHes that the origins still need. Whether there are none.
    fn origins_flushed(&mut self) -> bool {
        let behind: Vec<(VolumeId, u64)> = self
            .volumes
            .iter()
            .filter(|v| v.offline.is_none())
            .filter(|v| v.flush.flushed < v.flush.written)
            .map(|v| (v.id, v.flush.written))
            .collect();
        for &(id, written) in &behind {
            self.want_origin(id, written);
        }
        behind.is_empty()
    }

    /// The pool is closed, as far as it can be.
    pub(crate) fn closed(&mut self) {
        let Step::Marking(id) = std::mem::take(&mut self.closing).0 else { return };
        if self.dead && self.volumes.iter().any(|v| !v.dirty.is_empty()) {
            let why = "the cache device failed while it held dirty blocks, which are nowhere else";
            return self.refuse(id, why);
        }
        if self.volumes.iter().any(|v| v.flush.poisoned) {
            let why = "the pool is closed, but an origin has failed a FLUSH since it was opened: \
                       what was written there before may be lost";
            return self.refuse(id, why);
        }
        self.answer(id, CommandReply::Changed);
    }
}
