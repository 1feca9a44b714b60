//! Checkpoint: the index and the segment table written out while the engine goes on.
//!
//! It is fuzzy: an entry is as it was when the scan passed it. What changed since the scan began is
//! in the log behind `seq`, and replaying that on top gives the exact state. Before it counts,
//! everything that it mentions is durable: records and chunks.

use crate::Mutant;
use crate::buf::Buf;
use crate::engine::Engine;
use crate::event::*;
use crate::index::{Key, Slot};
use crate::limits::*;
use crate::op::Op;
use crate::op::flush::FlushFor;
use crate::op::open::Source;
use crate::op::superblock::{NewCheckpoint, Then};
use crate::segment::{UnitId, Use};
use forebay_format::checkpoint::*;
use forebay_format::{Address, BLOCK_SIZE, MASK_FULL};
use std::collections::BTreeSet;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, Immutable, IntoBytes};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Scan,
    Placed,
    Settle,
    Flush,
    Superblock,
}

#[derive(Debug)]
struct Run {
    generation: u64,
    area: usize,
    seq: u64,
    dseq: u64,
    cursor: usize,
    position: u64,
    /// Blocks that hold the index.
    index_blocks: u64,
    /// The next segment to be opened when it began.
    order: u64,
    buckets: Vec<BucketItem>,
    masks: Vec<MaskItem>,
    blocks: Vec<BlockItem>,
    writes: usize,
    failed: bool,
    phase: Phase,
    end_seq: u64,
    end_dseq: u64,
}

/// The checkpoints of one shard.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    run: Option<Run>,
    /// Keys that were placed in the index or moved in it since the scan began.
    pub(crate) placed: BTreeSet<Key>,
    /// Slots written when the last one began.
    slots_at: u64,
    /// Somebody wants one now: reclaim, or the shutdown.
    pub(crate) wanted: bool,
    /// When the last one failed or ended.
    pub(crate) tried_at: Time,
    /// Writes that have failed since the last that counted.
    failures: u32,
    /// The checkpoint that this start has read, until its own counts: the superblock names another
    /// one where the newest is damaged.
    pub(crate) base: Option<Source>,
    /// How many have counted since the start.
    pub(crate) counted: u64,
}

impl Checkpoint {
    pub(crate) fn scanning(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.phase == Phase::Scan)
    }

    /// Records up to here must be on the devices before the checkpoint counts.
    pub(crate) fn wants_dseq(&self) -> Option<u64> {
        self.run.as_ref().filter(|run| run.phase == Phase::Settle).map(|run| run.end_dseq)
    }

    /// See `Engine::progress`.
    pub(crate) fn progress(&self) -> u64 {
        let phase = self.run.as_ref().map_or(0, |run| 1 + run.phase as u64);
        let cursor = self.run.as_ref().map_or(0, |run| run.cursor as u64);
        phase + (cursor << 8) + (self.counted << 40) + (u64::from(self.wanted) << 39)
    }

    pub(crate) fn running(&self) -> bool {
        self.run.is_some()
    }

    pub(crate) fn describe(&self) -> String {
        match &self.run {
            None => format!("none, wanted {}", self.wanted),
            Some(run) => format!(
                "{:?} writes {} failed {} end {} {}",
                run.phase, run.writes, run.failed, run.end_seq, run.end_dseq
            ),
        }
    }
}

impl Engine {
    pub(crate) fn checkpoint_more(&mut self) {
        match self.checkpoint.run.as_ref().map(|run| run.phase) {
            None => self.checkpoint_begin(),
            Some(Phase::Scan) => self.checkpoint_scan(),
            Some(Phase::Placed) => self.checkpoint_placed(),
            Some(Phase::Settle) => self.checkpoint_settle(),
            Some(Phase::Flush | Phase::Superblock) => {}
        }
    }

    fn slots_written(&self) -> u64 {
        let stats = &self.stats;
        (stats.dirty_bytes + stats.fill_bytes + stats.reinsert_bytes + stats.header_bytes)
            / BLOCK_SIZE as u64
    }

    /// Emptied units wait for checkpoints, and soon clients wait for room.
    fn checkpoint_starved(&self) -> bool {
        let (durable, older) = (self.log.durable_dseq, self.sb.older());
        let entries_wait = !self.log.backlog.is_empty();
        (self.room.is_short() || self.pauses_are_near())
            && self.room.needs_checkpoints(&self.segments, durable, older, entries_wait)
    }

    /// The generation of the checkpoint under way, or of the last: what is empty now is empty in
    /// the next.
    pub(crate) fn checkpoint_generation(&self) -> u64 {
        let last = self.sb.block.header.checkpoint_generation.get();
        self.checkpoint.run.as_ref().map_or(last, |run| run.generation)
    }

    /// Whether a checkpoint that is needed waits for its time to try again.
    pub(crate) fn checkpoint_retries(&self) -> bool {
        !self.checkpoint.running() && self.checkpoint_starved()
    }

    fn checkpoint_begin(&mut self) {
        let slots = self.slots_written();
        let share = self.tuning.checkpoint_share * f64::from(self.segments.slots());
        let due = (slots - self.checkpoint.slots_at) as f64 >= share;
        let starving = self.checkpoint_starved();
        let retry = self.now.saturating_sub(self.checkpoint.tried_at) > 1_000_000;
        // What leaves the index by a word in the log, and not by words for each block, is gone
        // first.
        let swept = self.sweeps.is_done() && !self.reclaim.is_dropping();
        let needed = self.sb.needs_checkpoint();
        let wanted = due || self.checkpoint.wanted || needed || (starving && retry);
        if !wanted || !(needed || self.sb.idle()) || !swept {
            return;
        }
        let header = &self.sb.block.header;
        let run = Run {
            generation: header.checkpoint_generation.get() + 1,
            area: match self.checkpoint.base.filter(|_| !self.is(Mutant::OverItsBase)) {
                Some(base) => 1 - base.area,
                None => usize::from(header.checkpoint_area == 0),
            },
            seq: self.log.seq,
            dseq: self.log.dseq,
            cursor: 0,
            position: 0,
            index_blocks: 0,
            order: self.segments.order_next(),
            buckets: Vec::new(),
            masks: Vec::new(),
            blocks: Vec::new(),
            writes: 0,
            failed: false,
            phase: Phase::Scan,
            end_seq: 0,
            end_dseq: 0,
        };
        self.checkpoint.wanted = false;
        self.checkpoint.slots_at = slots;
        self.checkpoint.run = Some(run);
        self.checkpoint.placed.clear();
        self.track_moves();
    }

    /// A volume is gone, and another may get its keys: what was scanned so far is of no use.
    pub(crate) fn checkpoint_spoilt(&mut self) {
        let reads = |run: &&mut Run| matches!(run.phase, Phase::Scan | Phase::Placed);
        if let Some(run) = self.checkpoint.run.as_mut().filter(reads) {
            run.failed = true;
        }
    }

    /// What devices that failed have of the log will be missing: the next checkpoint has all of it,
    /// and the one under way does not.
    pub(crate) fn checkpoint_anew(&mut self) {
        let named = self.sb.await_checkpoint(self.log.seq);
        match &mut self.checkpoint.run {
            Some(_) if named => self.checkpoint_over(),
            Some(run) if run.phase != Phase::Superblock => run.failed = true,
            _ => {}
        }
    }

    fn run(&mut self) -> &mut Run {
        self.checkpoint.run.as_mut().expect("a checkpoint is under way")
    }

    fn checkpoint_scan(&mut self) {
        if self.run().writes >= CHECKPOINT_WRITES_MAX {
            return;
        }
        let from = self.run().cursor;
        if from == 0 {
            let shape = self.map.shape().item();
            self.checkpoint_chunk(ChunkKind::Table, 0, &[shape]);
            self.checkpoint.placed.extend(self.map.stashed());
        }
        let to = (from + self.tuning.scan_buckets).min(self.map.bucket_count());
        self.work.did((to - from) * WRITTEN_BUCKET_STEPS);
        for bucket in from..to {
            self.checkpoint_bucket(bucket);
            let full = items_per_chunk::<BucketItem>(CHUNK_BLOCKS_MAX);
            if self.run().buckets.len() == full || bucket + 1 == self.map.bucket_count() {
                let items = std::mem::take(&mut self.run().buckets);
                let first = bucket + 1 - items.len();
                self.checkpoint_chunk(ChunkKind::Buckets, first as u32, &items);
            }
        }
        self.moves_seen();
        self.run().cursor = to;
        if to == self.map.bucket_count() {
            self.run().index_blocks = self.run().position;
            self.run().phase = Phase::Placed;
            self.track_moves();
            if self.is(Mutant::CheckpointMissesMoves) {
                self.checkpoint.placed.clear();
            }
            let masks = std::mem::take(&mut self.run().masks);
            self.checkpoint_items(ChunkKind::Masks, &masks);
        }
    }

    fn checkpoint_bucket(&mut self, bucket: usize) {
        let (item, slots) = self.map.bucket(bucket);
        slots.into_iter().flatten().for_each(|slot| self.checkpoint_mask(slot));
        self.run().buckets.push(item);
    }

    fn checkpoint_mask(&mut self, slot: Slot) {
        let mask = self.map.mask(slot);
        if mask != MASK_FULL {
            let item = MaskItem { slot: U32::new(slot), mask, reserved: [0; 3] };
            self.run().masks.push(item);
        }
    }

    /// What became of the keys that were placed while the buckets were read, a slice of them: the
    /// buckets may hold none of their entries, an old one, or two.
    fn checkpoint_placed(&mut self) {
        if self.run().writes >= CHECKPOINT_WRITES_MAX {
            return;
        }
        let slice = self.tuning.scan_buckets;
        self.work.did(slice.min(self.checkpoint.placed.len()) * PLACED_STEPS);
        for _ in 0..slice {
            let Some(key) = self.checkpoint.placed.pop_first() else { break };
            self.run().cursor += 1;
            let Some(item) = self.block_item(key) else { continue };
            self.run().blocks.push(item);
        }
        let last = self.checkpoint.placed.is_empty();
        let full = items_per_chunk::<BlockItem>(CHUNK_BLOCKS_MAX).saturating_sub(slice);
        if last || self.run().blocks.len() >= full {
            let items = std::mem::take(&mut self.run().blocks);
            self.checkpoint_items(ChunkKind::Blocks, &items);
        }
        if last {
            self.checkpoint_tail();
        }
    }

    fn block_item(&self, key: Key) -> Option<BlockItem> {
        let volume = self.volume_of(key)?;
        let mut item = BlockItem::new_zeroed();
        item.address = Address::new(volume.id.0, key - volume.base);
        item.slot = U32::new(SLOT_NONE);
        item.mask = MASK_FULL;
        if let Some(located) = self.map.get(key) {
            item.slot = U32::new(located.slot);
            item.crc = U32::new(located.crc);
            item.flags = if self.map.is_dirty(located.slot) { FLAG_DIRTY } else { 0 };
            item.mask = self.map.mask(located.slot);
            debug_assert!(item.mask == MASK_FULL || item.flags != 0);
        }
        Some(item)
    }

    fn checkpoint_items<T: IntoBytes + Immutable>(&mut self, kind: ChunkKind, items: &[T]) {
        for items in items.chunks(items_per_chunk::<T>(CHUNK_BLOCKS_MAX)) {
            self.checkpoint_chunk(kind, 0, items);
        }
    }

    fn checkpoint_chunk<T: IntoBytes + Immutable>(
        &mut self,
        kind: ChunkKind,
        first: u32,
        items: &[T],
    ) {
        let bytes = size_of::<ChunkHeader>() + size_of_val(items);
        let blocks = bytes.div_ceil(BLOCK_SIZE) as u64;
        let (pool, generation, position, area) =
            (self.sb.pool(), self.run().generation, self.run().position, self.run().area);
        if (position + blocks) * BLOCK_SIZE as u64
            > self.sb.block.header.checkpoint_area_bytes.get()
        {
            self.run().failed = true;
            return;
        }
        let mut header = ChunkHeader::new_zeroed();
        header.kind = kind as u8;
        header.pool = U64::new(pool);
        header.generation = U64::new(generation);
        header.position = U64::new(position);
        header.first = U32::new(first);
        self.run().position += blocks;
        let offset = self.sb.block.layout().checkpoint_offset(area) + position * BLOCK_SIZE as u64;
        for device in self.checkpoint_devices() {
            let mut buf = self.pool.take(blocks as usize * BLOCK_SIZE);
            encode(&header, items, buf.bytes_mut());
            self.stats.checkpoint_bytes += buf.len() as u64;
            self.run().writes += 1;
            let op = self.op(Op::Checkpoint { device });
            self.out.push(Effect::Write { op, target: Target::Cache(device), offset, buf });
        }
    }

    /// Two working devices hold the checkpoint: one may be lost.
    fn checkpoint_devices(&self) -> Vec<DeviceId> {
        self.segments.working().take(2).collect()
    }

    /// The scan has ended: segments and volumes, then everything that was mentioned must settle.
    fn checkpoint_tail(&mut self) {
        for point in crate::log::POINTS {
            self.send(point);
        }
        let units = self.segments.units().len();
        self.work.did(units / UNITS_PER_STEP);
        let segments: Vec<SegmentItem> = (0..units as UnitId)
            .filter(|&unit| self.segments.unit(unit).generation > 0)
            .map(|unit| self.segment_item(unit))
            .collect();
        self.checkpoint_items(ChunkKind::Segments, &segments);
        let mut volumes = Vec::new();
        for volume in self.volumes.iter() {
            let item = |kind, value, aux, blocks: u64| VolumeItem {
                address: Address::new(volume.id.0, value),
                aux: U64::new(aux),
                blocks: U32::new(u32::try_from(blocks).unwrap_or(u32::MAX)),
                kind,
                reserved: [0; 3],
            };
            volumes.push(item(VOLUME_KEYS, volume.base, volume.blocks(), 0));
            if volume.removing {
                continue;
            }
            for (first, blocks, dseq) in volume.intents.marks() {
                volumes.push(item(VOLUME_INTENT, first, dseq, blocks));
            }
        }
        self.checkpoint_items(ChunkKind::Volumes, &volumes);
        // Entries that find no room do not hold it up: what they say is in it, or may be said
        // again.
        let (end_seq, end_dseq) = (self.log.seq, self.log.dseq);
        let run = self.run();
        (run.end_seq, run.end_dseq, run.phase) = (end_seq, end_dseq, Phase::Settle);
        self.track_moves();
    }

    fn segment_item(&self, unit: UnitId) -> SegmentItem {
        let it = self.segments.unit(unit);
        let mut flags = if it.dirty_class { SEGMENT_DIRTY_CLASS } else { 0 };
        flags |= match it.usage {
            Use::Free => SEGMENT_FREE,
            Use::Open => SEGMENT_OPEN,
            _ => 0,
        };
        let fresh = self.checkpoint.run.as_ref().is_some_and(|run| it.order >= run.order);
        flags |= if fresh { SEGMENT_FRESH } else { 0 };
        SegmentItem {
            last_seq: U64::new(it.last_seq),
            segment: U32::new(self.segments.first_of(unit)),
            generation: U32::new(it.generation),
            reserved: U32::new(0),
            flags: U32::new(flags),
        }
    }

    /// A write or FLUSH of a checkpoint has ended. A device that cannot keep checkpoints cannot
    /// keep a log.
    pub(crate) fn checkpoint_done(
        &mut self,
        device: DeviceId,
        result: Result<(), IoError>,
        buf: Buf,
    ) {
        if result.is_err() {
            self.checkpoint.failures += 1;
            if self.checkpoint.failures >= u32::from(CACHE_WRITE_TRIES) {
                self.device_failed(device, "a checkpoint could not be written");
            }
        }
        self.checkpoint_write_done(result, buf);
    }

    /// What was written of it is durable on one of the devices, or never will be.
    pub(crate) fn checkpoint_flushed(&mut self, result: Result<(), IoError>) {
        self.checkpoint.failures += u32::from(result.is_err());
        self.checkpoint_write_done(result, Buf::empty());
    }

    fn checkpoint_write_done(&mut self, result: Result<(), IoError>, buf: Buf) {
        self.pool.give(buf);
        let Some(run) = &mut self.checkpoint.run else { return };
        run.writes -= 1;
        run.failed |= result.is_err();
        if run.phase != Phase::Flush || run.writes > 0 || self.dead {
            return;
        }
        if run.failed {
            return self.checkpoint_over();
        }
        let new = NewCheckpoint {
            area: run.area as u8,
            generation: run.generation,
            blocks: run.position,
            index_blocks: run.index_blocks,
            seq: run.seq,
            dseq: run.dseq,
        };
        run.phase = Phase::Superblock;
        self.superblock_write(Then::Checkpointed(new));
    }

    fn checkpoint_settle(&mut self) {
        let (end_seq, end_dseq) = (self.run().end_seq, self.run().end_dseq);
        if self.run().writes > 0 {
            return;
        }
        if self.run().failed {
            return self.checkpoint_over();
        }
        let (early, bare) =
            (self.is(Mutant::CheckpointBeforeRecords), self.is(Mutant::CheckpointBeforeFills));
        let settled = (early || self.log.completed_dseq >= end_dseq)
            && (bare || self.log.sent_clean.iter().all(|sent| sent.seq > end_seq));
        if !settled {
            return;
        }
        let unflushed = self.is(Mutant::CheckpointUnflushed);
        self.run().phase = Phase::Flush;
        self.run().writes = 1;
        let devices: Vec<DeviceId> = self.segments.working().filter(|_| !unflushed).collect();
        for device in devices {
            self.run().writes += 1;
            self.device_flush(device, FlushFor::Checkpoint);
        }
        self.checkpoint_write_done(Ok(()), Buf::empty());
    }

    /// The superblock that names it is durable.
    pub(crate) fn checkpoint_counts(&mut self) {
        self.stats.checkpoints += 1;
        self.checkpoint.failures = 0;
        self.checkpoint.counted += 1;
        self.checkpoint_over();
    }

    fn checkpoint_over(&mut self) {
        self.checkpoint.tried_at = self.now;
        self.checkpoint.run = None;
        self.checkpoint.placed.clear();
        self.track_moves();
    }
}
