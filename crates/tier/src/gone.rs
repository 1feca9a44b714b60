//! Extents that lived on a member that was given up: what was written of them is lost, until it is
//! written again or discarded.

use crate::event::MemberId;
use crate::map::{State, lost_entry};
use crate::tiers::Tiers;
use forebay_format::io::IoError;

impl Tiers {
    /// A member that is there fails, and is given up: nothing is read or written there any more.
    pub(crate) fn let_go(&mut self, member: MemberId) {
        if !self.set.is_here(member) {
            return;
        }
        for extent in self.moves.touching(member) {
            if !self.go_back(extent, member) {
                self.end_move(extent, member);
            }
        }
        let holder = self.journal.holders().find(|it| it.1 == member);
        if let Some((index, _)) = holder {
            self.holder_failed(index);
        }
        self.set.leave(member);
        self.planner.forget(self.io.now());
    }

    /// Whether an extent lives on a member that was given up.
    pub(crate) fn lives_on_nobody(&self, extent: u32) -> bool {
        let place = self.map.place(extent);
        place.is_some_and(|it| !self.set.is_used(MemberId(it.member())))
    }

    /// A part is about to write to such an extent: it lives nowhere from now on, and what was
    /// written of it is called lost, as far as that can be remembered. Whether the part goes on.
    pub(crate) fn forsake(&mut self, number: u64) -> bool {
        let (extent, range) = self.requests.place_of(number);
        let written = self.map.blocks(extent);
        let rest = written.without(crate::part::covered(&range));
        if !rest.is_empty() && self.map.fine() >= self.tuning.fine_max {
            // So many are remembered by their blocks, and not more.
            self.end_part(number, Some(IoError::Io));
            return false;
        }
        if !self.has_promise(number, true) {
            self.requests.wait_room(number);
            return false;
        }
        let place = self.map.place(extent).expect("it lives somewhere");
        let lost = written.or(self.map.lost(extent));
        // In this order: what is said first holds even alone.
        self.journal.say(lost_entry(extent, lost));
        let seq = self.say(number, extent, State::default());
        self.map.set_lost(extent, lost);
        self.space.retire(place, seq, self.barrier.confirmed());
        true
    }
}
