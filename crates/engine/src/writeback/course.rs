//! The course of a slice: it begins, grows, may be cut short, and ends with a FLUSH of the origin
//! and the word that its blocks are clean (I9).

use crate::Mutant;
use crate::due::Due;
use crate::engine::Engine;
use crate::event::*;
use crate::limits::*;
use crate::policy::writeback::{Situation, due, is_short};
use crate::requests::{Queue, Wait};
use crate::volume::Volume;
use crate::writeback::slice::{Run, RunState, Slice};
use forebay_format::BLOCK_SIZE;

impl Engine {
    pub(crate) fn writeback_more(&mut self) {
        if self.log.is_dead() {
            return self.writeback_end_dead();
        }
        match self.dirty_share() > self.tuning().dirty_target {
            true if self.writeback.over_since.is_none() => {
                self.writeback.over_since = Some(self.io.now());
            }
            true => {}
            false => self.writeback.over_since = None,
        }
        for at in 0..self.volumes.count() {
            let id = self.volumes.nth(at).id();
            // Who waits is looked for only where that makes a difference.
            if self.vol(id).quarantine.refuses_all() && self.is_waited_for(id) {
                self.vol_mut(id).quarantine.is_waited_for();
            }
            if self.vol(id).home.slice.is_none() {
                self.slice_begin(id);
            }
            self.runs_start(id);
            self.slice_flush(id);
            self.slice_end(id);
            self.release_reads(id);
        }
    }

    /// Whether any volume sends dirty blocks home.
    pub(crate) fn writeback_is_busy(&self) -> bool {
        self.volumes.iter().any(|volume| volume.home.busy())
    }

    /// When slices begin, or reads wait for them no more.
    pub(crate) fn writeback_due(&self, due: &mut Due) {
        due.at(self.volumes.iter().filter_map(|v| v.home.hold_until()));
        due.at(self.volumes.iter().filter_map(|v| v.home.slow_from()));
        let idle = self.tuning().idle_ns;
        let rests = |v: &&Volume| !v.dirty.is_empty() && v.service.is_on() && !v.home.busy();
        for volume in self.volumes.iter().filter(rests).filter(|_| !self.log.is_dead()) {
            due.at([volume.traffic.last_used() + idle + 1]);
            let used = volume.traffic.origin_used();
            if used + idle / 50 >= self.io.now() {
                due.at([used + idle / 50 + 1]);
            }
            due.at(volume.quarantine.next_due(self.io.now()));
            due.at([volume.home.rests_until()]);
            due.at(self.writeback.over_since.map(|since| since + idle / 4 + 1));
        }
    }

    /// See `parts.rs`.
    pub(crate) fn writeback_progress(&self) -> [u64; 4] {
        let looked = self.writeback.looked.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let homes = self.volumes.iter().map(|volume| volume.home.progress());
        [homes.fold(looked, |all, one| all.rotate_left(7) ^ one), 0, 0, 0]
    }

    /// In words.
    pub(crate) fn writeback_describe(&self) -> String {
        let busy = self.volumes.iter().filter_map(|volume| {
            let Slice { next, active, flush, .. } = volume.home.slice.as_ref()?;
            Some(format!("{:?} next {next} active {active} flush {flush:?}", volume.id()))
        });
        busy.collect::<Vec<_>>().join(", ")
    }

    /// Somebody stops the pool: nobody waits for more to go home than what was begun.
    fn writeback_ends(&self) -> bool {
        self.is_stopping() && self.reqs.is_empty() && !self.room_is_wanted()
    }

    fn slice_begin(&mut self, id: VolumeId) {
        let volume = self.vol(id);
        let rests = volume.quarantine.rests(self.io.now()) || !volume.service.is_on();
        if volume.dirty.is_empty() || rests || self.writeback_ends() {
            return;
        }
        let situation = self.situation(id);
        if !due(&situation, self.tuning()) {
            return;
        }
        let alone = is_short(&situation, self.tuning());
        if alone && self.io.now() < volume.home.rests_until {
            return;
        }
        self.vol_mut(id).dirty.sweep_on();
        let items = self.select(id, self.slice_most(id, alone));
        if items.is_empty() {
            return;
        }
        let (blocks, now) = (items.len(), self.io.now());
        let runs = self.group(id, items);
        let volume = self.vol_mut(id);
        volume.home.slice = Some(Slice {
            failures: volume.flush.failures(),
            blocks,
            runs,
            grows: true,
            since: now,
            moved_at: now,
            alone,
            ..Slice::default()
        });
    }

    /// Most blocks of a slice.
    fn slice_most(&self, id: VolumeId, alone: bool) -> usize {
        if self.vol(id).quarantine.refuses_all() {
            return WRITEBACK_PROBE_BLOCKS;
        }
        let most = match alone || self.room_is_wanted() || self.writes_wait_for(id) {
            true => self.vol(id).home.slice_blocks(),
            false => usize::MAX,
        };
        most.min(self.tuning().writeback_slice_blocks)
    }

    /// Whether clients use a volume that is drained: what they write waits for its slices.
    fn writes_wait_for(&self, id: VolumeId) -> bool {
        let volume = self.vol(id);
        let idle = volume.traffic.write_idle_ns(self.io.now());
        let used = volume.traffic.has_requests() || idle <= self.tuning().idle_ns;
        volume.writes_through(self.io.now()) && used
    }

    /// Whether all that is dirty is to go home, whoever uses the origin meanwhile.
    fn is_drained(&self, id: VolumeId) -> bool {
        let volume = self.vol(id);
        volume.draining() || volume.home.is_urgent() || !volume.mode().plan().write_dirty
    }

    fn situation(&self, id: VolumeId) -> Situation {
        let volume = self.vol(id);
        Situation {
            dirty_share: self.dirty_share(),
            draining: self.is_drained(id),
            reclaim_starves: self.reclaim.starves(),
            over_target_ns: self.writeback.over_since.map_or(0, |since| self.io.now() - since),
            crowded: self.segments.free() * CROWDED_SHARE < self.segments.dirty_units(),
            origin_idle_ns: volume.traffic.origin_idle_ns(self.io.now()),
            write_idle_ns: volume.traffic.write_idle_ns(self.io.now()),
        }
    }

    /// Adds the next dirty blocks to the slice, up to the end of the volume. It ends early when
    /// somebody waits for its end, or for the room that clean blocks give.
    fn slice_grow(&mut self, id: VolumeId) {
        let Some(slice) = &self.vol(id).home.slice else { return };
        if !slice.grows || slice.next < slice.runs.len() || slice.flush.is_some() {
            return;
        }
        let (blocks, alone) = (slice.blocks, slice.alone);
        let situation = self.situation(id);
        let ends = slice.abandoned
            || self.writeback_ends()
            || self.ends_are_awaited(id)
            || !due(&situation, self.tuning());
        let items = match ends {
            true => Vec::new(),
            false => self.select(id, self.slice_most(id, alone).saturating_sub(blocks)),
        };
        let (added, runs) = (items.len(), self.group(id, items));
        let slice = self.slice(id);
        slice.grows = added > 0;
        slice.blocks += added;
        slice.runs.extend(runs);
    }

    fn runs_start(&mut self, id: VolumeId) {
        let depth = self.tuning().writeback_depth.max(1);
        let most = self.vol(id).home.slice_blocks();
        loop {
            self.slice_grow(id);
            self.slice_cut(id);
            let of = self.volumes.get_mut(id).expect("as in `vol`");
            let Some(slice) = &mut of.home.slice else { return };
            let full = slice.active >= depth || slice.flight >= most;
            if slice.next >= slice.runs.len() || full || slice.abandoned {
                return;
            }
            let at = slice.next;
            slice.next += 1;
            let map = &self.map;
            if slice.runs[at].items.iter().any(|item| map.get(item.key) != Some(item.located)) {
                self.run_outdated(id, at);
                continue;
            }
            let run = &mut slice.runs[at];
            slice.active += 1;
            slice.flight += run.items.len();
            slice.begun += run.items.len();
            run.state = RunState::Reading;
            run.buf = self.io.take(run.items.len() * BLOCK_SIZE);
            run.pending = 1;
            let items = run.items.clone();
            let mut from = 0;
            for n in 1..=items.len() {
                let next = items.get(n).is_some_and(|item| {
                    item.located.slot == items[n - 1].located.slot.behind(1)
                        && self.segments.segment_of(item.located.slot)
                            == self.segments.segment_of(items[from].located.slot)
                });
                if !next {
                    self.home_read(id, at, &items[from..n]);
                    from = n;
                }
            }
            self.run_read(id, at);
        }
    }

    /// The rest of a slice stays where it is for now: the origin refuses what it is sent, or turns
    /// out to be slow, and somebody waits for the room that clean blocks give; or clients use the
    /// origin, which was idle when the slice began; or wait for its end.
    fn slice_cut(&mut self, id: VolumeId) {
        let volume = self.vol(id);
        let Some(slice) = &volume.home.slice else { return };
        let slow = volume.home.slow_from().is_some_and(|from| from <= self.io.now());
        let long = !slice.alone && is_short(&self.situation(id), self.tuning());
        let late = volume.home.is_long(self.io.now()) && self.ends_are_awaited(id);
        let rests = volume.quarantine.rests(self.io.now());
        let cut = (slow && self.room_is_wanted()) || long || late || rests;
        if let Some(slice) = self.vol_mut(id).home.slice.as_mut().filter(|_| cut) {
            slice.runs.truncate(slice.next);
            slice.blocks = slice.begun;
            slice.grows = false;
        }
    }

    /// Blocks of a run that has not begun were written again: the others go home one by one.
    fn run_outdated(&mut self, id: VolumeId, at: usize) {
        let items = std::mem::take(&mut self.slice(id).runs[at].items);
        let now = items.into_iter().filter(|item| self.map.get(item.key) == Some(item.located));
        let runs: Vec<Run> = now.map(|item| Run { items: vec![item], ..Run::default() }).collect();
        self.slice(id).runs.extend(runs);
    }

    pub(super) fn slice(&mut self, id: VolumeId) -> &mut Slice {
        self.vol_mut(id).home.slice.as_mut().expect("a slice is under way")
    }

    /// All runs have ended: one FLUSH of the origin for all of them.
    fn slice_flush(&mut self, id: VolumeId) {
        let volume = self.vol_mut(id);
        let Some(slice) = &mut volume.home.slice else { return };
        let more = slice.next < slice.runs.len() && !slice.abandoned;
        if slice.active > 0 || more || slice.flush.is_some() {
            return;
        }
        let written = volume.flush.written();
        slice.flush = Some(written);
        if !self.is(Mutant::CleanBeforeOriginFlush) {
            self.want_origin(id, written);
        }
    }

    /// The FLUSH has ended: the blocks are clean, if they are still the versions that were sent; a
    /// few of them at a time.
    fn slice_end(&mut self, id: VolumeId) {
        let volume = self.vol(id);
        let Some(slice) = &volume.home.slice else { return };
        let Some(written) = slice.flush else { return };
        if slice.flushed.is_none() {
            let flush = &volume.flush;
            let failed = flush.failures() != slice.failures;
            let flushed = flush.is_durable(written) && !failed;
            let flushed = flushed || self.is(Mutant::CleanBeforeOriginFlush);
            if !flushed && !failed {
                return;
            }
            self.slice_flushed(id, flushed);
        }
        let mut left = self.ends_max();
        while left > 0 {
            let slice = self.slice(id);
            let Some(run) = slice.runs.pop() else { return self.slice_over(id) };
            slice.next = slice.runs.len();
            left = left.saturating_sub(run.items.len().max(1));
            let clean = slice.flushed == Some(true) && !slice.abandoned && !self.log.is_dead();
            if clean && run.state == RunState::Written {
                for item in run.items {
                    let moved = self.slice(id).moved.get(&item.key).copied();
                    self.mark_clean(id, item, moved);
                }
            }
        }
    }

    fn slice_flushed(&mut self, id: VolumeId, flushed: bool) {
        let wanted = self.room_is_wanted() || self.is_drained(id);
        let (now, dead) = (self.io.now(), self.log.is_dead());
        let volume = self.vol_mut(id);
        let slice = volume.home.slice.as_mut().expect("there is one");
        slice.flushed = Some(flushed);
        // Reads that it found under way had their time from it.
        let (took, blocks) = (now - slice.quiet_at.unwrap_or(slice.since), slice.blocks);
        let wrote = slice.runs.iter().any(|run| run.state == RunState::Written);
        let (alone, abandoned) = (slice.alone, slice.abandoned || dead);
        volume.home.took(blocks, took);
        if alone {
            // Clients have the greater part of the time, but for half where somebody waits for
            // room, or for the end of a drain.
            volume.home.rests_until = now + if wanted { took } else { 3 * took };
        }
        match flushed {
            _ if abandoned => {}
            true if wrote => volume.quarantine.flushed(),
            true => {}
            false => volume.quarantine.flush_failed(now),
        }
    }

    fn slice_over(&mut self, id: VolumeId) {
        let volume = self.vol_mut(id);
        volume.home.over();
        if volume.dirty.is_empty() {
            // A device that fails now takes nothing with it: its words need not be guessed.
            let said = volume.dirty.said();
            self.want_durable(said);
        }
        self.resume_behind_writeback();
    }

    /// Requests that wait for writeback go on when there is none, too.
    pub(crate) fn resume_behind_writeback(&mut self) {
        for name in self.reqs.take_all(Queue::Slice) {
            match self.vol(self.reqs.get(name).volume).home.busy() {
                true => self.reqs.wait(name, Wait::Slice),
                false => self.begin(name),
            }
        }
    }
}
