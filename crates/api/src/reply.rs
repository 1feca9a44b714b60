//! What the daemon answers. One model feeds tables and JSON.

use crate::stats::Counters;
use crate::tiers::{ExtentInfo, TiersInfo, TiersShown};
use crate::{ApiError, Causes, Hints, Hold, Mode, RamNeed, RescuePart, SCHEMA, Tellings, Told};
use serde::{Deserialize, Serialize};

/// A reply with its version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The content.
    #[serde(flatten)]
    pub body: Body,
}

impl From<Body> for Reply {
    fn from(body: Body) -> Reply {
        Reply { schema: SCHEMA, body }
    }
}

/// The content of a reply; `"kind"` tells which.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Body {
    /// The request was not carried out.
    Error {
        /// Why.
        error: ApiError,
    },
    /// A change was made, was not necessary, was started, or is planned.
    Done(Box<Done>),
    /// The daemon itself.
    Daemon(DaemonInfo),
    /// The tiers of a volume.
    Tiers(Box<TiersShown>),
    /// Where parts of a volume live.
    Extents {
        /// The volume.
        volume: String,
        /// In the order of what was asked.
        extents: Vec<ExtentInfo>,
    },
    /// Pools.
    Pools {
        /// By name.
        pools: Vec<PoolInfo>,
    },
    /// Volumes.
    Volumes {
        /// By name.
        volumes: Vec<VolumeInfo>,
    },
    /// Everything at a glance.
    Status(Status),
    /// All counters.
    Counters(Counters),
    /// What was not cached.
    Why(Why),
    /// A part of what only the cache holds of a volume.
    Rescued(Box<RescuePart>),
    /// A job.
    Job {
        /// The newest job of the volume, if it ever had one.
        job: Option<Job>,
    },
}

/// How a change ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Something changed.
    Changed,
    /// Everything was as asked before.
    Unchanged,
    /// A job runs; ask for it by the name of the volume.
    Started,
    /// Nothing was changed, because of `dry_run`.
    Planned,
}

/// The answer to a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// How it ended.
    pub outcome: Outcome,
    /// What was done, or would be: `told`, and in `messages` a line each.
    #[serde(flatten, with = "crate::lines::messages")]
    pub told: Tellings,
    /// What an administrator would go on without: to be asked for first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// It is done, and the volume is not as it should be: what is told says why.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub degraded: bool,
    /// What would be risked or lost: to be asked for first. `risks`, and in `asks` a line each.
    #[serde(flatten, with = "crate::lines::asks")]
    pub asks: Tellings,
    /// What a new pool is made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PoolPlan>,
    /// The pool afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolInfo>,
    /// The volume afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeInfo>,
}

impl Done {
    /// An answer without details.
    pub fn new(outcome: Outcome, told: Told) -> Done {
        Done {
            outcome,
            told: Tellings::from(vec![told]),
            hold: None,
            degraded: false,
            asks: Tellings::default(),
            plan: None,
            pool: None,
            volume: None,
        }
    }
}

/// What a pool would be made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolPlan {
    /// Name of the pool.
    pub name: String,
    /// Its devices.
    pub devices: Vec<DevicePlan>,
    /// Bytes of one segment.
    pub segment_bytes: u64,
    /// Segments in all.
    pub segments: u64,
    /// Bytes that it can hold.
    pub capacity_bytes: u64,
    /// Memory that it needs.
    pub ram: RamNeed,
    /// Most memory that it may take.
    pub ram_cap_bytes: u64,
    /// Memory of the clients of all pools together, which is counted beside it.
    #[serde(default)]
    pub clients_cap_bytes: u64,
}

/// One device of a planned pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePlan {
    /// Path.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// What is on it now; empty for nothing.
    pub holds: Vec<String>,
    /// Bytes of one of its two checkpoint areas.
    pub checkpoint_area_bytes: u64,
    /// First byte of the first segment.
    pub segments_offset: u64,
    /// Segments.
    pub segments: u64,
}

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// Version.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// State directory.
    pub state_dir: String,
    /// NBD socket.
    pub nbd_socket: String,
    /// NBD over TCP, if it listens there.
    #[serde(default)]
    pub nbd_listen: Option<String>,
    /// Most memory that pools and clients together may take, in bytes.
    pub ram_cap_bytes: u64,
    /// What of it clients may make the daemon hold, in bytes.
    #[serde(default)]
    pub clients_cap_bytes: u64,
    /// What the requests of NBD clients hold now, in bytes.
    #[serde(default)]
    pub clients_bytes: u64,
}

/// Where a pool or volume stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Recovery runs; requests wait.
    Opening,
    /// As it should be.
    Ok,
    /// A job sends its dirty data home.
    Draining,
    /// Served, but something needs attention.
    Degraded,
    /// Not served; `why` and `action` say more.
    #[default]
    Offline,
    /// Taken out of service by an administrator.
    Detached,
}

impl State {
    /// The name, as the tables and the JSON spell it.
    pub const fn name(self) -> &'static str {
        match self {
            State::Opening => "opening",
            State::Ok => "ok",
            State::Draining => "draining",
            State::Degraded => "degraded",
            State::Offline => "offline",
            State::Detached => "detached",
        }
    }

    /// Whether somebody should look at it: exit code 3 of `forebay status`.
    pub const fn needs_attention(self) -> bool {
        matches!(self, State::Degraded | State::Offline)
    }
}

/// Something that needs attention.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Attention {
    /// What is wrong: `causes`, and in `why` a line each.
    #[serde(flatten, with = "crate::lines::why")]
    pub causes: Causes,
    /// What to do: `hints`, and in `action` a line each.
    #[serde(flatten, with = "crate::lines::action")]
    pub hints: Hints,
}

/// One cache device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Path, as it was given.
    pub path: String,
    /// Size in bytes; of the device that was, when it is missing.
    pub bytes: u64,
    /// Segments on it.
    pub segments: u64,
    /// Bytes that a device in its place must have.
    #[serde(default)]
    pub least_bytes: u64,
    /// Whether it can be reached and has not failed.
    pub present: bool,
    /// What it calls itself, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// For how many seconds it has not been used, if it has been since the pool was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused_s: Option<u64>,
}

/// One pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolInfo {
    /// Name.
    pub name: String,
    /// Identity, as hexadecimal digits; empty if it was never open here.
    pub uuid: String,
    /// Where it stands.
    pub state: State,
    /// Its devices.
    pub devices: Vec<DeviceInfo>,
    /// Bytes that it can hold.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Dirty bytes among them.
    pub dirty_bytes: u64,
    /// Dirty bytes that are on two devices.
    #[serde(default)]
    pub dirty_two_copies_bytes: u64,
    /// Dirty bytes that are on one device only.
    #[serde(default)]
    pub dirty_one_copy_bytes: u64,
    /// Bytes of one segment.
    pub segment_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Free segments.
    pub segments_free: u64,
    /// Room in its log.
    pub room: Room,
    /// Memory that it may take.
    pub ram: RamNeed,
    /// Names of its volumes.
    pub volumes: Vec<String>,
    /// What needs attention.
    #[serde(flatten)]
    pub attention: Attention,
}

/// Room in a pool's log, as its parts tell it to each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Bytes that are free for dirty data.
    pub free_bytes: u64,
    /// Bytes that will be free when what is under way has ended.
    pub coming_bytes: u64,
    /// Bytes that a writer may count on.
    pub writable_bytes: u64,
}

/// One volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Name.
    pub name: String,
    /// Its pool; empty where it has none.
    pub pool: String,
    /// Where it stands.
    pub state: State,
    /// The mode in force.
    pub mode: Mode,
    /// URI of the origin.
    pub origin: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Bytes of it in the cache, or, without one, on its tiers; `None` where its pool is not open,
    /// so that nobody can say.
    pub used_bytes: Option<u64>,
    /// Dirty bytes among them; `None` where its pool is not open and may hold some.
    pub dirty_bytes: Option<u64>,
    /// Share of read requests of the last 5 minutes that the cache answered wholly.
    pub hit_ratio_5m: Option<f64>,
    /// Share of read requests of the last hour that the cache answered wholly.
    pub hit_ratio_1h: Option<f64>,
    /// Path of its block device, or URI by which a client reaches it, if it is exported.
    pub export: Option<String>,
    /// How it is exported and why so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export_why: Option<String>,
    /// Clients connected now. Those of a block device are not known, and not among them.
    pub clients: u64,
    /// The job that runs, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// Its tiers, if its origin has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiers: Option<Box<TiersInfo>>,
    /// What needs attention.
    #[serde(flatten)]
    pub attention: Attention,
}

/// Everything at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The worst state.
    pub state: State,
    /// By name.
    pub volumes: Vec<VolumeInfo>,
    /// By name.
    pub pools: Vec<PoolInfo>,
    /// What needs attention and belongs to no pool or volume.
    #[serde(flatten)]
    pub attention: Attention,
}

/// What was not cached, by reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// The volume.
    pub volume: String,
    /// Reasons, the most frequent of the last hour first.
    pub reasons: Vec<WhyReason>,
}

/// One reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WhyReason {
    /// Its name.
    pub reason: String,
    /// What it means.
    pub meaning: String,
    /// Bytes not cached for it in the last hour.
    pub bytes_1h: u64,
    /// Its share of all that was not cached in the last hour; 0 without any.
    pub share_1h: f64,
    /// Bytes not cached for it since the pool was opened.
    pub bytes: u64,
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// Sends dirty data home.
    Drain,
    /// Switches the mode.
    Mode,
    /// Takes the volume out of service.
    Detach,
    /// Takes the volume out of service and forgets it.
    Remove,
}

impl JobKind {
    /// The name, as people read it.
    pub const fn name(self) -> &'static str {
        match self {
            JobKind::Drain => "drain",
            JobKind::Mode => "mode switch",
            JobKind::Detach => "detach",
            JobKind::Remove => "remove",
        }
    }
}

impl std::fmt::Display for JobKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a job stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum JobState {
    /// It runs.
    Running,
    /// It is done.
    Done {
        /// How it ended.
        outcome: Outcome,
    },
    /// It failed or was cancelled; the volume is as it was.
    Failed {
        /// Why.
        error: ApiError,
    },
}

/// A job: something that takes as long as there is dirty data to send home.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// What it does.
    pub job: JobKind,
    /// The volume.
    pub volume: String,
    /// Dirty bytes when it started.
    pub dirty_bytes_start: u64,
    /// Dirty bytes now.
    pub dirty_bytes: u64,
    /// Bytes that went home since it started: more than were dirty, where clients write.
    pub sent_bytes: u64,
    /// Seconds since it started, or that it took.
    pub elapsed_s: f64,
    /// Where it stands.
    #[serde(flatten)]
    pub progress: JobState,
}
