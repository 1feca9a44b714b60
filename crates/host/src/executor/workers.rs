//! Threads that do I/O with plain system calls: all of it where io_uring is not allowed or may
//! wait, and what a ring cannot do.

use super::job::{Job, Work};
use forebay_engine::{Buf, OpId};
use forebay_sys::waker::Waker;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// After this time without work a thread ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// What threads are at, by number: of a write what is written, of others how long their buffer
    /// is.
    running: BTreeMap<u64, (OpId, Arc<Buf>, usize)>,
    finished: Vec<(Job, io::Result<()>)>,
    /// Looks that jobs have seen since a thread began with them, by number, until they are collected.
    looks: BTreeMap<u64, u32>,
    threads: usize,
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
    threads_max: usize,
    /// Jobs given and not collected.
    under_way: usize,
}

impl Workers {
    /// A pool of at most `threads_max` threads that calls `waker` when work is finished.
    pub fn new(threads_max: usize, waker: Waker) -> Workers {
        let shared = Shared { state: Mutex::default(), work: Condvar::new(), waker };
        Workers { shared: Arc::new(shared), threads_max, under_way: 0 }
    }

    /// Gives the threads a job.
    pub fn submit(&mut self, job: Job) {
        self.under_way += 1;
        let mut state = self.shared.lock();
        state.waiting.push_back(job);
        let short = state.waiting.len() > state.idle && state.threads < self.threads_max;
        state.threads += usize::from(short);
        let alone = state.threads == 1;
        drop(state);
        if short {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new()
                .name("forebay-io".to_owned())
                .spawn(move || work(&shared));
            if let Err(e) = spawned {
                assert!(!alone, "no thread for I/O: {e}");
                self.shared.lock().threads -= 1;
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
        let mut state = self.shared.lock();
        out.append(&mut state.finished);
        for (job, _) in &out[before..] {
            state.looks.remove(&job.number);
        }
        drop(state);
        self.under_way -= out.len() - before;
    }

    /// One look at what has been begun and not collected. How many the oldest of it has seen.
    pub fn look(&mut self) -> u32 {
        if self.under_way == 0 {
            return 0;
        }
        let mut state = self.shared.lock();
        state.looks.values_mut().for_each(|looks| *looks += 1);
        state.looks.values().copied().max().unwrap_or(0)
    }

    /// Begins nothing more of what waits. Whether no thread is at anything.
    pub fn rests(&mut self) -> bool {
        let mut state = self.shared.lock();
        state.waiting.clear();
        state.running.is_empty()
    }

    #[cfg(test)]
    pub fn has_begun(&self) -> bool {
        !self.shared.lock().looks.is_empty()
    }

    /// Jobs given and not collected.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// The operations that no thread has ended yet, each with a buffer in the place of its own:
    /// that stays with the job, whose end is still collected. What waited is not begun any more.
    pub fn give_up(&mut self) -> Vec<(u64, OpId, Buf)> {
        let mut state = self.shared.lock();
        let waiting = std::mem::take(&mut state.waiting);
        self.under_way -= waiting.len();
        let of_running = state.running.iter().map(|(&number, (op, data, len))| {
            let buf = if data.is_empty() { Buf::zeroed(*len) } else { Buf::copy_of(data.bytes()) };
            (number, *op, buf)
        });
        let of_waiting = waiting.into_iter().map(|job| (job.number, job.op, job.buf));
        of_running.chain(of_waiting).collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        // A thread may be stuck in a device for ever: it owns all that it uses, so nobody waits for it.
    }
}

fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some(mut job) = state.waiting.pop_front() {
            // What is written can be looked at meanwhile: it does not change.
            let is_write = matches!(job.work, Work::Write);
            let data = if is_write { std::mem::take(&mut job.buf) } else { Buf::empty() };
            let data = Arc::new(data);
            state.looks.insert(job.number, 0);
            state.running.insert(job.number, (job.op, Arc::clone(&data), job.buf.len()));
            drop(state);
            // A job that never ends would be waited for, for ever.
            let result = catch_unwind(AssertUnwindSafe(|| job.perform(data.bytes())))
                .unwrap_or_else(|_| Err(io::Error::other("an internal error; see the log")));
            state = shared.lock();
            state.running.remove(&job.number);
            if let Some(data) = Arc::into_inner(data).filter(|_| is_write) {
                job.buf = data;
            }
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
        let (again, waited) = shared
            .work
            .wait_timeout(state, IDLE_MAX)
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        state = again;
        state.idle -= 1;
        if waited.timed_out() && state.waiting.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}
