//! Opening a pool: newest checkpoint, then everything in the log behind it, then a new life of the
//! log. Of the checkpoint the index comes last, when it is known what of it counts.
//!
//! Reads only, until it is certain that the pool can be opened. Before the first request is
//! answered, what recovery decided is in a checkpoint of its own (`epoch.rs`), and log and origins
//! are flushed: a value read after a recovery never reverts (I12).

use crate::event::{Command, CommandId, DeviceId};
use crate::ids::{Dseq, SegmentId, Seq, UnitId};
use crate::pool::Source;
use crate::recovery::found::{Chain, Found, Plan, Summary};
use crate::recovery::load::Load;
use crate::settings::Witness;
use forebay_format::checkpoint;
use forebay_format::io::Buf;
use forebay_format::record::RecordHeader;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

mod absent;
mod epoch;
mod fetch;
mod found;
mod io;
mod load;
mod online;
mod open;
mod rebuild;
mod repair;
mod replay;
mod steps;
mod survey;

pub use io::{RecoverRead, Repair};

/// Why a start fails where [`Opening::log_may_go_on`].
const LOG_WENT_ON: &str = "the log may have gone on on a device that failed beside one \
     that was away before: what was written last is not known. Bring the devices back as they \
     were, or `forebay pool destroy` the pool to go on with what the origins hold";

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// What follows the index in the checkpoint.
    #[default]
    Tail,
    Heads,
    Segments,
    Payloads,
    /// The index of the checkpoint.
    Index,
    Repair,
    Settle,
    /// The checkpoint of this start.
    Checkpoint,
}

/// Recovery under way.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    step: Step,
    sources: VecDeque<Source>,
    source: Option<Source>,
    reads: VecDeque<RecoverRead>,
    under_way: usize,
    blocks_under_way: u64,
    /// Places that could not be read, since the last that could, by device.
    failed: Vec<u32>,
    load: Load,
    /// By unit.
    segments: BTreeMap<UnitId, checkpoint::SegmentItem>,
    /// Volume, first block and blocks of what is marked, with the record that says so.
    marks: BTreeMap<(u32, u64, u64), Dseq>,
    heads: BTreeMap<SegmentId, RecordHeader>,
    suspects: BTreeSet<SegmentId>,
    chains: BTreeMap<SegmentId, Chain>,
    pieces: BTreeMap<SegmentId, BTreeMap<u32, Buf>>,
    /// Pieces being read block by block, and the blocks that are missing.
    split: BTreeMap<(SegmentId, u32), (Buf, u32)>,
    /// Blocks of segments that cannot be read.
    unreadable: BTreeSet<(SegmentId, u32)>,
    records: Vec<Found>,
    plan: Plan,
    repairs: VecDeque<Repair>,
    repairing: usize,
    seq_max: Seq,
    summary: Summary,
    /// Devices whose superblock is one generation older than the pool's.
    behind: Vec<usize>,
    /// Devices of which an administrator says that they will never be back.
    given_up: Vec<DeviceId>,
    witness: Witness,
    flushes: usize,
    /// Checkpoints that have to count before the first answer.
    checkpoints: u64,
    /// Reads that failed, by what they read.
    tries: BTreeMap<(u8, u64), u8>,
    /// Commands that came meanwhile.
    early: Vec<(CommandId, Command)>,
}

impl Opening {
    /// A command waits until the pool is open.
    pub(crate) fn keep(&mut self, id: CommandId, command: Command) {
        self.early.push((id, command));
    }
}
