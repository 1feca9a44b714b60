//! One shard: its state, the way in and the way out. What each operation does is in `op/`.

use crate::buf::{Buf, BufPool};
use crate::event::*;
use crate::index::Key;
use crate::limits::*;
use crate::log::Log;
use crate::map::Map;
use crate::mode::Mode;
use crate::op::Op;
use crate::op::load::index_shape;
use crate::op::{
    checkpoint, closing, distrust, ends, flush, open, reclaim, superblock, sweep, writeback,
};
use crate::policy::admission::Admission;
use crate::pressure::Pressure;
use crate::ram::Ram;
use crate::requests::{Req, ReqKey, Requests, Wait};
use crate::room::Room;
use crate::segment::Segments;
use crate::settings::{Settings, Tuning};
use crate::slab::Slab;
use crate::stats::{PoolStats, VolumeStats};
use crate::turns::Turns;
use crate::volume::Volume;
use crate::volumes::Volumes;
use crate::work::Work;
use crate::{BlockStatus, Mutant};
use forebay_format::{BLOCK_SIZE, SECTOR_SIZE};

/// Where the engine stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Recovery runs; requests wait.
    Opening,
    /// Requests are served.
    Serving,
    /// A shutdown command was accepted; nothing new is served.
    Stopping,
    /// The pool could not be opened; the text says why and what to do.
    Failed(String),
}

/// What the engine knows of one volume.
#[derive(Debug, Clone)]
pub struct VolumeView {
    /// The volume.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// URI of the origin.
    pub origin: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Identity of the origin.
    pub fingerprint: [u8; 32],
    /// The mode in force.
    pub mode: Mode,
    /// Whether it sends its dirty blocks home for a command.
    pub draining: bool,
    /// Whether its requests are served; otherwise why not.
    pub offline: Option<String>,
    /// But for what is cached: its origin was lost while it was served.
    pub lost: bool,
}

/// One shard: one log, one index, one thread.
pub struct Engine {
    pub(crate) now: Time,
    pub(crate) out: Vec<Effect>,
    pub(crate) state: State,
    pub(crate) tuning: Tuning,
    #[cfg(feature = "mutants")]
    pub(crate) mutant: Option<Mutant>,
    pub(crate) sb: superblock::Superblocks,
    pub(crate) volumes: Volumes,
    pub(crate) map: Map,
    pub(crate) segments: Segments,
    pub(crate) room: Room,
    pub(crate) log: Log,
    pub(crate) ram: Ram,
    pub(crate) admission: Admission,
    pub(crate) reqs: Requests,
    pub(crate) ops: Slab<Op>,
    pub(crate) pool: BufPool,
    pub(crate) turns: Turns,
    pub(crate) pressure: Pressure,
    pub(crate) cache_flush: flush::CacheFlush,
    pub(crate) opening: Option<Box<open::Opening>>,
    pub(crate) reclaim: reclaim::Reclaim,
    pub(crate) writeback: writeback::Writeback,
    pub(crate) checkpoint: checkpoint::Checkpoint,
    pub(crate) sweeps: sweep::Sweeps,
    pub(crate) ends: ends::Ends,
    pub(crate) closing: closing::Closing,
    /// No cache device works: volumes go on without.
    pub(crate) dead: bool,
    pub(crate) distrust: distrust::Distrusting,
    pub(crate) stats: PoolStats,
    pub(crate) deadline: Option<Time>,
    pub(crate) work: Work,
}

impl Engine {
    /// Opens a pool: emits the reads of recovery. Requests may be submitted at once; they wait.
    pub fn open(settings: Settings, now: Time, out: &mut Vec<Effect>) -> Engine {
        let segments = Segments::new(&settings.superblock, &settings.devices);
        let slots = segments.slots();
        let stats = PoolStats {
            segments: segments.count().into(),
            slots: u64::from(slots),
            ..PoolStats::default()
        };
        let mut engine = Engine {
            now,
            out: Vec::new(),
            state: State::Opening,
            #[cfg(feature = "mutants")]
            mutant: settings.mutant,
            sb: superblock::Superblocks::new(settings.superblock.clone()),
            volumes: Volumes::default(),
            map: Map::new(index_shape(slots, &settings.tuning), slots),
            room: Room::new(&segments),
            segments,
            log: Log::default(),
            ram: Ram::new(settings.ram_bytes),
            admission: Admission::new(slots),
            reqs: Requests::default(),
            ops: Slab::default(),
            pool: BufPool::new(BUFFERS_HELD_MAX),
            turns: Turns::default(),
            pressure: Pressure::default(),
            cache_flush: flush::CacheFlush::default(),
            opening: None,
            reclaim: reclaim::Reclaim::default(),
            writeback: writeback::Writeback::default(),
            checkpoint: checkpoint::Checkpoint::default(),
            sweeps: sweep::Sweeps::default(),
            ends: ends::Ends::default(),
            closing: closing::Closing::default(),
            dead: false,
            distrust: distrust::Distrusting::new(settings.distrust.clone()),
            stats,
            deadline: None,
            work: Work::default(),
            tuning: settings.tuning.clone(),
        };
        engine.recover(&settings);
        out.append(&mut engine.out);
        engine
    }

    /// Takes one event. Effects are appended to `out`.
    pub fn handle(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        self.work.begin();
        self.now = self.now.max(now);
        if !matches!(event, Event::Tick) {
            self.log.pace.stir();
        }
        match event {
            Event::Submit(id, request) => self.submit(id, request),
            Event::Done(op, completion) => self.done(op, completion),
            Event::Command(id, command) => self.command(id, command),
            Event::Tick => {}
        }
        self.moves_seen(); // Else they gather as long as a checkpoint's writes take.
        out.append(&mut self.out);
    }

    /// To be called after each batch of events: sends what has gathered (group commit) and does a
    /// bounded piece of background work.
    pub fn settle(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.work.begin();
        self.now = self.now.max(now);
        if self.state == State::Opening {
            self.deadline = None;
            self.recover_more();
        }
        match self.state {
            State::Serving | State::Stopping => {
                let mut rounds = 0;
                loop {
                    let before = self.progress();
                    self.wake();
                    self.background();
                    self.send_gathered();
                    self.flush_more();
                    self.wake();
                    self.closing_more();
                    rounds += 1;
                    if self.progress() == before {
                        self.deadline = self.next_deadline();
                        break;
                    }
                    if rounds == SETTLE_ROUNDS_MAX || self.work_is_enough() {
                        self.deadline = Some(self.now);
                        break;
                    }
                }
            }
            State::Opening => {}
            State::Failed(_) => self.deadline = None,
        }
        out.append(&mut self.out);
    }

    fn background(&mut self) {
        self.online_more();
        self.origin_flushes_more();
        self.sweep_more();
        self.ends_more();
        if self.dead {
            self.writeback_end_dead();
            self.distrust_more();
            return self.tasks_more();
        }
        self.sync_more();
        self.writeback_more();
        self.reclaim_more();
        self.tasks_more();
        self.checkpoint_more();
        self.superblock_more();
    }

    /// Lets those go on that waited for something that may have happened.
    pub(crate) fn wake(&mut self) {
        while let Some(req) = self.reqs.next_ready() {
            self.begin(req);
        }
        self.resume_stalled();
        self.resume_behind_room();
        self.resume_intending();
        self.resume_flushing();
    }

    /// When the next `Tick` is due at the latest.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Whether this call has done its share: the rest waits for the next.
    pub(crate) fn work_is_enough(&self) -> bool {
        self.work.steps() >= SETTLE_STEPS
    }

    /// Steps of work that the last call took: entries, items and blocks that it looked at.
    pub fn steps(&self) -> u64 {
        self.work.steps()
    }

    /// Where the engine stands.
    pub fn state(&self) -> State {
        self.state.clone()
    }

    /// The volumes of the pool.
    pub fn volumes(&self) -> Vec<VolumeView> {
        let view = |v: &Volume| VolumeView {
            id: v.id,
            name: v.name.clone(),
            origin: v.origin.clone(),
            bytes: v.bytes,
            uuid: v.uuid,
            fingerprint: v.fingerprint,
            mode: v.mode,
            draining: v.draining(),
            offline: v.offline.clone(),
            lost: v.lost,
        };
        self.volumes.iter().filter(|v| !v.removing).map(view).collect()
    }

    /// Counts of one volume.
    pub fn volume_stats(&self, volume: VolumeId) -> Option<&VolumeStats> {
        self.volume(volume).map(|v| &v.stats)
    }

    /// Counts of the pool.
    pub fn pool_stats(&self) -> PoolStats {
        PoolStats {
            segments_free: self.room.segments_free(&self.segments),
            room_free_blocks: self.room.free() as u64 * u64::from(self.segments.blocks()),
            room_coming_blocks: self.room.coming(&self.segments) as u64
                * u64::from(self.segments.blocks()),
            room_writable_blocks: self.room.for_clients(),
            cached_blocks: self.map.len() as u64,
            ram_blocks: self.ram.len() as u64,
            ram_blocks_max: self.ram.blocks_max() as u64,
            index_bytes: self.map.bytes(),
            degraded: self.dead || self.segments.degraded(),
            ..self.stats.clone()
        }
    }

    /// Where a block is. Free of I/O.
    pub fn block_status(&self, volume: VolumeId, block: u64) -> BlockStatus {
        let Some(volume) = self.volume(volume).filter(|v| block < v.blocks()) else {
            return BlockStatus::NotCached;
        };
        match self.map.get(volume.base + block) {
            None => BlockStatus::NotCached,
            Some(located) if self.map.is_dirty(located.slot) => BlockStatus::Dirty,
            Some(_) => BlockStatus::Clean,
        }
    }

    /// The sectors of a block, a bit each, that are newer than what the origin has.
    pub fn dirty_sectors(&self, volume: VolumeId, block: u64) -> u8 {
        let key = self.volume(volume).filter(|v| block < v.blocks()).map(|v| v.base + block);
        let located = key.and_then(|key| self.map.get(key));
        let dirty = located.filter(|located| self.map.is_dirty(located.slot));
        dirty.map_or(0, |located| self.map.mask(located.slot))
    }

    /// Takes a buffer back that a reply or effect carried and the executor has no use for.
    pub fn recycle(&mut self, buf: Buf) {
        self.pool.give(buf);
    }

    /// Frees memory that is only kept to be used again.
    pub fn trim(&mut self) {
        self.pool.trim();
        self.log.trim();
    }

    pub(crate) fn volume(&self, id: VolumeId) -> Option<&Volume> {
        self.volumes.get(id)
    }

    /// A volume that a request or an operation of ours holds: it is not removed before they end.
    pub(crate) fn vol(&self, id: VolumeId) -> &Volume {
        self.volume(id).expect("the volume stays while something runs on it")
    }

    /// As [`Engine::vol`].
    pub(crate) fn vol_mut(&mut self, id: VolumeId) -> &mut Volume {
        self.volumes.get_mut(id).expect("as in `vol`")
    }

    /// The volume of a key.
    pub(crate) fn volume_of(&self, key: Key) -> Option<&Volume> {
        self.volumes.of(key)
    }

    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        #[cfg(feature = "mutants")]
        return self.mutant == Some(mutant);
        #[cfg(not(feature = "mutants"))]
        {
            let _ = mutant;
            false
        }
    }

    pub(crate) fn op(&mut self, op: Op) -> OpId {
        OpId(self.ops.insert(op))
    }

    /// Checks a request and gives it a place; it begins at once, or waits for recovery or for
    /// others.
    fn submit(&mut self, id: RequestId, request: Request) {
        let refused = match (&self.state, self.volume(request.volume)) {
            (State::Failed(_), _) => Some(IoError::Gone),
            (State::Stopping, _) => Some(IoError::Shutdown),
            (_, None) => Some(IoError::Gone),
            (_, Some(volume)) if volume.removing || volume.adding || volume.is_left() => {
                Some(IoError::Gone)
            }
            (_, Some(volume)) if volume.offline.is_some() && !volume.lost => Some(IoError::Gone),
            (_, Some(volume)) => refuse(volume, &request),
        };
        if let Some(error) = refused {
            if let Some(volume) = self.volumes.get_mut(request.volume) {
                volume.stats.errors += 1;
            }
            self.out.push(Effect::Reply { id, result: Err(error), buf: request.buf });
            return;
        }
        let now = self.now;
        let volume = self.vol_mut(request.volume);
        volume.requests += 1;
        volume.requests_active += 1;
        let (first, last) = volume.span(request.offset, request.len);
        let req = self.reqs.insert(Req::new(id, request, first, last, now));
        if self.state == State::Opening {
            self.reqs.wait(req, Wait::Recovery);
        } else {
            self.accept(req);
        }
    }

    /// Replies to a request and forgets it.
    pub(crate) fn reply(&mut self, name: ReqKey) {
        let req = self.reqs.remove(name);
        let latency = self.now - req.since;
        let volume = self.vol_mut(req.volume);
        volume.requests_active -= 1;
        volume.cache_writes_active -= u32::from(req.cached);
        volume.stats.errors += u64::from(req.error.is_some());
        match req.kind {
            RequestKind::Read => volume.stats.read_latency.record(latency),
            RequestKind::Write => volume.stats.write_latency.record(latency),
            RequestKind::Flush => volume.stats.flush_latency.record(latency),
            _ => {}
        }
        for buf in req.merge.into_iter().flatten() {
            self.pool.give(buf.1);
        }
        let result = req.error.map_or(Ok(()), Err);
        self.out.push(Effect::Reply { id: req.id, result, buf: req.buf });
    }

    fn done(&mut self, op: OpId, completion: Completion) {
        let op = self.ops.remove(op.0).expect("each I/O ends once");
        self.op_done(op, completion);
    }
}

/// Blocks that a pool of `slots` can hold at once, about: reclaim keeps one segment in 32 free.
pub(crate) fn live_max(slots: u32) -> u32 {
    slots - slots / 32
}

fn refuse(volume: &Volume, request: &Request) -> Option<IoError> {
    let sector = SECTOR_SIZE as u64;
    let end = request.offset.checked_add(request.len);
    if !request.offset.is_multiple_of(sector) || !request.len.is_multiple_of(sector) {
        return Some(IoError::Invalid);
    }
    if end.is_none_or(|end| end > volume.bytes) {
        let write = !matches!(request.kind, RequestKind::Read | RequestKind::Prefetch);
        return Some(if write { IoError::NoSpace } else { IoError::Invalid });
    }
    let sized = matches!(request.kind, RequestKind::Read | RequestKind::Write);
    if sized && request.len != request.buf.len() as u64 {
        return Some(IoError::Invalid);
    }
    let blocks = request.len.div_ceil(BLOCK_SIZE as u64) + 1;
    if blocks > REQUEST_BLOCKS_MAX + 1
        && matches!(request.kind, RequestKind::Read | RequestKind::Write | RequestKind::Prefetch)
    {
        return Some(IoError::Invalid);
    }
    None
}
