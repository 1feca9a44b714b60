//! What there is to say of volumes that no open pool serves, and of devices that are not used.

use super::bypass::{closed_to, with_dirty};
use super::late::is_there;
use super::view::shown_pool;
use super::{Opened, Pool, lock};
use crate::state::{Standing, VolumeState, owner_of};
use forebay_api::cause::Away;
use forebay_api::hint::{Devices, Dirty, When};
use forebay_api::reply::{Attention, State, VolumeInfo};
use forebay_api::{ApiError, Cause, Hint};
use forebay_host::shard::ShardSnapshot;

impl Opened {
    /// Why a pool is degraded.
    pub(super) fn away_or_failed(&self, pool: &str) -> Vec<Cause> {
        let away = self.away(pool);
        if away.is_empty() {
            return vec![Cause::SomeCacheFailed { pool: pool.to_string() }];
        }
        away
    }

    /// How many devices a pool with these troubles goes on with.
    pub(super) fn devices_used(&self, away: &[Cause]) -> usize {
        // One that is degraded with all of its devices has lost its log.
        match lock(&self.failed).log || away.is_empty() {
            true => 0,
            false => self.devices.len() - away.len(),
        }
    }

    /// The devices that are not used.
    pub(super) fn away(&self, pool: &str) -> Vec<Cause> {
        let failed = lock(&self.failed).devices.clone();
        let devices = self.devices.iter().enumerate();
        let away = devices.filter_map(|(index, device)| {
            let how = match (device.present, failed.contains_key(&index)) {
                (true, false) => return None,
                (true, true) => Away::Failed,
                (false, _) if !is_there(&device.path) => Away::Missing,
                (false, _) => Away::Unused,
            };
            Some(Cause::CacheAway { device: device.path.clone(), pool: pool.to_string(), how })
        });
        away.collect()
    }
}

/// Whether a volume that its pool does not list yet will be in a moment.
pub(super) fn is_coming(
    volume: &VolumeState,
    pool: &Pool,
    look: &Result<ShardSnapshot, ApiError>,
    opened: bool,
) -> bool {
    if is_own_coming(volume, &pool.open, opened) {
        return true;
    }
    let (Ok(open), Ok(look)) = (&pool.open, look) else { return false };
    let is_bypassed = !opened && open.bypass.is_some() && !volume.may_be_dirty;
    let waits = look.state == forebay_engine::State::Opening || is_bypassed;
    waits && volume.standing != Standing::Detached && !open.problems.contains_key(&volume.name)
}

/// Whether a volume without a cache is served as soon as its tiers are open: what stands for its
/// pool is there before them.
pub(super) fn is_own_coming(
    volume: &VolumeState,
    open: &Result<Opened, ApiError>,
    opened: bool,
) -> bool {
    let has_problem = |open: &Opened| open.problems.contains_key(&volume.name);
    let waits = volume.standing == Standing::Served && owner_of(&volume.pool).is_some();
    waits && !opened && open.as_ref().is_ok_and(|open| !has_problem(open))
}

/// A volume whose pool is being opened.
pub(super) fn opening_volume(volume: &VolumeState) -> VolumeInfo {
    let mut attention = Attention::default();
    let state = match volume.standing {
        Standing::Detached => State::Detached,
        _ => {
            attention.causes.push(match owner_of(&volume.pool) {
                None => Cause::PoolOpening { pool: volume.pool.clone() },
                Some(_) => Cause::TiersOpening,
            });
            State::Opening
        }
    };
    unserved_volume(volume, state, attention)
}

/// A volume that no open pool serves: detached, or its pool is not open.
pub(super) fn absent_volume(
    volume: &VolumeState,
    look: Option<&(Pool, Result<ShardSnapshot, ApiError>)>,
) -> VolumeInfo {
    let problem = match look.map(|(pool, look)| (&pool.open, look)) {
        Some((Ok(open), look)) => match open.problems.get(&volume.name) {
            Some(problem) if volume.may_be_dirty => Some(with_dirty(problem.clone(), volume)),
            Some(problem) => Some(problem.clone()),
            None => {
                let why = open.bypass.as_ref().or(look.as_ref().err());
                why.map(|error| closed_to(error.clone(), volume))
            }
        },
        Some((Err(error), _)) => Some(closed_to(error.clone(), volume)),
        None if owner_of(&volume.pool).is_some() => None,
        None => {
            let error = ApiError::not_found(format!("its pool {} is not configured", volume.pool))
                .hint(Hint::CreatePool {
                    pool: volume.pool.clone(),
                    devices: Devices::Unknown,
                    dirty: Dirty::Stays,
                    when: When::OpenIt,
                });
            Some(if volume.may_be_dirty { with_dirty(error, volume) } else { error })
        }
    };
    let is_known = look.is_some() || owner_of(&volume.pool).is_some();
    let is_detached = volume.standing == Standing::Detached && is_known;
    match problem.filter(|_| !is_detached) {
        None => unserved_volume(volume, State::Detached, Attention::default()),
        Some(error) => unserved_volume(volume, State::Offline, of_error(&error)),
    }
}

fn unserved_volume(volume: &VolumeState, state: State, attention: Attention) -> VolumeInfo {
    let is_detached = state == State::Detached;
    VolumeInfo {
        name: volume.name.clone(),
        pool: shown_pool(&volume.pool),
        state,
        mode: volume.mode,
        origin: volume.origin.clone(),
        bytes: volume.bytes,
        used_bytes: is_detached.then_some(0),
        dirty_bytes: (is_detached || !volume.may_be_dirty).then_some(0),
        attention,
        ..VolumeInfo::default()
    }
}

pub(super) fn of_error(error: &ApiError) -> Attention {
    let causes = vec![Cause::Noticed { text: error.message.clone() }].into();
    Attention { causes, hints: error.hints.clone() }
}
