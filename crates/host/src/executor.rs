//! Carries out the engine's I/O effects on cache devices and origins, and says how each ended.

pub(crate) mod distrust;
mod job;
mod workers;

pub use distrust::{note as note_distrust, read as read_distrust};

use crate::device::Device;
use crate::driver::Driver;
use crate::notice::{HostNotice, Notices};
use crate::origin::{Holes, Origin, OriginIo, OriginSize};
use crate::slab::Slab;
use crate::waker::Waker;
use forebay_engine::{Buf, Completion, DeviceId, Effect, IoError, OpId, Target, Time, VolumeId};
use job::{Job, Work, io_error};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workers::Workers;

/// Threads for what a ring cannot do.
const HELPERS_MAX: usize = 4;
/// Threads where there is no ring.
const WORKERS_MAX: usize = 24;
/// Times that an I/O is tried again when the kernel says EAGAIN or EINTR.
const TRIES_MAX: u32 = 1000;
/// I/O on a file in memory up to this size is done on the spot, in bytes: a copy costs less than handing it
/// to the ring, which hands it to a thread on such files.
const IN_PLACE_MAX: u64 = 64 << 10;
/// After this time an I/O is reported as slow, in nanoseconds.
const SLOW_NS: Time = 30_000_000_000;
/// How often to look for slow ones, in nanoseconds.
const SCAN_NS: Time = 1_000_000_000;

/// The I/O side of a shard.
pub(crate) struct Executor {
    devices: Vec<Option<Arc<Device>>>,
    origins: BTreeMap<VolumeId, Origin>,
    /// I/O that the ring carries out.
    jobs: Slab<Job>,
    workers: Workers,
    /// I/O that the workers carry out: they hold the jobs.
    with_workers: BTreeMap<OpId, Label>,
    distrust_file: PathBuf,
    /// What ended and was not collected.
    done: Vec<(OpId, Completion)>,
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
        has_ring: bool,
        waker: Waker,
    ) -> Executor {
        Executor {
            devices: devices.into_iter().map(|device| device.map(Arc::new)).collect(),
            origins,
            jobs: Slab::default(),
            workers: Workers::new(if has_ring { HELPERS_MAX } else { WORKERS_MAX }, waker),
            with_workers: BTreeMap::new(),
            distrust_file: distrust::file(state_dir, pool),
            done: Vec::new(),
            finished: Vec::new(),
            next_scan: 0,
        }
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
    pub fn add_origin(&mut self, volume: VolumeId, origin: Origin) {
        let before = self.origins.insert(volume, origin);
        assert!(before.is_none(), "volume numbers are not used twice");
    }

    /// Closes the origin of a volume. I/O under way on it ends first.
    pub fn remove_origin(&mut self, volume: VolumeId) {
        self.origins.remove(&volume);
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
        let device = match (&work, target) {
            (Work::Distrust { .. }, _) => None,
            (_, Target::Cache(device)) => {
                match self.devices.get(usize::from(device.0)).and_then(Option::as_ref) {
                    Some(device) => Some(Arc::clone(device)),
                    None => return self.end(op, Err(IoError::Io), buf),
                }
            }
            (_, Target::Origin(volume)) => match self.origins.get_mut(&volume) {
                Some(Origin::File(device)) => Some(Arc::clone(device)),
                Some(origin) => return origin.submit(op, origin_io(work, offset, buf), now),
                None => return self.end(op, Err(IoError::Gone), buf),
            },
        };
        let (done, tries, told) = (0, 0, false);
        let job = Job { op, device, work, offset, buf, done, tries, started: now, told };
        self.start_job(driver, job);
    }

    fn start_job(&mut self, driver: &mut Driver, mut job: Job) {
        match (&job.work, &job.device) {
            (Work::Read | Work::Write | Work::Flush, Some(device))
                if device.info().in_memory && job.len() <= IN_PLACE_MAX =>
            {
                let result = job.perform();
                self.finished.push((job, result));
            }
            (Work::Flush, Some(device)) if !device.needs_flush() => {
                self.end(job.op, Ok(()), job.buf);
            }
            (Work::Read | Work::Write | Work::Flush, Some(_)) if driver.has_ring() => {
                let slot = self.jobs.insert(job);
                self.start_slot(driver, slot);
            }
            _ => {
                self.with_workers.insert(job.op, Label::of(&job));
                self.workers.submit(job);
            }
        }
    }

    /// Gives the ring what is left of a job.
    fn start_slot(&mut self, driver: &mut Driver, slot: u32) {
        let job = self.jobs.get_mut(slot).expect("a job of the ring");
        let device = job.device.as_ref().expect("the ring has only work on devices");
        let offset = job.offset + job.done as u64;
        let left = (&mut job.buf, job.done);
        match job.work {
            // SAFETY: job, buffer and device stay in the slab, untouched, until this slot arrives.
            Work::Read => unsafe { driver.read(slot, device, offset, left) },
            // SAFETY: as above.
            Work::Write => unsafe { driver.write(slot, device, offset, left) },
            _ => driver.flush(slot, device),
        }
    }

    /// Takes the ring's word on a slot: ends the job, or goes on with it if it was cut short.
    pub fn arrived(&mut self, driver: &mut Driver, slot: u32, result: i32, notices: &mut Notices) {
        let job = self.jobs.get_mut(slot).expect("an arrival for a job of the ring");
        let again = matches!(-result, libc::EAGAIN | libc::EINTR) && job.tries < TRIES_MAX;
        if again {
            job.tries += 1;
            return self.start_slot(driver, slot);
        }
        let transfers = matches!(job.work, Work::Read | Work::Write);
        if result > 0 && transfers {
            job.done += result as usize;
            assert!(job.done <= job.buf.len());
            if job.done < job.buf.len() {
                return self.start_slot(driver, slot);
            }
        }
        let result = match result {
            0 if transfers => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends before")),
            error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            _ => Ok(()),
        };
        let job = self.jobs.remove(slot).expect("seen above");
        self.end_job(job, result, notices);
    }

    fn end_job(&mut self, job: Job, result: io::Result<()>, notices: &mut Notices) {
        let result = result.map_err(|e| {
            let error = io_error(&job.work, &e);
            if error != IoError::Unsupported {
                notices.send(Label::of(&job).failed(e.to_string(), error));
            }
            error
        });
        self.end(job.op, result, job.buf);
    }

    fn end(&mut self, op: OpId, result: Result<(), IoError>, buf: Buf) {
        self.done.push((op, Completion { result, buf }));
    }

    /// Appends what has ended.
    pub fn collect(&mut self, now: Time, out: &mut Vec<(OpId, Completion)>, notices: &mut Notices) {
        let mut finished = std::mem::take(&mut self.finished);
        self.workers.collect(&mut finished);
        for (job, result) in finished.drain(..) {
            self.with_workers.remove(&job.op);
            self.end_job(job, result, notices);
        }
        self.finished = finished;
        for origin in self.origins.values_mut() {
            origin.poll(now, &mut self.done);
        }
        out.append(&mut self.done);
    }

    /// Whether [`Executor::collect`] has something without waiting.
    pub fn has_ended(&self) -> bool {
        !self.done.is_empty() || !self.finished.is_empty()
    }

    /// I/O that the ring or threads carry out.
    pub fn under_way(&self) -> usize {
        self.jobs.len() + self.workers.under_way()
    }

    /// When to call [`Executor::collect`] and [`Executor::watch`] at the latest.
    pub fn next_due(&self) -> Option<Time> {
        let origins = self.origins.values().filter_map(Origin::next_due).min();
        let under_way = self.jobs.len() + self.with_workers.len();
        let scan = (under_way > 0).then_some(self.next_scan);
        origins.into_iter().chain(scan).min()
    }

    /// Reports I/O that takes too long, each once.
    pub fn watch(&mut self, now: Time, notices: &mut Notices) {
        if now < self.next_scan {
            return;
        }
        self.next_scan = now + SCAN_NS;
        for (_, job) in self.jobs.iter_mut() {
            if !job.told && now.saturating_sub(job.started) > SLOW_NS {
                job.told = true;
                notices.send(Label::of(job).slow(now));
            }
        }
        for label in self.with_workers.values_mut() {
            if !label.told && now.saturating_sub(label.started) > SLOW_NS {
                label.told = true;
                notices.send(label.slow(now));
            }
        }
    }

    /// Forgets I/O that never ended, with its memory, which a device may still write to.
    pub fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.jobs));
    }
}

/// What messages tell of an I/O.
struct Label {
    verb: &'static str,
    device: Option<Arc<Device>>,
    offset: u64,
    len: u64,
    started: Time,
    told: bool,
}

impl Label {
    fn of(job: &Job) -> Label {
        let device = job.device.clone();
        let (verb, len) = (job.verb(), job.len());
        Label { verb, device, offset: job.offset, len, started: job.started, told: job.told }
    }

    /// Which I/O on which device.
    fn what(&self) -> String {
        match &self.device {
            Some(device) => format!("{} {}", self.verb, device.path().display()),
            None => self.verb.to_owned(),
        }
    }

    fn slow(&self, now: Time) -> HostNotice {
        let (what, seconds) = (self.what(), (now - self.started) / 1_000_000_000);
        HostNotice::IoSlow { what, offset: self.offset, len: self.len, seconds }
    }

    fn failed(&self, reason: String, error: IoError) -> HostNotice {
        let (what, no_space) = (self.what(), error == IoError::NoSpace);
        HostNotice::IoFailed { what, offset: self.offset, len: self.len, reason, no_space }
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
