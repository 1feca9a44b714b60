//! A device with what is under way on it. Devices share nothing that one of them could use up:
//! where one ends nothing any more, the others go on.

use super::job::Work;
use super::line::Line;
use super::workers::Workers;
use crate::device::Device;
use forebay_sys::waker::Waker;
use std::sync::Arc;

/// I/O of one device in the ring at once. Where the kernel cannot start it at once, each takes one
/// of its threads; more waits in line.
pub(super) const RING_MAX: usize = RING_LARGE_MAX + RING_MORE;
/// Of these large ones at most, and places that are left to small ones.
const RING_LARGE_MAX: usize = 128;
const RING_MORE: usize = 16;
/// Threads of a device for what a ring cannot do.
const HELPERS_MAX: usize = 4;
/// Threads of a device where there is no ring, or none that may be used.
const WORKERS_MAX: usize = WORKERS_LARGE_MAX + WORKERS_MORE;
/// At large I/O at most, and threads that are left to small ones.
const WORKERS_LARGE_MAX: usize = 24;
const WORKERS_MORE: usize = 8;

/// I/O on a file in memory up to this size is done on the spot, in bytes: a copy costs less than
/// handing it to the ring, which hands it to a thread on such files.
const INLINE_MAX: u64 = 64 << 10;

/// How an I/O on a file or block device is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// In line, by the ring or by threads of the device's own.
    Line,
    /// By those threads, past the line: what takes as long as it takes.
    Workers,
    /// At once, by the shard.
    Inline,
    /// Nothing is to be done: a FLUSH of what has no volatile cache.
    Nothing,
}

pub(super) struct Lane {
    device: Arc<Device>,
    pub workers: Workers,
    pub line: Line,
    uses_ring: bool,
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
        let (threads_max, line) = match uses_ring {
            true => (HELPERS_MAX, Line::new(RING_LARGE_MAX, RING_MORE)),
            false => (WORKERS_MAX, Line::new(WORKERS_LARGE_MAX, WORKERS_MORE)),
        };
        Lane {
            device,
            workers: Workers::new(threads_max, waker),
            line,
            uses_ring,
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
        match work {
            Work::Flush if !self.device.needs_flush() => Way::Nothing,
            _ => Way::Line,
        }
    }

    /// Whether what is in line is for the ring, and not for threads.
    pub fn uses_ring(&self) -> bool {
        self.uses_ring
    }

    /// I/O under way.
    pub fn under_way(&self) -> usize {
        let in_ring = if self.uses_ring { self.line.given() } else { 0 };
        in_ring + self.line.waiting() + self.workers.under_way()
    }

    /// Begins nothing more that threads are to do. Whether none of them is at anything.
    pub fn threads_rest(&mut self) -> bool {
        if !self.uses_ring {
            self.line.drain().for_each(drop);
        }
        self.workers.rests()
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
