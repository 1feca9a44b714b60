//! Moves of which a member fails: what of the copy and of the old place does not count any more,
//! and which extents go back to where they came from.

use super::Step;
use crate::event::{MemberId, Notice};
use crate::limits::{HANG_NS, MOVE_RETRY_NS};
use crate::map::{State, lost_entry};
use crate::member::Written;
use crate::tiers::Tiers;
use crate::view::Pending;
use forebay_format::io::{Buf, IoError};
use forebay_format::tier::{Blocks, Place};

impl Tiers {
    /// A write of these blocks to the second place of an extent failed.
    pub(crate) fn mirror_failed(
        &mut self,
        extent: u32,
        place: Option<Place>,
        blocks: Blocks,
        error: IoError,
    ) {
        let Some(it) = self.moves.moves.get_mut(&extent) else { return };
        if place == Some(it.from) {
            it.missed = it.missed.or(blocks);
        } else if place == Some(it.to) {
            let member = MemberId(it.to.member());
            self.move_failed(extent, member, error);
        }
    }

    /// Where these blocks are, too, of an extent that has moved to this place, which is not
    /// confirmed: what cannot be read there can be here.
    pub(crate) fn old_place(
        &self,
        extent: u32,
        new: Option<Place>,
        blocks: Blocks,
    ) -> Option<Place> {
        let it = self.moves.moves.get(&extent)?;
        let has_moved = matches!(it.step, Step::Said(_)) && Some(it.to) == new;
        let is_whole = it.missed.and(blocks).is_empty();
        let is_here = self.set.is_here(MemberId(it.from.member()));
        (has_moved && is_whole && is_here).then_some(it.from)
    }

    /// The record which says that an extent has moved, if a start after a kill would need it: the
    /// old place does not have all that was written.
    pub(crate) fn missing_at_old_place(&mut self, extent: u32) -> Option<u64> {
        let it = self.moves.moves.get(&extent)?;
        let Step::Said(seq) = it.step else { return None };
        if it.missed.is_empty() || self.journal.is_said(seq) {
            return None;
        }
        self.journal.hurry();
        Some(seq)
    }

    /// Reads a part where its extent lives, or has lived until now.
    pub(crate) fn read_from(&mut self, part: u64, place: Place, buf: Buf) {
        let it = self.requests.part(part);
        (it.legs, it.place) = (1, Some(place));
        let from = it.range.start;
        let (what, offset) = self.client_io(part, place, from);
        self.io.read(what, offset, buf);
    }

    /// A write failed where its extent lives, of these blocks. Until it is written again either
    /// stands there, the old or the new: the other place must not have the other of them.
    pub(crate) fn main_failed(&mut self, extent: u32, place: Option<Place>, blocks: Blocks) {
        let Some(it) = self.moves.moves.get_mut(&extent) else { return };
        if place == Some(it.from) {
            it.copied = it.copied.without(blocks);
        } else if place == Some(it.to) {
            it.missed = it.missed.or(blocks);
        }
    }

    /// Ends a move that cannot go on now.
    pub(crate) fn move_failed(&mut self, extent: u32, member: MemberId, error: IoError) {
        let reads = self.map.place(extent).is_some_and(|place| place.member() == member.0);
        self.drop_move(extent, 0);
        let why = match (reads, error) {
            (true, _) => Pending::SourceFails,
            (false, IoError::NoSpace) => return self.rest(extent, Pending::NoRoom),
            (false, _) => Pending::TargetFails,
        };
        self.rest(extent, why);
        self.notice(Notice::MoveFailed { extent, member, error });
    }

    /// What was written to a member lately may be lost. What was copied there, or from there, is
    /// copied again: what is read there now may be older than what was. Of what has just left it,
    /// only what was confirmed there is certain.
    pub(crate) fn copy_again(&mut self, member: MemberId) {
        let Tiers { moves, map, .. } = self;
        for (&extent, it) in &mut moves.moves {
            if ![it.from, it.to].iter().any(|place| place.member() == member.0) {
                continue;
            }
            match &mut it.step {
                Step::Said(_) if it.from.member() == member.0 => {
                    it.missed = it.missed.or(Blocks::ALL.without(map.sound(extent)));
                }
                Step::Said(_) => {}
                Step::Copying(range, spoilt) => *spoilt = Blocks::range(range.start, range.end),
                Step::Ready | Step::Wanted(_) => {}
            }
            it.copied = Blocks::NONE;
        }
    }

    /// What an extent has written to a member since it was confirmed may be lost: back to where it
    /// came from, if it moved. What is not there, either, is lost.
    pub(crate) fn go_back(&mut self, extent: u32, member: MemberId) -> bool {
        let Some(it) = self.moves.moves.get(&extent) else { return false };
        let is_here = matches!(it.step, Step::Said(_)) && it.to.member() == member.0;
        let is_confirmed = self.map.confirmed(extent).place == Some(it.to);
        // A write that was given up there might come behind what is written there next.
        let hangs = self.io.hangs(MemberId(it.from.member()));
        if !is_here || ((is_confirmed || hangs) && !it.missed.is_empty()) {
            return false;
        }
        let it = self.moves.take(extent).expect("it moves");
        // What was written there as a copy lives there again.
        self.set.written(MemberId(it.from.member()), Written::Data);
        let state = State { place: Some(it.from), blocks: self.map.blocks(extent) };
        let before = self.map.lost(extent);
        let lost = before.or(it.missed.and(state.blocks));
        if lost != before {
            // In this order: what is said first holds even alone.
            self.journal.say(lost_entry(extent, lost));
            self.notice(Notice::BlocksLost { extent, blocks: lost.without(before).count() });
        }
        let entry = crate::part::state_entry(extent, state, self.map.entry(extent).heat);
        let seq = self.journal.say(entry);
        let now_s = self.now_s();
        self.map.change(seq, extent, state, now_s);
        if lost != before {
            self.map.set_lost(extent, lost);
        }
        self.space.retire(it.to, seq, self.barrier.confirmed());
        self.rest(extent, Pending::TargetFails);
        true
    }

    /// A move of which a member is given up ends where the extent is now.
    pub(crate) fn end_move(&mut self, extent: u32, member: MemberId) {
        let Some(it) = self.moves.moves.get_mut(&extent) else { return };
        match it.step {
            // It has left that member already, and leaves it when that is confirmed.
            Step::Said(_) if it.from.member() == member.0 => it.missed = Blocks::ALL,
            Step::Said(seq) => self.drop_move(extent, seq),
            _ => self.drop_move(extent, 0),
        }
    }

    /// A member does not answer: moves from and to it end, and what has come to it goes back where
    /// its old place has all of it.
    pub(crate) fn moves_hang(&mut self, member: MemberId) {
        for extent in self.moves.touching(member) {
            let it = &self.moves.moves[&extent];
            // Of blocks that the map does not know yet a write may be under way.
            let is_whole = it.missed.is_empty();
            match it.step {
                Step::Said(_) if it.to.member() == member.0 && is_whole => {
                    self.go_back(extent, member);
                    self.rest(extent, Pending::NoAnswer);
                }
                Step::Said(_) => {}
                _ => {
                    self.drop_move(extent, 0);
                    self.rest(extent, Pending::NoAnswer);
                }
            }
        }
    }

    /// A move of an extent is not begun for a while.
    pub(crate) fn rest(&mut self, extent: u32, why: Pending) {
        let lasts = if why == Pending::NoAnswer { 2 * HANG_NS } else { MOVE_RETRY_NS };
        self.moves.resting.insert(extent, (self.io.now() + lasts, why));
    }
}
