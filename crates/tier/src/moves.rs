//! Moves: an extent is copied piece by piece to a place that was taken for it. Writes do not wait
//! for that: what they change of a piece meanwhile is copied again, in small pieces that they do
//! wait for. Writes to what is copied go to both places; when all is copied the map says so, and
//! when that is confirmed the old place is left (T6). Until then it has all that was flushed, which
//! is what a start after a power loss believes; and until all holders of the map know the new place
//! all that was written, which is what one after a kill does.

mod course;
mod pace;
mod trouble;

use crate::budget::Budget;
use crate::event::MemberId;
use crate::limits::SAID_MAX;
use crate::settings::Tuning;
use crate::view::Pending;
use forebay_format::io::Time;
use forebay_format::tier::{Blocks, Place};
use pace::Pace;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Why an extent is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Room on a fast tier is kept free.
    Reserve,
    /// It is hotter than others above, or colder than others below.
    Heat,
    /// It is so by far: waiting for a quiet moment would cost more than it spares.
    Gain,
    /// Where it lives is emptied.
    Evacuation,
    /// It is pinned to another tier.
    Pin,
    /// One that is pinned takes its place.
    Room,
    /// A write of it found no room where it lives, and waits.
    NoRoom,
}

impl Why {
    /// Whether it waits for a quiet moment.
    fn yields(self) -> bool {
        !matches!(self, Why::Reserve | Why::Gain | Why::NoRoom)
    }

    /// With which others it shares places.
    pub fn line(self) -> Line {
        match self {
            Why::Reserve | Why::NoRoom => Line::Reserve,
            Why::Heat | Why::Gain => Line::Heat,
            Why::Evacuation | Why::Pin | Why::Room => Line::Other,
        }
    }
}

/// Moves of one kind that are slow do not take the places of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    Reserve,
    Heat,
    Other,
}

impl Line {
    pub const ALL: [Line; 3] = [Line::Reserve, Line::Heat, Line::Other];
}

/// How far a move is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Nothing is under way.
    Ready,
    /// These blocks are wanted alone: writes of them have to end first.
    Wanted(Range<usize>),
    /// These blocks are read and written. Those that clients wrote meanwhile are copied again.
    Copying(Range<usize>, Blocks),
    /// The map says that the extent has moved, from this record on.
    Said(u64),
}

/// One extent that moves.
#[derive(Debug)]
struct Move {
    number: u64,
    from: Place,
    to: Place,
    why: Why,
    copied: Blocks,
    /// Clients write what is copied: small pieces, which writes wait for.
    is_contended: bool,
    step: Step,
    /// Blocks of which the old place does not have what the new one has.
    missed: Blocks,
}

/// What yields has this part of its rate at least.
const FLOOR_SHARE: u64 = 5;
/// The owner of moves.
#[derive(Debug)]
pub(crate) struct Moves {
    moves: BTreeMap<u32, Move>,
    /// Those that go on, in the order in which they began: each waits for those before it only.
    active: BTreeMap<u64, u32>,
    /// Those that wait for the record to be confirmed which says that their extent has moved.
    said: BTreeSet<(u64, u32)>,
    /// How many have not left their old place, of each member.
    leaving: BTreeMap<u8, u32>,
    next: u64,
    is_paused: bool,
    yielding: Budget,
    /// What yields may copy so much although its devices are busy.
    floor: Budget,
    reserve: Budget,
    pace: Pace,
    /// Extents of which a move failed, and until when they rest.
    resting: BTreeMap<u32, (Time, Pending)>,
    moved_bytes: u64,
}

impl Moves {
    pub fn new(now: Time, tuning: Tuning) -> Moves {
        Moves {
            moves: BTreeMap::new(),
            active: BTreeMap::new(),
            said: BTreeSet::new(),
            leaving: BTreeMap::new(),
            next: 0,
            is_paused: false,
            yielding: Budget::new(now, tuning.move_rate),
            floor: Budget::new(now, tuning.move_rate.div_ceil(FLOOR_SHARE)),
            reserve: Budget::new(now, tuning.reserve_rate),
            pace: Pace::default(),
            resting: BTreeMap::new(),
            moved_bytes: 0,
        }
    }

    /// Rates are others from now on.
    pub fn tune(&mut self, now: Time, tuning: Tuning) {
        let Tuning { move_rate, reserve_rate, .. } = tuning;
        self.yielding.set_rate(now, move_rate);
        self.floor.set_rate(now, move_rate.div_ceil(FLOOR_SHARE));
        self.reserve.set_rate(now, reserve_rate);
    }

    pub fn len(&self) -> usize {
        self.moves.len()
    }

    /// How many more of a line may be under way, of so many.
    pub fn places_left(&self, line: Line, most: usize) -> usize {
        let others = self.active.values().filter(|it| self.moves[it].why.line() == line).count();
        let most = if line == Line::Heat { (most / 4).max(1) } else { most };
        most.saturating_sub(others)
    }

    pub fn has(&self, extent: u32) -> bool {
        self.moves.contains_key(&extent)
    }

    /// Whether it changed.
    pub fn set_paused(&mut self, is_paused: bool) -> bool {
        std::mem::replace(&mut self.is_paused, is_paused) != is_paused
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Moves that have not left their old place behind, from this member.
    pub fn leaving(&self, member: MemberId) -> u32 {
        self.leaving.get(&member.0).copied().unwrap_or(0)
    }

    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Why a move of an extent rests, if it does.
    pub fn resting(&self, extent: u32, now: Time) -> Option<Pending> {
        self.resting.get(&extent).filter(|it| it.0 > now).map(|it| it.1)
    }

    /// Why moves rest that failed lately: few, as none is tried again before its time.
    pub fn all_resting(&self, now: Time) -> impl Iterator<Item = Pending> {
        self.resting.values().filter(move |it| it.0 > now).map(|it| it.1)
    }

    /// Where an extent is moving to.
    pub fn target(&self, extent: u32) -> Option<Place> {
        self.moves.get(&extent).map(|it| it.to)
    }

    /// Where a write of these blocks has to go besides. When all holders have the record that says
    /// where the extent is now, only a start after a power loss may look at the old place: it needs
    /// there what was flushed before, and nothing new.
    pub fn mirror(
        &mut self,
        extent: u32,
        blocks: Blocks,
        is_everywhere: impl Fn(u64) -> bool,
    ) -> Option<Place> {
        let it = self.moves.get_mut(&extent)?;
        match it.step {
            Step::Said(seq) if is_everywhere(seq) => {
                it.missed = it.missed.or(blocks);
                None
            }
            Step::Said(_) => (it.missed != Blocks::ALL).then_some(it.from),
            _ => (!it.copied.and(blocks).is_empty()).then_some(it.to),
        }
    }

    /// Clients write these blocks.
    pub fn written(&mut self, extent: u32, blocks: Blocks) {
        let step = self.moves.get_mut(&extent).map(|it| &mut it.step);
        if let Some(Step::Copying(range, spoilt)) = step {
            *spoilt = spoilt.or(blocks.and(Blocks::range(range.start, range.end)));
        }
    }

    /// The map is nowhere any more: nothing will be said of moves, nor of what they leave behind.
    pub fn forget(&mut self) {
        self.moves.clear();
        self.active.clear();
        self.said.clear();
        self.leaving.clear();
    }

    /// One begins.
    fn add(&mut self, extent: u32, it: Move) {
        *self.leaving.entry(it.from.member()).or_default() += 1;
        self.active.insert(it.number, extent);
        let before = self.moves.insert(extent, it);
        assert!(before.is_none(), "an extent moves once at a time");
    }

    /// The map says in record `seq` that it has moved.
    fn say(&mut self, extent: u32, seq: u64) {
        let it = self.moves.get_mut(&extent).expect("it moves");
        it.step = Step::Said(seq);
        self.active.remove(&it.number);
        self.said.insert((seq, extent));
    }

    /// One is over.
    fn take(&mut self, extent: u32) -> Option<Move> {
        let it = self.moves.remove(&extent)?;
        let leaving = self.leaving.get_mut(&it.from.member()).expect("it was counted");
        *leaving -= 1;
        match it.step {
            Step::Said(seq) => drop(self.said.remove(&(seq, extent))),
            _ => drop(self.active.remove(&it.number)),
        }
        Some(it)
    }

    /// The first record that has to be confirmed for an old place to be left.
    pub fn waits_for(&self) -> Option<u64> {
        self.said.first().map(|it| it.0)
    }

    /// Whether so many have only to be confirmed that those that go on would find no end.
    pub fn is_crowded(&self) -> bool {
        self.said.len() >= SAID_MAX
    }

    /// Pieces under way from or to a member.
    fn copying(&self, member: MemberId) -> usize {
        let moves = self.active.values().map(|extent| &self.moves[extent]);
        let here = |it: &&Move| [it.from, it.to].iter().any(|it| it.member() == member.0);
        moves.filter(here).filter(|it| matches!(it.step, Step::Copying(..))).count()
    }

    /// Whether all have only to be confirmed.
    pub fn are_said(&self) -> bool {
        self.active.is_empty()
    }

    /// A move of this extent goes on at once, if there is one: a write waits for it.
    pub fn hurry(&mut self, extent: u32) -> bool {
        self.moves.get_mut(&extent).map(|it| it.why = Why::NoRoom).is_some()
    }

    /// Extents that move from or to a member.
    pub fn touching(&self, member: MemberId) -> Vec<u32> {
        let touches = |it: &Move| [it.from, it.to].iter().any(|it| it.member() == member.0);
        self.moves.iter().filter(|(_, it)| touches(it)).map(|(&extent, _)| extent).collect()
    }

    /// Whether extents live on a member that have not left their old place.
    pub fn has_come(&self, member: MemberId) -> bool {
        let mut said = self.said.iter().map(|(_, extent)| &self.moves[extent]);
        said.any(|it| it.to.member() == member.0)
    }

    /// Both places of an extent that moves.
    pub fn places(&self) -> impl Iterator<Item = (u32, Place, Place)> {
        self.moves.iter().map(|(&extent, it)| (extent, it.from, it.to))
    }

    fn budget(&mut self, why: Why) -> &mut Budget {
        match why.line() {
            Line::Reserve => &mut self.reserve,
            Line::Heat | Line::Other => &mut self.yielding,
        }
    }
}
