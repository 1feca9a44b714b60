//! A job: a command that the engine takes its time for, how far it is, and who waits for it.

use crate::lock::lock;
use forebay_api::reply::{Job, JobKind, JobState};
use forebay_engine::{Command, CommandReply, VolumeId};
use forebay_format::BLOCK_SIZE;
use forebay_host::shard::{ShardError, ShardHandle, VolumeSnapshot};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long a request waits for its job before it answers "started".
const QUICK: Duration = Duration::from_millis(500);
/// How often a job looks how far it is.
const LOOK: Duration = Duration::from_millis(100);

/// A job of a volume.
pub struct JobCell {
    /// What it does.
    pub kind: JobKind,
    /// The volume's name.
    pub volume: String,
    id: VolumeId,
    handle: ShardHandle,
    started: Instant,
    dirty_bytes_start: u64,
    /// Blocks that the volume had sent home when it started.
    sent_before: u64,
    progress: Mutex<Progress>,
    ended: Condvar,
}

struct Progress {
    state: JobState,
    dirty_bytes: u64,
    sent_bytes: u64,
    elapsed: Duration,
    cancelled: bool,
}

impl JobCell {
    /// Gives the engine the command. Returns where its answer comes, too.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn start(
        kind: JobKind,
        handle: &ShardHandle,
        volume: &VolumeSnapshot,
        command: Command,
    ) -> Result<(Arc<JobCell>, Receiver<CommandReply>), ShardError> {
        let reply = handle.command_start(command)?;
        let dirty_bytes = volume.stats.dirty_bytes();
        let progress = Progress {
            state: JobState::Running,
            dirty_bytes,
            sent_bytes: 0,
            elapsed: Duration::ZERO,
            cancelled: false,
        };
        let job = JobCell {
            kind,
            volume: volume.view.name.clone(),
            id: volume.view.id,
            handle: handle.clone(),
            started: Instant::now(),
            dirty_bytes_start: dirty_bytes,
            sent_before: volume.stats.writeback_blocks,
            progress: Mutex::new(progress),
            ended: Condvar::new(),
        };
        Ok((Arc::new(job), reply))
    }

    /// Asks the engine to stop it. It goes on if it cannot be stopped any more.
    pub fn cancel(&self) {
        let mut progress = lock(&self.progress);
        if progress.state == JobState::Running && !progress.cancelled {
            progress.cancelled = true;
            drop(progress);
            if let Err(error) = self.handle.command_start(Command::Cancel(self.id)) {
                tracing::warn!(volume = self.volume.as_str(), "cancel: {error}");
            }
        }
    }

    /// Whether it was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        lock(&self.progress).cancelled
    }

    /// Whether it has not ended.
    pub fn is_running(&self) -> bool {
        lock(&self.progress).state == JobState::Running
    }

    /// Whether a cache device has failed under it.
    pub fn is_degraded(&self) -> bool {
        self.handle.snapshot().is_ok_and(|snapshot| snapshot.pool.degraded)
    }

    /// How far it is.
    pub fn report(&self) -> Job {
        let progress = lock(&self.progress);
        let running = progress.state == JobState::Running;
        let elapsed = if running { self.started.elapsed() } else { progress.elapsed };
        Job {
            job: self.kind,
            volume: self.volume.clone(),
            dirty_bytes_start: self.dirty_bytes_start,
            dirty_bytes: progress.dirty_bytes,
            sent_bytes: progress.sent_bytes,
            elapsed_s: elapsed.as_secs_f64(),
            progress: progress.state.clone(),
        }
    }

    /// Waits a moment for its end: most have little to do.
    pub fn wait_a_moment(&self) {
        let waits = |progress: &mut Progress| progress.state == JobState::Running;
        drop(self.ended.wait_timeout_while(lock(&self.progress), QUICK, waits));
    }

    /// Waits for the engine's answer; nothing comes of a pool that stops.
    pub fn follow(&self, reply: &Receiver<CommandReply>) -> Option<CommandReply> {
        let answer = loop {
            match reply.recv_timeout(LOOK) {
                Ok(answer) => break Some(answer),
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        self.look();
        answer
    }

    /// Gives the engine another command, and waits for the answer. Whoever asked for an end between
    /// the two gets it.
    pub fn go_on(&self, command: impl FnOnce(VolumeId) -> Command) -> Option<CommandReply> {
        let reply = self.handle.command_start(command(self.id)).ok()?;
        if self.is_cancelled() {
            self.handle.command_start(Command::Cancel(self.id)).ok()?;
        }
        self.follow(&reply)
    }

    fn look(&self) {
        let Ok(snapshot) = self.handle.snapshot() else { return };
        let own = snapshot.volumes.iter().find(|volume| volume.view.id == self.id);
        let mut progress = lock(&self.progress);
        progress.dirty_bytes = own.map_or(0, |it| it.stats.dirty_bytes());
        if let Some(volume) = own {
            let sent = volume.stats.writeback_blocks - self.sent_before;
            progress.sent_bytes = sent * BLOCK_SIZE as u64;
        }
    }

    /// It ends so.
    pub fn end(&self, state: JobState) {
        let mut progress = lock(&self.progress);
        progress.state = state;
        progress.elapsed = self.started.elapsed();
        drop(progress);
        self.ended.notify_all();
    }
}
