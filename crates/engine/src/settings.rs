//! What an executor tells the engine when it opens a pool.

use crate::event::VolumeId;
use forebay_format::standing::Standing;
use forebay_format::superblock::Superblock;
use std::collections::BTreeMap;

/// One cache device of the pool.
#[derive(Debug, Clone)]
pub struct DeviceSettings {
    /// Bytes of the device now.
    pub bytes: u64,
    /// Whether the device has a volatile write cache: without one a FLUSH costs nothing.
    pub volatile_cache: bool,
    /// Whether it gains from being told which bytes are free ([`crate::Effect::Discard`]).
    pub discards: bool,
    /// Whether it can be used.
    pub presence: Presence,
}

/// Whether a cache device can be used at a start. A pool of several opens with some of them, as
/// long as nothing dirty is on the others alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It has the newest superblock.
    InStep,
    /// Its superblock is one generation older than the pool's.
    Behind,
    /// It cannot be reached, or the pool went on without it.
    Absent,
    /// The same, and an administrator says that it never will be: what only it holds is given up.
    GivenUp,
}

impl From<Standing> for Presence {
    fn from(standing: Standing) -> Presence {
        match standing {
            Standing::Newest => Presence::InStep,
            Standing::Behind => Presence::Behind,
            Standing::Stale | Standing::OtherPool | Standing::Replaced => Presence::Absent,
        }
    }
}

impl Presence {
    /// Whether the device is here.
    pub fn is_here(self) -> bool {
        matches!(self, Presence::InStep | Presence::Behind)
    }
}

/// The origin of one volume that the superblock names.
#[derive(Debug, Clone)]
pub struct OriginSettings {
    /// The volume.
    pub volume: VolumeId,
    /// Whether the origin can be reached and is the right one. A volume without is not served, and
    /// its dirty data stays.
    pub present: bool,
    /// Whether the origin has a volatile write cache.
    pub volatile_cache: bool,
    /// Blocks of a stripe of the origin: a write of whole stripes spares a RAID array what it would
    /// read for its parity. 0 or 1 where there are none.
    pub stripe_blocks: u32,
}

/// What the engine needs to open a pool.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The newest valid superblock of the pool's devices, as the executor read it. The
    /// engine writes the next generation.
    pub superblock: Superblock,
    /// The devices, by their index in the superblock.
    pub devices: Vec<DeviceSettings>,
    /// The origins of the volumes in the superblock.
    pub origins: Vec<OriginSettings>,
    /// What of the pool must not be used, as the executor noted it ([`crate::Effect::Distrust`]).
    pub distrust: Distrust,
    /// What somebody outside of the devices has seen of the log.
    pub witness: Witness,
    /// Bytes of the RAM tier.
    pub ram_bytes: u64,
    /// A planted bug, for the test of the simulator.
    #[cfg(feature = "mutants")]
    pub mutant: Option<crate::Mutant>,
    /// Tuning. The default suits production; the simulator varies it.
    pub tuning: Tuning,
}

/// What somebody outside of the devices knows of how far the log went ([`crate::Engine::durable`]):
/// an older copy of all devices looks like the newest state in all else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Witness {
    /// It was durable up to this record: a log that ends before is an older one, or damaged. 0 for
    /// a pool of which nothing was seen yet, or nobody looked.
    Seen(u64),
    /// Nobody knows any more. What is clean is read from the origins again; a pool with dirty data
    /// is not opened before somebody accepts it.
    Missing,
    /// Nobody knows, and an administrator goes on with what is there. What is clean is read from
    /// the origins again.
    Accepted,
}

impl Default for Witness {
    fn default() -> Witness {
        Witness::Seen(0)
    }
}

/// What a cache device holds and must never be used again, since the volumes went on without it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distrust {
    /// Clean blocks of the log's lives up to this one; 0 for none.
    pub epoch: u64,
    /// Dirty blocks of these volumes, of the lives up to this one each.
    pub dropped: BTreeMap<u32, u64>,
}

/// Numbers that trade one good for another. Few users should touch them.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// Dirty-class records under way at once; more gather in the next record (group commit).
    pub records_in_flight_max: usize,
    /// Share of the slots that may be dirty before writers are slowed down, 0 to 1.
    pub dirty_high: f64,
    /// Share of the slots that may be dirty at all, 0 to 1.
    pub dirty_max: f64,
    /// Start to send dirty blocks home above this share, 0 to 1; below it, only when idle or old.
    pub dirty_target: f64,
    /// Time between sync points, in nanoseconds.
    pub sync_interval_ns: u64,
    /// Blocks of one writeback slice (one origin FLUSH).
    pub writeback_slice_blocks: usize,
    /// Writes to one origin under way at once during writeback.
    pub writeback_depth: usize,
    /// Blocks of one region of the write-intent map (a power of two).
    pub region_blocks: u64,
    /// Regions that are marked one by one, over all volumes; beyond it a volume is marked as a
    /// whole. What a checkpoint area holds besides the index leaves room for them.
    pub regions_max: usize,
    /// Bytes of a sequential stream after which it bypasses the cache; `u64::MAX` for never.
    pub sequential_bytes: u64,
    /// Share of the pool's slots written between checkpoints, 0 to 1.
    pub checkpoint_share: f64,
    /// Idle time after which dirty blocks are sent home below `dirty_target`, in nanoseconds.
    pub idle_ns: u64,
    /// Buckets of the index that one slice of a scan looks at; and no more blocks end in a slice.
    pub scan_buckets: usize,
    /// Entries for which the index has room, as a share of the blocks that the pool can hold at
    /// once.
    pub index_share: f64,
    /// Admit read misses only at the second miss, once the cache has been full.
    pub admit_second_miss: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            records_in_flight_max: 2,
            dirty_high: 0.60,
            dirty_max: 0.75,
            dirty_target: 0.05,
            sync_interval_ns: 5_000_000_000,
            writeback_slice_blocks: 16_384,
            writeback_depth: 32,
            // More costs the cache device more reads than it saves a disk that sorts by itself.
            region_blocks: 64,
            regions_max: 16_384,
            sequential_bytes: 16 << 20,
            checkpoint_share: 0.05,
            idle_ns: 1_000_000_000,
            scan_buckets: 256,
            index_share: 1.0,
            admit_second_miss: true,
        }
    }
}
