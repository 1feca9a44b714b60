//! Stall: writes into the cache that wait for room, or for their turn, volume by volume. Each
//! volume gets as much as the others, and one whose origin takes nothing keeps its share.

use crate::Mutant;
use crate::due::Due;
use crate::engine::Engine;
use crate::event::*;
use crate::limits::{ROOM_NS_MAX, STALL_NS_MAX, WAVE_NS_MAX, WAVE_WRITES_MAX};
use crate::policy::writeback::write_gap_ns;
use crate::requests::overlap::Access;
use crate::requests::{Queue, ReqKey, Wait};
use crate::volume::Volume;

impl Engine {
    /// A write waits for room, or for its turn, unless it is that.
    pub(crate) fn stall(&mut self, name: ReqKey) {
        self.reqs.wait(name, Wait::Room);
        let first = self.is(Mutant::OneServedLast);
        let req = self.reqs.get(name);
        let (volume, blocks) = (req.volume, req.blocks());
        self.reqs.turns.wait(volume, (name, blocks), first);
        self.resume_stalled();
        let waits = self.reqs.find(name).is_some_and(|req| req.waits_for() == Wait::Room);
        self.reqs.stalls += u64::from(waits);
    }

    /// See `parts.rs`.
    pub(crate) fn wake_progress(&self) -> [u64; 4] {
        let durable = self.reqs.waiting(Queue::Durable).len();
        [self.reqs.len() as u64, self.reqs.turns.len() as u64, durable as u64, 0]
    }

    /// When requests that wait for room, or for their turn, go on or wait no more.
    pub(crate) fn wake_due(&self, due: &mut Due) {
        let since = |name| self.reqs.get(name).since;
        let entries = self.reqs.waiting(Queue::Entries).iter();
        due.at(entries.map(|&name| since(name) + ROOM_NS_MAX));
        for (_, id) in self.reqs.turns.volumes() {
            if !self.is(Mutant::WakeLost) {
                due.at([self.reqs.turns.pause_until()]);
            }
            due.at(self.reqs.turns.firsts(id).map(|first| since(first) + STALL_NS_MAX));
        }
        if self.reqs.turns.len() > 0 {
            // Others need not wait for one that hangs.
            let hangs_from = |v: &Volume| v.hangs_from(self.writeback.home(v.id()));
            due.at(self.volumes.iter().filter_map(hangs_from));
        }
    }

    /// Lets writes that wait for room, or for their turn, go on.
    pub(crate) fn resume_stalled(&mut self) {
        self.shorten_pause();
        if self.reqs.turns.len() == 0 {
            return;
        }
        let mut turns = self.reqs.turns.line_up();
        while let Some(at) = (0..turns.len()).min_by_key(|&at| turns[at]) {
            let (given, id) = turns[at];
            let went = self.resume_one(id);
            if went {
                self.reqs.turns.served(given);
            }
            match self.reqs.turns.given(id).filter(|_| went) {
                Some(given) => turns[at].0 = given,
                None => drop(turns.swap_remove(at)),
            }
        }
        self.reqs.turns.went(turns);
    }

    /// Lets the first write of a volume go on that waits. Whether it waits no more.
    fn resume_one(&mut self, id: VolumeId) -> bool {
        let held = self.holds_large(id);
        let Some(name) = self.reqs.turns.first(id, held) else { return false };
        let req = self.reqs.get(name);
        let blocks = req.blocks();
        if req.error.is_some() || self.log.is_dead() {
            self.reqs.turns.leave(id, blocks, 0);
            self.reqs.wait(name, Wait::Parts);
            self.reqs.fail(name, IoError::Io);
            if self.reqs.get(name).pending == 0 {
                self.write_failed(name);
            }
            return true;
        }
        if self.over_quota(self.vol(id)) {
            // It waits for its own origin.
            self.reqs.turns.owes_nothing(id);
            return self.stalled_gives_way(name);
        }
        let pauses = self.io.now() < self.reqs.turns.pause_until();
        let waits = pauses || self.dirty_share() >= self.tuning().dirty_max;
        if waits || !self.append_blocks(name) {
            return self.stalled_gives_way(name);
        }
        self.reqs.turns.leave(id, blocks, blocks);
        self.throttle(blocks);
        true
    }

    /// Whether the next large write of a volume waits until records before it are written. Nothing
    /// holds back one that fails anyway.
    fn holds_large(&mut self, id: VolumeId) -> bool {
        let Some(name) = self.reqs.turns.first_large(id) else { return false };
        let req = self.reqs.get(name);
        let fails = req.error.is_some() || self.log.is_dead();
        !fails && !self.log.admits(req.blocks() - req.written)
    }

    /// Whether the origin of a volume takes nothing, and others should not wait for it.
    fn lags(&self, volume: &Volume) -> bool {
        self.volumes.count() > 1 && self.takes_nothing(volume) && !self.is(Mutant::LagUnseen)
    }

    fn takes_nothing(&self, volume: &Volume) -> bool {
        volume.lags(self.writeback.home(volume.id()), self.io.now())
    }

    /// Whether a volume whose origin takes nothing has its share of what the pool can hold dirty:
    /// the other half is for those whose origins do, if there are any.
    pub(crate) fn over_quota(&self, volume: &Volume) -> bool {
        if !self.lags(volume) {
            return false;
        }
        let volumes = self.volumes.iter();
        let lagging =
            volumes.filter(|it| !it.service().is_on() || self.takes_nothing(it)).count() as u64;
        let others = self.volumes.count() as u64 > lagging;
        let most = self.segments.dirty_blocks_max() as f64 * self.tuning().dirty_max;
        volume.dirty().len() >= most as u64 / if others { 2 * lagging } else { lagging }.max(1)
    }

    /// A write has found room. Where room or places for dirty blocks are short, the next ones wait
    /// a little, some of them together.
    fn throttle(&mut self, written: u64) {
        let Some(blocks) = self.reqs.turns.took(written) else { return };
        let most = if self.is(Mutant::WavesOfOne) { 1 } else { WAVE_WRITES_MAX };
        self.reqs.turns.pause(self.io.now(), self.pause_ns(blocks), most);
    }

    /// Room that reclaim keeps free for clients, in blocks.
    fn comfort_blocks(&self) -> u64 {
        let units = self.free_wanted() - self.segments.leaves_to_clients();
        units as u64 * u64::from(self.segments.blocks())
    }

    /// Whether clients have little more than the half of it with which pauses begin: what is empty
    /// already had better be free before.
    pub(crate) fn pauses_are_near(&self) -> bool {
        self.segments.room_for_clients() < self.comfort_blocks() / 8 * 5
    }

    /// The pause after a wave of writes that took so many blocks, as things are now.
    fn pause_ns(&self, blocks: u64) -> Time {
        let comfort = self.comfort_blocks();
        // Each record has a header.
        let short = self.reclaim.pause_ns(blocks + 1, self.segments.room_for_clients(), comfort);
        let dirty = blocks * write_gap_ns(self.dirty_share(), self.tuning());
        short.max(dirty).min(WAVE_NS_MAX)
    }

    /// Ends a pause early that is longer than what has come back since calls for.
    fn shorten_pause(&mut self) {
        if let Some(blocks) = self.reqs.turns.pause_is_for(self.io.now()) {
            self.reqs.turns.shorten(self.pause_ns(blocks));
        }
    }

    /// The first stalled write has waited long, and an origin fails to take dirty blocks home, or
    /// they cannot be read, so no room may come. Writes to an origin that fails fail; others go
    /// around the cache if they can. Whether it waits no more.
    fn stalled_gives_way(&mut self, name: ReqKey) -> bool {
        let req = self.reqs.get(name);
        if self.io.now() < req.since + STALL_NS_MAX || !self.origins_fail() {
            return false;
        }
        let volume = self.vol(req.volume);
        let bound = req.written > 0 || req.pending > 0 || self.touches_dirty(req);
        let lost = !volume.quarantine().unreadable().is_empty();
        if volume.quarantine().is_failing() || (bound && lost) {
            self.reqs.fail(name, IoError::Io);
            return true;
        }
        if bound {
            return false;
        }
        let (id, blocks) = (req.volume, req.blocks());
        self.reqs.turns.leave(id, blocks, 0);
        self.go_around(name);
        true
    }

    /// A write into the cache begins anew, as one to the origin.
    fn go_around(&mut self, name: ReqKey) {
        for (_, buf) in self.reqs.goes_around(name).into_iter().flatten() {
            self.io.give(buf);
        }
        let id = self.reqs.get(name).volume;
        self.volumes.cache_write_goes_around(id);
        if self.reqs.acquire(name, Access::OriginWrite) {
            self.begin(name);
        }
    }

    /// A write into the cache has failed. Where only the cache did, and holds nothing that counts,
    /// the origin takes it.
    pub(crate) fn write_failed(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        match self.log.is_dead() && req.cached && self.pool.gave_up(req.volume) {
            true => self.go_around(name),
            false => self.reply(name),
        }
    }

    /// Whether an origin did not take dirty blocks home lately, or is not there to take them.
    pub(crate) fn origins_fail(&self) -> bool {
        let fails = |v: &Volume| v.quarantine().is_failing() || v.stuck() > 0 || self.lags(v);
        self.volumes.iter().any(fails)
    }

    /// Share of the blocks that could be dirty that are, 0 to 1. Those that are stuck, and their
    /// places, do not count: nobody may wait for them to go home.
    pub(crate) fn dirty_share(&self) -> f64 {
        let (mut dirty, mut stuck) = (0, 0);
        for volume in self.volumes.iter() {
            dirty += volume.dirty().len();
            stuck += if self.lags(volume) { volume.dirty().len() } else { volume.stuck() };
        }
        let most = self.segments.dirty_blocks_max();
        (dirty - stuck) as f64 / most.saturating_sub(stuck).max(1) as f64
    }
}
