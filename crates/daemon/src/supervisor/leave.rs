//! Volumes that leave: detached or removed, with their dirty data at home, or given up.

use super::job::{After, Leaving};
use super::{COMMAND_TIMEOUT, FoundVolume, Supervisor, shard_error};
use crate::state::{Standing, VolumeState, owner_of};
use forebay_api::hint::{Bytes, Care, Flag, Leave};
use forebay_api::reply::{Done, JobKind};
use forebay_api::request::Change;
use forebay_api::told::{KeptHere, MayBeLost, Then};
use forebay_api::{ApiError, ErrorKind, Hint, Outcome, Tellings, Told};
use forebay_engine::{Command, CommandReply, FLUSH_FAILED, Target};
use forebay_format::tier::EXTENT_SIZE;
use forebay_host::shard::{ShardError, VolumeSnapshot};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the FLUSH of a volume that is to leave is waited for before its users are told.
const LOSS_TIMEOUT: Duration = Duration::from_secs(3);
/// How long clients that are on their way out are waited for.
const LEAVING: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(10);

impl Supervisor {
    pub(super) fn volume_detach(self: &Arc<Self>, wanted: &Change) -> Result<Done, ApiError> {
        let name = &wanted.name;
        let found = match self.find_volume(name) {
            Ok(found) => found,
            Err(error) if error.kind == ErrorKind::Conflict => {
                if self.has_left(name) {
                    // It may have left when there was no room to remember it.
                    self.remember_detached(name)?;
                }
                let told = Told::IsDetached { volume: name.clone() };
                return Ok(Done::new(Outcome::Unchanged, told));
            }
            Err(error) => return self.free_users(wanted, error),
        };
        self.refuse_in_bypass(&found, "be detached")?;
        self.no_job(name)?;
        self.check_clients(&found, wanted.force)?;
        check_home(&found)?;
        if wanted.dry_run {
            return Ok(plan_leave(&found, Then::Detach));
        }
        self.leave(JobKind::Detach, &found, wanted.force, false)
    }

    /// Whether the pool of a volume serves, and holds nothing of it.
    fn has_left(&self, name: &str) -> bool {
        let Some(known) = self.store.get().volume(name).cloned() else { return false };
        let Ok(open) = self.open_pool(&known.pool) else { return false };
        let holds = |volume: &VolumeSnapshot| volume.view.name == name;
        open.bypass.is_none()
            && open.handle.snapshot().is_ok_and(|pool| {
                pool.state == forebay_engine::State::Serving && !pool.volumes.iter().any(holds)
            })
    }

    /// Ends the block device of a volume that cannot be served: with `force` those who wait for it
    /// get errors. The volume, and what its pool holds of it, stay as they are.
    fn free_users(&self, wanted: &Change, why: ApiError) -> Result<Done, ApiError> {
        let name = &wanted.name;
        if !wanted.force || !self.exports.has_device(name) {
            return Err(why);
        }
        if wanted.dry_run {
            let told = Told::WouldEndDevice { volume: name.clone() };
            return Ok(Done::new(Outcome::Planned, told));
        }
        self.exports.down(name, true)?;
        let told = Told::DeviceEnded { volume: name.clone() };
        let mut done = Done::new(Outcome::Changed, told);
        done.told.push(Told::StillNotServed { why: why.message });
        Ok(done)
    }

    pub(super) fn volume_remove(self: &Arc<Self>, wanted: &Change) -> Result<Done, ApiError> {
        let name = &wanted.name;
        let known = self.store.get().volume(name).cloned();
        let found = match (self.find_volume(name), known) {
            (Ok(found), _) => found,
            (Err(error), Some(known)) => return self.remove_absent(wanted, &known, error),
            (Err(error), None) => return Err(error),
        };
        self.no_job(name)?;
        self.check_clients(&found, wanted.force)?;
        if !wanted.dry_run && !wanted.accept_loss {
            check_content_lives(&found)?;
        }
        let hangs = wanted.drop_dirty && origin_hangs(&found)?;
        let is_well = !found.open.problems.contains_key(name) && !hangs;
        if is_well && wanted.drop_dirty && found.snapshot.stats.lost_blocks > 0 {
            return self.remove_what_is_left(wanted, &found);
        }
        let lost = if !is_well && wanted.drop_dirty { dirty_bytes(&found) } else { 0 };
        if lost == 0 {
            check_home(&found)?;
        }
        if wanted.dry_run {
            let mut done = plan_leave(&found, Then::Remove);
            if lost > 0 {
                let told = Told::WouldGiveUp { lost_bytes: Bytes(lost), volume: name.clone() };
                done = Done::new(Outcome::Planned, told);
            } else {
                done.told.extend(tiers_keep(&found));
                done.told.extend(self.what_is_kept(name));
            }
            done.asks = Tellings::from_iter(content_lost(&found));
            return Ok(done);
        }
        let mut done = self.leave(JobKind::Remove, &found, wanted.force, lost > 0)?;
        if lost > 0 && done.outcome == Outcome::Changed {
            let (volume, lost_bytes) = (name.clone(), Bytes(lost));
            done.told = vec![Told::RemovedWithLoss { volume, lost_bytes }].into();
        }
        Ok(done)
    }

    /// Gives up what cannot be read of a volume's dirty data, and sends the rest home.
    fn remove_what_is_left(
        self: &Arc<Self>,
        wanted: &Change,
        found: &FoundVolume,
    ) -> Result<Done, ApiError> {
        if wanted.dry_run {
            let mut done = plan_leave(found, Then::RemoveReadable);
            done.asks = Tellings::from_iter(content_lost(found));
            return Ok(done);
        }
        // What is found to be so later is refused then, and given up when asked again.
        let mut done = self.leave(JobKind::Remove, found, wanted.force, true)?;
        done.told.push(Told::UnreadableLost);
        Ok(done)
    }

    /// Forgets a volume that no open pool serves.
    fn remove_absent(
        &self,
        wanted: &Change,
        known: &VolumeState,
        error: ApiError,
    ) -> Result<Done, ApiError> {
        let name = &wanted.name;
        let is_missing = error.kind != ErrorKind::Conflict;
        if is_missing && known.may_be_dirty && !wanted.drop_dirty {
            return Err(ApiError { kind: ErrorKind::Refused, ..error });
        }
        if wanted.dry_run {
            let lost = match is_missing && known.may_be_dirty {
                true => MayBeLost::DirtyData,
                false => MayBeLost::Nothing,
            };
            let told = Told::WouldForget { volume: name.clone(), lost };
            let mut planned = Done::new(Outcome::Planned, told);
            planned.told.extend(self.what_is_kept(name));
            return Ok(planned);
        }
        self.check_memory()?;
        self.exports.down(name, wanted.force)?;
        if is_missing {
            self.give_up(&known.pool, Some(name))?;
            self.forget_problem(&known.pool, name);
        }
        let kept = self.what_is_kept(name);
        self.forget_volume(&known.pool, name)?;
        let mut done = Done::new(Outcome::Changed, Told::Forgotten { volume: name.clone() });
        done.told.extend(kept);
        Ok(done)
    }

    /// Forgets a volume that nobody serves any more, with all that was only for it.
    pub(super) fn forget_volume(&self, pool: &str, name: &str) -> Result<(), ApiError> {
        self.remember(|all| all.forget_volume(name))?;
        self.memories.let_go(name, |_| false);
        if owner_of(pool).is_some() {
            self.close_own(name);
        }
        Ok(())
    }

    /// What becomes of what was chosen for the tiers of a volume that is removed.
    fn what_is_kept(&self, name: &str) -> Option<Told> {
        let state = self.store.get();
        let tiers = state.tiers_of(name).filter(|it| it.boot.is_none())?;
        tiers.chosen().choices().map(|it| Told::ChosenKept { chosen: KeptHere(it) })
    }

    /// Refuses to take a volume away from its clients, unless that is wanted. A client that has
    /// just hung up counts until its shard has read that, so those that leave have a moment.
    fn check_clients(&self, found: &FoundVolume, force: bool) -> Result<(), ApiError> {
        let name = &found.snapshot.view.name;
        let begin = Instant::now();
        let mut clients = self.clients_of(found);
        while clients > 0 && !force && begin.elapsed() < LEAVING {
            std::thread::sleep(PAUSE);
            clients = self.clients_of(&self.find_volume(name)?);
        }
        if clients == 0 || force {
            return Ok(());
        }
        Err(ApiError::refused(format!("{clients} client(s) are connected to volume {name}"))
            .hint(Hint::SeeTo { what: Care::Clients })
            .hint(Hint::Again { with: Flag::ForceCutOff }))
    }

    /// Drains a volume and takes it out of service. It is not offered to new clients meanwhile.
    /// With `drops`, what cannot go home is given up first.
    fn leave(
        self: &Arc<Self>,
        kind: JobKind,
        found: &FoundVolume,
        force: bool,
        drops: bool,
    ) -> Result<Done, ApiError> {
        let name = &found.snapshot.view.name;
        self.check_memory()?;
        if !drops {
            tell_loss(found, kind, force)?;
        }
        let left = if force { self.leave_stuck(found)? } else { None };
        // A device that is in use stays, and with it all that its users have written.
        let offered = self.exports.down(name, force)?;
        if drops && let Err(error) = self.give_up_hanging(found).and_then(|()| drop_dirty(found)) {
            if let Some(offer) = &offered {
                self.exports.up(&found.open.handle, name, offer);
            }
            return Err(error);
        }
        let command = Command::RemoveVolume(found.snapshot.view.id);
        let leaving = Leaving { offered, force };
        let after = match kind {
            JobKind::Detach => After::Detach(leaving),
            _ => After::Remove(leaving),
        };
        let mut done = self.start_job(kind, found, command, after)?;
        done.told.extend(left);
        Ok(done)
    }

    /// Nothing goes home any more to an origin that hangs, and nobody waits for what is on its way:
    /// it may get there or not. Nobody uses that origin before that has ended.
    fn give_up_hanging(&self, found: &FoundVolume) -> Result<(), ApiError> {
        if !origin_hangs(found)? {
            return Ok(());
        }
        let (pool, view) = (&found.pool, &found.snapshot.view);
        let given_up = found.open.handle.origin_given_up(view.id, COMMAND_TIMEOUT);
        given_up.map_err(|error| shard_error(pool, &error))?;
        let text = format!("its origin {} hung, and is waited for no longer", view.origin);
        self.note_problem(pool, &view.name, ApiError::failed(text));
        Ok(())
    }

    pub(super) fn remember_detached(&self, name: &str) -> Result<(), ApiError> {
        self.store.change(|all| {
            if let Some(volume) = all.volume_mut(name) {
                volume.may_be_dirty = false;
                volume.standing = Standing::Detached;
                (volume.accepted_origin, volume.rested) = (None, None);
            }
            // Devices may be put back now, and are believed when they are attached.
            let own = all.tiered.iter_mut().filter(|it| it.name == name);
            own.for_each(|it| it.witness.believe());
        })
    }
}

/// Refuses, once, to take a volume out of service of which something may be lost: nobody is left
/// then to hear of it. That is before anything is done for it; its users notice nothing.
fn tell_loss(found: &FoundVolume, kind: JobKind, force: bool) -> Result<(), ApiError> {
    let view = &found.snapshot.view;
    match found.open.handle.command(Command::TellLoss(view.id), LOSS_TIMEOUT) {
        Ok(CommandReply::Failed(why)) if why == FLUSH_FAILED && !force => {
            Err(flush_failed(kind, &view.name))
        }
        Err(ShardError::Timeout(_)) => {
            // A disk hangs: the removal itself is waited for as long as somebody likes.
            let cancel = found.command(Command::Cancel(view.id), "end the FLUSH");
            cancel.or_else(|error| {
                tracing::debug!(volume = view.name.as_str(), "{}", error.message);
                Ok(())
            })
        }
        _ => Ok(()),
    }
}

/// What is told of a volume that leaves, and whose origin has failed a FLUSH.
pub(super) fn flush_failed(kind: JobKind, volume: &str) -> ApiError {
    let (done, verb) = match kind {
        JobKind::Remove => ("removed", Leave::Remove),
        _ => ("detached", Leave::Detach),
    };
    ApiError::failed(format!("volume {volume} is not {done}: {FLUSH_FAILED}"))
        .hint(Hint::LeaveAnyway { verb, volume: volume.to_string() })
}

/// Whether the origin of a volume has not ended an I/O for long, as `status` says. Tiers end what
/// they are asked by themselves.
fn origin_hangs(found: &FoundVolume) -> Result<bool, ApiError> {
    let snapshot =
        found.open.handle.snapshot().map_err(|error| shard_error(&found.pool, &error))?;
    let own = Target::Origin(found.snapshot.view.id);
    let hangs = snapshot.slow.iter().any(|(target, _)| *target == own);
    Ok(hangs && found.snapshot.tiers.is_none())
}

/// Gives up the dirty data of a volume.
pub(super) fn drop_dirty(found: &FoundVolume) -> Result<(), ApiError> {
    found.command(Command::ForceDropDirty(found.snapshot.view.id), "give up what is dirty")
}

/// Dirty bytes of a volume.
pub(super) fn dirty_bytes(found: &FoundVolume) -> u64 {
    found.snapshot.stats.dirty_bytes()
}

/// Refuses to send dirty data home to an origin that cannot be used.
pub(super) fn check_home(found: &FoundVolume) -> Result<(), ApiError> {
    let (name, dirty) = (&found.snapshot.view.name, dirty_bytes(found));
    match found.open.problems.get(name).filter(|_| dirty > 0) {
        Some(problem) => Err(or_lose(problem.clone(), name, dirty)),
        None => Ok(()),
    }
}

/// Adds the way on without an origin that will never be back. One that was changed has other ways.
pub(super) fn or_lose(error: ApiError, volume: &str, dirty_bytes: u64) -> ApiError {
    if error.kind != ErrorKind::Failed || dirty_bytes == 0 {
        return error;
    }
    let volume = volume.to_string();
    error.hint(Hint::GiveUpOrigin { volume, dirty_bytes: Bytes(dirty_bytes) })
}

/// Where the content of a volume over tiers stays.
fn tiers_keep(found: &FoundVolume) -> Option<Told> {
    let tiers = found.snapshot.tiers.as_ref()?;
    Some(if tiers.is_ephemeral { Told::WouldBeLost } else { Told::TiersWouldKeep })
}

/// What a volume holds and nothing else does, so that it is lost with it.
fn content_lost(found: &FoundVolume) -> Option<Told> {
    let tiers = found.snapshot.tiers.as_ref().filter(|it| it.is_ephemeral)?;
    let used: u64 = tiers.view.members.iter().map(|it| u64::from(it.used)).sum();
    let volume = found.snapshot.view.name.clone();
    Some(Told::ContentLost { volume, lost_bytes: Bytes(used * EXTENT_SIZE) })
}

/// Refuses to forget a volume whose content nothing else holds.
fn check_content_lives(found: &FoundVolume) -> Result<(), ApiError> {
    content_lost(found).map_or(Ok(()), |lost| {
        Err(ApiError::refused(lost.to_string()).hint(Hint::Again { with: Flag::Yes }))
    })
}

fn plan_leave(found: &FoundVolume, then: Then) -> Done {
    let volume = found.snapshot.view.name.clone();
    let dirty_bytes = Bytes(dirty_bytes(found));
    Done::new(Outcome::Planned, Told::WouldLeave { dirty_bytes, volume, then })
}
