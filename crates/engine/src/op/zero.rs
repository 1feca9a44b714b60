//! Discard and write-zeroes that are not written as data: the origin does them.
//!
//! The cached clean blocks of the range end first, durably: then nothing old can come back. One
//! intent marks all of it: the zeros may be filled, and a power cut take them back. Dirty blocks
//! end last: their version is forgotten only when the zeros that replace it are durable at the
//! origin (I4).

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Dseq, Key};
use crate::op::Op;
use crate::requests::{ReqKey, Wait};
use forebay_format::BLOCK_SIZE;

impl Engine {
    pub(crate) fn zero_begin(&mut self, name: ReqKey) {
        if self.reqs.get(name).cached {
            return self.write_begin(name);
        }
        let base = self.vol(self.reqs.get(name).volume).base();
        if self.reqs.get(name).kind == RequestKind::Discard && !self.shrink(name, base) {
            return self.reply(name); // Less than one block: nothing to give back.
        }
        let req = self.reqs.get(name);
        let (first, last, id) = (req.first, req.last, req.volume);
        let mut cut_dirty =
            self.cut_blocks(name).into_iter().flatten().filter(|&k| self.map.has_dirty(k));
        let stays = cut_dirty.clone().any(|key| self.rests(key, key));
        let cut = cut_dirty.next().is_some();
        if self.stuck_in_log(req) || stays {
            self.reqs.fail(name, IoError::Io);
            return self.reply(name);
        }
        let cut = cut && !self.is(Mutant::ZeroCutsDirty);
        if cut || self.writeback.home(id).covers(first, last) {
            // A dirty block of which only part is zeroed goes home first.
            self.writeback.hurry(id, cut);
            return self.reqs.wait(name, Wait::Slice);
        }
        if !self.room_for_entries() {
            return self.reqs.wait(name, Wait::Entries);
        }
        self.overtake(name);
        self.reqs.zeroes(name);
        match self.is(Mutant::ZeroKeepsCached) {
            true => self.zero_ready(name),
            false => self.end_clean(name),
        }
    }

    /// No clean block of the range is cached any more: once the log says so durably, the origin is
    /// zeroed.
    pub(crate) fn zero_ready(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        self.mark_range(req.volume, req.first, req.last);
        let need = self.log.dseq_gathered();
        self.reqs.wait(name, Wait::Intent(need));
        self.want_durable(need);
    }

    /// Cuts a discard down to whole blocks. Whether any is left.
    fn shrink(&mut self, name: ReqKey, base: Key) -> bool {
        let block = BLOCK_SIZE as u64;
        let req = self.reqs.get(name);
        let volume_bytes = self.vol(req.volume).bytes();
        let from = req.offset.next_multiple_of(block);
        let end = req.offset + req.len;
        let to = if end == volume_bytes { end } else { end / block * block };
        if from >= to {
            return false;
        }
        // The blocks held stay as they were: a little more than needed.
        let span = (base + from / block, base + (to - 1) / block);
        self.reqs.shrink(name, from, to - from, span);
        true
    }

    /// First and last block of the request, where it covers them only in part.
    fn cut_blocks(&self, name: ReqKey) -> [Option<Key>; 2] {
        let req = self.reqs.get(name);
        let volume = self.vol(req.volume);
        let head = !req.offset.is_multiple_of(BLOCK_SIZE as u64);
        let end = req.offset + req.len;
        let tail = !end.is_multiple_of(BLOCK_SIZE as u64) && end != volume.bytes();
        [head.then_some(req.first), tail.then_some(req.last)]
    }

    pub(crate) fn zero_issue(&mut self, name: ReqKey) {
        if self.stuck_in_log(self.reqs.get(name)) {
            self.reqs.fail(name, IoError::Io);
            return self.reply(name);
        }
        self.reqs.wait(name, Wait::Parts);
        let unmap = match self.reqs.starts(name).kind {
            RequestKind::Discard => true,
            RequestKind::WriteZeroes { unmap } => unmap,
            _ => unreachable!("only these are zeroed"),
        };
        self.zero_send(name, unmap);
    }

    fn zero_send(&mut self, name: ReqKey, unmap: bool) {
        let now = self.io.now();
        let req = self.reqs.get(name);
        let (offset, len, id) = (req.offset, req.len, req.volume);
        self.volumes.origin_write_begins(id, 0, now);
        let op = self.io.op(Op::Zero { req: name });
        self.io.put(Effect::Zero { op, target: Target::Origin(id), offset, len, unmap });
    }

    pub(crate) fn zero_done(&mut self, name: ReqKey, result: Result<(), IoError>) {
        let req = self.reqs.get(name);
        let id = req.volume;
        match (result, req.kind) {
            (Ok(()), _) => self.reqs.zeroed(name),
            (Err(IoError::Unsupported), RequestKind::Discard) => {}
            (Err(IoError::Unsupported), RequestKind::WriteZeroes { unmap: true }) => {
                self.reqs.keeps_space(name);
                return self.zero_send(name, false);
            }
            (Err(_), _) => self.reqs.fail(name, IoError::Io),
        }
        self.origin_written(id, true);
        self.part_done(name);
    }

    /// The origin holds the zeros. Dirty blocks of the range wait for its FLUSH.
    pub(crate) fn zero_step(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        if req.cached {
            return self.write_step(name);
        }
        let done = req.zeroed && req.error.is_none();
        if done && self.touches_dirty(req) && !self.log.is_dead() {
            let written = self.vol(req.volume).flush().client_written();
            if self.is(Mutant::ZeroForgetsEarly) {
                return self.zero_flushed(name);
            }
            return self.flush_wait(name, Dseq::NONE, written, true);
        }
        self.zero_end(name);
    }

    /// The zeros are durable at the origin: the dirty versions may end. Many requests may come here
    /// at once, and none asks for room.
    pub(crate) fn zero_flushed(&mut self, name: ReqKey) {
        self.reqs.wait(name, Wait::Ends);
        self.end_zeroed(name);
    }

    pub(crate) fn zero_end(&mut self, name: ReqKey) {
        self.hold_for_log(name);
    }
}
