//! A start begins a new life of the log, with a checkpoint of its own: what recovery found, written
//! anew. From then on nothing of the lives before is needed, and the log has room whatever they
//! left. The superblock that names the checkpoint also begins the life: a crash leaves both or
//! neither.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::{DeviceId, VolumeId};
use crate::op::flush::FlushFor;
use crate::op::open::Step;
use zerocopy::little_endian::U64;

/// Why a start fails where [`Engine::log_may_go_on`].
pub(crate) const LOG_WENT_ON: &str = "the log may have gone on on a device that failed beside one \
     that was away before: what was written last is not known. Bring the devices back as they \
     were, or `forebay pool destroy` the pool to go on with what the origins hold";

impl Engine {
    /// The superblock and the records that were read may not have survived a power cut yet: before
    /// anything follows from them, they must (I12).
    pub(crate) fn recover_settle(&mut self) {
        self.open_mut().step = Step::Settle;
        let devices: Vec<DeviceId> = self.segments.working().collect();
        for device in devices {
            let opening = self.opening.as_ref().expect("recovery is under way");
            let mut unread = opening.unreadable.iter().map(|&(it, _)| self.segments.device_of(it));
            if unread.any(|it| it == device)
                || self.segments.devices()[usize::from(device.0)].volatile_cache
            {
                self.open_mut().flushes += 1;
                self.device_flush(device, FlushFor::Opening);
            }
        }
        self.recover_settled();
    }

    fn recover_settled(&mut self) {
        if self.open_mut().flushes > 0 || self.dead {
            return;
        }
        if self.log_may_go_on() {
            return self.open_failed(LOG_WENT_ON.to_owned());
        }
        let behind = std::mem::take(&mut self.open_mut().behind);
        let behind: Vec<usize> =
            behind.into_iter().filter(|&index| self.segments.devices()[index].healthy).collect();
        match behind.is_empty() {
            true => self.recover_epoch(),
            false => self.superblock_catch_up(&behind),
        }
    }

    /// All devices have the superblock of the life before: a new one begins.
    pub(crate) fn recover_epoch(&mut self) {
        let header = &mut self.sb.block.header;
        header.epoch = U64::new(header.epoch.get() + 1);
        header.clean = 0;
        let opening = self.opening.as_mut().expect("recovery is under way");
        let (seq, dseq) = (opening.seq_max, opening.summary.dseq_end);
        opening.step = Step::Checkpoint;
        let known = opening.source.map_or(0, |source| source.seq);
        let seq = if self.is(Mutant::SeqReused) { known } else { seq };
        (self.log.seq, self.log.dseq) = (seq, dseq);
        (self.log.completed_dseq, self.log.durable_dseq) = (dseq, dseq);
        if self.is(Mutant::NoFlushAtOpen) {
            return;
        }
        let there = self.volumes.iter();
        let there = there.filter(|v| v.offline.is_none() && v.volatile_cache);
        let ids: Vec<VolumeId> = there.map(|v| v.id).collect();
        for id in ids {
            self.open_mut().flushes += 1;
            self.recover_flush(id, 0);
        }
    }

    /// Part of `settle` while the checkpoint of this start is written. Whether it counts.
    pub(crate) fn recover_checkpointed(&mut self) -> bool {
        if self.checkpoint.counted >= self.open_mut().checkpoints {
            return true;
        }
        self.checkpoint.wanted = !self.checkpoint.running();
        loop {
            let before = self.checkpoint.progress();
            self.checkpoint_more();
            if self.checkpoint.progress() == before {
                return false;
            }
            if self.work_is_enough() {
                // No I/O need be under way whose end would call for the rest.
                self.deadline = Some(self.now);
                return false;
            }
        }
    }

    /// A cache device has been flushed, or has failed.
    pub(crate) fn recover_flushed(&mut self) {
        if self.opening.is_some() {
            self.open_mut().flushes -= 1;
            self.recover_settled();
        }
    }
}
