//! A device with what is under way on it. Devices share nothing that one of them could use up:
//! where one ends nothing any more, the others go on.

use super::job::{Job, Work};
use super::workers::Workers;
use crate::device::Device;
use forebay_sys::waker::Waker;
use std::collections::VecDeque;
use std::sync::Arc;

/// I/O of one device in the ring at once. Where the kernel cannot start it at once, each takes one
/// of its threads; more waits here.
pub(super) const RING_MAX: usize = 128;
/// Threads of a device for what a ring cannot do.
const HELPERS_MAX: usize = 4;
/// Threads of a device where there is no ring, or none that may be used.
const WORKERS_MAX: usize = 24;

/// I/O on a file in memory up to this size is done on the spot, in bytes: a copy costs less than
/// handing it to the ring, which hands it to a thread on such files.
const INLINE_MAX: u64 = 64 << 10;

/// How an I/O on a file or block device is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Ring,
    /// Threads of the device's own.
    Workers,
    /// At once, by the shard.
    Inline,
    /// Nothing is to be done: a FLUSH of what has no volatile cache.
    Nothing,
}

pub(super) struct Lane {
    device: Arc<Device>,
    pub workers: Workers,
    uses_ring: bool,
    in_ring: usize,
    /// What waits for room in the ring.
    waiting: VecDeque<Job>,
    /// Looks that the oldest I/O under way has seen.
    oldest: u32,
    /// Nothing of it is waited for any more.
    pub given_up: bool,
    /// The origin is not used any more; what is under way ends.
    pub closed: bool,
}

impl Lane {
    /// `has_ring`: there is one. Whether it is used depends on the device, too: where starting an
    /// I/O may wait for another program or a machine, it must not be the shard that waits.
    pub fn new(device: Arc<Device>, has_ring: bool, waker: Waker) -> Lane {
        let uses_ring = has_ring && !device.info().may_wait;
        let threads_max = if uses_ring { HELPERS_MAX } else { WORKERS_MAX };
        Lane {
            device,
            workers: Workers::new(threads_max, waker),
            uses_ring,
            in_ring: 0,
            waiting: VecDeque::new(),
            oldest: 0,
            given_up: false,
            closed: false,
        }
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// How work on so many bytes is done.
    pub fn way(&self, work: &Work, len: u64) -> Way {
        if !matches!(work, Work::Read | Work::Write | Work::Flush) {
            return Way::Workers;
        }
        if self.device.info().in_memory && len <= INLINE_MAX {
            return Way::Inline;
        }
        match self.uses_ring {
            _ if matches!(work, Work::Flush) && !self.device.needs_flush() => Way::Nothing,
            true => Way::Ring,
            false => Way::Workers,
        }
    }

    /// A job is to be given to the ring: it comes back if there is room.
    pub fn enter(&mut self, job: Job) -> Option<Job> {
        if self.in_ring >= RING_MAX {
            self.waiting.push_back(job);
            return None;
        }
        self.in_ring += 1;
        Some(job)
    }

    /// A job has left the ring. The next that may enter.
    pub fn left(&mut self) -> Option<Job> {
        let next = self.waiting.pop_front();
        self.in_ring -= usize::from(next.is_none());
        next
    }

    /// I/O under way.
    pub fn under_way(&self) -> usize {
        self.in_ring + self.waiting.len() + self.workers.under_way()
    }

    /// What waits for room in the ring.
    pub fn waiting(&mut self) -> &mut VecDeque<Job> {
        &mut self.waiting
    }

    /// One look at what is under way, of which `in_ring` says how many the oldest in the ring has
    /// seen. They are counted, and not the time: that may pass while this process does not run.
    pub fn look(&mut self, in_ring: u32) {
        self.oldest = in_ring.max(self.workers.look());
    }

    /// Looks that the oldest I/O under way has seen: one that never ends holds up what needs it,
    /// whatever else the device ends meanwhile.
    pub fn oldest(&self) -> u32 {
        self.oldest
    }
}
