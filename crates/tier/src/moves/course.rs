//! The course of a move: its pieces one after the other, the record that says that the extent has
//! moved, and the old place that is left when that is confirmed.

use super::{Move, Step, Why};
use crate::Mutant;
use crate::event::MemberId;
use crate::io::{Purpose, UnderWay};
use crate::map::State;
use crate::part::state_entry;
use crate::tiers::Tiers;
use forebay_format::BLOCK_SIZE;
use forebay_format::io::{Completion, Time};
use forebay_format::tier::{Blocks, EXTENT_BLOCKS, Place};
use std::ops::Range;

/// Pieces under way at a time on an array of disks.
const ARRAY_PIECES_MAX: usize = 4;
/// Requests of clients that are under way on a disk for each piece beside them, and most pieces.
const CLIENTS_PER_PIECE: usize = 3;
const PIECES_MAX: usize = 4;

impl Tiers {
    /// When a move can go on by itself. Where something under way is waited for, its end is the
    /// time.
    pub(crate) fn moves_due(&self) -> Option<Time> {
        let active = self.moves.active.values().map(|extent| &self.moves.moves[extent]);
        let waiting = active.filter(|it| it.step == Step::Ready);
        let due = waiting.filter_map(|it| {
            let is_reserve = it.why == Why::Reserve;
            let paced = self.rests_until(it);
            let budget = if is_reserve { &self.moves.reserve } else { &self.moves.yielding };
            match () {
                () if it.why == Why::NoRoom || budget.is_nothing() => None,
                () if budget.is_spent() => Some(paced.unwrap_or(0).max(budget.due())),
                () if paced.is_some() => paced,
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
        let seeks = self.seeks(MemberId(it.to.member()));
        let until = self.planner.rests_until(self.io.now());
        until.filter(|_| it.why == Why::Reserve && seeks)
    }

    /// Until when a move rests because a disk that seeks has to do with the last piece. One for the
    /// reserve does so where clients use that disk.
    fn rests_until(&self, it: &Move) -> Option<Time> {
        let pace = &self.moves.pace;
        let of = |place: Place| {
            let member = MemberId(place.member());
            let requests = self.traffic.of(member).requests();
            let is_shared = !self.set.is_idle(member) || pace.is_shared(member, requests);
            let until = pace.rests_until(member, self.io.now());
            until.filter(|_| it.why != Why::Reserve || is_shared)
        };
        of(it.from).max(of(it.to)).filter(|_| it.why != Why::NoRoom)
    }

    /// A member gets a piece.
    fn pace(&mut self, member: MemberId, bytes: usize) {
        if self.seeks(member) && !self.is_array(member) {
            let requests = self.traffic.of(member).requests();
            self.moves.pace.given(member, self.io.now(), bytes, requests);
        }
    }

    /// Whether as many pieces are under way from or to a member as may be: where it seeks a
    /// client's request waits for all of them. An array has several disks for them; and where many
    /// requests wait for each other a piece waits for all of them, too, so that it takes several
    /// for moves to have their share.
    fn is_crowded(&self, member: MemberId) -> bool {
        let clients = self.set.member(member).clients as usize;
        let most = match self.is_array(member) {
            true => ARRAY_PIECES_MAX,
            false => (clients / CLIENTS_PER_PIECE).clamp(1, PIECES_MAX),
        };
        self.seeks(member) && self.moves.copying(member) >= most
    }

    fn is_array(&self, member: MemberId) -> bool {
        self.set.member(member).settings.stripe_blocks > 1
    }

    /// Whether a member takes much longer for what lies elsewhere than for what comes next.
    pub(crate) fn seeks(&self, member: MemberId) -> bool {
        self.set.member(member).settings.piece_blocks as usize > Blocks::PIECE
    }

    /// Only what writes wait for is copied now; what the map says already is brought to its end.
    pub(crate) fn stop_moves(&mut self) {
        let is_over = !self.is_open() || !self.journal.is_held();
        let may_end = |it: &Move| it.why != Why::NoRoom || is_over;
        let active = self.moves.active.values().copied();
        let open: Vec<u32> = active.filter(|it| may_end(&self.moves.moves[it])).collect();
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
        self.moves.add(extent, it);
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
        let active: Vec<u32> = self.moves.active.values().copied().collect();
        for extent in active {
            self.step_move(extent);
        }
        let confirmed = self.barrier.confirmed();
        while let Some(&(_, extent)) = self.moves.said.first().filter(|it| it.0 <= confirmed) {
            self.leave(extent);
        }
    }

    fn step_move(&mut self, extent: u32) {
        // A step of one may have ended another.
        let Some(it) = self.moves.moves.get(&extent) else { return };
        let (why, it_is_contended) = (it.why, it.is_contended);
        match it.step.clone() {
            Step::Said(_) | Step::Copying(..) => {}
            Step::Wanted(range) => self.try_piece(extent, range),
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
        // Where one of them seeks, few large ones cost less.
        let size = of(it.from).piece_blocks.max(of(it.to).piece_blocks);
        let size = (size as usize).clamp(1, most);
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
        if why == Why::NoRoom {
            return true;
        }
        let is_idle = self.set.is_idle(from) && self.set.is_idle(to);
        let yields = (why.yields() && !is_idle) || self.gives_way_until(it).is_some();
        let is_paced = self.rests_until(it).is_some();
        if self.moves.is_paused || is_paced || (yields && self.moves.floor.is_spent()) {
            return false;
        }
        let is_small = self.is(Mutant::BudgetTooSmall);
        let least = if is_small { (Blocks::PIECE * BLOCK_SIZE) as i64 } else { 1 };
        self.moves.budget(why).has(least) && !self.is_crowded(from) && !self.is_crowded(to)
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
        self.pace(MemberId(from.member()), bytes);
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
            self.pace(MemberId(to.member()), done.buf.len());
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
            let seq = self.say_moved(extent, State { place: Some(to), blocks });
            self.moves.say(extent, seq);
            self.io.stir();
            if self.is(Mutant::SourceFreedEarly) {
                self.moves.take(extent);
                self.space.retire(from, 0, self.barrier.confirmed());
            }
        }
        self.requests.unclaim(extent);
    }

    /// The map says that an extent lives elsewhere; room was promised. No client waits for that,
    /// and the old place has all until it is written: moves do not cost a write each.
    fn say_moved(&mut self, extent: u32, state: State) -> u64 {
        let (entry, now) = (state_entry(extent, state, self.map.entry(extent).heat), self.io.now());
        let seq = self.journal.append_at_leisure(entry, now);
        let now_s = self.now_s();
        self.map.change(seq, extent, state, now_s);
        seq
    }

    /// That the extent has moved is confirmed: the old place is not looked at any more.
    fn leave(&mut self, extent: u32) {
        self.io.stir();
        let it = self.moves.take(extent).expect("it moves");
        let Step::Said(seq) = it.step else { unreachable!("the map has said so") };
        self.space.retire(it.from, seq, self.barrier.confirmed());
    }

    /// The extent does not move after all: it was given up, in record `seq`.
    pub(crate) fn drop_move(&mut self, extent: u32, seq: u64) {
        let Some(it) = self.moves.take(extent) else { return };
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
