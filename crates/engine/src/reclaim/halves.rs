//! Dirty blocks that lost their second copy get it back: the unit that they are in is emptied, and
//! they go to one that is whole. One unit at a time, with a rest after each, longer beside clients.

use crate::Mutant;
use crate::due::Due;
use crate::engine::Engine;
use crate::limits::{HALVES_REST, UNITS_PER_STEP};
use crate::policy::eviction::Choice;
use crate::segment::{Purpose, Use};

impl Engine {
    /// The unit that was emptied may be so by now, or was given up: then there is a rest, which is
    /// longer with clients.
    pub(super) fn half_ended(&mut self) {
        let Some((unit, since)) = self.reclaim.half_under_way() else { return };
        if self.victim(unit).is_none() {
            let took = (self.io.now() - since).max(1);
            let rest = if self.reqs.is_empty() { took } else { HALVES_REST * took };
            self.reclaim.half_ends(self.io.now() + rest);
        }
    }

    /// Where nobody wants room: the next unit that should have two copies of what is dirty in it,
    /// and has one.
    pub(super) fn victims_half(&mut self) {
        let may = self.segments.has_halves() && !self.segments.degraded() && self.is_serving();
        let rests = self.io.now() < self.reclaim.next_half() || !self.reclaim.is_idle();
        if !may || rests || self.is(Mutant::HalvesKept) {
            return;
        }
        if !self.segments.has_whole(Purpose::Move) {
            return;
        }
        self.io.did(self.segments.units().len() / UNITS_PER_STEP);
        let Some(unit) = self.segments.half_to_empty(self.room_for_moves()) else { return };
        let dirty = self.segments.unit(unit).dirty;
        self.segments.becomes(unit, Use::Victim);
        let room = self.segments.reserve(dirty);
        let segments = self.segments.segments_of(unit).collect();
        self.victim_begin(unit, Choice::Clean, segments, room);
        self.reclaim.half_begins(unit, self.io.now());
    }

    /// See `parts.rs`.
    pub(crate) fn reclaim_due(&self, due: &mut Due) {
        let next = self.reclaim.next_half();
        let rests = self.segments.has_halves() && self.io.now() < next;
        due.at(rests.then_some(next));
    }
}
