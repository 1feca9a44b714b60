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
        let req = self.req(name);
        let (first, last) = (req.first, req.last);
        req.pending = 1; // Held until all parts are started.
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
            self.req(name).pending += 1;
            self.req(name).hits += 1;
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
            let req = self.req(name);
            req.pending += 1;
            req.hits += 1;
            return true;
        }
        let req = self.reqs.get_mut(name);
        let volume = self.volumes.get_mut(req.volume).expect("in use");
        let (part, at) = req.part_of(key, volume.base());
        if let Some(block) = self.map.ram_get(key) {
            if req.kind == RequestKind::Read {
                req.buf.bytes_mut()[at..at + part.len()].copy_from_slice(&block[part.clone()]);
            }
            req.hits += 1;
            volume.stats.read_bytes_ram += part.len() as u64;
            return true;
        }
        let Some(located) = located else { return false };
        let Some(block) = self.log.gathered(located.slot) else { return false };
        let copy = Buf::copy_of(block);
        let mask = self.map.mask(located.slot);
        let by = Reader::Request { req: name, direct: false };
        self.req(name).pending += 1;
        self.cached_here(CacheRun::one(by, key, located, mask), copy.bytes());
        self.io.give(copy);
        true
    }

    /// Starts to read a run from its cache device.
    fn read_cache(&mut self, name: ReqKey, mut run: CacheRun) {
        let len = run.blocks() as usize * BLOCK_SIZE;
        let req = self.req(name);
        req.pending += 1;
        req.hits += run.blocks() as u32;
        let aligned = req.offset.is_multiple_of(BLOCK_SIZE as u64) && req.buf.len() == len;
        let direct = aligned && run.mask == MASK_FULL;
        run.by = Reader::Request { req: name, direct };
        let buf = match direct {
            true => std::mem::take(&mut req.buf),
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
        let req = self.reqs.get_mut(name);
        let volume = self.volumes.get_mut(req.volume).expect("in use");
        volume.stats.read_bytes_cache += (buf.len() - bad.len() * BLOCK_SIZE) as u64;
        let keep = !req.overtaken() && self.map.ram_blocks().1 > 0;
        let copy = !direct && req.kind == RequestKind::Read;
        for (n, block) in buf.bytes().chunks_exact(BLOCK_SIZE).enumerate() {
            if bad.contains(&n) {
                continue;
            }
            let key = run.key + n as u64;
            if keep {
                self.map.ram_hit(key, block);
            }
            if copy {
                let (part, at) = req.part_of(key, volume.base());
                req.buf.bytes_mut()[at..at + part.len()].copy_from_slice(&block[part]);
            }
        }
        match direct {
            true => req.buf = buf,
            false => self.io.give(buf),
        }
    }

    /// No copy of a block can be read. I: a bad clean block is read from the origin, a bad dirty
    /// one is answered with an error, never with old bytes (contract point 3). Whether the read
    /// goes on elsewhere in the cache.
    pub(super) fn read_lost(&mut self, name: ReqKey, key: Key, lost: Lost) -> bool {
        match lost {
            Lost::Bad { dirty: true } => self.req(name).fail(IoError::Io),
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
        let req = self.reqs.get_mut(name);
        let volume = self.volumes.get_mut(req.volume).expect("in use");
        if req.kind == RequestKind::Prefetch {
            return;
        }
        let wanted = req.mask_of(run.key, volume.base());
        if ignored || wanted & !run.mask == 0 {
            let (part, at) = req.part_of(run.key, volume.base());
            volume.stats.read_bytes_cache += part.len() as u64;
            req.buf.bytes_mut()[at..at + part.len()].copy_from_slice(&block[part]);
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
            let stats = &mut self.vol_mut(id).stats;
            match (hits, misses) {
                (_, 0) => stats.read_hits_full += 1,
                (0, _) => stats.read_misses += 1,
                _ => stats.read_hits_partial += 1,
            }
        }
        self.reply(name);
    }
}
