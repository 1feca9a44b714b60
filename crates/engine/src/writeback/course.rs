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
use crate::writeback::slice::{RunState, Slice};
use forebay_format::BLOCK_SIZE;

impl Engine {
    pub(crate) fn writeback_more(&mut self) {
        if self.log.is_dead() {
            return self.writeback_end_dead();
        }
        let over = self.dirty_share() > self.tuning().dirty_target;
        self.writeback.is_over(over, self.io.now());
        for at in 0..self.volumes.count() {
            let id = self.volumes.nth(at).id();
            // Who waits is looked for only where that makes a difference.
            if self.vol(id).quarantine().refuses_all() && self.is_waited_for(id) {
                self.volumes.is_waited_for(id);
            }
            if !self.writeback.home(id).busy() {
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
        self.writeback.homes().any(|(_, home)| home.busy())
    }

    /// When slices begin, or reads wait for them no more.
    pub(crate) fn writeback_due(&self, due: &mut Due) {
        due.at(self.writeback.homes().filter_map(|(_, home)| home.hold_until()));
        due.at(self.writeback.homes().filter_map(|(_, home)| home.slow_from()));
        let idle = self.tuning().idle_ns;
        let home = |volume: &Volume| self.writeback.home(volume.id());
        let rests = |v: &&Volume| !v.dirty().is_empty() && v.service().is_on() && !home(v).busy();
        for volume in self.volumes.iter().filter(rests).filter(|_| !self.log.is_dead()) {
            due.at([volume.traffic().last_used() + idle + 1]);
            let used = volume.traffic().origin_used();
            if used + idle / 50 >= self.io.now() {
                due.at([used + idle / 50 + 1]);
            }
            due.at(volume.quarantine().next_due(self.io.now()));
            due.at([home(volume).rests_until()]);
            due.at(self.writeback.over_since().map(|since| since + idle / 4 + 1));
        }
    }

    /// See `parts.rs`.
    pub(crate) fn writeback_progress(&self) -> [u64; 4] {
        [self.writeback.progress(), 0, 0, 0]
    }

    /// In words.
    pub(crate) fn writeback_describe(&self) -> String {
        let busy = self.writeback.homes().filter_map(|(id, home)| {
            let Slice { next, active, flush, .. } = home.slice.as_ref()?;
            Some(format!("{id:?} next {next} active {active} flush {flush:?}"))
        });
        busy.collect::<Vec<_>>().join(", ")
    }

    /// Somebody stops the pool: nobody waits for more to go home than what was begun.
    fn writeback_ends(&self) -> bool {
        self.is_stopping() && self.reqs.is_empty() && !self.room_is_wanted()
    }

    fn slice_begin(&mut self, id: VolumeId) {
        let volume = self.vol(id);
        let rests = volume.quarantine().rests(self.io.now()) || !volume.service().is_on();
        if volume.dirty().is_empty() || rests || self.writeback_ends() {
            return;
        }
        let situation = self.situation(id);
        if !due(&situation, self.tuning()) {
            return;
        }
        let alone = is_short(&situation, self.tuning());
        if alone && self.io.now() < self.writeback.home(id).rests_until {
            return;
        }
        self.volumes.sweep_on(id);
        let items = self.select(id, self.slice_most(id, alone));
        if items.is_empty() {
            return;
        }
        let runs = self.group(id, items);
        let failures = self.vol(id).flush().failures();
        self.writeback.slice_begins(id, runs, failures, alone, self.io.now());
    }

    /// Most blocks of a slice.
    fn slice_most(&self, id: VolumeId, alone: bool) -> usize {
        if self.vol(id).quarantine().refuses_all() {
            return WRITEBACK_PROBE_BLOCKS;
        }
        let most = match alone || self.room_is_wanted() || self.writes_wait_for(id) {
            true => self.writeback.home(id).slice_blocks(),
            false => usize::MAX,
        };
        most.min(self.tuning().writeback_slice_blocks)
    }

    /// Whether clients use a volume that is drained: what they write waits for its slices.
    fn writes_wait_for(&self, id: VolumeId) -> bool {
        let volume = self.vol(id);
        let idle = volume.traffic().write_idle_ns(self.io.now());
        let used = volume.traffic().has_requests() || idle <= self.tuning().idle_ns;
        self.writes_through(volume) && used
    }

    /// Whether all that is dirty is to go home, whoever uses the origin meanwhile.
    fn is_drained(&self, id: VolumeId) -> bool {
        let volume = self.vol(id);
        let urgent = self.writeback.home(id).is_urgent();
        volume.draining() || urgent || !volume.mode().plan().write_dirty
    }

    fn situation(&self, id: VolumeId) -> Situation {
        let volume = self.vol(id);
        Situation {
            dirty_share: self.dirty_share(),
            draining: self.is_drained(id),
            reclaim_starves: self.reclaim.starves(),
            over_target_ns: self.writeback.over_since().map_or(0, |since| self.io.now() - since),
            crowded: self.segments.free() * CROWDED_SHARE < self.segments.dirty_units(),
            origin_idle_ns: volume.traffic().origin_idle_ns(self.io.now()),
            write_idle_ns: volume.traffic().write_idle_ns(self.io.now()),
        }
    }

    /// Adds the next dirty blocks to the slice, up to the end of the volume. It ends early when
    /// somebody waits for its end, or for the room that clean blocks give.
    fn slice_grow(&mut self, id: VolumeId) {
        let Some(slice) = &self.writeback.home(id).slice else { return };
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
        let runs = self.group(id, items);
        self.writeback.slice_grows(id, runs);
    }

    fn runs_start(&mut self, id: VolumeId) {
        let depth = self.tuning().writeback_depth.max(1);
        loop {
            self.slice_grow(id);
            self.slice_cut(id);
            let Some(at) = self.writeback.next_run(id, depth) else { return };
            let items = self.writeback.items(id, at).to_vec();
            if items.iter().any(|item| self.map.get(item.key) != Some(item.located)) {
                self.run_outdated(id, at);
                continue;
            }
            let buf = self.io.take(items.len() * BLOCK_SIZE);
            self.writeback.run_begins(id, at, buf);
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
        let home = self.writeback.home(id);
        let Some(slice) = &home.slice else { return };
        let slow = home.slow_from().is_some_and(|from| from <= self.io.now());
        let long = !slice.alone && is_short(&self.situation(id), self.tuning());
        let late = home.is_long(self.io.now()) && self.ends_are_awaited(id);
        let rests = self.vol(id).quarantine().rests(self.io.now());
        if (slow && self.room_is_wanted()) || long || late || rests {
            self.writeback.slice_is_cut(id);
        }
    }

    /// Blocks of a run that has not begun were written again: the others go home one by one.
    fn run_outdated(&mut self, id: VolumeId, at: usize) {
        let items = self.writeback.run_is_split(id, at);
        let map = &self.map;
        let now = items.into_iter().filter(|item| map.get(item.key) == Some(item.located));
        self.writeback.sends_alone(id, now);
    }

    /// All runs have ended: one FLUSH of the origin for all of them.
    fn slice_flush(&mut self, id: VolumeId) {
        if !self.writeback.home(id).is_sent() {
            return;
        }
        let written = self.vol(id).flush().written();
        self.writeback.slice_flushes(id, written);
        if !self.is(Mutant::CleanBeforeOriginFlush) {
            self.want_origin(id, written);
        }
    }

    /// The FLUSH has ended: the blocks are clean, if they are still the versions that were sent; a
    /// few of them at a time.
    fn slice_end(&mut self, id: VolumeId) {
        let Some(slice) = &self.writeback.home(id).slice else { return };
        let Some(written) = slice.flush else { return };
        if slice.flushed.is_none() {
            let flush = self.vol(id).flush();
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
            let Some(run) = self.writeback.run_leaves(id) else { return self.slice_over(id) };
            left = left.saturating_sub(run.items.len().max(1));
            let clean = self.writeback.home(id).is_flushed() && !self.log.is_dead();
            if clean && run.state == RunState::Written {
                for item in run.items {
                    let moved = self.writeback.home(id).moved(item.key);
                    self.mark_clean(id, item, moved);
                }
            }
        }
    }

    fn slice_flushed(&mut self, id: VolumeId, flushed: bool) {
        let wanted = self.room_is_wanted() || self.is_drained(id);
        let now = self.io.now();
        let told = self.writeback.slice_flushed(id, flushed, wanted, now);
        if let Some(wrote) = told.filter(|_| !self.log.is_dead()) {
            self.volumes.slice_flushed(id, flushed, wrote, now);
        }
    }

    fn slice_over(&mut self, id: VolumeId) {
        self.writeback.slice_is_over(id);
        let volume = self.vol(id);
        if volume.dirty().is_empty() {
            // A device that fails now takes nothing with it: its words need not be guessed.
            let said = volume.dirty().said();
            self.want_durable(said);
        }
        self.resume_behind_writeback();
    }

    /// Requests that wait for writeback go on when there is none, too.
    pub(crate) fn resume_behind_writeback(&mut self) {
        for name in self.reqs.take_all(Queue::Slice) {
            match self.writeback.home(self.reqs.get(name).volume).busy() {
                true => self.reqs.wait(name, Wait::Slice),
                false => self.begin(name),
            }
        }
    }
}
