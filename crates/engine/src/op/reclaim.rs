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
use crate::segment::{SegmentId, Use};
use forebay_format::record::EntryKind;
use forebay_format::{BLOCK_SIZE, checksum};
use std::collections::VecDeque;

#[derive(Debug)]
struct Victim {
    segment: SegmentId,
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
    lost: Vec<SegmentId>,
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
        (self.segments.table.len() / 32).clamp(SEGMENTS_FOR_FILLS + 2, 64)
    }

    pub(crate) fn reclaim_more(&mut self) {
        let (durable, forgotten) =
            match (self.is(Mutant::ReuseBeforeDurable), self.is(Mutant::ReuseBeforeCheckpoint)) {
                (true, _) => (u64::MAX, self.forgotten_seq()),
                (_, true) => (self.log.durable_dseq, u64::MAX),
                _ => (self.log.durable_dseq, self.forgotten_seq()),
            };
        if self.segments.release(durable, forgotten) > 0 {
            self.reclaim.starves = false;
        }
        if let Some(dseq) = self.segments.undurable_emptied(self.log.durable_dseq)
            && self.segments.free_pairs() < self.free_wanted()
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
        let soon = self.segments.emptied.len();
        let enough = self.segments.free_count() + soon >= self.free_wanted();
        let pairs = self.segments.free_pairs() + soon / 2 >= self.free_wanted();
        if (enough && pairs) || self.segments.free_count() >= 2 * self.free_wanted() {
            self.reclaim.starves = false;
            return;
        }
        self.lost_segments();
        let critical = self.segments.free_count() + soon <= SEGMENTS_FOR_FILLS;
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
            let live = self.segments.table[segment as usize].live > 0;
            if live && self.victims_are_dead() {
                break; // The dead ones on their own: nothing in the index needs to be looked for.
            }
            let victim = &mut self.segments.table[segment as usize];
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
            None => open.map_or(blocks, |id| self.segments.table[id as usize].end + 1),
        };
        let left = blocks.saturating_sub(end);
        match self.segments.free_pairs().checked_sub(SEGMENTS_FOR_ENTRIES) {
            Some(free) => left + free as u32 * (blocks - 1),
            None => left.saturating_sub(blocks / 2),
        }
    }

    /// Segments that held dirty blocks which nobody could read come back when these are gone. A
    /// device of which too much cannot be read has failed: writers must not wait for room that
    /// never comes.
    fn lost_segments(&mut self) {
        for index in 0..self.segments.devices.len() {
            let device = &self.segments.devices[index];
            let (base, count) = (device.base, device.count);
            let mut lost = 0;
            for segment in &mut self.segments.table[base as usize..(base + count) as usize] {
                if segment.usage == Use::Lost && segment.dirty == 0 {
                    segment.usage = Use::Sealed;
                }
                lost += u32::from(segment.usage == Use::Lost);
            }
            if lost > count / LOST_SEGMENTS_SHARE {
                self.device_failed(DeviceId(index as u8), LOST_SEGMENTS);
            }
        }
    }

    /// Whether there are victims and nothing lives in any of them.
    fn victims_are_dead(&self) -> bool {
        let mut victims = self.reclaim.victims.iter();
        !self.reclaim.victims.is_empty()
            && victims.all(|victim| self.segments.table[victim.segment as usize].live == 0)
    }

    pub(crate) fn reclaim_scanning(&self) -> bool {
        self.reclaim.scan.is_some()
    }

    /// Entries that moved in the index while another scan was looking.
    pub(crate) fn reclaim_saw(&mut self, moved: &[(Key, Located)]) {
        let segments = &self.segments;
        let victims = moved.iter().filter(|(_, located)| {
            segments.table[segments.of(located.slot) as usize].usage == Use::Victim
        });
        self.reclaim.found.extend(victims);
    }

    /// Whether a block that clients wrote is read no more often, lately, than one that they read.
    /// Most are never read before they are written again.
    fn written_first(&mut self) -> bool {
        let mut live = [0; 2];
        for segment in &self.segments.table {
            live[usize::from(segment.dirty_class)] += u64::from(segment.live);
        }
        let [read, written] = self.reclaim.hits.map(u128::from);
        if read + written > u128::from(live[0] + live[1]) {
            self.reclaim.hits = self.reclaim.hits.map(|hits| hits / 2);
        }
        written * u128::from(live[0]) <= read * u128::from(live[1])
    }

    fn candidates(&self) -> impl Iterator<Item = (u32, Candidate)> + '_ {
        self.work.did(self.segments.table.len());
        let blocks = self.segments.blocks;
        (0..).zip(&self.segments.table).filter_map(move |(id, segment)| {
            let ready = segment.usage == Use::Sealed && segment.inflight == 0;
            ready.then_some((
                id,
                Candidate {
                    live: segment.live,
                    dirty: segment.dirty,
                    blocks,
                    order: segment.order,
                    written: segment.dirty_class,
                },
            ))
        })
    }

    /// Looks for the victims' blocks in a slice of the index.
    fn victims_scan(&mut self) {
        let Some(from) = self.reclaim.scan else { return };
        let to = from + self.tuning.scan_buckets;
        let mut found = std::mem::take(&mut self.reclaim.found);
        let segments = &self.segments;
        let of_victim =
            |slot: Slot| segments.table[segments.of(slot) as usize].usage == Use::Victim;
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
            if (dirty && !drop_dirty) || (hot && self.may_open(Point::Reinsert, SEGMENTS_FOR_FILLS))
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
        let from = self.copy_for(located.slot, tries);
        let slot = self.segments.slot(from, located.slot % self.segments.blocks);
        let (device, offset) = self.segments.locate(slot);
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
        let last = self.segments.free_pairs() == 0 && self.room_for_moves() > 0;
        let (point, kind, reserved) = match dirty {
            true if last => (Point::Dirty, EntryKind::Dirty, 0),
            true => (Point::Dirty, EntryKind::Dirty, SEGMENTS_FOR_ENTRIES),
            false => (Point::Reinsert, EntryKind::Clean, SEGMENTS_FOR_FILLS),
        };
        let room = self.append(point, key, buf.bytes(), kind, mask, reserved);
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
        let table = &mut self.segments.table;
        self.reclaim.victims.retain(|victim| {
            let segment = &mut table[victim.segment as usize];
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
                self.segments.table[id as usize].usage = Use::Lost;
                continue;
            }
            self.victim_empty(id, &found);
        }
    }

    fn victim_empty(&mut self, id: SegmentId, found: &[(Key, Located)]) {
        let generation = u64::from(self.segments.table[id as usize].generation);
        let dseq = if self.is(Mutant::NoSegmentFree) {
            0
        } else {
            self.note(EntryKind::SegmentFree, VolumeId(0), u64::from(id), generation)
        };
        let first = self.segments.slot(id, 0);
        let blocks = self.segments.blocks;
        let from = found.partition_point(|&(_, located)| located.slot < first);
        let inside =
            found[from..].iter().take_while(|&&(_, located)| located.slot < first + blocks);
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
        self.segments.empty(id, dseq);
    }
}
