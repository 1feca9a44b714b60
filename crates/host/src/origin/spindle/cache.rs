//! The drive's memory: which written ranges wait to go to the media, and which ranges were read
//! ahead.

use std::collections::{BTreeMap, VecDeque};

/// The volatile write cache: ranges that the drive has acknowledged and not yet written. Timing
/// only.
#[derive(Debug, Default)]
pub struct WriteCache {
    /// First byte to end; never overlapping, never touching.
    ranges: BTreeMap<u64, u64>,
    /// Bytes in `ranges`.
    bytes: u64,
    /// Bytes that the arm is writing now.
    leaving: u64,
    bytes_max: u64,
    ranges_max: usize,
}

impl WriteCache {
    /// Most bytes that one trip of the arm writes.
    const TRIP_BYTES_MAX: u64 = 1 << 20;
    /// Ranges ahead of the arm among which the nearest is chosen.
    const WINDOW: usize = 32;

    /// An empty cache. `bytes_max` 0 turns it off.
    pub fn new(bytes_max: u64, ranges_max: usize) -> WriteCache {
        WriteCache { bytes_max, ranges_max: ranges_max.max(1), ..WriteCache::default() }
    }

    /// Whether a write of `len` bytes may be cached at all.
    pub fn takes(&self, len: u64) -> bool {
        len <= self.bytes_max
    }

    /// Whether there is room now.
    pub fn fits(&self, offset: u64, len: u64) -> bool {
        let room = self.bytes + self.leaving + len <= self.bytes_max;
        room && (self.ranges.len() < self.ranges_max || self.touches(offset, offset + len))
    }

    /// Whether nothing is left to write, not even under way.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.leaving == 0
    }

    /// Whether ranges wait for the arm.
    pub fn has_waiting(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Whether it is more than half full, in bytes or in ranges.
    pub fn presses(&self) -> bool {
        self.bytes * 2 > self.bytes_max || self.ranges.len() * 2 > self.ranges_max
    }

    fn touches(&self, offset: u64, end: u64) -> bool {
        self.ranges.range(..=end).next_back().is_some_and(|(_, &e)| e >= offset)
    }

    /// Whether all of the range is here.
    pub fn covers(&self, offset: u64, end: u64) -> bool {
        self.ranges.range(..=offset).next_back().is_some_and(|(_, &e)| e >= end)
    }

    /// Takes a range in, joining it with its neighbours.
    pub fn insert(&mut self, offset: u64, len: u64) {
        let (mut start, mut end) = (offset, offset + len);
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.ranges.remove(&s);
            self.bytes -= e - s;
            (start, end) = (start.min(s), end.max(e));
        }
        self.ranges.insert(start, end);
        self.bytes += end - start;
    }

    /// The trips that may come next: the ranges ahead of byte `from`, and around the end of the
    /// disk.
    pub fn trips(&self, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let ahead = self.ranges.range(from..);
        let around = self.ranges.range(..from);
        ahead
            .chain(around)
            .take(WriteCache::WINDOW)
            .map(|(&offset, &end)| (offset, (end - offset).min(WriteCache::TRIP_BYTES_MAX)))
    }

    /// The arm sets out with `len` bytes of the range that begins at `offset`.
    pub fn set_out(&mut self, offset: u64, len: u64) {
        assert_eq!(self.leaving, 0);
        let end = self.ranges.remove(&offset).expect("a trip starts at a range");
        assert!(offset + len <= end);
        if offset + len < end {
            self.ranges.insert(offset + len, end);
        }
        self.bytes -= len;
        self.leaving = len;
    }

    /// The arm has written what it set out with.
    pub fn arrived(&mut self) {
        assert!(self.leaving > 0);
        self.leaving = 0;
    }
}

/// Ranges that were read, by the host or ahead of it, newest last.
#[derive(Debug)]
pub struct ReadRanges {
    ranges: VecDeque<(u64, u64)>,
    count_max: usize,
    bytes_max: u64,
}

impl ReadRanges {
    /// Keeps up to `count_max` ranges of at most `bytes_max` bytes each.
    pub fn new(count_max: usize, bytes_max: u64) -> ReadRanges {
        ReadRanges { ranges: VecDeque::new(), count_max, bytes_max }
    }

    /// Whether all of the range is here.
    pub fn covers(&self, offset: u64, end: u64) -> bool {
        self.ranges.iter().any(|&(s, e)| s <= offset && end <= e)
    }

    /// Keeps the end of a range.
    pub fn push(&mut self, start: u64, end: u64) {
        if self.count_max == 0 || self.bytes_max == 0 || start >= end {
            return;
        }
        if self.ranges.len() == self.count_max {
            self.ranges.pop_front();
        }
        self.ranges.push_back((start.max(end.saturating_sub(self.bytes_max)), end));
    }
}
