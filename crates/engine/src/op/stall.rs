//! Stall: writes into the cache that wait for room, or for their turn, volume by volume. Each
//! volume gets as much as the others, and one whose origin takes nothing keeps its share.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::limits::{STALL_NS_MAX, WAVE_NS_MAX, WAVE_WRITES_MAX};
use crate::overlap::Access;
use crate::policy::writeback::write_gap_ns;
use crate::requests::{ReqKey, Wait};
use crate::volume::Volume;

/// Writes that share a pause.
#[derive(Debug, Default)]
pub(crate) struct Wave {
    /// Writes that may still go on before the next pause.
    left: usize,
    /// Blocks that they took.
    blocks: u64,
    /// Blocks of the wave before, which the pause is for, and when it ended.
    before: u64,
    since: Time,
}

impl Engine {
    /// Writes that wait for room, or for their turn.
    pub(crate) fn stalled_len(&self) -> usize {
        self.volumes.iter().map(|volume| volume.stalled.len()).sum()
    }

    /// A write waits for room, or for its turn.
    pub(crate) fn stall(&mut self, name: ReqKey) {
        self.reqs.wait(name, Wait::Room);
        let (id, clock) = (self.req(name).volume, self.stalled_clock);
        let served_last = self.is(Mutant::OneServedLast);
        let volume = self.vol_mut(id);
        if volume.stalled.is_empty() {
            volume.stalled_served = volume.stalled_served.max(clock);
        }
        match served_last {
            true => volume.stalled.push_front(name),
            false => volume.stalled.push_back(name),
        }
    }

    /// Lets writes that wait for room, or for their turn, go on. Of several volumes each gets as
    /// many blocks as the others (start-time fair queueing, Goyal et al. 1996).
    pub(crate) fn resume_stalled(&mut self) {
        self.shorten_pause();
        let waiting = |volume: &&Volume| !volume.stalled.is_empty();
        let volumes = self.volumes.iter().filter(waiting);
        let mut turns: Vec<(u64, VolumeId)> = volumes.map(|v| (v.stalled_served, v.id)).collect();
        while let Some(at) = (0..turns.len()).min_by_key(|&at| turns[at]) {
            let (served, id) = turns[at];
            let went = self.resume_one(id);
            match self.vol(id).stalled.is_empty() || !went {
                true => drop(turns.swap_remove(at)),
                false => turns[at].0 = self.vol(id).stalled_served,
            }
            if went {
                self.stalled_clock = self.stalled_clock.max(served);
            }
        }
    }

    /// Lets the first write of a volume go on that waits. Whether it waits no more.
    fn resume_one(&mut self, id: VolumeId) -> bool {
        let Some(&name) = self.vol(id).stalled.front() else { return false };
        let req = self.reqs.get(name);
        if req.error.is_some() || self.dead {
            self.vol_mut(id).stalled.pop_front();
            self.reqs.wait(name, Wait::Parts);
            let req = self.req(name);
            req.fail(IoError::Io);
            if req.pending == 0 {
                self.write_failed(name);
            }
            return true;
        }
        if self.over_quota(self.vol(id)) {
            // It waits for its own origin: what others get meanwhile is not owed to it.
            let clock = self.stalled_clock;
            let volume = self.vol_mut(id);
            volume.stalled_served = volume.stalled_served.max(clock);
            return self.stalled_gives_way(name);
        }
        let waits = self.now < self.throttle_until || self.dirty_share() >= self.tuning.dirty_max;
        let blocks = req.last - req.first + 1;
        if waits || !self.append_blocks(name) {
            return self.stalled_gives_way(name);
        }
        let volume = self.vol_mut(id);
        volume.stalled.pop_front();
        volume.stalled_served += blocks;
        self.throttle(blocks);
        true
    }

    /// Whether the origin of a volume takes nothing, and others should not wait for it.
    fn lags(&self, volume: &Volume) -> bool {
        volume.lags(self.now) && !self.is(Mutant::LagUnseen) && self.volumes.iter().count() > 1
    }

    /// Whether a volume whose origin takes nothing has its share of what the pool can hold dirty:
    /// the other half is for those whose origins do, if there are any.
    pub(crate) fn over_quota(&self, volume: &Volume) -> bool {
        if !self.lags(volume) {
            return false;
        }
        let volumes = self.volumes.iter();
        let lagging = volumes.filter(|it| it.offline.is_some() || it.lags(self.now)).count() as u64;
        let others = self.volumes.iter().count() as u64 > lagging;
        let most = self.segments.dirty_blocks_max() as f64 * self.tuning.dirty_max;
        volume.dirty.len() >= most as u64 / if others { 2 * lagging } else { lagging }.max(1)
    }

    /// A write has found room. Where room or places for dirty blocks are short, the next ones wait
    /// a little, some of them together.
    fn throttle(&mut self, written: u64) {
        self.wave.blocks += written;
        self.wave.left = self.wave.left.saturating_sub(1);
        if self.wave.left > 0 {
            return;
        }
        self.throttle_until = self.now + self.pause_ns(self.wave.blocks);
        let most = if self.is(Mutant::WavesOfOne) { 1 } else { WAVE_WRITES_MAX };
        let left = self.stalled_len().clamp(1, most);
        self.wave = Wave { left, blocks: 0, before: self.wave.blocks, since: self.now };
    }

    /// Room that reclaim keeps free for clients, in blocks.
    fn comfort_blocks(&self) -> u64 {
        let units = self.free_wanted() - self.room.leaves_to_clients();
        units as u64 * u64::from(self.segments.blocks())
    }

    /// Whether clients have little more than the half of it with which pauses begin: what is empty
    /// already had better be free before.
    pub(crate) fn pauses_are_near(&self) -> bool {
        self.room.for_clients() < self.comfort_blocks() / 8 * 5
    }

    /// The pause after a wave of writes that took so many blocks, as things are now.
    fn pause_ns(&self, blocks: u64) -> Time {
        let comfort = self.comfort_blocks();
        // Each record has a header.
        let short = self.pressure.pause_ns(blocks + 1, self.room.for_clients(), comfort);
        let dirty = blocks * write_gap_ns(self.dirty_share(), &self.tuning);
        short.max(dirty).min(WAVE_NS_MAX)
    }

    /// Ends a pause early that is longer than what has come back since calls for.
    fn shorten_pause(&mut self) {
        if self.now < self.throttle_until {
            let until = self.wave.since + self.pause_ns(self.wave.before);
            self.throttle_until = self.throttle_until.min(until);
        }
    }

    /// The first stalled write has waited long, and an origin fails to take dirty blocks home, or
    /// they cannot be read, so no room may come. Writes to an origin that fails fail; others go
    /// around the cache if they can. Whether it waits no more.
    fn stalled_gives_way(&mut self, name: ReqKey) -> bool {
        let req = self.reqs.get(name);
        if self.now < req.since + STALL_NS_MAX || !self.origins_fail() {
            return false;
        }
        let volume = self.vol(req.volume);
        let bound = req.written > 0 || req.pending > 0 || self.touches_dirty(req);
        let lost = !volume.quarantine.unreadable().is_empty();
        if volume.quarantine.is_failing() || (bound && lost) {
            self.req(name).fail(IoError::Io);
            return true;
        }
        if bound {
            return false;
        }
        let of = req.volume;
        self.vol_mut(of).stalled.pop_front();
        self.go_around(name);
        true
    }

    /// A write into the cache begins anew, as one to the origin.
    fn go_around(&mut self, name: ReqKey) {
        self.reqs.release(name);
        let req = self.req(name);
        (req.cached, req.around, req.error) = (false, true, None);
        (req.written, req.written_dseq) = (0, 0);
        let id = req.volume;
        for (_, buf) in std::mem::take(&mut req.merge).into_iter().flatten() {
            self.pool.give(buf);
        }
        self.vol_mut(id).cache_writes_active -= 1;
        if self.reqs.acquire(name, Access::OriginWrite) {
            self.begin(name);
        }
    }

    /// A write into the cache has failed. Where only the cache did, and holds nothing that counts,
    /// the origin takes it.
    pub(crate) fn write_failed(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        match self.dead && req.cached && self.distrust.gave_up(req.volume) {
            true => self.go_around(name),
            false => self.reply(name),
        }
    }

    /// Whether an origin did not take dirty blocks home lately, or is not there to take them.
    pub(crate) fn origins_fail(&self) -> bool {
        let fails = |v: &Volume| v.quarantine.is_failing() || v.stuck() > 0 || self.lags(v);
        self.volumes.iter().any(fails)
    }

    /// Share of the blocks that could be dirty that are, 0 to 1. Those that are stuck, and their
    /// places, do not count: nobody may wait for them to go home.
    pub(crate) fn dirty_share(&self) -> f64 {
        let (mut dirty, mut stuck) = (0, 0);
        for volume in self.volumes.iter() {
            dirty += volume.dirty.len();
            stuck += if self.lags(volume) { volume.dirty.len() } else { volume.stuck() };
        }
        let most = self.segments.dirty_blocks_max();
        (dirty - stuck) as f64 / most.saturating_sub(stuck).max(1) as f64
    }
}
