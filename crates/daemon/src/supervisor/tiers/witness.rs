//! What is known of the devices of a set beside what they say themselves: how old the newest of
//! them was, and which were cut while they were in use.
//!
//! Devices that were put back from a copy say nothing that is wrong: the others tell that one is
//! older. Where no other is here, only this tells it.

use crate::convert::hex;
use crate::looks::superblock_at;
use crate::state::{Age, TieredState};
use crate::supervisor::Supervisor;
use crate::supervisor::late::in_time;
use crate::supervisor::plan::{file_of, same_file};
use forebay_api::tiers::SCHEME;
use forebay_format::tier::Superblock;
use forebay_host::notice::{HostNotice, NoticeSink};
use forebay_host::origin::OriginError;
use forebay_host::origin::tiered::{Member, TieredError};
use std::path::Path;
use std::sync::Arc;

impl Supervisor {
    /// Refuses a set of whose devices each is older than the newest was. Nothing was written yet.
    pub(super) fn check_age(
        &self,
        known: &TieredState,
        members: &[Member],
    ) -> Result<(), OriginError> {
        let own = members.iter().filter_map(|it| it.superblock().ok().flatten());
        let own = own.filter(|it| hex(&it.block.set) == known.set);
        let Some(newest) = own.map(|it| it.age()).max() else { return Ok(()) };
        if !known.witness.is_older(newest) {
            return Ok(());
        }
        let name = &known.name;
        Err(TieredError::Create(format!(
            "what is here of the tiers of volume {name} is older than what it had: it comes from a \
             copy, or missed what was written to a device that is missing now; bring the newer \
             devices back: forebay volume attach {name}; or go on with these, without what was \
             written since: forebay volume remove {name}, then forebay volume create {name} with \
             them"
        ))
        .into())
    }

    /// Notes how old the newest device of a set is: before anything is written to it, or when it
    /// rests. Where that cannot be noted the set is served, and only an older copy of all that is
    /// here would not be known.
    pub(super) fn note_age(&self, name: &str, age: Age) {
        let noted = self.store.change(|all| {
            let own = all.tiered.iter_mut().filter(|it| it.name == name);
            own.for_each(|it| it.witness.see(age));
        });
        if let Err(error) = noted {
            tracing::error!(
                volume = name,
                "how old its devices are is not noted: {}",
                error.message
            );
        }
    }

    /// Notes how old the devices of these volumes are, after an orderly stop.
    pub(in crate::supervisor) fn note_ages(&self, volumes: &[(String, String)]) {
        for name in volumes.iter().filter_map(|(_, uri)| uri.strip_prefix(SCHEME)) {
            let state = self.store.get();
            let Some(known) = state.tiers_of(name).filter(|it| it.boot.is_none()) else { continue };
            let uris: Vec<String> = known.members.iter().map(|it| it.uri.clone()).collect();
            let set = known.set.clone();
            let look = move || {
                let all = uris.iter().filter_map(|uri| superblock_of(uri, &set));
                Ok(all.map(|it| it.age()).max())
            };
            match in_time(&format!("look at the tiers of {name}"), look) {
                Ok(Some(age)) => self.note_age(name, age),
                Ok(None) => {}
                Err(error) => tracing::warn!(volume = name, "{}", error.message),
            }
        }
    }

    /// Passes notices on, and remembers devices of tiers that were cut.
    pub(in crate::supervisor) fn watching_tiers(
        self: &Arc<Self>,
        mut sink: NoticeSink,
    ) -> NoticeSink {
        let supervisor = Arc::downgrade(self);
        Box::new(move |notice: HostNotice| {
            if let HostNotice::Cut { path, .. } = &notice
                && let Some(supervisor) = supervisor.upgrade()
            {
                let path = path.clone();
                // The shard's thread must not wait for a file.
                std::thread::spawn(move || supervisor.note_cut(&path));
            }
            sink(notice);
        })
    }

    fn note_cut(&self, path: &Path) {
        // Names are followed before: who looks at a disk that hangs keeps nobody from writing.
        let (state, path) = (self.store.get(), path.display().to_string());
        let durable = state.tiered.iter().filter(|it| it.boot.is_none());
        let members = durable.flat_map(|it| &it.members);
        let cut: Vec<&str> = members
            .filter(|it| same_file(file_of(&it.uri), &path))
            .map(|it| it.uuid.as_str())
            .collect();
        let noted = self.store.change(|all| {
            for known in &mut all.tiered {
                let own = known.members.iter().map(|it| &it.uuid);
                let own = own.filter(|it| cut.contains(&it.as_str()));
                own.for_each(|it| known.witness.was_cut(it.clone()));
            }
        });
        if let Err(error) = noted {
            tracing::error!("that {path} was cut is not remembered: {}", error.message);
        }
    }
}

/// What is told of a device that was cut, maybe in an earlier life of the daemon.
pub(super) const WAS_CUT: &str =
    "was cut while it was in use, and is not used: nobody knows what it still holds";

fn superblock_of(uri: &str, set: &str) -> Option<Superblock> {
    superblock_at(Path::new(file_of(uri))).filter(|it| hex(&it.block.set) == set)
}
