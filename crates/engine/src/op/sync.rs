//! Sync point: an origin was flushed, and a record says so. The intents before it are over.
//!
//! Nobody waits for one: it only lets more blocks be warm after a crash, and costs a FLUSH, for
//! which a disk with a full cache takes seconds. So it goes with a FLUSH that somebody else wants,
//! or is made while the origin rests; and under load that does not end, seldom.

use crate::Mutant;
use crate::due::Due;
use crate::ends::Sweep;
use crate::engine::Engine;
use crate::event::{RequestKind, Time, VolumeId};
use crate::ids::{Dseq, Written};
use crate::limits::{SYNC_INTERVALS_MAX, SYNC_REST};
use crate::log::Point;
use crate::requests::Wait;
use crate::volume::Volume;
use forebay_format::record::EntryKind;

impl Engine {
    pub(crate) fn sync_more(&mut self) {
        for at in 0..self.volumes.count() {
            let volume = self.volumes.nth(at);
            let id = volume.id();
            if volume.intents().sync().is_some() {
                self.sync_end(id);
            } else if self.sync_due(volume).is_some_and(|due| due <= self.io.now()) {
                self.sync_begin(id);
                let sync = self.vol(id).intents().sync();
                let written = sync.map_or(Written::NONE, |sync| sync.written);
                self.want_origin(id, written);
            }
        }
    }

    /// When sync points are due.
    pub(crate) fn syncs_due(&self, due: &mut Due) {
        due.at(self.volumes.iter().filter_map(|volume| self.sync_due(volume)));
    }

    /// See `parts.rs`.
    pub(crate) fn syncs(&self) -> [u64; 4] {
        let syncs = self.volumes.iter().filter(|volume| volume.intents().sync().is_some()).count();
        [syncs as u64, 0, 0, 0]
    }

    /// When a sync point of the volume is due, if there is something that it would make good.
    fn sync_due(&self, volume: &Volume) -> Option<Time> {
        let soonest = self.sync_soonest(volume)?;
        let rest = volume.flush().took_ns().saturating_mul(SYNC_REST);
        let most = self.tuning().sync_interval_ns.saturating_mul(SYNC_INTERVALS_MAX).max(rest);
        let last = volume.intents().since().saturating_add(most);
        let rests = volume.traffic().origin_used().saturating_add(self.tuning().idle_ns);
        Some(if volume.flush().is_volatile() { rests.clamp(soonest, last) } else { soonest })
    }

    /// From when on one may go with another FLUSH.
    fn sync_soonest(&self, volume: &Volume) -> Option<Time> {
        let there = volume.service().is_on() && volume.is_there();
        // None would come to an end, see `sync_end`.
        let there = there && (!volume.flush().is_doubtful() || self.is(Mutant::SyncInDoubt));
        (there && !volume.intents().is_empty())
            .then(|| volume.intents().since().saturating_add(self.tuning().sync_interval_ns))
    }

    /// The origin is about to be flushed.
    pub(crate) fn sync_join(&mut self, id: VolumeId) {
        let volume = self.vol(id);
        let serves = self.is_serving() && !self.log.is_dead();
        let due = self.sync_soonest(volume).is_some_and(|due| due <= self.io.now());
        if serves && due && volume.intents().sync().is_none() {
            self.sync_begin(id);
        }
    }

    fn sync_begin(&mut self, id: VolumeId) {
        // Intents that are gathered belong to the past; what comes later must be told apart.
        if !self.room_for_entries() || !self.send(Point::Dirty) {
            return;
        }
        let (now, mark_dseq) = (self.io.now(), self.log.dseq());
        self.volumes.sync_begins(id, mark_dseq, now);
        if !self.is(Mutant::SyncForgetsOpen) {
            self.mark_open(id);
        }
        if self.is(Mutant::SyncWithoutFlush) {
            self.note_sync(id, mark_dseq);
        }
    }

    /// What is under way to the origin may not be covered by the FLUSH.
    fn mark_open(&mut self, id: VolumeId) {
        let open: Vec<_> = self
            .reqs
            .iter()
            .filter(|(_, req)| req.volume == id && !req.cached)
            .filter(|(_, req)| {
                matches!(req.waits_for(), Wait::Intent(_) | Wait::Logged(_) | Wait::Parts)
            })
            .map(|(_, req)| (req.kind, req.first, req.last))
            .collect();
        for (kind, first, last) in open {
            match kind {
                RequestKind::Write => drop(self.mark_regions(id, first, last)),
                RequestKind::Discard | RequestKind::WriteZeroes { .. } => {
                    self.mark_range(id, first, last);
                }
                RequestKind::Read | RequestKind::Prefetch | RequestKind::Flush => {}
            }
        }
    }

    fn sync_end(&mut self, id: VolumeId) {
        let volume = self.vol(id);
        let Some(sync) = volume.intents().sync() else { return };
        let failed = volume.flush().failures() != sync.failures;
        let over = volume.flush().is_durable(sync.written) && !self.pool.tells_away();
        // Of what an origin may have forgotten the cache has copies until clients are told.
        let doubtful = volume.flush().is_doubtful() && !self.is(Mutant::SyncInDoubt);
        let mark_dseq = sync.mark_dseq;
        match (failed || doubtful, over) {
            (true, _) => self.volumes.sync_fails(id),
            (false, true) => self.note_sync(id, mark_dseq),
            (false, false) => {}
        }
    }

    fn note_sync(&mut self, id: VolumeId, mark_dseq: Dseq) {
        self.note(EntryKind::SyncPoint, id, 0, mark_dseq.raw());
        self.volumes.synced(id, mark_dseq);
        self.send(Point::Dirty);
    }

    /// The origin has failed a FLUSH, and clients know: what they wrote is not vouched for by what
    /// the cache has of it. No new fills before a FLUSH succeeds.
    pub(crate) fn give_up_clean(&mut self, id: VolumeId) {
        // What is gathered would be back after the next start.
        for point in [Point::Fill, Point::Reinsert] {
            self.send(point);
        }
        self.sweep(Sweep::Volume(id));
        if !self.log.is_dead() {
            // One entry, however many blocks it is: nobody made sure of room for more.
            self.note(EntryKind::CleanDrop, id, 0, 0);
        }
        self.volumes.clients_know(id);
    }
}
