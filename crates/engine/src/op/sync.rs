//! Sync point: every few seconds the origins are flushed, and a record says so. Clean entries
//! before it survive a crash, and the intents before it are over.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::{RequestKind, Time, VolumeId};
use crate::limits::{REGIONS_MARKED_MAX, SYNC_INTERVALS_MAX, SYNC_NS_MAX, SYNC_REST};
use crate::log::Point;
use crate::op::Stage;
use crate::op::sweep::Sweep;
use crate::volume::Volume;
use forebay_format::record::EntryKind;

/// A sync point being made.
#[derive(Debug)]
pub struct Sync {
    /// Clean entries up to this sequence number will be trusted.
    pub covers_seq: u64,
    /// Intents up to this dirty-class number will be over.
    pub mark_dseq: u64,
    /// No FLUSH is waited for longer.
    pub until: Time,
    /// For each volume: the origin writes that must be durable, and the failed FLUSHes before.
    pub volumes: Vec<(VolumeId, u64, u64)>,
}

impl Engine {
    /// Whether a volume has something that a sync point would make good.
    pub(crate) fn sync_wanted(&self, volume: &Volume) -> bool {
        volume.offline.is_none()
            && (volume.filled_seq > volume.synced_seq || !volume.intents.is_empty())
    }

    pub(crate) fn sync_more(&mut self) {
        if self.sync.is_some() {
            return self.sync_end();
        }
        let wanted = self.volumes.iter().flatten().any(|v| self.sync_wanted(v));
        let full = self.volumes.iter().flatten().any(|v| v.intents.regions() > REGIONS_MARKED_MAX);
        let due = self.now >= self.sync_due();
        let needed = self.sync_due_checkpoint().is_some_and(|due| self.now >= due);
        if (wanted && (due || full) && self.room_for_entries()) || needed {
            self.sync_begin();
        }
    }

    /// When the next sync point is due. It waits, some time, for a writeback slice to end: then the
    /// origins have just been flushed, and one more FLUSH in between would cost a disk that sorts
    /// the slice's writes much. And FLUSHes that take long are made less often.
    pub(crate) fn sync_due(&self) -> Time {
        let sweeps = |v: &Volume| v.home.busy() && !v.lags(self.now);
        let interval = match self.volumes.iter().flatten().any(|v| sweeps(v)) {
            true => self.sync_interval_max(),
            false => self.sync_rest(),
        };
        self.synced_at.saturating_add(interval.max(self.tuning.sync_interval_ns))
    }

    /// When the sync point is due that the checkpoint waits for, if it waits for one. A FLUSH that
    /// failed is not asked for again at once, and FLUSHes that take long not before their time,
    /// unless somebody waits for the checkpoint.
    pub(crate) fn sync_due_checkpoint(&self) -> Option<Time> {
        let seq = self.checkpoint.wants_synced()?;
        self.volumes.iter().flatten().find(|volume| !volume.trusts(seq))?;
        let rest = if self.checkpoint_urgent() { 0 } else { self.sync_rest() };
        let retry = self.tuning.sync_interval_ns.min(1_000_000);
        Some(self.synced_at.saturating_add(rest.max(retry)))
    }

    /// How long the origins rest from one sync point to the next.
    fn sync_rest(&self) -> Time {
        let took = self.volumes.iter().flatten().map(|volume| volume.flush.took_ns).max();
        took.unwrap_or(0).saturating_mul(SYNC_REST).min(self.sync_interval_max())
    }

    fn sync_interval_max(&self) -> Time {
        self.tuning.sync_interval_ns.saturating_mul(SYNC_INTERVALS_MAX)
    }

    pub(crate) fn sync_begin(&mut self) {
        self.synced_at = self.now;
        for point in crate::log::POINTS {
            // Entries gathered now belong to the past; what comes later must be told apart.
            if !self.send(point) {
                return;
            }
        }
        // Entries of the backlog get greater numbers when they are written: to be regarded as later
        // is safe, and to wait for their room could be for ever where a checkpoint frees it.
        self.sync = Some(Sync {
            covers_seq: self.log.seq,
            mark_dseq: self.log.dseq,
            until: self.now + SYNC_NS_MAX,
            volumes: Vec::new(),
        });
        let open: Vec<_> = self
            .reqs
            .iter()
            .filter(|(_, req)| {
                let writes = matches!(req.kind, RequestKind::Write);
                writes && !req.cached && matches!(req.stage, Stage::Intending | Stage::Working)
            })
            .map(|(_, req)| (req.volume, req.first, req.last))
            .collect();
        for (id, first, last) in open {
            self.mark_regions(id, first, last);
        }
        let volumes: Vec<(VolumeId, u64, u64)> = self
            .volumes
            .iter()
            .flatten()
            .filter(|v| self.sync_wanted(v))
            .map(|v| (v.id, v.flush.written, v.flush.failures))
            .collect();
        if !self.is(Mutant::SyncWithoutFlush) {
            for &(id, written, _) in &volumes {
                self.want_origin(id, written);
            }
        }
        self.sync.as_mut().expect("just made").volumes = volumes;
    }

    fn sync_end(&mut self) {
        let sync = self.sync.as_ref().expect("there is one");
        let skip = self.is(Mutant::SyncWithoutFlush);
        // Where room is short others do not wait for one that hangs.
        let hurry = self.checkpoint_urgent() && self.volumes.iter().flatten().count() > 1;
        let hangs = |v: &Volume| hurry && v.flush.hangs_from().is_some_and(|at| at <= self.now);
        let over = sync.volumes.iter().all(|&(id, written, failures)| {
            skip || sync.until <= self.now
                || self.volume(id).is_some_and(hangs)
                || self
                    .volume(id)
                    .is_none_or(|v| v.flush.flushed >= written || v.flush.failures != failures)
        });
        if !over {
            return;
        }
        let sync = self.sync.take().expect("there is one");
        for (id, written, _) in sync.volumes {
            let Some(volume) = self.volume(id) else { continue };
            if (volume.flush.flushed < written || volume.flush.doubtful) && !skip {
                self.give_up_clean(id);
                continue;
            }
            let late = self.is(Mutant::SyncCoversLate);
            let covers_seq = if late { self.log.seq } else { sync.covers_seq };
            self.note_sync(id, sync.mark_dseq, covers_seq);
        }
        self.send(Point::Dirty);
    }

    /// The origin cannot be flushed, or not in time, so nothing can vouch for the volume's clean
    /// blocks: the checkpoints, and with them the other volumes, must not wait for it. No new ones
    /// before a FLUSH succeeds.
    pub(crate) fn give_up_clean(&mut self, id: VolumeId) {
        // What is gathered would be vouched for by the next sync point.
        for point in [Point::Fill, Point::Reinsert] {
            self.send(point);
        }
        let volume = self.vol(id);
        if volume.filled_seq > volume.synced_seq {
            self.sweep(Sweep::Volume(id));
            if !self.dead {
                // One entry, however many blocks it is: nobody made sure of room for more.
                self.note(EntryKind::CleanDrop, id, 0, 0);
            }
        }
        let dseq = self.log.dseq_gathered();
        let volume = self.vol_mut(id);
        volume.filled_seq = volume.synced_seq;
        // A checkpoint that mentions what was dropped does not count before the log says so.
        volume.dropped_dseq = dseq;
        volume.fills_off = true;
        volume.flush.doubtful = false;
    }

    fn note_sync(&mut self, id: VolumeId, mark_dseq: u64, covers_seq: u64) {
        self.note(EntryKind::SyncPoint, id, mark_dseq, covers_seq);
        let volume = self.vol_mut(id);
        volume.synced_seq = covers_seq;
        volume.intents.end(mark_dseq);
    }
}
