//! Operations: each in its own file, each a few steps with one named wait between two steps.

pub mod cached;
pub mod command;
pub mod copies;
pub mod flush;
pub mod originread;
pub mod originwrite;
pub mod read;
pub mod sync;
mod versions;
pub mod write;
pub mod zero;

use crate::engine::Engine;
use crate::event::*;
use crate::ids::{SegmentId, Seq, UnitId};
use crate::recovery::{RecoverRead, Repair};
use crate::requests::overlap::Access;
use crate::requests::{Req, ReqKey};

/// An I/O under way.
#[derive(Debug)]
pub enum Op {
    /// One copy of a record is being written.
    Record {
        /// The record.
        seq: Seq,
        /// The segment that this copy goes to.
        segment: SegmentId,
        /// Tries that failed.
        tries: u8,
    },
    /// A cache device is being flushed.
    DeviceFlush {
        /// The device.
        device: DeviceId,
    },
    /// An origin is being flushed.
    OriginFlush {
        /// Its volume.
        volume: VolumeId,
    },
    /// Cached blocks are being read.
    Cached(cached::CacheRun),
    /// A cached block waits for its record to be written.
    ReadSent(cached::CacheRun),
    /// Blocks are being read from the origin for a request.
    ReadOrigin(originread::OriginRun),
    /// A write to the origin.
    OriginWrite {
        /// The request.
        req: ReqKey,
    },
    /// The origin is being zeroed.
    Zero {
        /// The request.
        req: ReqKey,
    },
    /// Records of a victim are being read.
    Victim {
        /// The victim.
        unit: UnitId,
        /// The segment of it, and the block in that.
        segment: SegmentId,
        /// The block in the segment.
        at: u32,
        /// Tries that failed.
        tries: u8,
    },
    /// A device is told that a unit is free.
    Discard {
        /// The device.
        device: DeviceId,
    },
    /// Dirty blocks are being written home.
    HomeWrite {
        /// Whose slice.
        volume: VolumeId,
        /// Index of the run in the slice.
        run: usize,
    },
    /// Part of a checkpoint is being written.
    Checkpoint {
        /// The device.
        device: DeviceId,
    },
    /// A superblock copy is being written.
    Superblock {
        /// The device.
        device: DeviceId,
    },
    /// Recovery reads.
    Recover(RecoverRead),
    /// Recovery reads the good copy of a record, or writes the other one.
    Repair(Repair),
    /// Recovery flushes an origin.
    RecoverFlush {
        /// Its volume.
        volume: VolumeId,
        /// Tries that failed.
        tries: u8,
    },
    /// The executor writes down that our clean content must not be used.
    Distrust,
}

impl Engine {
    pub(crate) fn req(&mut self, name: ReqKey) -> &mut Req {
        self.reqs.get_mut(name)
    }

    /// Starts a request that recovery does not hold up: it begins now or behind those that it
    /// overlaps.
    pub(crate) fn accept(&mut self, name: ReqKey) {
        let now = self.io.now();
        let bytes_min = self.tuning().sequential_bytes;
        let req = self.reqs.get_mut(name);
        let (kind, offset, len) = (req.kind, req.offset, req.len);
        let volume = self.volumes.get_mut(req.volume).expect("checked");
        match kind {
            RequestKind::Flush => {
                volume.stats.flushes += 1;
                return self.flush_begin(name);
            }
            RequestKind::Read => {
                volume.stats.reads += 1;
                volume.stats.read_bytes += len;
            }
            RequestKind::Write => {
                volume.stats.writes += 1;
                volume.stats.write_bytes += len;
                volume.traffic.wrote(now);
            }
            RequestKind::Discard | RequestKind::WriteZeroes { .. } => {
                volume.stats.discards += 1;
                volume.stats.discard_bytes += len;
                volume.traffic.wrote(now);
            }
            RequestKind::Prefetch => {}
        }
        if matches!(kind, RequestKind::Read | RequestKind::Write) && len > 0 {
            req.sequential = volume.streams.goes_on(offset, len, bytes_min);
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
                if req.len <= write::ZERO_AS_DATA_MAX && self.writes_into_cache(req) =>
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
                self.req(name).fail(IoError::Io);
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
        let req = self.req(name);
        req.pending -= 1;
        if req.pending > 0 {
            return;
        }
        match req.kind {
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
            Op::Recover(read) => {
                self.recovering(|opening, engine| opening.recover_read_done(engine, read, end));
            }
            Op::Repair(repair) => self.repair_done(repair, end),
            Op::RecoverFlush { volume, tries } => self.recover_flush_done(volume, tries, result),
            Op::Distrust => self.distrust_done(result),
        }
    }
}
