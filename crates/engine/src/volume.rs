//! What the engine keeps of a volume.

use crate::event::{CommandId, Time, VolumeId, VolumeSpec};
use crate::index::Key;
use crate::intents::Intents;
use crate::limits::ORIGIN_HANGS_NS;
use crate::mode::Mode;
use crate::op::sync::Sync;
use crate::quarantine::Quarantine;
use crate::settings::OriginSettings;
use crate::stats::{Reason, VolumeStats};
use crate::writeback::Home;
use forebay_format::BLOCK_SIZE;
use forebay_format::superblock::{VolumeEntry, field_text, text_field};
use roaring::RoaringTreemap;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

/// A set of blocks in order, for writeback sweeps. Compressed: two bytes a block where few are set,
/// one bit where many are (Lemire et al., "Roaring Bitmaps", 2016).
#[derive(Debug, Default)]
pub struct BlockSet {
    blocks: RoaringTreemap,
    len: u64,
}

impl BlockSet {
    /// Puts a block in; whether it was not there before.
    pub fn insert(&mut self, block: u64) -> bool {
        let new = self.blocks.insert(block);
        self.len += u64::from(new);
        new
    }

    /// Puts blocks in, in order.
    pub fn insert_sorted(&mut self, blocks: impl Iterator<Item = u64>) {
        let mut last = None;
        let distinct = blocks.filter(|&block| last.replace(block) != Some(block));
        let new = RoaringTreemap::from_sorted_iter(distinct).expect("the caller sorted them");
        self.blocks |= new;
        self.len = self.blocks.len();
    }

    /// Takes a block out; whether it was there.
    pub fn remove(&mut self, block: u64) -> bool {
        let was = self.blocks.remove(block);
        self.len -= u64::from(was);
        was
    }

    /// Blocks in the set.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The blocks from `from` on, in order.
    pub fn iter_from(&self, from: u64) -> impl Iterator<Item = u64> + '_ {
        let mut blocks = self.blocks.iter();
        blocks.advance_to(from);
        blocks
    }
}

/// What a FLUSH of the origin must cover, and covers.
#[derive(Debug, Default)]
pub struct OriginFlush {
    /// Writes to the origin that have completed since the start.
    pub written: u64,
    /// Of these, how many are durable.
    pub flushed: u64,
    /// The FLUSH under way covers this many.
    pub inflight: Option<u64>,
    /// Somebody waits for more than the FLUSH under way covers.
    pub wanted: u64,
    /// Tries of the FLUSH under way that failed.
    pub tries: u8,
    /// A FLUSH failed that should have covered client writes: none can be promised durable any
    /// more.
    pub poisoned: bool,
    /// So what of it is cached may be newer than what the origin has, and is still in the cache.
    pub doubtful: bool,
    /// Who asked for the volume's removal was not told yet.
    pub untold: bool,
    /// The last client write is this one.
    pub client_written: u64,
    /// FLUSHes that failed.
    pub failures: u64,
    /// Not to be tried again before.
    pub retry_at: Time,
    /// When the one under way was sent.
    pub sent_at: Time,
    /// How long the last one took, in nanoseconds.
    pub took_ns: u64,
}

/// A long command that runs on a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Drain, then stay.
    Drain(CommandId),
    /// Drain, then switch to the mode.
    Switch(CommandId, Mode),
    /// Drain, then remove.
    Remove(CommandId),
}

impl Task {
    /// The command to answer.
    pub fn command(self) -> CommandId {
        match self {
            Task::Drain(id) | Task::Switch(id, _) | Task::Remove(id) => id,
        }
    }
}

/// One sequential stream that a volume's clients seem to read or write.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stream {
    /// The byte behind the last request.
    pub next: u64,
    /// Bytes so far.
    pub bytes: u64,
    /// When it was last seen, as a count of requests.
    pub seen: u64,
}

/// One volume.
#[derive(Debug)]
pub struct Volume {
    /// Its number.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// URI of the origin.
    pub origin: String,
    /// Identity.
    pub uuid: [u8; 16],
    /// Identity of the origin.
    pub fingerprint: [u8; 32],
    /// Size in bytes.
    pub bytes: u64,
    /// The size that is being written to the superblock.
    pub growing: Option<u64>,
    /// Key of its first block.
    pub base: Key,
    /// The mode in force.
    pub mode: Mode,
    /// Why it is not served.
    pub offline: Option<String>,
    /// But for what is cached: its origin was lost while it was served.
    pub lost: bool,
    /// Whether the origin has a volatile cache.
    pub volatile_cache: bool,
    /// Dirty blocks, by block number.
    pub dirty: BlockSet,
    /// Regions with intents.
    pub(crate) intents: Intents,
    /// FLUSHes of the origin.
    pub flush: OriginFlush,
    /// The sync point being made.
    pub sync: Option<Sync>,
    /// When the last one began, or the first intent since came.
    pub synced_at: Time,
    /// Writes into the cache under way.
    pub cache_writes_active: u32,
    /// A request waits for dirty blocks to go home.
    pub urgent: bool,
    /// When to try again to bring the volume online.
    pub online_at: Option<Time>,
    /// The log says durably up to here what must not come back, before it is.
    pub online_dseq: u64,
    /// The origin may show what it will forget: it failed a FLUSH.
    pub fills_off: bool,
    /// The volume is being added to the superblock.
    pub adding: bool,
    /// The long command under way.
    pub task: Option<Task>,
    /// FLUSHes of the origin that had failed when it began.
    pub task_failures: u64,
    /// As many blocks as were dirty then have been sent home when so many have.
    pub task_sent: u64,
    /// The volume is being removed from the superblock.
    pub removing: bool,
    /// Where the writeback sweep stands, as a block number.
    pub sweep: u64,
    /// Dirty blocks that the sweep has passed since it last found one to send.
    pub looked_in_vain: u64,
    /// Some of these wait for the log.
    pub passed_undurable: bool,
    /// All do: none is looked for before more of the log is durable than this.
    pub undurable_at: Option<u64>,
    /// What does not go home for now.
    pub(crate) quarantine: Quarantine,
    /// The last record that says of a block that it is home, or gone.
    pub(crate) cleaned_dseq: u64,
    /// What goes home.
    pub(crate) home: Home,
    /// Sequential streams.
    pub streams: [Stream; 8],
    /// Requests seen.
    pub requests: u64,
    /// Reads of the origin that have not ended.
    pub origin_reads: u32,
    /// When a client last asked something of the origin.
    pub origin_used: Time,
    /// When a client last wrote.
    pub written_at: Time,
    /// Requests of clients under way.
    pub requests_active: u32,
    /// Counts.
    pub stats: VolumeStats,
}

impl OriginFlush {
    /// What clients wrote, and nobody flushed, may be lost: no later FLUSH can promise it.
    pub(crate) fn lost_perhaps(&mut self) {
        let lost = self.client_written > self.flushed;
        for word in [&mut self.poisoned, &mut self.doubtful, &mut self.untold] {
            *word |= lost;
        }
    }

    /// A FLUSH failed, or the origin was lost before one.
    pub(crate) fn failed(&mut self) {
        self.lost_perhaps();
        self.failures += 1;
        self.wanted = 0;
    }

    /// The origin was lost, and is there again: a FLUSH that is under way covers nothing of what it
    /// had taken before.
    pub(crate) fn origin_was_lost(&mut self) {
        self.failed();
        self.inflight = self.inflight.map(|_| 0);
    }

    /// From when on the FLUSH under way counts as one that hangs: it takes much longer than the
    /// last one did; but the last one may have been one that hung.
    pub(crate) fn hangs_from(&self) -> Option<Time> {
        let long = (4 * self.took_ns).clamp(ORIGIN_HANGS_NS, 2 * ORIGIN_HANGS_NS);
        self.inflight.map(|_| self.sent_at + long)
    }
}

impl Volume {
    /// The first and last key of a stretch, both in bytes.
    pub fn span(&self, offset: u64, len: u64) -> (Key, Key) {
        let block_bytes = BLOCK_SIZE as u64;
        let last = self.base + (offset + len.max(1) - 1) / block_bytes;
        (self.base + offset / block_bytes, last)
    }

    /// A new volume.
    pub fn new(id: VolumeId, spec: VolumeSpec, base: Key) -> Volume {
        Volume {
            id,
            name: spec.name,
            origin: spec.origin,
            uuid: spec.uuid,
            fingerprint: spec.fingerprint,
            bytes: spec.bytes,
            growing: None,
            base,
            mode: spec.mode,
            offline: None,
            lost: false,
            volatile_cache: spec.volatile_cache,
            dirty: BlockSet::default(),
            intents: Intents::default(),
            flush: OriginFlush::default(),
            sync: None,
            synced_at: 0,
            cache_writes_active: 0,
            urgent: false,
            online_at: None,
            online_dseq: 0,
            fills_off: false,
            adding: false,
            task: None,
            task_failures: 0,
            task_sent: 0,
            removing: false,
            sweep: 0,
            quarantine: Quarantine::default(),
            cleaned_dseq: 0,
            home: Home::default(),
            looked_in_vain: 0,
            passed_undurable: false,
            undurable_at: None,
            streams: [Stream::default(); 8],
            requests: 0,
            origin_reads: 0,
            origin_used: 0,
            written_at: 0,
            requests_active: 0,
            stats: VolumeStats::default(),
        }
    }

    /// A volume of the superblock; `None` for a mode that this version does not know.
    pub fn of_entry(
        entry: &VolumeEntry,
        base: Key,
        origin: Option<&OriginSettings>,
    ) -> Option<Volume> {
        let spec = VolumeSpec {
            name: field_text(&entry.name),
            origin: field_text(&entry.origin),
            bytes: entry.bytes.get(),
            uuid: entry.uuid,
            fingerprint: entry.fingerprint,
            mode: Mode::from_raw(entry.mode)?,
            volatile_cache: origin.is_none_or(|origin| origin.volatile_cache),
        };
        let mut volume = Volume::new(VolumeId(entry.id.get()), spec, base);
        if origin.is_none_or(|origin| !origin.present) {
            volume.offline = Some("its origin is missing".to_owned());
        }
        Some(volume)
    }

    /// The volume's entry in the superblock.
    pub fn entry(&self) -> VolumeEntry {
        let mut entry = VolumeEntry::new_zeroed();
        entry.id = U32::new(self.id.0);
        entry.used = 1;
        entry.mode = self.mode as u8;
        entry.bytes = U64::new(self.growing.unwrap_or(self.bytes));
        entry.uuid = self.uuid;
        entry.name = text_field(&self.name);
        entry.fingerprint = self.fingerprint;
        entry.origin = text_field(&self.origin);
        entry
    }

    /// Whether nothing but requests under way keeps the volume from being removed. It takes no
    /// more: clients that never stop would keep it for ever.
    pub(crate) fn is_left(&self) -> bool {
        matches!(self.task, Some(Task::Remove(_)))
            && self.dirty.is_empty()
            && self.cache_writes_active == 0
            && !self.flush.untold
    }

    /// Why what a client writes to the origin is not kept as clean, if so.
    pub(crate) fn written_is_not_kept(&self) -> Option<Reason> {
        let plan = match self.task {
            Some(Task::Remove(_)) => return Some(Reason::Mode),
            Some(Task::Switch(_, mode)) => mode.plan(),
            Some(Task::Drain(_)) | None => self.mode.plan(),
        };
        match (plan.write_fill, plan.write_dirty) {
            (true, _) => None,
            (false, false) => Some(Reason::Mode),
            // It went around a cache that had no room, unless a drain sent it.
            (false, true) => self.task.is_none().then_some(Reason::NoSpace),
        }
    }

    /// Whether dirty blocks cannot be given up yet: some are on their way home, or requests that
    /// may write others are under way on a volume that is not served any more.
    pub(crate) fn drops_wait(&self) -> bool {
        self.home.busy() || (self.offline.is_some() && self.requests_active > 0)
    }

    /// Blocks, the last of which may be cut short.
    pub fn blocks(&self) -> u64 {
        self.bytes.div_ceil(BLOCK_SIZE as u64)
    }

    /// The keys that are its own: from the first, up to this one.
    pub fn keys(&self) -> (Key, Key) {
        let bytes = self.growing.unwrap_or(self.bytes);
        (self.base, self.base + bytes.div_ceil(BLOCK_SIZE as u64))
    }

    /// From when on the origin counts as one that hangs, if nothing of what goes home ends before.
    pub(crate) fn hangs_from(&self) -> Option<Time> {
        let flushes = self.flush.hangs_from().filter(|_| self.home.busy());
        self.home.hangs_from().or(flushes)
    }

    /// Whether the origin has to be flushed before the volume is removed: not one that is gone,
    /// where nobody has to hear that what clients wrote there is gone with it.
    pub(crate) fn owes_flush(&self) -> bool {
        let is_there = self.offline.is_none() || self.retries();
        is_there || self.flush.client_written > self.flush.flushed
    }

    /// Whether the origin is lost, refuses what it is sent, or ends nothing of it.
    pub(crate) fn lags(&self, now: Time) -> bool {
        self.lost
            || self.quarantine.refuses_all()
            || self.hangs_from().is_some_and(|from| from <= now)
    }

    /// Dirty blocks of which nobody knows when they go home: those that cannot be read, or all
    /// while the origin is not there.
    pub fn stuck(&self) -> u64 {
        let dirty = self.dirty.len();
        if self.offline.is_some() {
            dirty
        } else {
            dirty.min(self.quarantine.unreadable().len() as u64)
        }
    }

    /// Whether it is offline for a moment only: its origin is tried again.
    pub fn retries(&self) -> bool {
        self.online_at.is_some()
    }

    /// Whether what is dirty goes home with one slice.
    pub(crate) fn is_nearly_drained(&self) -> bool {
        self.dirty.len() <= self.home.slice_blocks() as u64
    }

    /// Whether writes go to the origin although the mode writes into the cache: what is dirty only
    /// becomes less, so that the task ends. A drain comes to that when as many blocks have been
    /// sent home as were dirty when it began: clients write faster than that goes.
    pub(crate) fn writes_through(&self, now: Time) -> bool {
        match self.task {
            None => false,
            Some(Task::Switch(_, mode)) => !mode.plan().write_dirty,
            Some(Task::Remove(_)) => true,
            Some(Task::Drain(_)) => {
                let is_late = self.home.sent() >= self.task_sent;
                let is_well = !self.quarantine.is_failing() && !self.lags(now);
                (is_late || self.is_nearly_drained()) && is_well && self.offline.is_none()
            }
        }
    }

    /// Whether a drain is under way.
    pub fn draining(&self) -> bool {
        self.task.is_some()
    }
}
