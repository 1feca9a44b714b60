//! Victim: what reclaim reads of a unit that it empties, and what it keeps of that.
//!
//! The headers of a unit's own records name its blocks; where many are to be moved the same read
//! brings them. What is not at hand then, or was not whole, is read block by block.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Key, SegmentId, Slot, UnitId};
use crate::index::Located;
use crate::limits::*;
use crate::log::Point;
use crate::op::Op;
use crate::op::run::{CacheRun, Lost, Reader};
use crate::policy::eviction::Choice;
use crate::reclaim::Victim;
use crate::segment::{Purpose, Unit};
use forebay_format::io::Buf;
use forebay_format::record::{self, Entry, EntryKind};
use forebay_format::{BLOCK_SIZE, MASK_FULL, checksum};

impl Engine {
    /// Reads on in the victims' records: all of them where blocks were written one by one, only the
    /// headers where clients' reads filled it.
    pub(crate) fn victims_read(&mut self) {
        for n in 0..self.reclaim.victims.len() {
            let victim = &mut self.reclaim.victims[n];
            let Some(&segment) = victim.segments.front() else { continue };
            if victim.reading {
                continue;
            }
            victim.reading = true;
            let (unit, at) = (victim.unit, victim.at);
            self.victim_read(unit, segment, at, 0);
        }
    }

    fn victim_read(&mut self, unit: UnitId, segment: SegmentId, at: u32, tries: u8) {
        let bulk = self.segments.unit(unit).dirty_class;
        let most = if bulk { RECLAIM_READ_BLOCKS } else { 1 };
        let blocks = most.min(self.segments.blocks() - at);
        let slot = self.segments.slot(segment, at);
        self.read_slot(slot, tries, blocks, Op::Victim { unit, segment, at, tries });
    }

    pub(crate) fn victim_read_done(
        &mut self,
        unit: UnitId,
        segment: SegmentId,
        at: u32,
        tries: u8,
        end: Completion,
    ) {
        let Completion { result, buf } = end;
        let reads = |victim: &&mut Victim| {
            let here = victim.segments.front() == Some(&segment) && victim.at == at;
            victim.unit == unit && victim.reading && here
        };
        if self.reclaim.victims.iter_mut().find(reads).is_none() {
            return self.io.give(buf); // It was given up.
        }
        if result.is_err() && tries + 1 < CACHE_READ_TRIES {
            self.io.give(buf);
            return self.victim_read(unit, segment, at, tries + 1);
        }
        self.reclaim.steps += 1;
        let next = match result {
            Ok(()) => self.victim_records(unit, segment, at, &buf),
            Err(_) => None,
        };
        self.io.give(buf);
        let blocks = self.segments.blocks();
        let Some(victim) = self.victim(unit) else { return };
        victim.reading = false;
        match next.filter(|&next| next < blocks) {
            Some(next) => victim.at = next,
            None => {
                victim.segments.pop_front();
                victim.at = 0;
            }
        }
    }

    /// Goes through the records in a piece of a victim. Where the next piece begins; `None`: there
    /// is no record, and behind it no more of this life of the unit.
    fn victim_records(
        &mut self,
        unit: UnitId,
        segment: SegmentId,
        from: u32,
        buf: &Buf,
    ) -> Option<u32> {
        let Unit { generation, dirty_class: bulk, .. } = *self.segments.unit(unit);
        let piece: Vec<&[u8]> = buf.bytes().chunks_exact(BLOCK_SIZE).collect();
        let mut n = 0;
        while n < piece.len() {
            let (header, entries) = record::decode(piece[n]).ok()?;
            let ours = header.pool.get() == self.pool.id()
                && header.segment.get() == segment.raw()
                && header.segment_generation.get() == generation
                && header.offset.get() == from + n as u32;
            if !ours {
                return None;
            }
            let next = n + 1 + usize::from(header.payload_blocks.get());
            if bulk && next > piece.len() {
                break; // The rest of it comes with the next piece.
            }
            let payload = if bulk { &piece[n + 1..next] } else { &[] };
            self.victim_entries(
                unit,
                self.segments.slot(segment, from + n as u32 + 1),
                &entries,
                payload,
            );
            n = next;
        }
        Some(from + n as u32)
    }

    /// Decides for each block of a record. `payload` holds the blocks, if they were read.
    fn victim_entries(&mut self, unit: UnitId, first: Slot, entries: &[Entry], payload: &[&[u8]]) {
        self.io.did(entries.len());
        let with_payload = entries.iter().filter(|entry| entry.kind().has_payload());
        for (n, entry) in with_payload.enumerate() {
            let slot = first.behind(n as u32);
            let volume = self.volume(VolumeId(entry.address.volume()));
            let key = volume
                .filter(|v| entry.address.block() < v.blocks())
                .map(|v| v.base() + entry.address.block());
            let Some((key, located)) = key.and_then(|key| Some((key, self.map.get(key)?))) else {
                continue;
            };
            if located.slot != slot {
                continue;
            }
            match payload.get(n).filter(|block| checksum(block) == located.crc) {
                Some(block) if self.keeps(unit, slot) => self.move_block(unit, key, located, block),
                _ => self.keep_or_drop(unit, key, located),
            }
        }
    }

    /// Whether a live block of a victim is worth moving.
    fn keeps(&mut self, unit: UnitId, slot: Slot) -> bool {
        if self.map.is_dirty(slot) {
            return !self.is(Mutant::ReclaimDropsDirty);
        }
        let referenced = self.map.is_referenced(slot);
        let clean = self.victim(unit).is_some_and(|victim| victim.choice == Choice::Clean);
        (clean || referenced) && self.segments.units_for(Purpose::Clean) > 0
    }

    /// A block of a victim that is not at hand: it is read to be moved, or goes with the victim.
    pub(crate) fn keep_or_drop(&mut self, unit: UnitId, key: Key, located: Located) {
        let keeps = self.keeps(unit, located.slot);
        let Some(victim) = self.victim(unit) else { return };
        if keeps {
            victim.moves += 1;
            self.reclaim.moves.push_back((key, located));
        } else {
            victim.drops.push((key, located));
        }
    }

    /// Appends a block of a victim anew.
    fn move_block(&mut self, unit: UnitId, key: Key, located: Located, block: &[u8]) {
        self.io.did(1);
        let dirty = self.map.is_dirty(located.slot);
        let mask = self.map.mask(located.slot);
        let mask = if self.is(Mutant::MaskLostInMove) { MASK_FULL } else { mask };
        let (point, kind, purpose) = match dirty {
            true => (Point::Dirty, EntryKind::Dirty, Purpose::Move),
            false => (Point::Reinsert, EntryKind::Clean, Purpose::Clean),
        };
        let to = self.append(point, key, block, kind, mask, purpose);
        match (to, dirty) {
            (Some(to), true) => {
                self.slice_follows(key, located.slot, to);
                self.reclaim.pressure.spent(1);
                let twice = self.is(Mutant::PromiseTakenTwice);
                let kept = self.is(Mutant::PromiseKept);
                if let Some(victim) = self.victim(unit).filter(|_| !kept) {
                    match twice {
                        true => victim.room.give_one(),
                        false => victim.room.use_one(),
                    }
                }
            }
            (Some(_), false) => {}
            (None, true) => self.victims_give_up(),
            (None, false) => {
                if let Some(victim) = self.victim(unit) {
                    victim.drops.push((key, located));
                }
            }
        }
    }

    pub(crate) fn victims_move(&mut self) {
        while self.reclaim.moving < MOVES_IN_FLIGHT_MAX {
            let Some((key, located)) = self.reclaim.moves.pop_front() else { return };
            self.reclaim.moving += 1;
            match self.map.get(key) == Some(located) {
                true => {
                    let run = CacheRun::one(Reader::Move, key, located, MASK_FULL);
                    let buf = self.io.take(BLOCK_SIZE);
                    self.read_cached(run, buf);
                }
                false => self.move_over(located.slot),
            }
        }
    }

    /// One more read for a move of a victim's block is under way.
    pub(crate) fn move_begins(&mut self, slot: Slot) {
        self.reclaim.moving += 1;
        let unit = self.segments.of(slot);
        if let Some(victim) = self.victim(unit) {
            victim.moves += 1;
        }
    }

    /// One has ended.
    pub(crate) fn move_over(&mut self, slot: Slot) {
        self.reclaim.steps += 1;
        self.reclaim.moving -= 1;
        let unit = self.segments.of(slot);
        if let Some(victim) = self.victim(unit) {
            victim.moves = victim.moves.saturating_sub(1);
        }
    }

    /// A block that is to be moved is here.
    pub(crate) fn move_take(&mut self, key: Key, located: Located, block: &[u8]) {
        if self.map.get(key) == Some(located) {
            self.move_block(self.segments.of(located.slot), key, located, block);
        }
    }

    /// It cannot be read. Whether it is read elsewhere.
    pub(crate) fn move_lost(&mut self, key: Key, located: Located, lost: Lost) -> bool {
        let unit = self.segments.of(located.slot);
        if let (Lost::Bad { dirty }, Some(victim)) = (lost, self.victim(unit)) {
            match dirty {
                true => victim.lost = true,
                false => victim.drops.push((key, located)),
            }
        }
        false
    }
}
