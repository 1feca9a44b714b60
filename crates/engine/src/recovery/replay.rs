//! Replay: which records count, and what they make of the index.
//!
//! Dirty-class records count up to the first gap in their numbers, life by life. A gap with a
//! record behind it that calls the missing one durable is damage, not the end of the log. Clean
//! records count wherever they are found whole: what a power cut may take from the origin is
//! marked. Only a dirty block does not give way to one that came after the end of the log.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::VolumeId;
use crate::ids::{Dseq, Key, SegmentId, Seq, Slot, UnitId};
use crate::index::Located;
use crate::open_error::{OpenError, WhyClosed};
use crate::recovery::Opening;
use crate::recovery::found::{Found, Plan};
use crate::settings::Witness;
use forebay_format::checkpoint::SEGMENT_OPEN;
use forebay_format::record::{Entry, EntryKind};
use std::collections::BTreeMap;

/// The dirty-class records.
struct Valid<'a> {
    /// Those that count, in order.
    records: Vec<&'a Found>,
    /// The number of the last.
    end: Dseq,
    /// Those of this life behind the gap.
    behind: Vec<&'a Found>,
    /// See `Summary::half`.
    half: bool,
}

/// Whether a device that is here has no whole copy of a record of a mirror.
fn lacks_a_copy(engine: &Engine, found: &Found) -> bool {
    let segments = &engine.segments;
    let Some(partner) = segments.partner(found.segment()) else { return false };
    let places = [found.segment(), partner].into_iter().zip(found.whole);
    let seq = found.seq();
    places.into_iter().any(|(segment, whole)| segments.should_hold(segment, seq) && !whole)
}

impl Opening {
    /// Decides which records count. Fails where going on could return wrong data.
    pub(super) fn replay_plan(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        let records = merge_copies(std::mem::take(&mut self.records));
        let from = self.source.map_or(Default::default(), |source| (source.seq, source.dseq));
        let heads = self.heads.values().map(|head| Seq::of(head.seq.get()));
        self.seq_max = records.iter().map(Found::seq).chain(heads).fold(from.0, Seq::max);
        self.seq_max = self.seq_max.max(engine.segments.joined_seq());
        let newest = engine.pool.header().checkpoint_epoch.get();
        let Valid { records: valid, end, behind, half } =
            self.valid_dirty(engine, &records, from)?;
        let region_blocks = engine.tuning().region_blocks;
        for found in behind {
            let dirty = found.entries.iter().filter(|entry| entry.kind() == EntryKind::Dirty);
            self.marks.extend(dirty.map(|entry| {
                let from = entry.address.block() / region_blocks * region_blocks;
                ((entry.address.volume(), from, region_blocks), found.dseq())
            }));
        }
        let clean: Vec<&Found> = records
            .iter()
            .filter(|found| !found.is_dirty_class() && found.seq() > from.0)
            .filter(|found| found.epoch() == newest)
            .collect();
        let mut all: Vec<&Found> = valid.iter().chain(clean.iter()).copied().collect();
        all.sort_by_key(|found| found.seq());
        let freed = engine.freed_units(&valid);
        let ends_here = self.ends_here(engine, &records, valid.last().copied(), from.0);
        self.summary.dseq_end = end;
        self.summary.half = half;
        self.summary.ends_here = ends_here;
        self.summary.records = all.len() as u64;
        self.records = all.into_iter().cloned().collect();
        let gone = self.units_gone(engine, &freed);
        self.plan = Plan { freed, gone };
        Ok(())
    }

    /// Computes the state from checkpoint and records. Fails where going on could return wrong
    /// data.
    pub(super) fn replay(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        let records = std::mem::take(&mut self.records);
        let plan = std::mem::take(&mut self.plan);
        self.checkpoint_place(engine, &plan.gone);
        let newest = engine.pool.header().checkpoint_epoch.get();
        let epoch = self.source.map_or(newest, |source| source.epoch);
        // Of two lives nobody knows what of the first was trusted when the second began: units that
        // held nothing else were used again without a word.
        let border = records.partition_point(|found| found.epoch() < newest);
        let mut given_up = engine.given_up(epoch);
        let epoch = if engine.is(Mutant::LastResortTrusted) { newest } else { epoch };
        for (n, found) in records.iter().enumerate() {
            if n == border && epoch != newest {
                engine.drop_all_clean();
            }
            engine.drop_given_up(&mut given_up, found.epoch());
            engine.replay_warm(found);
            for (n, entry) in entries_with_slot(found, engine.segments.blocks()) {
                self.replay_entry(engine, found, entry.0, entry.1, n, &plan)?;
            }
        }
        if border == records.len() && epoch != newest {
            engine.drop_all_clean();
        }
        engine.drop_given_up(&mut given_up, u64::MAX);
        self.settle_volumes(engine);
        (self.records, self.plan) = (records, plan);
        Ok(())
    }

    /// The dirty-class records that count, in order, the number of the last, and those of this life
    /// behind the gap. These never happened, but may have been sent home before what made the gap:
    /// rot in the end of the log looks like a torn end. So clean blocks that they replaced may not
    /// be what the origin has, and are treated like those in marked regions.
    fn valid_dirty<'a>(
        &self,
        engine: &Engine,
        records: &'a [Found],
        from: (Seq, Dseq),
    ) -> Result<Valid<'a>, OpenError> {
        let dirty: Vec<&Found> =
            records.iter().filter(|f| f.is_dirty_class() && f.seq() > from.0).collect();
        // The newest life, and where the checkpoint is of the one before, that up to its end.
        let header = engine.pool.header();
        let (newest, began) =
            (header.checkpoint_epoch.get(), Dseq::of(header.checkpoint_dseq.get()));
        let epoch = self.source.map_or(0, |it| it.epoch);
        let counts = |found: &&&Found| match found.epoch() {
            it if it == newest => epoch == newest || found.dseq() > began,
            it => it == epoch && found.dseq() <= began,
        };
        let vouched = records
            .iter()
            .filter(|found| found.bad.is_empty() || found.is_dirty_class())
            .filter(|found| found.epoch() == newest || found.epoch() == epoch)
            .map(|found| Dseq::of(found.header.durable_dseq.get()))
            .max()
            .unwrap_or_default();
        let vouched = if epoch == newest { vouched } else { vouched.max(began) };
        let seen = match self.witness {
            Witness::Seen(dseq) => Dseq::of(dseq),
            Witness::Missing | Witness::Accepted => Dseq::NONE,
        };
        let blind = engine.is(Mutant::RotUnwitnessed);
        let vouched = if blind { vouched } else { vouched.max(seen) };
        let counts: BTreeMap<Dseq, &Found> =
            dirty.iter().filter(counts).map(|found| (found.dseq(), *found)).collect();
        let mut valid = Vec::new();
        let mut next = from.1.next();
        for (&dseq, &found) in counts.range(next..) {
            let torn = !found.bad.is_empty() && dseq > vouched;
            if (dseq != next || torn) && !engine.is(Mutant::GapIgnored) {
                break;
            }
            valid.push(found);
            next = dseq.next();
        }
        let short = u64::from(engine.is(Mutant::WitnessOneShort));
        if seen.raw() >= next.raw() + short && !engine.is(Mutant::WitnessIgnored) {
            return Err(log_is_short(engine, next, seen));
        }
        if vouched >= next && counts.range(next..).next().is_some() {
            return Err(format!(
                "record {} of the log was durable and cannot be read any more, and no second \
                 copy is there; what it held is not known. Bring the devices back as they were, or \
                 `forebay pool destroy` the pool to go on with what the origins hold",
                next.raw()
            )
            .into());
        }
        let behind = counts.range(next..).map(|(_, &found)| found).collect();
        let half = valid.iter().any(|found| found.dseq() <= vouched && lacks_a_copy(engine, found));
        Ok(Valid { records: valid, end: next.before(), behind, half })
    }

    /// Whether the unit has room left in which this life of the log ends: with its last record, or
    /// where there is none with what the checkpoint calls open.
    fn ends_here(
        &self,
        engine: &Engine,
        records: &[Found],
        last: Option<&Found>,
        from: Seq,
    ) -> bool {
        let open = |found: &&Found| {
            let item = self.segments.get(&engine.segments.unit_of(found.segment()));
            found.is_dirty_class()
                && found.seq() <= from
                && item.is_some_and(|item| {
                    let flags = item.flags.get();
                    flags & SEGMENT_OPEN != 0 && item.generation == found.header.segment_generation
                })
        };
        let newest = engine.pool.header().checkpoint_epoch.get();
        let last = last.filter(|found| found.epoch() == newest);
        let last = last.or_else(|| records.iter().filter(open).max_by_key(|found| found.seq()));
        last.is_some_and(|Found { header, .. }| {
            let end = header.offset.get() + 1 + u32::from(header.payload_blocks.get());
            end + 1 < engine.segments.blocks()
        })
    }

    /// Whether the log may have gone on where nothing can be read: in a unit of which one half was
    /// away already, and the other could not be read before its device failed.
    pub(super) fn log_may_go_on(&self, engine: &Engine) -> bool {
        let header = engine.pool.header();
        // What came behind the checkpoint that is used never had what lies between the two.
        let from = self.source.map_or(Seq::default(), |source| source.seq);
        let unread = |segment: SegmentId| {
            let blocks = self.unreadable.range((segment, 0)..=(segment, u32::MAX));
            let later = engine.segments.came_behind(segment, from);
            (!engine.segments.healthy(segment) && blocks.count() > 0)
                || (later && !self.heads.contains_key(&segment))
        };
        // Also on such as are given up: nobody could say how much of the log's end that is.
        let used = |segment| {
            header.devices[usize::from(engine.segments.device_of(segment).0)].away.get() == 0
        };
        let mut units = engine.segments.unit_ids().filter(|&it| engine.segments.may_hold_dirty(it));
        !self.summary.ends_here
            && header.clean == 0
            && units.any(|unit| {
                let mut halves = engine.segments.segments_of(unit);
                engine.segments.segments_of(unit).all(unread) && halves.any(used)
            })
    }

    fn replay_entry(
        &mut self,
        engine: &mut Engine,
        found: &Found,
        entry: &Entry,
        slot: Slot,
        n: usize,
        plan: &Plan,
    ) -> Result<(), OpenError> {
        let id = VolumeId(entry.address.volume());
        let block = entry.address.block();
        let Some((base, blocks)) = engine.volume(id).map(|v| (v.base(), v.blocks())) else {
            return Ok(());
        };
        let of_block = matches!(
            entry.kind(),
            EntryKind::Dirty | EntryKind::Clean | EntryKind::Tombstone | EntryKind::MarkClean
        );
        if of_block && block >= blocks {
            return Err("a record names a block behind the end of its volume".into());
        }
        let key = base + block;
        match entry.kind() {
            EntryKind::Dirty => self.replay_block(engine, found, entry, key, slot, true, plan),
            EntryKind::Clean => {
                if !found.bad.contains(&n) {
                    self.replay_block(engine, found, entry, key, slot, false, plan);
                }
            }
            EntryKind::Tombstone => {
                let last = block.saturating_add(entry.aux.get()).min(blocks);
                engine.forget_range(base + block..base + last);
            }
            EntryKind::MarkClean => {
                let now = engine.map.get(key);
                if let Some(now) = now.filter(|now| u64::from(now.slot.raw()) == entry.aux.get()) {
                    engine.make_clean(key, now.slot);
                }
            }
            EntryKind::Intent => {
                let marks = &mut self.marks;
                marks.insert((id.0, block, entry.aux.get()), found.dseq());
            }
            EntryKind::SyncPoint => {
                let marks = &mut self.marks;
                marks.retain(|&(volume, ..), dseq| {
                    volume != id.0 || *dseq > Dseq::of(entry.aux.get())
                });
            }
            EntryKind::CleanDrop => engine.forget_clean_of(base..base + blocks),
            EntryKind::SegmentFree | EntryKind::VolumeDrop | EntryKind::Void => {}
        }
        Ok(())
    }

    fn replay_block(
        &mut self,
        engine: &mut Engine,
        found: &Found,
        entry: &Entry,
        key: Key,
        slot: Slot,
        dirty: bool,
        plan: &Plan,
    ) {
        let behind = found.dseq() > self.summary.dseq_end;
        let gives_way = engine.is(Mutant::CleanReplacesDirty);
        if !dirty && behind && engine.map.has_dirty(key) && !gives_way {
            // I12: what ended the dirty block never happened: a start that does not know of the
            // clean one would have it back.
            return;
        }
        let unit = engine.segments.unit_of(found.segment());
        let generation = u64::from(found.header.segment_generation.get());
        let less = u64::from(engine.is(Mutant::FreedOffByOne));
        if plan.freed.get(&unit).is_some_and(|&last| generation + less <= last) {
            // It was there, replaced what was before, and is gone.
            engine.forget(key);
            return;
        }
        let located = Located { slot, crc: entry.crc.get() };
        engine.install(key, located, dirty, entry.mask);
    }

    /// Drops the clean blocks of marked regions, and fills in what the volumes derive from the
    /// index.
    fn settle_volumes(&mut self, engine: &mut Engine) {
        let marks = std::mem::take(&mut self.marks);
        for &(volume, from, blocks) in marks.keys() {
            let id = VolumeId(volume);
            if engine.volume(id).is_none() {
                continue;
            }
            engine.volumes.clients_wrote(id);
            if !engine.is(Mutant::RegionsKept) {
                engine.replay_mark(id, from, blocks);
            }
        }
        engine.volumes.count_dirty();
    }
}

impl Engine {
    /// Volumes of which somebody gave up what lives up to one held, no checkpoint since.
    fn given_up(&self, checkpoint: u64) -> Vec<(VolumeId, u64)> {
        self.pool.dropped().filter(|&(_, epoch)| checkpoint <= epoch).collect()
    }

    /// Forgets what was given up before records of this life count.
    fn drop_given_up(&mut self, given_up: &mut Vec<(VolumeId, u64)>, epoch: u64) {
        for (id, _) in given_up.extract_if(.., |&mut (_, last)| last < epoch) {
            if let Some((first, end)) = self.volume(id).map(|v| v.keys()) {
                self.forget_range(first..end);
            }
        }
    }

    /// Brings what the index knows of a record's blocks near.
    fn replay_warm(&self, found: &Found) {
        let key = |entry: &Entry| {
            let volume = self.volume(VolumeId(entry.address.volume()))?;
            (entry.address.block() < volume.blocks()).then(|| volume.base() + entry.address.block())
        };
        self.map.warm(found.entries.iter().filter_map(key));
    }

    /// I8: drops the clean blocks of what is marked.
    fn replay_mark(&mut self, id: VolumeId, from: u64, blocks: u64) {
        let Some(volume) = self.volume(id) else { return };
        let (base, to) = (volume.base(), from.saturating_add(blocks).min(volume.blocks()));
        self.forget_clean_of(base + from.min(to)..base + to);
    }

    /// The greatest generation of each unit that an entry calls empty.
    fn freed_units(&self, valid: &[&Found]) -> BTreeMap<UnitId, u64> {
        let mut freed = BTreeMap::new();
        for entry in valid.iter().flat_map(|found| &found.entries) {
            if entry.kind() == EntryKind::SegmentFree {
                let segment = SegmentId::of(entry.address.block() as u32);
                let last = freed.entry(self.segments.unit_of(segment)).or_insert(0);
                *last = (*last).max(entry.aux.get());
            }
        }
        freed
    }
}

/// The log ends before this record, and one up to which it was durable was seen.
fn log_is_short(engine: &Engine, next: Dseq, seen: Dseq) -> OpenError {
    let name = engine.volumes.iter().next().map_or("NAME", |volume| &volume.identity().name);
    let (lost, last) = (next.raw(), seen.raw());
    let text = format!(
        "what records {lost} to {last} of the log hold was durable, and the log ends before it: \
         the devices hold an older state than they once did (a snapshot that was rolled back, an \
         old copy), or the end of the log is damaged. Bring the devices back as they were. If what \
         was written since is lost: `forebay volume attach {name} --keep-dirty` goes on with what \
         is here"
    );
    OpenError { why: WhyClosed::OlderState, text }
}

/// Entries with the slot of their payload block (0 for those without) and their number.
fn entries_with_slot(found: &Found, blocks: u32) -> Vec<(usize, (&Entry, Slot))> {
    let mut slot = Slot::of(found.header.segment.get() * blocks + found.header.offset.get());
    let place = |(n, entry)| {
        let entry: &Entry = entry;
        slot = slot.behind(u32::from(entry.kind().has_payload()));
        (n, (entry, slot))
    };
    found.entries.iter().enumerate().map(place).collect()
}

/// One record for each sequence number: of two copies, what is bad in both is bad.
fn merge_copies(records: Vec<Found>) -> Vec<Found> {
    let mut merged: BTreeMap<(u64, Seq), Found> = BTreeMap::new();
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
