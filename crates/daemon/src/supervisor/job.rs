//! Jobs: changes that take as long as there is dirty data to send home. One thread waits for each;
//! a volume has at most one.

use super::leave::{check_home, dirty_bytes};
use super::listen::Offer;
use super::{FoundVolume, Supervisor, lock, shard_error};
use crate::convert::engine_mode;
use forebay_api::reply::{Done, Job, JobKind, JobState};
use forebay_api::request::{Change, VolumeMode};
use forebay_api::{ApiError, ErrorKind, Mode, Outcome};
use forebay_engine::{Command, CommandReply, VolumeId};
use forebay_format::BLOCK_SIZE;
use forebay_host::frontend::nbd::Export;
use forebay_host::shard::ShardHandle;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long a request waits for its job before it answers "started".
const QUICK: Duration = Duration::from_millis(500);
/// How often a job looks how far it is.
const LOOK: Duration = Duration::from_millis(100);

/// A job and who waits for it.
pub(super) struct JobCell {
    kind: JobKind,
    volume: String,
    pool: String,
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

    pub fn is_running(&self) -> bool {
        lock(&self.progress).state == JobState::Running
    }

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

    fn look(&self) {
        let Ok(snapshot) = self.handle.snapshot() else { return };
        let own = snapshot.volumes.iter().find(|volume| volume.view.id == self.id);
        let mut progress = lock(&self.progress);
        progress.dirty_bytes = own.map_or(0, |it| it.stats.dirty_blocks * BLOCK_SIZE as u64);
        if let Some(volume) = own {
            let sent = volume.stats.writeback_blocks - self.sent_before;
            progress.sent_bytes = sent * BLOCK_SIZE as u64;
        }
    }

    fn end(&self, state: JobState) {
        let mut progress = lock(&self.progress);
        progress.state = state;
        progress.elapsed = self.started.elapsed();
        drop(progress);
        self.ended.notify_all();
    }
}

/// What is left to do when the engine is done.
pub(super) enum After {
    Nothing,
    Mode(Mode),
    Detach(Offered),
    Remove(Offered),
}

/// How a volume was offered, to offer it so again.
pub(super) struct Offered {
    pub nbd: Option<Arc<Export>>,
    /// By a device of the kernel, or by a virtual machine's socket.
    pub device: Option<Offer>,
}

impl Supervisor {
    /// The newest job of a volume.
    pub(super) fn job(&self, volume: &str) -> Option<Job> {
        self.inner().jobs.get(volume).map(|job| job.report())
    }

    pub(super) fn job_cancel(&self, volume: &str) -> Result<Done, ApiError> {
        let job = self.inner().jobs.get(volume).cloned();
        match job.filter(|job| job.is_running()) {
            Some(job) => {
                job.cancel();
                Ok(Done::new(Outcome::Changed, format!("asked the {} to stop", job.kind.name())))
            }
            None => Ok(Done::new(Outcome::Unchanged, format!("no job runs for volume {volume}"))),
        }
    }

    /// Refuses a second job.
    pub(super) fn no_job(&self, volume: &str) -> Result<(), ApiError> {
        match self.inner().jobs.get(volume).filter(|job| job.is_running()) {
            Some(job) => {
                let kind = job.kind.name();
                Err(ApiError::conflict(format!("a {kind} of volume {volume} is under way"))
                    .action(format!("wait for it: forebay volume show {volume}"))
                    .action(format!("or end it: forebay volume cancel {volume}")))
            }
            None => Ok(()),
        }
    }

    pub(super) fn volume_mode(self: &Arc<Self>, wanted: &VolumeMode) -> Result<Done, ApiError> {
        let (name, mode) = (&wanted.name, wanted.mode);
        let found = self.find_volume(name)?;
        let now = Supervisor::mode_of(&found);
        let draining = found.snapshot.view.draining;
        if now == mode && !draining {
            // It may have been done when there was no room to remember it.
            self.remember_mode(name, mode)?;
            return Ok(Done::new(Outcome::Unchanged, format!("volume {name} is in mode {mode}")));
        }
        self.refuse_in_bypass(&found, "switch its mode")?;
        self.no_job(name)?;
        check_home(&found)?;
        if wanted.dry_run {
            let dirty = dirty_bytes(&found);
            let first = match now.may_be_dirty() && !mode.may_be_dirty() {
                true => format!("send {} home and ", forebay_api::size::human(dirty)),
                false => String::new(),
            };
            let text = format!("would {first}switch volume {name} from {now} to {mode}");
            return Ok(Done::new(Outcome::Planned, text));
        }
        self.check_memory()?;
        if mode.may_be_dirty() {
            // Remembered before the first dirty write is possible.
            self.remember(|all| {
                if let Some(volume) = all.volume_mut(name) {
                    volume.may_be_dirty = true;
                }
            })?;
        }
        let command = Command::SetMode(found.snapshot.view.id, engine_mode(mode));
        self.start_job(JobKind::Mode, &found, command, After::Mode(mode))
    }

    pub(super) fn volume_drain(self: &Arc<Self>, wanted: &Change) -> Result<Done, ApiError> {
        let found = self.find_volume(&wanted.name)?;
        self.no_job(&wanted.name)?;
        check_home(&found)?;
        let dirty = dirty_bytes(&found);
        if wanted.dry_run {
            let size = forebay_api::size::human(dirty);
            let text = format!("would send {size} of volume {} home", wanted.name);
            return Ok(Done::new(Outcome::Planned, text));
        }
        if dirty == 0 {
            let text = format!("volume {} has no dirty data", wanted.name);
            return Ok(Done::new(Outcome::Unchanged, text));
        }
        let command = Command::Drain(found.snapshot.view.id);
        self.start_job(JobKind::Drain, &found, command, After::Nothing)
    }

    /// Gives the engine the command, and waits a moment: most jobs have little to do.
    pub(super) fn start_job(
        self: &Arc<Self>,
        kind: JobKind,
        found: &FoundVolume,
        command: Command,
        after: After,
    ) -> Result<Done, ApiError> {
        let name = found.snapshot.view.name.clone();
        let dirty = dirty_bytes(found);
        let handle = found.open.handle.clone();
        let reply =
            handle.command_start(command).map_err(|error| shard_error(&found.pool, &error))?;
        let cell = Arc::new(JobCell {
            kind,
            volume: name.clone(),
            pool: found.pool.clone(),
            id: found.snapshot.view.id,
            handle,
            started: Instant::now(),
            dirty_bytes_start: dirty,
            sent_before: found.snapshot.stats.writeback_blocks,
            progress: Mutex::new(Progress {
                state: JobState::Running,
                dirty_bytes: dirty,
                sent_bytes: 0,
                elapsed: Duration::ZERO,
                cancelled: false,
            }),
            ended: Condvar::new(),
        });
        self.inner().jobs.insert(name.clone(), Arc::clone(&cell));
        let (own, job) = (Arc::clone(self), Arc::clone(&cell));
        std::thread::Builder::new()
            .name(format!("job-{name}"))
            .spawn(move || own.run_job(&job, &reply, after))
            .map_err(|error| ApiError::failed(format!("start a thread: {error}")))?;
        let progress = lock(&cell.progress);
        let waited = cell
            .ended
            .wait_timeout_while(progress, QUICK, |p| p.state == JobState::Running)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        match waited.0.state.clone() {
            JobState::Running => {
                let text = format!("{} of volume {name} started", kind.name());
                Ok(Done::new(Outcome::Started, text))
            }
            JobState::Failed { error } => Err(error),
            JobState::Done { outcome } => {
                let text = match kind {
                    JobKind::Drain => {
                        let sent = forebay_api::size::human(waited.0.sent_bytes);
                        format!("volume {name} has no dirty data: {sent} sent home")
                    }
                    JobKind::Mode => format!("volume {name} switched its mode"),
                    JobKind::Detach => {
                        format!("volume {name} is detached; its origin holds everything")
                    }
                    JobKind::Remove => {
                        format!("volume {name} is removed; its origin holds everything")
                    }
                };
                Ok(Done::new(outcome, text))
            }
        }
    }

    /// Waits for the engine, and finishes. Runs on the job's own thread.
    fn run_job(&self, job: &JobCell, reply: &Receiver<CommandReply>, after: After) {
        let name = job.volume.as_str();
        let answer = loop {
            match reply.recv_timeout(LOOK) {
                Ok(answer) => break Some(answer),
                Err(RecvTimeoutError::Timeout) => job.look(),
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        job.look();
        let state = match answer {
            Some(CommandReply::Failed(why)) => {
                self.job_undo(job, &after);
                let kind = match lock(&job.progress).cancelled {
                    true => ErrorKind::Cancelled,
                    false => ErrorKind::Failed,
                };
                let error = ApiError::new(kind, why);
                let failed = job.handle.snapshot().is_ok_and(|snapshot| snapshot.pool.degraded);
                JobState::Failed { error: if failed { without_device(error, job) } else { error } }
            }
            None => {
                let error = ApiError::failed("the pool stopped before it was done");
                JobState::Failed { error }
            }
            Some(reply) => {
                let outcome = match reply {
                    CommandReply::Unchanged => Outcome::Unchanged,
                    _ => Outcome::Changed,
                };
                match self.job_finish(job, &after).map_err(not_remembered) {
                    Ok(()) => JobState::Done { outcome },
                    Err(error) => JobState::Failed { error },
                }
            }
        };
        match &state {
            JobState::Failed { error } => {
                tracing::warn!(volume = name, "{}: {}", job.kind.name(), error.message);
            }
            _ => tracing::info!(volume = name, "{} done", job.kind.name()),
        }
        job.end(state);
    }

    /// Offers a volume again that was to leave.
    fn job_undo(&self, job: &JobCell, after: &After) {
        let (After::Detach(offered) | After::Remove(offered)) = after else { return };
        if let Some(export) = &offered.nbd {
            self.export_again(&job.pool, export);
        }
        if let Some(offer) = &offered.device
            && let Err(error) = self.export_volume(&job.pool, &job.volume, offer)
        {
            tracing::error!(volume = job.volume.as_str(), "{}", error.message);
        }
    }

    fn remember_mode(&self, name: &str, mode: Mode) -> Result<(), ApiError> {
        self.remember(|all| {
            if let Some(volume) = all.volume_mut(name) {
                volume.mode = mode;
                volume.may_be_dirty = mode.may_be_dirty();
            }
        })
    }

    /// Remembers what the engine has made durable.
    fn job_finish(&self, job: &JobCell, after: &After) -> Result<(), ApiError> {
        let name = &job.volume;
        match after {
            After::Nothing => Ok(()),
            After::Mode(mode) => {
                self.export_mode(&job.pool, name, *mode);
                self.remember_mode(name, *mode)
            }
            After::Detach(_) => {
                self.forget_problem(&job.pool, name);
                self.remember_detached(name)
            }
            After::Remove(_) => {
                self.forget_problem(&job.pool, name);
                if self.open_pool(&job.pool).is_ok_and(|open| open.bypass.is_some()) {
                    self.give_up(&job.pool, Some(name))?;
                }
                self.remember(|all| all.volumes.retain(|volume| volume.name != *name))
            }
        }
    }
}

/// The engine has done it, and it is durable in the pool.
fn not_remembered(error: ApiError) -> ApiError {
    let text = format!("it is done, but not remembered: {}", error.message);
    ApiError { message: text, ..error }.action("then do it again, before forebayd is stopped")
}

/// What can be done when a cache device has failed under a volume.
fn without_device(error: ApiError, job: &JobCell) -> ApiError {
    let (pool, volume) = (&job.pool, &job.volume);
    error
        .action(format!("see what is wrong with it: forebay pool show {pool}"))
        .action("mend it and start forebayd again: what the device holds is used again")
        .action(format!(
            "or take it away, start forebayd without it, and: forebay volume remove {volume} \
             (--drop-dirty gives up what only the device holds)"
        ))
}
