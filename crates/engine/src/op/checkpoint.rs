//! Checkpoint: the index and the segment table written out while the engine goes on.
//!
//! It is fuzzy: an entry is as it was when the scan passed it. What changed since the scan began is
//! in the log behind `seq`, and replaying that on top gives the exact state. Before it counts,
//! everything that it mentions is durable and trusted: records, a sync point of every volume, the
//! chunks.

use crate::Mutant;
use crate::buf::Buf;
use crate::engine::Engine;
use crate::event::*;
use crate::index::{Key, Located};
use crate::limits::*;
use crate::op::Op;
use crate::op::superblock::{NewCheckpoint, Then};
use crate::segment::Use;
use forebay_format::checkpoint::*;
use forebay_format::{BLOCK_SIZE, MASK_FULL};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, Immutable, IntoBytes};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Scan,
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
    items: Vec<BlockItem>,
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
    /// Entries that moved in the index since the scan last looked.
    pub(crate) moved: Vec<(Key, Located)>,
    /// Slots written when the last one began.
    slots_at: u64,
    /// Somebody wants one now: reclaim, or the shutdown.
    pub(crate) wanted: bool,
    /// When the last one failed or ended.
    pub(crate) tried_at: Time,
    /// Writes that have failed since the last that counted.
    failures: u32,
    /// How many have counted since the start.
    pub(crate) counted: u64,
}

impl Checkpoint {
    pub(crate) fn scanning(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.phase == Phase::Scan)
    }

    /// Clean entries up to here must be trusted before the checkpoint counts.
    pub(crate) fn wants_synced(&self) -> Option<u64> {
        self.run.as_ref().filter(|run| run.phase == Phase::Settle).map(|run| run.end_seq)
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
            Some(Phase::Settle) => self.checkpoint_settle(),
            Some(Phase::Flush | Phase::Superblock) => {}
        }
    }

    fn slots_written(&self) -> u64 {
        let stats = &self.stats;
        (stats.dirty_bytes + stats.fill_bytes + stats.reinsert_bytes + stats.header_bytes)
            / BLOCK_SIZE as u64
    }

    /// Emptied segments may wait for the checkpoints to forget them.
    fn checkpoint_starved(&self) -> bool {
        self.segments.free_pairs() <= SEGMENTS_FOR_FILLS + 2
            && self.segments.emptied.iter().any(|&id| {
                let segment = &self.segments.table[id as usize];
                segment.dirty_class && segment.last_seq > self.sb.previous_seq()
            })
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
        if !(due || self.checkpoint.wanted || (starving && retry)) || !self.sb.idle() {
            return;
        }
        let header = &self.sb.block.header;
        let run = Run {
            generation: header.checkpoint_generation.get() + 1,
            area: usize::from(header.checkpoint_area == 0),
            seq: self.log.seq,
            dseq: self.log.dseq,
            cursor: 0,
            position: 0,
            items: Vec::new(),
            writes: 0,
            failed: false,
            phase: Phase::Scan,
            end_seq: 0,
            end_dseq: 0,
        };
        self.checkpoint.wanted = false;
        self.checkpoint.slots_at = slots;
        self.checkpoint.run = Some(run);
        self.checkpoint.moved.clear();
        self.index.track_moves(true);
    }

    fn run(&mut self) -> &mut Run {
        self.checkpoint.run.as_mut().expect("a checkpoint is under way")
    }

    fn checkpoint_scan(&mut self) {
        if self.run().writes >= CHECKPOINT_WRITES_MAX {
            return;
        }
        let from = self.run().cursor;
        let to = from + self.tuning.scan_buckets;
        let mut found = Vec::new();
        self.index.scan(from, to, |key, located| found.push((key, located)));
        let moved = self.index.take_moved();
        if self.reclaim_scanning() {
            self.reclaim_saw(&moved);
        }
        if !self.is(Mutant::CheckpointMissesMoves) {
            found.append(&mut self.checkpoint.moved);
            found.extend(moved);
        }
        for (key, located) in found {
            self.checkpoint_item(key, located);
        }
        let full = items_per_chunk::<BlockItem>(CHUNK_BLOCKS_MAX);
        let end = to >= self.index.bucket_count();
        while self.run().items.len() >= full || (end && !self.run().items.is_empty()) {
            let split = full.min(self.run().items.len());
            let rest = self.run().items.split_off(split);
            let items = std::mem::replace(&mut self.run().items, rest);
            self.checkpoint_chunk(ChunkKind::Blocks, &items);
        }
        self.run().cursor = to;
        if end {
            self.checkpoint_tail();
        }
    }

    fn checkpoint_item(&mut self, key: Key, located: Located) {
        // An entry that moved earlier may be out of date by now; what is true now is as good.
        let Some(located) = self.index.get(key).filter(|now| now.slot == located.slot) else {
            return;
        };
        let Some(volume) = self.volume_of(key) else { return };
        let mut item = BlockItem::new_zeroed();
        item.key = U64::new(u64::from(volume.id.0) << 48 | (key - volume.base));
        item.slot = U32::new(located.slot);
        item.crc = U32::new(located.crc);
        item.flags = if self.dirty.get(located.slot as usize) { FLAG_DIRTY } else { 0 };
        item.mask = self.mask(located.slot);
        debug_assert!(item.mask == MASK_FULL || item.flags != 0);
        self.run().items.push(item);
    }

    fn checkpoint_chunk<T: IntoBytes + Immutable>(&mut self, kind: ChunkKind, items: &[T]) {
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
        self.run().position += blocks;
        let offset = self.sb.block.layout().checkpoint_offset(area) + position * BLOCK_SIZE as u64;
        for device in self.checkpoint_devices() {
            let mut buf = self.pool.take(blocks as usize * BLOCK_SIZE);
            encode(&header, items, buf.bytes_mut());
            self.stats.checkpoint_bytes += buf.len() as u64;
            self.run().writes += 1;
            let op = self.op(Op::Checkpoint { device, flush: false });
            self.out.push(Effect::Write { op, target: Target::Cache(device), offset, buf });
        }
    }

    /// Two working devices hold the checkpoint: one may be lost.
    fn checkpoint_devices(&self) -> Vec<DeviceId> {
        (0..self.segments.devices.len())
            .filter(|&index| self.segments.devices[index].healthy)
            .take(2)
            .map(|index| DeviceId(index as u8))
            .collect()
    }

    /// The scan has ended: segments and volumes, then everything that was mentioned must settle.
    fn checkpoint_tail(&mut self) {
        self.index.track_moves(self.reclaim_scanning());
        for point in crate::log::POINTS {
            self.send(point);
        }
        let segments: Vec<SegmentItem> = (0..self.segments.table.len())
            .filter(|&id| self.segments.table[id].generation > 0)
            .map(|id| self.segment_item(id))
            .collect();
        for items in segments.chunks(items_per_chunk::<SegmentItem>(CHUNK_BLOCKS_MAX)) {
            self.checkpoint_chunk(ChunkKind::Segments, items);
        }
        let mut volumes = Vec::new();
        for volume in self.volumes.iter().flatten().filter(|v| !v.removing) {
            let mut item = VolumeItem::new_zeroed();
            item.volume = U16::new(volume.id.0);
            item.value = U64::new(volume.synced_seq);
            volumes.push(item);
            for (&region, &dseq) in &volume.intents.marked {
                let mut item = VolumeItem::new_zeroed();
                item.volume = U16::new(volume.id.0);
                item.kind = 1;
                item.value = U64::new(region);
                item.aux = U64::new(dseq);
                volumes.push(item);
            }
        }
        for items in volumes.chunks(items_per_chunk::<VolumeItem>(CHUNK_BLOCKS_MAX)) {
            self.checkpoint_chunk(ChunkKind::Volumes, items);
        }
        let (end_seq, end_dseq) = (self.log.seq, self.log.dseq_gathered());
        let run = self.run();
        (run.end_seq, run.end_dseq, run.phase) = (end_seq, end_dseq, Phase::Settle);
    }

    fn segment_item(&self, id: usize) -> SegmentItem {
        let segment = &self.segments.table[id];
        let mut flags = if segment.dirty_class { SEGMENT_DIRTY_CLASS } else { 0 };
        flags |= match segment.usage {
            Use::Free => SEGMENT_FREE,
            Use::Open => SEGMENT_OPEN,
            Use::Twin(_) => SEGMENT_TWIN,
            _ => 0,
        };
        SegmentItem {
            last_seq: U64::new(segment.last_seq),
            segment: U32::new(id as u32),
            generation: U32::new(segment.generation),
            twin: U32::new(segment.twin),
            flags: U32::new(flags),
        }
    }

    /// A write or FLUSH of a checkpoint has ended. A device that cannot keep checkpoints cannot
    /// keep a log.
    pub(crate) fn checkpoint_done(
        &mut self,
        device: DeviceId,
        flush: bool,
        result: Result<(), IoError>,
        buf: Buf,
    ) {
        if result.is_err() {
            self.checkpoint.failures += 1;
            if flush || self.checkpoint.failures >= u32::from(CACHE_WRITE_TRIES) {
                self.device_failed(device, "a checkpoint could not be written");
            }
        }
        self.checkpoint_write_done(result, buf);
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
            seq: run.seq,
            dseq: run.dseq,
        };
        run.phase = Phase::Superblock;
        self.superblock_set_checkpoint(new);
        self.superblock_write(Then::Checkpointed);
    }

    fn checkpoint_settle(&mut self) {
        let (end_seq, end_dseq) = (self.run().end_seq, self.run().end_dseq);
        if self.run().writes > 0 {
            return;
        }
        if self.run().failed {
            return self.checkpoint_over();
        }
        let trusted = |v: &crate::volume::Volume| {
            v.trusts(end_seq) && v.synced_dseq <= self.log.completed_dseq
        };
        let settled = self.volumes.iter().flatten().all(|v| trusted(v))
            && self.log.completed_dseq >= end_dseq
            && self.log.sent_clean.iter().all(|sent| sent.seq > end_seq);
        if !settled {
            return;
        }
        let unflushed = self.is(Mutant::CheckpointUnflushed);
        self.run().phase = Phase::Flush;
        self.run().writes = 1;
        for index in 0..self.segments.devices.len() {
            if self.segments.devices[index].healthy && !unflushed {
                let device = DeviceId(index as u8);
                self.run().writes += 1;
                let op = self.op(Op::Checkpoint { device, flush: true });
                self.out.push(Effect::Flush { op, target: Target::Cache(device) });
            }
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
        self.checkpoint.moved.clear();
        self.index.track_moves(self.reclaim_scanning());
    }
}
