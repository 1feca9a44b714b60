//! Units that are free, and giving the space of freed ones to the device ahead of their next use.
//!
//! A flash device that is told that bytes are dead need not copy them when it cleans up. One unit
//! at a time, for a share of the time, and only of those that nobody waits for; while the device is
//! told, the unit cannot be opened.

use crate::event::{DeviceId, Time};
use crate::ids::{SegmentId, UnitId};
use crate::limits::{DEAD_MIN, DEAD_SHARE, DISCARD_REST};
use crate::segment::{Purpose, Segments, Unit, Use};
use forebay_format::BLOCK_SIZE;
use std::collections::VecDeque;

/// Free units, oldest first: those whose space the device has, or need not have, before the others.
#[derive(Debug, Default)]
pub(super) struct FreeUnits {
    units: VecDeque<UnitId>,
    /// So many of them, from the front.
    given: usize,
}

/// The unit of which the devices are being told.
#[derive(Debug)]
struct Giving {
    unit: UnitId,
    /// Devices that have not answered.
    left: usize,
    since: Time,
    /// See [`Segments::discard_begin`].
    leaves: bool,
}

/// How far freeing much that is dead has come.
#[derive(Debug, Clone, Copy)]
enum Frees {
    /// Some has not been emptied.
    Empties,
    /// All was when this was the generation of the last checkpoint, or of the one under way.
    Emptied(u64),
}

/// Giving space back.
#[derive(Debug, Default)]
pub(super) struct Discards {
    giving: Option<Giving>,
    rest_until: Time,
    /// Devices took so many bytes, each its own.
    bytes: u64,
    /// Units that were full and dead at some time, on devices that are told.
    dead: Vec<UnitId>,
    frees: Option<Frees>,
}

impl FreeUnits {
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = UnitId> + '_ {
        self.units.iter().copied()
    }

    /// One became free.
    pub(super) fn push(&mut self, unit: UnitId) {
        self.units.push_back(unit);
    }

    /// The unit at a place is taken out.
    pub(super) fn remove(&mut self, at: usize) -> Option<UnitId> {
        self.given -= usize::from(at < self.given);
        self.units.remove(at)
    }

    pub(super) fn retain(&mut self, mut keeps: impl FnMut(UnitId) -> bool) {
        let given = self.iter().take(self.given).filter(|&unit| keeps(unit)).count();
        self.units.retain(|&unit| keeps(unit));
        self.given = given;
    }

    /// Nothing of what is free now is given.
    fn leave_all(&mut self) {
        self.given = self.units.len();
    }

    /// The devices have the space of a unit.
    fn put_given(&mut self, unit: UnitId) {
        self.units.insert(self.given, unit);
        self.given += 1;
    }

    /// The first of which nobody was told, if more than so many stay without it.
    fn first_kept(&self, stay: usize) -> Option<UnitId> {
        if self.len() <= stay {
            return None;
        }
        self.units.get(self.given).copied()
    }
}

impl Unit {
    /// Whether it is full, and nothing in it lives.
    fn is_dead(&self) -> bool {
        self.usage == Use::Sealed && self.live == 0
    }
}

impl Segments {
    /// A unit has changed: if it is dead now, its space could be given back.
    pub(super) fn may_be_dead(&mut self, unit: UnitId) {
        if self.unit(unit).is_dead() && self.is_told(unit) {
            self.room.discards.dead.push(unit);
        }
    }

    /// Whether what is emptied should be free soon though nobody wants room.
    pub fn gives_back(&self) -> bool {
        self.room.discards.frees.is_some()
    }

    /// A dead unit to be emptied though nobody wants room: where much is dead, as after a volume
    /// was removed, the devices get its space back. `generation` is that of the last checkpoint, or
    /// of the one under way.
    pub fn dead_to_empty(&mut self, generation: u64) -> Option<UnitId> {
        let waits = |unit: &&UnitId, since| self.unit(**unit).emptied_by(since);
        let frees = match self.room.discards.frees {
            Some(Frees::Empties) => Some(Frees::Empties),
            _ if self.much_is_dead() => Some(Frees::Empties),
            Some(Frees::Emptied(since)) => {
                let left = self.emptied().iter().any(|unit| waits(&unit, since));
                left.then_some(Frees::Emptied(since))
            }
            None => None,
        };
        let next = matches!(frees, Some(Frees::Empties)).then(|| self.take_dead()).flatten();
        self.room.discards.frees = match (frees, next) {
            (Some(Frees::Empties), None) => Some(Frees::Emptied(generation)),
            _ => frees,
        };
        next
    }

    fn much_is_dead(&self) -> bool {
        let units = self.units().len();
        self.room.discards.dead.len() >= (units / DEAD_SHARE).max(DEAD_MIN)
    }

    fn take_dead(&mut self) -> Option<UnitId> {
        while let Some(unit) = self.room.discards.dead.pop() {
            // Since then it may have been emptied, and even filled again.
            if self.unit(unit).is_dead() && self.unit(unit).inflight == 0 {
                return Some(unit);
            }
        }
        None
    }

    fn is_told(&self, unit: UnitId) -> bool {
        self.segments_of(unit).any(|segment| self.discards(segment))
    }

    /// What a start found free is not given: the one before did that, or it was never used.
    pub fn leave_found(&mut self) {
        self.room.free.leave_all();
        self.room.free_clean.leave_all();
    }

    /// A unit became free.
    pub(super) fn put_free(&mut self, unit: UnitId, given: bool) {
        let given = given || !self.is_told(unit);
        let list = match (self.usable(unit), self.may_hold_dirty(unit)) {
            (false, _) => return,
            (true, true) => &mut self.room.free,
            (true, false) => &mut self.room.free_clean,
        };
        match given {
            true => list.put_given(unit),
            false => list.push(unit),
        }
    }

    fn discards(&self, segment: SegmentId) -> bool {
        self.healthy(segment) && self.devices[usize::from(self.device_of(segment).0)].discards
    }

    /// The bytes of a freed unit that the devices are to be told of now: each device, first byte
    /// and length. They are free for nobody before [`Segments::discard_ended`] of each of them; but
    /// a planted bug `leaves` them to whoever comes.
    pub fn discard_begin(&mut self, now: Time, leaves: bool) -> Vec<(DeviceId, u64, u64)> {
        let Some(unit) = self.discard_next().filter(|_| now >= self.room.discards.rest_until)
        else {
            return Vec::new();
        };
        let of_all = self.may_hold_dirty(unit);
        let list = if of_all { &mut self.room.free } else { &mut self.room.free_clean };
        if !leaves {
            list.remove(list.given);
        }
        let bytes = self.segment_bytes();
        let told: Vec<_> = self
            .segments_of(unit)
            .filter(|&segment| self.discards(segment))
            .map(|segment| self.locate(self.slot(segment, 0)))
            .map(|(device, offset)| (device, offset, bytes))
            .collect();
        self.room.discards.giving = Some(Giving { unit, left: told.len(), since: now, leaves });
        if told.is_empty() {
            self.discard_is_over(now); // Nobody wants to know any more.
        }
        told
    }

    /// What is left for clean data stays, and is not short.
    fn discard_next(&self) -> Option<UnitId> {
        let room = &self.room;
        let of_all = || room.free.first_kept(self.leaves(Purpose::Clean) + 2);
        let next = of_all().or_else(|| room.free_clean.first_kept(2));
        next.filter(|_| room.discards.giving.is_none())
    }

    /// When the next unit could be given, if one waits for that.
    pub fn discard_due(&self) -> Option<Time> {
        self.discard_next().map(|_| self.room.discards.rest_until)
    }

    /// A device has answered. One that refuses is not asked again.
    pub fn discard_ended(&mut self, device: DeviceId, done: bool, now: Time) {
        self.devices[usize::from(device.0)].discards &= done;
        self.room.discards.bytes += u64::from(done) * self.segment_bytes();
        let giving = self.room.discards.giving.as_mut().expect("one is being given");
        giving.left -= 1;
        if giving.left == 0 {
            self.discard_is_over(now);
        }
    }

    fn discard_is_over(&mut self, now: Time) {
        let Some(giving) = self.room.discards.giving.take() else { return };
        self.room.discards.rest_until = now + DISCARD_REST * (now - giving.since);
        if !giving.leaves {
            self.put_free(giving.unit, true);
        }
    }

    fn segment_bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_SIZE as u64
    }

    /// Bytes that devices took back.
    pub fn discarded_bytes(&self) -> u64 {
        self.room.discards.bytes
    }

    /// The unit that is being given.
    pub fn discarding(&self) -> Option<UnitId> {
        self.room.discards.giving.as_ref().map(|giving| giving.unit)
    }
}
