//! What recovery reads, and what it writes.

use crate::ids::SegmentId;

/// A read of recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecoverRead {
    /// Blocks of the checkpoint, from this one on.
    Checkpoint(u64),
    /// The first block of a segment.
    Head(SegmentId),
    /// The header of a record in a segment.
    Header(SegmentId, u32),
    /// The payload of the record found with this number.
    Payload(u32),
    /// Blocks of a segment, from this one on.
    Segment(SegmentId, u32),
    /// One block of a segment, after a read of several has failed.
    Block(SegmentId, u32),
}

/// A record of which one copy is missing.
#[derive(Debug, Clone, Copy)]
pub struct Repair {
    pub(super) from: SegmentId,
    pub(super) to: SegmentId,
    pub(super) offset: u32,
    pub(super) blocks: u32,
    /// Reads that failed.
    pub(super) tries: u8,
    pub(super) written: bool,
}
