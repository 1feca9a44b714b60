//! Units are emptied: which, when, and what is said of them.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Dseq, Key, SegmentId, Seq, Slot, UnitId};
use crate::index::Located;
use crate::limits::*;
use crate::log::Point;
use crate::policy::eviction::{Bounds, Candidate, Choice, choose};
use crate::reclaim::Victim;
use crate::segment::{Reservation, Unit, Use};
use forebay_format::record::EntryKind;
use std::collections::VecDeque;

impl Engine {
    pub(crate) fn free_wanted(&self) -> usize {
        self.segments.leaves_to_clean() + (self.segments.dirty_units() / 32).clamp(2, 64)
    }

    /// See `parts.rs`.
    pub(crate) fn reclaim_progress(&self) -> [u64; 4] {
        let [a, b] = self.reclaim.progress();
        [self.segments.free_all() as u64, self.segments.emptied().len() as u64, a, b]
    }

    pub(crate) fn reclaim_more(&mut self) {
        let (mut durable, mut older) = (self.log.durable_dseq(), self.pool.older());
        if self.is(Mutant::ReuseBeforeDurable) {
            durable = Dseq::MAX;
        } else if self.is(Mutant::ReuseBeforeCheckpoint) {
            older.seq = Seq::MAX;
        }
        let pins = self.is(Mutant::PinnedFreed).then(|| self.segments.take_pins());
        let freed = self.segments.release(durable, older);
        pins.into_iter().for_each(|pins| self.segments.put_pins(&pins));
        if freed > 0 && self.is(Mutant::FreeTwice) {
            self.segments.count_twice();
        }
        if freed > 0 {
            self.reclaim.starves = false;
            self.reclaim
                .pressure
                .gained(self.io.now(), freed as u64 * u64::from(self.segments.blocks()));
        }
        if let Some(dseq) = self.segments.undurable_emptied(self.log.durable_dseq())
            && (self.segments.free() < self.free_wanted() || self.segments.gives_back())
        {
            self.want_durable(dseq);
        }
        self.half_ended();
        if self.reclaim.victims.is_empty() {
            self.victims_choose();
            self.victims_dead();
            self.victims_half();
        }
        self.victims_read();
        self.victims_scan();
        self.victims_move();
        self.victims_empty();
    }

    fn victims_choose(&mut self) {
        let soon = self.segments.free() + self.segments.coming();
        let wanted = self.free_wanted();
        let dirty_room = soon < wanted;
        // To empty what holds clean data only takes entries too, and gives no room for any back.
        let clean_room = self.segments.lacks_clean() && self.room_for_entries();
        if !dirty_room && !clean_room {
            self.reclaim.starves = false;
            return;
        }
        self.lost_segments();
        let least = self.segments.leaves_to_clients();
        let short = wanted.saturating_sub(soon).min(wanted - least) as u32;
        let critical = 2 * short as usize > wanted - least;
        if critical && self.reclaim.starves {
            // No clean block is admitted now: what is open for them may be emptied too.
            for point in [Point::Fill, Point::Reinsert] {
                self.send(point);
                self.seal(point);
            }
        }
        // Dirty blocks had better go home than be moved; but where room is short, moving must help,
        // and more so where an origin fails. What frees little for what it moves would go round in
        // circles.
        let blocks = self.segments.blocks();
        let most = match self.reclaim.starves && self.origins_fail() {
            true => blocks / 8 * 7,
            false => blocks / 8 + blocks * 5 / 8 * short / (wanted - least) as u32,
        };
        let written_first = self.written_first();
        for n in 0..VICTIMS_MAX {
            if n > 0 && self.io.is_enough() {
                break; // Each choice looks at all units.
            }
            // Moving costs room before it gives any.
            let room = self.room_for_moves();
            let bounds = Bounds {
                dirty_max: room.min(most),
                moves_max: if critical { 0 } else { room },
                written_first,
                cheapest: critical,
            };
            let Some((unit, choice)) = choose(self.candidates(dirty_room), bounds) else { break };
            let live = self.segments.unit(unit).live > 0;
            if live && self.victims_are_dead() {
                break; // The dead ones on their own: nothing has to be read.
            }
            // What clients read has to go: from now on not everything is worth a place.
            let Unit { dirty_class, dirty, .. } = *self.segments.unit(unit);
            if live && choice == Choice::Evict && !dirty_class {
                self.map.was_full();
            }
            self.segments.becomes(unit, Use::Victim);
            let room = self.segments.reserve(dirty);
            let segments = match live {
                true => self.segments.segments_of(unit).collect(),
                false => VecDeque::new(),
            };
            self.victim_begin(unit, choice, segments, room);
        }
        self.reclaim.starves = dirty_room && self.reclaim.victims.is_empty();
    }

    /// What is emptied though nobody wants room: it costs no more than the words that say so.
    fn victims_dead(&mut self) {
        let generation = self.checkpoint_generation();
        while self.victims_are_dead() || self.reclaim.victims.is_empty() {
            if self.reclaim.victims.len() >= VICTIMS_MAX || !self.room_for_entries() {
                return;
            }
            let Some(unit) = self.segments.dead_to_empty(generation) else { return };
            self.segments.becomes(unit, Use::Victim);
            let room = self.segments.reserve(0);
            self.victim_begin(unit, Choice::Evict, VecDeque::new(), room);
        }
    }

    pub(super) fn victim_begin(
        &mut self,
        unit: UnitId,
        choice: Choice,
        mut segments: VecDeque<SegmentId>,
        room: Reservation,
    ) {
        if self.segments.unit(unit).dirty_class {
            segments.truncate(1);
        }
        self.reclaim.victims.push(Victim {
            unit,
            choice,
            segments,
            at: 0,
            reading: false,
            room,
            moves: 0,
            drops: Vec::new(),
            said: None,
            lost: false,
        });
    }

    /// Blocks that moves of dirty blocks could append now, beside those that are promised.
    pub(super) fn room_for_moves(&self) -> u32 {
        self.segments.room_for_moves(self.left_in_open())
    }

    /// Units that held dirty blocks which nobody could read come back when these are gone. A device
    /// of which too much cannot be read has failed: writers must not wait for room that never
    /// comes.
    fn lost_segments(&mut self) {
        let mut lost = vec![0; self.segments.devices().len()];
        self.io.did(self.segments.units().len() / UNITS_PER_STEP);
        for unit in self.segments.unit_ids() {
            let Unit { usage, dirty, .. } = *self.segments.unit(unit);
            if usage != Use::Lost {
                continue;
            }
            if dirty == 0 {
                self.segments.becomes(unit, Use::Sealed);
            } else {
                let segments = self.segments.segments_of(unit);
                segments.for_each(|it| lost[usize::from(self.segments.device_of(it).0)] += 1);
            }
        }
        for (device, lost) in (0..).zip(lost) {
            if lost > self.segments.devices()[usize::from(device)].count / LOST_SEGMENTS_SHARE {
                self.device_failed(DeviceId(device), LOST_SEGMENTS);
            }
        }
    }

    /// Whether there are victims and nothing lives in any of them.
    fn victims_are_dead(&self) -> bool {
        let mut victims = self.reclaim.victims.iter();
        !self.reclaim.victims.is_empty()
            && victims.all(|victim| self.segments.unit(victim.unit).live == 0)
    }

    pub(crate) fn reclaim_scanning(&self) -> bool {
        self.reclaim.scan.is_some()
    }

    /// Entries that moved in the index while another scan was looking.
    pub(crate) fn reclaim_saw(&mut self, moved: &[(Key, Located)]) {
        for &(key, located) in moved {
            self.found_by_scan(key, located);
        }
    }

    /// Whether a block that clients wrote is read no more often, lately, than one that they read.
    /// Most are never read before they are written again.
    fn written_first(&mut self) -> bool {
        let mut live = [0; 2];
        self.io.did(self.segments.units().len() / UNITS_PER_STEP);
        for unit in self.segments.units() {
            live[usize::from(unit.dirty_class)] += u64::from(unit.live);
        }
        let [read, written] = self.reclaim.hits.map(u128::from);
        if read + written > u128::from(live[0] + live[1]) {
            self.reclaim.hits = self.reclaim.hits.map(|hits| hits / 2);
        }
        written * u128::from(live[0]) <= read * u128::from(live[1])
    }

    /// The units that may be emptied: those that then may hold dirty data, or the others.
    fn candidates(&self, dirty_room: bool) -> impl Iterator<Item = (UnitId, Candidate)> + '_ {
        self.io.did(self.segments.units().len() / UNITS_PER_STEP);
        self.segments.numbered().filter_map(move |(id, unit)| {
            let helps = self.segments.may_hold_dirty(id) == dirty_room;
            let ready = helps && unit.usage == Use::Sealed && unit.inflight == 0;
            ready.then(|| {
                let blocks = self.segments.room_in(id);
                let Unit { live, dirty, order, dirty_class: written, .. } = *unit;
                (id, Candidate { live, dirty, blocks, order, written })
            })
        })
    }

    pub(super) fn victim(&mut self, unit: UnitId) -> Option<&mut Victim> {
        self.reclaim.victims.iter_mut().find(|victim| victim.unit == unit)
    }

    /// A victim holds blocks that no record names: a header is damaged.
    fn victims_scan_begin(&mut self) {
        self.reclaim.scan = Some(0);
        self.track_moves();
    }

    /// Looks in a slice of the index for blocks of victims that no header named.
    fn victims_scan(&mut self) {
        let Some(from) = self.reclaim.scan else { return };
        let to = from + self.tuning().scan_buckets;
        let mut found = Vec::new();
        let segments = &self.segments;
        let of_victim = |slot: Slot| segments.unit_at(slot).usage == Use::Victim;
        self.io.did((to.min(self.map.bucket_count()) - from) * SEEN_BUCKET_STEPS);
        self.map.scan_slots(from, to, of_victim, |key, located| found.push((key, located)));
        for (key, located) in found {
            self.found_by_scan(key, located);
        }
        self.moves_seen();
        self.reclaim.scan = (to < self.map.bucket_count()).then_some(to);
        if self.reclaim.scan.is_none() {
            self.track_moves();
        }
    }

    fn found_by_scan(&mut self, key: Key, located: Located) {
        let unit = self.segments.of(located.slot);
        let victim = self.segments.unit(unit).usage == Use::Victim;
        if !victim || self.map.get(key) != Some(located) {
            return;
        }
        self.keep_or_drop(unit, key, located);
    }

    /// There is no room to move dirty blocks: their units wait for writeback, the others go on.
    pub(super) fn victims_give_up(&mut self) {
        self.reclaim.starves = true;
        let segments = &mut self.segments;
        self.reclaim.victims.retain(|victim| {
            let dirty = segments.unit(victim.unit).dirty > 0;
            if dirty {
                segments.becomes(victim.unit, Use::Sealed);
            }
            !dirty
        });
        let of_victim = |located: &Located| segments.unit_at(located.slot).usage == Use::Victim;
        self.reclaim.moves.retain(|(_, located)| of_victim(located));
    }

    /// Victims of which nothing is left to move are empty.
    fn victims_empty(&mut self) {
        if self.reclaim.scan.is_some() {
            return;
        }
        let Some(at) = self.reclaim.victims.iter().position(Victim::is_read) else { return };
        let victim = &self.reclaim.victims[at];
        let unit = victim.unit;
        if victim.said.is_some() {
            return self.victim_drop(at);
        }
        if victim.lost {
            // It holds a dirty block that cannot be read: to be answered with an error for ever.
            self.segments.becomes(unit, Use::Lost);
        } else if self.segments.unit(unit).dirty > 0 && !self.is(Mutant::ReclaimDropsDirty) {
            return self.victims_scan_begin();
        }
        if self.is(Mutant::PromiseKept) {
            self.segments.keep_promise(&mut self.reclaim.victims[at].room);
        }
        if self.reclaim.victims[at].lost {
            self.reclaim.victims.swap_remove(at);
            return;
        }
        self.victim_say(at);
        self.victim_drop(at);
    }

    /// The log says that a victim is empty.
    fn victim_say(&mut self, at: usize) {
        let unit = self.reclaim.victims[at].unit;
        let generation = u64::from(self.segments.unit(unit).generation);
        let dseq = if self.is(Mutant::NoSegmentFree) {
            Dseq::NONE
        } else {
            let segment = u64::from(self.segments.first_of(unit).raw());
            self.note(EntryKind::SegmentFree, VolumeId(0), segment, generation)
        };
        let victim = &mut self.reclaim.victims[at];
        victim.said = Some(dseq);
        self.reclaim.emptied[usize::from(victim.drops.is_empty())] += 1;
    }

    /// A slice of the blocks that go with a victim leaves the index. No checkpoint begins before
    /// the last has left: it would bring them back without the word that ended them.
    fn victim_drop(&mut self, at: usize) {
        self.reclaim.steps += 1;
        let most = self.ends_max();
        let drops = &mut self.reclaim.victims[at].drops;
        let slice = drops.split_off(drops.len().saturating_sub(most));
        self.io.did(2 * slice.len());
        for (key, located) in slice {
            if self.map.get(key) == Some(located) {
                let dirty = self.map.is_dirty(located.slot);
                assert!(
                    !dirty || self.is(Mutant::ReclaimDropsDirty),
                    "I4: reclaim keeps what is dirty"
                );
                self.forget(key);
            }
        }
        let Victim { unit, said, ref drops, .. } = self.reclaim.victims[at];
        if drops.is_empty() && self.segments.unit(unit).live > 0 {
            self.victims_scan_begin();
        } else if drops.is_empty() {
            self.reclaim.victims.swap_remove(at);
            let said = said.expect("it was said");
            let checkpoint = self.checkpoint_generation();
            self.segments.empty(unit, said, checkpoint);
        }
    }
}
