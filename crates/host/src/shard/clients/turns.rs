//! Whose turn it is: what clients ask waits here, and each gets as much of the thread as the
//! others.
//!
//! Who was given least comes first (start-time fair queueing, Goyal et al. 1996), so a client that
//! asks little does not wait behind what others have asked before it. Between two looks at devices
//! and sockets all together get one pass.

use crate::frontend::nbd::SessionEvent;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What all clients are given in one pass, in bytes: a few milliseconds of the thread at most,
/// after which it looks who else is there.
const PASS_BYTES: u64 = 2 << 20;
/// What a request counts at least: its own work, beside that for its data. So a pass has 256 at
/// most.
const REQUEST_BYTES: u64 = 8 << 10;
/// What it counts at most: what is larger moves no data.
const DATA_BYTES_MAX: u64 = 1 << 20;
/// What a slice of block status counts: 2,048 blocks are looked up.
const STATUS_BYTES: u64 = 256 << 10;

/// What a client asks that nobody has looked at yet.
#[derive(Default)]
pub(super) struct Line {
    events: VecDeque<SessionEvent>,
    /// What it was given, in bytes.
    given: u64,
}

impl Line {
    /// What waits.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// The first that waits.
    pub fn first(&self) -> Option<&SessionEvent> {
        self.events.front()
    }

    /// Gives up what waits.
    pub fn drain(&mut self) -> impl Iterator<Item = SessionEvent> {
        self.events.drain(..)
    }
}

/// The clients whose lines are not empty.
#[derive(Default)]
pub(super) struct Turns {
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
    /// Clients that have no turn for now, though their lines are not empty.
    resting: Vec<(u64, u32)>,
    /// What the client that was served last had been given.
    clock: u64,
    /// What is left of the pass.
    left: u64,
}

impl Turns {
    /// The next pass begins.
    pub fn begin_pass(&mut self) {
        self.left = PASS_BYTES;
    }

    /// Whether there is more to do, in this pass or in the next.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether there is more to do in this pass.
    pub fn goes_on(&self) -> bool {
        self.is_waiting() && self.left > 0
    }

    /// Puts what a client asks at the end of its line.
    pub fn wait(&mut self, key: u32, line: &mut Line, event: SessionEvent) {
        if line.events.is_empty() {
            // What others got meanwhile is not owed to it.
            line.given = line.given.max(self.clock);
            self.waiting.push(Reverse((line.given, key)));
        }
        line.events.push_back(event);
    }

    /// Whose turn it is. The first of its line is [taken](Turns::take) then.
    pub fn next(&mut self) -> Option<u32> {
        if self.left == 0 {
            return None;
        }
        self.waiting.pop().map(|Reverse((_, key))| key)
    }

    /// The client whose turn it is has none until [`Turns::rouse`].
    pub fn rest(&mut self, key: u32, line: &Line) {
        self.resting.push((line.given, key));
    }

    /// Whether clients have no turn for now.
    pub fn are_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// All have turns again.
    pub fn rouse(&mut self) {
        self.waiting.extend(self.resting.drain(..).map(Reverse));
    }

    /// Takes the first of the line whose turn it is.
    pub fn take(&mut self, key: u32, line: &mut Line) -> SessionEvent {
        let event = line.events.pop_front().expect("only lines with something in them wait");
        let cost = cost(&event);
        self.clock = self.clock.max(line.given);
        self.left = self.left.saturating_sub(cost);
        line.given += cost;
        if !line.events.is_empty() {
            self.waiting.push(Reverse((line.given, key)));
        }
        event
    }

    /// A client has left: nothing of it waits.
    pub fn forget(&mut self, key: u32) {
        self.waiting.retain(|Reverse((_, waiting))| *waiting != key);
        self.resting.retain(|(_, resting)| *resting != key);
    }
}

fn cost(event: &SessionEvent) -> u64 {
    match event {
        SessionEvent::Submit { request, .. } => request.len.clamp(REQUEST_BYTES, DATA_BYTES_MAX),
        SessionEvent::Status { .. } => STATUS_BYTES,
        SessionEvent::Opened(_) => REQUEST_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::nbd::Ticket;
    use forebay_engine::{Buf, Request, RequestKind, VolumeId};

    fn zeroes(len: u64) -> SessionEvent {
        let kind = RequestKind::WriteZeroes { unmap: true };
        let request =
            Request { volume: VolumeId(1), kind, offset: 0, len, fua: false, buf: Buf::empty() };
        SessionEvent::Submit { ticket: Ticket(0), request }
    }

    fn pass(turns: &mut Turns, lines: &mut [Line]) -> Vec<u32> {
        turns.begin_pass();
        let mut served = Vec::new();
        while let Some(key) = turns.next() {
            turns.take(key, &mut lines[key as usize]);
            served.push(key);
        }
        served
    }

    #[test]
    fn a_pass_has_a_bound_and_each_gets_as_much_as_the_others() {
        let (mut turns, mut lines) = (Turns::default(), [Line::default(), Line::default()]);
        (0..100).for_each(|_| turns.wait(0, &mut lines[0], zeroes(1 << 20)));
        assert_eq!(pass(&mut turns, &mut lines), [0; 2]);
        (0..1000).for_each(|_| turns.wait(1, &mut lines[1], zeroes(4096)));
        let served = pass(&mut turns, &mut lines);
        let small = served.iter().filter(|key| **key == 1).count() as u64;
        assert!(small >= PASS_BYTES / 2 / REQUEST_BYTES, "{small}");
        assert!(served.len() as u64 <= PASS_BYTES / REQUEST_BYTES);
        assert!(turns.is_waiting() && !turns.goes_on());
    }

    #[test]
    fn who_asks_little_comes_next_however_much_others_have_asked() {
        let (mut turns, mut lines) = (Turns::default(), [Line::default(), Line::default()]);
        (0..1000).for_each(|_| turns.wait(0, &mut lines[0], zeroes(1 << 20)));
        for _ in 0..100 {
            turns.wait(1, &mut lines[1], zeroes(4096));
            assert!(pass(&mut turns, &mut lines)[..2].contains(&1));
        }
    }

    #[test]
    fn who_asked_nothing_for_long_is_not_owed_what_others_got() {
        let (mut turns, mut lines) = (Turns::default(), [Line::default(), Line::default()]);
        for _ in 0..100 {
            turns.wait(0, &mut lines[0], zeroes(1 << 20));
            assert_eq!(pass(&mut turns, &mut lines), [0]);
        }
        (0..1000).for_each(|_| turns.wait(1, &mut lines[1], zeroes(1 << 20)));
        turns.wait(0, &mut lines[0], zeroes(4096));
        assert!(pass(&mut turns, &mut lines)[..2].contains(&0));
    }

    #[test]
    fn who_rests_has_no_turn_and_is_behind_nobody_afterwards() {
        let (mut turns, mut lines) = (Turns::default(), [Line::default(), Line::default()]);
        for key in [0, 1] {
            turns.wait(key, &mut lines[key as usize], zeroes(4096));
        }
        turns.begin_pass();
        assert_eq!(turns.next(), Some(0));
        turns.rest(0, &lines[0]);
        assert!(turns.are_resting());
        assert_eq!(pass(&mut turns, &mut lines), [1]);
        assert!(!turns.is_waiting(), "it does not keep the thread awake");
        turns.wait(0, &mut lines[0], zeroes(4096));
        assert!(!turns.is_waiting(), "and does not come into line twice");
        turns.rouse();
        assert_eq!(pass(&mut turns, &mut lines), [0, 0]);
    }

    #[test]
    fn of_a_client_that_left_nothing_comes() {
        let (mut turns, mut lines) = (Turns::default(), [Line::default(), Line::default()]);
        turns.wait(0, &mut lines[0], zeroes(4096));
        turns.wait(1, &mut lines[1], zeroes(4096));
        assert_eq!(lines[0].drain().count(), 1);
        turns.forget(0);
        assert_eq!(pass(&mut turns, &mut lines), [1]);
        assert!(!turns.is_waiting());
    }
}
