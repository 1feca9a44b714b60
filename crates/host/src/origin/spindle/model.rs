//! The timing of a hard disk, and nothing else: no clock, no data, no chance. The same commands at
//! the same times end at the same times.
//!
//! Commands wait in order until the drive takes them (at most `queue_depth` at once; a FLUSH is
//! taken alone). Of those that need the arm, the one with the shortest access time goes first.
//! Writes end when they are in the write cache; the arm carries them to the media when nobody waits
//! for it or the cache fills.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use forebay_engine::Time;

use super::cache::{ReadRanges, WriteCache};
use super::drive::Drive;
use super::geometry::Geometry;

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads a range.
    Read,
    /// Writes a range.
    Write,
    /// Writes zeros to a range: takes the media's time, not the cable's, and goes around the write
    /// cache.
    Zero,
    /// Tells that a range is no longer needed. Takes no more than the electronics' time.
    Discard,
    /// Empties the write cache.
    Flush,
}

/// A command. `offset` and `len` are bytes, multiples of 512, within the disk.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// Its name, unique among those under way.
    pub id: u64,
    /// What it does.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A command that the drive has taken.
#[derive(Debug, Clone, Copy)]
struct Taken {
    access: Access,
    /// When the drive took it.
    at: Time,
    /// When its electronics have understood it.
    ready: Time,
}

/// What the arm does.
#[derive(Debug, Clone, Copy)]
enum Work {
    Command(Access),
    Destage,
}

/// What the arm could do next, and when it would be done.
#[derive(Debug, Clone, Copy)]
enum Choice {
    Command(usize),
    Destage(u64, u64),
}

/// Reading on after a read: the head passes `byte` at `at`, and stops at `limit`.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    start: u64,
    byte: u64,
    at: Time,
    limit: u64,
}

/// A hard disk's timing.
#[derive(Debug)]
pub struct SpindleModel {
    drive: Drive,
    geometry: Geometry,
    bytes: u64,
    now: Time,
    waiting: VecDeque<Access>,
    /// Commands taken and not yet answered.
    taken_count: usize,
    /// Taken commands that need the arm.
    queue: Vec<Taken>,
    /// Taken writes that need room in the write cache, in order.
    for_room: VecDeque<Taken>,
    /// Commands that end without the arm.
    ending: BinaryHeap<Reverse<(Time, u64)>>,
    flush: Option<Taken>,
    arm: Option<(Time, Work)>,
    /// The byte after the last that passed the head, and when it did.
    head: (u64, Time),
    ahead: Option<Ahead>,
    cable_free: Time,
    /// When the arm may carry cached writes although the cache has room.
    idle_at: Time,
    cache: WriteCache,
    read: ReadRanges,
    done: Vec<u64>,
}

impl SpindleModel {
    /// How long nobody must ask before cached writes are carried to the media.
    const IDLE_NS: u64 = 5_000_000;
    /// A command's access time counts as shorter by its age divided by this.
    const AGE_SHARE: u64 = 32;

    /// A disk of `bytes` bytes at rest, its cache empty.
    pub fn new(drive: Drive, bytes: u64) -> SpindleModel {
        assert!(bytes >= 512);
        let geometry = Geometry::new(&drive, bytes);
        SpindleModel {
            cache: WriteCache::new(drive.cache_bytes, drive.cache_ranges),
            read: ReadRanges::new(drive.read_ranges, drive.read_ahead_bytes.saturating_mul(2)),
            geometry,
            drive,
            bytes,
            now: 0,
            waiting: VecDeque::new(),
            taken_count: 0,
            queue: Vec::new(),
            for_room: VecDeque::new(),
            ending: BinaryHeap::new(),
            flush: None,
            arm: None,
            head: (0, 0),
            ahead: None,
            cable_free: 0,
            idle_at: 0,
            done: Vec::new(),
        }
    }

    /// Gives the drive a command.
    pub fn submit(&mut self, access: Access, now: Time) {
        assert!(access.offset + access.len <= self.bytes);
        assert!(access.offset.is_multiple_of(512));
        assert!(access.len.is_multiple_of(512));
        self.run(now);
        self.waiting.push_back(access);
        self.run(now);
    }

    /// Appends the commands that have ended by `now`, in the order of their ends.
    pub fn poll(&mut self, now: Time, out: &mut Vec<u64>) {
        self.run(now);
        out.append(&mut self.done);
    }

    /// When something ends or starts next; `None` when the disk is at rest.
    pub fn next_due(&self) -> Option<Time> {
        if self.done.is_empty() { self.next_event() } else { Some(self.now) }
    }

    /// Commands given and not yet ended.
    pub fn pending(&self) -> usize {
        self.waiting.len() + self.taken_count
    }

    /// Whether the write cache is empty.
    pub fn is_clean(&self) -> bool {
        self.cache.is_empty()
    }

    fn run(&mut self, to: Time) {
        loop {
            self.take_commands();
            self.start_arm();
            match self.next_event() {
                Some(time) if time <= to => {
                    assert!(time >= self.now);
                    self.now = time;
                    self.end_due();
                }
                _ => break,
            }
        }
        self.now = self.now.max(to);
    }

    fn next_event(&self) -> Option<Time> {
        let mut next = self.ending.peek().map(|Reverse((time, _))| *time);
        let mut consider = |time: Time| next = Some(next.map_or(time, |n: Time| n.min(time)));
        if let Some((time, _)) = self.arm {
            consider(time);
            return next;
        }
        self.queue.iter().for_each(|taken| consider(taken.ready));
        if let Some(flush) = self.flush {
            consider(flush.ready);
        } else if self.cache.has_waiting() {
            consider(self.idle_at);
        }
        next.map(|time| time.max(self.now))
    }

    /// Ends what is due now.
    fn end_due(&mut self) {
        while let Some(Reverse((time, id))) = self.ending.peek().copied()
            && time <= self.now
        {
            self.ending.pop();
            self.end(id);
        }
        if let Some((time, work)) = self.arm
            && time <= self.now
        {
            self.arm = None;
            match work {
                Work::Destage => self.cache.arrived(),
                Work::Command(access) => self.end(access.id),
            }
        }
        if let Some(flush) = self.flush
            && flush.ready <= self.now
            && self.cache.is_empty()
        {
            self.flush = None;
            self.end(flush.access.id);
        }
    }

    fn end(&mut self, id: u64) {
        self.taken_count -= 1;
        self.done.push(id);
        self.idle_at = self.now + SpindleModel::IDLE_NS;
    }

    fn take_commands(&mut self) {
        while let Some(&access) = self.waiting.front() {
            let alone = access.kind == Kind::Flush;
            let limit = if alone { 1 } else { self.drive.queue_depth };
            if self.flush.is_some() || self.taken_count >= limit {
                break;
            }
            self.waiting.pop_front();
            self.taken_count += 1;
            self.take(Taken { access, at: self.now, ready: self.now + self.drive.overhead_ns });
        }
        self.place_writes();
    }

    fn take(&mut self, taken: Taken) {
        let access = taken.access;
        let end = access.offset + access.len;
        self.idle_at = self.now + SpindleModel::IDLE_NS;
        match access.kind {
            Kind::Flush => self.flush = Some(taken),
            Kind::Discard => self.ending.push(Reverse((taken.ready, access.id))),
            Kind::Read if self.in_memory(access.offset, end, taken.ready) => self.send(taken),
            Kind::Write if self.cache.takes(access.len) => self.for_room.push_back(taken),
            Kind::Read | Kind::Write | Kind::Zero => self.queue.push(taken),
        }
    }

    /// Moves writes into the cache as far as there is room.
    fn place_writes(&mut self) {
        while let Some(&taken) = self.for_room.front()
            && self.cache.fits(taken.access.offset, taken.access.len)
        {
            self.for_room.pop_front();
            self.cache.insert(taken.access.offset, taken.access.len);
            self.send(taken);
        }
    }

    /// Ends a command when its data has passed the cable.
    fn send(&mut self, taken: Taken) {
        let nanos = u128::from(taken.access.len) * 1_000_000_000;
        let start = self.now.max(taken.ready).max(self.cable_free);
        self.cable_free = start + (nanos / u128::from(self.drive.rate_interface)) as u64;
        self.ending.push(Reverse((self.cable_free, taken.access.id)));
    }

    /// Whether a read needs no media. A read that finds its data ahead keeps the head reading on.
    fn in_memory(&mut self, offset: u64, end: u64, now: Time) -> bool {
        if self.cache.covers(offset, end) || self.read.covers(offset, end) {
            return true;
        }
        let Some(ahead) = self.ahead else { return false };
        let reached = self.reached(&ahead, now);
        if self.arm.is_some() || offset < ahead.start || end > reached {
            return false;
        }
        let mut next = ahead;
        next.limit = self.ahead_limit(end).max(ahead.limit);
        if reached == ahead.limit && next.limit > ahead.limit {
            // The head had stopped: it waits for the sector to come round again.
            next.byte = reached;
            next.at = now + self.geometry.rotation_ns(now, reached.min(self.bytes - 512));
        }
        self.ahead = Some(next);
        true
    }

    fn ahead_limit(&self, end: u64) -> u64 {
        (end + self.drive.read_ahead_bytes).min(self.bytes)
    }

    /// The end of what has been read ahead by `now`.
    fn reached(&self, ahead: &Ahead, now: Time) -> u64 {
        let bytes = self.geometry.bytes_in(ahead.byte - 512, now.saturating_sub(ahead.at));
        (ahead.byte + bytes).min(ahead.limit).max(ahead.byte.min(ahead.limit))
    }

    /// When the arm would be done with an access that it starts now.
    fn done_at(&self, access: &Access) -> Time {
        let (offset, end) = (access.offset, access.offset + access.len);
        let geometry = &self.geometry;
        if access.kind == Kind::Read
            && let Some(ahead) = &self.ahead
            && offset >= ahead.start
            && offset <= self.reached(ahead, self.now)
            && end > ahead.byte
            && self.reached(ahead, self.now) < ahead.limit
        {
            let passes = geometry.stream_end_ns(end) - geometry.stream_end_ns(ahead.byte);
            return self.now.max(ahead.at + passes);
        }
        if (offset, self.now) == self.head {
            return match offset {
                0 => self.now + geometry.stream_end_ns(end),
                _ => self.now + geometry.stream_end_ns(end) - geometry.stream_end_ns(offset),
            };
        }
        let from = match &self.ahead {
            Some(ahead) => self.reached(ahead, self.now),
            None => self.head.0,
        };
        let from = geometry.track(from.clamp(512, self.bytes) - 512);
        let mut seek = geometry.seek_ns(from, geometry.track(offset));
        if seek > 0 && access.kind != Kind::Read {
            seek += self.drive.settle_write_ns;
        }
        let there = self.now + seek;
        there + geometry.rotation_ns(there, offset) + geometry.stream_end_ns(end)
            - geometry.stream_ns(offset)
    }

    /// Sets the arm to work if it is free and there is something to do.
    fn start_arm(&mut self) {
        if self.arm.is_some() {
            return;
        }
        match self.choose() {
            None => {}
            Some((due, Choice::Command(index))) => {
                let access = self.queue.swap_remove(index).access;
                self.move_head(&access, due);
                self.arm = Some((due, Work::Command(access)));
            }
            Some((due, Choice::Destage(offset, len))) => {
                self.cache.set_out(offset, len);
                self.move_head(&Access { id: 0, kind: Kind::Write, offset, len }, due);
                self.arm = Some((due, Work::Destage));
            }
        }
    }

    /// Shortest access time first, less a share of the age; a command that has waited too long
    /// before all.
    fn choose(&self) -> Option<(Time, Choice)> {
        let ready = |taken: &Taken| taken.ready <= self.now;
        let oldest = (0..self.queue.len())
            .filter(|&i| ready(&self.queue[i]))
            .min_by_key(|&i| self.queue[i].at);
        if let Some(index) = oldest
            && self.now - self.queue[index].at >= self.drive.age_max_ns
        {
            return Some((self.done_at(&self.queue[index].access), Choice::Command(index)));
        }
        let best = (0..self.queue.len())
            .filter(|&i| ready(&self.queue[i]))
            .map(|i| (self.done_at(&self.queue[i].access), i, self.queue[i].at))
            .min_by_key(|(due, _, at)| due + at / SpindleModel::AGE_SHARE)
            .map(|(due, index, _)| {
                let first = self.first_of_row(index);
                let due =
                    if first == index { due } else { self.done_at(&self.queue[first].access) };
                (due, Choice::Command(first))
            });
        let needed = self.flush.is_some() || !self.for_room.is_empty();
        let may = needed || self.cache.presses() || (best.is_none() && self.now >= self.idle_at);
        if !self.cache.has_waiting() || !may {
            return best;
        }
        let trip = self
            .cache
            .trips(self.head.0)
            .map(|(offset, len)| {
                let access = Access { id: 0, kind: Kind::Write, offset, len };
                (self.done_at(&access), Choice::Destage(offset, len))
            })
            .min_by_key(|(due, _)| *due);
        match (best, trip) {
            (Some(best), Some(trip)) => {
                // Somebody waits for the command, nobody for a trip, unless the cache is full.
                let weight = if needed { 1 } else { 2 };
                let better = (trip.0 - self.now) * weight < best.0 - self.now;
                Some(if better { trip } else { best })
            }
            (best, trip) => best.or(trip),
        }
    }

    /// Commands that join are carried out as one: the first of those that end where the next
    /// begins.
    fn first_of_row(&self, index: usize) -> usize {
        let mut first = index;
        for _ in 0..self.queue.len() {
            let Access { kind, offset, .. } = self.queue[first].access;
            let before = self.queue.iter().position(|taken| {
                let access = &taken.access;
                access.kind == kind && access.offset + access.len == offset
            });
            match before {
                Some(before) if self.queue[before].ready <= self.now => first = before,
                _ => break,
            }
        }
        first
    }

    /// The head will pass the end of `access` at `due`.
    fn move_head(&mut self, access: &Access, due: Time) {
        let end = access.offset + access.len;
        let mut start = access.offset;
        if let Some(ahead) = self.ahead.take() {
            let reached = self.reached(&ahead, self.now);
            if access.kind == Kind::Read && (ahead.start..=reached).contains(&access.offset) {
                start = ahead.start.max(end.saturating_sub(2 * self.drive.read_ahead_bytes));
            } else {
                self.read.push(ahead.start, reached);
            }
        }
        self.head = (end, due);
        if access.kind == Kind::Read && self.drive.read_ahead_bytes > 0 {
            self.ahead = Some(Ahead { start, byte: end, at: due, limit: self.ahead_limit(end) });
        }
    }
}
