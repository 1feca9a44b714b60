//! The steps of a start, and which follows when all reads of one are here.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::limits::*;
use crate::open_error::{OpenError, WhyClosed};
use crate::recovery::io::RecoverRead;
use crate::recovery::load::Load;
use crate::recovery::{Opening, Step};
use crate::settings::Witness;
use crate::volume::Volume;
use forebay_format::BLOCK_SIZE;
use forebay_format::superblock::CHECKPOINT_NONE;
use std::ops::Range;

impl Opening {
    /// Starts to read the next checkpoint that may be used.
    pub(super) fn recover_checkpoint(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
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
    fn recover_chunks(&mut self, engine: &mut Engine, blocks: Range<u64>) -> Result<(), OpenError> {
        self.load.begin(&blocks);
        let starts = blocks.step_by(RECOVERY_READ_BLOCKS);
        self.reads = starts.map(RecoverRead::Checkpoint).collect();
        self.recover_reads(engine)
    }

    /// There is none: right for a new pool only.
    fn recover_without_checkpoint(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        let header = engine.pool.header();
        if header.checkpoint_area != CHECKPOINT_NONE {
            let why = "the checkpoint is damaged, and so is the one before; the pool's dirty data \
                       cannot be told from old data. Bring the devices back as they were, or \
                       `forebay pool \
                       destroy` the pool to go on with what the origins hold";
            return Err(why.into());
        }
        self.recover_heads(engine)
    }

    /// All reads of a step are here.
    pub(super) fn recover_next(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
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
    fn recover_index(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        self.replay_plan(engine)?;
        self.step = Step::Index;
        match self.source {
            Some(source) => self.recover_chunks(engine, 0..source.index_blocks),
            None => self.recover_replay(engine),
        }
    }

    /// Everything is read: the state is computed, and a new life of the log begins.
    fn recover_replay(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
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
        if self.summary.half && !engine.is(Mutant::HalfTrusted) {
            engine.io.notify(Notice::Repaired(
                "a device lacks what was durable on both: it may be an older copy, so all that is \
                 clean is read from the origins again"
                    .to_owned(),
            ));
            engine.drop_all_clean();
        }
        self.judge_age(engine)?;
        self.rebuild_segments(engine);
        self.absent_hold_nothing(engine)?;
        self.step = Step::Repair;
        self.recover_repair(engine)
    }

    /// Nobody knows whether what is here is the newest state: what is clean may be older than what
    /// the origins hold, and so may what is dirty.
    fn judge_age(&self, engine: &mut Engine) -> Result<(), OpenError> {
        let is_accepted = match self.witness {
            Witness::Seen(_) => return Ok(()),
            Witness::Missing => engine.is(Mutant::MissingAccepted),
            Witness::Accepted => true,
        };
        let dirty = |v: &Volume| {
            let kib = v.dirty().len() * (BLOCK_SIZE as u64 >> 10);
            (kib > 0).then(|| format!("{kib} KiB of volume {}", v.identity().name))
        };
        let held: Vec<String> = engine.volumes.iter().filter_map(dirty).collect();
        if !is_accepted && !held.is_empty() {
            let text = format!(
                "it holds dirty data ({}), and nothing here tells whether that is of its newest \
                 state: its witness in the state directory is missing (it was lost, or another \
                 machine had the devices)",
                held.join(", ")
            );
            return Err(OpenError { why: WhyClosed::UnknownAge, text });
        }
        if engine.map.len() == 0 || engine.is(Mutant::UnknownAgeTrusted) {
            return Ok(());
        }
        engine.io.notify(Notice::Repaired(
            "nothing tells whether the devices hold their newest state: all that is clean is read \
             from the origins again"
                .to_owned(),
        ));
        engine.drop_all_clean();
        Ok(())
    }

    /// Part of `settle` while recovery runs. Whether the pool is open.
    pub(super) fn recover_more(&mut self, engine: &mut Engine) -> Result<bool, OpenError> {
        if engine.log.is_dead() {
            return Err("a cache device failed while the pool was opened".into());
        }
        engine.superblock_more();
        let counts = self.step == Step::Checkpoint && self.recover_checkpointed(engine);
        Ok(counts && self.flushes == 0)
    }
}
