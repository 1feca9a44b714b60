//! A client's I/O: cut into parts of one extent each, and what each does.

use crate::Mutant;
use crate::cut::UNWRITTEN_PER_CALL;
use crate::event::{Effect, Io, IoId, MemberId};
use crate::io::{Purpose, UnderWay};
use crate::map::{State, lost_entry};
use crate::requests::{Kind, Request, What};
use crate::tiers::Tiers;
use forebay_format::BLOCK_SIZE;
use forebay_format::io::{Buf, Completion, IoError};
use forebay_format::tier::{Blocks, Entry, EntryKind, Place};
use std::ops::Range;

pub(crate) const BLOCK: u64 = BLOCK_SIZE as u64;
/// Parts of one request that are under way at a time.
const PARTS_MAX: u32 = 32;
/// Parts that one call makes.
const PARTS_PER_CALL: u32 = 256;

impl Tiers {
    /// A client's I/O.
    pub(crate) fn submit(&mut self, id: IoId, io: Io) {
        let (kind, offset, len, buf) = match io {
            Io::Read { offset, buf } => (Kind::Read, offset, buf.len() as u64, buf),
            Io::Write { offset, buf } => (Kind::Write, offset, buf.len() as u64, buf),
            Io::Flush => (Kind::Flush, 0, 0, Buf::empty()),
            Io::Zero { offset, len, unmap } => (Kind::Zero { unmap }, offset, len, Buf::empty()),
            Io::Discard { offset, len } => (Kind::Discard, offset, len, Buf::empty()),
        };
        let end = offset.checked_add(len);
        let is_inside = end.is_some_and(|end| end <= self.set.superblock().block.bytes.get());
        let is_even = offset.is_multiple_of(512) && len.is_multiple_of(512);
        let error = match (self.is_open(), is_inside && is_even) {
            (false, _) => Some(IoError::Gone),
            (true, false) => Some(IoError::Invalid),
            (true, true) => None,
        };
        if let Some(error) = error {
            let completion = Completion { result: Err(error), buf };
            return self.io.emit(Effect::Reply { id, completion });
        }
        let request = Request { id, kind, buf, offset, len, made: 0, parts: 0, error: None };
        let number = self.requests.add(request);
        if kind == Kind::Flush {
            return self.barrier.join(number);
        }
        self.make(number, PARTS_PER_CALL);
    }

    /// Goes on making parts of requests that are long.
    pub(crate) fn make_parts(&mut self) {
        let Some(request) = self.requests.making() else { return };
        if self.requests.has(request) {
            self.make(request, PARTS_PER_CALL);
        }
    }

    /// Makes parts of a request, and answers it if all have ended.
    fn make(&mut self, number: u64, budget: u32) {
        let mut skips = UNWRITTEN_PER_CALL;
        for _ in 0..budget {
            self.skip_unwritten(number, &mut skips);
            let request = self.requests.request(number);
            if request.made == request.len {
                if request.parts == 0 {
                    self.answer(number);
                }
                return;
            }
            if request.parts >= PARTS_MAX {
                return;
            }
            if skips == 0 {
                break;
            }
            let part = self.requests.request(number).next_part(number);
            let what = part.what;
            let part = self.requests.add_part(part);
            match what {
                What::Read => self.read(part),
                _ if self.requests.may_change(part) => self.change(part),
                _ => {}
            }
            if !self.requests.has(number) {
                return;
            }
        }
        self.requests.make_later(number);
    }

    fn answer(&mut self, number: u64) {
        let request = self.requests.remove(number);
        let result = request.error.map_or(Ok(()), Err);
        let completion = Completion { result, buf: request.buf };
        self.io.emit(Effect::Reply { id: request.id, completion });
    }

    /// A client's flush is over.
    pub(crate) fn answer_flush(&mut self, number: u64, error: Option<IoError>) {
        self.requests.request(number).error = error;
        self.answer(number);
    }

    /// A part has ended.
    pub(crate) fn end_part(&mut self, number: u64, error: Option<IoError>) {
        self.io.stir();
        let part = self.requests.remove_part(number);
        if part.is_promised {
            self.journal.forgo();
        }
        let request = self.requests.request(part.request);
        request.error = request.error.or(error);
        if part.what != What::Read {
            self.take_back_unwritten(part.extent, number);
            self.requests.changed(part.extent, number);
        }
        let request = self.requests.request(part.request);
        if request.made < request.len {
            self.requests.make_later(part.request);
        } else if request.parts == 0 {
            self.answer(part.request);
        }
    }

    fn count_access(&mut self, extent: u32, bytes: u64) {
        self.map.touch(extent, bytes.div_ceil(64 << 10) as f32);
    }

    fn read(&mut self, number: u64) {
        let part = self.requests.part(number);
        let (extent, range, at, request) = (part.extent, part.range.clone(), part.at, part.request);
        let State { place, blocks: valid } = self.map.state(extent);
        let touched = touched_by(&range);
        self.count_access(extent, range.end - range.start);
        if !self.map.lost(extent).and(touched).is_empty() {
            return self.end_part(number, Some(IoError::Io));
        }
        let Some(place) = place.filter(|_| !valid.and(touched).is_empty()) else {
            let len = (range.end - range.start) as usize;
            self.requests.request(request).buf.bytes_mut()[at..at + len].fill(0);
            return self.end_part(number, None);
        };
        if !self.set.is_here(MemberId(place.member())) {
            return self.end_part(number, Some(IoError::Io));
        }
        let len = (range.end - range.start) as usize;
        let whole = self.requests.request(request).buf.len() == len;
        let buf = match whole {
            true => std::mem::take(&mut self.requests.request(request).buf),
            false => self.io.buf(len),
        };
        let part = self.requests.part(number);
        (part.valid, part.has_buf) = (valid, whole);
        self.read_from(number, place, buf);
    }

    /// I/O of a client on a place: held until it ends.
    pub(crate) fn client_io(&mut self, part: u64, place: Place, from: u64) -> (UnderWay, u64) {
        let member = MemberId(place.member());
        self.set.client_begins(member);
        self.space.hold(place);
        let purpose = Purpose::Part(part);
        let meta = UnderWay::meta(member, purpose);
        let what = UnderWay { place: Some(place), is_client: true, ..meta };
        (what, self.set.layout().slot_offset(place.slot()) + from)
    }

    /// Begins a part that changes its extent; or goes on with one that waited.
    pub(crate) fn change(&mut self, number: u64) {
        if !self.journal.is_held() {
            // The next start would not know of it.
            return self.end_part(number, Some(IoError::Io));
        }
        match self.requests.part(number).what {
            What::Read => unreachable!("a read changes nothing"),
            What::Write => self.write(number),
            What::WriteZeros => {
                let (extent, range) = self.requests.place_of(number);
                let valid = self.map.blocks(extent).or(self.map.lost(extent));
                match valid.and(touched_by(&range)).is_empty() {
                    true => self.end_part(number, None),
                    false => self.write(number),
                }
            }
            What::Zero { .. } | What::Discard => self.clear(number),
        }
    }

    /// Writes a part, where its extent lives or comes to live.
    fn write(&mut self, number: u64) {
        let (extent, range) = self.requests.place_of(number);
        if self.lives_on_nobody(extent) && !self.forsake(number) {
            return;
        }
        let valid = self.map.blocks(extent);
        let touched = touched_by(&range);
        let lost = self.map.lost(extent).and(touched);
        if !lost.without(covered(&range)).is_empty() {
            // What stands in the rest of such a block nobody knows.
            return self.end_part(number, Some(IoError::Io));
        }
        let written = self.with_padding(extent, &range, valid);
        if !self.requests.widen(number, touched_by(&written)) {
            return;
        }
        let is_first = !blocks_of(&written).without(valid).is_empty() || !lost.is_empty();
        if !self.has_promise(number, is_first) {
            return self.requests.wait_room(number);
        }
        let place = match self.map.place(extent) {
            Some(place) => place,
            None => match self.choose_place(extent) {
                Some(place) => place,
                None if self.makes_space() => {
                    self.want_space();
                    return self.requests.wait_space(number);
                }
                None => return self.end_part(number, Some(IoError::NoSpace)),
            },
        };
        if !self.set.is_here(MemberId(place.member())) {
            return self.end_part(number, Some(IoError::Io));
        }
        self.count_access(extent, range.end - range.start);
        let buf = self.buf_of_write(number, &written);
        self.moves.written(extent, touched_by(&written));
        let Tiers { moves, journal, .. } = self;
        let is_everywhere = |seq| journal.is_everywhere(seq);
        let mirror = moves.mirror(extent, touched_by(&written), is_everywhere);
        let part = self.requests.part(number);
        part.blocks = blocks_of(&written);
        (part.legs, part.place, part.is_first) = (1, Some(place), is_first);
        if let Some(mirror) = mirror
            && !self.is(Mutant::WriteMissesCopy)
        {
            let part = self.requests.part(number);
            (part.legs, part.mirror) = (2, Some(mirror));
            let copy = Buf::copy_of(buf.bytes());
            let (what, offset) = self.client_io(number, mirror, written.start);
            self.io.write(what, offset, copy);
        }
        let (what, offset) = self.client_io(number, place, written.start);
        self.io.write(what, offset, buf);
    }

    pub(crate) fn has_promise(&mut self, number: u64, is_needed: bool) -> bool {
        if !is_needed || self.requests.part(number).is_promised {
            return true;
        }
        let is_promised = self.journal.promise(self.map.beside_pages());
        self.requests.part(number).is_promised = is_promised;
        is_promised
    }

    /// The bytes of the extent that are written with a range: whole blocks where a block is written
    /// for the first time, and whole pieces where the extent may not become partly written.
    fn with_padding(&self, extent: u32, range: &Range<u64>, valid: Blocks) -> Range<u64> {
        if self.is(Mutant::NoPadding) {
            return range.clone();
        }
        let unit_of = |byte: u64| {
            let block = (byte / BLOCK) as usize;
            let piece = block / Blocks::PIECE * Blocks::PIECE;
            let is_new = Blocks::range(piece, piece + Blocks::PIECE).and(valid).is_empty();
            match () {
                () if valid.has(block) => 512,
                () if is_new && !self.may_be_fine(extent) => BLOCK * Blocks::PIECE as u64,
                () => BLOCK,
            }
        };
        let (first, last) = (unit_of(range.start), unit_of(range.end - 1));
        range.start / first * first..range.end.next_multiple_of(last)
    }

    /// Whether an extent may be partly written.
    fn may_be_fine(&self, extent: u32) -> bool {
        self.map.is_fine(extent) || self.map.fine() < self.tuning.fine_max
    }

    /// The data of a part, with zeros around it.
    fn buf_of_write(&mut self, number: u64, written: &Range<u64>) -> Buf {
        let (_, range) = self.requests.place_of(number);
        let part = self.requests.part(number);
        let (at, request, what) = (part.at, part.request, part.what);
        let len = (range.end - range.start) as usize;
        let own = &mut self.requests.request(request).buf;
        if what == What::Write && own.len() == len && *written == range {
            let buf = std::mem::take(own);
            self.requests.part(number).has_buf = true;
            return buf;
        }
        let mut buf = self.io.buf((written.end - written.start) as usize);
        buf.bytes_mut().fill(0);
        if what == What::Write {
            let from = (range.start - written.start) as usize;
            let own = &self.requests.request(request).buf;
            buf.bytes_mut()[from..from + len].copy_from_slice(&own.bytes()[at..at + len]);
        }
        buf
    }

    /// A device I/O of a part has ended.
    pub(crate) fn part_done(&mut self, number: u64, place: Option<Place>, done: Completion) {
        let part = self.requests.part(number);
        part.legs -= 1;
        let (extent, what) = (part.extent, part.what);
        let (is_main, written) = (part.place == place, part.blocks);
        let touched = touched_by(&part.range);
        if what == What::Read
            && done.result.is_err()
            && let Some(old) = self.old_place(extent, place, touched)
        {
            return self.read_from(number, old, done.buf);
        }
        let part = self.requests.part(number);
        if is_main {
            part.main_ended(done.result);
        } else {
            part.mirror_error = done.result.err();
        }
        match (is_main, done.result) {
            (_, Ok(())) => {}
            (true, Err(_)) if what == What::Read => {}
            (true, Err(_)) => self.main_failed(extent, place, touched.or(written)),
            (false, Err(error)) => {
                self.mirror_failed(extent, place, touched.or(written), error);
            }
        }
        if what == What::Read && !self.map.lost(extent).and(touched).is_empty() {
            // It was lost while it was read.
            self.requests.part(number).error = Some(IoError::Io);
        }
        let part = self.requests.part(number);
        if is_main {
            let (range, at, has_buf) = (part.range.clone(), part.at, part.has_buf);
            let (valid, request, is_ok) = (part.valid, part.request, part.error.is_none());
            let mut buf = done.buf;
            if what == What::Read && is_ok {
                clear_unwritten(&mut buf, &range, valid);
            }
            let own = &mut self.requests.request(request).buf;
            match has_buf {
                true => *own = buf,
                false => {
                    if what == What::Read && is_ok {
                        own.bytes_mut()[at..at + buf.len()].copy_from_slice(buf.bytes());
                    }
                    self.io.give(buf);
                }
            }
        } else {
            self.io.give(done.buf);
        }
        if self.requests.part(number).legs == 0 {
            match what {
                What::Read => {
                    let error = self.requests.part(number).error;
                    self.end_part(number, error);
                }
                _ => self.written(number),
            }
        }
    }

    /// All that a part writes is written.
    fn written(&mut self, number: u64) {
        let (extent, range) = self.requests.place_of(number);
        let place = self.map.place(extent);
        let part = self.requests.part(number);
        let (blocks, is_first, error) = (part.blocks, part.is_first, part.outcome(place));
        let is_held = self.journal.is_held();
        if error == Some(IoError::NoSpace) && is_held && self.seek_room(number) {
            return;
        }
        // What zeros around it have gone over stays lost.
        let own = if self.is(Mutant::PaddingRestores) { blocks } else { covered(&range) };
        let error = error.or((!is_held).then_some(IoError::Io));
        if error.is_some() || !is_first {
            return match self.missing_at_old_place(extent) {
                Some(seq) if error.is_none() => self.said_by(number, seq),
                _ => self.end_part(number, error),
            };
        }
        let State { place, blocks: before } = self.map.state(extent);
        let lost = self.map.lost(extent);
        let state = State { place, blocks: before.or(blocks) };
        let mut seq = self.say(number, extent, state);
        if !lost.and(own).is_empty() {
            self.map.set_lost(extent, lost.without(own));
            seq = self.journal.say(lost_entry(extent, lost.without(own)));
        }
        self.said_by(number, seq);
    }

    fn said_by(&mut self, part: u64, seq: u64) {
        match self.is(Mutant::AnswerBeforeJournal) {
            true => self.end_part(part, None),
            false => self.requests.wait_said(part, seq),
        }
    }

    /// Says what an extent has become, with the promise that a part has.
    pub(crate) fn say(&mut self, part: u64, extent: u32, state: State) -> u64 {
        let part = self.requests.part(part);
        assert!(std::mem::take(&mut part.is_promised), "a change has its room");
        self.say_state(extent, state)
    }

    /// Says what an extent has become; room was promised.
    pub(crate) fn say_state(&mut self, extent: u32, state: State) -> u64 {
        let seq = self.journal.append(state_entry(extent, state, self.map.entry(extent).heat));
        let now_s = self.now_s();
        self.map.change(seq, extent, state, now_s);
        seq
    }

    /// Blocks that are not written any more.
    fn clear(&mut self, number: u64) {
        let (extent, range) = self.requests.place_of(number);
        let what = self.requests.part(number).what;
        let State { place, blocks: before } = self.map.state(extent);
        let mut gone = blocks_of(&range);
        let would_be_fine = |gone: Blocks| !before.without(gone).is_whole_pieces();
        if would_be_fine(gone) && !self.may_be_fine(extent) {
            if what != What::Discard {
                self.requests.part(number).what = What::WriteZeros;
                return self.change(number);
            }
            gone = Blocks::of_pieces(gone.pieces());
        }
        let lost = self.map.lost(extent);
        if before.and(gone).is_empty() && lost.and(gone).is_empty() {
            return self.end_part(number, None);
        }
        if !self.has_promise(number, true) {
            return self.requests.wait_room(number);
        }
        let blocks = before.without(gone);
        // Where something else of it is being written, what becomes of the place is seen later.
        let is_kept = what == What::Zero { unmap: false };
        let is_alone = !self.requests.is_changed_by_others(extent, number);
        let leaves = blocks.is_empty() && !is_kept && is_alone;
        let kept = place.filter(|_| !leaves);
        let mut seq = if self.is(Mutant::DiscardResurrects) && what == What::Discard {
            self.requests.part(number).is_promised = false;
            self.journal.forgo();
            let now_s = self.now_s();
            self.map.change(self.journal.next(), extent, State { place: kept, blocks }, now_s);
            // What is never said is waited for without an end.
            self.journal.last()
        } else {
            self.say(number, extent, State { place: kept, blocks })
        };
        if !lost.and(gone).is_empty() {
            self.map.set_lost(extent, lost.without(gone));
            seq = self.journal.say(lost_entry(extent, lost.without(gone)));
        }
        if is_kept && blocks.is_empty() {
            self.map.keep(extent);
        }
        if let Some(place) = place.filter(|_| leaves) {
            self.drop_move(extent, seq);
            self.space.retire(place, seq, self.barrier.confirmed());
        }
        self.said_by(number, seq);
    }
}

/// Blocks that a range of bytes touches.
pub(crate) fn touched_by(range: &Range<u64>) -> Blocks {
    Blocks::range((range.start / BLOCK) as usize, range.end.div_ceil(BLOCK) as usize)
}

/// Blocks that a range of bytes covers.
pub(crate) fn covered(range: &Range<u64>) -> Blocks {
    let (from, end) = (range.start.div_ceil(BLOCK), range.end / BLOCK);
    Blocks::range(from as usize, end.max(from) as usize)
}

fn blocks_of(range: &Range<u64>) -> Blocks {
    covered(range)
}

/// Zeros where nothing was written.
fn clear_unwritten(buf: &mut Buf, range: &Range<u64>, valid: Blocks) {
    for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
        if !valid.has(block as usize) {
            let from = (block * BLOCK).max(range.start) - range.start;
            let end = ((block + 1) * BLOCK).min(range.end) - range.start;
            buf.bytes_mut()[from as usize..end as usize].fill(0);
        }
    }
}

pub(crate) fn state_entry(extent: u32, state: State, heat: u8) -> Entry {
    let place = state.place.filter(|_| !state.blocks.is_empty());
    let place = place.map_or(forebay_format::tier::PLACE_NONE, Place::number);
    Entry { kind: EntryKind::State, extent, place, heat, blocks: state.blocks }
}
