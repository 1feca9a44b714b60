//! Opening a pool: newest checkpoint, then everything in the log behind it, then a new life of the
//! log. Of the checkpoint the index comes last, when it is known what of it counts.
//!
//! Reads only, until it is certain that the pool can be opened. Before the first request is
//! answered, what recovery decided is in a checkpoint of its own (`epoch.rs`), and log and origins
//! are flushed: a value read after a recovery never reverts (I12).

use crate::Mutant;
use crate::buf::Buf;
use crate::engine::{Engine, State};
use crate::event::*;
use crate::index::Key;
use crate::limits::*;
use crate::op::Op;
use crate::op::fetch::RecoverRead;
use crate::op::load::Load;
use crate::op::repair::Repair;
use crate::op::replay::{Found, Plan, Summary};
use crate::op::superblock::Then;
use crate::op::survey::Chain;
use crate::requests::Queue;
use crate::segment::{SegmentId, UnitId};
use crate::settings::{Presence, Settings};
use crate::volume::Volume;
use forebay_format::checkpoint;
use forebay_format::record::RecordHeader;
use forebay_format::superblock::CHECKPOINT_NONE;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// A checkpoint that may be used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub(crate) device: DeviceId,
    pub(crate) area: usize,
    pub(crate) generation: u64,
    pub(crate) blocks: u64,
    pub(crate) index_blocks: u64,
    pub(crate) seq: u64,
    pub(crate) dseq: u64,
    pub(crate) epoch: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// What follows the index in the checkpoint.
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
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) step: Step,
    sources: VecDeque<Source>,
    pub(crate) source: Option<Source>,
    pub(crate) reads: VecDeque<RecoverRead>,
    pub(crate) under_way: usize,
    pub(crate) blocks_under_way: u64,
    /// Places that could not be read, since the last that could, by device.
    pub(crate) failed: Vec<u32>,
    pub(crate) load: Load,
    /// By unit.
    pub(crate) segments: BTreeMap<UnitId, checkpoint::SegmentItem>,
    /// Volume, first block and blocks of what is marked, with the record that says so.
    pub(crate) marks: BTreeMap<(u32, u64, u64), u64>,
    pub(crate) heads: BTreeMap<SegmentId, RecordHeader>,
    pub(crate) suspects: BTreeSet<SegmentId>,
    pub(crate) chains: BTreeMap<SegmentId, Chain>,
    pub(crate) pieces: BTreeMap<SegmentId, BTreeMap<u32, Buf>>,
    /// Pieces being read block by block, and the blocks that are missing.
    pub(crate) split: BTreeMap<(SegmentId, u32), (Buf, u32)>,
    /// Blocks of segments that cannot be read.
    pub(crate) unreadable: BTreeSet<(SegmentId, u32)>,
    pub(crate) records: Vec<Found>,
    pub(crate) plan: Plan,
    pub(crate) repairs: VecDeque<Repair>,
    pub(crate) repairing: usize,
    pub(crate) seq_max: u64,
    pub(crate) summary: Summary,
    /// Devices whose superblock is one generation older than the pool's.
    pub(crate) behind: Vec<usize>,
    /// Devices of which an administrator says that they will never be back.
    pub(crate) given_up: Vec<DeviceId>,
    pub(crate) flushes: usize,
    /// Checkpoints that have to count before the first answer.
    pub(crate) checkpoints: u64,
    /// Reads that failed, by what they read.
    pub(crate) tries: BTreeMap<(u8, u64), u8>,
    /// Commands that came meanwhile.
    pub(crate) early: Vec<(CommandId, Command)>,
}

impl Engine {
    pub(crate) fn recover(&mut self, settings: &Settings) {
        let mut entries = settings.superblock.volumes.clone();
        entries.sort_by_key(|entry| entry.id.get());
        for entry in entries {
            let id = entry.id.get();
            let Some(base) = self.base_for(entry.bytes.get().div_ceil(4096)) else {
                return self.open_failed("the volumes are too large for the index".to_owned());
            };
            let origin = settings.origins.iter().find(|origin| origin.volume.0 == id);
            let Some(volume) = Volume::of_entry(&entry, base, origin) else {
                return self
                    .open_failed(format!("volume {id} has an unknown mode; use a newer Forebay"));
            };
            self.volumes.insert(volume);
        }
        let sources = self.checkpoint_sources();
        let devices_with = |presence: Presence| {
            let devices = (0..).zip(&settings.devices);
            devices.filter(move |(_, it)| it.presence == presence).map(|(n, _)| n)
        };
        self.opening = Some(Box::new(Opening {
            step: Step::Tail,
            sources,
            source: None,
            reads: VecDeque::new(),
            under_way: 0,
            blocks_under_way: 0,
            failed: vec![0; settings.devices.len()],
            load: Load::default(),
            segments: BTreeMap::new(),
            marks: BTreeMap::new(),
            heads: BTreeMap::new(),
            suspects: BTreeSet::new(),
            chains: BTreeMap::new(),
            pieces: BTreeMap::new(),
            split: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            records: Vec::new(),
            plan: Plan::default(),
            repairs: VecDeque::new(),
            repairing: 0,
            seq_max: 0,
            summary: Summary::default(),
            behind: devices_with(Presence::Behind).map(usize::from).collect(),
            given_up: devices_with(Presence::GivenUp).map(DeviceId).collect(),
            flushes: 0,
            checkpoints: 1,
            tries: BTreeMap::new(),
            early: Vec::new(),
        }));
        if self.segments.devices().iter().all(|device| !device.healthy) {
            return self.open_failed("no device of the pool is there; attach one".to_owned());
        }
        self.recover_checkpoint();
    }

    /// The checkpoints that may be used, newest first, each from every device.
    fn checkpoint_sources(&self) -> VecDeque<Source> {
        let header = &self.sb.block.header;
        let area = usize::from(header.checkpoint_area);
        let newest = (header.checkpoint_area != CHECKPOINT_NONE).then(|| Source {
            device: DeviceId(0),
            area,
            generation: header.checkpoint_generation.get(),
            blocks: header.checkpoint_blocks.get(),
            index_blocks: header.checkpoint_index_blocks.get(),
            seq: header.checkpoint_seq.get(),
            dseq: header.checkpoint_dseq.get(),
            epoch: header.checkpoint_epoch.get(),
        });
        let before = newest.filter(|_| header.previous_generation.get() > 0).map(|_| Source {
            device: DeviceId(0),
            area: 1 - area,
            generation: header.previous_generation.get(),
            blocks: header.previous_blocks.get(),
            index_blocks: header.previous_index_blocks.get(),
            seq: header.previous_seq.get(),
            dseq: header.previous_dseq.get(),
            epoch: header.previous_epoch.get(),
        });
        let devices: Vec<DeviceId> = self.segments.working().collect();
        let from_each =
            |source: Source| devices.iter().map(move |&device| Source { device, ..source });
        newest.into_iter().chain(before).flat_map(from_each).collect()
    }

    pub(crate) fn open_failed(&mut self, why: String) {
        let early = self.opening.take().map(|opening| opening.early).unwrap_or_default();
        self.state = State::Failed(why.clone());
        self.out.push(Effect::Notice(Notice::OpenFailed(why)));
        for (id, command) in early {
            self.command(id, command);
        }
        for name in self.reqs.take_all(Queue::Recovery) {
            self.req(name).fail(IoError::Gone);
            self.reply(name);
        }
    }

    pub(crate) fn open_mut(&mut self) -> &mut Opening {
        self.opening.as_mut().expect("recovery is under way")
    }

    /// Starts to read the next checkpoint that may be used.
    fn recover_checkpoint(&mut self) {
        self.replay_reset();
        self.open_mut().tries.clear();
        let opening = self.open_mut();
        opening.segments.clear();
        opening.marks.clear();
        opening.heads.clear();
        opening.suspects.clear();
        opening.records.clear();
        opening.unreadable.clear();
        opening.source = opening.sources.pop_front();
        let Some(source) = opening.source else {
            return self.recover_without_checkpoint();
        };
        opening.load = Load::default();
        opening.step = Step::Tail;
        self.recover_chunks(source.index_blocks..source.blocks);
    }

    /// Reads these blocks of the checkpoint.
    fn recover_chunks(&mut self, blocks: Range<u64>) {
        let opening = self.open_mut();
        opening.load.begin(&blocks);
        let starts = blocks.step_by(RECOVERY_READ_BLOCKS);
        opening.reads = starts.map(RecoverRead::Checkpoint).collect();
        self.recover_reads();
    }

    /// There is none: right for a new pool only.
    fn recover_without_checkpoint(&mut self) {
        let header = &self.sb.block.header;
        if header.checkpoint_area != CHECKPOINT_NONE {
            let why = "the checkpoint is damaged, and so is the one before; the pool's dirty data \
                       cannot be told from old data. Bring the devices back as they were, or \
                       `forebay pool \
                       destroy` the pool to go on with what the origins hold";
            return self.open_failed(why.to_owned());
        }
        self.recover_heads();
    }

    /// All reads of a step are here.
    pub(crate) fn recover_next(&mut self) {
        let step = self.open_mut().step;
        match step {
            Step::Tail if self.checkpoint_tail_loaded() => self.recover_heads(),
            Step::Heads => self.recover_segments(),
            Step::Segments => self.recover_payloads(),
            Step::Payloads => self.recover_index(),
            Step::Index if self.checkpoint_index_loaded() => self.recover_replay(),
            Step::Tail | Step::Index => {
                let source = self.open_mut().source.expect("a checkpoint is being read");
                let what =
                    format!("checkpoint {} on device {}", source.generation, source.device.0);
                self.out.push(Effect::Notice(Notice::Repaired(format!(
                    "{what} is damaged; trying the next copy"
                ))));
                self.recover_checkpoint();
            }
            Step::Repair | Step::Settle | Step::Checkpoint => {}
        }
    }

    /// All of the log is read: it is decided what counts, and the index follows.
    fn recover_index(&mut self) {
        if let Err(why) = self.replay_plan() {
            return self.open_failed(why);
        }
        self.open_mut().step = Step::Index;
        match self.open_mut().source {
            Some(source) => self.recover_chunks(0..source.index_blocks),
            None => self.recover_replay(),
        }
    }

    /// Everything is read: the state is computed, and a new life of the log begins.
    fn recover_replay(&mut self) {
        if let Err(why) = self.replay() {
            return self.open_failed(why);
        }
        let opening = self.open_mut();
        let epoch = opening.source.map_or(0, |source| source.epoch);
        self.checkpoint.base = opening.source;
        // The log behind a checkpoint is of two lives at most: the last resort of the next start
        // must not be of one before both.
        let newest = self.sb.block.header.checkpoint_epoch.get();
        self.open_mut().checkpoints = 1 + u64::from(epoch > 0 && epoch != newest);
        let distrusted = self.distrust.epoch() > 0 && epoch <= self.distrust.epoch();
        if distrusted && !self.is(Mutant::DistrustIgnored) {
            self.drop_all_clean();
        }
        self.rebuild_segments();
        if let Err(why) = self.absent_hold_nothing() {
            return self.open_failed(why);
        }
        self.open_mut().step = Step::Repair;
        self.recover_repair();
    }

    /// Forgets all clean blocks that were found so far.
    pub(crate) fn drop_all_clean(&mut self) {
        self.forget_clean_of(0..Key::MAX);
    }

    pub(crate) fn recover_flush(&mut self, volume: VolumeId, tries: u8) {
        let op = self.op(Op::RecoverFlush { volume, tries });
        self.out.push(Effect::Flush { op, target: Target::Origin(volume) });
    }

    pub(crate) fn recover_flush_done(
        &mut self,
        id: VolumeId,
        tries: u8,
        result: Result<(), IoError>,
    ) {
        if result.is_err() && !self.is(Mutant::FailedFlushForgotten) {
            self.vol_mut(id).flush.lost_perhaps();
        }
        if result.is_err() && tries + 1 < FLUSH_TRIES {
            return self.recover_flush(id, tries + 1);
        }
        let retry_at = self.now + OFFLINE_RETRY_NS;
        let volume = self.vol_mut(id);
        volume.flush.failures += u64::from(result.is_err());
        if result.is_ok() {
            volume.flush.flushed = volume.flush.written;
        }
        volume.online_at = result.is_err().then_some(retry_at);
        volume.offline = result
            .is_err()
            .then(|| "the origin could not be flushed; it is tried again every second".to_owned());
        if self.opening.is_some() {
            self.open_mut().flushes -= 1;
        }
    }

    /// Volumes whose origin could not be flushed come back when it can.
    pub(crate) fn online_more(&mut self) {
        for at in 0..self.volumes.count() {
            let volume = self.volumes.nth_mut(at);
            let id = volume.id;
            let due = volume.online_at.is_some_and(|due| due <= self.now);
            let said = self.dead || volume.online_dseq <= self.log.durable_dseq;
            let ends = self.ends.gives_up(id) || self.sweeps.empties(id);
            if due && !volume.removing && said && !ends {
                // Until the answer is here it counts as being tried.
                volume.online_at = Some(Time::MAX);
                self.recover_flush(id, 0);
            }
        }
    }

    /// Part of `settle` while recovery runs.
    pub(crate) fn recover_more(&mut self) {
        if self.opening.is_none() {
            return;
        }
        if self.dead {
            return self.open_failed("a cache device failed while the pool was opened".to_owned());
        }
        self.superblock_more();
        if self.open_mut().step != Step::Checkpoint || !self.recover_checkpointed() {
            return;
        }
        if self.open_mut().flushes > 0 {
            return;
        }
        // The one that is the last resort is of the life before: the next replaces it soon.
        self.checkpoint.wanted = true;
        let opening = self.opening.take().expect("recovery is under way");
        self.state = State::Serving;
        self.out.push(Effect::Notice(Notice::Opened {
            records: opening.summary.records,
            blocks: self.map.len() as u64,
            dirty: self.volumes.iter().map(|v| v.dirty.len()).sum(),
        }));
        if self.away_untold() {
            self.superblock_write(Then::Away);
        }
        for (id, command) in opening.early {
            self.command(id, command);
        }
        for name in self.reqs.take_all(Queue::Recovery) {
            let req = self.reqs.get(name);
            let volume = self.vol(req.volume);
            let (span, offline) = (volume.span(req.offset, req.len), volume.offline.is_some());
            // The volume's keys may have become others when the checkpoint was read.
            (self.req(name).first, self.req(name).last) = span;
            if offline {
                self.req(name).fail(IoError::Gone);
                self.reply(name);
            } else {
                self.accept(name);
            }
        }
    }
}
