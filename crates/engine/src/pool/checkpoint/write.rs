//! A checkpoint is written: the buckets of the index, then what moved there meanwhile, then what
//! follows the index; it settles, and a superblock names it.

use crate::Mutant;
use crate::due::Due;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Key, UnitId};
use crate::limits::*;
use crate::log::FlushFor;
use crate::op::Op;
use crate::pool::checkpoint::{Phase, Run};
use crate::pool::{Source, Then};
use crate::segment::Use;
use forebay_format::checkpoint::*;
use forebay_format::io::Buf;
use forebay_format::{Address, BLOCK_SIZE, MASK_FULL};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, Immutable, IntoBytes};

impl Engine {
    pub(crate) fn checkpoint_more(&mut self) {
        match self.pool.checkpoint.run.as_ref().map(|run| run.phase) {
            None => self.checkpoint_begin(),
            Some(Phase::Scan) => self.checkpoint_scan(),
            Some(Phase::Placed) => self.checkpoint_placed(),
            Some(Phase::Settle) => self.checkpoint_settle(),
            Some(Phase::Flush | Phase::Superblock) => {}
        }
    }

    /// Emptied units wait for checkpoints, and soon clients wait for room.
    fn checkpoint_starved(&self) -> bool {
        let (durable, older) = (self.log.durable_dseq(), self.pool.older());
        let entries_wait = self.log.entries_wait();
        (self.segments.room_is_short() || self.pauses_are_near() || self.segments.gives_back())
            && self.segments.needs_checkpoints(durable, older, entries_wait)
    }

    /// The generation of the checkpoint under way, or of the last: what is empty now is empty in
    /// the next.
    pub(crate) fn checkpoint_generation(&self) -> u64 {
        let last = self.pool.header().checkpoint_generation.get();
        self.pool.checkpoint.run.as_ref().map_or(last, |run| run.new.generation)
    }

    /// When a checkpoint that is needed is tried again.
    pub(crate) fn checkpoint_due(&self, due: &mut Due) {
        if !self.pool.checkpoint_runs() && self.checkpoint_starved() {
            due.at([self.pool.checkpoint.tried_at + 1_000_001]);
        }
    }

    fn checkpoint_begin(&mut self) {
        let slots = self.log.written();
        let share = self.tuning().checkpoint_share * f64::from(self.segments.slots());
        let due = (slots - self.pool.checkpoint.slots_at) as f64 >= share;
        let starving = self.checkpoint_starved();
        let retry = self.io.now().saturating_sub(self.pool.checkpoint.tried_at) > 1_000_000;
        // What leaves the index by a word in the log, and not by words for each block, is gone
        // first.
        let swept = self.ends.sweeps_are_done() && !self.reclaim.is_dropping();
        let needed = self.pool.needs_checkpoint();
        let wanted = due || self.pool.checkpoint.wanted || needed || (starving && retry);
        if !wanted || !(needed || self.pool.is_idle()) || !swept {
            return;
        }
        let header = self.pool.header();
        let new = Source {
            generation: header.checkpoint_generation.get() + 1,
            area: match self.pool.checkpoint.base.filter(|_| !self.is(Mutant::OverItsBase)) {
                Some(base) => 1 - base.area,
                None => usize::from(header.checkpoint_area == 0),
            },
            seq: self.log.seq(),
            dseq: self.log.dseq(),
            ..Source::default()
        };
        self.pool.checkpoint.wanted = false;
        self.pool.checkpoint.slots_at = slots;
        let order = self.segments.order_next();
        self.pool.checkpoint.run = Some(Run { new, order, ..Run::default() });
        self.pool.checkpoint.placed.clear();
        self.track_moves();
    }

    /// A volume is gone, and another may get its keys: what was scanned so far is of no use.
    pub(crate) fn checkpoint_spoilt(&mut self) {
        let reads = |run: &&mut Run| matches!(run.phase, Phase::Scan | Phase::Placed);
        if let Some(run) = self.pool.checkpoint.run.as_mut().filter(reads) {
            run.failed = true;
        }
    }

    /// What devices that failed have of the log will be missing: the next checkpoint has all of it,
    /// and the one under way does not.
    pub(crate) fn checkpoint_anew(&mut self) {
        let named = self.pool.await_checkpoint(self.log.seq());
        match &mut self.pool.checkpoint.run {
            Some(_) if named => self.checkpoint_over(),
            Some(run) if run.phase != Phase::Superblock => run.failed = true,
            _ => {}
        }
    }

    fn run(&mut self) -> &mut Run {
        self.pool.checkpoint.run.as_mut().expect("a checkpoint is under way")
    }

    fn checkpoint_scan(&mut self) {
        if self.run().writes >= CHECKPOINT_WRITES_MAX {
            return;
        }
        let from = self.run().cursor;
        if from == 0 {
            let shape = self.map.shape().item();
            self.checkpoint_chunk(ChunkKind::Table, 0, &[shape]);
            self.pool.checkpoint.placed.extend(self.map.stashed());
        }
        let to = (from + self.tuning().scan_buckets).min(self.map.bucket_count());
        self.io.did((to - from) * WRITTEN_BUCKET_STEPS);
        for bucket in from..to {
            let item = self.map.bucket(bucket);
            let run = self.pool.checkpoint.run.as_mut().expect("a checkpoint is under way");
            for (slot, mask) in self.map.partial_in(bucket) {
                run.masks.push(MaskItem { slot: U32::new(slot.raw()), mask, reserved: [0; 3] });
            }
            run.buckets.push(item);
            let full = items_per_chunk::<BucketItem>(CHUNK_BLOCKS_MAX);
            if run.buckets.len() == full || bucket + 1 == self.map.bucket_count() {
                let mut items = std::mem::take(&mut run.buckets);
                let first = bucket + 1 - items.len();
                self.checkpoint_chunk(ChunkKind::Buckets, first as u32, &items);
                items.clear();
                self.run().buckets = items;
            }
        }
        self.moves_seen();
        self.run().cursor = to;
        if to == self.map.bucket_count() {
            self.run().new.index_blocks = self.run().new.blocks;
            self.run().phase = Phase::Placed;
            self.track_moves();
            if self.is(Mutant::CheckpointMissesMoves) {
                self.pool.checkpoint.placed.clear();
            }
            let masks = std::mem::take(&mut self.run().masks);
            self.checkpoint_items(ChunkKind::Masks, &masks);
        }
    }

    /// What became of the keys that were placed while the buckets were read, a slice of them: the
    /// buckets may hold none of their entries, an old one, or two.
    fn checkpoint_placed(&mut self) {
        if self.run().writes >= CHECKPOINT_WRITES_MAX {
            return;
        }
        let slice = self.tuning().scan_buckets;
        self.io.did(slice.min(self.pool.checkpoint.placed.len()) * PLACED_STEPS);
        for _ in 0..slice {
            let Some(key) = self.pool.checkpoint.placed.pop_first() else { break };
            self.run().cursor += 1;
            let Some(item) = self.block_item(key) else { continue };
            self.run().blocks.push(item);
        }
        let last = self.pool.checkpoint.placed.is_empty();
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
        item.address = Address::new(volume.id().0, key - volume.base());
        item.slot = U32::new(SLOT_NONE);
        item.mask = MASK_FULL;
        if let Some(located) = self.map.get(key) {
            item.slot = U32::new(located.slot.raw());
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
            (self.pool.id(), self.run().new.generation, self.run().new.blocks, self.run().new.area);
        if (position + blocks) * BLOCK_SIZE as u64 > self.pool.header().checkpoint_area_bytes.get()
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
        self.run().new.blocks += blocks;
        let offset = self.pool.layout().checkpoint_offset(area) + position * BLOCK_SIZE as u64;
        // Two working devices hold the checkpoint: one may be lost.
        let devices: Vec<DeviceId> = self.segments.working().take(2).collect();
        for device in devices {
            let mut buf = self.io.take(blocks as usize * BLOCK_SIZE);
            encode(&header, items, buf.bytes_mut());
            self.pool.checkpoint.bytes += buf.len() as u64;
            self.run().writes += 1;
            self.io.write(Op::Checkpoint { device }, Target::Cache(device), offset, buf);
        }
    }

    /// The scan has ended: segments and volumes, then everything that was mentioned must settle.
    fn checkpoint_tail(&mut self) {
        for point in crate::log::POINTS {
            self.send(point);
        }
        self.io.did(self.segments.units().len() / UNITS_PER_STEP);
        let segments: Vec<SegmentItem> = self
            .segments
            .numbered()
            .filter(|(_, it)| it.generation > 0)
            .map(|(unit, _)| self.segment_item(unit))
            .collect();
        self.checkpoint_items(ChunkKind::Segments, &segments);
        let mut volumes = Vec::new();
        for volume in self.volumes.iter() {
            let item = |kind, value, aux, blocks: u64| VolumeItem {
                address: Address::new(volume.id().0, value),
                aux: U64::new(aux),
                blocks: U32::new(u32::try_from(blocks).unwrap_or(u32::MAX)),
                kind,
                reserved: [0; 3],
            };
            volumes.push(item(VOLUME_KEYS, volume.base().raw(), volume.blocks(), 0));
            if volume.is_leaving() {
                continue;
            }
            for (first, blocks, dseq) in volume.intents().marks() {
                volumes.push(item(VOLUME_INTENT, first, dseq.raw(), blocks));
            }
        }
        self.checkpoint_items(ChunkKind::Volumes, &volumes);
        // Entries that find no room do not hold it up: what they say is in it, or may be said
        // again.
        let (end_seq, end_dseq) = (self.log.seq(), self.log.dseq());
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
        let fresh = self.pool.checkpoint.run.as_ref().is_some_and(|run| it.order >= run.order);
        flags |= if fresh { SEGMENT_FRESH } else { 0 };
        SegmentItem {
            last_seq: U64::new(it.last_seq.raw()),
            segment: U32::new(self.segments.first_of(unit).raw()),
            generation: U32::new(it.generation),
            reserved: U32::new(0),
            flags: U32::new(flags),
        }
    }

    /// A write or FLUSH of a checkpoint has ended. A device that cannot keep checkpoints cannot
    /// keep a log.
    pub(crate) fn checkpoint_done(&mut self, device: DeviceId, end: Completion) {
        let Completion { result, buf } = end;
        if result.is_err() {
            self.pool.checkpoint.failures += 1;
            if self.pool.checkpoint.failures >= u32::from(CACHE_WRITE_TRIES) {
                self.device_failed(device, "a checkpoint could not be written");
            }
        }
        self.checkpoint_write_done(result, buf);
    }

    /// What was written of it is durable on one of the devices, or never will be.
    pub(crate) fn checkpoint_flushed(&mut self, result: Result<(), IoError>) {
        self.pool.checkpoint.failures += u32::from(result.is_err());
        self.checkpoint_write_done(result, Buf::empty());
    }

    fn checkpoint_write_done(&mut self, result: Result<(), IoError>, buf: Buf) {
        self.io.give(buf);
        let Some(run) = &mut self.pool.checkpoint.run else { return };
        run.writes -= 1;
        run.failed |= result.is_err();
        if run.phase != Phase::Flush || run.writes > 0 || self.log.is_dead() {
            return;
        }
        if run.failed {
            return self.checkpoint_over();
        }
        let new = run.new;
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
        let settled = (early || self.log.completed_dseq() >= end_dseq)
            && (bare || self.log.fills_ended(end_seq));
        if !settled {
            return;
        }
        let unflushed = self.is(Mutant::CheckpointUnflushed);
        if self.is(Mutant::WitnessBeforeCheckpoint) {
            self.pool.checkpoint.durable = end_dseq;
        }
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
        self.pool.checkpoint.failures = 0;
        self.pool.checkpoint.counted += 1;
        if let Some(run) = &self.pool.checkpoint.run {
            self.pool.checkpoint.durable = run.end_dseq;
        }
        self.checkpoint_over();
    }

    fn checkpoint_over(&mut self) {
        self.pool.checkpoint.tried_at = self.io.now();
        self.pool.checkpoint.run = None;
        self.pool.checkpoint.placed.clear();
        self.track_moves();
    }
}
