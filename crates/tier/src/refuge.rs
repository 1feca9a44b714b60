//! Writes that found no room on the device where their extent lives, though its tier has some: a
//! sparse file on a file system that is full, a thin device. The extent goes to live elsewhere
//! first, with all that is written of it; then they are done there. So a client is told that there
//! is no room only where there is none anywhere.
//!
//! Who waits for that changes nothing meanwhile, and has no promise of the journal: the move needs
//! both.

use crate::Mutant;
use crate::event::MemberId;
use crate::moves::Why;
use crate::tiers::Tiers;
use crate::view::Pending;
use forebay_format::io::IoError;
use forebay_format::tier::MEMBERS_MAX;

/// Refusals of devices after which a write is answered with them.
const REFUSALS_MAX: u32 = MEMBERS_MAX as u32;

impl Tiers {
    /// A write has found no room where its extent lives: it waits for a better place. Whether that
    /// can be.
    pub(crate) fn seek_room(&mut self, number: u64) -> bool {
        let is_told = self.is(Mutant::NoRoomIsToldAtOnce);
        let part = self.requests.part(number);
        part.refused += 1;
        if part.refused > REFUSALS_MAX || is_told {
            return false;
        }
        (part.error, part.has_buf) = (None, false);
        (part.is_there, part.mirror, part.mirror_error) = (false, None, None);
        let had_promise = std::mem::take(&mut part.is_promised);
        if had_promise {
            self.journal.forgo();
        }
        self.requests.step_back(number);
        self.io.stir();
        true
    }

    /// Lets those go on that wait for a better place.
    pub(crate) fn step_refuge(&mut self) {
        for number in self.requests.take_for_refuge() {
            self.find_refuge(number);
        }
    }

    fn find_refuge(&mut self, number: u64) {
        if !self.journal.is_held() {
            // Nothing can move, and what is written the next start would not know of.
            return self.end_part(number, Some(IoError::Io));
        }
        let (extent, _) = self.requests.place_of(number);
        let refused_by = self.requests.part(number).place;
        let place = self.map.place(extent).filter(|&it| Some(it) == refused_by);
        let Some(place) = place else { return self.write_again(number) };
        if !self.set.is_here(MemberId(place.member())) {
            // It was given up meanwhile: the write is done elsewhere, or says so.
            return self.write_again(number);
        }
        if self.map.blocks(extent).is_empty() {
            // Nothing is there: what others write of it now may be, or finds no room either.
            if self.requests.is_changed_by_others(extent, number) {
                return self.requests.wait_refuge(number);
            }
            self.take_back(extent);
            return self.write_again(number);
        }
        if self.moves.hurry(extent) {
            // Perhaps it has only to be confirmed.
            self.want_space();
            return self.requests.wait_refuge(number);
        }
        self.requests.part(number).refused += 1;
        let resting = self.moves.resting(extent, self.io.now());
        // One that cannot be read cannot leave.
        let is_tried = self.requests.part(number).refused > REFUSALS_MAX
            || self.io.hangs(MemberId(place.member()))
            || resting == Some(Pending::SourceFails);
        let tier = self.set.member(MemberId(place.member())).tier;
        match self.refuge(tier) {
            Some(to) if !is_tried => {
                self.begin_move(extent, to, Why::NoRoom);
                self.io.stir();
                self.requests.wait_refuge(number);
            }
            None if !is_tried && self.makes_space() => {
                self.requests.part(number).refused -= 1;
                self.want_space();
                self.requests.wait_refuge(number);
            }
            _ => self.end_part(number, Some(IoError::NoSpace)),
        }
    }

    fn write_again(&mut self, number: u64) {
        self.io.stir();
        if self.requests.come_back(number) {
            self.change(number);
        }
    }

    /// A place that was lent for a first write, which failed, is not kept.
    pub(crate) fn take_back_unwritten(&mut self, extent: u32, part: u64) {
        let place = self.map.place(extent);
        let is_leaving = place.is_some_and(|it| self.set.is_leaving(MemberId(it.member())));
        let is_kept = self.map.is_kept(extent) && !is_leaving;
        let is_lent = place.is_some() && self.map.blocks(extent).is_empty() && !is_kept;
        if is_lent && !self.requests.is_changed_by_others(extent, part) {
            self.take_back(extent);
        }
    }

    /// Takes back a place where nothing is written.
    pub(crate) fn take_back(&mut self, extent: u32) {
        self.drop_move(extent, self.journal.last());
        let place = self.map.unlend(extent);
        // What said that nothing is written there any more may not be confirmed yet.
        self.space.retire(place, self.journal.last(), self.barrier.confirmed());
    }
}
