//! Threads that do I/O with plain system calls: all of it where io_uring is not allowed, and what a ring
//! cannot do.

use super::job::Job;
use crate::waker::Waker;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    finished: Vec<(Job, io::Result<()>)>,
    idle: usize,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    waker: Waker,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A pool of threads that grows to its limit when work waits.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    threads_max: usize,
    /// Jobs given and not collected.
    under_way: usize,
}

impl Workers {
    /// A pool of at most `threads_max` threads that calls `waker` when work is finished.
    pub fn new(threads_max: usize, waker: Waker) -> Workers {
        let shared = Shared { state: Mutex::default(), work: Condvar::new(), waker };
        Workers { shared: Arc::new(shared), threads: Vec::new(), threads_max, under_way: 0 }
    }

    /// Gives the threads a job.
    pub fn submit(&mut self, job: Job) {
        self.under_way += 1;
        let mut state = self.shared.lock();
        state.waiting.push_back(job);
        let short = state.waiting.len() > state.idle;
        drop(state);
        if short && self.threads.len() < self.threads_max {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new()
                .name("forebay-io".to_owned())
                .spawn(move || work(&shared));
            match spawned {
                Ok(thread) => self.threads.push(thread),
                Err(e) => assert!(!self.threads.is_empty(), "no thread for I/O: {e}"),
            }
        }
        self.shared.work.notify_one();
    }

    /// Takes what is finished.
    pub fn collect(&mut self, out: &mut Vec<(Job, io::Result<()>)>) {
        if self.under_way == 0 {
            return;
        }
        let before = out.len();
        out.append(&mut self.shared.lock().finished);
        self.under_way -= out.len() - before;
    }

    /// Jobs given and not collected.
    pub fn under_way(&self) -> usize {
        self.under_way
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        // A thread may be stuck in a device for ever: it owns all that it uses, so nobody waits for it.
        self.threads.clear();
    }
}

fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some(mut job) = state.waiting.pop_front() {
            drop(state);
            let result = job.perform();
            state = shared.lock();
            state.finished.push((job, result));
            if state.finished.len() == 1 {
                shared.waker.wake();
            }
            continue;
        }
        if state.stop {
            return;
        }
        state.idle += 1;
        state = shared.work.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        state.idle -= 1;
    }
}
