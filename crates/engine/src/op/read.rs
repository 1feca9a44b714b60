//! Read: each block from RAM, from a record in memory, from its slot (verified), or from the
//! origin.
//!
//! The places are taken from the index when the read begins.

use crate::Mutant;
use crate::buf::Buf;
use crate::engine::Engine;
use crate::event::*;
use crate::index::{Key, Located, Slot};
use crate::limits::CACHE_READ_TRIES;
use crate::op::Op;
use crate::op::originread::OriginRun;
use crate::requests::ReqKey;
use forebay_format::{BLOCK_SIZE, MASK_FULL, checksum};

/// Blocks being read from consecutive slots.
#[derive(Debug)]
pub struct CacheRun {
    /// The request.
    pub req: ReqKey,
    /// First block.
    pub key: Key,
    /// First slot.
    pub slot: Slot,
    /// Valid sectors of the block (a run of several blocks has only whole ones).
    pub mask: u8,
    /// Checksum of the first block.
    pub crc: u32,
    /// Checksums of the others.
    pub crcs: Vec<u32>,
    /// The buffer is the request's own.
    pub direct: bool,
    /// Tries that failed.
    pub tries: u8,
}

impl CacheRun {
    pub(crate) fn one(req: ReqKey, key: Key, located: Located, mask: u8) -> CacheRun {
        CacheRun {
            req,
            key,
            slot: located.slot,
            mask,
            crc: located.crc,
            crcs: Vec::new(),
            direct: false,
            tries: 0,
        }
    }

    fn blocks(&self) -> u64 {
        1 + self.crcs.len() as u64
    }

    /// Whether block `n` of the run is what it should be.
    pub(crate) fn verified(&self, n: usize, block: &[u8]) -> bool {
        let crc = if n == 0 { self.crc } else { self.crcs[n - 1] };
        checksum(block) == crc
    }
}

impl Engine {
    pub(crate) fn read_begin(&mut self, name: ReqKey) {
        let req = self.req(name);
        let (first, last) = (req.first, req.last);
        req.pending = 1; // Held until all parts are started.
        let mut cached: Option<CacheRun> = None;
        let mut origin: Option<(Key, u64)> = None;
        for key in first..=last {
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
            self.read_cache(run);
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
                self.read_cache(run);
            }
            return None;
        };
        let mask = self.map.mask(located.slot);
        if let Some(mut run) = run {
            let next = u64::from(run.slot) + run.blocks() == u64::from(located.slot);
            let segments = [run.slot, located.slot].map(|slot| self.segments.segment_of(slot));
            let same = segments[0] == segments[1];
            let whole = mask == MASK_FULL && run.mask == MASK_FULL;
            if next && same && whole && run.key + run.blocks() == key {
                run.crcs.push(located.crc);
                return Some(run);
            }
            self.read_cache(run);
        }
        if self.log.sent_with_in(self.segments.unit_at(located.slot).inflight, located.slot) {
            self.req(name).pending += 1;
            self.req(name).hits += 1;
            self.read_sent(CacheRun::one(name, key, located, mask));
            return None;
        }
        Some(CacheRun::one(name, key, located, mask))
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
        let (part, at) = req.part_of(key, volume.base);
        if let Some(block) = self.ram.get(key) {
            if req.kind == RequestKind::Read {
                req.buf.bytes_mut()[at..at + part.len()].copy_from_slice(&block[part.clone()]);
            }
            req.hits += 1;
            volume.stats.read_bytes_ram += part.len() as u64;
            return true;
        }
        let Some(located) = located else { return false };
        if self.log.gather.iter().all(|g| g.is_none()) {
            return false;
        }
        let Some(block) = self.gathered(located.slot) else { return false };
        let copy = Buf::copy_of(block);
        let mask = self.map.mask(located.slot);
        let run = CacheRun::one(name, key, located, mask);
        self.req(name).pending += 1;
        self.read_bytes(run, copy.bytes());
        self.pool.give(copy);
        true
    }

    /// Starts to read a run from its cache device.
    fn read_cache(&mut self, mut run: CacheRun) {
        let len = run.blocks() as usize * BLOCK_SIZE;
        let req = self.req(run.req);
        req.pending += 1;
        req.hits += run.blocks() as u32;
        let aligned = req.offset.is_multiple_of(BLOCK_SIZE as u64) && req.buf.len() == len;
        run.direct = aligned && run.mask == MASK_FULL;
        let buf = match run.direct {
            true => std::mem::take(&mut req.buf),
            false => self.pool.take(len),
        };
        self.touch(run.slot, run.blocks());
        self.read_cache_again(run, buf);
    }

    pub(crate) fn read_cache_again(&mut self, run: CacheRun, buf: Buf) {
        self.segments.pin(run.slot);
        self.read_slot_into(run.slot, run.tries, buf, Op::ReadCache(run));
    }

    pub(crate) fn read_cache_done(
        &mut self,
        run: CacheRun,
        result: Result<(), IoError>,
        mut buf: Buf,
    ) {
        self.segments.unpin(run.slot);
        let ignored = self.is(Mutant::ChecksumIgnored);
        let good = result.is_ok()
            && buf
                .bytes()
                .chunks_exact(BLOCK_SIZE)
                .enumerate()
                .all(|(n, block)| ignored || run.verified(n, block));
        let unverified = self.is(Mutant::MirrorUnverified) && run.tries % 2 == 1;
        let good = good || (result.is_ok() && unverified);
        if good && run.mask == MASK_FULL {
            return self.read_run_good(run, buf);
        }
        if good {
            let block = std::mem::take(&mut buf);
            self.read_bytes(run, block.bytes());
            return self.pool.give(block);
        }
        if run.blocks() > 1 {
            return self.read_singly(run, buf);
        }
        if run.tries + 1 < CACHE_READ_TRIES {
            return self.read_cache_again(CacheRun { tries: run.tries + 1, ..run }, buf);
        }
        self.read_unreadable(run, buf);
    }

    fn read_run_good(&mut self, run: CacheRun, buf: Buf) {
        let name = run.req;
        let req = self.reqs.get_mut(name);
        let volume = self.volumes.get_mut(req.volume).expect("in use");
        volume.stats.read_bytes_cache += buf.len() as u64;
        let keep = !req.overtaken() && self.ram.blocks_max() > 0;
        for (key, block) in (run.key..).zip(buf.bytes().chunks_exact(BLOCK_SIZE)) {
            if keep {
                self.ram.insert_hit(key, block);
            }
            if !run.direct && req.kind == RequestKind::Read {
                let (part, at) = req.part_of(key, volume.base);
                req.buf.bytes_mut()[at..at + part.len()].copy_from_slice(&block[part]);
            }
        }
        if run.direct {
            req.buf = buf;
        } else {
            self.pool.give(buf);
        }
        self.part_done(name);
    }

    /// Something in a run is wrong: each block for itself.
    fn read_singly(&mut self, run: CacheRun, buf: Buf) {
        let crcs = std::iter::once(run.crc).chain(run.crcs.iter().copied());
        let ones: Vec<CacheRun> = crcs
            .zip(0..)
            .map(|(crc, n)| {
                let located = Located { slot: run.slot + n, crc };
                CacheRun {
                    tries: 1,
                    ..CacheRun::one(run.req, run.key + u64::from(n), located, MASK_FULL)
                }
            })
            .collect();
        let req = self.req(run.req);
        req.pending += ones.len() as u32 - 1;
        if run.direct {
            req.buf = buf;
        } else {
            self.pool.give(buf);
        }
        for one in ones {
            let buf = self.pool.take(BLOCK_SIZE);
            self.read_cache_again(one, buf);
        }
    }

    /// No copy of a block in the cache can be read. I: a bad clean block is read from the origin, a
    /// bad dirty one is answered with an error, never with old bytes (contract point 3).
    pub(crate) fn read_unreadable(&mut self, run: CacheRun, buf: Buf) {
        if run.direct {
            self.req(run.req).buf = buf;
        } else {
            self.pool.give(buf);
        }
        let req = run.req;
        match self.map.get(run.key) {
            Some(now) if now.slot == run.slot => {
                let dirty = self.map.is_dirty(now.slot) && !self.is(Mutant::StaleOnBadDirty);
                self.count_bad(run.key, dirty);
                if dirty {
                    self.req(req).fail(IoError::Io);
                    return self.part_done(req);
                }
                if !self.map.is_dirty(now.slot) {
                    self.ram.remove(run.key);
                    self.drop_clean(run.key);
                }
                self.read_origin(req, run.key, 1);
            }
            Some(now) => {
                // It has moved, or is newer: both are right answers.
                if self.read_untold(req, run.key, now) {
                    return;
                }
                let mask = self.map.mask(now.slot);
                let next = CacheRun::one(req, run.key, now, mask);
                if let Some(block) = self.gathered(now.slot) {
                    let copy = Buf::copy_of(block);
                    self.read_bytes(next, copy.bytes());
                    return self.pool.give(copy);
                }
                if self.log.sent_with(now.slot).is_some() {
                    return self.read_sent(next);
                }
                let buf = self.pool.take(BLOCK_SIZE);
                return self.read_cache_again(next, buf);
            }
            None => self.read_origin(req, run.key, 1),
        }
        self.part_done(req);
    }

    pub(crate) fn count_bad(&mut self, key: Key, lost: bool) {
        let (id, base) = self.volume_of(key).map(|v| (v.id, v.base)).expect("keys are of volumes");
        let stats = &mut self.vol_mut(id).stats;
        stats.bad_blocks += 1;
        stats.lost_blocks += u64::from(lost);
        self.out.push(Effect::Notice(Notice::BadBlock { volume: id, block: key - base, lost }));
    }

    /// One cached block of a read is here. What its mask leaves out is asked from the origin.
    pub(crate) fn read_bytes(&mut self, run: CacheRun, block: &[u8]) {
        let name = run.req;
        let req = self.reqs.get_mut(name);
        let volume = self.volumes.get_mut(req.volume).expect("in use");
        if req.kind == RequestKind::Prefetch {
            return self.part_done(name);
        }
        let wanted = req.mask_of(run.key, volume.base);
        let whole = run.mask == MASK_FULL || self.is(Mutant::MaskIgnored);
        let req = self.reqs.get_mut(name);
        let volume = self.volumes.get_mut(req.volume).expect("in use");
        if whole || wanted & !run.mask == 0 {
            let (part, at) = req.part_of(run.key, volume.base);
            volume.stats.read_bytes_cache += part.len() as u64;
            req.buf.bytes_mut()[at..at + part.len()].copy_from_slice(&block[part]);
            return self.part_done(name);
        }
        let overlay = Buf::copy_of(block);
        self.read_origin_run(OriginRun {
            req: name,
            key: run.key,
            blocks: 1,
            direct: false,
            overlay: Some((run.mask, overlay)),
        });
        self.part_done(name);
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
