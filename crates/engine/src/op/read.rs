//! Read: each block from RAM, from a record in memory, from its slot (verified), or from the
//! origin.
//!
//! The places are taken from the index when the read begins.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::Key;
use crate::index::Located;
use crate::op::run::{CacheRun, Lost, OriginRun, Reader};
use crate::requests::ReqKey;
use forebay_format::io::Buf;
use forebay_format::{BLOCK_SIZE, MASK_FULL};

impl Engine {
    pub(crate) fn read_begin(&mut self, name: ReqKey) {
        let req = self.reqs.starts(name);
        let (first, last) = (req.first, req.last);
        let mut cached: Option<CacheRun> = None;
        let mut origin: Option<(Key, u64)> = None;
        for key in first.to(last) {
            let located = self.locate(key);
            let here = self.read_from_memory(name, key, located);
            let run = (!here).then_some(located).flatten();
            let missing = !here && located.is_none();
            if !missing && let Some((from, blocks)) = origin.take() {
                self.read_missing(name, from, blocks);
            }
            cached = self.extend_run(name, cached, key, run);
            if missing {
                origin = Some(origin.map_or((key, 1), |(from, blocks)| (from, blocks + 1)));
            }
        }
        if let Some((from, blocks)) = origin {
            self.read_missing(name, from, blocks);
        }
        if let Some(run) = cached {
            self.read_cache(name, run);
        }
        self.part_done(name);
    }

    /// Adds a cached block to the run gathered so far, or starts the run and gathers a new one.
    fn extend_run(
        &mut self,
        name: ReqKey,
        run: Option<CacheRun>,
        key: Key,
        located: Option<Located>,
    ) -> Option<CacheRun> {
        let Some(located) = located else {
            if let Some(run) = run {
                self.read_cache(name, run);
            }
            return None;
        };
        let mask = self.map.mask(located.slot);
        let by = Reader::Request { req: name, direct: false };
        if let Some(mut run) = run {
            let next = run.slot.behind(run.blocks() as u32) == located.slot;
            let segments = [run.slot, located.slot].map(|slot| self.segments.segment_of(slot));
            let same = segments[0] == segments[1];
            let whole = mask == MASK_FULL && run.mask == MASK_FULL;
            if next && same && whole && run.key + run.blocks() == key {
                run.crcs.push(located.crc);
                return Some(run);
            }
            self.read_cache(name, run);
        }
        if self.log.sent_with_in(self.segments.unit_at(located.slot).inflight, located.slot) {
            self.reqs.hits(name, 1);
            self.read_sent(CacheRun::one(by, key, located, mask));
            return None;
        }
        Some(CacheRun::one(by, key, located, mask))
    }

    /// Serves a block that is in RAM or in a record being gathered.
    fn read_from_memory(&mut self, name: ReqKey, key: Key, located: Option<Located>) -> bool {
        if let Some(located) = located
            && self.read_untold(name, key, located)
        {
            self.reqs.hits(name, 1);
            return true;
        }
        if let Some(block) = self.map.ram_get(key) {
            let id = self.reqs.get(name).volume;
            let base = self.volumes.get(id).expect("in use").base();
            let bytes = self.reqs.hits_ram(name, key, base, block);
            self.volumes.read_from_ram(id, bytes);
            return true;
        }
        let Some(located) = located else { return false };
        let Some(block) = self.log.gathered(located.slot) else { return false };
        let copy = Buf::copy_of(block);
        let mask = self.map.mask(located.slot);
        let by = Reader::Request { req: name, direct: false };
        self.reqs.waits_for_part(name);
        self.cached_here(CacheRun::one(by, key, located, mask), copy.bytes());
        self.io.give(copy);
        true
    }

    /// Starts to read a run from its cache device.
    fn read_cache(&mut self, name: ReqKey, mut run: CacheRun) {
        let len = run.blocks() as usize * BLOCK_SIZE;
        let req = self.reqs.hits(name, run.blocks());
        let aligned = req.offset.is_multiple_of(BLOCK_SIZE as u64) && req.buf.len() == len;
        let direct = aligned && run.mask == MASK_FULL;
        run.by = Reader::Request { req: name, direct };
        let buf = match direct {
            true => self.reqs.lend(name),
            false => self.io.take(len),
        };
        self.touch(run.slot, run.blocks());
        self.read_cached(run, buf);
    }

    /// Blocks of a read are here, but for the bad ones.
    pub(super) fn read_take(
        &mut self,
        name: ReqKey,
        direct: bool,
        run: &CacheRun,
        buf: Buf,
        bad: &[usize],
    ) {
        if run.mask != MASK_FULL {
            if bad.is_empty() {
                self.read_bytes(name, run, buf.bytes());
            }
            return self.io.give(buf);
        }
        let req = self.reqs.get(name);
        let keep = !req.overtaken() && self.map.ram_blocks().1 > 0;
        let base = self.vol(req.volume).base();
        self.volumes.read_from_cache(req.volume, buf.len() - bad.len() * BLOCK_SIZE);
        for (n, block) in buf.bytes().chunks_exact(BLOCK_SIZE).enumerate() {
            if bad.contains(&n) {
                continue;
            }
            let key = run.key + n as u64;
            if keep {
                self.map.ram_hit(key, block);
            }
            if !direct {
                self.reqs.brings(name, key, base, block);
            }
        }
        match direct {
            true => self.reqs.give_back(name, buf),
            false => self.io.give(buf),
        }
    }

    /// No copy of a block can be read. I: a bad clean block is read from the origin, a bad dirty
    /// one is answered with an error, never with old bytes (contract point 3). Whether the read
    /// goes on elsewhere in the cache.
    pub(super) fn read_lost(&mut self, name: ReqKey, key: Key, lost: Lost) -> bool {
        match lost {
            Lost::Bad { dirty: true } => self.reqs.fail(name, IoError::Io),
            Lost::Bad { dirty: false } | Lost::Gone => self.read_origin(name, key, 1),
            // It has moved, or is newer: both are right answers.
            Lost::Moved(now) => {
                if !self.read_untold(name, key, now) {
                    let by = Reader::Request { req: name, direct: false };
                    let mask = self.map.mask(now.slot);
                    self.read_block(CacheRun::one(by, key, now, mask));
                }
                return true;
            }
        }
        false
    }

    /// One cached block of a read is here. What its mask leaves out is asked from the origin.
    pub(super) fn read_bytes(&mut self, name: ReqKey, run: &CacheRun, block: &[u8]) {
        let ignored = self.is(Mutant::MaskIgnored);
        let req = self.reqs.get(name);
        let (kind, id) = (req.kind, req.volume);
        if kind == RequestKind::Prefetch {
            return;
        }
        let base = self.vol(id).base();
        if ignored || req.mask_of(run.key, base) & !run.mask == 0 {
            let bytes = self.reqs.brings(name, run.key, base, block);
            self.volumes.read_from_cache(id, bytes);
            return;
        }
        let overlay = Some((run.mask, Buf::copy_of(block)));
        let key = run.key;
        self.read_origin_run(OriginRun { req: name, key, blocks: 1, direct: false, overlay });
    }

    /// All parts of a read are here.
    pub(crate) fn read_end(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        let (hits, misses, id) = (req.hits, req.misses, req.volume);
        if req.kind == RequestKind::Read {
            self.volumes.read_ended(id, hits, misses);
        }
        self.reply(name);
    }
}
