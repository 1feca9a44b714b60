//! The checkpoint: writes the pages of the map that changed, so that the journal can go round.
//!
//! First what pages cannot say (partly written and lost extents) is said again in the journal; when
//! that is confirmed, each holder gets the pages as they are confirmed, to its doubles first, then
//! in their places; last its head says from which record on the journal counts (T7).

use crate::Mutant;
use crate::event::{MemberId, OpenError};
use crate::io::{Purpose, UnderWay};
use crate::limits::DIRTY_PAGES_MAX;
use crate::tiers::{Phase, Tiers};
use forebay_format::BLOCK_SIZE;
use forebay_format::io::{Buf, Completion};
use forebay_format::tier::{DOUBLES_MAX, DOUBLES_OFFSET, HEAD_OFFSETS, Head, UNHELD};
use std::collections::BTreeSet;

/// How far a holder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Pages go to the doubles.
    Doubles,
    DoublesFlush,
    /// They go to their places.
    Places,
    PlacesFlush,
    Head,
    HeadFlush,
    Done,
}

/// A holder that gets the pages.
#[derive(Debug)]
struct Copying {
    index: usize,
    member: MemberId,
    pages: BTreeSet<u32>,
    batch: Vec<u32>,
    /// The batch, encoded: the same bytes go to both places.
    bytes: Vec<u8>,
    step: Step,
    under_way: usize,
}

/// A checkpoint under way.
#[derive(Debug)]
struct Run {
    /// The first record that will count.
    tail: u64,
    /// The last that has to be confirmed first.
    needed: u64,
    pages: BTreeSet<u32>,
    copies: Vec<Copying>,
    is_copying: bool,
}

/// The owner of checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    run: Option<Run>,
    /// Number of times that the head of each holder was written: copies take turns.
    heads: Vec<u64>,
}

impl Checkpoint {
    pub fn is_idle(&self) -> bool {
        self.run.is_none()
    }

    /// The copy of a holder's head that was read: the next goes to the other one.
    pub fn set_head(&mut self, index: usize, copy: usize) {
        *self.head_mut(index) = copy as u64 + 1;
    }

    fn head_mut(&mut self, index: usize) -> &mut u64 {
        if index >= self.heads.len() {
            self.heads.resize(index + 1, 0);
        }
        &mut self.heads[index]
    }
}

impl Tiers {
    /// Begins a checkpoint if none is under way: of these pages and those that changed.
    pub(crate) fn begin_checkpoint(&mut self, mut pages: BTreeSet<u32>) {
        assert!(self.checkpoint.run.is_none());
        self.journal.close();
        let tail = self.journal.next();
        pages.extend(self.map.take_dirty_pages());
        if !self.is(Mutant::FineForgotten) {
            for entry in self.map.beside() {
                self.journal.say(entry);
            }
        }
        if matches!(self.phase, Phase::Beginning) {
            // What is not confirmed is said again, and stays out of pages until the set is open.
            for entry in self.map.changed() {
                self.journal.say(entry);
            }
        }
        self.journal.close();
        let needed = self.journal.last();
        let (copies, is_copying) = (Vec::new(), false);
        self.io.stir();
        self.checkpoint.run = Some(Run { tail, needed, pages, copies, is_copying });
    }

    /// Lets it go on, or begins one when it is time.
    pub(crate) fn step_checkpoint(&mut self) {
        let is_open = matches!(self.phase, Phase::Open);
        let is_time = self.journal.wants_checkpoint()
            || self.map.dirty_pages() > DIRTY_PAGES_MAX
            || (self.requests.waits_for_room() && self.journal.has_much());
        if is_open && self.checkpoint.is_idle() && is_time && self.journal.is_held() {
            self.begin_checkpoint(BTreeSet::new());
        }
        let confirmed = self.barrier.confirmed();
        let is_early = self.is(Mutant::PageUnconfirmed);
        let Some(run) = &mut self.checkpoint.run else { return };
        if run.is_copying {
            return;
        }
        if !self.journal.is_held() && matches!(self.phase, Phase::Beginning) {
            // Nobody will confirm anything.
            run.copies.clear();
            return self.end_checkpoint();
        }
        if confirmed < run.needed && !is_early {
            let (needed, now) = (run.needed, self.io.now());
            return self.barrier.want(needed, now);
        }
        run.is_copying = true;
        let pages = run.pages.clone();
        let all = crate::recovery::all_pages(self.set.layout().extents_max);
        run.copies = self
            .journal
            .holders()
            .map(|(index, member)| Copying {
                index,
                member,
                pages: if self.journal.has_map(index) { pages.clone() } else { all.clone() },
                batch: Vec::new(),
                bytes: Vec::new(),
                step: Step::PlacesFlush,
                under_way: 0,
            })
            .collect();
        for at in 0..self.run().copies.len() {
            self.copy_on(at);
        }
        self.end_checkpoint();
    }

    fn run(&mut self) -> &mut Run {
        self.checkpoint.run.as_mut().expect("a checkpoint is under way")
    }

    /// An I/O for a holder has ended.
    pub(crate) fn checkpoint_done(&mut self, index: usize, done: Completion) {
        self.io.give(done.buf);
        if done.result.is_err() {
            self.holder_failed(index);
        }
        let Some(run) = &mut self.checkpoint.run else { return };
        let Some(at) = run.copies.iter().position(|it| it.index == index) else { return };
        run.copies[at].under_way -= 1;
        if run.copies[at].under_way == 0 {
            self.copy_on(at);
            self.end_checkpoint();
        }
    }

    /// The next step of a holder.
    fn copy_on(&mut self, at: usize) {
        let (index, member) = (self.run().copies[at].index, self.run().copies[at].member);
        let is_alive = self.journal.holders().any(|it| it.0 == index);
        if !is_alive {
            self.run().copies[at].step = Step::Done;
            return;
        }
        let flushes = self.set.member(member).settings.volatile_cache
            && !self.set.superblock().is_ephemeral();
        loop {
            let step = self.run().copies[at].step;
            let next = match step {
                Step::Doubles => Step::DoublesFlush,
                Step::DoublesFlush => Step::Places,
                Step::Places => Step::PlacesFlush,
                Step::PlacesFlush if self.take_batch(at) => Step::Doubles,
                Step::PlacesFlush => Step::Head,
                Step::Head => Step::HeadFlush,
                Step::HeadFlush | Step::Done => Step::Done,
            };
            self.run().copies[at].step = next;
            match next {
                Step::Doubles if self.is(Mutant::NoDoubles) => continue,
                Step::Doubles => self.write_doubles(at),
                Step::Places => self.write_places(at),
                Step::Head => self.write_head(at),
                Step::DoublesFlush | Step::PlacesFlush | Step::HeadFlush if flushes => {
                    self.run().copies[at].under_way = 1;
                    self.io.flush(member, Purpose::Checkpoint(index));
                }
                Step::DoublesFlush | Step::PlacesFlush | Step::HeadFlush => continue,
                Step::Done => {
                    let tail = self.run().tail;
                    self.journal.set_tail(index, tail);
                }
            }
            return;
        }
    }

    /// The next pages, as they are confirmed. Whether there are any.
    fn take_batch(&mut self, at: usize) -> bool {
        let copying = &mut self.run().copies[at];
        let batch: Vec<u32> =
            std::iter::from_fn(|| copying.pages.pop_first()).take(DOUBLES_MAX).collect();
        let set = self.set.id();
        let mut bytes = vec![0; batch.len() * BLOCK_SIZE];
        // At a start pages say what was confirmed before it.
        let is_start = matches!(self.phase, Phase::Beginning);
        let confirmed = if is_start { self.run().tail - 1 } else { self.barrier.confirmed() };
        let is_early = self.is(Mutant::PageUnconfirmed);
        for (&number, room) in batch.iter().zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
            self.map.page(number, confirmed, is_early).encode(set, room);
        }
        let copying = &mut self.run().copies[at];
        (copying.batch, copying.bytes) = (batch, bytes);
        !self.run().copies[at].batch.is_empty()
    }

    fn checkpoint_write(&mut self, at: usize, offset: u64, buf: Buf) {
        let copying = &mut self.run().copies[at];
        copying.under_way += 1;
        let what = UnderWay::meta(copying.member, Purpose::Checkpoint(copying.index));
        self.io.write(what, offset, buf);
    }

    fn write_doubles(&mut self, at: usize) {
        let buf = Buf::copy_of(&self.run().copies[at].bytes);
        self.checkpoint_write(at, DOUBLES_OFFSET, buf);
    }

    /// Pages that are neighbours go in one write.
    fn write_places(&mut self, at: usize) {
        let batch = self.run().copies[at].batch.clone();
        let mut from = 0;
        for run in batch.chunk_by(|one, other| one + 1 == *other) {
            let end = from + run.len();
            let bytes = &self.run().copies[at].bytes[from * BLOCK_SIZE..end * BLOCK_SIZE];
            let buf = Buf::copy_of(bytes);
            let offset = self.set.layout().page_offset(run[0]);
            self.checkpoint_write(at, offset, buf);
            from = end;
        }
    }

    fn write_head(&mut self, at: usize) {
        let head = Head { epoch: self.set.superblock().block.epoch.get(), tail: self.run().tail };
        let mut buf = Buf::zeroed(BLOCK_SIZE);
        head.encode(self.set.id(), buf.bytes_mut());
        let index = self.run().copies[at].index;
        let turn = self.checkpoint.head_mut(index);
        let copy = (*turn % 2) as usize;
        *turn += 1;
        self.checkpoint_write(at, HEAD_OFFSETS[copy], buf);
    }

    /// All holders are through.
    fn end_checkpoint(&mut self) {
        let is_done = self.run().copies.iter().all(|it| it.step == Step::Done);
        if !is_done {
            return;
        }
        self.checkpoint.run = None;
        self.io.stir();
        if matches!(self.phase, Phase::Beginning) {
            match self.journal.is_held() {
                true => self.begin_serving(),
                false => self.open_failed(OpenError::CannotWrite),
            }
        }
    }

    /// A holder cannot be written: the others go on, and superblocks say so when those have what
    /// it had.
    pub(crate) fn holder_failed(&mut self, index: usize) {
        let Some(member) = self.journal.fail(index) else { return };
        self.notice(crate::event::Notice::HolderLost(member));
        self.stay_if_needed();
        self.io.stir();
    }

    /// Drops holders that failed from the superblocks, once the others have all records that were
    /// answered on the word of those (T9). Until a set is open a start does that itself.
    pub(crate) fn drop_failed_holders(&mut self) {
        let is_open = matches!(self.phase, Phase::Open | Phase::Stopping(_));
        if !is_open || !self.journal.is_handed_over() {
            return;
        }
        let named = self.set.superblock().block.holders;
        let kept = named.map(|it| if self.journal.is_holder(MemberId(it)) { it } else { UNHELD });
        if kept == named {
            return;
        }
        self.set.superblock_mut().block.holders = kept;
        self.name_others();
        self.set.ask(crate::set::After::Nobody);
    }
}
