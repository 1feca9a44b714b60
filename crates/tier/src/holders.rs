//! Who holds the map: where one that did is lost, another takes over; one that was only silent for
//! a while may again.

use crate::change::Change;
use crate::event::MemberId;
use crate::tiers::Tiers;

impl Tiers {
    /// A holder does not answer: the others go on without it.
    pub(crate) fn holder_is_silent(&mut self, member: MemberId) {
        let holder = self.journal.holders().find(|it| it.1 == member);
        if let Some((index, _)) = holder {
            self.silent.insert(member);
            self.holder_failed(index);
        }
    }

    /// Somebody asks for a change: who was to hold the map of our own accord does not, for now.
    pub(crate) fn give_way(&mut self) {
        if self.change.take_if(|it| it.is_own()).is_some() {
            self.journal.let_go_of_joining();
        }
    }

    /// Begins to have others hold the map, where fewer do than could.
    pub(crate) fn step_holders(&mut self) {
        if !self.is_open() || self.change.is_some() || !self.journal.is_held() {
            return;
        }
        let Tiers { silent, io, journal, .. } = self;
        for member in silent.extract_if(.., |it| !io.hangs(*it)) {
            journal.forgive(member);
        }
        let staying = self.journal.staying().count();
        if staying < self.holders_max() && self.next_holders(&[], true).len() > staying {
            self.change = Some(Change::of_holders());
            self.io.stir();
        }
    }
}
