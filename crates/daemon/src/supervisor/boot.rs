//! The start and the end of the machine: disks that come late, and users that have not left yet.

use super::Supervisor;
use crate::state::PoolState;
use forebay_api::config::VolumeOn;
use forebay_api::reply::State;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long the first daemon after the start of the machine waits for disks.
const DISKS_PATIENCE: Duration = Duration::from_secs(30);
/// How long the daemon serves on when the machine ends and its block devices are in use.
const USERS_PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// A file beside the sockets, where nothing outlives the machine: a daemon was here before.
const STARTED: &str = "started";

impl Supervisor {
    /// Waits for disks that the kernel has not found yet. A cache without its device starts
    /// without what it held, so it is worth a moment; but only when the machine starts: what is
    /// missing later stays so.
    pub(super) fn wait_for_disks(&self, pools: &[PoolState]) {
        let mark = self.beside_sockets(STARTED);
        if !self.is_system || mark.exists() {
            return;
        }
        if let Err(error) = std::fs::write(&mark, "") {
            tracing::warn!("{}: {error}", mark.display());
        }
        let begin = Instant::now();
        let mut told = false;
        loop {
            let mut missing = self.disks(pools);
            missing.retain(|path| !path.exists());
            let over = begin.elapsed() > DISKS_PATIENCE;
            if missing.is_empty() || over || self.is_stopping() {
                return;
            }
            if !told && begin.elapsed() > Duration::from_secs(1) {
                told = true;
                let names: Vec<String> = missing.iter().map(|p| p.display().to_string()).collect();
                let patience = DISKS_PATIENCE.as_secs();
                tracing::warn!("waiting up to {patience} s for {}", names.join(", "));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The disks that are to be there.
    fn disks(&self, pools: &[PoolState]) -> BTreeSet<PathBuf> {
        let devices = pools.iter().flat_map(|pool| pool.devices.iter().cloned());
        let state = self.store.get();
        let known = state.volumes.iter().map(|volume| volume.origin.clone());
        let configured = self.config.volumes.iter().flat_map(|volume| match &volume.on {
            VolumeOn::Origin(origin) => vec![origin.clone()],
            VolumeOn::Tiers { tiers, .. } => tiers.concat(),
        });
        let tiers = state.tiered.iter().flat_map(|tiers| &tiers.members);
        let tiers = tiers.map(|member| member.uri.clone());
        let all = devices.chain(known).chain(configured).chain(tiers).map(PathBuf::from);
        all.filter(|path| path.starts_with("/dev")).collect()
    }

    /// When the machine ends, serves on until nobody uses the block devices any more: who unmounts
    /// one after its server has left waits for ever.
    pub(super) fn wait_for_users(&self) {
        if self.exports.users().is_empty() || !crate::manager::machine_stops() {
            return;
        }
        let begin = Instant::now();
        tracing::info!("serving on until nobody uses {}", self.exports.users().join(", "));
        while begin.elapsed() < USERS_PATIENCE && !self.exports.users().is_empty() {
            std::thread::sleep(PAUSE);
        }
        if !self.exports.users().is_empty() {
            tracing::error!("still in use: {}", self.exports.users().join(", "));
        }
    }

    /// Whether all that is known was tried once: it is served, or known to be missing.
    pub fn is_opened(&self) -> bool {
        self.inner().opened
    }

    /// Whether the thread of each open pool does its work.
    pub fn is_alive(&self, limit: Duration) -> bool {
        self.open_pools().iter().all(|(name, open)| {
            let alive = open.handle.is_alive(limit);
            if !alive {
                tracing::error!(pool = name.as_str(), "its thread has not answered in {limit:?}");
            }
            alive
        })
    }

    /// How the volumes are, in a line.
    pub fn one_line(&self) -> String {
        let status = self.status();
        let count = |wanted: fn(State) -> bool| {
            status.volumes.iter().filter(|volume| wanted(volume.state)).count()
        };
        let served =
            count(|state| !matches!(state, State::Opening | State::Offline | State::Detached));
        let wanted = count(|state| state != State::Detached);
        let what = match self.is_opened() {
            true => format!("{served} of {wanted} volumes served"),
            false => format!("Opening pools; {served} of {wanted} volumes served"),
        };
        match count(|state| matches!(state, State::Degraded | State::Offline)) {
            0 => format!("{what}."),
            troubled => format!("{what}, {troubled} need attention: forebay status"),
        }
    }
}
