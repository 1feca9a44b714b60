//! Whether the devices of a pool that are here hold its newest state. A device that was away while
//! the pool went on without it cannot know that; when it comes back alone, only we can.

use super::{Supervisor, lock};
use crate::convert::{hex, unhex};
use crate::parts::{Failed, Parts};
use forebay_api::hint::{When, Writing};
use forebay_api::reply::Done;
use forebay_api::{ApiError, Hint, Hold, Outcome, Told};
use forebay_engine::{Notice, Witness};
use forebay_host::notice::{HostNotice, NoticeSink};
use forebay_host::pool::PoolOnDisk;
use forebay_host::witness;
use std::sync::{Arc, Mutex};
use std::time::Instant;

impl Supervisor {
    /// What is known of the log of a pool, by which it may be opened. Refuses devices that hold an
    /// old state of it: it is as if none were here. Where an administrator goes on with that, its
    /// next life is later than any that was seen: the other branch is old from then on.
    pub(super) fn check_newest(&self, on_disk: &mut PoolOnDisk) -> Result<Witness, ApiError> {
        let witness = self.witness_of(&on_disk.name(), &on_disk.uuid())?;
        if witness != Witness::Accepted {
            return self.check_seen(on_disk).map(|()| witness);
        }
        let (name, uuid) = (on_disk.name(), hex(&on_disk.uuid()));
        let state = self.store.get();
        let seen = state.seen(&name).filter(|seen| seen.uuid == uuid);
        let header = &mut on_disk.superblock.header;
        let newest = seen.map_or(0, |seen| seen.begun).max(header.epoch.get());
        // One life alone tells a branch apart from a device that missed the beginning of a life.
        header.epoch = (newest + 1).into();
        Ok(witness)
    }

    fn check_seen(&self, on_disk: &PoolOnDisk) -> Result<(), ApiError> {
        let (name, uuid) = (on_disk.name(), hex(&on_disk.uuid()));
        let state = self.store.get();
        let Some(seen) = state.seen(&name).filter(|seen| seen.uuid == uuid) else { return Ok(()) };
        let parts = Parts::of(on_disk);
        if parts.used().next().is_none() {
            // What is the matter with each of them tells more.
            return Ok(());
        }
        let left = parts.used().all(|uuid| seen.left.contains(uuid));
        if !left && on_disk.superblock.header.epoch.get() >= seen.begun {
            return Ok(());
        }
        let text = format!(
            "what is here of pool {name} holds an old state: the pool was in use since, without it"
        );
        let own = state.volumes.iter().find(|volume| volume.pool == name);
        let hold = Some(Hold::OlderState);
        let error = ApiError { hold, ..ApiError::not_found(text) };
        Err(match own {
            Some(volume) => error.hint(Hint::keep_dirty(&volume.name, When::NewerLost)),
            None => error,
        })
    }

    /// An administrator goes on with the devices of a pool that are here, where old ones or missing
    /// ones keep it closed: what only these hold is given up at the next try. Of that, `dry_run`
    /// returns what it would be.
    pub(super) fn accept_what_is_here(
        &self,
        pool: &str,
        dry_run: bool,
    ) -> Result<Option<Done>, ApiError> {
        let why = self.why_closed(pool).filter(|why| why.hold.is_some());
        if dry_run {
            return Ok(why.map(|why| {
                let (hold, why) = (why.hold, why.message);
                let told = match hold {
                    Some(Hold::DirtyIsAway) => Told::WouldGiveUpAway { why },
                    _ => Told::WouldGoOn { why },
                };
                Done { hold, ..Done::new(Outcome::Planned, told) }
            }));
        }
        match why.and_then(|why| why.hold) {
            Some(Hold::DirtyIsAway) => drop(self.inner().given_up.insert(pool.to_string())),
            Some(Hold::OlderState | Hold::UnknownAge) => self.accept_log(pool)?,
            None => {}
        }
        Ok(None)
    }

    pub(super) fn why_closed(&self, pool: &str) -> Option<ApiError> {
        let inner = self.inner();
        match &inner.pools.get(pool)?.open {
            Ok(open) => open.bypass.clone(),
            Err(error) => Some(error.clone()),
        }
    }

    /// The log of a pool counts as far as it is on the devices.
    fn accept_log(&self, pool: &str) -> Result<(), ApiError> {
        let state = self.store.get();
        let uuid = state.seen(pool).and_then(|seen| unhex(&seen.uuid));
        uuid.map_or(Ok(()), |uuid| self.note_witness(pool, &uuid, Witness::Accepted))
    }

    /// Notes what is known of a pool's log, for its next start.
    pub(super) fn note_witness(
        &self,
        pool: &str,
        uuid: &[u8; 16],
        known: Witness,
    ) -> Result<(), ApiError> {
        witness::note(&self.state_dir, uuid, known).map_err(|error| {
            let dir = self.state_dir.display().to_string();
            ApiError::failed(format!("write the witness of pool {pool}: {error}"))
                .hint(Hint::AllowWriting { dir, and: Writing::RightsAndRoom })
        })
    }

    /// What is known of a pool's log, before it is noted that it is seen.
    pub(super) fn witness_of(&self, pool: &str, uuid: &[u8; 16]) -> Result<Witness, ApiError> {
        let known = witness::read(&self.state_dir, uuid).map_err(|error| {
            ApiError::failed(format!("read the witness of pool {pool}: {error}"))
        })?;
        let state = self.store.get();
        let seen = state.seen(pool).filter(|seen| seen.uuid == hex(uuid));
        Ok(match known {
            Witness::Missing if seen.is_some_and(|seen| !seen.witnessed) => Witness::default(),
            known => known,
        })
    }

    /// Remembers that a pool is open, and which devices it goes on without.
    pub(super) fn note_begun(&self, pool: &str, parts: &Parts) -> Result<(), ApiError> {
        self.remember(|all| {
            let Some(seen) = all.seen.iter_mut().find(|seen| seen.name == pool) else { return };
            (seen.begun, seen.witnessed) = (seen.epoch, true);
            seen.left.extend(parts.absent().cloned());
            seen.left.retain(|uuid| !parts.used().any(|used| used == uuid));
            seen.left.sort();
            seen.left.dedup();
        })
    }

    /// Passes notices on, and remembers devices that fail while others go on.
    pub(super) fn watching(
        self: &Arc<Self>,
        pool: &str,
        (parts, failed): (&Parts, &Arc<Mutex<Failed>>),
        mut sink: NoticeSink,
    ) -> NoticeSink {
        let (supervisor, pool) = (Arc::downgrade(self), pool.to_string());
        let failed = Arc::clone(failed);
        let (parts, mut working) = (parts.clone(), parts.used().count());
        Box::new(move |notice: HostNotice| {
            if let HostNotice::Engine(Notice::LogBroken) = &notice {
                lock(&failed).log = true;
            }
            if let HostNotice::IoFailed { origin: Some(volume), .. } = &notice {
                lock(&failed).origins.failed(*volume);
            }
            if let HostNotice::Engine(Notice::DeviceCame(device)) = &notice {
                working += 1;
                lock(&failed).devices.remove(&usize::from(device.0));
            }
            if let HostNotice::Engine(
                Notice::DeviceFailed(device, _) | Notice::DeviceLeft(device),
            ) = &notice
            {
                working = working.saturating_sub(1);
                let index = usize::from(device.0);
                let mut failed = lock(&failed);
                failed.devices.insert(index, Instant::now());
                let uuid = failed.came.get(&index).or(parts.uuid(index)).cloned();
                drop(failed);
                if let (true, Some(uuid), Some(supervisor)) =
                    (working > 0, uuid, supervisor.upgrade())
                {
                    let pool = pool.clone();
                    // The shard's thread must not wait for a file.
                    std::thread::spawn(move || supervisor.note_left(&pool, uuid));
                }
            }
            sink(notice);
        })
    }

    fn note_left(&self, pool: &str, uuid: String) {
        let noted = self.remember(|all| {
            let seen = all.seen.iter_mut().find(|seen| seen.name == pool);
            if let Some(seen) = seen.filter(|seen| !seen.left.contains(&uuid)) {
                seen.left.push(uuid);
            }
        });
        if let Err(error) = noted {
            tracing::error!(pool, "{}", error.message);
        }
    }
}
