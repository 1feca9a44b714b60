//! Jobs: changes that take as long as there is dirty data to send home. One thread waits for each;
//! a volume has at most one.

use super::leave::{check_home, dirty_bytes, flush_failed};
use super::{FoundVolume, Supervisor, shard_error};
use crate::export::Offer;
use crate::job::JobCell;
use crate::panics;
use forebay_api::hint::{Bytes, Care, Log, When};
use forebay_api::reply::{Done, Job, JobKind, JobState};
use forebay_api::request::{Change, VolumeMode};
use forebay_api::told::{Keeper, KeptHere};
use forebay_api::{ApiError, ErrorKind, Hint, Mode, Outcome, Told};
use forebay_engine::{Command, CommandReply, FLUSH_FAILED};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// FLUSHes that may fail, one after the other, before one who insists is told.
const INSISTS_MAX: u32 = 8;

/// What is left to do when the engine is done.
pub(super) enum After {
    Nothing,
    /// Another mode; `drains` says that the command only drains before it.
    Mode {
        mode: Mode,
        drains: bool,
    },
    Detach(Leaving),
    Remove(Leaving),
}

/// A volume that leaves.
pub(super) struct Leaving {
    /// How it was offered.
    pub offered: Option<Offer>,
    /// It goes though its last FLUSH fails.
    pub force: bool,
}

impl After {
    fn leaving(&self) -> Option<&Leaving> {
        match self {
            After::Detach(leaving) | After::Remove(leaving) => Some(leaving),
            After::Nothing | After::Mode { .. } => None,
        }
    }
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
                Ok(Done::new(Outcome::Changed, Told::AskedToStop { job: job.kind }))
            }
            None => {
                let volume = volume.to_string();
                Ok(Done::new(Outcome::Unchanged, Told::NoJob { volume }))
            }
        }
    }

    /// Refuses a second job.
    pub(super) fn no_job(&self, volume: &str) -> Result<(), ApiError> {
        match self.inner().jobs.get(volume).filter(|job| job.is_running()) {
            Some(job) => {
                let kind = job.kind.name();
                Err(ApiError::conflict(format!("a {kind} of volume {volume} is under way"))
                    .hint(Hint::WaitForJob { volume: volume.to_string() })
                    .hint(Hint::CancelJob { volume: volume.to_string() }))
            }
            None => Ok(()),
        }
    }

    pub(super) fn volume_mode(self: &Arc<Self>, wanted: &VolumeMode) -> Result<Done, ApiError> {
        let (name, mode) = (&wanted.name, wanted.mode);
        let found = self.find_volume(name)?;
        self.refuse_without_cache(&found.pool, "switch its mode")?;
        let now = found.snapshot.view.mode;
        let draining = found.snapshot.view.draining;
        if now == mode && !draining {
            // It may have been done when there was no room to remember it.
            self.remember_mode(name, mode)?;
            let told = Told::InMode { volume: name.clone(), mode };
            return Ok(Done::new(Outcome::Unchanged, told));
        }
        self.refuse_in_bypass(&found, "switch its mode")?;
        self.no_job(name)?;
        check_home(&found)?;
        if wanted.dry_run {
            let (dirty_bytes, volume) = (Bytes(dirty_bytes(&found)), name.clone());
            let (from, to) = (now, mode);
            let told = match from.plan().write_dirty && !to.plan().write_dirty {
                true => Told::WouldDrainAndSwitch { dirty_bytes, volume, from, to },
                false => Told::WouldSwitchMode { volume, from, to },
            };
            return Ok(Done::new(Outcome::Planned, told));
        }
        self.check_memory()?;
        if mode.plan().write_dirty {
            // Remembered before the first dirty write is possible.
            self.store.change_volume(name, |volume| volume.may_be_dirty = true)?;
        }
        let id = found.snapshot.view.id;
        // While it drains what is written is cached as before. Only for what is left then clients
        // have to wait for the origin.
        let drains = now.plan().write_dirty && !mode.plan().write_dirty && dirty_bytes(&found) > 0;
        let command = if drains { Command::Drain(id) } else { Command::SetMode(id, mode) };
        self.start_job(JobKind::Mode, &found, command, After::Mode { mode, drains })
    }

    pub(super) fn volume_drain(self: &Arc<Self>, wanted: &Change) -> Result<Done, ApiError> {
        let found = self.find_volume(&wanted.name)?;
        self.no_job(&wanted.name)?;
        check_home(&found)?;
        let dirty = dirty_bytes(&found);
        if wanted.dry_run {
            let (dirty_bytes, volume) = (Bytes(dirty), wanted.name.clone());
            return Ok(Done::new(Outcome::Planned, Told::WouldDrain { dirty_bytes, volume }));
        }
        if dirty == 0 {
            let volume = wanted.name.clone();
            return Ok(Done::new(Outcome::Unchanged, Told::NoDirty { volume }));
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
        let (name, pool) = (found.snapshot.view.name.clone(), found.pool.clone());
        let keeper = self.who_keeps(&name, kind);
        let (job, reply) = JobCell::start(kind, &found.open.handle, &found.snapshot, command)
            .map_err(|error| shard_error(&pool, &error))?;
        self.inner().jobs.insert(name.clone(), Arc::clone(&job));
        let (own, running) = (Arc::clone(self), Arc::clone(&job));
        std::thread::Builder::new()
            .name(format!("job-{name}"))
            .spawn(move || {
                if !panics::passes(|| own.run_job(&pool, &running, &reply, after)) {
                    let error =
                        ApiError::failed("an internal error").hint(Hint::SeeLog { of: Log::Job });
                    running.end(JobState::Failed { error });
                }
            })
            .map_err(|error| ApiError::failed(format!("start a thread: {error}")))?;
        job.wait_a_moment();
        let report = job.report();
        let volume = name;
        match report.progress {
            JobState::Running => {
                Ok(Done::new(Outcome::Started, Told::JobStarted { job: kind, volume }))
            }
            JobState::Failed { error } => Err(error),
            JobState::Done { outcome } => {
                let sent_bytes = Bytes(report.sent_bytes);
                let told = match kind {
                    JobKind::Drain => Told::Drained { volume, sent_bytes },
                    JobKind::Mode => Told::ModeSwitched { volume },
                    JobKind::Detach => Told::Detached { volume, keeper },
                    JobKind::Remove => Told::Removed { volume, keeper },
                };
                Ok(Done::new(outcome, told))
            }
        }
    }

    /// Who holds the content of a volume when it is not served any more.
    fn who_keeps(&self, name: &str, kind: JobKind) -> Keeper {
        let state = self.store.get();
        let Some(tiers) = state.tiers_of(name) else { return Keeper::Origin };
        let ephemeral = tiers.boot.is_some();
        if ephemeral && kind == JobKind::Remove {
            // Its memory is let go of, and of the others none is served without that.
            let others = tiers.members.iter().filter(|it| !it.uri.starts_with("ram:"));
            return Keeper::Nobody { devices: others.map(|it| it.uri.clone()).collect() };
        }
        let lack = self.what_tiers_lack(name);
        let is_removed = kind == JobKind::Remove && !ephemeral;
        let chosen = tiers.chosen().choices().filter(|_| is_removed).map(KeptHere);
        Keeper::Tiers { lack, ephemeral, chosen }
    }

    /// Waits for the engine, and finishes. Runs on the job's own thread.
    fn run_job(&self, pool: &str, job: &JobCell, reply: &Receiver<CommandReply>, after: After) {
        let (name, kind) = (job.volume.as_str(), job.kind.name());
        let mut answer = job.follow(reply);
        if let After::Mode { mode, drains: true } = after
            && matches!(answer, Some(CommandReply::Changed | CommandReply::Unchanged))
        {
            answer = job.go_on(|id| Command::SetMode(id, mode));
        }
        let has_failed =
            |it: &CommandReply| matches!(it, CommandReply::Failed(why) if why == FLUSH_FAILED);
        if after.leaving().is_some_and(|it| it.force) {
            // Who insists need not ask again, as often as something that was under way fails.
            for _ in 0..INSISTS_MAX {
                if !answer.as_ref().is_some_and(has_failed) {
                    break;
                }
                answer = job.go_on(Command::RemoveVolume);
            }
        }
        let state = match answer {
            Some(CommandReply::Failed(why)) if why == FLUSH_FAILED => {
                self.job_undo(pool, name, &after);
                JobState::Failed { error: flush_failed(job.kind, name) }
            }
            Some(CommandReply::Failed(why)) => {
                self.job_undo(pool, name, &after);
                let kind = match job.is_cancelled() {
                    true => ErrorKind::Cancelled,
                    false => ErrorKind::Failed,
                };
                let error = ApiError::new(kind, why);
                let error = match job.is_degraded() {
                    true => without_device(error, pool, name),
                    false => error,
                };
                JobState::Failed { error }
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
                match self.job_finish(pool, name, &after).map_err(not_remembered) {
                    Ok(()) => JobState::Done { outcome },
                    Err(error) => JobState::Failed { error },
                }
            }
        };
        match &state {
            JobState::Failed { error } => {
                tracing::warn!(volume = name, "{kind}: {}", error.message);
            }
            _ => tracing::info!(volume = name, "{kind} done"),
        }
        job.end(state);
    }

    /// Offers a volume again that was to leave.
    fn job_undo(&self, pool: &str, name: &str, after: &After) {
        if let Some(offer) = after.leaving().and_then(|it| it.offered.as_ref())
            && let Err(error) = self.export_volume(pool, name, offer)
        {
            tracing::error!(volume = name, "{}", error.message);
        }
    }

    fn remember_mode(&self, name: &str, mode: Mode) -> Result<(), ApiError> {
        self.store.change_volume(name, |volume| {
            volume.mode = mode;
            volume.may_be_dirty = mode.plan().write_dirty;
        })
    }

    /// Remembers what the engine has made durable.
    fn job_finish(&self, pool: &str, name: &str, after: &After) -> Result<(), ApiError> {
        match after {
            After::Nothing => Ok(()),
            After::Mode { mode, .. } => {
                self.exports.set_mode(name, *mode);
                self.remember_mode(name, *mode)
            }
            After::Detach(_) => {
                self.forget_problem(pool, name);
                self.remember_detached(name)
            }
            After::Remove(_) => {
                self.forget_problem(pool, name);
                if self.open_pool(pool).is_ok_and(|open| open.bypass.is_some()) {
                    self.give_up(pool, Some(name))?;
                }
                self.forget_volume(pool, name)
            }
        }
    }
}

/// The engine has done it, and it is durable in the pool.
fn not_remembered(error: ApiError) -> ApiError {
    let text = format!("it is done, but not remembered: {}", error.message);
    ApiError { message: text, ..error }.hint(Hint::SeeTo { what: Care::Memory })
}

/// What can be done when a cache device has failed under a volume.
fn without_device(error: ApiError, pool: &str, volume: &str) -> ApiError {
    error
        .hint(Hint::ShowPool { pool: pool.to_string(), when: When::SeeWhatIsWrong })
        .hint(Hint::SeeTo { what: Care::Device })
        .hint(Hint::RemoveWithoutDevice { volume: volume.to_string() })
}
