//! Operations: each in its own file, each a few steps with one named wait between two steps.

mod begin;
pub mod cached;
pub mod command;
pub mod copies;
pub mod flush;
pub mod originread;
pub mod originwrite;
pub mod read;
pub mod run;
pub mod sync;
mod versions;
pub mod write;
pub mod zero;

use crate::event::{DeviceId, VolumeId};
use crate::ids::{SegmentId, Seq, UnitId};
use crate::op::run::{CacheRun, OriginRun};
use crate::recovery::{RecoverRead, Repair};
use crate::requests::ReqKey;

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
    Cached(CacheRun),
    /// A cached block waits for its record to be written.
    ReadSent(CacheRun),
    /// Blocks are being read from the origin for a request.
    ReadOrigin(OriginRun),
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
    /// A device that is to be taken in is made blank: zeros over its superblocks, then a FLUSH.
    Blank {
        /// The device.
        device: DeviceId,
        /// The FLUSH.
        flush: bool,
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
