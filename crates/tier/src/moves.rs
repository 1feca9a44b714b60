//! Moves: an extent is copied piece by piece to a place that was taken for it. Writes do not wait
//! for that: what they change of a piece meanwhile is copied again, in small pieces that they do
//! wait for. Writes to what is copied go to both places; when all is copied the map says so, and
//! when that is confirmed the old place is left (T6). Until then both are whole, so a start may
//! believe either.

mod trouble;

use crate::Mutant;
use crate::budget::Budget;
use crate::event::MemberId;
use crate::io::{Purpose, UnderWay};
use crate::limits::GATHER_NS;
use crate::map::State;
use crate::settings::Tuning;
use crate::tiers::Tiers;
use crate::view::Pending;
use forebay_format::BLOCK_SIZE;
use forebay_format::io::{Completion, Time};
use forebay_format::tier::{Blocks, EXTENT_BLOCKS, Place};
use std::collections::BTreeMap;
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
    /// Its tier is emptied.
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
    next: u64,
    is_paused: bool,
    yielding: Budget,
    /// What yields may copy so much although its devices are busy.
    floor: Budget,
    reserve: Budget,
    /// Extents of which a move failed, and until when they rest.
    resting: BTreeMap<u32, (Time, Pending)>,
    moved_bytes: u64,
}

impl Moves {
    pub fn new(now: Time, tuning: Tuning) -> Moves {
        Moves {
            moves: BTreeMap::new(),
            next: 0,
            is_paused: false,
            yielding: Budget::new(now, tuning.move_rate),
            floor: Budget::new(now, tuning.move_rate.div_ceil(FLOOR_SHARE)),
            reserve: Budget::new(now, tuning.reserve_rate),
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

    /// Whether one more of a line may be under way, of so many.
    pub fn has_place(&self, line: Line, most: usize) -> bool {
        let others = self.moves.values().filter(|it| it.why.line() == line).count();
        others < if line == Line::Heat { (most / 4).max(1) } else { most }
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
        self.moves.values().filter(|it| it.from.member() == member.0).count() as u32
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

    /// Where a write of these blocks has to go besides.
    pub fn mirror(&self, extent: u32, blocks: Blocks) -> Option<Place> {
        let it = self.moves.get(&extent)?;
        match it.step {
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
    }

    /// Extents that move, those first that began first: each waits for those before it only.
    fn in_order(&self) -> Vec<u32> {
        let mut all: Vec<(u64, u32)> =
            self.moves.iter().map(|(&extent, it)| (it.number, extent)).collect();
        all.sort_unstable();
        all.into_iter().map(|it| it.1).collect()
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

impl Tiers {
    /// When a move can go on by itself. Where something under way is waited for, its end is the
    /// time.
    pub(crate) fn moves_due(&self) -> Option<Time> {
        let waiting = self.moves.moves.values().filter(|it| it.step == Step::Ready);
        let due = waiting.filter_map(|it| {
            let is_reserve = it.why == Why::Reserve;
            let budget = if is_reserve { &self.moves.reserve } else { &self.moves.yielding };
            match () {
                () if it.why == Why::NoRoom || budget.is_nothing() => None,
                () if budget.is_spent() => Some(budget.due()),
                () if is_reserve && self.moves.floor.is_spent() => {
                    self.gives_way_until(it).map(|until| until.min(self.moves.floor.due()))
                }
                () if matches!(it.why, Why::Reserve | Why::Gain) => None,
                () if self.moves.floor.is_spent() => Some(self.moves.floor.due()),
                () => None,
            }
        });
        due.filter(|_| !self.moves.is_paused).min()
    }

    /// Until when a move for the reserve gives way to new data that go past the fast tier. Each
    /// mebibyte that it brings down spares one of those, so only disks that seek between the two
    /// would lose by it.
    fn gives_way_until(&self, it: &Move) -> Option<Time> {
        let target = self.set.member(MemberId(it.to.member())).settings;
        let seeks = target.piece_blocks as usize > Blocks::PIECE;
        let until = self.planner.rests_until(self.io.now());
        until.filter(|_| it.why == Why::Reserve && seeks)
    }

    /// Only what writes wait for is copied now; what the map says already is brought to its end.
    pub(crate) fn stop_moves(&mut self) {
        let is_over = !self.is_open() || !self.journal.is_held();
        let may_end = |it: &Move| it.why != Why::NoRoom || is_over;
        let is_open = |it: &Move| may_end(it) && !matches!(it.step, Step::Said(_));
        let open = self.moves.moves.iter().filter(|(_, it)| is_open(it));
        let open: Vec<u32> = open.map(|(&extent, _)| extent).collect();
        for extent in open {
            self.drop_move(extent, 0);
        }
    }

    /// Begins to move an extent to a member. Whether there is a place.
    pub(crate) fn begin_move(&mut self, extent: u32, to: MemberId, why: Why) -> bool {
        let from = self.map.place(extent).expect("only what lives somewhere is moved");
        let Some(to) = self.space.take(to) else { return false };
        self.moves.next += 1;
        let number = self.moves.next;
        let it = Move {
            number,
            from,
            to,
            why,
            copied: Blocks::NONE,
            is_contended: false,
            step: Step::Ready,
            missed: Blocks::NONE,
        };
        let before = self.moves.moves.insert(extent, it);
        assert!(before.is_none(), "an extent moves once at a time");
        true
    }

    /// Lets all moves go on that can.
    pub(crate) fn step_moves(&mut self) {
        let now = self.io.now();
        self.moves.reserve.fill(now);
        self.moves.yielding.fill(now);
        self.moves.floor.fill(now);
        if self.moves.resting.len() > 1024 {
            self.moves.resting.retain(|_, it| it.0 > now);
        }
        if !self.journal.is_held() {
            return self.stop_moves();
        }
        for extent in self.moves.in_order() {
            self.step_move(extent);
        }
    }

    fn step_move(&mut self, extent: u32) {
        let it = &self.moves.moves[&extent];
        let (why, it_is_contended) = (it.why, it.is_contended);
        match it.step.clone() {
            Step::Said(seq) => self.leave_when_confirmed(extent, seq),
            Step::Wanted(range) => self.try_piece(extent, range),
            Step::Copying(..) => {}
            Step::Ready => {
                let mut todo = self.map.blocks(extent).without(it.copied);
                if self.is(Mutant::CommitBeforeCopy) {
                    todo = Blocks::NONE;
                }
                let Some((first, last)) = todo.bounds() else { return self.try_say(extent) };
                if !self.may_copy(extent, why) {
                    return self.requests.unclaim(extent);
                }
                let end = self.piece_end(extent, first).min(last + 1);
                match it_is_contended {
                    true => self.try_piece(extent, first..end),
                    false => {
                        self.requests.unclaim(extent);
                        let spoilt = self.requests.changing(extent);
                        let spoilt = spoilt.and(Blocks::range(first, end));
                        self.copy_piece(extent, first..end, spoilt);
                    }
                }
            }
        }
    }

    /// Where the piece ends that begins with a block of an extent.
    fn piece_end(&self, extent: u32, first: usize) -> usize {
        let it = &self.moves.moves[&extent];
        let of = |place: Place| self.set.member(MemberId(place.member())).settings;
        let most = if it.is_contended { Blocks::PIECE } else { EXTENT_BLOCKS / 4 };
        let size = (of(it.from).piece_blocks as usize).clamp(1, most);
        let stripe = of(it.to).stripe_blocks as usize;
        if it.is_contended || !(2..=EXTENT_BLOCKS).contains(&stripe) {
            return ((first / size + 1) * size).min(EXTENT_BLOCKS);
        }
        // Stripes begin where the device does.
        let size = size.next_multiple_of(stripe);
        let offset = self.set.layout().slot_offset(it.to.slot()) / BLOCK_SIZE as u64;
        let before = (offset % size as u64) as usize;
        (((before + first) / size + 1) * size - before).min(EXTENT_BLOCKS)
    }

    /// Whether a piece may be copied now.
    fn may_copy(&mut self, extent: u32, why: Why) -> bool {
        let it = &self.moves.moves[&extent];
        let (from, to) = (MemberId(it.from.member()), MemberId(it.to.member()));
        let is_idle = self.set.is_idle(from) && self.set.is_idle(to);
        let yields = (why.yields() && !is_idle) || self.gives_way_until(it).is_some();
        if why == Why::NoRoom {
            return true;
        }
        if self.moves.is_paused || (yields && self.moves.floor.is_spent()) {
            return false;
        }
        let is_small = self.is(Mutant::BudgetTooSmall);
        let least = if is_small { (Blocks::PIECE * BLOCK_SIZE) as i64 } else { 1 };
        let budget = self.moves.budget(why);
        budget.has(least)
    }

    /// Copies a piece as soon as nobody changes it.
    fn try_piece(&mut self, extent: u32, range: Range<usize>) {
        let blocks = Blocks::range(range.start, range.end);
        let is_mine = self.requests.claim(extent, blocks);
        match is_mine {
            true => self.copy_piece(extent, range, Blocks::NONE),
            false => {
                let it = self.moves.moves.get_mut(&extent).expect("it moves");
                it.step = Step::Wanted(range);
            }
        }
    }

    /// Reads a piece, of which these blocks are being changed. Blocks of it that were copied before
    /// are not until it is written: a write to one of them would be overwritten by it.
    fn copy_piece(&mut self, extent: u32, range: Range<usize>, spoilt: Blocks) {
        let is_twice = self.is(Mutant::CopiedTwice);
        let it = self.moves.moves.get_mut(&extent).expect("it moves");
        it.step = Step::Copying(range.clone(), spoilt);
        if !is_twice {
            it.copied = it.copied.without(Blocks::range(range.start, range.end));
        }
        let (from, number, why) = (it.from, it.number, it.why);
        let yields = why.yields() || self.gives_way_until(&self.moves.moves[&extent]).is_some();
        let bytes = range.len() * BLOCK_SIZE;
        self.moves.budget(why).spend(bytes);
        if yields {
            self.moves.floor.spend(bytes);
        }
        self.moves.moved_bytes += bytes as u64;
        let buf = self.io.buf(bytes);
        let what = self.piece_io(extent, number, from);
        let offset = self.set.layout().slot_offset(from.slot());
        self.io.read(what, offset + (range.start * BLOCK_SIZE) as u64, buf);
    }

    fn piece_io(&mut self, extent: u32, number: u64, place: Place) -> UnderWay {
        self.space.hold(place);
        let purpose = Purpose::Piece(extent, number);
        UnderWay { place: Some(place), ..UnderWay::meta(MemberId(place.member()), purpose) }
    }

    /// A piece was read or written.
    pub(crate) fn piece_done(&mut self, extent: u32, number: u64, io: UnderWay, done: Completion) {
        let it = self.moves.moves.get(&extent).filter(|it| it.number == number);
        let Some(it) = it else { return self.io.give(done.buf) };
        let Step::Copying(range, spoilt) = it.step.clone() else {
            unreachable!("a piece is under way")
        };
        let to = it.to;
        if let Err(error) = done.result {
            self.io.give(done.buf);
            return self.move_failed(extent, io.member, error);
        }
        if !io.is_write {
            let what = self.piece_io(extent, number, to);
            let offset = self.set.layout().slot_offset(to.slot());
            return self.io.write(what, offset + (range.start * BLOCK_SIZE) as u64, done.buf);
        }
        self.io.give(done.buf);
        let spoilt = if self.is(Mutant::WriteDuringPiece) { Blocks::NONE } else { spoilt };
        let it = self.moves.moves.get_mut(&extent).expect("it moves");
        it.copied = it.copied.or(Blocks::range(range.start, range.end).without(spoilt));
        it.is_contended |= !spoilt.is_empty();
        it.step = Step::Ready;
        self.requests.unclaim(extent);
    }

    /// All is copied: the map says so, as soon as nobody changes the extent.
    fn try_say(&mut self, extent: u32) {
        if !self.requests.claim(extent, Blocks::ALL) {
            return;
        }
        if !self.journal.promise(self.map.beside_pages()) {
            return self.requests.unclaim(extent);
        }
        let blocks = self.map.blocks(extent);
        let it = &self.moves.moves[&extent];
        let (from, to) = (it.from, it.to);
        if blocks.is_empty() {
            self.journal.forgo();
            self.drop_move(extent, 0);
        } else {
            let seq = self.say_state(extent, State { place: Some(to), blocks });
            let it = self.moves.moves.get_mut(&extent).expect("it moves");
            it.step = Step::Said(seq);
            self.io.stir();
            self.barrier.want(seq, self.io.now() + GATHER_NS);
            if self.is(Mutant::SourceFreedEarly) {
                self.moves.moves.remove(&extent);
                self.space.retire(from, 0, self.barrier.confirmed());
            }
        }
        self.requests.unclaim(extent);
    }

    fn leave_when_confirmed(&mut self, extent: u32, seq: u64) {
        if self.barrier.confirmed() < seq {
            return self.barrier.want(seq, self.io.now() + GATHER_NS);
        }
        self.io.stir();
        let it = self.moves.moves.remove(&extent).expect("it moves");
        self.space.retire(it.from, seq, self.barrier.confirmed());
    }

    /// The extent does not move after all: it was given up, in record `seq`.
    pub(crate) fn drop_move(&mut self, extent: u32, seq: u64) {
        let Some(it) = self.moves.moves.remove(&extent) else { return };
        self.io.stir();
        let left = match it.step {
            // The new place is where the extent lived last: whoever gave it up leaves that.
            Step::Said(_) => it.from,
            _ => it.to,
        };
        self.space.retire(left, seq, self.barrier.confirmed());
        self.requests.unclaim(extent);
    }
}
