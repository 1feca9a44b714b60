//! Write to the origin: write-through, write-around, pass-through, and sequential streams of any
//! mode.
//!
//! Before the first such write to a region since the last sync point, an intent for the region is
//! made durable: after a crash the clean blocks of marked regions do not count, because the origin
//! may hold newer data (or the cache what the origin has lost). I11: the older cached copy is gone,
//! and the log says so, before the FLUSH that follows the write completes.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Dseq, Key};
use crate::limits::*;
use crate::log::Point;
use crate::op::Op;
use crate::requests::{Queue, Req, ReqKey, Wait};
use crate::segment::Purpose;
use forebay_format::io::Buf;
use forebay_format::record::EntryKind;
use forebay_format::stats::Reason;
use forebay_format::{BLOCK_SIZE, MASK_FULL};

impl Engine {
    pub(crate) fn origin_write_begin(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        let (first, last, id) = (req.first, req.last, req.volume);
        if self.stuck_in_log(req) {
            self.reqs.fail(name, IoError::Io);
            return self.reply(name);
        }
        if self.writeback.home(id).covers(first, last) {
            return self.reqs.wait(name, Wait::Slice);
        }
        if !self.room_for_entries() {
            return self.reqs.wait(name, Wait::Entries);
        }
        self.overtake(name);
        let need = self.mark_regions(id, first, last);
        self.reqs.wait(name, Wait::Intent(need));
        self.want_durable(need);
    }

    /// Whether clients may add entries to the log: the last of its room belongs to what makes room.
    pub(crate) fn room_for_entries(&self) -> bool {
        self.log.is_dead() || (!self.log.entries_wait() && self.segments.may_write(Purpose::Client))
    }

    /// Lets those begin that waited for room in the log. Where an origin takes no dirty blocks home
    /// no room may come: then those that have waited long fail.
    pub(crate) fn resume_behind_room(&mut self) {
        if self.reqs.waiting(Queue::Entries).is_empty() {
            return;
        }
        let room = self.room_for_entries();
        let none = self.origins_fail() && self.segments.emptied().is_empty();
        for name in self.reqs.take_all(Queue::Entries) {
            let late = self.reqs.get(name).since + ROOM_NS_MAX <= self.io.now();
            match (room, none && late) {
                (true, _) => self.begin(name),
                (false, true) => {
                    self.reqs.fail(name, IoError::Io);
                    self.reply(name);
                }
                (false, false) => self.reqs.wait(name, Wait::Entries),
            }
        }
    }

    /// Whether the log holds, or may hold, dirty versions of the request's blocks, and nothing can
    /// be added to it any more: what is written at the origin would be hidden by them after the
    /// next start.
    pub(crate) fn stuck_in_log(&self, req: &Req) -> bool {
        let unsure = |(_, key): (Dseq, Key)| (req.first..=req.last).contains(&key);
        self.log.is_dead() && (self.touches_dirty(req) || self.log.ended().any(unsure))
    }

    /// Marks the regions of `first..=last`. Returns the dirty-class number that must be durable
    /// before the origin is written.
    pub(crate) fn mark_regions(&mut self, id: VolumeId, first: Key, last: Key) -> Dseq {
        if self.log.is_dead() || self.is(Mutant::NoIntent) {
            return Dseq::NONE;
        }
        let base = self.vol(id).base();
        let blocks = self.tuning().region_blocks;
        let renew_below = self.vol(id).intents().over_soon();
        let mut need = Dseq::NONE;
        for region in (first - base) / blocks..=(last - base) / blocks {
            let marked = self.vol(id).intents().marked(region * blocks, blocks);
            if marked.is_none_or(|dseq| dseq <= renew_below) {
                let one = self.regions_marked() < self.tuning().regions_max;
                let (from, count) = if one { (region * blocks, blocks) } else { (0, u64::MAX) };
                let dseq = self.note(EntryKind::Intent, id, from, count);
                self.intend(id, one.then_some((from, count)), dseq);
                need = need.max(marked.unwrap_or(dseq));
            }
            need = need.max(marked.unwrap_or_default());
        }
        if self.is(Mutant::IntentUnawaited) { Dseq::NONE } else { need }
    }

    /// Marks a range that is not made of regions.
    pub(crate) fn mark_range(&mut self, id: VolumeId, first: Key, last: Key) {
        if self.log.is_dead() || self.is(Mutant::ZeroUnmarked) {
            return;
        }
        let one = self.regions_marked() < self.tuning().regions_max;
        let range = (first - self.vol(id).base(), last - first + 1);
        let (from, count) = if one { range } else { (0, u64::MAX) };
        let dseq = self.note(EntryKind::Intent, id, from, count);
        self.intend(id, one.then_some(range), dseq);
    }

    /// A record marks a range, or all of the volume.
    fn intend(&mut self, id: VolumeId, range: Option<(u64, u64)>, dseq: Dseq) {
        let now = self.io.now();
        self.volumes.mark(id, range, dseq, now);
    }

    /// Ranges of all volumes that are marked one by one.
    fn regions_marked(&self) -> usize {
        self.volumes.iter().map(|volume| volume.intents().ranges()).sum()
    }

    /// Lets origin writes go on whose intents are durable, and those end that waited for the log.
    pub(crate) fn resume_intending(&mut self) {
        let mut at = 0;
        while let Some(&name) = self.reqs.waiting(Queue::Log).get(at) {
            let wait = self.reqs.get(name).waits_for();
            let (ready, issued) = match (wait, self.log.is_dead()) {
                (Wait::Intent(_), true) => (self.pool.is_noted(), false),
                (Wait::Intent(dseq), false) => (dseq <= self.log.durable_dseq(), false),
                (Wait::Logged(_), true) => (true, true),
                (Wait::Logged(dseq), false) => (dseq <= self.log.completed_dseq(), true),
                _ => unreachable!("the others are not listed here"),
            };
            let late =
                !issued && self.pool.note_gives_up_at().is_some_and(|at| at <= self.io.now());
            if !ready && !late {
                at += 1;
                continue;
            }
            self.reqs.take(Queue::Log, at);
            if !ready {
                // Nowhere can be noted that the cache's clean blocks are old from here on.
                self.reqs.fail(name, IoError::Io);
                self.reply(name);
                continue;
            }
            if issued {
                if self.stuck_in_log(self.reqs.get(name)) {
                    self.reqs.fail(name, IoError::Io);
                }
                self.origin_write_end(name);
            } else if self.reqs.get(name).kind == RequestKind::Write {
                self.origin_write_issue(name);
            } else {
                self.zero_issue(name);
            }
        }
    }

    fn origin_write_issue(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        let (first, last) = (req.first, req.last);
        if self.stuck_in_log(req) {
            self.reqs.fail(name, IoError::Io);
            return self.reply(name);
        }
        if !self.is(Mutant::OriginWriteKeepsCached) {
            self.drop_range(first, last);
        }
        let now = self.io.now();
        self.reqs.wait(name, Wait::Parts);
        self.reqs.starts(name);
        let buf = self.reqs.lend(name);
        let req = self.reqs.get(name);
        let (offset, id) = (req.offset, req.volume);
        self.volumes.origin_write_begins(id, buf.len(), now);
        self.io.write(Op::OriginWrite { req: name }, Target::Origin(id), offset, buf);
    }

    /// Takes clean blocks out of cache and RAM, with one word in the log, if any was there.
    pub(crate) fn drop_range(&mut self, first: Key, last: Key) {
        let (mut from, mut to) = (None, first);
        for key in first.to(last) {
            self.map.ram_drop(key);
            if self.forget_clean(key) {
                (from, to) = (from.or(Some(key)), key);
            }
        }
        if let Some(from) = from.filter(|_| !self.log.is_dead()) {
            let (id, base) = self.volume_of(from).map(|v| (v.id(), v.base())).expect("of a volume");
            let short = u64::from(to > from && self.is(Mutant::TombstoneShort));
            self.note(EntryKind::Tombstone, id, from - base, to - from + 1 - short);
        }
    }

    pub(crate) fn origin_write_done(
        &mut self,
        name: ReqKey,
        result: Result<(), IoError>,
        buf: Buf,
    ) {
        self.reqs.give_back(name, buf);
        let id = self.reqs.get(name).volume;
        if let Err(error) = result {
            let error =
                if error == IoError::Io || error == IoError::NoSpace { error } else { IoError::Io };
            self.reqs.fail(name, error);
        }
        self.origin_written(id, true);
        self.part_done(name);
    }

    /// The origin holds data of the write: it may enter the cache, and the write may be
    /// acknowledged.
    pub(crate) fn origin_write_step(&mut self, name: ReqKey) {
        if self.reqs.get(name).error.is_none() {
            self.fill_written(name);
        } else if self.may_be_cached(name) {
            return self.write_refused(name);
        }
        self.hold_for_log(name);
    }

    /// Whether a write to the origin may go into the cache instead.
    fn may_be_cached(&self, name: ReqKey) -> bool {
        let req = self.reqs.get(name);
        let volume = self.vol(req.volume);
        volume.mode().plan().write_dirty && !volume.leaves() && !self.log.is_dead() && !req.around
    }

    /// The origin refused a write that the cache could take: it does.
    fn write_refused(&mut self, name: ReqKey) {
        self.reqs.tries_again(name);
        let req = self.reqs.get(name);
        let (id, first) = (req.volume, req.first);
        let block = first - self.vol(id).base();
        self.block_refused(id, block);
        self.mark_cached(name);
        self.write_cached_begin(name);
    }

    /// I: an older dirty version of these blocks may have ended by a record that is not written
    /// yet; a `kill -9` before it is would bring that version back. Waits for it.
    pub(crate) fn hold_for_log(&mut self, name: ReqKey) {
        let ends = self.log.ended().next_back().map_or(Dseq::NONE, |(dseq, _)| dseq);
        let ends = if self.is(Mutant::EndsUnawaited) { Dseq::NONE } else { ends };
        self.reqs.wait(name, Wait::Logged(ends));
    }

    fn origin_write_end(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        if req.fua && req.error.is_none() && !self.is(Mutant::FuaIgnored) {
            let written = self.vol(req.volume).flush().client_written();
            let dseq = if self.log.is_dead() { Dseq::NONE } else { self.log.dseq_gathered() };
            return self.flush_wait(name, dseq, written, false);
        }
        self.reply(name);
    }

    /// Write-through: what was written is kept in the cache. Only whole blocks, and before an
    /// overlapping write may begin. What is not kept is counted.
    fn fill_written(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        let (first, last, id, sequential) = (req.first, req.last, req.volume, req.sequential);
        let volume = self.vol(id);
        let base = volume.base();
        let reason = match volume.written_is_not_kept() {
            Some(Reason::Mode) => Some(Reason::Mode),
            _ if self.log.is_dead() => Some(Reason::DeviceFailed),
            _ if sequential => Some(Reason::Sequential),
            None if volume.flush().forgets() || self.ends.empties(id) => Some(Reason::NotReady),
            other => other,
        };
        if let Some(reason) = reason {
            self.volumes.not_cached(id, reason, last - first + 1);
            return;
        }
        for key in first.to(last) {
            let req = self.reqs.get(name);
            if req.mask_of(key, base) != MASK_FULL {
                continue;
            }
            let (_, at) = req.part_of(key, base);
            let mut block = self.io.take(BLOCK_SIZE);
            let req = self.reqs.get(name);
            block.bytes_mut().copy_from_slice(&req.buf.bytes()[at..at + BLOCK_SIZE]);
            let (kind, purpose) = (EntryKind::Clean, Purpose::Clean);
            let room = self.append(Point::Fill, key, block.bytes(), kind, MASK_FULL, purpose);
            if room.is_some() {
                self.map.ram_put(key, block.bytes());
            } else {
                self.volumes.not_cached(id, Reason::NoSpace, 1);
            }
            self.io.give(block);
        }
    }
}
