//! What waited, and need not any more.

use crate::event::MemberId;
use crate::io::Purpose;
use crate::tiers::Tiers;
use forebay_format::io::IoError;
use forebay_format::tier::EXTENT_SIZE;

impl Tiers {
    /// Goes on with what waited and need not any more.
    pub(crate) fn serve_waiting(&mut self) {
        while let Some(part) = self.requests.pop_said(|seq| self.journal.is_said(seq)) {
            self.end_part(part, None);
        }
        if !self.journal.is_held() {
            for part in self.requests.drop_said() {
                self.end_part(part, Some(IoError::Io));
            }
        }
        for place in self.space.take_ready() {
            let member = MemberId(place.member());
            if self.set.is_here(member) && self.set.member(member).settings.discards {
                let offset = self.set.layout().slot_offset(place.slot());
                self.io.discard(member, Purpose::Trim(place), offset, EXTENT_SIZE);
            } else {
                self.space.trimmed(place);
            }
        }
        for part in self.requests.take_for_room() {
            self.change(part);
        }
        for part in self.requests.take_for_space() {
            self.change(part);
        }
        while let Some(part) = self.requests.pop_ready() {
            self.change(part);
        }
        self.step_refuge();
        if self.requests.waits_for_space() {
            self.want_space();
        }
    }

    /// Whether places will be free without anybody's doing: such as moves give back, which give up
    /// those that they have taken where the map does not name them yet.
    pub(crate) fn makes_space(&mut self) -> bool {
        let is_freeing = self.space.is_freeing();
        if !is_freeing {
            self.stop_moves();
        }
        is_freeing || self.space.is_freeing() || self.moves.len() > 0
    }

    /// A place is needed, and some are on their way to be free.
    pub(crate) fn want_space(&mut self) {
        if let Some(seq) = self.places_wait_for() {
            self.barrier.want(seq, self.io.now());
        }
    }
}
