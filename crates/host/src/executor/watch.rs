//! I/O that takes too long: who is told, and what is not waited for any more.

use super::goal::Goal;
use super::label::Label;
use super::lane::Lane;
use super::tiers::look_for_cut;
use super::{Executor, HANGS_LOOKS, SCAN_NS, SLOW_LOOKS, SLOW_NS};
use crate::device::Device;
use crate::driver::Driver;
use crate::notice::{HostNotice, Notices};
use forebay_engine::{Buf, DeviceId, IoError, OpId, Target, Time, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Executor {
    /// Reports I/O that takes too long, each once. Whether it was time to look: then see what is
    /// [`Executor::hanging`].
    pub fn watch(&mut self, now: Time, notices: &mut Notices) -> bool {
        if now < self.next_scan {
            return false;
        }
        self.next_scan = now + SCAN_NS;
        notices.tell_repeats();
        for (goal, lane) in &self.lanes {
            if matches!(goal, Goal::Member(..)) {
                look_for_cut(lane.device(), notices);
            }
        }
        let mut oldest: BTreeMap<Goal, u32> = BTreeMap::new();
        for (_, job) in self.jobs.iter_mut() {
            job.looks += 1;
            let oldest = oldest.entry(job.goal).or_default();
            *oldest = job.looks.max(*oldest);
            if !job.told && now.saturating_sub(job.started) > SLOW_NS {
                job.told = true;
                notices.send(Label::of(job).slow(now));
            }
        }
        for (goal, lane) in &mut self.lanes {
            lane.look(oldest.get(goal).copied().unwrap_or(0));
        }
        for label in self.with_workers.values_mut() {
            if !label.told && now.saturating_sub(label.started) > SLOW_NS {
                label.told = true;
                notices.send(label.slow(now));
            }
        }
        true
    }

    /// The cache devices that have not ended for long what is under way on them.
    pub fn hanging(&self) -> impl Iterator<Item = DeviceId> {
        let hang = |lane: &Lane| !lane.given_up && lane.oldest() >= HANGS_LOOKS;
        let hanging = self.lanes.iter().filter(move |(_, lane)| hang(lane));
        hanging.filter_map(|(goal, _)| match goal.target() {
            Target::Cache(device) => Some(device),
            Target::Origin(_) => None,
        })
    }

    /// What has not ended an I/O for long, and for how many looks, one a second.
    pub fn slow(&self) -> Vec<(Target, u32)> {
        let lanes = self.lanes.iter().filter(|(_, lane)| !lane.given_up && !lane.closed);
        let lanes = lanes.map(|(goal, lane)| (goal.target(), lane.oldest()));
        lanes.filter(|&(_, looks)| looks >= SLOW_LOOKS).collect()
    }

    /// Whether a cache device ends what it is given, or has nothing to do.
    pub fn moves(&self, device: DeviceId) -> bool {
        let lane = self.lanes.get(&Goal::Engine(Target::Cache(device)));
        lane.is_some_and(|lane| !lane.given_up && lane.oldest() < HANGS_LOOKS / 2)
    }

    /// Waits no longer for a cache device: what is under way on it has failed, and whatever comes
    /// will. Memory that the kernel may still write to stays with the driver, until the I/O ends;
    /// the engine gets other.
    pub fn give_up(&mut self, driver: &mut Driver, device: DeviceId, notices: &mut Notices) {
        if let Some((path, ios)) = self.give_up_lane(driver, Goal::Engine(Target::Cache(device))) {
            notices.send(HostNotice::DeviceHangs { path, looks: HANGS_LOOKS, ios });
        }
    }

    /// Waits no longer for the origin of a volume, a file or a block device: as
    /// [`Executor::give_up`]. It stays open, and nobody else has it, until what is under way there
    /// ends.
    pub fn give_up_origin(&mut self, driver: &mut Driver, volume: VolumeId) {
        self.give_up_lane(driver, Goal::Engine(Target::Origin(volume)));
    }

    /// The same for whatever has a lane: its path, and how many I/Os were under way.
    pub(super) fn give_up_lane(
        &mut self,
        driver: &mut Driver,
        goal: Goal,
    ) -> Option<(String, usize)> {
        let lane = self.lanes.get_mut(&goal)?;
        lane.given_up = true;
        let waiting = lane.line.drain().map(|job| (job.op, job.buf));
        let mut ended: Vec<(OpId, Buf)> = waiting.collect();
        for (number, op, buf) in lane.workers.give_up() {
            self.with_workers.remove(&number);
            ended.push((op, buf));
        }
        let path = lane.device().path().display().to_string();
        for (slot, job) in self.jobs.iter_mut().filter(|(_, job)| job.goal == goal) {
            job.given_up = true;
            let written = driver.ring().and_then(|ring| ring.written(slot));
            let stand_in = match written {
                Some(buf) => Buf::copy_of(buf.bytes()),
                None => Buf::zeroed(job.len as usize),
            };
            ended.push((job.op, stand_in));
        }
        let ios = ended.len();
        ended.into_iter().for_each(|(op, buf)| self.end(goal, op, Err(IoError::Io), buf));
        Some((path, ios))
    }

    /// Closes a device when what is under way on it has ended; one that is given up at once: nobody
    /// waits for what is under way there, and another may come in its place.
    pub(super) fn close_lane(&mut self, goal: Goal) {
        let Some(lane) = self.lanes.get_mut(&goal) else { return };
        lane.closed = true;
        if lane.given_up {
            self.lanes.remove(&goal);
            let jobs = self.jobs.iter_mut().map(|(_, job)| job);
            jobs.filter(|job| job.goal == goal).for_each(|job| job.given = None);
        }
        self.drop_closed(goal);
    }

    /// Closes a cache device that the engine does not use any more. Whether it is closed: else I/O
    /// is under way there.
    pub fn close_cache(&mut self, device: DeviceId) -> bool {
        let goal = Goal::Engine(Target::Cache(device));
        self.close_lane(goal);
        !self.lanes.contains_key(&goal)
    }

    /// A cache device, in the place of one that was closed.
    pub fn add_cache(&mut self, driver: &mut Driver, place: DeviceId, device: Device) {
        self.add_lane(Goal::Engine(Target::Cache(place)), Arc::new(device));
        self.allow_threads(driver);
    }
}
