//! What the pool says of its checkpoints, and what it is told for them.

use crate::ids::{Dseq, Key};
use crate::pool::checkpoint::Phase;
use crate::pool::{Pool, Source};

impl Pool {
    /// Somebody wants a checkpoint now.
    pub(crate) fn want_checkpoint(&mut self) {
        self.checkpoint.wanted = true;
    }

    /// One is wanted, and no other after the one under way.
    pub(crate) fn want_checkpoint_next(&mut self) {
        self.checkpoint.wanted = !self.checkpoint_runs();
    }

    /// How many have counted since the start.
    pub(crate) fn checkpoints(&self) -> u64 {
        self.checkpoint.counted
    }

    /// The last of them has made the log durable up to here.
    pub(crate) fn checkpointed(&self) -> Dseq {
        self.checkpoint.durable
    }

    /// Bytes written for them, and for superblocks.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.checkpoint.bytes
    }

    /// A start has read this checkpoint.
    pub(crate) fn begins_with(&mut self, source: Option<Source>) {
        self.checkpoint.base = source;
    }

    /// Keys that were placed in the index, or moved in it.
    pub(crate) fn placed(&mut self, keys: impl Iterator<Item = Key>) {
        if self.checkpoint_scans() {
            self.checkpoint.placed.extend(keys);
        }
    }

    pub(crate) fn checkpoint_scans(&self) -> bool {
        self.checkpoint.run.as_ref().is_some_and(|run| run.phase == Phase::Scan)
    }

    /// Records up to here must be on the devices before the checkpoint counts.
    pub(crate) fn checkpoint_wants(&self) -> Option<Dseq> {
        self.checkpoint
            .run
            .as_ref()
            .filter(|run| run.phase == Phase::Settle)
            .map(|run| run.end_dseq)
    }

    /// See `parts.rs`.
    pub(crate) fn checkpoint_progress(&self) -> [u64; 4] {
        let phase = self.checkpoint.run.as_ref().map_or(0, |run| 1 + run.phase as u64);
        let cursor = self.checkpoint.run.as_ref().map_or(0, |run| run.cursor as u64);
        [phase, cursor, self.checkpoint.counted, u64::from(self.checkpoint.wanted)]
    }

    pub(crate) fn checkpoint_runs(&self) -> bool {
        self.checkpoint.run.is_some()
    }

    pub(crate) fn describe(&self) -> String {
        match &self.checkpoint.run {
            None => format!("none, wanted {}", self.checkpoint.wanted),
            Some(run) => format!(
                "{:?} writes {} failed {} end {} {}",
                run.phase,
                run.writes,
                run.failed,
                run.end_seq.raw(),
                run.end_dseq.raw()
            ),
        }
    }
}
