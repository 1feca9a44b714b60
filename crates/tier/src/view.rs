//! A view of the machine, for whoever is shown it. Looking costs as much as there are members.

use crate::event::MemberId;
use crate::health::Errors;
use crate::settings::Placement;
use crate::tiers::Tiers;
use crate::traffic::Traffic;
use crate::worth::least_to_swap;
use forebay_format::io::Time;
use forebay_format::tier::member_state;
use std::collections::BTreeMap;

/// What a member is to the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// It takes part.
    In,
    /// It is being emptied, or is empty: it takes no new extents.
    Leaving,
    /// Nobody has this number, or not any more.
    None,
}

/// A member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberView {
    /// Its number.
    pub member: MemberId,
    /// Its tier; 0 is the fastest.
    pub tier: u8,
    /// What it is to the set.
    pub state: MemberState,
    /// Whether it is there.
    pub is_here: bool,
    /// Whether it holds the map.
    pub is_holder: bool,
    /// Whether its content goes with the power.
    pub is_volatile: bool,
    /// Places for extents.
    pub slots: u32,
    /// Places that are not free: with those that are kept for a moment after an extent has left.
    pub used: u32,
    /// Places that are free.
    pub free: u32,
    /// Extents that live there.
    pub extents: u32,
    /// What it has done since the set was opened.
    pub traffic: Traffic,
    /// What it has failed to do since then.
    pub errors: Errors,
    /// It said lately that it has no room, whatever is free: it gets nothing new for a while.
    pub is_full: bool,
    /// It failed to read or write lately.
    pub is_sick: bool,
    /// It held the map, and failed to keep it.
    pub lost_map: bool,
    /// How long its oldest I/O has been under way, in nanoseconds.
    pub waits_ns: Time,
}

/// A tier that is being emptied, or is empty; or one member of a tier of which others stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evacuation {
    /// The tier.
    pub tier: u8,
    /// Who leaves: all of the tier, or one.
    pub members: Vec<MemberId>,
    /// Whether all of the tier leaves.
    pub is_whole: bool,
    /// Places of them that are not free yet.
    pub left: u32,
}

/// Why a move waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pending {
    /// There is no room where it should go.
    NoRoom,
    /// Where it lives cannot be read; it is tried again.
    SourceFails,
    /// Where it should go cannot be written; it is tried again.
    TargetFails,
    /// The member where it lives is not there.
    Away,
    /// The member where it lives, or where it should go, does not answer.
    NoAnswer,
}

/// The machine as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// All numbers of members that are or were in use.
    pub members: Vec<MemberView>,
    /// Extents of the volume.
    pub extents: u32,
    /// Extents that take space.
    pub placed: u32,
    /// Extents that live on a member that is not there.
    pub away: u32,
    /// Extents of which blocks are lost.
    pub lost: u32,
    /// Blocks that are lost.
    pub lost_blocks: u64,
    /// Moves under way.
    pub moving: u32,
    /// Nothing more is moved until [`Command::Resume`](crate::Command::Resume).
    pub is_paused: bool,
    /// Tiers, and single members, that are being emptied or are empty, fastest first.
    pub evacuations: Vec<Evacuation>,
    /// How many moves wait, and why.
    pub pending: BTreeMap<Pending, u32>,
}

/// Why an extent lives on no faster tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NotHigher {
    /// Nothing of it is written: it lives nowhere.
    Unwritten,
    /// It is on the fastest tier.
    Fastest,
    /// It is pinned to its tier.
    Pinned,
    /// It is on its way.
    Moving(MemberId),
    /// It should move; this is in the way.
    Pending(Pending),
    /// The member where it lives is not there, or was given up.
    Lost,
    /// Nothing is moved now.
    Paused,
    /// Extents stay where they came to live.
    Spill,
    /// It has not been accessed so often that a move pays.
    TooCold {
        /// Accesses that would be enough if there is room.
        needed: f32,
    },
    /// The next faster tier is full of extents that are hotter, or not so much colder that it pays.
    HigherIsFull {
        /// Heat of the coldest there.
        coldest: f32,
    },
    /// One of the next plans takes it up.
    Soon,
}

/// What there is to say of an extent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Explained {
    /// Where it lives: the member, and its slot there.
    pub place: Option<(MemberId, u32)>,
    /// The tier of that.
    pub tier: Option<u8>,
    /// When it came there, in seconds of the executor's clock.
    pub since: u32,
    /// How hot it is, in accesses of now: reads and writes together.
    pub heat: f32,
    /// The tier that it is pinned to.
    pub pinned: Option<u8>,
    /// Blocks that are written, and blocks that are lost.
    pub blocks: (u32, u32),
    /// Why it is not higher.
    pub why: NotHigher,
}

impl Tiers {
    /// What is shown of it.
    pub fn view(&self) -> View {
        let members: Vec<MemberView> =
            (0..self.set.len()).map(|number| self.view_of(MemberId(number as u8))).collect();
        let away = members.iter().filter(|it| !it.is_here).map(|it| it.extents).sum();
        let evacuations = evacuations(&members);
        let mut pending = BTreeMap::<Pending, u32>::new();
        self.moves.all_resting(self.io.now()).for_each(|why| *pending.entry(why).or_default() += 1);
        let stays = |it: &&MemberView| it.state == MemberState::Leaving && !it.is_here;
        let stuck = members.iter().filter(stays).map(|it| it.extents).sum();
        pending.extend([(Pending::NoRoom, self.planner.unplaced()), (Pending::Away, stuck)]);
        pending.retain(|_, count| *count > 0);
        let (lost, lost_blocks) = self.map.losses();
        View {
            members,
            extents: self.map.len(),
            placed: self.map.placed() as u32,
            away,
            lost,
            lost_blocks,
            moving: self.moves.len() as u32,
            is_paused: self.moves.is_paused(),
            evacuations,
            pending,
        }
    }

    fn view_of(&self, number: MemberId) -> MemberView {
        let member = self.set.member(number);
        let (slots, free) = (member.slots, self.space.free(number));
        MemberView {
            member: number,
            tier: member.tier,
            state: match self.set.state(number) {
                member_state::IN => MemberState::In,
                member_state::LEAVING => MemberState::Leaving,
                _ => MemberState::None,
            },
            is_here: member.settings.is_here,
            is_holder: self.journal.has_map_on(number),
            is_volatile: self.set.is_volatile(number),
            slots,
            used: slots - free,
            free,
            extents: self.map.living_on(number),
            traffic: self.traffic.of(number),
            errors: self.health.errors(number),
            is_full: self.is_full(number),
            is_sick: self.health.is_sick(number, self.io.now()),
            lost_map: self.journal.has_failed(number) && self.journal.holders().count() < 2,
            waits_ns: self.io.oldest(number).map_or(0, |since| self.io.now() - since),
        }
    }

    /// What there is to say of an extent; `None` behind the end of the volume.
    pub fn explain(&self, extent: u32) -> Option<Explained> {
        if extent >= self.map.len() {
            return None;
        }
        let place = self.place_of(extent);
        Some(Explained {
            place,
            tier: place.map(|(member, _)| self.set.member(member).tier),
            since: self.map.since(extent),
            heat: self.map.heat(extent),
            pinned: self.pins.of(extent),
            blocks: (self.map.blocks(extent).count(), self.map.lost(extent).count()),
            why: self.why_not_higher(extent),
        })
    }

    fn why_not_higher(&self, extent: u32) -> NotHigher {
        let Some((member, _)) = self.place_of(extent) else {
            let is_lost = !self.map.lost(extent).is_empty();
            return if is_lost { NotHigher::Lost } else { NotHigher::Unwritten };
        };
        if !self.set.is_here(member) {
            return NotHigher::Lost;
        }
        if let Some(to) = self.moves.target(extent) {
            return NotHigher::Moving(MemberId(to.member()));
        }
        if let Some(why) = self.moves.resting(extent, self.io.now()) {
            return NotHigher::Pending(why);
        }
        let tier = self.set.member(member).tier;
        if self.set.is_leaving(member) {
            let is_stuck = self.planner.unplaced() > 0;
            return if is_stuck { NotHigher::Pending(Pending::NoRoom) } else { NotHigher::Soon };
        }
        match self.pin_of(extent) {
            Some(pin) if pin == tier => return NotHigher::Pinned,
            Some(_) if self.moves.is_paused() => return NotHigher::Paused,
            Some(_) if self.planner.unplaced() > 0 => return NotHigher::Pending(Pending::NoRoom),
            Some(_) => return NotHigher::Soon,
            None => {}
        }
        match self.set.tiers().iter().rev().find(|&&it| it < tier) {
            None => NotHigher::Fastest,
            Some(_) if self.moves.is_paused() => NotHigher::Paused,
            Some(_) if self.tuning.placement == Placement::Spill => NotHigher::Spill,
            Some(&above) => self.why_colder(extent, (above, tier)),
        }
    }

    /// Why the planner leaves it below this tier: the other side of its `swaps`.
    fn why_colder(&self, extent: u32, (above, tier): (u8, u8)) -> NotHigher {
        let heat = self.map.heat(extent);
        let cost = self.swap_cost((above, tier));
        let needed = cost.max(1.0);
        let (slots, free) = self.room_of(above);
        match self.planner.coldest(above) {
            _ if heat < needed => NotHigher::TooCold { needed },
            _ if self.is_refusing(above) => NotHigher::Pending(Pending::NoRoom),
            _ if free > self.reserve_of(slots) => NotHigher::Soon,
            Some(coldest) if heat <= least_to_swap(cost, coldest) => {
                NotHigher::HigherIsFull { coldest }
            }
            Some(_) => NotHigher::Soon,
            None => NotHigher::Pending(Pending::NoRoom),
        }
    }
}

/// What of these members leaves.
fn evacuations(members: &[MemberView]) -> Vec<Evacuation> {
    let mut tiers = BTreeMap::<u8, Vec<&MemberView>>::new();
    for it in members.iter().filter(|it| it.state != MemberState::None) {
        tiers.entry(it.tier).or_default().push(it);
    }
    let of_tier = |(tier, own): (u8, Vec<&MemberView>)| {
        let count = own.len();
        let leave: Vec<&MemberView> =
            own.into_iter().filter(|it| it.state == MemberState::Leaving).collect();
        let is_whole = leave.len() == count;
        let at_once = if is_whole { count } else { 1 };
        let evacuation = |leave: &[&MemberView]| Evacuation {
            tier,
            members: leave.iter().map(|it| it.member).collect(),
            is_whole,
            left: leave.iter().map(|it| it.used).sum(),
        };
        leave.chunks(at_once).map(evacuation).collect::<Vec<_>>()
    };
    tiers.into_iter().flat_map(of_tier).collect()
}
