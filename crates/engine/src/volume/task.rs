//! The long command that runs on a volume: what is dirty only becomes less meanwhile, so that it
//! ends.

use crate::event::{CommandId, Time};
use crate::limits::FLUSH_TRIES;
use crate::volume::Volume;
use crate::writeback::Home;
use forebay_format::mode::Mode;
use forebay_format::stats::Reason;

/// A long command that runs on a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Drain, then stay.
    Drain(CommandId),
    /// Drain, then switch to the mode.
    Switch(CommandId, Mode),
    /// Drain, then remove.
    Remove(CommandId),
    /// Make durable what is at the origin, then stay: who asks is about to remove the volume.
    Settle(CommandId),
}

impl Task {
    /// The command to answer.
    pub(crate) fn command(self) -> CommandId {
        match self {
            Task::Drain(id) | Task::Switch(id, _) | Task::Remove(id) | Task::Settle(id) => id,
        }
    }
}

/// One that is under way.
#[derive(Debug)]
pub(super) struct Running {
    task: Task,
    /// FLUSHes of the origin that had failed when it began.
    failures: u64,
    /// As many blocks as were dirty then have been sent home when so many have.
    sent: u64,
}

impl Volume {
    /// The long command under way.
    pub(crate) fn task(&self) -> Option<Task> {
        self.running.as_ref().map(|running| running.task)
    }

    /// Whether there is one: what is dirty goes home.
    pub(crate) fn draining(&self) -> bool {
        self.running.is_some()
    }

    /// One begins, when so many blocks had been sent home.
    pub(crate) fn task_begins(&mut self, task: Task, sent: u64) {
        let sent = sent + self.dirty.len();
        self.running = Some(Running { task, failures: self.flush.failures(), sent });
    }

    /// It ends, if there is one, whatever became of it.
    pub(crate) fn task_ends(&mut self) -> Option<Task> {
        self.running.take().map(|running| running.task)
    }

    /// The task was to switch to this mode: it is in force.
    pub(crate) fn switched(&mut self, mode: Mode) {
        self.running = None;
        self.mode = mode;
    }

    /// Whether the task waits for a FLUSH of the origin, which has failed too often since it began.
    pub(crate) fn flushes_in_vain(&self) -> bool {
        let failures = self.flush.failures();
        let most = u64::from(FLUSH_TRIES);
        self.owes_flush()
            && self.running.as_ref().is_some_and(|running| failures - running.failures > most)
    }

    /// Whether a FLUSH of the origin has failed since the task began, and who asked for it knows
    /// that what is there may be lost: it is not waited for.
    pub(crate) fn flush_is_given_up(&self) -> bool {
        let failures = self.flush.failures();
        self.flush.is_given_up()
            && self.running.as_ref().is_some_and(|running| failures > running.failures)
    }

    /// Whether the task ends what the mode keeps dirty: nothing more becomes so for its sake.
    pub(crate) fn leaves(&self) -> bool {
        matches!(self.task(), Some(Task::Switch(..) | Task::Remove(_)))
    }

    /// Whether nothing but requests under way keeps the volume from being removed. It takes no
    /// more: clients that never stop would keep it for ever.
    pub(crate) fn is_left(&self) -> bool {
        matches!(self.task(), Some(Task::Remove(_)))
            && self.dirty.is_empty()
            && self.traffic.cache_writes() == 0
            && !self.flush.is_untold()
    }

    /// Why what a client writes to the origin is not kept as clean, if so.
    pub(crate) fn written_is_not_kept(&self) -> Option<Reason> {
        let plan = match self.task() {
            Some(Task::Remove(_)) => return Some(Reason::Mode),
            Some(Task::Switch(_, mode)) => mode.plan(),
            Some(Task::Drain(_) | Task::Settle(_)) | None => self.mode.plan(),
        };
        match (plan.write_fill, plan.write_dirty) {
            (true, _) => None,
            (false, false) => Some(Reason::Mode),
            // It went around a cache that had no room, unless a drain sent it.
            (false, true) => (!self.draining()).then_some(Reason::NoSpace),
        }
    }

    /// Whether what is dirty goes home with one slice.
    pub(crate) fn is_nearly_drained(&self, home: &Home) -> bool {
        self.dirty.len() <= home.slice_blocks() as u64
    }

    /// Whether writes go to the origin although the mode writes into the cache: what is dirty only
    /// becomes less, so that the task ends. A drain comes to that when as many blocks have been
    /// sent home as were dirty when it began: clients write faster than that goes.
    pub(crate) fn writes_through(&self, home: &Home, now: Time) -> bool {
        let Some(running) = &self.running else { return false };
        match running.task {
            Task::Switch(_, mode) => !mode.plan().write_dirty,
            Task::Remove(_) => true,
            Task::Settle(_) => false,
            Task::Drain(_) => {
                let is_late = home.sent() >= running.sent;
                let is_well = !self.quarantine.is_failing() && !self.lags(home, now);
                (is_late || self.is_nearly_drained(home)) && is_well && self.service.is_on()
            }
        }
    }
}
