//! How long the disks of a large world take: a flash device with a rate, and a hard disk whose
//! FLUSH costs what is in its cache. Coarser than real ones, and of the same shape.

use forebay_engine::Time;
use std::collections::BTreeSet;

const MICROSECOND: Time = 1_000;
/// Longest seek of a hard disk, from one end to the other.
const SEEK_NS: Time = 8_000 * MICROSECOND;
/// Half a turn.
const TURN_NS: Time = 4_000 * MICROSECOND;
/// What each write costs that the disk takes out of its cache in order, beside the way there.
const SETTLE_NS: Time = 100 * MICROSECOND;
/// A block under the head.
const BLOCK_NS: Time = 25 * MICROSECOND;
/// A write into the disk's cache.
const CACHED_NS: Time = 60 * MICROSECOND;

/// What is asked of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Flush,
}

/// When a disk is done.
#[derive(Debug)]
pub enum Clock {
    Flash(Flash),
    Spindle(Spindle),
}

impl Clock {
    /// When an I/O that is submitted now ends; blocks are of 4 KiB.
    pub fn ends(&mut self, now: Time, kind: Kind, first: u64, blocks: u64) -> Time {
        match self {
            Clock::Flash(flash) => flash.ends(now, kind, blocks),
            Clock::Spindle(spindle) => spindle.ends(now, kind, first, blocks),
        }
    }

    /// The longest that a bare disk lets one of its own requests wait: behind a FLUSH of a full
    /// cache, and one of each client before it.
    pub fn worst_ns(&self, clients: u64) -> Time {
        match self {
            Clock::Flash(flash) => flash.flush_ns + clients * (flash.read_ns + flash.write_ns),
            Clock::Spindle(spindle) => spindle.flush_full_ns() + clients * (SEEK_NS / 2 + TURN_NS),
        }
    }
}

/// A flash device: a latency, a rate of I/Os, a rate of bytes.
#[derive(Debug)]
pub struct Flash {
    pub read_ns: Time,
    pub write_ns: Time,
    pub flush_ns: Time,
    /// Time of the device that each I/O takes, and each block.
    pub io_ns: Time,
    pub block_ns: Time,
    free_at: Time,
}

impl Flash {
    /// A device of so many blocks a second.
    pub fn new(blocks_per_s: u64, flush_ns: Time) -> Flash {
        Flash {
            read_ns: 90 * MICROSECOND,
            write_ns: 30 * MICROSECOND,
            flush_ns,
            io_ns: 12 * MICROSECOND,
            block_ns: 1_000_000_000 / blocks_per_s,
            free_at: 0,
        }
    }

    /// A volume of a cloud: so many I/Os a second, of up to 16 blocks.
    pub fn capped(ios_per_s: u64) -> Flash {
        let io_ns = 1_000_000_000 / ios_per_s;
        Flash {
            read_ns: io_ns / 2,
            write_ns: io_ns / 2,
            io_ns,
            ..Flash::new(16 * ios_per_s, 2_000 * MICROSECOND)
        }
    }

    fn ends(&mut self, now: Time, kind: Kind, blocks: u64) -> Time {
        let from = self.free_at.max(now);
        match kind {
            Kind::Flush => from + self.flush_ns,
            Kind::Read | Kind::Write => {
                self.free_at = from + self.io_ns.max(blocks * self.block_ns);
                self.free_at + if kind == Kind::Read { self.read_ns } else { self.write_ns }
            }
        }
    }
}

/// A hard disk with a volatile cache: writes end in it while it has room; a FLUSH sweeps it in
/// order.
#[derive(Debug)]
pub struct Spindle {
    blocks: u64,
    cache_blocks: usize,
    cached: BTreeSet<u64>,
    head: u64,
    free_at: Time,
    /// Time spent in FLUSHes, and in all.
    pub flush_ns: Time,
    pub busy_ns: Time,
}

impl Spindle {
    /// A disk of so many blocks.
    pub fn new(blocks: u64, cache_blocks: usize) -> Spindle {
        Spindle {
            blocks,
            cache_blocks,
            cached: BTreeSet::new(),
            head: 0,
            free_at: 0,
            flush_ns: 0,
            busy_ns: 0,
        }
    }

    fn seek_ns(&self, to: u64) -> Time {
        let share = self.head.abs_diff(to) as f64 / self.blocks as f64;
        (SEEK_NS as f64 * share.sqrt()) as Time
    }

    /// A write that the disk chose itself, as the next on its way.
    fn destage(&mut self, block: u64) -> Time {
        let takes = match block == self.head {
            true => BLOCK_NS,
            false => SETTLE_NS + self.seek_ns(block) / 4,
        };
        self.head = block + 1;
        takes
    }

    fn take_nearest(&mut self) -> Option<u64> {
        let next = self.cached.range(self.head..).next().or(self.cached.first()).copied()?;
        self.cached.remove(&next);
        Some(next)
    }

    fn flush_full_ns(&self) -> Time {
        let gap = 1.0 / self.cache_blocks.max(1) as f64;
        let each = SETTLE_NS + (SEEK_NS as f64 * gap.sqrt()) as Time / 4;
        self.cache_blocks as Time * each + SEEK_NS
    }

    fn ends(&mut self, now: Time, kind: Kind, first: u64, blocks: u64) -> Time {
        let from = self.free_at.max(now);
        let mut at = from;
        match kind {
            Kind::Read => {
                at += self.seek_ns(first) + TURN_NS + blocks * BLOCK_NS;
                self.head = first + blocks;
            }
            Kind::Write => {
                for block in first..first + blocks {
                    if self.cached.len() >= self.cache_blocks
                        && let Some(next) = self.take_nearest()
                    {
                        at += self.destage(next);
                    }
                    self.cached.insert(block);
                }
                if at == from {
                    // It goes into the cache beside what the head is doing.
                    return now + CACHED_NS;
                }
            }
            Kind::Flush => {
                while let Some(next) = self.take_nearest() {
                    at += self.destage(next);
                }
                self.flush_ns += at - from;
            }
        }
        self.busy_ns += at - from;
        self.free_at = at;
        at
    }
}
