//! Cache devices that fail: the log goes on with those that are left, or the volumes without one.

use crate::Mutant;
use crate::ends::Sweep;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Key, SegmentId};
use crate::log::Point;
use crate::pool::Then;
use crate::requests::{ReqKey, Wait};
use crate::segment::Purpose;

impl Engine {
    /// A cache device does not work any more.
    pub(crate) fn device_failed(&mut self, device: DeviceId, why: &str) {
        if !self.segments.devices()[usize::from(device.0)].healthy {
            return;
        }
        // A newcomer that has nobody beside it any more, or fails itself, was never there.
        self.newcomer_fails(device, why);
        if !self.segments.devices()[usize::from(device.0)].healthy {
            return;
        }
        self.io.notify(Notice::DeviceFailed(device, why.to_owned()));
        self.device_ends(device);
    }

    /// A cache device is not used any more.
    pub(crate) fn device_ends(&mut self, device: DeviceId) {
        self.segments.device_failed(device);
        if self.segments.devices().iter().any(|device| device.healthy) {
            self.leave_open();
            self.sweep(Sweep::Unreachable);
            if !self.is_opening() {
                self.pool.await_records(self.log.seq());
                let failed = self.segments.devices().iter().filter(|device| !device.healthy);
                if failed.count() > 1 && !self.is(Mutant::AwayTooEarly) {
                    self.checkpoint_anew();
                }
                if !self.is(Mutant::AwayUntold) {
                    self.superblock_write(Then::Away);
                }
                // What only the device had of the log, no start will need any more.
                self.pool.want_checkpoint();
            }
            return;
        }
        self.die();
    }

    /// Closes what is open where the log does not go on.
    pub(crate) fn leave_open(&mut self) {
        for point in crate::log::POINTS {
            if self.log.open_at(point).is_some_and(|open| self.leaves(point, open)) {
                self.send(point);
                self.seal(point);
            }
        }
    }

    /// Closes what is open on a device, with or without a partner.
    pub(crate) fn close_on(&mut self, device: DeviceId) {
        for point in crate::log::POINTS {
            let here = |open| {
                let unit = self.segments.unit_of(open);
                self.segments.segments_of(unit).any(|it| self.segments.device_of(it) == device)
            };
            if self.log.open_at(point).is_some_and(here) {
                self.send(point);
                self.seal(point);
            }
        }
    }

    /// Whether the pool can do without a device that works: each unit with dirty blocks that it
    /// holds is on another one, too, that works and of which the executor says that it `moves`, and
    /// so is the log.
    pub fn can_spare(&self, device: DeviceId, moves: impl Fn(DeviceId) -> bool) -> bool {
        let here = |segment| self.segments.device_of(segment) == device;
        let copy = |segment| {
            !here(segment)
                && self.segments.holds(segment)
                && moves(self.segments.device_of(segment))
        };
        let mut units = self.segments.numbered().filter(|(_, unit)| unit.dirty > 0);
        let mut working = self.segments.working();
        !self.log.is_dead()
            && working.any(|other| other != device && moves(other) && self.segments.counts(other))
            && units.all(|(unit, _)| {
                let mut segments = self.segments.segments_of(unit);
                !self.segments.segments_of(unit).any(here) || segments.any(copy)
            })
    }

    /// Whether a write point opens another segment although there is room in the one it has: that
    /// is on a device that failed, or its mirror is and there are whole pairs.
    pub(crate) fn leaves(&self, point: Point, open: SegmentId) -> bool {
        let unit = self.segments.unit_of(open);
        match point {
            _ if self.segments.whole(unit) => false,
            Point::Dirty => !self.segments.usable(unit) || self.segments.has_whole(Purpose::Move),
            Point::Fill | Point::Reinsert => !self.segments.healthy(open),
        }
    }

    /// Volumes that hold nothing dirty, but for writes that nobody was told of, need nothing of the
    /// device: what it may hold of them is given up in the same note that distrusts it. Contract
    /// point 4. (A start does not know yet what is dirty.)
    fn drop_untold(&mut self) {
        for at in 0..self.volumes.count() {
            let volume = self.volumes.nth(at);
            let id = volume.id();
            let (base, end) = volume.keys();
            let untold = |block: u64| {
                let slot = self.map.get(base + block).expect("dirty blocks are there").slot;
                self.log.gathered(slot).is_some() || self.log.is_untold(slot)
            };
            let sole = volume.dirty().is_empty() || !self.log.replaces_dirty();
            if !sole || !volume.dirty().iter_from(0).all(untold) {
                continue;
            }
            let mut back: Vec<Key> =
                volume.dirty().iter_from(0).map(|block| base + block).collect();
            for &key in &back {
                self.map.ram_drop(key);
                self.forget(key);
            }
            // Nor may the word be there that others have ended.
            let ended = self.log.ended().map(|(_, key)| key);
            back.extend(ended.filter(|key| (base..end).contains(key)));
            self.log.unsay(base..end);
            self.pool.give_up(id, back);
            // Records under way may still succeed; what they say does not count.
            let begun = self.reqs.iter().filter(|(_, req)| {
                req.volume == id && req.cached && !matches!(req.waits_for(), Wait::Durable { .. })
            });
            let begun: Vec<ReqKey> = begun.map(|(name, _)| name).collect();
            begun.into_iter().for_each(|name| self.reqs.fail(name, IoError::Io));
        }
    }

    /// No cache device works: the volumes go on with their origins. Clean blocks are forgotten,
    /// soon; dirty ones are read as long as that works, and cannot be written. Contract points 4
    /// and 6.
    pub(crate) fn die(&mut self) {
        self.log.dies();
        self.replacing_ends("no device of the pool works any more");
        if !self.is_opening() {
            self.drop_untold();
        }
        self.sweep(Sweep::All);
        self.log.drop_backlog();
        for point in crate::log::POINTS {
            if let Some(gather) = self.log.take_gathered(point) {
                self.io.give(gather.buf);
                for req in gather.waiters {
                    self.reqs.fail(req, IoError::Io);
                    self.part_done(req);
                }
                self.readers_again(gather.readers);
            }
        }
        self.volumes.syncs_fail();
        // Who meant what cannot be read gives up no more than that.
        for command in self.writeback.abandon_all() {
            self.refuse(
                command,
                "the cache device failed meanwhile: nothing is given up. Look at `forebay status`, \
                 and ask again",
            );
        }
        self.superblock_give_up();
        self.distrust();
        self.tasks_fail("the cache device failed");
    }
}
