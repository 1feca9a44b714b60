//! Extents that are pinned to a tier.

use super::{Check, Tiered};
use forebay_tier::{Command, MemberState, MemberView};
use std::ops::Range;

/// Most extents of a range that is pinned.
const RANGE_MAX: u64 = 6;

impl Tiered {
    /// Some extents are pinned to a tier, or not any more.
    pub(super) fn choose_pin(&mut self) -> Command {
        let extents = self.space.extents_max();
        let extents = self.space.extent_of(self.rng.below(extents));
        let last = self.tiers().extents();
        let first = extents.min(last - 1);
        let count = (self.rng.log_range(1, RANGE_MAX) as u32).min(last - first);
        // Now and then one that is not there.
        let tier = self.rng.below(u64::from(self.plan.tiers()) + 1) as u8;
        let tier = if self.rng.one_in(3) { None } else { Some(tier) };
        Command::Pin { first, count, tier }
    }

    /// They are. What moves already may go on, and come back.
    pub(super) fn pinned(&mut self, range: Range<u32>, tier: Option<u8>) {
        self.coverage.mark("extents pinned");
        let is_still = self.tiers().moving() == 0;
        for extent in 0..self.space.extents_max() {
            if !range.contains(&self.space.extent_of(extent)) {
                continue;
            }
            match tier.filter(|_| is_still) {
                Some(tier) => drop(self.life.pins.insert(extent, tier)),
                None => drop(self.life.pins.remove(&extent)),
            }
        }
    }

    /// Whether anything of an extent is written.
    fn is_written(&self, extent: u64) -> bool {
        let extent = self.space.extent_of(extent);
        let explained = self.tiers.as_ref().and_then(|tiers| tiers.explain(extent));
        explained.is_some_and(|it| it.blocks.0 > 0)
    }

    /// Rule H: an extent that is pinned to a tier with room comes there.
    pub(super) fn pin_one(&mut self) -> Check {
        if self.plan.admin.pin == 0 {
            return Ok(());
        }
        let view = self.tiers().view();
        let is_in = |it: &&MemberView| it.is_here && it.state == MemberState::In;
        let takes = view.members.iter().filter(is_in).filter(|it| it.free >= 2);
        let tiers: Vec<u8> = takes.map(|it| it.tier).collect();
        let extents: Vec<u64> =
            (0..self.space.extents_max()).filter(|&it| self.is_written(it)).collect();
        let is_sound = self.tiers.as_ref().is_some_and(|tiers| tiers.lost().next().is_none());
        // Without the map nothing moves.
        let is_held = view.members.iter().any(|it| it.is_holder);
        if !is_held
            || tiers.is_empty()
            || extents.is_empty()
            || !is_sound
            || !self.life.leaving.is_empty()
        {
            return Ok(());
        }
        let (tier, extent) = (self.rng.pick(&tiers), self.rng.pick(&extents));
        let first = self.space.extent_of(extent);
        self.demand(Command::Pin { first: 0, count: view.extents, tier: None })?;
        self.demand(Command::Pin { first, count: 1, tier: Some(tier) })?;
        self.say(|world| {
            let tiers = world.tiers.as_ref().expect("a machine lives");
            format!("extent {extent} {:?}, {:?}", tiers.explain(first), tiers.view())
        });
        self.schedule_tick();
        self.run_until(|world| {
            world.place_of(extent).is_some_and(|(member, _)| world.is_of(member, tier))
        })?;
        self.coverage.mark("pinned extents that came at the end");
        Ok(())
    }
}
