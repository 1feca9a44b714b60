//! Reclaim: empties segments for reuse. What is kept is moved first; only then does an entry say
//! that the segment is empty, and only when that is durable is the segment used again (I3).

use crate::Mutant;
use crate::buf::Buf;
use crate::engine::Engine;
use crate::event::*;
use crate::index::{Key, Located, Slot};
use crate::limits::*;
use crate::log::Point;
use crate::op::Op;
use crate::policy::eviction::{Bounds, Candidate, Choice, choose};
use crate::room::Purpose;
use crate::segment::{Unit, UnitId, Use};
use forebay_format::record::EntryKind;
use forebay_format::{BLOCK_SIZE, checksum};
use std::collections::VecDeque;

#[derive(Debug)]
struct Victim {
    segment: UnitId,
    choice: Choice,
}

/// The reclaim of one shard.
#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    victims: Vec<Victim>,
    /// Next bucket of the index to look at.
    scan: Option<usize>,
    /// Blocks of the victims found by the scan.
    found: Vec<(Key, Located)>,
    /// Blocks to move.
    moves: VecDeque<(Key, Located)>,
    moving: usize,
    /// Dirty blocks that cannot be read.
    lost: Vec<UnitId>,
    /// Nothing can be emptied because of dirty blocks.
    pub(crate) starves: bool,
    /// Blocks read lately that clients had read into the cache, and that they had written.
    hits: [u64; 2],
}

impl Reclaim {
    /// Blocks were read from a segment.
    pub(crate) fn read(&mut self, written: bool, blocks: u64) {
        self.hits[usize::from(written)] += blocks;
    }

    /// Blocks are on their way to a record.
    pub(crate) fn is_moving(&self) -> bool {
        self.moving > 0
    }

    /// See `Engine::progress`.
    pub(crate) fn progress(&self) -> [u64; 2] {
        let scan = self.scan.map_or(0, |at| at as u64 + 1);
        [
            self.victims.len() as u64 + (scan << 16),
            (self.moves.len() + (self.moving << 32)) as u64 + u64::from(self.starves) * 7,
        ]
    }
}

impl Engine {
    /// Everything up to this sequence number is of no use to any roll-forward.
    fn forgotten_seq(&self) -> u64 {
        self.sb.previous_seq()
    }

    pub(crate) fn free_wanted(&self) -> usize {
        self.room.leaves_to_clean() + (self.segments.units.len() / 32).clamp(2, 64)
    }

    pub(crate) fn reclaim_more(&mut self) {
        let (durable, forgotten) =
            match (self.is(Mutant::ReuseBeforeDurable), self.is(Mutant::ReuseBeforeCheckpoint)) {
                (true, _) => (u64::MAX, self.forgotten_seq()),
                (_, true) => (self.log.durable_dseq, u64::MAX),
                _ => (self.log.durable_dseq, self.forgotten_seq()),
            };
        if self.room.release(&mut self.segments, durable, forgotten) > 0 {
            self.reclaim.starves = false;
        }
        if let Some(dseq) = self.room.undurable_emptied(&self.segments, self.log.durable_dseq)
            && self.room.free() < self.free_wanted()
        {
            self.want_durable(dseq);
        }
        if self.reclaim.victims.is_empty() {
            self.victims_choose();
        }
        self.victims_scan();
        self.victims_move();
        self.victims_empty();
    }

    fn victims_choose(&mut self) {
        let soon = self.room.free() + self.room.coming();
        if soon >= self.free_wanted() {
            self.reclaim.starves = false;
            return;
        }
        self.lost_segments();
        let critical = soon <= self.room.leaves_to_clean();
        if critical && self.reclaim.starves {
            // No clean block is admitted now: what is open for them may be emptied too.
            for point in [Point::Fill, Point::Reinsert] {
                self.send(point);
                self.seal(point);
            }
        }
        // Dirty blocks had better go home than be moved; but where an origin fails, moving must
        // help.
        let blocks = self.segments.blocks;
        let dirty_max = match (critical, self.reclaim.starves && self.origins_fail()) {
            (_, true) => blocks / 4 * 3,
            (true, false) => blocks / 4,
            (false, false) => blocks / 8,
        };
        // Moving costs room before it gives any, and packing gives little of it.
        let mut room = self.room_for_moves();
        let written_first = self.written_first();
        for _ in 0..VICTIMS_MAX {
            let bounds = Bounds {
                dirty_max: dirty_max.min(room),
                moves_max: if critical { 0 } else { room },
                written_first,
            };
            let choice = choose(self.candidates(), bounds);
            let Some((segment, choice)) = choice else { break };
            let live = self.segments.units[segment as usize].live > 0;
            if live && self.victims_are_dead() {
                break; // The dead ones on their own: nothing in the index needs to be looked for.
            }
            let victim = &mut self.segments.units[segment as usize];
            // What clients read has to go: from now on not everything is worth a place.
            self.admission.full_once |= live && choice == Choice::Evict && !victim.dirty_class;
            room -= victim.dirty;
            victim.usage = Use::Victim;
            self.reclaim.victims.push(Victim { segment, choice });
        }
        self.reclaim.starves = self.reclaim.victims.is_empty();
        if !self.reclaim.victims.is_empty() && !self.victims_are_dead() {
            self.reclaim.scan = Some(0);
            self.index.track_moves(true);
        }
    }

    /// Blocks that moves of dirty blocks could append now. Half of the last segment is left to the
    /// engine's own entries.
    fn room_for_moves(&self) -> u32 {
        let blocks = self.segments.blocks;
        let open = self.log.open[Point::Dirty as usize];
        let end = match &self.log.gather[Point::Dirty as usize] {
            Some(gather) => gather.offset + 1 + gather.payload,
            None => open.map_or(blocks, |segment| {
                self.segments.units[self.segments.unit_of(segment) as usize].end + 1
            }),
        };
        let left = blocks.saturating_sub(end);
        match self.room.may_write(Purpose::Move) {
            true => left + self.room.units_for(Purpose::Move) as u32 * (blocks - 1),
            false => 0,
        }
    }

    /// Units that held dirty blocks which nobody could read come back when these are gone. A device
    /// of which too much cannot be read has failed: writers must not wait for room that never comes.
    fn lost_segments(&mut self) {
        let mut lost = vec![0; self.segments.devices.len()];
        self.work.did(self.segments.units.len());
        for unit in 0..self.segments.units.len() as u32 {
            let it = &mut self.segments.units[unit as usize];
            if it.usage == Use::Lost && it.dirty == 0 {
                it.usage = Use::Sealed;
            }
            if it.usage == Use::Lost {
                let segments = self.segments.segments_of(unit);
                segments.for_each(|it| lost[usize::from(self.segments.device_of(it).0)] += 1);
            }
        }
        for (device, lost) in (0..).zip(lost) {
            if lost > self.segments.devices[usize::from(device)].count / LOST_SEGMENTS_SHARE {
                self.device_failed(DeviceId(device), LOST_SEGMENTS);
            }
        }
    }

    /// Whether there are victims and nothing lives in any of them.
    fn victims_are_dead(&self) -> bool {
        let mut victims = self.reclaim.victims.iter();
        !self.reclaim.victims.is_empty()
            && victims.all(|victim| self.segments.units[victim.segment as usize].live == 0)
    }

    pub(crate) fn reclaim_scanning(&self) -> bool {
        self.reclaim.scan.is_some()
    }

    /// Entries that moved in the index while another scan was looking.
    pub(crate) fn reclaim_saw(&mut self, moved: &[(Key, Located)]) {
        let segments = &self.segments;
        let victims = moved.iter().filter(|(_, located)| {
            segments.units[segments.of(located.slot) as usize].usage == Use::Victim
        });
        self.reclaim.found.extend(victims);
    }

    /// Whether a block that clients wrote is read no more often, lately, than one that they read.
    /// Most are never read before they are written again.
    fn written_first(&mut self) -> bool {
        let mut live = [0; 2];
        self.work.did(self.segments.units.len());
        for unit in &self.segments.units {
            live[usize::from(unit.dirty_class)] += u64::from(unit.live);
        }
        let [read, written] = self.reclaim.hits.map(u128::from);
        if read + written > u128::from(live[0] + live[1]) {
            self.reclaim.hits = self.reclaim.hits.map(|hits| hits / 2);
        }
        written * u128::from(live[0]) <= read * u128::from(live[1])
    }

    fn candidates(&self) -> impl Iterator<Item = (u32, Candidate)> + '_ {
        self.work.did(self.segments.units.len());
        (0..).zip(&self.segments.units).filter_map(move |(id, unit)| {
            let ready = unit.usage == Use::Sealed && unit.inflight == 0;
            ready.then(|| {
                let blocks = self.segments.room_in(id);
                let Unit { live, dirty, order, dirty_class: written, .. } = *unit;
                (id, Candidate { live, dirty, blocks, order, written })
            })
        })
    }

    /// Looks for the victims' blocks in a slice of the index.
    fn victims_scan(&mut self) {
        let Some(from) = self.reclaim.scan else { return };
        let to = from + self.tuning.scan_buckets;
        let mut found = std::mem::take(&mut self.reclaim.found);
        let segments = &self.segments;
        let of_victim =
            |slot: Slot| segments.units[segments.of(slot) as usize].usage == Use::Victim;
        self.work.did(to.min(self.index.bucket_count()) - from);
        self.index.scan_slots(from, to, of_victim, |key, located| found.push((key, located)));
        let moved = self.index.take_moved();
        found.extend(moved.iter().filter(|(_, located)| of_victim(located.slot)));
        if self.checkpoint.scanning() {
            self.checkpoint.placed.extend(moved.iter().map(|&(key, _)| key));
        }
        self.reclaim.found = found;
        if to < self.index.bucket_count() {
            self.reclaim.scan = Some(to);
            return;
        }
        self.reclaim.scan = None;
        self.index.track_moves(self.checkpoint.scanning());
        self.keep_or_drop();
    }

    /// Decides for each block of the victims. Those to drop stay in `found` until the segment is
    /// empty.
    fn keep_or_drop(&mut self) {
        self.work.did(self.reclaim.found.len());
        self.reclaim.found.sort_unstable_by_key(|&(_, located)| located.slot);
        self.reclaim.found.dedup();
        for at in 0..self.reclaim.found.len() {
            let (key, located) = self.reclaim.found[at];
            if self.index.get(key) != Some(located) {
                continue;
            }
            let segment = self.segments.of(located.slot);
            let choice =
                self.reclaim.victims.iter().find(|v| v.segment == segment).map(|v| v.choice);
            let dirty = self.dirty.get(located.slot as usize);
            let hot = choice == Some(Choice::Clean) || self.referenced.get(located.slot as usize);
            let drop_dirty = self.is(Mutant::ReclaimDropsDirty);
            if (dirty && !drop_dirty) || (hot && self.room.units_for(Purpose::Clean) > 0)
            {
                self.reclaim.moves.push_back((key, located));
            }
        }
    }

    fn victims_move(&mut self) {
        while self.reclaim.moving < MOVES_IN_FLIGHT_MAX {
            let Some((key, located)) = self.reclaim.moves.pop_front() else { return };
            if self.index.get(key) != Some(located) {
                continue;
            }
            self.reclaim.moving += 1;
            self.move_read(key, located, 0);
        }
    }

    fn move_read(&mut self, key: Key, located: Located, tries: u8) {
        // A victim is not used again before its moves have ended: no pin is needed.
        let (device, offset) = self.place_of(located.slot, tries);
        let buf = self.pool.take(BLOCK_SIZE);
        let op = self.op(Op::Move { key, located, tries });
        self.out.push(Effect::Read { op, target: Target::Cache(device), offset, buf });
    }

    pub(crate) fn move_done(
        &mut self,
        key: Key,
        located: Located,
        tries: u8,
        result: Result<(), IoError>,
        buf: Buf,
    ) {
        if self.index.get(key) != Some(located) {
            self.reclaim.moving -= 1;
            return self.pool.give(buf);
        }
        let dirty = self.dirty.get(located.slot as usize);
        if result.is_err() || checksum(buf.bytes()) != located.crc {
            self.pool.give(buf);
            if tries + 1 < CACHE_READ_TRIES {
                return self.move_read(key, located, tries + 1);
            }
            self.reclaim.moving -= 1;
            self.count_bad(key, dirty);
            if dirty {
                self.reclaim.lost.push(self.segments.of(located.slot));
            }
            return;
        }
        let mask = self.mask(located.slot);
        let (point, kind, purpose) = match dirty {
            true => (Point::Dirty, EntryKind::Dirty, Purpose::Move),
            false => (Point::Reinsert, EntryKind::Clean, Purpose::Clean),
        };
        let room = self.append(point, key, buf.bytes(), kind, mask, purpose);
        self.pool.give(buf);
        self.reclaim.moving -= 1;
        if room.is_none() && dirty {
            self.victims_give_up();
        }
    }

    /// There is no room to move dirty blocks: their segments wait for writeback, the others go on.
    fn victims_give_up(&mut self) {
        self.reclaim.starves = true;
        self.reclaim.moves.clear();
        let units = &mut self.segments.units;
        self.reclaim.victims.retain(|victim| {
            let segment = &mut units[victim.segment as usize];
            if segment.dirty > 0 {
                segment.usage = Use::Sealed;
            }
            segment.dirty == 0
        });
    }

    /// Nothing is left to move: the segments are empty.
    fn victims_empty(&mut self) {
        let busy = self.reclaim.scan.is_some()
            || self.reclaim.moving > 0
            || !self.reclaim.moves.is_empty();
        if self.reclaim.victims.is_empty() || busy {
            return;
        }
        let found = std::mem::take(&mut self.reclaim.found);
        let lost = std::mem::take(&mut self.reclaim.lost);
        for victim in std::mem::take(&mut self.reclaim.victims) {
            let id = victim.segment;
            if lost.contains(&id) {
                // It holds a dirty block that cannot be read: to be answered with an error for
                // ever.
                self.segments.units[id as usize].usage = Use::Lost;
                continue;
            }
            self.victim_empty(id, &found);
        }
    }

    fn victim_empty(&mut self, id: UnitId, found: &[(Key, Located)]) {
        let generation = u64::from(self.segments.units[id as usize].generation);
        let first = self.segments.first_of(id);
        let dseq = if self.is(Mutant::NoSegmentFree) {
            0
        } else {
            self.note(EntryKind::SegmentFree, VolumeId(0), u64::from(first), generation)
        };
        let last = self.segments.segments_of(id).last().expect("a unit has a segment");
        let slots = self.segments.slot(first, 0)..self.segments.slot(last + 1, 0);
        let from = found.partition_point(|&(_, located)| located.slot < slots.start);
        let inside = found[from..].iter().take_while(|(_, located)| located.slot < slots.end);
        let mut dropped = true;
        for &(key, located) in inside {
            if self.index.get(key) == Some(located) {
                assert!(
                    !self.dirty.get(located.slot as usize) || self.is(Mutant::ReclaimDropsDirty),
                    "I4: reclaim keeps what is dirty"
                );
                self.forget(key);
            } else {
                dropped = false;
            }
        }
        self.stats.segments_dropped += u64::from(dropped);
        self.stats.segments_cleaned += u64::from(!dropped);
        self.room.empty(&mut self.segments, id, dseq);
    }
}
