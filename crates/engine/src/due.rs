//! When something next is to be done that only time makes due.

use crate::event::Time;

/// The earliest of several times that are to come.
pub(crate) struct Due {
    now: Time,
    first: Option<Time>,
}

impl Due {
    /// None so far.
    pub(crate) fn new(now: Time) -> Due {
        Due { now, first: None }
    }

    /// One of them. What is due already and was not done waits for an event, not for time.
    pub(crate) fn at(&mut self, times: impl IntoIterator<Item = Time>) {
        let times = times.into_iter().filter(|&time| time > self.now);
        self.first = times.chain(self.first).min();
    }

    /// The earliest of them.
    pub(crate) fn first(&self) -> Option<Time> {
        self.first
    }
}
