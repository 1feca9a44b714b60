//! The line before a device: what it is given next, and how much at once.
//!
//! Small reads and writes pass large ones, which are held back by a [`Window`]: a device, and the
//! system before it, take what they are given in about that order. Where small ones never end, a
//! large one has its turn now and then.

use super::job::{Job, Work};
use forebay_engine::{SMALL_BYTES_MAX, Time, Window};
use std::collections::VecDeque;

/// Small ones that pass a large one which has room in the window.
const PASSES_MAX: u32 = 32;

pub(super) struct Line {
    /// I/O that the device, or what carries it out, has at once.
    places: usize,
    /// How many of these large ones may take.
    places_large: usize,
    given: usize,
    given_large: usize,
    window: Window,
    small: VecDeque<Job>,
    large: VecDeque<Job>,
    passes: u32,
}

impl Line {
    /// A line for large I/O, and for so many more that are small.
    pub fn new(places_large: usize, more: usize) -> Line {
        Line {
            places: places_large + more,
            places_large,
            given: 0,
            given_large: 0,
            window: Window::default(),
            small: VecDeque::new(),
            large: VecDeque::new(),
            passes: 0,
        }
    }

    /// A job comes: it comes back if its turn is now.
    pub fn enter(&mut self, now: Time, job: Job) -> Option<Job> {
        let is_large = is_large(&job);
        let has_turn = match is_large {
            true => self.large.is_empty() && self.has_room(&job),
            false => self.given < self.places,
        };
        if has_turn {
            return Some(self.give(now, job));
        }
        match is_large {
            true => self.large.push_back(job),
            false => self.small.push_back(job),
        }
        None
    }

    /// What was given has ended. See whose turn it is [next](Line::next).
    pub fn left(&mut self, now: Time, job: &Job) {
        let Some(given) = job.given else { return };
        self.given -= 1;
        if is_large(job) {
            self.given_large -= 1;
            self.window.end(now, given, job.len);
        }
    }

    /// The next whose turn it is.
    pub fn next(&mut self, now: Time) -> Option<Job> {
        if self.given >= self.places {
            return None;
        }
        let large = self.large.pop_front();
        let has_room = large.as_ref().is_some_and(|large| self.has_room(large));
        if has_room && (self.small.is_empty() || self.passes >= PASSES_MAX) {
            self.passes = 0;
            return large.map(|large| self.give(now, large));
        }
        large.into_iter().for_each(|large| self.large.push_front(large));
        let small = self.small.pop_front()?;
        self.passes += u32::from(has_room);
        Some(self.give(now, small))
    }

    /// Whether a large one may be given: some places are left to small ones.
    fn has_room(&mut self, large: &Job) -> bool {
        let has_place = self.given < self.places && self.given_large < self.places_large;
        self.window.admits(large.len) && has_place
    }

    fn give(&mut self, now: Time, mut job: Job) -> Job {
        self.given += 1;
        if is_large(&job) {
            self.given_large += 1;
            self.window.begin(job.len);
        }
        job.given = Some(now);
        job
    }

    /// Those that were given and have not ended.
    pub fn given(&self) -> usize {
        self.given
    }

    /// Those that wait.
    pub fn waiting(&self) -> usize {
        self.small.len() + self.large.len()
    }

    /// Takes those that wait: they are not given any more.
    pub fn drain(&mut self) -> impl Iterator<Item = Job> {
        self.small.drain(..).chain(self.large.drain(..))
    }
}

fn is_large(job: &Job) -> bool {
    matches!(job.work, Work::Read | Work::Write) && job.len > SMALL_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::super::Goal;
    use super::*;
    use forebay_engine::{Buf, DeviceId, OpId, Target};

    const SMALL: u64 = 4096;
    const LARGE: u64 = 1 << 20;
    const MS: Time = 1_000_000;

    fn read(len: u64) -> Job {
        Job {
            op: OpId(0),
            number: 0,
            goal: Goal::Engine(Target::Cache(DeviceId(0))),
            device: None,
            work: Work::Read,
            offset: 0,
            len,
            buf: Buf::empty(),
            done: 0,
            tries: 0,
            looks: 0,
            started: 0,
            given: None,
            told: false,
            given_up: false,
        }
    }

    /// A device takes what it is given in order, as the system does before it: a block waited for
    /// 128 MiB.
    #[test]
    fn a_small_one_is_given_at_once_and_waits_for_few_large_ones() {
        let mut line = Line::new(128, 16);
        let given: Vec<Job> = (0..128).filter_map(|_| line.enter(0, read(LARGE))).collect();
        assert_eq!((given.len(), line.waiting()), (1, 127));
        assert!(line.enter(0, read(SMALL)).is_some());
        line.left(MS, &given[0]);
        assert!(line.next(MS).is_some_and(|next| next.len == LARGE));
        assert!(line.next(MS).is_none());
    }

    #[test]
    fn small_ones_pass_large_ones_which_have_their_turn_though() {
        let mut line = Line::new(3, 1);
        let mut given: Vec<Job> = (0..4).filter_map(|_| line.enter(0, read(SMALL))).collect();
        (0..2).for_each(|_| assert!(line.enter(0, read(LARGE)).is_none()));
        (0..1000).for_each(|_| assert!(line.enter(0, read(SMALL)).is_none()));
        let mut lens = Vec::new();
        while let Some(job) = given.pop() {
            line.left(MS, &job);
            let next = line.next(MS);
            lens.extend(next.as_ref().map(|next| next.len));
            given.extend(next);
        }
        assert_eq!((lens.len(), line.given(), line.waiting()), (1002, 0, 0));
        let large: Vec<usize> = (0..lens.len()).filter(|&at| lens[at] == LARGE).collect();
        assert_eq!(large, [PASSES_MAX as usize, 2 * PASSES_MAX as usize + 1]);
    }

    #[test]
    fn large_ones_leave_places_to_small_ones_and_stay_in_order() {
        let mut line = Line::new(6, 2);
        let mut now = 0;
        // A device that takes a millisecond however much it has: the window grows.
        for _ in 0..100 {
            let mut given: Vec<Job> = (0..8).filter_map(|_| line.enter(now, read(LARGE))).collect();
            now += MS;
            while let Some(job) = given.pop() {
                line.left(now, &job);
                given.extend(line.next(now));
            }
        }
        let given: Vec<Job> = (0..8).filter_map(|_| line.enter(now, read(LARGE))).collect();
        assert_eq!((given.len(), line.waiting()), (6, 2));
        assert!(line.enter(now, read(SMALL)).is_some());
        assert!(line.enter(now, read(2 * SMALL_BYTES_MAX)).is_none(), "behind the others");
        assert_eq!(line.drain().map(|job| job.len).last(), Some(2 * SMALL_BYTES_MAX));
    }
}
