//! Write into the cache: acknowledged when its record is on the cache device, sent home later.
//!
//! A block that the write covers only in part is merged with what the cache has of it; if it has
//! nothing, the sectors go to the log with a mask. No write ever waits for a read of the origin.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Key, Slot, Written};
use crate::index::Located;
use crate::log::Point;
use crate::op::run::{CacheRun, Lost, Reader};
use crate::requests::{Req, ReqKey, Wait};
use crate::segment::Purpose;
use crate::volume::Volume;
use forebay_format::io::Buf;
use forebay_format::record::EntryKind;
use forebay_format::{BLOCK_SIZE, MASK_FULL};

impl Engine {
    /// Whether a write goes into the cache, by the mode and what its volume is doing.
    pub(crate) fn writes_into_cache(&self, req: &Req) -> bool {
        let volume = self.vol(req.volume);
        volume.mode().plan().write_dirty
            && !self.writes_through(volume)
            && !self.log.is_dead()
            && !req.sequential
            && !req.around
    }

    /// Whether the volume's writes go to the origin, whatever its mode says.
    pub(crate) fn writes_through(&self, volume: &Volume) -> bool {
        let home = |id| self.writeback.home(id);
        volume.draining() && volume.writes_through(home(volume.id()), self.io.now())
    }

    /// Whether any block of the request is dirty.
    pub(crate) fn touches_dirty(&self, req: &Req) -> bool {
        let volume = self.vol(req.volume);
        volume.dirty().any(req.first - volume.base(), req.last - volume.base())
    }

    pub(crate) fn write_begin(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        if !req.cached {
            if !self.touches_dirty(req) || self.log.is_dead() {
                return self.origin_write_begin(name);
            }
            if !self.vol(req.volume).mode().plan().write_dirty {
                // The mode promises that the origin has everything. A crash brought back a dirty
                // version that was home already: it goes there again, then the write does.
                return self.write_after_home(name);
            }
            if self.keeps_from_home(req) && !self.rests(req.first, req.last) {
                return self.reqs.wait(name, Wait::Slice);
            }
            self.mark_cached(name);
        }
        self.write_cached_begin(name);
    }

    /// A write into the cache begins: what it leaves of its first and last block is looked for.
    pub(super) fn write_cached_begin(&mut self, name: ReqKey) {
        if self.log.is_dead() {
            self.reqs.fail(name, IoError::Io);
            return self.write_failed(name);
        }
        self.reqs.starts(name);
        self.merge_begin(name, 0);
        let req = self.reqs.get(name);
        if req.last != req.first {
            self.merge_begin(name, 1);
        }
        self.part_done(name);
    }

    /// Whether a write to dirty blocks would keep a drain from ending: they are on their way home,
    /// or so few are left that all are next.
    fn keeps_from_home(&self, req: &Req) -> bool {
        let volume = self.vol(req.volume);
        let home = self.writeback.home(req.volume);
        volume.draining() && (volume.is_nearly_drained(home) || home.covers(req.first, req.last))
    }

    fn write_after_home(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        if self.rests(req.first, req.last) {
            self.reqs.fail(name, IoError::Io);
            return self.reply(name);
        }
        self.reqs.wait(name, Wait::Slice);
    }

    pub(crate) fn mark_cached(&mut self, name: ReqKey) {
        let volume = self.reqs.enters_cache(name);
        self.volumes.cache_write_begins(volume);
    }

    /// Tells the reads under way on these blocks that they may bring old data.
    pub(crate) fn overtake(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        let (first, last) = (req.first, req.last);
        let joins = self.is(Mutant::JoinOvertaken);
        self.reqs.overtake(first, last, joins);
    }

    /// Sectors of block `key` that exist: the last block of a volume may be cut short.
    fn valid_mask(&self, volume: VolumeId, key: Key) -> u8 {
        let volume = self.vol(volume);
        let left = volume.bytes() - (key - volume.base()) * BLOCK_SIZE as u64;
        if left >= BLOCK_SIZE as u64 { MASK_FULL } else { ((1_u32 << (left / 512)) - 1) as u8 }
    }

    /// Asks for the old content of the write's first (0) or last (1) block, if part of it stays.
    fn merge_begin(&mut self, name: ReqKey, side: usize) {
        let req = self.reqs.get(name);
        let key = if side == 0 { req.first } else { req.last };
        let covered = req.mask_of(key, self.vol(req.volume).base());
        if covered == self.valid_mask(req.volume, key) {
            return;
        }
        let Some(located) = self.locate(key) else { return };
        self.reqs.waits_for_part(name);
        self.merge_read(name, side, key, located);
    }

    fn merge_read(&mut self, req: ReqKey, side: usize, key: Key, located: Located) {
        let mask = self.map.mask(located.slot);
        self.read_block(CacheRun::one(Reader::Merge { req, side }, key, located, mask));
    }

    /// The old content of a block cannot be read. Whether it is read elsewhere.
    pub(super) fn merge_lost(&mut self, req: ReqKey, side: usize, key: Key, lost: Lost) -> bool {
        match lost {
            Lost::Bad { dirty: true } => self.reqs.fail(req, IoError::Io),
            Lost::Bad { dirty: false } | Lost::Gone => {}
            Lost::Moved(now) => {
                self.merge_read(req, side, key, now);
                return true;
            }
        }
        false
    }

    /// Goes on with a write into the cache (or hands a write to the origin on).
    pub(crate) fn write_step(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        if !req.cached {
            return self.origin_write_step(name);
        }
        if req.error.is_some() {
            // Some blocks may be in the log already: they may hold the new data, as after any
            // failed write.
            if req.waits_for() != Wait::Room {
                self.write_failed(name);
            }
            return;
        }
        let total = req.last - req.first + 1;
        if req.written < total {
            if req.waits_for() != Wait::Room {
                self.stall(name);
            }
            return;
        }
        if req.fua && !self.is(Mutant::FuaIgnored) {
            return self.flush_wait(name, req.written_dseq, Written::NONE, false);
        }
        self.reply(name);
    }

    /// Appends what is left of a write. Whether all of it found room.
    pub(crate) fn append_blocks(&mut self, name: ReqKey) -> bool {
        // Reads that began while the write waited have taken the old places.
        self.overtake(name);
        loop {
            let req = self.reqs.get(name);
            let key = req.first + req.written;
            if key > req.last {
                break;
            }
            let id = req.volume;
            let slot = self.append_block(name, key, id);
            if slot.is_none() {
                return false;
            }
            if !self.is(Mutant::WriteKeepsRam) {
                self.map.ram_drop(key);
            }
            self.join_record(name);
            self.volumes.block_written(id);
        }
        let written_dseq = self.log.dseq_gathered();
        let early = self.is(Mutant::AckBeforeWrite);
        self.reqs.appended(name, written_dseq);
        if early && self.reqs.get(name).pending > 0 {
            self.leave_records(name);
        }
        true
    }

    /// Appends one block of a write. A whole one goes from the request's buffer straight into the
    /// record.
    fn append_block(&mut self, name: ReqKey, key: Key, id: VolumeId) -> Option<Slot> {
        let base = self.vol(id).base();
        let req = self.reqs.get(name);
        let kind = EntryKind::Dirty;
        if req.kind == RequestKind::Write && req.mask_of(key, base) == MASK_FULL {
            let (part, at) = req.part_of(key, base);
            let buf = self.reqs.lend(name);
            let block = &buf.bytes()[at..at + part.len()];
            let slot = self.append(Point::Dirty, key, block, kind, MASK_FULL, Purpose::Client);
            self.reqs.give_back(name, buf);
            return slot;
        }
        let (block, mask) = self.compose(name, key, id);
        let slot = self.append(Point::Dirty, key, block.bytes(), kind, mask, Purpose::Client);
        self.io.give(block);
        slot
    }

    /// A planted bug answers a write without waiting for its records.
    fn leave_records(&mut self, name: ReqKey) {
        self.log.leave(name);
        self.reqs.leaves_parts(name);
        self.reply(name);
    }

    /// The write waits for the record that its newest block is in.
    fn join_record(&mut self, name: ReqKey) {
        let joins = self.log.join(name);
        self.reqs.appends(name, joins);
    }

    /// What block `key` is after the write, and which of its sectors are valid.
    fn compose(&mut self, name: ReqKey, key: Key, id: VolumeId) -> (Buf, u8) {
        let base = self.vol(id).base();
        let valid = self.valid_mask(id, key);
        let wrong = self.is(Mutant::MergeWrong);
        let other = self.is(Mutant::MergeOtherEnd);
        let mut block = self.io.take(BLOCK_SIZE);
        let req = self.reqs.get(name);
        let (part, at) = req.part_of(key, base);
        let covered = req.mask_of(key, base);
        if covered != MASK_FULL {
            block.bytes_mut().fill(0);
        }
        let side = usize::from(key != req.first);
        let old = match covered == valid {
            true => None,
            false => req.merge[if other { 1 - side } else { side }].as_ref(),
        };
        let mut mask = covered;
        if let Some((old_mask, old)) = old {
            block.bytes_mut().copy_from_slice(old.bytes());
            mask |= old_mask;
        }
        if !(wrong && old.is_some()) {
            match req.kind {
                RequestKind::Write => {
                    let data = &req.buf.bytes()[at..at + part.len()];
                    block.bytes_mut()[part].copy_from_slice(data);
                }
                _ => block.bytes_mut()[part].fill(0),
            }
        }
        // Sectors behind the end of the volume count as valid: they are zeros.
        let whole = mask & valid == valid;
        (block, if whole { MASK_FULL } else { mask })
    }
}
