//! The segment table: who uses which segment, how much of it lives, and when it may be used again.

use crate::event::DeviceId;
use crate::index::Slot;
use forebay_format::{BLOCK_SIZE, SEGMENT_NONE, superblock::Superblock};
use std::collections::VecDeque;

/// Number of a segment over all devices of the pool.
pub type SegmentId = u32;

/// What a segment is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// May be opened.
    Free,
    /// A write point appends to it.
    Open,
    /// Full; holds blocks.
    Sealed,
    /// Being emptied.
    Victim,
    /// Empty; a `SegmentFree` entry says so, or the checkpoints must first forget its records.
    Emptied {
        /// The dirty-class record that says so must be durable.
        after_dseq: u64,
    },
    /// The second copy of the segment named.
    Twin(SegmentId),
    /// Holds a dirty block that cannot be read: not used again before that block is gone.
    Lost,
}

/// One segment.
#[derive(Debug, Clone)]
pub struct Segment {
    /// What it is doing.
    pub usage: Use,
    /// Grows by one each time that it is opened.
    pub generation: u32,
    /// Its second copy.
    pub twin: SegmentId,
    /// Blocks that the index points at. I2.
    pub live: u32,
    /// Dirty blocks among them.
    pub dirty: u32,
    /// Next free block in it.
    pub end: u32,
    /// Blocks of records that are durable, from the start.
    pub durable_end: u32,
    /// Records under way, and copies of records: a record is under way until all of its copies are
    /// written or lost.
    pub inflight: u32,
    /// Reads under way; it is not used again before they end.
    pub pins: u32,
    /// Greatest sequence number in it.
    pub last_seq: u64,
    /// Whether it holds dirty-class records, which a roll-forward may need.
    pub dirty_class: bool,
    /// Order in which it was opened.
    pub order: u64,
}

impl Segment {
    fn new() -> Segment {
        Segment {
            usage: Use::Free,
            generation: 0,
            twin: SEGMENT_NONE,
            live: 0,
            dirty: 0,
            end: 0,
            durable_end: 0,
            inflight: 0,
            pins: 0,
            last_seq: 0,
            dirty_class: false,
            order: 0,
        }
    }
}

/// One cache device, as the segment table sees it.
#[derive(Debug, Clone)]
pub struct Device {
    /// First segment.
    pub base: SegmentId,
    /// Segments.
    pub count: u32,
    /// Free segments of this device, oldest first.
    pub free: VecDeque<SegmentId>,
    /// Whether it has a volatile cache.
    pub volatile_cache: bool,
    /// Whether it is there and has not failed.
    pub healthy: bool,
}

/// The table.
#[derive(Debug)]
pub struct Segments {
    /// By number.
    pub table: Vec<Segment>,
    /// By index in the superblock.
    pub devices: Vec<Device>,
    /// Blocks of a segment.
    pub blocks: u32,
    /// Its logarithm, where it is a power of two, as in all but the simulator's pools.
    shift: Option<u32>,
    offset: u64,
    order_next: u64,
    /// Segments in `Emptied`.
    pub emptied: Vec<SegmentId>,
}

impl Segments {
    /// The table of a pool, all segments free and none on a free list yet.
    pub fn new(superblock: &Superblock) -> Segments {
        let header = &superblock.header;
        let count = usize::from(header.device_count.get());
        let devices: Vec<Device> = header.devices[..count]
            .iter()
            .map(|entry| Device {
                base: entry.segment_base.get(),
                count: entry.segment_count.get(),
                free: VecDeque::new(),
                volatile_cache: true,
                healthy: true,
            })
            .collect();
        let total: u32 = devices.iter().map(|device| device.count).sum();
        Segments {
            table: vec![Segment::new(); total as usize],
            devices,
            blocks: header.segment_blocks.get(),
            shift: header
                .segment_blocks
                .get()
                .is_power_of_two()
                .then(|| header.segment_blocks.get().ilog2()),
            offset: header.segments_offset.get(),
            order_next: 1,
            emptied: Vec::new(),
        }
    }

    /// Slots of the pool.
    pub fn slots(&self) -> u32 {
        self.table.len() as u32 * self.blocks
    }

    /// The segment of a slot.
    pub fn of(&self, slot: Slot) -> SegmentId {
        match self.shift {
            Some(shift) => slot >> shift,
            None => slot / self.blocks,
        }
    }

    /// The slot of a block in a segment.
    pub fn slot(&self, segment: SegmentId, offset: u32) -> Slot {
        segment * self.blocks + offset
    }

    /// The device of a segment.
    pub fn device_of(&self, segment: SegmentId) -> DeviceId {
        let index = self.devices.iter().rposition(|device| device.base <= segment);
        DeviceId(index.expect("segment 0 is on device 0") as u8)
    }

    /// Device and byte at which a slot lies.
    pub fn locate(&self, slot: Slot) -> (DeviceId, u64) {
        let device = self.device_of(self.of(slot));
        let local = u64::from(slot)
            - u64::from(self.devices[usize::from(device.0)].base) * u64::from(self.blocks);
        (device, self.offset + local * BLOCK_SIZE as u64)
    }

    /// Whether the device of a segment works.
    pub fn healthy(&self, segment: SegmentId) -> bool {
        self.devices[usize::from(self.device_of(segment).0)].healthy
    }

    /// The segments that hold what is written to this one: itself and its second copy.
    pub fn copies(&self, segment: SegmentId) -> impl Iterator<Item = SegmentId> + Clone + use<> {
        let twin = self.table[segment as usize].twin;
        std::iter::once(segment).chain((twin != SEGMENT_NONE).then_some(twin))
    }

    /// Free segments on working devices.
    pub fn free_count(&self) -> usize {
        self.devices.iter().filter(|d| d.healthy).map(|d| d.free.len()).sum()
    }

    /// Write units that can still be opened for dirty data: pairs where there are two devices.
    pub fn free_pairs(&self) -> usize {
        let free = self.devices.iter().filter(|d| d.healthy).map(|d| d.free.len());
        let (count, total, largest) =
            free.fold((0, 0, 0), |(count, total, most), n| (count + 1, total + n, most.max(n)));
        if count < 2 {
            return total;
        }
        (total - largest).min(total / 2)
    }

    /// Opens a free segment, with a second copy on another device if `mirrored` and there is one.
    pub fn open(&mut self, mirrored: bool) -> Option<SegmentId> {
        let (device, second) = self.two_fullest();
        let primary = self.devices[device?].free.pop_front()?;
        self.prepare(primary, Use::Open);
        if mirrored
            && let Some(other) = second
            && let Some(twin) = self.devices[other].free.pop_front()
        {
            self.prepare(twin, Use::Twin(primary));
            self.table[primary as usize].twin = twin;
        }
        Some(primary)
    }

    fn prepare(&mut self, id: SegmentId, usage: Use) {
        let order = self.order_next;
        self.order_next += 1;
        let segment = &mut self.table[id as usize];
        assert_eq!(segment.usage, Use::Free, "I3: only a free segment is opened");
        assert_eq!((segment.live, segment.pins, segment.inflight), (0, 0, 0));
        let generation = segment.generation.wrapping_add(1);
        *segment = Segment { usage, generation, order, ..Segment::new() };
    }

    /// The two working devices with most free segments.
    fn two_fullest(&self) -> (Option<usize>, Option<usize>) {
        let mut order: Vec<usize> = (0..self.devices.len())
            .filter(|&d| self.devices[d].healthy && !self.devices[d].free.is_empty())
            .collect();
        order.sort_by_key(|&d| std::cmp::Reverse(self.devices[d].free.len()));
        (order.first().copied(), order.get(1).copied())
    }

    /// A read of `slot` is under way, from `copy`. The slot's own segment is pinned too: should the
    /// copy be bad, it is read next.
    pub fn pin(&mut self, slot: Slot, copy: SegmentId) {
        let own = self.of(slot);
        self.table[own as usize].pins += 1;
        self.table[copy as usize].pins += 1;
    }

    /// The read has ended.
    pub fn unpin(&mut self, slot: Slot, copy: SegmentId) {
        let own = self.of(slot);
        self.table[own as usize].pins -= 1;
        self.table[copy as usize].pins -= 1;
    }

    /// The next number in the order of opening.
    pub fn order_next(&self) -> u64 {
        self.order_next
    }

    /// Sets the order of a segment found at recovery.
    pub fn set_order(&mut self, id: SegmentId) {
        self.table[id as usize].order = self.order_next;
        self.order_next += 1;
    }

    /// Marks a segment as empty: it becomes free when `after_dseq` is durable and nobody needs it.
    pub fn empty(&mut self, id: SegmentId, after_dseq: u64) {
        let segment = &mut self.table[id as usize];
        assert_eq!(segment.live, 0, "I2");
        segment.usage = Use::Emptied { after_dseq };
        self.emptied.push(id);
        let (twin, last_seq, dirty_class) = (segment.twin, segment.last_seq, segment.dirty_class);
        if twin != SEGMENT_NONE {
            self.table[id as usize].twin = SEGMENT_NONE;
            let copy = &mut self.table[twin as usize];
            if let Use::Twin(_) = copy.usage {
                copy.usage = Use::Emptied { after_dseq };
                copy.last_seq = last_seq;
                copy.dirty_class = dirty_class;
                self.emptied.push(twin);
            }
        }
    }

    /// A record that emptied segments wait for and that is not durable, if there is one.
    pub fn undurable_emptied(&self, durable_dseq: u64) -> Option<u64> {
        let after = |id: &SegmentId| match self.table[*id as usize].usage {
            Use::Emptied { after_dseq } => after_dseq,
            _ => 0,
        };
        self.emptied.iter().map(after).filter(|&dseq| dseq > durable_dseq).min()
    }

    /// Frees the emptied segments that nobody needs any more. I3: what says that a segment is empty
    /// is durable, no roll-forward needs its records, no read is under way. Returns how many became
    /// free.
    pub fn release(&mut self, durable_dseq: u64, forgotten_seq: u64) -> usize {
        let before = self.emptied.len();
        let mut kept = Vec::new();
        for id in std::mem::take(&mut self.emptied) {
            let segment = &self.table[id as usize];
            let Use::Emptied { after_dseq } = segment.usage else { panic!("listed as emptied") };
            let needed = segment.dirty_class && segment.last_seq > forgotten_seq;
            let said = after_dseq <= durable_dseq;
            let busy = segment.pins > 0 || segment.inflight > 0;
            if !said || needed || busy {
                kept.push(id);
                continue;
            }
            self.table[id as usize].usage = Use::Free;
            let device = usize::from(self.device_of(id).0);
            self.devices[device].free.push_back(id);
        }
        self.emptied = kept;
        before - self.emptied.len()
    }
}
