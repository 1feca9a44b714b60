//! How other threads interrupt a wait.

use crate::eventfd;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// An `eventfd` that a thread's loop waits for. Clones wake the same loop.
#[derive(Debug, Clone)]
pub struct Waker(Arc<File>);

impl Waker {
    /// A new one.
    pub fn new() -> io::Result<Waker> {
        Ok(Waker(Arc::new(eventfd::new()?)))
    }

    /// Ends the loop's wait, now or when it next begins.
    pub fn wake(&self) {
        // Fails only when the counter is full: then the loop is awake.
        let _ = (&*self.0).write(&1_u64.to_ne_bytes());
    }

    /// Forgets the wakes so far.
    pub fn clear(&self) {
        let _ = (&*self.0).read(&mut [0; 8]);
    }

    /// What is waited for.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
