//! Carries out the engine's I/O effects on cache devices and origins, and says how each ended.
//!
//! Each device has a lane, which says which way an I/O goes: through the ring, by threads of the
//! device's own, or on the spot. An origin that is no device carries out its I/O itself (`submit`,
//! `poll` and `next_due` in `origin.rs`): a simulated disk, and whatever speaks to another machine.
//! However it was done, what ended is in one queue, which [`Executor::collect`] hands out.

pub(crate) mod distrust;
mod goal;
mod job;
mod label;
mod lane;
mod line;
mod rest;
mod tiers;
mod watch;
mod workers;

pub use distrust::{note as note_distrust, read as read_distrust};

use crate::device::Device;
use crate::driver::Driver;
use crate::notice::Notices;
use crate::origin::{Holes, Origin, OriginIo, OriginSize};
use forebay_engine::{
    Buf, Completion, DeviceId, Effect, IoError, Keyed, OpId, Target, Time, VolumeId,
};
use forebay_sys::waker::Waker;
use forebay_tier::{CommandId, CommandReply};
use goal::Goal;
use job::{Job, Work, io_error};
use label::Label;
use lane::{Lane, RING_MAX, Way};
use rest::Resting;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use workers::Workers;

/// Times that an I/O is tried again when the kernel says EAGAIN or EINTR.
const TRIES_MAX: u32 = 1000;
/// After this time an I/O is reported as slow, in nanoseconds.
const SLOW_NS: Time = 30_000_000_000;
/// How often to look for slow ones, in nanoseconds.
const SCAN_NS: Time = 1_000_000_000;
/// A cache device of which an I/O has not ended after so many looks counts as one that hangs: half
/// a minute.
const HANGS_LOOKS: u32 = 30;
/// After so many, somebody should know of it.
const SLOW_LOOKS: u32 = 10;

/// The I/O side of a shard.
pub(crate) struct Executor {
    /// Files and block devices.
    lanes: BTreeMap<Goal, Lane>,
    origins: BTreeMap<VolumeId, Origin>,
    /// I/O that the ring carries out.
    jobs: Keyed<Job>,
    /// For work without a device.
    helper: Workers,
    /// I/O that threads carry out, by number: they hold the jobs.
    with_workers: BTreeMap<u64, Label>,
    number_next: u64,
    distrust_file: PathBuf,
    has_ring: bool,
    waker: Waker,
    /// What ended and was not collected.
    done: Vec<(OpId, Completion)>,
    /// What members of tiered origins have ended, and their tiers do not know yet.
    done_below: Vec<(Goal, OpId, Completion)>,
    /// Tiered origins that were told something since they last did what follows from it.
    stirred: BTreeSet<VolumeId>,
    /// Tiered origins that come to rest.
    resting: BTreeMap<VolumeId, Resting>,
    /// Who waits for what was asked of tiered origins.
    asked: BTreeMap<(VolumeId, CommandId), SyncSender<CommandReply>>,
    finished: Vec<(Job, io::Result<()>)>,
    next_scan: Time,
}

impl Executor {
    /// An executor for these cache devices, by their index, and origins. `distrust_file` is where
    /// [`Effect::Distrust`] writes.
    pub fn new(
        devices: Vec<Option<Device>>,
        origins: BTreeMap<VolumeId, Origin>,
        (state_dir, pool): (&Path, &[u8; 16]),
        driver: &mut Driver,
        waker: Waker,
    ) -> Executor {
        let mut executor = Executor {
            lanes: BTreeMap::new(),
            origins: BTreeMap::new(),
            jobs: Keyed::default(),
            helper: Workers::new(1, waker.clone()),
            with_workers: BTreeMap::new(),
            number_next: 0,
            distrust_file: distrust::file(state_dir, pool),
            has_ring: driver.has_ring(),
            waker,
            done: Vec::new(),
            done_below: Vec::new(),
            stirred: BTreeSet::new(),
            resting: BTreeMap::new(),
            asked: BTreeMap::new(),
            finished: Vec::new(),
            next_scan: 0,
        };
        for (index, device) in (0..).zip(devices) {
            if let Some(device) = device {
                let goal = Goal::Engine(Target::Cache(DeviceId(index)));
                executor.add_lane(goal, Arc::new(device));
            }
        }
        for (volume, origin) in origins {
            executor.add_origin(driver, volume, origin);
        }
        executor.allow_threads(driver);
        executor
    }

    fn add_lane(&mut self, goal: Goal, device: Arc<Device>) {
        let lane = Lane::new(device, self.has_ring, self.waker.clone());
        self.lanes.insert(goal, lane);
    }

    /// Each device may hang with all that it has in the ring; the others go on.
    fn allow_threads(&self, driver: &mut Driver) {
        driver.allow_threads((self.lanes.len() + 1) * RING_MAX);
    }

    /// Whether the origin of this volume is here.
    pub fn has_origin(&self, volume: VolumeId) -> bool {
        self.origins.contains_key(&volume)
    }

    /// Where the origin of a volume has no space.
    pub fn holes(&self, volume: VolumeId) -> Holes<'_> {
        self.origins.get(&volume).map_or_else(Holes::default, Origin::holes)
    }

    /// What tells the size of the origin of a volume.
    pub fn origin_size(&self, volume: VolumeId) -> Option<OriginSize> {
        self.origins.get(&volume).map(Origin::size)
    }

    /// Registers the origin of a volume.
    pub fn add_origin(&mut self, driver: &mut Driver, volume: VolumeId, origin: Origin) {
        for (goal, device) in devices_of(volume, &origin) {
            self.add_lane(goal, device);
        }
        self.allow_threads(driver);
        let before = self.origins.insert(volume, origin);
        assert!(before.is_none(), "volume numbers are not used twice");
    }

    /// Whether I/O is under way on what was the origin of a volume.
    pub fn awaits(&self, volume: VolumeId) -> bool {
        let is_of = |goal: &Goal| goal.target() == Target::Origin(volume);
        !self.has_origin(volume) && self.lanes.keys().any(is_of)
    }

    /// Closes the origin of a volume. I/O under way on it ends first; what its tiers have not
    /// answered fails.
    pub fn remove_origin(&mut self, volume: VolumeId) {
        self.forget_rest(volume);
        self.origins.remove(&volume);
        self.stirred.remove(&volume);
        self.asked.retain(|(of, _), _| *of != volume);
        let is_of = |goal: &&Goal| goal.target() == Target::Origin(volume);
        for goal in self.lanes.keys().filter(is_of).copied().collect::<Vec<Goal>>() {
            self.close_lane(goal);
        }
    }

    fn drop_closed(&mut self, goal: Goal) {
        if self.lanes.get(&goal).is_some_and(|lane| lane.closed && lane.under_way() == 0) {
            self.lanes.remove(&goal);
        }
    }

    /// Starts an I/O effect.
    pub fn start(&mut self, driver: &mut Driver, now: Time, effect: Effect) {
        let (op, target, work, offset, buf) = match effect {
            Effect::Read { op, target, offset, buf } => (op, target, Work::Read, offset, buf),
            Effect::Write { op, target, offset, buf } => (op, target, Work::Write, offset, buf),
            Effect::Flush { op, target } => (op, target, Work::Flush, 0, Buf::empty()),
            Effect::Zero { op, target, offset, len, unmap } => {
                (op, target, Work::Zero { len, unmap }, offset, Buf::empty())
            }
            Effect::Discard { op, target, offset, len } => {
                (op, target, Work::Discard { len }, offset, Buf::empty())
            }
            Effect::Distrust { op, note } => {
                let work = Work::Distrust { file: self.distrust_file.clone(), note };
                (op, Target::Cache(DeviceId(0)), work, 0, Buf::empty())
            }
            other => unreachable!("not an I/O: {other:?}"),
        };
        let goal = Goal::Engine(target);
        let device = match (&work, target) {
            (Work::Distrust { .. }, _) => None,
            (_, Target::Cache(_)) => match self.lanes.get(&goal) {
                Some(lane) => Some(Arc::clone(lane.device())),
                None => return self.end(goal, op, Err(IoError::Io), buf),
            },
            (_, Target::Origin(volume)) if self.holds(volume) => {
                return self.hold(volume, op, origin_io(work, offset, buf));
            }
            (_, Target::Origin(volume)) => match self.origins.get_mut(&volume) {
                Some(Origin::File(device)) => Some(Arc::clone(device)),
                Some(origin) => {
                    if matches!(origin, Origin::Tiered(..)) {
                        self.stirred.insert(volume);
                    }
                    return origin.submit(op, origin_io(work, offset, buf), now);
                }
                None => return self.end(goal, op, Err(IoError::Gone), buf),
            },
        };
        self.start_on(driver, now, (goal, op), (work, offset, buf), device);
    }

    /// Starts work on a device, or such as needs none.
    fn start_on(
        &mut self,
        driver: &mut Driver,
        now: Time,
        (goal, op): (Goal, OpId),
        (work, offset, buf): (Work, u64, Buf),
        device: Option<Arc<Device>>,
    ) {
        self.number_next += 1;
        let (number, done, tries, looks) = (self.number_next, 0, 0, 0);
        let len = match work {
            Work::Read | Work::Write => buf.len() as u64,
            Work::Zero { len, .. } | Work::Discard { len } => len,
            Work::Flush | Work::Distrust { .. } => 0,
        };
        let (told, given_up) = (false, false);
        let job = Job {
            op,
            number,
            goal,
            device,
            work,
            offset,
            len,
            buf,
            done,
            tries,
            looks,
            started: now,
            given: None,
            told,
            given_up,
        };
        self.start_job(driver, now, job);
    }

    fn start_job(&mut self, driver: &mut Driver, now: Time, mut job: Job) {
        if job.device.is_none() {
            self.with_workers.insert(job.number, Label::of(&job));
            return self.helper.submit(job);
        }
        let lane = self.lanes.get_mut(&job.goal).expect("open devices have one");
        if lane.given_up {
            return self.end(job.goal, job.op, Err(IoError::Io), job.buf);
        }
        match lane.way(&job.work, job.len) {
            Way::Nothing => self.end(job.goal, job.op, Ok(()), job.buf),
            Way::Inline => {
                let data = match job.work {
                    Work::Write => std::mem::take(&mut job.buf),
                    _ => Buf::empty(),
                };
                let result = job.perform(data.bytes());
                if matches!(job.work, Work::Write) {
                    job.buf = data;
                }
                self.finished.push((job, result));
            }
            Way::Line => {
                if let Some(job) = lane.line.enter(now, job) {
                    self.give(driver, job);
                }
            }
            Way::Workers => {
                self.with_workers.insert(job.number, Label::of(&job));
                lane.workers.submit(job);
            }
        }
    }

    /// Has a job carried out whose turn it is.
    fn give(&mut self, driver: &mut Driver, job: Job) {
        let lane = self.lanes.get_mut(&job.goal).expect("it stays while it has jobs");
        if lane.uses_ring() {
            let slot = self.jobs.insert(job);
            return self.start_slot(driver, slot);
        }
        self.with_workers.insert(job.number, Label::of(&job));
        lane.workers.submit(job);
    }

    /// A job that was in line has ended, or ends here: those have turns that come next.
    fn leave_line(&mut self, driver: &mut Driver, now: Time, job: &Job) {
        let Some(lane) = self.lanes.get_mut(&job.goal) else { return };
        lane.line.left(now, job);
        while let Some(next) = self.lanes.get_mut(&job.goal).and_then(|it| it.line.next(now)) {
            self.give(driver, next);
        }
        self.drop_closed(job.goal);
    }

    /// Gives the ring what is left of a job.
    fn start_slot(&mut self, driver: &mut Driver, slot: u32) {
        let job = self.jobs.get_mut(slot).expect("a job of the ring");
        let device = job.device.as_ref().expect("the ring has only work on devices");
        let (offset, left) = (job.offset + job.done as u64, job.len - job.done as u64);
        let fd = device.file_for(offset, left).as_raw_fd();
        let buf = (std::mem::take(&mut job.buf), job.done);
        let ring = driver.ring().expect("jobs enter a ring only");
        match job.work {
            Work::Read => ring.read(slot, fd, offset, buf),
            Work::Write => ring.write(slot, fd, offset, buf),
            _ => ring.flush(slot, device.file().as_raw_fd()),
        }
    }

    /// Takes the ring's word on a slot: ends the job, or goes on with it if it was cut short.
    pub fn arrived(
        &mut self,
        driver: &mut Driver,
        now: Time,
        (slot, result, buf): (u32, i32, Option<Buf>),
        notices: &mut Notices,
    ) {
        let job = self.jobs.get_mut(slot).expect("an arrival for a job of the ring");
        job.buf = buf.unwrap_or_default();
        if job.given_up {
            // What it brought must not be believed any more.
            drop(self.leave_ring(driver, now, slot));
            return;
        }
        let again = matches!(-result, libc::EAGAIN | libc::EINTR) && job.tries < TRIES_MAX;
        if again {
            job.tries += 1;
            return self.start_slot(driver, slot);
        }
        let transfers = matches!(job.work, Work::Read | Work::Write);
        if result > 0 && transfers {
            (job.done, job.looks) = (job.done + result as usize, 0);
            assert!(job.done as u64 <= job.len);
            if (job.done as u64) < job.len {
                return self.start_slot(driver, slot);
            }
        }
        let result = match result {
            0 if transfers => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends before")),
            error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            _ => Ok(()),
        };
        if let Some(job) = self.leave_ring(driver, now, slot) {
            self.end_job(job, result, notices);
        }
    }

    /// The kernel is done with a job. It comes back if it was waited for.
    fn leave_ring(&mut self, driver: &mut Driver, now: Time, slot: u32) -> Option<Job> {
        let job = self.jobs.remove(slot).expect("a job of the ring");
        self.leave_line(driver, now, &job);
        (!job.given_up).then_some(job)
    }

    fn end_job(&mut self, job: Job, result: io::Result<()>, notices: &mut Notices) {
        let result = result.map_err(|e| {
            let error = io_error(&job.work, &e);
            if let (Goal::Member(..), Some(device)) = (job.goal, &job.device) {
                tiers::look_for_cut(device, notices);
            }
            if error != IoError::Unsupported {
                notices.send(Label::of(&job).failed(e.to_string(), error));
            }
            error
        });
        self.end(job.goal, job.op, result, job.buf);
    }

    fn end(&mut self, goal: Goal, op: OpId, result: Result<(), IoError>, buf: Buf) {
        let completion = Completion { result, buf };
        match goal {
            Goal::Engine(_) => self.done.push((op, completion)),
            Goal::Member(..) => self.done_below.push((goal, op, completion)),
        }
    }

    /// Appends what has ended.
    pub fn collect(
        &mut self,
        driver: &mut Driver,
        now: Time,
        out: &mut Vec<(OpId, Completion)>,
        notices: &mut Notices,
    ) {
        self.take_finished(driver, now, notices);
        self.turn_tiers(driver, now, notices);
        out.append(&mut self.done);
    }

    /// Takes in what threads, and origins that are no devices, have ended.
    fn take_finished(&mut self, driver: &mut Driver, now: Time, notices: &mut Notices) {
        let mut finished = std::mem::take(&mut self.finished);
        for (job, result) in finished.drain(..) {
            self.end_job(job, result, notices);
        }
        self.helper.collect(&mut finished);
        for lane in self.lanes.values_mut() {
            lane.workers.collect(&mut finished);
        }
        for (job, result) in finished.drain(..) {
            self.leave_line(driver, now, &job);
            // Of one that was given up the engine knows already.
            if self.with_workers.remove(&job.number).is_some() {
                self.end_job(job, result, notices);
            }
        }
        self.finished = finished;
        for origin in self.origins.values_mut() {
            origin.poll(now, &mut self.done);
        }
    }

    /// Whether [`Executor::collect`] has something without waiting.
    pub fn has_ended(&self) -> bool {
        let is_below = !self.done_below.is_empty() || !self.stirred.is_empty();
        is_below || !self.done.is_empty() || !self.finished.is_empty()
    }

    /// I/O that waits for the ring or threads, or that they carry out.
    pub fn under_way(&self) -> usize {
        let lanes = self.lanes.values().map(Lane::under_way).sum::<usize>();
        lanes + self.helper.under_way()
    }

    /// Begins nothing more that threads are to do. Whether none of them is at anything.
    pub fn threads_rest(&mut self) -> bool {
        let mut rest = self.helper.rests();
        for lane in self.lanes.values_mut() {
            rest &= lane.threads_rest();
        }
        rest
    }

    #[cfg(test)]
    fn has_begun(&self) -> bool {
        self.lanes.values().any(|lane| lane.workers.has_begun())
    }

    /// When to call [`Executor::collect`] and [`Executor::watch`] at the latest.
    pub fn next_due(&self) -> Option<Time> {
        let origins = self.origins.values().filter_map(Origin::next_due).min();
        let scan = (self.under_way() > 0).then_some(self.next_scan);
        origins.into_iter().chain(scan).min()
    }
}

/// The devices of an origin.
fn devices_of(volume: VolumeId, origin: &Origin) -> Vec<(Goal, Arc<Device>)> {
    match origin {
        Origin::File(device) => vec![(Goal::Engine(Target::Origin(volume)), Arc::clone(device))],
        Origin::Tiered(tiered) => {
            let devices = tiered
                .devices()
                .map(|(member, device)| (Goal::Member(volume, member), Arc::clone(device)));
            devices.collect()
        }
        Origin::Ram(..) | Origin::Spindle(..) => Vec::new(),
    }
}

fn origin_io(work: Work, offset: u64, buf: Buf) -> OriginIo {
    match work {
        Work::Read => OriginIo::Read { offset, buf },
        Work::Write => OriginIo::Write { offset, buf },
        Work::Flush => OriginIo::Flush,
        Work::Zero { len, unmap } => OriginIo::Zero { offset, len, unmap },
        Work::Discard { len } => OriginIo::Discard { offset, len },
        Work::Distrust { .. } => unreachable!("not for an origin"),
    }
}

#[cfg(test)]
mod tests;
