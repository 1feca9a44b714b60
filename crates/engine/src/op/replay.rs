//! Replay: which records count, and what they make of the index.
//!
//! Dirty-class records count up to the first gap in their numbers, life by life. A gap with a
//! record behind it that calls the missing one durable is damage, not the end of the log. Clean
//! records count as far as a sync point vouches for them.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::VolumeId;
use crate::index::Located;
use forebay_format::record::{Entry, EntryKind, REGION_ALL, RecordClass, RecordHeader};
use std::collections::BTreeMap;

/// A record found in a segment.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) header: RecordHeader,
    pub(crate) entries: Vec<Entry>,
    /// Entries whose payload does not match its checksum.
    pub(crate) bad: Vec<usize>,
    /// Whether its payload was looked at.
    pub(crate) verified: bool,
    /// Whether the copy in its segment, and the one in the second segment, is there and whole.
    pub(crate) whole: [bool; 2],
}

impl Found {
    fn seq(&self) -> u64 {
        self.header.seq.get()
    }

    fn dseq(&self) -> u64 {
        self.header.dseq.get()
    }

    fn epoch(&self) -> u64 {
        self.header.epoch.get()
    }

    pub(crate) fn is_dirty_class(&self) -> bool {
        self.header.class == RecordClass::Dirty as u8
    }
}

/// What the log says, as far as the state depends on all of it.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    trust: Trust,
    /// The greatest generation of each segment that the log calls empty.
    pub(crate) freed: BTreeMap<u32, u64>,
    /// Segments whose entries in the checkpoint do not count.
    pub(crate) gone: Vec<bool>,
}

/// What recovery decided and the log must be told.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Last dirty-class record that counts.
    pub(crate) dseq_end: u64,
    /// The life of the log that ended there.
    pub(crate) epoch_before: u64,
    /// Records that count.
    pub(crate) records: u64,
    /// Marked regions whose clean blocks were dropped.
    pub(crate) regions_dropped: Vec<(VolumeId, u64)>,
    /// The last life of the log that said what it made of the one before.
    pub(crate) epoch_told: u64,
    /// No clean block of before may be used.
    pub(crate) distrusted: bool,
}

impl Engine {
    /// Decides which records count. Fails where going on could return wrong data.
    pub(crate) fn replay_plan(&mut self) -> Result<(), String> {
        let opening = self.opening.as_mut().expect("recovery is under way");
        let records = merge_copies(std::mem::take(&mut opening.records));
        let from = opening.source.map_or((0, 0), |source| (source.seq, source.dseq));
        let sb_epoch = self.sb.block.header.epoch.get();
        let heads_max = opening.heads.values().map(|head| head.seq.get()).max().unwrap_or(0);
        opening.seq_max =
            records.iter().map(Found::seq).max().unwrap_or(0).max(heads_max).max(from.0);
        let (valid, end, behind) = self.valid_dirty(&records, from)?;
        let region_blocks = self.tuning.region_blocks;
        let opening = self.opening.as_mut().expect("recovery is under way");
        for found in behind {
            let dirty = found.entries.iter().filter(|entry| entry.kind() == EntryKind::Dirty);
            opening.marks.extend(dirty.map(|entry| {
                ((entry.volume.get(), entry.block.get() / region_blocks), found.dseq())
            }));
        }
        let clean: Vec<&Found> = records
            .iter()
            .filter(|found| !found.is_dirty_class() && found.seq() > from.0)
            .collect();
        let mut all: Vec<&Found> = valid.iter().chain(clean.iter()).copied().collect();
        all.sort_by_key(|found| found.seq());
        let opening = self.opening.as_mut().expect("recovery is under way");
        let trust = Trust::new(&opening.synced, &valid);
        let freed = freed_segments(&valid);
        opening.summary.dseq_end = end;
        opening.summary.epoch_before = sb_epoch;
        opening.summary.epoch_told = epoch_told(&valid, opening.source.map_or(0, |s| s.epoch));
        opening.summary.records = all.len() as u64;
        opening.records = all.into_iter().cloned().collect();
        let gone = self.segments_gone(&freed);
        self.open_mut().plan = Plan { trust, freed, gone };
        Ok(())
    }

    /// Computes the state from checkpoint and records. Fails where going on could return wrong
    /// data.
    pub(crate) fn replay(&mut self) -> Result<(), String> {
        let opening = self.opening.as_mut().expect("recovery is under way");
        let records = std::mem::take(&mut opening.records);
        let plan = std::mem::take(&mut opening.plan);
        self.checkpoint_place(&plan.gone);
        for found in &records {
            self.replay_warm(found);
            for (n, entry) in entries_with_slot(found, self.segments.blocks) {
                self.replay_entry(found, entry.0, entry.1, n, &plan)?;
            }
        }
        self.settle_volumes(&plan.trust);
        (self.open_mut().records, self.open_mut().plan) = (records, plan);
        Ok(())
    }

    /// The dirty-class records that count, in order, the number of the last, and those of this life
    /// behind the gap. These never happened, but may have been sent home before what made the gap:
    /// rot in the end of the log looks like a torn end. So clean blocks that they replaced may not
    /// be what the origin has, and are treated like those in marked regions.
    fn valid_dirty<'a>(
        &self,
        records: &'a [Found],
        from: (u64, u64),
    ) -> Result<(Vec<&'a Found>, u64, Vec<&'a Found>), String> {
        let dirty: Vec<&Found> =
            records.iter().filter(|f| f.is_dirty_class() && f.seq() > from.0).collect();
        // Where each life of the log began: the one before counts only up to there.
        let mut starts: BTreeMap<u64, u64> = BTreeMap::new();
        for found in &dirty {
            let start = found.entries.iter().find(|entry| entry.kind() == EntryKind::EpochStart);
            if let Some(start) = start {
                starts.insert(found.epoch(), start.aux.get());
            }
        }
        let vouched = records
            .iter()
            .filter(|found| found.bad.is_empty() || found.is_dirty_class())
            .map(|found| found.header.durable_dseq.get())
            .max()
            .unwrap_or(0);
        let mut counts: BTreeMap<u64, &Found> = BTreeMap::new();
        for found in &dirty {
            let ended = starts.range(found.epoch() + 1..).map(|(_, &end)| end).min();
            if ended.is_none_or(|end| found.dseq() <= end) {
                let newer = counts.get(&found.dseq()).is_none_or(|old| old.epoch() < found.epoch());
                if newer {
                    counts.insert(found.dseq(), found);
                }
            }
        }
        let mut valid = Vec::new();
        let mut next = from.1 + 1;
        for (&dseq, &found) in counts.range(next..) {
            let torn = !found.bad.is_empty() && dseq > vouched;
            if (dseq != next || torn) && !self.is(Mutant::GapIgnored) {
                break;
            }
            valid.push(found);
            next = dseq + 1;
        }
        if vouched >= next && counts.range(next..).next().is_some() {
            return Err(format!(
                "record {next} of the log was durable and cannot be read any more, and no second copy \
                 is there; what it held is not known. Bring the devices back as they were, or `forebay pool \
                 destroy` the pool to go on with what the origins hold"
            ));
        }
        let behind = counts.range(next..).map(|(_, &found)| found).collect();
        Ok((valid, next - 1, behind))
    }

    /// Brings what the index knows of a record's blocks near.
    fn replay_warm(&self, found: &Found) {
        let key = |entry: &Entry| {
            let volume = self.volume(VolumeId(entry.volume.get()))?;
            (entry.block.get() < volume.blocks()).then(|| volume.base + entry.block.get())
        };
        self.index.warm(found.entries.iter().filter_map(key));
    }

    fn replay_entry(
        &mut self,
        found: &Found,
        entry: &Entry,
        slot: u32,
        n: usize,
        plan: &Plan,
    ) -> Result<(), String> {
        let id = VolumeId(entry.volume.get());
        let block = entry.block.get();
        let Some((base, blocks)) = self.volume(id).map(|v| (v.base, v.blocks())) else {
            return Ok(());
        };
        let of_block = matches!(
            entry.kind(),
            EntryKind::Dirty | EntryKind::Clean | EntryKind::Tombstone | EntryKind::MarkClean
        );
        if of_block && block >= blocks {
            return Err("a record names a block behind the end of its volume".to_owned());
        }
        let key = base + block;
        match entry.kind() {
            EntryKind::Dirty => self.replay_block(found, entry, key, slot, true, plan),
            EntryKind::Clean => {
                let good = !found.bad.contains(&n);
                if good && (plan.trust.counts(id, found.seq()) || self.is(Mutant::FillsTrusted)) {
                    self.replay_block(found, entry, key, slot, false, plan);
                }
            }
            EntryKind::Tombstone => {
                let last = block.saturating_add(entry.aux.get()).min(blocks);
                self.replay_remove_range(id, base + block, base + last);
            }
            EntryKind::MarkClean => {
                let now = self.index.get(key);
                if let Some(now) = now.filter(|now| u64::from(now.slot) == entry.aux.get()) {
                    self.replay_clean(id, key, now.slot);
                }
            }
            EntryKind::Intent => {
                let marks = &mut self.opening.as_mut().expect("recovery").marks;
                marks.insert((id.0, block), found.dseq());
            }
            EntryKind::SyncPoint => {
                let marks = &mut self.opening.as_mut().expect("recovery").marks;
                marks.retain(|&(volume, _), dseq| volume != id.0 || *dseq > block);
            }
            EntryKind::RegionDrop if block == REGION_ALL => {
                self.replay_volume_clean(id, base, blocks)
            }
            EntryKind::RegionDrop => self.replay_region(id, block),
            EntryKind::EpochStart
            | EntryKind::FillCut
            | EntryKind::SegmentFree
            | EntryKind::VolumeDrop
            | EntryKind::Void => {}
        }
        Ok(())
    }

    fn replay_block(
        &mut self,
        found: &Found,
        entry: &Entry,
        key: u64,
        slot: u32,
        dirty: bool,
        plan: &Plan,
    ) {
        let id = VolumeId(entry.volume.get());
        let segment = found.header.segment.get();
        let generation = u64::from(found.header.segment_generation.get());
        if plan.freed.get(&segment).is_some_and(|&last| generation <= last) {
            // It was there, replaced what was before, and is gone.
            return self.replay_remove(id, key);
        }
        let located = Located { slot, crc: entry.crc.get() };
        self.replay_insert(id, key, located, dirty, entry.mask);
    }

    fn replay_remove_range(&mut self, id: VolumeId, first: u64, end: u64) {
        if end - first <= self.index.len() as u64 {
            return (first..end).for_each(|key| self.replay_remove(id, key));
        }
        let mut keys = Vec::new();
        self.index.scan(0, self.index.bucket_count(), |key, _| {
            if (first..end).contains(&key) {
                keys.push(key);
            }
        });
        keys.into_iter().for_each(|key| self.replay_remove(id, key));
    }

    /// Drops the clean blocks of a region. How many there were.
    fn replay_region(&mut self, id: VolumeId, region: u64) {
        let Some(volume) = self.volume(id) else { return };
        let size = self.tuning.region_blocks;
        let Some(from) = region.checked_mul(size).filter(|&from| from < volume.blocks()) else {
            return;
        };
        let (base, to) = (volume.base, (from + size).min(volume.blocks()));
        for key in base + from..base + to {
            let clean = self.index.get(key).is_some_and(|l| !self.dirty.get(l.slot as usize));
            if clean {
                self.replay_remove(id, key);
            }
        }
    }

    /// Drops the clean blocks of a volume.
    fn replay_volume_clean(&mut self, id: VolumeId, base: u64, blocks: u64) {
        let mut clean = Vec::new();
        self.index.scan(0, self.index.bucket_count(), |key, located| {
            let inside = (base..base + blocks).contains(&key);
            if inside && !self.dirty.get(located.slot as usize) {
                clean.push(key);
            }
        });
        clean.into_iter().for_each(|key| self.replay_remove(id, key));
    }

    /// Drops the clean blocks of marked regions, and fills in what the volumes derive from the
    /// index.
    fn settle_volumes(&mut self, trust: &Trust) {
        let marks = std::mem::take(&mut self.opening.as_mut().expect("recovery").marks);
        for &(volume, region) in marks.keys() {
            let id = VolumeId(volume);
            if self.is(Mutant::RegionsKept) || self.volume(id).is_none() {
                continue;
            }
            self.replay_region(id, region);
            let summary = &mut self.opening.as_mut().expect("recovery").summary;
            summary.regions_dropped.push((id, region));
        }
        for volume in self.volumes.iter_mut().flatten() {
            volume.synced_seq = trust.synced.get(&volume.id.0).copied().unwrap_or(0);
            volume.stats.dirty_blocks = volume.dirty.len();
        }
    }
}

/// Which clean entries count.
#[derive(Debug, Default)]
struct Trust {
    synced: BTreeMap<u16, u64>,
    /// For each volume: entries between these numbers never happened.
    cuts: BTreeMap<u16, Vec<(u64, u64)>>,
}

impl Trust {
    fn new(checkpoint: &BTreeMap<u16, u64>, valid: &[&Found]) -> Trust {
        let mut trust = Trust { synced: checkpoint.clone(), cuts: BTreeMap::new() };
        for found in valid {
            for entry in &found.entries {
                let volume = entry.volume.get();
                match entry.kind() {
                    EntryKind::SyncPoint => {
                        let synced = trust.synced.entry(volume).or_insert(0);
                        *synced = (*synced).max(entry.aux.get());
                    }
                    EntryKind::FillCut => {
                        let cut = (entry.aux.get(), found.seq());
                        trust.cuts.entry(volume).or_default().push(cut);
                    }
                    _ => {}
                }
            }
        }
        trust
    }

    fn counts(&self, id: VolumeId, seq: u64) -> bool {
        let cut = self
            .cuts
            .get(&id.0)
            .is_some_and(|cuts| cuts.iter().any(|&(after, before)| after < seq && seq < before));
        !cut && self.synced.get(&id.0).is_some_and(|&synced| seq <= synced)
    }
}

/// The newest life of the log whose first record, or a checkpoint of which, is here.
fn epoch_told(valid: &[&Found], checkpoint: u64) -> u64 {
    let starts = valid
        .iter()
        .filter(|found| found.entries.iter().any(|entry| entry.kind() == EntryKind::EpochStart));
    starts.map(|found| found.epoch()).max().unwrap_or(0).max(checkpoint)
}

/// The greatest generation of each segment that an entry calls empty.
fn freed_segments(valid: &[&Found]) -> BTreeMap<u32, u64> {
    let mut freed = BTreeMap::new();
    for entry in valid.iter().flat_map(|found| &found.entries) {
        if entry.kind() == EntryKind::SegmentFree {
            let last = freed.entry(entry.block.get() as u32).or_insert(0);
            *last = (*last).max(entry.aux.get());
        }
    }
    freed
}

/// Entries with the slot of their payload block (0 for those without) and their number.
fn entries_with_slot(found: &Found, blocks: u32) -> Vec<(usize, (&Entry, u32))> {
    let mut slot = found.header.segment.get() * blocks + found.header.offset.get();
    let place = |(n, entry)| {
        let entry: &Entry = entry;
        slot += u32::from(entry.kind().has_payload());
        (n, (entry, slot))
    };
    found.entries.iter().enumerate().map(place).collect()
}

/// One record for each sequence number: of two copies, what is bad in both is bad.
fn merge_copies(records: Vec<Found>) -> Vec<Found> {
    let mut merged: BTreeMap<(u64, u64), Found> = BTreeMap::new();
    for found in records {
        let name = (found.epoch(), found.seq());
        match merged.get_mut(&name) {
            Some(other) => {
                other.bad.retain(|n| found.bad.contains(n));
                other.whole = [0, 1].map(|copy| other.whole[copy] || found.whole[copy]);
            }
            None => {
                merged.insert(name, found);
            }
        }
    }
    merged.into_values().collect()
}
