//! The loop: the way in and the way out, and the owners of all state. What an operation does is in
//! the folder of the owner whose state it changes, or in `op/`.

use crate::Mutant;
use crate::ends::Ends;
use crate::event::*;
use crate::ids::Key;
use crate::io::Io;
use crate::limits::*;
use crate::log::Log;
use crate::map::{Map, index_shape};
use crate::open_error::OpenError;
use crate::pool::Pool;
use crate::pool::Stage;
use crate::reclaim::Reclaim;
use crate::requests::{Req, ReqKey, Requests, Wait};
use crate::segment::Segments;
use crate::settings::{Settings, Tuning};
use crate::volume::Volume;
use crate::volume::volumes::Volumes;
use crate::writeback::Writeback;
use forebay_format::io::Buf;
use forebay_format::mode::Mode;
use forebay_format::stats::{PoolStats, VolumeStats, Written};
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
    /// The pool could not be opened: why.
    Failed(OpenError),
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
    /// Every FLUSH of it fails: its origin may have lost what clients had written there.
    pub poisoned: bool,
}

/// Whether a block is in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockStatus {
    /// Only the origin has it.
    NotCached,
    /// Cached, equal to the origin.
    Clean,
    /// Cached, newer than the origin.
    Dirty,
}

/// What is the pool's (`pool`, `volumes`) and what is one shard's: one log, one index, one thread.
pub struct Engine {
    pub(crate) io: Io,
    tuning: Tuning,
    #[cfg(feature = "mutants")]
    mutant: Option<Mutant>,
    pub(crate) pool: Pool,
    pub(crate) volumes: Volumes,
    pub(crate) map: Map,
    pub(crate) segments: Segments,
    pub(crate) log: Log,
    pub(crate) reqs: Requests,
    pub(crate) reclaim: Reclaim,
    pub(crate) writeback: Writeback,
    pub(crate) ends: Ends,
}

impl Engine {
    /// Opens a pool: emits the reads of recovery. Requests may be submitted at once; they wait.
    pub fn open(settings: Settings, now: Time, out: &mut Vec<Effect>) -> Engine {
        let segments = Segments::new(&settings.superblock, &settings.devices);
        let slots = segments.slots();
        let mut engine = Engine {
            io: Io::new(now),
            #[cfg(feature = "mutants")]
            mutant: settings.mutant,
            pool: Pool::new(settings.superblock.clone(), settings.distrust.clone()),
            volumes: Volumes::default(),
            map: Map::new(index_shape(slots, &settings.tuning), slots, settings.ram_bytes),
            segments,
            log: Log::default(),
            reqs: Requests::default(),
            reclaim: Reclaim::default(),
            writeback: Writeback::default(),
            ends: Ends::default(),
            tuning: settings.tuning.clone(),
        };
        if engine.is(Mutant::HalvesUnseen) {
            engine.segments.see_no_halves();
        }
        engine.recover(&settings);
        engine.io.end(out);
        engine
    }

    /// Takes one event. Effects are appended to `out`.
    pub fn handle(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        self.io.begin(now);
        if !matches!(event, Event::Tick) {
            self.log.stir();
        }
        match event {
            Event::Submit(id, request) => self.submit(id, request),
            Event::Done(op, completion) => {
                let op = self.io.ended(op);
                self.op_done(op, completion);
            }
            Event::Command(id, command) => self.command(id, command),
            Event::Tick => {}
        }
        self.moves_seen(); // Else they gather as long as a checkpoint's writes take.
        self.io.end(out);
    }

    /// To be called after each batch of events: sends what has gathered (group commit) and does a
    /// bounded piece of background work.
    pub fn settle(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.io.begin(now);
        if self.is_opening() {
            self.io.tick(None);
            self.recover_more();
        }
        match self.pool.stage() {
            Stage::Serving | Stage::Stopping(_) => self.rounds(),
            Stage::Opening(_) | Stage::Recovering => {}
            Stage::Failed(_) => self.io.tick(None),
        }
        self.io.end(out);
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
        self.io.tick_at()
    }

    /// Steps of work that the last call took: entries, items and blocks that it looked at.
    pub fn steps(&self) -> u64 {
        self.io.steps()
    }

    /// The volumes of the pool.
    pub fn volumes(&self) -> Vec<VolumeView> {
        let view = |v: &Volume| VolumeView {
            id: v.id(),
            name: v.identity().name.clone(),
            origin: v.identity().origin.clone(),
            bytes: v.bytes(),
            uuid: v.identity().uuid,
            fingerprint: v.identity().fingerprint,
            mode: v.mode(),
            draining: v.draining(),
            offline: v.service().why_off().cloned(),
            lost: v.service().is_lost(),
            poisoned: v.flush().is_poisoned(),
        };
        self.volumes.iter().filter(|v| !v.is_leaving()).map(view).collect()
    }

    /// How far the log is durable: it is never found to end before. `None` as long as the pool is
    /// not open. For [`crate::Witness`].
    pub fn durable(&self) -> Option<u64> {
        match self.pool.stage() {
            Stage::Serving | Stage::Stopping(_) => {
                let early = self.is(Mutant::WitnessBeforeFlush);
                let unseen = self.is(Mutant::CheckpointUnwitnessed);
                let log = if early { self.log.completed_dseq() } else { self.log.durable_dseq() };
                Some(if unseen { log } else { log.max(self.pool.checkpointed()) }.raw())
            }
            Stage::Opening(_) | Stage::Recovering | Stage::Failed(_) => None,
        }
    }

    /// Counts of one volume.
    pub fn volume_stats(&self, volume: VolumeId) -> Option<&VolumeStats> {
        self.volume(volume).map(Volume::stats)
    }

    /// Counts of the pool.
    pub fn pool_stats(&self) -> PoolStats {
        let [segments_dropped, segments_cleaned] = self.reclaim.emptied();
        let [reads_held, holds_cut] = self.writeback.holds();
        let (ram_blocks, ram_blocks_max) = self.map.ram_blocks();
        let dirty: u64 = self.volumes.iter().map(|volume| volume.dirty().len()).sum();
        let copies = self.segments.dirty_copies(dirty);
        let mut stats = PoolStats {
            written_bytes: Written { checkpoint: self.pool.bytes_written(), ..Written::default() },
            segments_dropped,
            segments_cleaned,
            checkpoints: self.pool.checkpoints(),
            segments: self.segments.count().into(),
            slots: self.segments.slots().into(),
            write_stalls: self.reqs.stalls(),
            reads_held,
            holds_cut,
            segments_free: self.segments.segments_free(),
            discarded_bytes: self.segments.discarded_bytes(),
            room_free_blocks: self.segments.free() as u64 * u64::from(self.segments.blocks()),
            room_coming_blocks: self.segments.coming() as u64 * u64::from(self.segments.blocks()),
            room_writable_blocks: self.segments.room_for_clients(),
            cached_blocks: self.map.len() as u64,
            ram_blocks: ram_blocks as u64,
            ram_blocks_max: ram_blocks_max as u64,
            index_bytes: self.map.bytes(),
            degraded: self.log.is_dead() || self.segments.degraded(),
            dirty_two_copies_blocks: copies.two,
            dirty_one_copy_blocks: copies.one,
            ..PoolStats::default()
        };
        self.log.count(&mut stats);
        stats
    }

    /// Where a block is. Free of I/O.
    pub fn block_status(&self, volume: VolumeId, block: u64) -> BlockStatus {
        let Some(volume) = self.volume(volume).filter(|v| block < v.blocks()) else {
            return BlockStatus::NotCached;
        };
        match self.map.get(volume.base() + block) {
            None => BlockStatus::NotCached,
            Some(located) if self.map.is_dirty(located.slot) => BlockStatus::Dirty,
            Some(_) => BlockStatus::Clean,
        }
    }

    /// The sectors of a block, a bit each, that are newer than what the origin has.
    pub fn dirty_sectors(&self, volume: VolumeId, block: u64) -> u8 {
        let key = self.volume(volume).filter(|v| block < v.blocks()).map(|v| v.base() + block);
        let located = key.and_then(|key| self.map.get(key));
        let dirty = located.filter(|located| self.map.is_dirty(located.slot));
        dirty.map_or(0, |located| self.map.mask(located.slot))
    }

    /// Where the engine stands.
    pub fn state(&self) -> State {
        match self.pool.stage() {
            Stage::Opening(_) | Stage::Recovering => State::Opening,
            Stage::Serving => State::Serving,
            Stage::Stopping(_) => State::Stopping,
            Stage::Failed(why) => State::Failed(why.clone()),
        }
    }

    /// Whether recovery runs.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.pool.stage(), Stage::Opening(_) | Stage::Recovering)
    }

    /// Whether requests are served, and nobody closes the pool.
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.pool.stage(), Stage::Serving)
    }

    /// Whether the pool is being closed.
    pub(crate) fn is_stopping(&self) -> bool {
        matches!(self.pool.stage(), Stage::Stopping(_))
    }

    /// Takes a buffer back that a reply or effect carried and the executor has no use for.
    pub fn recycle(&mut self, buf: Buf) {
        self.io.give(buf);
    }

    /// Frees memory that is only kept to be used again.
    pub fn trim(&mut self) {
        self.io.trim();
        self.log.trim();
    }

    #[inline]
    pub(crate) fn volume(&self, id: VolumeId) -> Option<&Volume> {
        self.volumes.get(id)
    }

    /// A volume that a request or an operation of ours holds: it is not removed before they end.
    #[inline]
    pub(crate) fn vol(&self, id: VolumeId) -> &Volume {
        self.volume(id).expect("the volume stays while something runs on it")
    }

    /// The volume of a key.
    pub(crate) fn volume_of(&self, key: Key) -> Option<&Volume> {
        self.volumes.of(key)
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
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

    /// Checks a request and gives it a place; it begins at once, or waits for recovery or for
    /// others.
    fn submit(&mut self, id: RequestId, request: Request) {
        let refused = match (self.pool.stage(), self.volume(request.volume)) {
            (Stage::Failed(_), _) => Some(IoError::Gone),
            (Stage::Stopping(_), _) => Some(IoError::Shutdown),
            (_, None) => Some(IoError::Gone),
            (_, Some(volume)) if !volume.is_there() || volume.is_left() => Some(IoError::Gone),
            (_, Some(volume))
                if volume.service().refuses() && !self.is_rescue(volume, &request) =>
            {
                Some(IoError::Gone)
            }
            (_, Some(volume)) => refuse(volume, &request),
        };
        if let Some(error) = refused {
            self.volumes.refused(request.volume);
            self.io.put(Effect::Reply { id, result: Err(error), buf: request.buf });
            return;
        }
        let now = self.io.now();
        self.volumes.request_came(request.volume);
        let (first, last) = self.vol(request.volume).span(request.offset, request.len);
        let req = self.reqs.insert(Req::new(id, request, first, last, now));
        if self.is_opening() {
            self.reqs.wait(req, Wait::Recovery);
        } else {
            self.accept(req);
        }
    }

    /// Whether a request reads nothing but what is dirty: nobody else has that, and no origin is
    /// asked for it.
    fn is_rescue(&self, volume: &Volume, request: &Request) -> bool {
        let (sector, block) = (SECTOR_SIZE as u64, BLOCK_SIZE as u64);
        let is_read =
            request.kind == RequestKind::Read && request.len <= REQUEST_BLOCKS_MAX * block;
        let end = request.offset.saturating_add(request.len);
        is_read
            && (request.offset / sector..end / sector).all(|at| {
                let mask = self.dirty_sectors(volume.id(), at * sector / block);
                mask >> (at % (block / sector)) & 1 == 1
            })
    }

    /// Replies to a request and forgets it.
    pub(crate) fn reply(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        let (id, volume, kind, error) = (req.id, req.volume, req.kind, req.error);
        let (since, cached, kept) = (req.since, req.cached, req.merge.iter().any(Option::is_some));
        let latency = self.io.now() - since;
        self.volumes.request_ended(volume, kind, cached, error.is_none(), latency);
        if kept {
            for (_, old) in self.reqs.take_kept(name).into_iter().flatten() {
                self.io.give(old);
            }
        }
        let buf = self.reqs.forget(name);
        self.io.put(Effect::Reply { id, result: error.map_or(Ok(()), Err), buf });
    }
}

fn refuse(volume: &Volume, request: &Request) -> Option<IoError> {
    let sector = SECTOR_SIZE as u64;
    let end = request.offset.checked_add(request.len);
    if !request.offset.is_multiple_of(sector) || !request.len.is_multiple_of(sector) {
        return Some(IoError::Invalid);
    }
    if end.is_none_or(|end| end > volume.bytes()) {
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
