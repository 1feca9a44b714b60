//! The numbered invariants, asserted over the whole state: for tests and the simulator.

use crate::tiers::Tiers;
use std::collections::BTreeMap;

impl Tiers {
    /// Asserts what must hold.
    pub fn check(&self) {
        let mut owners = BTreeMap::new();
        for extent in 0..self.map.len() {
            let Some(place) = self.map.place(extent) else {
                assert!(self.map.blocks(extent).is_empty(), "T2: {extent} lives nowhere");
                continue;
            };
            let other = owners.insert(place, extent);
            assert!(other.is_none(), "T1: {extent} and {other:?} live in {place:?}");
            assert!(!self.space.is_out_of_use(place), "T3: {extent} lives in a free {place:?}");
        }
        for (extent, from, to) in self.moves.places() {
            for place in [from, to] {
                let owner = owners.get(&place);
                assert!(owner.is_none_or(|it| *it == extent), "T1: {extent} moves over {owner:?}");
                assert!(!self.space.is_out_of_use(place), "T3: {extent} moves by a free {place:?}");
            }
        }
    }
}
