//! Opening a pool: newest checkpoint, then everything in the log behind it, then a new life of the
//! log. Of the checkpoint the index comes last, when it is known what of it counts.
//!
//! Reads only, until it is certain that the pool can be opened. Before the first request is
//! answered, what recovery decided is in a checkpoint of its own (`epoch.rs`), and log and origins
//! are flushed: a value read after a recovery never reverts (I12).

use self::load::Load;
use self::replay::{Found, Plan, Summary};
use self::survey::Chain;
use crate::Mutant;
use crate::buf::Buf;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Dseq, Key, SegmentId, Seq, UnitId};
use crate::limits::*;
use crate::op::Op;
use crate::parts::Due;
use crate::pool::{Source, Stage, Then};
use crate::requests::Queue;
use crate::settings::{Presence, Settings};
use crate::volume::Volume;
use forebay_format::checkpoint;
use forebay_format::record::RecordHeader;
use forebay_format::superblock::CHECKPOINT_NONE;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

mod absent;
mod epoch;
mod fetch;
mod load;
mod rebuild;
mod repair;
mod replay;
mod survey;

pub use absent::ABSENT_HOLD;
pub use fetch::RecoverRead;
pub(crate) use load::index_shape;
pub use repair::Repair;
pub use replay::LOG_IS_SHORT;

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
    /// The log went at least so far.
    witness: Dseq,
    flushes: usize,
    /// Checkpoints that have to count before the first answer.
    checkpoints: u64,
    /// Reads that failed, by what they read.
    tries: BTreeMap<(u8, u64), u8>,
    /// Commands that came meanwhile.
    early: Vec<(CommandId, Command)>,
}

impl Opening {
    /// Starts to read the next checkpoint that may be used.
    fn recover_checkpoint(&mut self, engine: &mut Engine) -> Result<(), String> {
        engine.replay_reset();
        self.tries.clear();
        self.segments.clear();
        self.marks.clear();
        self.heads.clear();
        self.suspects.clear();
        self.records.clear();
        self.unreadable.clear();
        self.source = self.sources.pop_front();
        let Some(source) = self.source else {
            return self.recover_without_checkpoint(engine);
        };
        self.load = Load::default();
        self.step = Step::Tail;
        self.recover_chunks(engine, source.index_blocks..source.blocks)
    }

    /// Reads these blocks of the checkpoint.
    fn recover_chunks(&mut self, engine: &mut Engine, blocks: Range<u64>) -> Result<(), String> {
        self.load.begin(&blocks);
        let starts = blocks.step_by(RECOVERY_READ_BLOCKS);
        self.reads = starts.map(RecoverRead::Checkpoint).collect();
        self.recover_reads(engine)
    }

    /// There is none: right for a new pool only.
    fn recover_without_checkpoint(&mut self, engine: &mut Engine) -> Result<(), String> {
        let header = engine.pool.header();
        if header.checkpoint_area != CHECKPOINT_NONE {
            let why = "the checkpoint is damaged, and so is the one before; the pool's dirty data \
                       cannot be told from old data. Bring the devices back as they were, or \
                       `forebay pool \
                       destroy` the pool to go on with what the origins hold";
            return Err(why.to_owned());
        }
        self.recover_heads(engine)
    }

    /// All reads of a step are here.
    fn recover_next(&mut self, engine: &mut Engine) -> Result<(), String> {
        let step = self.step;
        match step {
            Step::Tail if self.checkpoint_tail_loaded() => self.recover_heads(engine),
            Step::Heads => self.recover_segments(engine),
            Step::Segments => self.recover_payloads(engine),
            Step::Payloads => self.recover_index(engine),
            Step::Index if self.checkpoint_index_loaded(engine) => self.recover_replay(engine),
            Step::Tail | Step::Index => {
                let source = self.source.expect("a checkpoint is being read");
                let what = format!("checkpoint {} on device {}", source.generation, source.device);
                engine.io.put(Effect::Notice(Notice::Repaired(format!(
                    "{what} is damaged; trying the next copy"
                ))));
                self.recover_checkpoint(engine)
            }
            Step::Repair | Step::Settle | Step::Checkpoint => Ok(()),
        }
    }

    /// All of the log is read: it is decided what counts, and the index follows.
    fn recover_index(&mut self, engine: &mut Engine) -> Result<(), String> {
        self.replay_plan(engine)?;
        self.step = Step::Index;
        match self.source {
            Some(source) => self.recover_chunks(engine, 0..source.index_blocks),
            None => self.recover_replay(engine),
        }
    }

    /// Everything is read: the state is computed, and a new life of the log begins.
    fn recover_replay(&mut self, engine: &mut Engine) -> Result<(), String> {
        self.replay(engine)?;
        let epoch = self.source.map_or(0, |source| source.epoch);
        engine.pool.begins_with(self.source);
        // The log behind a checkpoint is of two lives at most: the last resort of the next start
        // must not be of one before both.
        let newest = engine.pool.header().checkpoint_epoch.get();
        self.checkpoints = 1 + u64::from(epoch > 0 && epoch != newest);
        let distrusted =
            engine.pool.distrusted_epoch() > 0 && epoch <= engine.pool.distrusted_epoch();
        if distrusted && !engine.is(Mutant::DistrustIgnored) {
            engine.drop_all_clean();
        }
        if self.summary.half {
            engine.io.notify(Notice::Repaired(
                "a device lacks what was durable on both: it may be an older copy, so all that is \
                 clean is read from the origins again"
                    .to_owned(),
            ));
            engine.drop_all_clean();
        }
        self.rebuild_segments(engine);
        self.absent_hold_nothing(engine)?;
        self.step = Step::Repair;
        self.recover_repair(engine)
    }

    /// Part of `settle` while recovery runs. Whether the pool is open.
    fn recover_more(&mut self, engine: &mut Engine) -> Result<bool, String> {
        if engine.log.is_dead() {
            return Err("a cache device failed while the pool was opened".to_owned());
        }
        engine.superblock_more();
        let counts = self.step == Step::Checkpoint && self.recover_checkpointed(engine);
        Ok(counts && self.flushes == 0)
    }

    /// A command waits until the pool is open.
    pub(crate) fn keep(&mut self, id: CommandId, command: Command) {
        self.early.push((id, command));
    }
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
        if self.segments.devices().iter().all(|device| !device.healthy) {
            return self.open_failed("no device of the pool is there; attach one".to_owned());
        }
        let sources = self.checkpoint_sources();
        let devices_with = |presence: Presence| {
            let devices = (0..).zip(&settings.devices);
            devices.filter(move |(_, it)| it.presence == presence).map(|(n, _)| n)
        };
        self.pool.enter(Stage::Opening(Box::new(Opening {
            sources,
            failed: vec![0; settings.devices.len()],
            behind: devices_with(Presence::Behind).map(usize::from).collect(),
            given_up: devices_with(Presence::GivenUp).map(DeviceId).collect(),
            witness: self.witness(settings),
            checkpoints: 1,
            ..Opening::default()
        })));
        self.recovering(Opening::recover_checkpoint);
    }

    /// How far the log went at least. Whoever gives devices up may give its end up with them.
    fn witness(&self, settings: &Settings) -> Dseq {
        let gives_up = settings.devices.iter().any(|it| it.presence == Presence::GivenUp);
        match gives_up {
            true => Dseq::NONE,
            false => Dseq::of(settings.witness),
        }
    }

    /// The checkpoints that may be used, newest first, each from every device.
    fn checkpoint_sources(&self) -> VecDeque<Source> {
        let header = self.pool.header();
        let devices: Vec<DeviceId> = self.segments.working().collect();
        let from_each =
            |source: Source| devices.iter().map(move |it| Source { device: it.0, ..source });
        let newest = Source::newest(header).into_iter();
        newest.chain(Source::previous(header)).flat_map(from_each).collect()
    }

    pub(crate) fn open_failed(&mut self, why: String) {
        let early = match self.pool.enter(Stage::Failed(why.clone())) {
            Stage::Opening(opening) => opening.early,
            _ => Vec::new(),
        };
        self.io.notify(Notice::OpenFailed(why));
        for (id, command) in early {
            self.command(id, command);
        }
        for name in self.reqs.take_all(Queue::Recovery) {
            self.req(name).fail(IoError::Gone);
            self.reply(name);
        }
    }

    /// Takes a step of recovery, if that is under way; it may end in a pool that cannot be opened.
    pub(crate) fn recovering<T>(
        &mut self,
        step: impl FnOnce(&mut Opening, &mut Engine) -> Result<T, String>,
    ) -> Option<T> {
        match self.pool.enter(Stage::Recovering) {
            Stage::Opening(mut opening) => {
                let result = step(&mut opening, self);
                self.pool.enter(Stage::Opening(opening));
                result.map_err(|why| self.open_failed(why)).ok()
            }
            Stage::Recovering => unreachable!("a step does not take another"),
            other => {
                self.pool.enter(other);
                None
            }
        }
    }

    /// Part of `settle` while recovery runs.
    pub(crate) fn recover_more(&mut self) {
        if self.recovering(Opening::recover_more) != Some(true) {
            return;
        }
        // The one that is the last resort is of the life before: the next replaces it soon.
        self.pool.want_checkpoint();
        let Stage::Opening(opening) = self.pool.enter(Stage::Serving) else {
            unreachable!("it has just ended well")
        };
        self.io.put(Effect::Notice(Notice::Opened {
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
            let (span, served) = (volume.span(req.offset, req.len), volume.service.is_on());
            // The volume's keys may have become others when the checkpoint was read.
            (self.req(name).first, self.req(name).last) = span;
            if served {
                self.accept(name);
            } else {
                self.req(name).fail(IoError::Gone);
                self.reply(name);
            }
        }
    }

    /// Forgets all clean blocks that were found so far.
    pub(crate) fn drop_all_clean(&mut self) {
        self.forget_clean_of(Key::FIRST..Key::MAX);
    }

    pub(crate) fn recover_flush(&mut self, volume: VolumeId, tries: u8) {
        self.io.flush(Op::RecoverFlush { volume, tries }, Target::Origin(volume));
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
        let retry_at = self.io.now() + OFFLINE_RETRY_NS;
        let volume = self.vol_mut(id);
        volume.flush.first_ended(result);
        volume.service.tried(result.is_ok(), retry_at);
        self.recovering(|opening, _| {
            opening.flushes -= 1;
            Ok(())
        });
    }

    /// When origins that could not be flushed are tried again.
    pub(crate) fn online_due(&self, due: &mut Due) {
        due.at(self.volumes.iter().filter_map(|v| v.service.due()));
    }

    /// Volumes whose origin could not be flushed come back when it can.
    pub(crate) fn online_more(&mut self) {
        for at in 0..self.volumes.count() {
            let volume = self.volumes.nth_mut(at);
            let id = volume.id();
            let said = if self.log.is_dead() { Dseq::MAX } else { self.log.durable_dseq() };
            let due = volume.service.is_due(self.io.now(), said);
            let ends = self.ends.gives_up(id) || self.ends.empties(id);
            if due && !volume.is_leaving() && !ends {
                // Until the answer is here it counts as being tried.
                volume.service.is_tried();
                self.recover_flush(id, 0);
            }
        }
    }
}
