//! Writeback while clients keep the origin busy: a slice is short and has the origin for itself,
//! and clients then have it for at least as long. Their reads wait for the slice's end: a disk
//! whose head travels between reads and the sweep needs several times as long for both.

use crate::engine::Engine;
use crate::event::*;
use crate::requests::Queue;
use crate::volume::Volume;

impl Engine {
    /// Whether somebody waits for the room that clean blocks give.
    pub(super) fn room_is_wanted(&self) -> bool {
        let waits =
            |volume: &Volume| self.reqs.waits_for_room(volume.id()) && !self.over_quota(volume);
        self.reclaim.starves() || self.segments.room_is_short() || self.volumes.iter().any(waits)
    }

    /// Whether clients, or a command, wait for what a volume sends home.
    pub(super) fn is_waited_for(&self, id: VolumeId) -> bool {
        let volume = self.vol(id);
        self.reqs.waits_for_room(id) || volume.draining() || self.ends_are_awaited(id)
    }

    /// Whether requests wait for the end of the volume's slice.
    pub(super) fn ends_are_awaited(&self, id: VolumeId) -> bool {
        self.reqs.waiting(Queue::Slice).iter().any(|&name| self.reqs.get(name).volume == id)
    }

    /// Sends a read of the origin, or keeps it until the slice that has the origin for itself ends.
    pub(crate) fn send_or_hold(&mut self, volume: VolumeId, read: Effect) {
        let now = self.io.now();
        self.volumes.origin_read_begins(volume, now);
        match self.writeback.home(volume).holds_reads(now) && !self.log.is_dead() {
            true => self.writeback.hold(volume, read),
            false => self.io.put(read),
        }
    }

    /// A read of the origin has ended.
    pub(crate) fn origin_read_ended(&mut self, id: VolumeId) {
        let now = self.io.now();
        let left = self.volumes.origin_read_ended(id, now);
        self.writeback.read_ended(id, left, now);
    }

    pub(crate) fn release_reads(&mut self, id: VolumeId) {
        let (now, dead) = (self.io.now(), self.log.is_dead());
        let released = self.writeback.release(id, dead, now);
        released.into_iter().for_each(|read| self.io.put(read));
    }
}
