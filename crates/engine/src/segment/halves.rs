//! I16. Halves: units of which a segment holds nothing of their life, because its device took the
//! place of another one since it began. They stay as they are until they are emptied; what is
//! opened from then on is whole.
//!
//! A life of a unit is before a device came or after it, as a whole: what is open then is closed.
//! So a record tells of all its life, and what a start knows of a unit is enough.

use crate::event::DeviceId;
use crate::ids::{SegmentId, Seq, UnitId};
use crate::segment::since::Since;
use crate::segment::{Segments, Use};
use forebay_format::record::RecordHeader;

/// How often dirty blocks are there.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DirtyCopies {
    /// Twice: one device may fail.
    pub two: u64,
    /// Once, or not at all.
    pub one: u64,
}

impl Segments {
    /// A planted bug: nobody sees which segments hold nothing.
    pub(crate) fn see_no_halves(&mut self) {
        self.halves_unseen = true;
    }

    fn since(&self, segment: SegmentId) -> Option<Since> {
        self.devices[usize::from(self.device_of(segment).0)].since
    }

    fn lacks(&self, segment: SegmentId) -> bool {
        let unit = self.unit_of(segment);
        let which = usize::from(segment != self.first_of(unit));
        self.halves > 0 && self.unit(unit).lacks[which] && !self.halves_unseen
    }

    /// Whether a segment can be read, and holds what it should of this life of its unit.
    pub fn holds(&self, segment: SegmentId) -> bool {
        self.healthy(segment) && !self.lacks(segment)
    }

    /// Whether this segment came, with its device, since its unit began the life that it is in.
    pub fn came_later(&self, segment: SegmentId) -> bool {
        self.lacks(segment)
    }

    /// Whether a segment should hold a record of this number, which was written to its unit.
    pub fn should_hold(&self, segment: SegmentId, seq: Seq) -> bool {
        self.healthy(segment) && self.since(segment).is_none_or(|since| seq > since.seq)
    }

    /// Whether what looks like a record in a segment may have been written since its device came:
    /// else it is of what the device was before.
    pub fn may_hold(&self, segment: SegmentId, header: &RecordHeader) -> bool {
        let of = (header.epoch.get(), Seq::of(header.seq.get()));
        self.since(segment).is_none_or(|since| of > (since.epoch, since.seq))
    }

    /// Whether the device of a segment came behind this record of the log.
    pub fn came_behind(&self, segment: SegmentId, seq: Seq) -> bool {
        self.since(segment).is_some_and(|since| since.seq > seq)
    }

    /// The last record that is missing on some device because that came later.
    pub fn joined_seq(&self) -> Seq {
        let all = self.devices.iter().filter_map(|device| device.since);
        all.map(|since| since.seq).fold(Seq::default(), Seq::max)
    }

    /// Whether some segment that can be read does not hold all that it should, or cannot be read.
    pub fn incomplete(&self) -> bool {
        self.halves > 0 || self.degraded()
    }

    /// Whether there are units of which a segment holds nothing.
    pub fn has_halves(&self) -> bool {
        self.halves > 0
    }

    /// What is in a unit can be read, from some copy. (Of two halves: from one of them.)
    pub fn has_copy(&self, unit: UnitId) -> bool {
        self.segments_of(unit).any(|segment| self.holds(segment))
    }

    /// Whether what a device holds counts: it is of the pool.
    pub fn counts(&self, device: DeviceId) -> bool {
        !self.devices[usize::from(device.0)].stranger
    }

    /// What a device holds does not count from now on: another one will have its place.
    pub fn leaves_pool(&mut self, device: DeviceId) {
        self.devices[usize::from(device.0)].stranger = true;
    }

    /// A device has the place of one that does not work: what it should hold of lives that have
    /// begun it does not. What is written to it does not count before it [belongs](Self::belongs).
    pub fn comes(&mut self, device: DeviceId, (volatile, discards): (bool, bool), since: Since) {
        let it = &mut self.devices[usize::from(device.0)];
        assert!(!it.healthy, "it is not in use");
        (it.healthy, it.stranger) = (true, true);
        (it.volatile_cache, it.discards, it.since) = (volatile, discards, Some(since));
        let here = |it: &Segments, segment| it.device_of(segment) == device;
        for segment in self.segment_ids().filter(|&it| here(self, it)).collect::<Vec<_>>() {
            self.found_lacking(segment, self.unit(self.unit_of(segment)).usage != Use::Free);
        }
    }

    /// A device that came is durably of the pool. Units that could not be used without it are free.
    pub fn belongs(&mut self, device: DeviceId) {
        let free = |unit: &UnitId| self.unit(*unit).usage == Use::Free;
        let lost = self.unit_ids().filter(|unit| free(unit) && !self.usable(*unit));
        let lost: Vec<UnitId> = lost.collect();
        self.devices[usize::from(device.0)].stranger = false;
        self.count_dirty_units();
        for unit in lost {
            self.put_free(unit, true);
        }
    }

    /// Whether a segment holds nothing of the life that its unit is in.
    fn found_lacking(&mut self, segment: SegmentId, lacks: bool) {
        let unit = self.unit_of(segment);
        let which = usize::from(segment != self.first_of(unit));
        let it = self.unit_mut(unit);
        let before = it.lacks;
        it.lacks[which] = lacks;
        let after = it.lacks;
        self.halves += usize::from(after != [false; 2]);
        self.halves -= usize::from(before != [false; 2]);
    }

    /// A start knows of a unit up to this record.
    pub fn found_until(&mut self, unit: UnitId, seq: Seq) {
        for segment in self.segments_of(unit) {
            let later = self.since(segment).is_some_and(|since| seq <= since.seq);
            self.found_lacking(segment, later);
        }
    }

    /// A unit begins anew, and whole.
    pub(super) fn lacks_nothing(&mut self, unit: UnitId) {
        let it = self.unit_mut(unit);
        let halves = usize::from(it.lacks != [false; 2]);
        it.lacks = [false; 2];
        self.halves -= halves;
    }

    /// The dirty blocks of the pool, so many, by how many copies of them there are.
    pub fn dirty_copies(&self, dirty: u64) -> DirtyCopies {
        if !self.incomplete() {
            let one = if self.devices.len() > 1 { 0 } else { dirty };
            return DirtyCopies { two: dirty - one, one };
        }
        let mut sum = DirtyCopies::default();
        for (unit, it) in self.numbered().filter(|(_, it)| it.dirty > 0) {
            let copies = self.segments_of(unit).filter(|&segment| self.holds(segment)).count();
            *if copies > 1 { &mut sum.two } else { &mut sum.one } += u64::from(it.dirty);
        }
        sum
    }

    /// A unit with at most so many dirty blocks, which have one copy where they could have two: the
    /// one that was opened first.
    pub fn half_to_empty(&self, dirty_max: u32) -> Option<UnitId> {
        let wanted = |(unit, it): &(UnitId, &super::Unit)| {
            let ready = it.usage == Use::Sealed && it.inflight == 0 && it.lacks != [false; 2];
            ready && (1..=dirty_max).contains(&it.dirty) && self.has_copy(*unit)
        };
        self.numbered().filter(wanted).min_by_key(|(_, it)| it.order).map(|(unit, _)| unit)
    }

    /// Counts the halves anew; for [`crate::Engine::check`].
    pub(crate) fn check_halves(&self) {
        let lacking = self.units().iter().filter(|it| it.lacks != [false; 2]);
        assert_eq!(lacking.count(), self.halves, "halves are counted");
    }
}
