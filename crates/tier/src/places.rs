//! Where there is room: the place of a new extent, and of one that has to move.

use crate::Mutant;
use crate::event::MemberId;
use crate::tiers::Tiers;
use forebay_format::tier::Place;

impl Tiers {
    /// A place for a new extent: on the fastest tier that has one.
    pub(crate) fn choose_place(&mut self, extent: u32) -> Option<Place> {
        let place = self.choose_among(extent, Self::roomiest);
        // Where nobody else has room, on who does not answer.
        place.or_else(|| self.choose_among(extent, Self::roomiest_of_all))
    }

    fn choose_among(
        &mut self,
        extent: u32,
        roomiest: impl Fn(&Self, u8) -> Option<MemberId>,
    ) -> Option<Place> {
        let tiers = self.set.tiers().to_vec();
        let pinned = self.pin_of(extent).into_iter().map(|tier| (0, tier));
        let mut is_spilling = false;
        for (rank, tier) in pinned.chain(tiers.iter().copied().enumerate()) {
            let Some(place) = roomiest(self, tier).and_then(|it| self.place_on(it)) else {
                is_spilling |= !self.is_refusing(tier);
                if self.is(Mutant::FullIsWaitedFor) && self.space.is_freeing() {
                    return None;
                }
                continue;
            };
            if rank > 0 && is_spilling {
                self.planner.note_spill(self.io.now());
            }
            let now_s = self.now_s();
            self.map.lend(extent, place, now_s);
            // A new extent is as hot as those of the fastest tier: else it would leave at once.
            let mean = tiers.first().and_then(|&tier| self.planner.mean(tier));
            self.map.set_heat(extent, mean.unwrap_or(0.0));
            return Some(place);
        }
        None
    }

    fn place_on(&mut self, member: MemberId) -> Option<Place> {
        let place = self.space.take(member)?;
        if self.is(Mutant::PlaceTwice) && self.io.now().is_multiple_of(7) {
            self.space.retire(place, 0, self.barrier.confirmed());
        }
        Some(place)
    }

    /// The member of a tier with most room.
    pub(crate) fn roomiest(&self, tier: u8) -> Option<MemberId> {
        self.most_room(self.set.taking(tier).filter(|&it| !self.io.hangs(it)))
    }

    /// The same, whether it answers or not.
    fn roomiest_of_all(&self, tier: u8) -> Option<MemberId> {
        self.most_room(self.set.taking(tier))
    }

    fn most_room(&self, members: impl Iterator<Item = MemberId>) -> Option<MemberId> {
        let is_able = |&it: &MemberId| self.space.free(it) > 0 && !self.is_full(it);
        let members = members.filter(is_able);
        members.max_by_key(|&member| (self.space.free(member), std::cmp::Reverse(member)))
    }

    /// Whether a member said lately that it has no room.
    pub(crate) fn is_full(&self, member: MemberId) -> bool {
        self.health.is_full(member, self.io.now())
    }

    /// Whether a tier has no room because its devices said so or do not answer, whatever is free.
    pub(crate) fn is_refusing(&self, tier: u8) -> bool {
        let mut able = self.set.taking(tier).filter(|&it| self.space.free(it) > 0).peekable();
        able.peek().is_some() && able.all(|it| self.is_full(it) || self.io.hangs(it))
    }

    /// Whether a device of a tier does not answer.
    pub(crate) fn is_silent(&self, tier: u8) -> bool {
        self.set.taking(tier).any(|it| self.io.hangs(it))
    }

    /// Slots of a tier, and those that are free or will be when moves under way are done.
    pub(crate) fn room_of(&self, tier: u8) -> (u32, u32) {
        let sum = |of: &dyn Fn(MemberId) -> u32| self.set.taking(tier).map(of).sum::<u32>();
        let slots = sum(&|member| self.set.member(member).slots);
        (slots, sum(&|member| self.space.free(member) + self.moves.leaving(member)))
    }

    /// Slots that are kept free on a tier.
    pub(crate) fn reserve_of(&self, slots: u32) -> u32 {
        (u64::from(slots) * u64::from(self.tuning.reserve_per_mille)).div_ceil(1000) as u32
    }

    /// Whether a tier that takes extents has hardly a place, or less than half of its reserve.
    pub(crate) fn is_short(&self) -> bool {
        self.set.tiers().iter().any(|&tier| {
            let (slots, _) = self.room_of(tier);
            let free: u32 = self.set.taking(tier).map(|it| self.space.free(it)).sum();
            slots > 0 && free < (self.reserve_of(slots) / 2).max(1)
        })
    }

    /// Whether places of a tier will be free without a new move.
    pub(crate) fn is_being_left(&self, tier: u8) -> bool {
        self.space.is_freeing() || self.set.taking(tier).any(|it| self.moves.leaving(it) > 0)
    }

    /// A member of a faster tier that has more than its reserve, or will have when those have left
    /// that are about to.
    pub(crate) fn above(&self, tier: u8) -> Option<MemberId> {
        let (slots, free) = self.room_of(tier);
        self.roomiest(tier).filter(|_| free > self.reserve_of(slots))
    }

    /// A member of the next slower tier that has room.
    pub(crate) fn below(&self, tier: u8) -> Option<MemberId> {
        let tiers = self.set.tiers().iter().copied().filter(|&it| it > tier);
        tiers.filter_map(|it| self.roomiest(it)).next()
    }

    /// A member for what has to leave: of the same tier, else of another.
    pub(crate) fn refuge(&self, tier: u8) -> Option<MemberId> {
        self.roomiest(tier).or_else(|| self.elsewhere(tier))
    }

    /// A member of a slower tier, else of a faster one.
    pub(crate) fn elsewhere(&self, tier: u8) -> Option<MemberId> {
        let faster = || self.set.tiers().iter().copied().rev().filter(|&it| it < tier);
        self.below(tier).or_else(|| faster().filter_map(|it| self.roomiest(it)).next())
    }
}
