//! Where extents live, as the machine says; where copies of them are made, as the writes say; and
//! what each member has not made durable yet.

use super::space::EXTENT_SECTORS;
use super::{Check, Tiered};
use crate::content::{self, Content};
use crate::model::{NEVER, Stamp, Violation};
use forebay_format::io::Time;
use forebay_format::{SECTOR_SIZE, SECTORS_PER_BLOCK};
use forebay_tier::{MemberId, NotHigher};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const PER_BLOCK: u64 = SECTORS_PER_BLOCK as u64;

/// A slot of a member.
pub type Slot = (usize, u32);

/// What is known of places.
#[derive(Debug, Default)]
pub struct Places {
    /// Of each extent, at the last look.
    of: Vec<Option<Slot>>,
    /// Slots that hold a copy of an extent that lives elsewhere.
    copies: BTreeMap<Slot, u64>,
    /// Blocks of each member that were written and not flushed, with the block of the volume, and
    /// when the write ended.
    unflushed: BTreeMap<usize, BTreeMap<u64, (u64, Stamp)>>,
    /// When extents left places.
    left: Vec<Time>,
    /// Blocks of the volume that were written and not confirmed by a client's flush, and when the
    /// write ended.
    unconfirmed: BTreeMap<u64, Stamp>,
    /// Most slots in use at once in this life.
    pub used_max: u64,
}

impl Places {
    /// Extents that live on one of these members.
    pub fn used(&self, fits: impl Fn(usize) -> bool) -> u64 {
        self.of.iter().flatten().filter(|place| fits(place.0)).count() as u64
    }

    /// Places that were left at or after this time.
    pub fn left_since(&self, time: Time) -> u64 {
        self.left.iter().rev().take_while(|&&at| at >= time).count() as u64
    }

    /// Whether a copy of one of these extents is being made.
    pub fn any_moving(&self, extents: Range<u64>) -> bool {
        self.copies.values().any(|extent| extents.contains(extent))
    }

    /// A life ended. After a power cut nothing is left to be flushed.
    pub fn life_ended(&mut self, kill: bool) {
        self.copies.clear();
        self.left.clear();
        if !kill {
            self.unflushed.clear();
            self.unconfirmed.clear();
        }
        self.used_max = 0;
    }

    /// A write to these blocks of a member was sent; they are these of the volume.
    pub fn written(&mut self, member: usize, first: u64, blocks: Range<u64>, now: Stamp) {
        let unflushed = self.unflushed.entry(member).or_default();
        unflushed.extend((first..).zip(blocks.clone().map(|block| (block, now))));
        self.unconfirmed.extend(blocks.map(|block| (block, now)));
    }

    /// Another member has this number.
    pub fn forget(&mut self, member: usize) {
        self.unflushed.remove(&member);
        self.copies.retain(|slot, _| slot.0 != member);
    }

    /// A flush of the member that was sent at `mark` has ended well.
    pub fn flushed(&mut self, member: usize, mark: Stamp) {
        let unflushed = self.unflushed.entry(member).or_default();
        unflushed.retain(|_, (_, done)| *done > mark);
    }

    /// A client's flush that was sent at `mark` has ended well.
    pub fn confirmed(&mut self, mark: Stamp) {
        self.unconfirmed.retain(|_, done| *done > mark);
    }

    /// Blocks of an extent that no client's flush has confirmed since they were written.
    pub fn unconfirmed(&self, extent: u64) -> Vec<u64> {
        let first = extent * EXTENT_SECTORS / PER_BLOCK;
        let end = (extent + 1) * EXTENT_SECTORS / PER_BLOCK;
        self.unconfirmed.range(first..end).map(|(&block, _)| block).collect()
    }

    /// Blocks of the volume of which the member may have lost a write.
    pub fn unflushed(&self, member: usize) -> BTreeSet<u64> {
        let all = self.unflushed.get(&member).into_iter().flat_map(BTreeMap::values);
        all.map(|&(block, _)| block).collect()
    }
}

/// Blocks of a write that has not ended.
pub const UNDER_WAY: Stamp = NEVER;

/// The sector of the volume that the first of these bytes is, if they hold anything of it.
fn sector_of(bytes: &[u8]) -> Option<u64> {
    let sectors = bytes.chunks_exact(SECTOR_SIZE);
    (0..).zip(sectors).find_map(|(at, bytes): (u64, _)| match content::parse(bytes) {
        Content::Data { disk: 0, sector, version } if version > 0 => sector.checked_sub(at),
        _ => None,
    })
}

impl Tiered {
    /// Where an extent lives now.
    pub(super) fn place_of(&self, extent: u64) -> Option<Slot> {
        let (tiers, extent) = (self.tiers.as_ref()?, self.space.extent_of(extent));
        let place = if extent < tiers.extents() { tiers.place_of(extent) } else { None };
        place.map(|(MemberId(member), slot)| (usize::from(member), slot))
    }

    /// Extents that the machine is moving.
    pub(super) fn moving_extents(&self) -> Vec<u64> {
        let is_moving = |&extent: &u64| {
            let extent = self.space.extent_of(extent);
            let explained = self.tiers.as_ref().and_then(|tiers| tiers.explain(extent));
            explained.is_some_and(|it| matches!(it.why, NotHigher::Moving(_)))
        };
        (0..self.space.extents_max()).filter(is_moving).collect()
    }

    /// The extent that lives in a slot, or is being copied there.
    fn extent_in(&self, slot: Slot) -> Option<u64> {
        let all = 0..self.space.extents_max();
        let lives = all.clone().find(|&extent| self.place_of(extent) == Some(slot));
        lives.or_else(|| self.places.copies.get(&slot).copied())
    }

    /// The blocks of the volume that lie in these sectors of a slot: as the data say, else as the
    /// machine does.
    pub(super) fn blocks_in(
        &mut self,
        slot: Slot,
        sectors: Range<u64>,
        data: Option<&[u8]>,
    ) -> Option<Range<u64>> {
        let said = data.and_then(sector_of).map(|sector| sector / EXTENT_SECTORS);
        if let Some(extent) = said
            && let Some(place) = self.place_of(extent)
            && place != slot
        {
            self.places.copies.insert(slot, extent);
        }
        let extent = said.or_else(|| self.extent_in(slot))?;
        let first = extent * EXTENT_SECTORS;
        let end = first + sectors.end;
        Some((first + sectors.start) / PER_BLOCK..end.div_ceil(PER_BLOCK))
    }

    /// Rule M: no two extents live in one place, and none in one that no member has.
    pub(super) fn look_at_places(&mut self) -> Check {
        if !self.tiers().is_open() {
            return Ok(());
        }
        let mut taken = BTreeMap::new();
        let extents = self.space.extents_max();
        self.places.of.resize(extents as usize, None);
        for extent in 0..extents {
            let place = self.place_of(extent);
            let before = std::mem::replace(&mut self.places.of[extent as usize], place);
            if before != place {
                self.place_changed(extent, before, place)?;
            }
            let Some(slot) = place else { continue };
            if self.places.copies.get(&slot) == Some(&extent) {
                self.places.copies.remove(&slot);
            }
            if let Some(other) = taken.insert(slot, extent) {
                let text = format!("extents {other} and {extent} live both in {slot:?}");
                return Err(Violation::new("M", text));
            }
        }
        if self.tiers().moving() == 0 {
            self.places.copies.clear();
        }
        let used = taken.len() as u64;
        self.places.used_max = self.places.used_max.max(used);
        Ok(())
    }

    fn place_changed(&mut self, extent: u64, before: Option<Slot>, now: Option<Slot>) -> Check {
        if before.is_some() {
            self.places.left.push(self.now);
        }
        self.say(|_| format!("extent {extent} lives in {now:?}, not in {before:?}"));
        if let Some((member, slot)) = now
            && self.plan.members.get(member).is_none_or(|plan| u64::from(slot) >= plan.slots)
        {
            let text = format!("extent {extent} lives in slot {slot} of member {member}");
            return Err(Violation::new("M", text));
        }
        let tier = |slot: Slot| self.plan.members[slot.0].tier;
        if let (Some(before), Some(now), Some(pin)) = (before, now, self.life.pins.get(&extent))
            && tier(before) == *pin
            && tier(now) != *pin
            && !self.life.leaving.contains(&before.0)
            // What lived on who was given up is written elsewhere.
            && self.plan.members[before.0].is_in
            && self.life.flush_failed.is_empty()
            // What finds no room where it is pinned is written elsewhere.
            && !self.life.errors.iter().any(|it| it.no_room && it.member == before.0)
        {
            let text = format!("extent {extent} is pinned to tier {pin} and leaves {before:?}");
            return Err(Violation::new("M", text));
        }
        match (before, now) {
            (Some(before), Some(now)) if tier(now) < tier(before) => {
                self.coverage.mark("extents promoted");
            }
            (Some(before), Some(now)) if tier(now) > tier(before) => {
                self.coverage.mark("extents demoted");
            }
            (Some(_), Some(_)) => self.coverage.mark("extents moved within a tier"),
            (Some(_), None) => self.coverage.mark("extents given back"),
            (None, _) => self.coverage.mark("extents placed"),
        }
        Ok(())
    }
}
