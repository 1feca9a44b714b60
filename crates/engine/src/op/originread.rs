//! Reads of the origin, by those whose blocks are not in the cache.
//!
//! Two reads of one block at a time are one read of the origin, and one miss. I7: what it brings
//! enters the cache only if no write has overtaken the read, and serves nobody who came after that
//! write.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::Key;
use crate::log::Point;
use crate::op::Op;
use crate::op::run::OriginRun;
use crate::requests::{Fetch, Joined, ReqKey};
use crate::segment::Purpose;
use forebay_format::io::Buf;
use forebay_format::record::EntryKind;
use forebay_format::stats::Reason;
use forebay_format::{BLOCK_SIZE, MASK_FULL};

impl Engine {
    /// Reads blocks for this request alone.
    pub(crate) fn read_origin(&mut self, name: ReqKey, key: Key, blocks: u64) {
        self.read_origin_run(OriginRun { req: name, key, blocks, direct: false, overlay: None });
    }

    /// Reads blocks that are not in the cache: those that another read brings, together with it.
    /// What is prefetched enters the cache in any case, and is read for itself.
    pub(crate) fn read_missing(&mut self, name: ReqKey, first: Key, blocks: u64) {
        if self.reqs.get(name).kind == RequestKind::Prefetch {
            self.read_origin(name, first, blocks);
            return;
        }
        let end = first + blocks;
        let mut key = first;
        while key < end {
            match self.reqs.fetch(name, key, end - key) {
                Fetch::Joined(blocks) => {
                    self.reqs.misses(name, blocks);
                    key = key + blocks;
                }
                Fetch::Own(blocks) => {
                    self.read_origin(name, key, blocks);
                    key = key + blocks;
                }
            }
        }
    }

    pub(crate) fn read_origin_run(&mut self, mut run: OriginRun) {
        let req = self.reqs.get(run.req);
        let volume = self.vol(req.volume);
        let id = volume.id();
        let offset = (run.key - volume.base()) * BLOCK_SIZE as u64;
        let len = (run.blocks * BLOCK_SIZE as u64).min(volume.bytes() - offset) as usize;
        run.direct = req.kind == RequestKind::Read
            && run.overlay.is_none()
            && req.offset == offset
            && req.buf.len() == len
            && len.is_multiple_of(BLOCK_SIZE);
        self.reqs.misses(run.req, run.blocks);
        let buf = match run.direct {
            true => self.reqs.lend(run.req),
            false => self.io.take(len),
        };
        let op = self.io.op(Op::ReadOrigin(run));
        self.send_or_hold(id, Effect::Read { op, target: Target::Origin(id), offset, buf });
    }

    pub(crate) fn read_origin_done(
        &mut self,
        run: OriginRun,
        result: Result<(), IoError>,
        mut buf: Buf,
    ) {
        let name = run.req;
        // The last block of a volume may be cut short; in the cache it is whole.
        let len = buf.len();
        buf.set_len(run.blocks as usize * BLOCK_SIZE);
        buf.bytes_mut()[len..].fill(0);
        let older = self.is(Mutant::OverlayIgnored);
        if let Some((mask, newer)) = run.overlay.as_ref().filter(|_| !older) {
            for sector in (0..8).filter(|sector| mask >> sector & 1 == 1) {
                let range = sector * 512..(sector + 1) * 512;
                buf.bytes_mut()[range.clone()].copy_from_slice(&newer.bytes()[range]);
            }
        }
        let id = self.reqs.get(name).volume;
        self.origin_read_ended(id);
        match result {
            Err(IoError::Gone) => self.reqs.fail(name, IoError::Gone),
            Err(_) => self.reqs.fail(name, IoError::Io),
            Ok(()) => {
                self.volumes.read_from_origin(id, len);
                if !run.direct {
                    self.origin_brings(name, id, run.key, buf.bytes());
                }
                if run.overlay.is_none() {
                    self.fill(&run, &buf);
                }
            }
        }
        if run.overlay.is_none() {
            for joined in self.reqs.fetched(name, run.key) {
                let from = (joined.key - run.key) as usize * BLOCK_SIZE;
                self.joined_done(joined, result, &buf.bytes()[from..]);
            }
        }
        if let Some((_, overlay)) = run.overlay {
            self.io.give(overlay);
        }
        if run.direct {
            buf.set_len(len);
            self.reqs.give_back(name, buf);
        } else {
            self.io.give(buf);
        }
        self.part_done(name);
    }

    /// The blocks that a request takes of another one's read are here, unless that failed.
    fn joined_done(&mut self, joined: Joined, result: Result<(), IoError>, blocks: &[u8]) {
        let Joined { req: name, key, blocks: count } = joined;
        if result.is_err() {
            self.read_origin(name, key, count);
            return self.part_done(name);
        }
        let id = self.reqs.get(name).volume;
        let bytes = self.origin_brings(name, id, key, &blocks[..count as usize * BLOCK_SIZE]);
        self.volumes.read_from_origin(id, bytes);
        self.part_done(name);
    }

    /// Blocks of a request, from `key` on, are here. How many bytes of them it asked for.
    fn origin_brings(&mut self, name: ReqKey, id: VolumeId, key: Key, blocks: &[u8]) -> usize {
        let base = self.vol(id).base();
        let blocks = key.up_to(Key::MAX).zip(blocks.chunks_exact(BLOCK_SIZE));
        blocks.map(|(key, block)| self.reqs.brings(name, key, base, block)).sum()
    }

    /// Puts what came from the origin into RAM and, if it is admitted, into the cache.
    fn fill(&mut self, run: &OriginRun, buf: &Buf) {
        let req = self.reqs.get(run.req);
        let (prefetch, sequential, id) =
            (req.kind == RequestKind::Prefetch, req.sequential, req.volume);
        let overtaken = req.overtaken() && !self.is(Mutant::StaleFill);
        let plan = self.vol(id).mode().plan();
        let not_now =
            self.vol(id).is_leaving() || self.vol(id).flush().forgets() || self.ends.empties(id);
        for (key, block) in run.key.up_to(Key::MAX).zip(buf.bytes().chunks_exact(BLOCK_SIZE)) {
            let reason = if overtaken {
                Some(Reason::Overtaken)
            } else if !plan.read_fill {
                Some(Reason::Mode)
            } else if not_now {
                Some(Reason::NotReady)
            } else if self.log.is_dead() {
                Some(Reason::DeviceFailed)
            } else if sequential && !prefetch {
                Some(Reason::Sequential)
            } else if self.map.get(key).is_some() {
                None
            } else if self.tuning().admit_second_miss && !prefetch && !self.map.admit_miss(key) {
                Some(Reason::FirstMiss)
            } else if !prefetch && self.log.fills_are_enough() {
                Some(Reason::DeviceBusy)
            } else {
                let (kind, purpose) = (EntryKind::Clean, Purpose::Clean);
                let room = self.append(Point::Fill, key, block, kind, MASK_FULL, purpose);
                room.is_none().then_some(Reason::NoSpace)
            };
            if !overtaken
                && plan.read_fill
                && self.map.get(key).is_none_or(|l| {
                    self.map.mask(l.slot) == MASK_FULL && !self.map.is_dirty(l.slot)
                })
            {
                self.map.ram_put(key, block);
            }
            if let Some(reason) = reason {
                self.volumes.not_cached(id, reason, 1);
            }
        }
    }
}
