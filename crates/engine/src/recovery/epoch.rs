//! A start begins a new life of the log, with a checkpoint of its own: what recovery found, written
//! anew. From then on nothing of the lives before is needed, and the log has room whatever they
//! left. The superblock that names the checkpoint also begins the life: a crash leaves both or
//! neither.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::{DeviceId, VolumeId};
use crate::ids::Seq;
use crate::log::FlushFor;
use crate::open_error::OpenError;
use crate::recovery::{LOG_WENT_ON, Opening, Step};

impl Opening {
    /// The superblock and the records that were read may not have survived a power cut yet: before
    /// anything follows from them, they must (I12).
    pub(super) fn recover_settle(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        self.step = Step::Settle;
        let devices: Vec<DeviceId> = engine.segments.working().collect();
        for device in devices {
            let mut unread = self.unreadable.iter().map(|&(it, _)| engine.segments.device_of(it));
            if unread.any(|it| it == device)
                || engine.segments.devices()[usize::from(device.0)].volatile_cache
            {
                self.flushes += 1;
                engine.device_flush(device, FlushFor::Opening);
            }
        }
        self.recover_settled(engine)
    }

    fn recover_settled(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        if self.flushes > 0 || engine.log.is_dead() {
            return Ok(());
        }
        if self.log_may_go_on(engine) {
            return Err(LOG_WENT_ON.into());
        }
        let behind = std::mem::take(&mut self.behind);
        let behind: Vec<usize> =
            behind.into_iter().filter(|&index| engine.segments.devices()[index].healthy).collect();
        match behind.is_empty() {
            true => self.recover_epoch(engine),
            false => engine.superblock_catch_up(&behind),
        }
        Ok(())
    }

    /// All devices have the superblock of the life before: a new one begins.
    fn recover_epoch(&mut self, engine: &mut Engine) {
        engine.pool.begin_epoch();
        let (seq, dseq) = (self.seq_max, self.summary.dseq_end);
        self.step = Step::Checkpoint;
        let known = self.source.map_or(Seq::default(), |source| source.seq);
        let seq = if engine.is(Mutant::SeqReused) { known } else { seq };
        engine.log.begin(seq, dseq);
        if engine.is(Mutant::NoFlushAtOpen) {
            return;
        }
        let there = engine.volumes.iter();
        let there = there.filter(|v| v.service().is_on() && v.flush().is_volatile());
        let ids: Vec<VolumeId> = there.map(|v| v.id()).collect();
        for id in ids {
            self.flushes += 1;
            engine.recover_flush(id, 0);
        }
    }

    /// Part of `settle` while the checkpoint of this start is written. Whether it counts.
    pub(super) fn recover_checkpointed(&mut self, engine: &mut Engine) -> bool {
        if engine.pool.checkpoints() >= self.checkpoints {
            return true;
        }
        loop {
            // One that failed is over, and nobody else calls for the next.
            engine.pool.want_checkpoint_next();
            let before = engine.pool.checkpoint_progress();
            engine.checkpoint_more();
            if engine.pool.checkpoint_progress() == before {
                return false;
            }
            if engine.io.is_enough() {
                // No I/O need be under way whose end would call for the rest.
                engine.io.tick(Some(engine.io.now()));
                return false;
            }
        }
    }
}

impl Engine {
    /// A cache device has been flushed, or has failed.
    pub(crate) fn recover_flushed(&mut self) {
        self.recovering(|opening, engine| {
            opening.flushes -= 1;
            opening.recover_settled(engine)
        });
    }

    /// Devices that were one generation behind have the superblock of the life before.
    pub(crate) fn recover_caught_up(&mut self) {
        self.recovering(|opening, engine| {
            opening.recover_epoch(engine);
            Ok(())
        });
    }
}
