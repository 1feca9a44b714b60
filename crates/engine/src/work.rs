//! Work is counted: how many entries, items and blocks one call has looked at. What grows with what
//! the pool holds goes in slices; rule C of the simulator holds every call to a bound.

use std::cell::Cell;

/// Steps of the call under way.
#[derive(Debug, Default)]
pub(crate) struct Work {
    steps: Cell<u64>,
}

impl Work {
    /// A call begins.
    pub(crate) fn begin(&self) {
        self.steps.set(0);
    }

    /// It has looked at so many more.
    pub(crate) fn did(&self, steps: usize) {
        self.steps.set(self.steps.get() + steps as u64);
    }

    /// Steps of the last call.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.get()
    }
}
