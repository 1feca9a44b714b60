//! Where operations begin and go on: a request that nobody holds up any more, or one of whose parts
//! has ended, and an I/O that has.

use crate::engine::Engine;
use crate::event::*;
use crate::op::Op;
use crate::requests::ReqKey;
use crate::requests::overlap::Access;

/// Zeroes up to this many bytes are written as data; more are zeroed at the origin.
const ZERO_AS_DATA_MAX: u64 = 1 << 20;

impl Engine {
    /// Starts a request that recovery does not hold up: it begins now or behind those that it
    /// overlaps.
    pub(crate) fn accept(&mut self, name: ReqKey) {
        let now = self.io.now();
        let bytes_min = self.tuning().sequential_bytes;
        let req = self.reqs.get(name);
        let (kind, len) = (req.kind, req.len);
        if self.volumes.request_begins(req, now, bytes_min) {
            self.reqs.is_of_stream(name);
        }
        if kind == RequestKind::Flush {
            return self.flush_begin(name);
        }
        if len == 0 {
            return self.reply(name);
        }
        let access = self.access_of(name);
        if access == Access::CacheWrite {
            self.mark_cached(name);
        }
        if self.reqs.acquire(name, access) {
            self.begin(name);
        }
    }

    /// What a request does to its blocks.
    fn access_of(&mut self, name: ReqKey) -> Access {
        if self.is(crate::Mutant::OverlapIgnored) {
            return Access::Read;
        }
        let req = self.reqs.get(name);
        match req.kind {
            RequestKind::Read | RequestKind::Prefetch => Access::Read,
            RequestKind::Write if self.writes_into_cache(req) => Access::CacheWrite,
            RequestKind::WriteZeroes { .. }
                if req.len <= ZERO_AS_DATA_MAX && self.writes_into_cache(req) =>
            {
                Access::CacheWrite
            }
            _ => Access::OriginWrite,
        }
    }

    /// A request that holds its blocks begins.
    pub(crate) fn begin(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        let (kind, first, last) = (req.kind, req.first, req.last);
        match kind {
            RequestKind::Read | RequestKind::Prefetch
                if self.pool.may_come_back(first..=last, self.io.now()) =>
            {
                self.reqs.fail(name, IoError::Io);
                self.reply(name);
            }
            RequestKind::Read | RequestKind::Prefetch => self.read_begin(name),
            RequestKind::Write => self.write_begin(name),
            RequestKind::Discard | RequestKind::WriteZeroes { .. } => self.zero_begin(name),
            RequestKind::Flush => unreachable!("a flush holds no blocks"),
        }
    }

    /// One of the things that a request waited for has ended; what comes next depends on its kind.
    pub(crate) fn part_done(&mut self, name: ReqKey) {
        let Some(kind) = self.reqs.part_ended(name) else { return };
        match kind {
            RequestKind::Read | RequestKind::Prefetch => self.read_end(name),
            RequestKind::Write => self.write_step(name),
            RequestKind::Discard | RequestKind::WriteZeroes { .. } => self.zero_step(name),
            RequestKind::Flush => unreachable!("a flush has no parts"),
        }
    }

    pub(crate) fn op_done(&mut self, op: Op, end: Completion) {
        let result = end.result;
        match op {
            Op::Record { seq, segment, tries } => self.record_done(seq, segment, tries, end),
            Op::DeviceFlush { device } => self.device_flushed(device, result),
            Op::OriginFlush { volume } => self.origin_flush_done(volume, result),
            Op::Cached(run) => self.cached_done(run, end),
            Op::ReadSent(_) => unreachable!("not a device's"),
            Op::ReadOrigin(run) => self.read_origin_done(run, result, end.buf),
            Op::OriginWrite { req } => self.origin_write_done(req, result, end.buf),
            Op::Zero { req } => self.zero_done(req, result),
            Op::Victim { unit, segment, at, tries } => {
                self.victim_read_done(unit, segment, at, tries, end)
            }
            Op::Discard { device } => self.discard_done(device, result),
            Op::HomeWrite { volume, run } => self.home_write_done(volume, run, end),
            Op::Checkpoint { device } => self.checkpoint_done(device, end),
            Op::Superblock { device } => self.superblock_written(device, end),
            Op::Blank { device, flush } => self.blanked(device, flush, end),
            Op::Recover(read) => {
                self.recovering(|opening, engine| opening.recover_read_done(engine, read, end));
            }
            Op::Repair(repair) => self.repair_done(repair, end),
            Op::RecoverFlush { volume, tries } => self.recover_flush_done(volume, tries, result),
            Op::Distrust => self.distrust_done(result),
        }
    }
}
