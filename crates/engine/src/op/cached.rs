//! Cached read: blocks from consecutive slots, for whom it may be. Each is verified; one that is
//! bad is read alone, from the second copy and from the first again, and then is lost.
//!
//! Four read so: a request, a write that covers a block only in part, reclaim, which moves blocks,
//! and writeback, which sends them home. What each does with a block, good or lost, is in its file.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::Key;
use crate::limits::CACHE_READ_TRIES;
use crate::op::Op;
use crate::op::run::{CacheRun, Lost, Reader};
use forebay_format::io::Buf;
use forebay_format::{BLOCK_SIZE, checksum};

impl Engine {
    /// Reads one block from where it is: a record that gathers, one on its way, or its slot.
    pub(crate) fn read_block(&mut self, run: CacheRun) {
        if let Some(block) = self.log.gathered(run.slot) {
            let copy = Buf::copy_of(block);
            self.cached_here(run, copy.bytes());
            return self.io.give(copy);
        }
        if self.log.sent_with_in(self.segments.unit_at(run.slot).inflight, run.slot) {
            return self.read_sent(run);
        }
        let buf = self.io.take(BLOCK_SIZE);
        self.read_cached(run, buf);
    }

    /// Reads a run from its slots.
    pub(crate) fn read_cached(&mut self, run: CacheRun, buf: Buf) {
        self.segments.pin(run.slot);
        self.read_slot_into(run.slot, run.tries, buf, Op::Cached(run));
    }

    pub(crate) fn cached_done(&mut self, run: CacheRun, end: Completion) {
        let Completion { result, buf } = end;
        self.segments.unpin(run.slot);
        let trusts = match run.by {
            Reader::Request { .. } => {
                let second = run.tries % 2 == 1;
                self.is(Mutant::ChecksumIgnored) || (second && self.is(Mutant::MirrorUnverified))
            }
            Reader::Move => self.is(Mutant::MoveUnverified),
            Reader::Merge { .. } | Reader::Home { .. } => false,
        };
        let mut bad = Vec::new();
        for (n, block) in buf.bytes().chunks_exact(BLOCK_SIZE).enumerate() {
            let good = result.is_ok() && (trusts || checksum(block) == run.located(n).crc);
            if !good {
                bad.push(n);
            }
        }
        self.cached_take(&run, buf, &bad);
        for n in bad {
            let one = run.again(n);
            self.cached_waits(&one);
            if one.tries < CACHE_READ_TRIES {
                let buf = self.io.take(BLOCK_SIZE);
                self.read_cached(one, buf);
            } else {
                self.cached_lost(one);
            }
        }
        self.cached_ends(&run);
    }

    /// A block that a record in memory holds.
    pub(crate) fn cached_here(&mut self, run: CacheRun, block: &[u8]) {
        match run.by {
            Reader::Request { req, .. } => self.read_bytes(req, &run, block),
            Reader::Merge { req, side } => {
                self.reqs.keeps(req, side, run.mask, Buf::copy_of(block));
            }
            Reader::Move | Reader::Home { .. } => unreachable!("they read what is in its slot"),
        }
        self.cached_ends(&run);
    }

    /// The blocks of a run are here, but for the bad ones.
    fn cached_take(&mut self, run: &CacheRun, buf: Buf, bad: &[usize]) {
        match run.by {
            Reader::Request { req, direct } => return self.read_take(req, direct, run, buf, bad),
            Reader::Merge { req, side } if bad.is_empty() => {
                self.reqs.keeps(req, side, run.mask, buf);
                return;
            }
            Reader::Move if bad.is_empty() => self.move_take(run.key, run.located(0), buf.bytes()),
            Reader::Merge { .. } | Reader::Move => {}
            Reader::Home { volume, run: at } => {
                self.home_take(volume, at, run.key, buf.bytes(), bad);
            }
        }
        self.io.give(buf);
    }

    /// No copy of a block can be read.
    fn cached_lost(&mut self, run: CacheRun) {
        let key = run.key;
        let lost = match self.map.get(key) {
            Some(now) if now == run.located(0) => {
                let hides =
                    self.is(Mutant::StaleOnBadDirty) && matches!(run.by, Reader::Request { .. });
                let dirty = self.map.is_dirty(now.slot);
                self.count_bad(key, dirty && !hides);
                if !dirty && !matches!(run.by, Reader::Move) {
                    self.map.ram_drop(key);
                    self.drop_clean(key);
                }
                Lost::Bad { dirty: dirty && !hides }
            }
            Some(now) => Lost::Moved(now),
            None => Lost::Gone,
        };
        let goes_on = match run.by {
            Reader::Request { req, .. } => self.read_lost(req, key, lost),
            Reader::Merge { req, side } => self.merge_lost(req, side, key, lost),
            Reader::Move => self.move_lost(key, run.located(0), lost),
            Reader::Home { volume, run } => self.home_lost(volume, run, key, lost),
        };
        if !goes_on {
            self.cached_ends(&run);
        }
    }

    fn count_bad(&mut self, key: Key, lost: bool) {
        let (id, base) =
            self.volume_of(key).map(|v| (v.id(), v.base())).expect("keys are of volumes");
        self.volumes.block_is_bad(id, lost);
        self.io.notify(Notice::BadBlock { volume: id, block: key - base, lost });
    }

    /// A reader waits for one more part.
    fn cached_waits(&mut self, run: &CacheRun) {
        match run.by {
            Reader::Request { req, .. } | Reader::Merge { req, .. } => {
                self.reqs.waits_for_part(req);
            }
            Reader::Move => self.move_begins(run.slot),
            Reader::Home { volume, run } => self.run_waits(volume, run),
        }
    }

    /// A part of what a reader waits for has ended, good or bad.
    fn cached_ends(&mut self, run: &CacheRun) {
        match run.by {
            Reader::Request { req, .. } | Reader::Merge { req, .. } => self.part_done(req),
            Reader::Move => self.move_over(run.slot),
            Reader::Home { volume, run } => self.run_read(volume, run),
        }
    }
}
