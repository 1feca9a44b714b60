//! Stands in until the machine is there.
#![allow(missing_docs, unused_variables, clippy::all)]
use forebay_format::io::Time;
use forebay_tier::{Effect, Event, MemberId, Settings};
pub struct Tiers;
impl Tiers {
    pub fn open(settings: Settings, now: Time, out: &mut Vec<Effect>) -> Tiers {
        Tiers
    }
    pub fn handle(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {}
    pub fn settle(&mut self, now: Time, out: &mut Vec<Effect>) {}
    pub fn deadline(&self) -> Option<Time> {
        None
    }
    pub fn is_open(&self) -> bool {
        false
    }
    pub fn is_stopped(&self) -> bool {
        false
    }
    pub fn check(&self) {}
    pub fn extents(&self) -> u32 {
        0
    }
    pub fn place_of(&self, extent: u32) -> Option<(MemberId, u32)> {
        None
    }
    pub fn moving(&self) -> usize {
        0
    }
}
