//! Checkpoint: the index and the segment table written out while the engine goes on.
//!
//! It is fuzzy: an entry is as it was when the scan passed it. What changed since the scan began is
//! in the log behind `seq`, and replaying that on top gives the exact state. Before it counts,
//! everything that it mentions is durable: records and chunks.

use crate::event::Time;
use crate::ids::{Dseq, Key, Seq};
use crate::pool::Source;
use forebay_format::checkpoint::{BlockItem, BucketItem, MaskItem};
use std::collections::BTreeSet;

mod known;
mod write;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Scan,
    Placed,
    Settle,
    Flush,
    Superblock,
}

#[derive(Debug, Default)]
struct Run {
    /// What it will be; its blocks so far.
    new: Source,
    cursor: usize,
    /// The next segment to be opened when it began.
    order: u64,
    buckets: Vec<BucketItem>,
    masks: Vec<MaskItem>,
    blocks: Vec<BlockItem>,
    writes: usize,
    failed: bool,
    phase: Phase,
    end_seq: Seq,
    end_dseq: Dseq,
}

/// The checkpoints of one shard.
#[derive(Debug, Default)]
pub(super) struct Checkpoint {
    run: Option<Run>,
    /// Keys that were placed in the index or moved in it since the scan began.
    placed: BTreeSet<Key>,
    /// Slots written when the last one began.
    slots_at: u64,
    /// Somebody wants one now: reclaim, or the shutdown.
    wanted: bool,
    /// When the last one failed or ended.
    tried_at: Time,
    /// Writes that have failed since the last that counted.
    failures: u32,
    /// The checkpoint that this start has read, until its own counts: the superblock names another
    /// one where the newest is damaged.
    pub(super) base: Option<Source>,
    /// How many have counted since the start.
    counted: u64,
    /// What the last of them has made durable of the log.
    durable: Dseq,
    /// Bytes written for them, and for superblocks.
    pub(super) bytes: u64,
}
