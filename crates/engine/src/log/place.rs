//! Place: where in the log the next record goes, and what of it is being gathered.

use crate::Mutant;
use crate::engine::Engine;
use crate::ids::{SegmentId, Slot};
use crate::limits::RECORD_ENTRIES;
use crate::log::{Gather, Point};
use crate::segment::{Purpose, Use};
use forebay_format::BLOCK_SIZE;
use forebay_format::record::PAYLOAD_BLOCKS_MAX;

/// Payload blocks of one record: header and payload together fill a buffer of half a megabyte.
const PAYLOAD_MAX: u32 = PAYLOAD_BLOCKS_MAX as u32 - 1;

impl Engine {
    /// Makes sure that the record gathered at `point` has room for one more entry (and block).
    pub(crate) fn room_at(&mut self, point: Point, purpose: Purpose, payload: bool) -> bool {
        let may = match purpose {
            Purpose::Move => self.segments.may_move(self.left_in_open()),
            _ => self.segments.may_write(purpose),
        };
        if self.log.is_dead() || (payload && !may) {
            return false;
        }
        if let Some(gather) = self.log.gathering(point) {
            let blocks = !payload || gather.payload < gather.payload_max;
            if blocks && gather.entries.len() < RECORD_ENTRIES {
                return true;
            }
            if !self.send(point) {
                return false;
            }
        }
        self.start_gather(point, purpose, payload)
    }

    /// Starts a record at a write point: in the open segment, in the other half of its unit if that
    /// is full, or in a new unit.
    fn start_gather(&mut self, point: Point, purpose: Purpose, payload: bool) -> bool {
        if let Some(open) = self.log.open_at(point) {
            let end = self.segments.unit(self.segments.unit_of(open)).end;
            if !self.leaves(point, open) && end + u32::from(payload) < self.segments.blocks() {
                self.gather_at(point, open, end);
                return true;
            }
            if let Some(half) = self.other_half(point, open) {
                self.open_segment(point, half);
                return true;
            }
        }
        let Some(unit) = self.segments.open_unit(point, purpose) else { return false };
        self.seal(point);
        let segment = self.segments.segments_of(unit).find(|&it| self.segments.healthy(it));
        let first = self.segments.first_of(unit);
        self.open_segment(
            point,
            if point == Point::Dirty { first } else { segment.unwrap_or(first) },
        );
        true
    }

    /// The second segment of a unit of clean data, if the first is the open one and has no more
    /// room.
    fn other_half(&self, point: Point, open: SegmentId) -> Option<SegmentId> {
        let half = self.segments.partner(open).filter(|&half| half > open)?;
        (point != Point::Dirty && self.segments.holds(half)).then_some(half)
    }

    fn open_segment(&mut self, point: Point, segment: SegmentId) {
        let unit = self.segments.unit_of(segment);
        self.segments.turn_half(unit);
        self.log.opens(point, segment);
        self.gather_at(point, segment, 0);
    }

    fn gather_at(&mut self, point: Point, segment: SegmentId, offset: u32) {
        let payload_max = (self.segments.blocks() - offset - 1).min(PAYLOAD_MAX);
        let buf = self.io.take((1 + PAYLOAD_MAX as usize) * BLOCK_SIZE);
        let (entries, waiters) = self.log.spare_lists();
        let gather = Gather {
            segment,
            offset,
            payload_slot: self.segments.slot(segment, offset + 1),
            buf,
            entries,
            payload: 0,
            payload_max,
            waiters,
            readers: Vec::new(),
            over_dirty: false,
            since: self.io.now(),
        };
        self.log.gathers(point, gather);
    }

    /// Blocks that fit into the open unit of dirty data.
    pub(crate) fn left_in_open(&self) -> u32 {
        let blocks = self.segments.blocks();
        let open = self.log.open_at(Point::Dirty);
        let end = match self.log.gathering(Point::Dirty) {
            Some(gather) => gather.offset + 1 + gather.payload,
            None => open.map_or(blocks, |segment| {
                self.segments.unit(self.segments.unit_of(segment)).end + 1
            }),
        };
        blocks.saturating_sub(end)
    }

    /// Closes the open segment of a write point.
    pub(crate) fn seal(&mut self, point: Point) {
        if let Some(open) = self.log.closes(point) {
            let unit = self.segments.unit_of(open);
            if self.segments.unit(unit).usage == Use::Open {
                self.segments.becomes(unit, Use::Sealed);
            }
        }
    }

    /// A clean block was replaced before its record was sent: the record must not bring it back,
    /// since it will have a greater number than what replaced the block.
    pub(crate) fn void_gathered(&mut self, slot: Slot) {
        if self.is(Mutant::NoVoid) {
            return;
        }
        self.log.void(slot);
    }

    /// Whether the version in `slot` survives power loss.
    pub(crate) fn is_durable(&self, slot: Slot) -> bool {
        self.segments.offset_of(slot) < self.segments.unit_at(slot).durable_end
    }
}
