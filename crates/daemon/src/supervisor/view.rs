//! Answers to questions, from snapshots of the pools and what is remembered.

use super::absent::{absent_volume, is_coming, of_error, opening_volume};
use super::bypass::closed;
use super::leave::or_lose;
use super::{FoundVolume, Opened, Pool, Supervisor, lock, shard_error};
use crate::convert::hex;
use crate::state::{PoolState, owner_of};
use forebay_api::hint::{Care, Fact, Log, When};
use forebay_api::reply::{
    Attention, DeviceInfo, JobState, PoolInfo, Room, State, Status, VolumeInfo, Why, WhyReason,
};
use forebay_api::stats::{Counters, PoolCounters, PoolStats, VolumeCounters, reason_meaning};
use forebay_api::{ApiError, Cause, Causes, Hint};
use forebay_engine::{Target, VolumeView};
use forebay_format::BLOCK_SIZE;
use forebay_format::stats::REASONS;
use forebay_host::shard::{ShardSnapshot, VolumeSnapshot};
use std::time::Duration;

const FIVE_MINUTES: Duration = Duration::from_secs(5 * 60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// The pools with their snapshots; an error where the shard does not answer.
type Looks = Vec<(Pool, Result<ShardSnapshot, ApiError>)>;

impl Supervisor {
    fn look(&self) -> Looks {
        let pools: Vec<Pool> = self.inner().pools.values().cloned().collect();
        let look = |pool: Pool| {
            let snapshot = match &pool.open {
                Ok(open) => open.handle.snapshot().map_err(|e| shard_error(&pool.known.name, &e)),
                Err(error) => Err(error.clone()),
            };
            (pool, snapshot)
        };
        pools.into_iter().map(look).collect()
    }

    /// Everything at a glance.
    pub fn status(&self) -> Status {
        let looks = self.look();
        let pools = self.pool_infos(&looks);
        let volumes = self.volume_infos(&looks);
        let states = pools.iter().map(|p| p.state).chain(volumes.iter().map(|v| v.state));
        let mut attention = Attention::default();
        let mut state = worst(states);
        if !self.inner().opened {
            attention.causes.push(Cause::DaemonOpening);
            if state == State::Ok {
                state = State::Opening;
            }
        }
        for error in self.listeners.unheard() {
            attention.causes.push(Cause::Noticed { text: error.message });
            attention.hints.append(error.hints);
        }
        Status { state, volumes, pools, attention }
    }

    pub(super) fn pools(&self) -> Vec<PoolInfo> {
        self.pool_infos(&self.look())
    }

    /// The pools that are some.
    fn pool_infos(&self, looks: &Looks) -> Vec<PoolInfo> {
        let pools = looks.iter().filter(|(pool, _)| owner_of(&pool.known.name).is_none());
        pools.map(|(pool, snapshot)| self.pool_info(pool, snapshot)).collect()
    }

    pub(super) fn pool(&self, name: &str) -> Result<PoolInfo, ApiError> {
        let found = self.pools().into_iter().find(|pool| pool.name == name);
        found.ok_or_else(|| self.no_such_pool(name))
    }

    pub(super) fn volumes(&self) -> Vec<VolumeInfo> {
        self.volume_infos(&self.look())
    }

    pub(super) fn volume(&self, name: &str) -> Result<VolumeInfo, ApiError> {
        let found = self.volumes().into_iter().find(|volume| volume.name == name);
        match found {
            Some(volume) => Ok(volume),
            None => Err(self
                .find_volume(name)
                .err()
                .unwrap_or_else(|| ApiError::not_found(format!("no volume {name:?}")))),
        }
    }

    /// Clients that use a volume.
    pub(super) fn clients_of(&self, found: &FoundVolume) -> u64 {
        let own = self.exports.own_connections(&found.snapshot.view.name);
        found.snapshot.clients.saturating_sub(own) as u64
    }

    /// All counters.
    pub fn counters(&self) -> Counters {
        let mut counters =
            Counters { uptime_s: self.started.elapsed().as_secs_f64(), ..Counters::default() };
        for (pool, snapshot) in self.look() {
            let (name, internal_errors) =
                (shown_pool(&pool.known.name), self.falls(&pool.known.name));
            let is_own = name.is_empty();
            let without = PoolStats { degraded: true, ..PoolStats::default() };
            let Ok(snapshot) = snapshot else {
                if is_own {
                    continue;
                }
                counters.pools.push(PoolCounters { name, stats: without, internal_errors });
                continue;
            };
            let tiers = |volume: &VolumeSnapshot| {
                let tiers = volume.tiers.as_ref();
                tiers.map(|it| self.tiers_info(&volume.view.name, it).devices).unwrap_or_default()
            };
            counters.volumes.extend(snapshot.volumes.into_iter().map(|volume| VolumeCounters {
                no_room_writes: volume.tiers.as_ref().map_or(0, |it| it.no_room_writes),
                tiers: tiers(&volume),
                name: volume.view.name,
                pool: name.clone(),
                stats: volume.stats,
            }));
            if is_own {
                continue;
            }
            let is_bypass = pool.open.as_ref().is_ok_and(|open| open.bypass.is_some());
            // What stands for it caches nothing.
            let stats = if is_bypass { without } else { snapshot.pool };
            counters.pools.push(PoolCounters { name, stats, internal_errors });
        }
        counters
    }

    /// Remembers the counters of this moment for the windows.
    pub fn sample(&self) {
        let counters = self.counters();
        self.inner().samples.push(counters.volumes);
    }

    /// Whether the daemon stops.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(super) fn why(&self, name: &str) -> Result<Why, ApiError> {
        let found = self.find_volume(name)?;
        let now = found.snapshot.stats.not_cached;
        let before = self.inner().samples.before(name, &shown_pool(&found.pool), HOUR).not_cached;
        let lately: [u64; REASONS.len()] =
            std::array::from_fn(|reason| now[reason].saturating_sub(before[reason]));
        let all: u64 = lately.iter().sum();
        let counts = REASONS.iter().zip(lately).zip(now);
        let mut reasons: Vec<WhyReason> = counts
            .map(|((reason, lately), ever)| WhyReason {
                reason: (*reason).to_string(),
                meaning: reason_meaning(reason).to_string(),
                bytes_1h: lately * BLOCK_SIZE as u64,
                share_1h: if all == 0 { 0.0 } else { lately as f64 / all as f64 },
                bytes: ever * BLOCK_SIZE as u64,
            })
            .collect();
        reasons.sort_by_key(|reason| std::cmp::Reverse((reason.bytes_1h, reason.bytes)));
        Ok(Why { volume: name.to_string(), reasons })
    }

    fn pool_info(&self, pool: &Pool, snapshot: &Result<ShardSnapshot, ApiError>) -> PoolInfo {
        match (&pool.open, snapshot) {
            (Ok(Opened { bypass: Some(error), .. }), Ok(_)) => {
                self.closed_pool_info(pool, error, State::Degraded)
            }
            (Ok(open), Ok(snapshot)) => self.open_pool_info(pool, open, snapshot),
            (_, Err(error)) | (Err(error), _) => self.closed_pool_info(pool, error, State::Offline),
        }
    }

    fn open_pool_info(&self, pool: &Pool, open: &Opened, snapshot: &ShardSnapshot) -> PoolInfo {
        let mut attention = Attention::default();
        let mut state = match &snapshot.state {
            forebay_engine::State::Opening => State::Opening,
            forebay_engine::State::Serving => State::Ok,
            forebay_engine::State::Stopping => State::Draining,
            forebay_engine::State::Failed(why) => {
                attention.causes.push(Cause::Noticed { text: why.to_string() });
                State::Offline
            }
        };
        let away = open.away(&pool.known.name);
        let slow = slow_devices(open, snapshot);
        let fewer = snapshot.pool.degraded || !away.is_empty();
        if (fewer || !slow.is_empty()) && state == State::Ok {
            state = State::Degraded;
        }
        attention.causes.append(slow);
        if state.needs_attention() {
            let noticed = |text: &String| Cause::Noticed { text: text.clone() };
            attention.causes.extend(open.findings.iter().map(noticed));
            attention.causes.extend(lock(&open.notices).iter().map(noticed));
        }
        if fewer && state == State::Degraded {
            attention.hints.push(Hint::SeeLog { of: Log::Device });
            let that = match open.devices_used(&away) {
                0 => Fact::NoDeviceLeft,
                1 => Fact::OneDeviceLeft,
                _ => Fact::FewerDevices,
            };
            attention.hints.push(Hint::Know { that });
            if open.devices.len() > 1 {
                attention.hints.push(self.how_to_mend(pool, open));
            }
        }
        self.tell_falls(&pool.known.name, &mut attention);
        let dirty_bytes = snapshot.volumes.iter().map(|volume| volume.stats.dirty_bytes()).sum();
        PoolInfo {
            name: pool.known.name.clone(),
            uuid: hex(&open.uuid),
            state,
            devices: open.devices_now(),
            capacity_bytes: open.capacity_bytes,
            used_bytes: snapshot.pool.cached_blocks * BLOCK_SIZE as u64,
            dirty_bytes,
            dirty_two_copies_bytes: snapshot.pool.dirty_two_copies_blocks * BLOCK_SIZE as u64,
            dirty_one_copy_bytes: snapshot.pool.dirty_one_copy_blocks * BLOCK_SIZE as u64,
            segment_bytes: open.segment_bytes,
            segments: open.devices.iter().map(|device| device.segments).sum(),
            segments_free: snapshot.pool.segments_free,
            room: Room {
                free_bytes: snapshot.pool.room_free_blocks * BLOCK_SIZE as u64,
                coming_bytes: snapshot.pool.room_coming_blocks * BLOCK_SIZE as u64,
                writable_bytes: snapshot.pool.room_writable_blocks * BLOCK_SIZE as u64,
            },
            ram: open.ram,
            volumes: snapshot.volumes.iter().map(|volume| volume.view.name.clone()).collect(),
            attention,
        }
    }

    fn closed_pool_info(&self, pool: &Pool, error: &ApiError, state: State) -> PoolInfo {
        let devices = pool.known.devices.iter();
        let devices =
            devices.map(|path| DeviceInfo { path: path.clone(), ..DeviceInfo::default() });
        let attention = of_error(&self.closed_pool(pool, error.clone()));
        let memory = self.store.get();
        let known = memory.volumes.iter().filter(|volume| volume.pool == pool.known.name);
        PoolInfo {
            name: pool.known.name.clone(),
            uuid: memory.seen(&pool.known.name).map_or_else(String::new, |s| s.uuid.clone()),
            state,
            devices: devices.collect(),
            volumes: known.map(|volume| volume.name.clone()).collect(),
            attention,
            ..PoolInfo::default()
        }
    }

    /// Adds how a pool comes back: with any of its volumes, if it has one that is to be served.
    pub(super) fn closed_pool(&self, pool: &Pool, error: ApiError) -> ApiError {
        let PoolState { name, devices, .. } = &pool.known;
        closed(error, |when| match self.store.get().served_by(name).next() {
            Some(volume) => Hint::attach(&volume.name, when),
            None => Hint::create_pool(name, devices, when),
        })
    }

    fn volume_infos(&self, looks: &Looks) -> Vec<VolumeInfo> {
        let mut infos = Vec::new();
        for (pool, snapshot) in looks {
            if let (Ok(open), Ok(snapshot)) = (&pool.open, snapshot) {
                let volumes = snapshot.volumes.iter();
                infos
                    .extend(volumes.map(|v| self.volume_info(&pool.known.name, open, snapshot, v)));
            }
        }
        let inner = self.inner();
        for volume in &self.store.get().volumes {
            if infos.iter().any(|info| info.name == volume.name) {
                continue;
            }
            let look = looks.iter().find(|(pool, _)| pool.known.name == volume.pool);
            // What was looked at before it was opened may be open by now: ask again.
            let is_opening = match look {
                None => inner.is_opening(&volume.pool) || inner.pools.contains_key(&volume.pool),
                Some((pool, look)) => is_coming(volume, pool, look, inner.opened),
            };
            infos.push(match is_opening {
                true => opening_volume(volume),
                false => absent_volume(volume, look),
            });
        }
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    }

    fn tell_lost_device(
        &self,
        volume: &VolumeSnapshot,
        state: &mut State,
        attention: &mut Attention,
    ) {
        let name = &volume.view.name;
        if *state == State::Ok
            && let Some((cause, hint)) = self.exports.trouble(name, Some(volume.ports))
        {
            *state = State::Degraded;
            attention.causes.push(cause);
            attention.hints.push(hint);
        }
    }

    /// Of 5 minutes and of an hour; none of what has no cache.
    fn hit_ratios(&self, pool: &str, open: &Opened, volume: &VolumeSnapshot) -> [Option<f64>; 2] {
        let has_cache = !pool.is_empty() && open.bypass.is_none();
        let (name, inner) = (&volume.view.name, self.inner());
        [FIVE_MINUTES, HOUR].map(|window| {
            let before = inner.samples.before(name, pool, window).hits;
            volume.stats.hits().ratio_since(before).filter(|_| has_cache)
        })
    }

    fn volume_info(
        &self,
        pool: &str,
        open: &Opened,
        snapshot: &ShardSnapshot,
        volume: &VolumeSnapshot,
    ) -> VolumeInfo {
        let (view, stats) = (&volume.view, &volume.stats);
        let job = self.job(&view.name);
        let running = job.as_ref().is_some_and(|job| job.progress == JobState::Running);
        let mut attention = Attention::default();
        let mut state = match &snapshot.state {
            forebay_engine::State::Opening => State::Opening,
            _ if view.draining || running => State::Draining,
            _ => State::Ok,
        };
        tell_lost_blocks(stats.lost_blocks, &mut state, &mut attention);
        if snapshot.pool.degraded {
            state = State::Degraded;
            attention.causes.extend(open.away_or_failed(pool));
            attention.hints.push(Hint::ShowPool { pool: pool.to_string(), when: When::See });
        }
        if let Some(error) = open.problems.get(&view.name) {
            state = if view.lost { State::Degraded } else { State::Offline };
            let dirty = stats.dirty_bytes();
            attention = of_error(&or_lose(error.clone(), &view.name, dirty));
        } else if let Some(error) = &open.bypass {
            state = State::Degraded;
            let again = |when| Hint::attach(&view.name, when);
            attention = of_error(&closed(error.clone(), again));
            attention.causes.push_first(Cause::WithoutCache);
        } else if let Some(why) = &view.offline {
            state = State::Offline;
            attention.causes.push(Cause::Noticed { text: why.clone() });
            attention.hints.push(Hint::attach(&view.name, When::Mended));
        }
        tell_failing_flushes(view, &mut state, &mut attention);
        tell_slow(open, snapshot, view, &mut state, &mut attention);
        self.tell_lost_device(volume, &mut state, &mut attention);
        if let Some(tiers) = &volume.tiers {
            self.tell_tiers(&view.name, tiers, &mut state, &mut attention);
        }
        let (export, export_why) = self.exports.shown(&view.name);
        let own_clients = self.exports.own_connections(&view.name);
        let pool = shown_pool(pool);
        let [hit_ratio_5m, hit_ratio_1h] = self.hit_ratios(&pool, open, volume);
        let tiers = volume.tiers.as_ref().map(|it| Box::new(self.tiers_info(&view.name, it)));
        // Without a cache, what is used is the devices of its tiers.
        let own = tiers.as_ref().filter(|_| pool.is_empty()).map(|it| it.used_bytes);
        VolumeInfo {
            name: view.name.clone(),
            pool: pool.clone(),
            state,
            mode: view.mode,
            origin: view.origin.clone(),
            bytes: view.bytes,
            used_bytes: Some(own.unwrap_or(stats.cached_blocks * BLOCK_SIZE as u64)),
            dirty_bytes: Some(stats.dirty_bytes()),
            hit_ratio_5m,
            hit_ratio_1h,
            export,
            export_why,
            clients: volume.clients.saturating_sub(own_clients) as u64,
            job,
            tiers,
            attention,
        }
    }
}

/// The name of a pool for people: none, of what stands for one.
pub(super) fn shown_pool(name: &str) -> String {
    if owner_of(name).is_some() { String::new() } else { name.to_string() }
}

/// The cache devices that do not end their I/O.
fn slow_devices(open: &Opened, snapshot: &ShardSnapshot) -> Causes {
    let slow = snapshot.slow.iter().filter_map(|&(target, seconds)| match target {
        Target::Cache(device) => {
            let device = open.devices.get(usize::from(device.0))?.path.clone();
            Some(Cause::CacheSlow { device, seconds: seconds.into() })
        }
        Target::Origin(_) => None,
    });
    slow.collect()
}

fn tell_lost_blocks(lost: u64, state: &mut State, attention: &mut Attention) {
    if lost == 0 {
        return;
    }
    *state = State::Degraded;
    attention.causes.push(Cause::BlocksLost { blocks: lost });
    attention.hints.push(Hint::SeeTo { what: Care::Files });
}

/// Its origin has forgotten what clients had written: they hear it from each FLUSH.
fn tell_failing_flushes(view: &VolumeView, state: &mut State, attention: &mut Attention) {
    if !view.poisoned || *state != State::Ok {
        return;
    }
    *state = State::Degraded;
    attention.causes.push(Cause::WritesLost);
    attention.hints.push(Hint::Reattach { volume: view.name.clone() });
}

/// Who waits for a disk should see for which.
fn tell_slow(
    open: &Opened,
    snapshot: &ShardSnapshot,
    view: &VolumeView,
    state: &mut State,
    attention: &mut Attention,
) {
    let mut slow = slow_devices(open, snapshot);
    slow.extend(snapshot.slow.iter().filter(|(it, _)| *it == Target::Origin(view.id)).map(
        |&(_, seconds)| Cause::OriginSlow { origin: view.origin.clone(), seconds: seconds.into() },
    ));
    if slow.is_empty() {
        return;
    }
    if *state == State::Ok {
        *state = State::Degraded;
    }
    attention.causes.append(slow);
    attention.hints.push(Hint::SeeTo { what: Care::SlowDisk });
}

/// The state that needs most attention.
fn worst(states: impl Iterator<Item = State>) -> State {
    let rank = |state: &State| match state {
        State::Ok | State::Detached => 0,
        State::Draining => 1,
        State::Opening => 2,
        State::Degraded => 3,
        State::Offline => 4,
    };
    let worst = states.max_by_key(rank).unwrap_or(State::Ok);
    if worst == State::Detached { State::Ok } else { worst }
}
