//! Dirty blocks that lost their second copy get it back: the unit that they are in is emptied, and
//! they go to one that is whole. One unit at a time, with a rest after each while clients are there.

use crate::Mutant;
use crate::due::Due;
use crate::engine::Engine;
use crate::event::Time;
use crate::ids::UnitId;
use crate::limits::HALVES_REST;
use crate::policy::eviction::Choice;
use crate::segment::{Purpose, Use};

/// The unit that is emptied for this, and when the next may be.
#[derive(Debug, Default)]
pub(super) struct Halves {
    unit: Option<(UnitId, Time)>,
    rest_until: Time,
}

impl Engine {
    /// The unit that was emptied may be so by now, or was given up: then there is a rest, which is
    /// longer with clients.
    pub(super) fn half_ended(&mut self) {
        let Some((unit, since)) = self.reclaim.halves.unit else { return };
        if self.victim(unit).is_none() {
            let took = (self.io.now() - since).max(1);
            let rest = if self.reqs.is_empty() { took } else { HALVES_REST * took };
            self.reclaim.halves = Halves { unit: None, rest_until: self.io.now() + rest };
        }
    }

    /// Where nobody wants room: the next unit that should have two copies of what is dirty in it,
    /// and has one.
    pub(super) fn victims_half(&mut self) {
        let may = self.segments.has_halves() && !self.segments.degraded() && self.is_serving();
        let rests = self.io.now() < self.reclaim.halves.rest_until;
        if !may || rests || !self.reclaim.victims.is_empty() || self.is(Mutant::HalvesKept) {
            return;
        }
        if !self.segments.has_whole(Purpose::Move) {
            return;
        }
        self.io.did(self.segments.units().len() / crate::limits::UNITS_PER_STEP);
        let Some(unit) = self.segments.half_to_empty(self.room_for_moves()) else { return };
        let dirty = self.segments.unit(unit).dirty;
        self.segments.becomes(unit, Use::Victim);
        let room = self.segments.reserve(dirty);
        let segments = self.segments.segments_of(unit).collect();
        self.victim_begin(unit, Choice::Clean, segments, room);
        self.reclaim.halves.unit = Some((unit, self.io.now()));
    }

    /// See `parts.rs`.
    pub(crate) fn reclaim_due(&self, due: &mut Due) {
        let rests = self.segments.has_halves() && self.io.now() < self.reclaim.halves.rest_until;
        due.at(rests.then_some(self.reclaim.halves.rest_until));
    }
}
