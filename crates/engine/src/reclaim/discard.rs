//! Freed units are given to their devices, as long as the pool serves.

use super::Reclaim;
use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::limits::VICTIMS_MAX;
use crate::op::Op;
use crate::parts::Due;
use crate::policy::eviction::Choice;
use crate::pool::Stage;
use crate::segment::{UnitId, Use};
use std::collections::VecDeque;

/// How far emptying what is dead has come.
#[derive(Debug, Clone, Copy)]
pub(super) enum Gives {
    /// Some has not been emptied.
    Empties,
    /// All was when this was the generation of the last checkpoint, or of the one under way. Two
    /// more, and no start needs any of it.
    Emptied(u64),
}

impl Reclaim {
    /// Whether what is emptied should be free soon though nobody wants room.
    pub(crate) fn gives_back(&self) -> bool {
        self.gives.is_some()
    }
}

impl Engine {
    /// Where much is dead, as after a volume was removed, the devices get its space back. Emptying
    /// it costs no more than the words that say so.
    pub(super) fn victims_dead(&mut self) {
        let generation = self.checkpoint_generation();
        self.reclaim.gives = match self.reclaim.gives {
            None | Some(Gives::Emptied(_)) if self.segments.much_is_dead() => Some(Gives::Empties),
            Some(Gives::Emptied(since)) if self.all_is_free(since) => None,
            other => other,
        };
        let alone = self.reclaim.victims.is_empty();
        if !matches!(self.reclaim.gives, Some(Gives::Empties)) || !alone {
            return;
        }
        while self.reclaim.victims.len() < VICTIMS_MAX {
            if !self.room_for_entries() {
                return;
            }
            let Some(unit) = self.segments.take_dead() else {
                self.reclaim.gives = Some(Gives::Emptied(generation));
                return;
            };
            self.segments.becomes(unit, Use::Victim);
            let room = self.segments.reserve(0);
            self.victim_begin(unit, Choice::Evict, VecDeque::new(), room);
        }
    }

    fn all_is_free(&self, since: u64) -> bool {
        let emptied = self.segments.emptied();
        let waits = |unit: &UnitId| self.segments.unit(*unit).emptied_by(since);
        self.reclaim.victims.is_empty() && !emptied.iter().any(waits)
    }

    /// See `parts.rs`.
    pub(crate) fn discard_more(&mut self) {
        if !matches!(self.pool.stage(), Stage::Serving) {
            return;
        }
        let leaves = self.is(Mutant::DiscardOfOpen);
        for (device, offset, len) in self.segments.discard_begin(self.io.now(), leaves) {
            let op = self.io.op(Op::Discard { device });
            self.io.put(Effect::Discard { op, target: Target::Cache(device), offset, len });
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
