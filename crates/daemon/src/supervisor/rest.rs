//! Whether somebody wrote to an origin while the daemon was not there. When it ends in order, it
//! notes what its origins look like; the next start compares.

use super::late::Awaited;
use super::origin::changed_origin;
use super::{Opened, Supervisor};
use forebay_api::ApiError;
use forebay_host::origin::Origin;
use forebay_host::rest::{Rest, Since};

/// What is told of such an origin.
const WRITTEN: &str = "somebody wrote to it while forebayd was stopped";

impl Supervisor {
    /// The volumes that a pool serves, with their origins' URIs.
    pub(super) fn served_volumes(&self, open: &Opened) -> Vec<(String, String)> {
        if open.bypass.is_some() {
            return Vec::new();
        }
        let Ok(snapshot) = open.handle.snapshot() else { return Vec::new() };
        let views = snapshot.volumes.into_iter().map(|volume| volume.view);
        let served = |name: &str| !open.problems.contains_key(name);
        let views = views.filter(|view| view.offline.is_none() && served(&view.name));
        views.map(|view| (view.name, view.origin)).collect()
    }

    /// Notes what the origins of these volumes look like, when their pool has been closed.
    pub(super) fn note_rest(&self, pool: &str, volumes: &[(String, String)]) {
        let look = |uri: &str| Rest::of(&Origin::open(uri).ok()?).ok()?;
        let looks: Vec<(&String, String)> =
            volumes.iter().filter_map(|(name, uri)| Some((name, look(uri)?.encode()))).collect();
        if looks.is_empty() {
            return;
        }
        let noted = self.remember(|all| {
            for (name, look) in looks {
                if let Some(volume) = all.volume_mut(name) {
                    volume.rested = Some(look);
                }
            }
        });
        if let Err(error) = noted {
            tracing::warn!(pool, "{}", error.message);
        }
    }

    /// What is told of an origin that does not look `now` as it did when its pool was closed last.
    ///
    /// A file that was only touched counts where nothing is dirty: then it costs cached blocks, and
    /// no decision of an administrator.
    pub(super) fn was_written(&self, name: &str, now: Option<&Rest>) -> Option<ApiError> {
        let known = self.store.get().volume(name).cloned()?;
        let was = known.rested.as_ref()?;
        let changed = match now?.since(was) {
            Since::Written => true,
            Since::Touched => !known.may_be_dirty,
            Since::Nothing => false,
        };
        changed.then(|| changed_origin(&known.origin, name, WRITTEN))
    }

    /// The origin of a volume is as it was: what is written from now on is written by us.
    pub(super) fn is_ours_now(&self, volume: &Awaited) -> Result<(), ApiError> {
        self.store.change_volume(&volume.name, |volume| volume.rested = None)
    }
}
