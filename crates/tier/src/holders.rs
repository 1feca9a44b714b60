//! Who holds the map: where one that did is lost, another takes over.

use crate::change::Change;
use crate::tiers::Tiers;

impl Tiers {
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
        let staying = self.journal.staying().count();
        if staying < self.holders_max() && self.next_holders(&[], true).len() > staying {
            self.change = Some(Change::of_holders());
            self.io.stir();
        }
    }
}
