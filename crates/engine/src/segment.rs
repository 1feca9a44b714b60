//! The segment table: what each segment, with its partner, is used for, and how much of it lives.
//!
//! A *unit* is a segment with its fixed partner on another device, or a segment that has none
//! ([`Pairing`]). A unit is opened, sealed, emptied and freed as one. In each of its lives it is
//! either a mirror (dirty-class records, the same in both segments) or two halves (clean records,
//! each in one of them). Which units are free, and who may take them, `room.rs` says.

use crate::event::DeviceId;
use crate::ids::{Dseq, SegmentId, Seq, Slot, UnitId};
use crate::settings::DeviceSettings;
use forebay_format::{BLOCK_SIZE, Pairing, superblock::Superblock};

mod found;
mod free;
mod halves;
mod room;
mod since;

use room::Room;
pub use room::{Purpose, Reservation};
pub use since::Since;

/// What a unit is doing.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// May be opened.
    #[default]
    Free,
    /// A write point appends to it.
    Open,
    /// Full; holds blocks.
    Sealed,
    /// Being emptied.
    Victim,
    /// Empty, and not known to be so by all that a start may read.
    Emptied {
        /// The dirty-class record that says so must be durable.
        after_dseq: Dseq,
        /// Or both checkpoints must be of a generation behind this one, and say so themselves.
        checkpoint: u64,
    },
    /// Holds a dirty block that cannot be read: not used again before that block is gone.
    Lost,
}

/// The older of the two checkpoints that a start may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Older {
    /// Neither needs records up to here.
    pub seq: Seq,
    /// What was empty before a checkpoint of this generation began is empty in both.
    pub generation: u64,
}

/// One unit.
#[derive(Debug, Default, Clone)]
pub struct Unit {
    /// What it is doing.
    pub usage: Use,
    /// Grows by one each time that it is opened.
    pub generation: u32,
    /// Blocks that the index points at. I2.
    pub live: u32,
    /// Dirty blocks among them.
    pub dirty: u32,
    /// Next free block in the segment that is written to.
    pub end: u32,
    /// Blocks of dirty-class records that are durable, from the start.
    pub durable_end: u32,
    /// Copies of records under way.
    pub inflight: u32,
    /// Reads under way; it is not used again before they end.
    pub pins: u32,
    /// Greatest sequence number in it.
    pub last_seq: Seq,
    /// Whether it holds dirty-class records, which a roll-forward may need; with a partner they are
    /// mirrored.
    pub dirty_class: bool,
    /// Order in which it was opened.
    pub order: u64,
    /// Which of its segments hold nothing of this life: their device came later.
    lacks: [bool; 2],
}

impl Unit {
    /// Whether a start would find it empty, whichever checkpoint it reads.
    pub fn is_said_empty(&self, durable_dseq: Dseq, older: Older) -> bool {
        let Use::Emptied { after_dseq, checkpoint } = self.usage else { return false };
        after_dseq <= durable_dseq || checkpoint < older.generation
    }

    /// Whether it waits to become free since before a checkpoint behind this generation began.
    pub fn emptied_by(&self, generation: u64) -> bool {
        matches!(self.usage, Use::Emptied { checkpoint, .. } if checkpoint <= generation)
    }

    /// Whether a start may read its records.
    pub fn is_needed(&self, older: Older) -> bool {
        self.dirty_class && self.last_seq > older.seq
    }
}

/// One cache device, as the segment table sees it.
#[derive(Debug, Clone)]
pub struct Device {
    /// Segments.
    pub count: u32,
    /// Whether it has a volatile cache.
    pub volatile_cache: bool,
    /// Whether it is there and has not failed.
    pub healthy: bool,
    /// Whether it is told of bytes that are free.
    pub discards: bool,
    /// It works, but no superblock says yet that it is of the pool: what it holds does not count.
    pub stranger: bool,
    /// From when on it holds what is written to it, where it took the place of another one.
    pub since: Option<Since>,
}

/// The table.
#[derive(Debug)]
pub struct Segments {
    units: Vec<Unit>,
    /// By index in the superblock.
    devices: Vec<Device>,
    /// Blocks of a segment.
    blocks: u32,
    /// Its logarithm, where it is a power of two, as in all but the simulator's pools.
    shift: Option<u32>,
    offset: u64,
    pairing: Pairing,
    order_next: u64,
    /// See [`Segments::dirty_units`].
    dirty_units: usize,
    /// Units that have segments which hold nothing of their life.
    halves: usize,
    /// A planted bug: nobody sees that.
    halves_unseen: bool,
    room: Room,
}

impl Segments {
    /// The table of a pool, all units as nobody ever used them.
    pub fn new(superblock: &Superblock, given: &[DeviceSettings]) -> Segments {
        let header = &superblock.header;
        let pairing = Pairing::of(header);
        let places = header.devices.iter().enumerate();
        let devices = places.zip(given).map(|((at, entry), given)| Device {
            count: entry.segment_count.get(),
            volatile_cache: given.volatile_cache,
            healthy: given.presence.is_here(),
            discards: given.discards,
            stranger: false,
            since: header.joined(at).map(Since::of),
        });
        let blocks = header.segment_blocks.get();
        let mut segments = Segments {
            units: vec![Unit::default(); (pairing.segments() - pairing.pairs()) as usize],
            devices: devices.collect(),
            blocks,
            shift: blocks.is_power_of_two().then(|| blocks.ilog2()),
            offset: header.segments_offset.get(),
            pairing,
            order_next: 1,
            dirty_units: 0,
            halves: 0,
            halves_unseen: false,
            room: Room::default(),
        };
        segments.count_dirty_units();
        segments.room = Room::new(segments.dirty_units);
        segments
    }

    /// By number.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// The numbers of all units.
    pub fn unit_ids(&self) -> impl Iterator<Item = UnitId> + use<> {
        (0..self.units.len() as u32).map(UnitId::nth)
    }

    /// All units with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (UnitId, &Unit)> {
        self.unit_ids().zip(&self.units)
    }

    /// A unit.
    pub fn unit(&self, unit: UnitId) -> &Unit {
        &self.units[unit.at()]
    }

    /// The unit that a slot lies in.
    pub fn unit_at(&self, slot: Slot) -> &Unit {
        self.unit(self.of(slot))
    }

    fn at(&mut self, slot: Slot) -> &mut Unit {
        let unit = self.of(slot);
        self.unit_mut(unit)
    }

    fn unit_mut(&mut self, unit: UnitId) -> &mut Unit {
        &mut self.units[unit.at()]
    }

    /// By index in the superblock.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Blocks of a segment.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Slots of the pool.
    pub fn slots(&self) -> u32 {
        self.pairing.segments() * self.blocks
    }

    /// The numbers of all segments.
    pub fn segment_ids(&self) -> impl Iterator<Item = SegmentId> + use<> {
        (0..self.count()).map(SegmentId::of)
    }

    /// Segments of the pool.
    pub fn count(&self) -> u32 {
        self.pairing.segments()
    }

    /// The segment of a slot.
    #[inline]
    pub fn segment_of(&self, slot: Slot) -> SegmentId {
        match self.shift {
            Some(shift) => SegmentId::of(slot.raw() >> shift),
            None => SegmentId::of(slot.raw() / self.blocks),
        }
    }

    /// The unit of a slot.
    pub fn of(&self, slot: Slot) -> UnitId {
        self.unit_of(self.segment_of(slot))
    }

    /// The unit of a segment.
    #[inline]
    pub fn unit_of(&self, segment: SegmentId) -> UnitId {
        let pairs = self.pairing.pairs();
        let segment = segment.raw();
        UnitId::nth(if segment < 2 * pairs { segment / 2 } else { segment - pairs })
    }

    /// The first segment of a unit.
    pub fn first_of(&self, unit: UnitId) -> SegmentId {
        let pairs = self.pairing.pairs();
        let unit = unit.at() as u32;
        SegmentId::of(if unit < pairs { 2 * unit } else { unit + pairs })
    }

    /// The segments of a unit.
    pub fn segments_of(&self, unit: UnitId) -> impl Iterator<Item = SegmentId> + use<> {
        let first = self.first_of(unit);
        std::iter::once(first).chain(self.partner(first))
    }

    /// The partner of a segment.
    pub fn partner(&self, segment: SegmentId) -> Option<SegmentId> {
        self.pairing.partner(segment.raw()).map(SegmentId::of)
    }

    /// The slot of a block in a segment.
    pub fn slot(&self, segment: SegmentId, offset: u32) -> Slot {
        Slot::of(segment.raw() * self.blocks + offset)
    }

    /// The block of its segment that a slot is.
    pub fn offset_of(&self, slot: Slot) -> u32 {
        match self.shift {
            Some(_) => slot.raw() & (self.blocks - 1),
            None => slot.raw() % self.blocks,
        }
    }

    /// The device of a segment.
    pub fn device_of(&self, segment: SegmentId) -> DeviceId {
        DeviceId(self.pairing.place(segment.raw()).0)
    }

    /// Device and byte at which a slot lies.
    pub fn locate(&self, slot: Slot) -> (DeviceId, u64) {
        let segment = self.segment_of(slot);
        let (device, index) = self.pairing.place(segment.raw());
        let block = u64::from(index) * u64::from(self.blocks) + u64::from(self.offset_of(slot));
        (DeviceId(device), self.offset + block * BLOCK_SIZE as u64)
    }

    /// Whether the device of a segment works.
    pub fn healthy(&self, segment: SegmentId) -> bool {
        self.devices[usize::from(self.device_of(segment).0)].healthy
    }

    /// The devices that work.
    pub fn working(&self) -> impl Iterator<Item = DeviceId> + '_ {
        (0..).zip(&self.devices).filter(|(_, it)| it.healthy).map(|(n, _)| DeviceId(n))
    }

    /// Whether a device is away or has failed.
    pub fn degraded(&self) -> bool {
        self.devices.iter().any(|device| !device.healthy)
    }

    /// Whether some segment of a unit can be written to, and what is written there counts.
    pub fn usable(&self, unit: UnitId) -> bool {
        self.segments_of(unit).any(|it| self.healthy(it) && self.counts(self.device_of(it)))
    }

    /// Whether all segments of a unit can be written to.
    pub fn whole(&self, unit: UnitId) -> bool {
        self.segments_of(unit).all(|segment| self.healthy(segment))
    }

    /// Whether a unit may hold dirty data: in a pool of several devices it has a partner.
    pub fn may_hold_dirty(&self, unit: UnitId) -> bool {
        self.devices.len() == 1 || unit.at() < self.pairing.pairs() as usize
    }

    /// Whether a copy of what is in a slot may be read.
    pub fn reachable(&self, slot: Slot) -> bool {
        let segment = self.segment_of(slot);
        self.holds(segment) || self.mirror_of(segment).is_some_and(|copy| self.holds(copy))
    }

    /// The segment that holds the same as this one, in this life of their unit.
    pub fn mirror_of(&self, segment: SegmentId) -> Option<SegmentId> {
        let mirrored = self.units[self.unit_of(segment).at()].dirty_class;
        self.partner(segment).filter(|_| mirrored)
    }

    /// The segments to which records for this one are written: itself, and its partner in a mirror.
    pub fn copies(&self, segment: SegmentId) -> impl Iterator<Item = SegmentId> + Clone + use<> {
        std::iter::once(segment).chain(self.mirror_of(segment))
    }

    /// Blocks that a life of a unit has room for.
    pub fn room_in(&self, unit: UnitId) -> u32 {
        let halves = self.segments_of(unit).filter(|&segment| self.holds(segment)).count() as u32;
        self.blocks * if self.units[unit.at()].dirty_class { 1 } else { halves.max(1) }
    }

    /// Units that may hold dirty data, on devices that work.
    pub fn dirty_units(&self) -> usize {
        self.dirty_units
    }

    /// Blocks that could be dirty at once.
    pub fn dirty_blocks_max(&self) -> u64 {
        self.dirty_units as u64 * u64::from(self.blocks)
    }

    /// A device does not work any more.
    pub fn device_failed(&mut self, device: DeviceId) {
        self.devices[usize::from(device.0)].healthy = false;
        self.count_dirty_units();
        self.lose_room();
    }

    fn count_dirty_units(&mut self) {
        let usable = |&unit: &UnitId| self.may_hold_dirty(unit) && self.usable(unit);
        self.dirty_units = self.unit_ids().filter(usable).count();
    }

    /// A unit begins a life.
    pub fn begin(&mut self, unit: UnitId, dirty_class: bool) {
        let order = self.order_next;
        self.order_next += 1;
        let it = &mut self.units[unit.at()];
        assert_eq!(it.usage, Use::Free, "I3: only a free unit is opened");
        assert_eq!((it.live, it.pins, it.inflight), (0, 0, 0));
        assert_eq!(it.lacks, [false; 2], "what is free lacks nothing");
        let generation = it.generation.wrapping_add(1);
        *it = Unit { usage: Use::Open, generation, order, dirty_class, ..Unit::default() };
    }

    /// A unit goes on to its next use.
    pub fn becomes(&mut self, unit: UnitId, usage: Use) {
        let it = self.unit_mut(unit);
        let follows = matches!(
            (it.usage, usage),
            (Use::Free, Use::Open | Use::Sealed | Use::Emptied { .. })
                | (Use::Open, Use::Sealed)
                | (Use::Sealed, Use::Victim | Use::Open)
                | (Use::Victim, Use::Sealed | Use::Lost | Use::Emptied { .. })
                | (Use::Lost, Use::Sealed)
                | (Use::Emptied { .. }, Use::Free | Use::Open)
        );
        assert!(follows, "a unit in {:?} does not become {usage:?}", it.usage);
        it.usage = usage;
        if usage == Use::Free {
            self.lacks_nothing(unit);
        }
        self.may_be_dead(unit);
    }

    /// The second half of a unit is written to from here on.
    pub fn turn_half(&mut self, unit: UnitId) {
        self.unit_mut(unit).end = 0;
    }

    /// A record is on its way to the segments of a unit, in so many copies.
    pub fn sent(&mut self, unit: UnitId, seq: Seq, end: u32, copies: u32) {
        let it = self.unit_mut(unit);
        (it.last_seq, it.end) = (seq, end);
        it.inflight += copies;
    }

    /// A copy of a record has ended.
    pub fn copy_ended(&mut self, unit: UnitId) {
        self.unit_mut(unit).inflight -= 1;
    }

    /// The dirty-class records of a unit are durable up to here.
    pub fn durable(&mut self, unit: UnitId, end: u32) {
        self.unit_mut(unit).durable_end = end;
    }

    /// The index points at one more block. I2.
    pub fn lives(&mut self, slot: Slot) {
        self.at(slot).live += 1;
    }

    /// The index does not point at this block any more. I2.
    pub fn dies(&mut self, slot: Slot) {
        let unit = self.of(slot);
        let it = self.unit_mut(unit);
        assert!(it.live > 0, "I2");
        it.live -= 1;
        if it.live == 0 {
            self.may_be_dead(unit);
        }
    }

    /// A block that lives is dirty. I2.
    pub fn dirtied(&mut self, slot: Slot) {
        self.at(slot).dirty += 1;
    }

    /// The block is clean. I2.
    pub fn cleaned(&mut self, slot: Slot) {
        self.at(slot).dirty -= 1;
    }

    /// A read of a unit is under way.
    pub fn pin(&mut self, slot: Slot) {
        self.at(slot).pins += 1;
    }

    /// The read has ended.
    pub fn unpin(&mut self, slot: Slot) {
        self.at(slot).pins -= 1;
    }

    /// A planted bug frees units that are being read.
    pub(crate) fn take_pins(&mut self) -> Vec<u32> {
        self.units.iter_mut().map(|unit| std::mem::take(&mut unit.pins)).collect()
    }

    /// Puts back the pins that [`Segments::take_pins`] took: a planted bug.
    pub(crate) fn put_pins(&mut self, pins: &[u32]) {
        self.units.iter_mut().zip(pins).for_each(|(unit, &pins)| unit.pins = pins);
    }

    /// The next number in the order of opening.
    pub fn order_next(&self) -> u64 {
        self.order_next
    }
}
