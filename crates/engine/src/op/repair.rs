//! Repair: recovery gives each record that counts its second copy back.
//!
//! A crash may have left only one copy of what was not flushed. Together the copies make a log
//! without gaps; the failure of either device would leave gaps, so before the first answer both are
//! whole again.

use crate::buf::Buf;
use crate::engine::Engine;
use crate::event::*;
use crate::limits::REPAIRS_MAX;
use crate::log::Point;
use crate::op::Op;
use crate::op::replay::Found;
use crate::op::survey::bad_payload;
use crate::segment::SegmentId;
use forebay_format::record::{self, RecordClass};
use forebay_format::{BLOCK_SIZE, SEGMENT_NONE};

/// A record of which one copy is missing.
#[derive(Debug, Clone, Copy)]
pub struct Repair {
    from: SegmentId,
    to: SegmentId,
    offset: u32,
    blocks: u32,
    written: bool,
}

impl Engine {
    pub(crate) fn recover_repair(&mut self) {
        let opening = self.opening.as_ref().expect("recovery is under way");
        let repairs = opening.records.iter().filter_map(|found| self.repair_of(found)).collect();
        self.open_mut().repairs = repairs;
        self.repair_more();
    }

    fn repair_of(&self, found: &Found) -> Option<Repair> {
        let header = &found.header;
        let (own, twin) = (header.segment.get(), header.twin.get());
        let mirrored = header.class == RecordClass::Dirty as u8 && twin != SEGMENT_NONE;
        if !mirrored || twin as usize >= self.segments.table.len() {
            return None;
        }
        let current = |id: SegmentId, generation: u32| {
            self.segments.healthy(id) && self.segments.table[id as usize].generation == generation
        };
        let both = current(own, header.segment_generation.get())
            && current(twin, header.twin_generation.get());
        let (from, to) = match found.whole {
            [true, false] => (own, twin),
            [false, true] => (twin, own),
            _ => return None,
        };
        let blocks = 1 + u32::from(header.payload_blocks.get());
        both.then_some(Repair { from, to, offset: header.offset.get(), blocks, written: false })
    }

    fn repair_more(&mut self) {
        while self.open_mut().repairing < REPAIRS_MAX {
            let Some(repair) = self.open_mut().repairs.pop_front() else { break };
            self.open_mut().repairing += 1;
            let slot = self.segments.slot(repair.from, repair.offset);
            let (device, offset) = self.segments.locate(slot);
            let buf = self.pool.take(repair.blocks as usize * BLOCK_SIZE);
            let op = self.op(Op::Repair(repair));
            self.out.push(Effect::Read { op, target: Target::Cache(device), offset, buf });
        }
        if self.open_mut().repairing == 0 {
            self.recover_settle();
        }
    }

    pub(crate) fn repair_done(&mut self, repair: Repair, result: Result<(), IoError>, buf: Buf) {
        let slot = self.segments.slot(repair.to, repair.offset);
        let (device, offset) = self.segments.locate(slot);
        if !repair.written && result.is_ok() && is_whole(buf.bytes()) {
            let op = self.op(Op::Repair(Repair { written: true, ..repair }));
            self.out.push(Effect::Write { op, target: Target::Cache(device), offset, buf });
            return;
        }
        self.pool.give(buf);
        match repair.written {
            true if result.is_err() => self.device_failed(device, "a write failed"),
            true => {}
            false => self.repair_missed(repair),
        }
        if self.opening.is_some() && !self.dead {
            self.open_mut().repairing -= 1;
            self.repair_more();
        }
    }

    /// A record stays with one copy. Nothing may follow it in the other, where no start would look
    /// behind the gap, and no start may need it: checkpoints come first.
    fn repair_missed(&mut self, repair: Repair) {
        let Some(opening) = &mut self.opening else { return };
        opening.unrepaired = true;
        let open = self.log.open[Point::Dirty as usize];
        if open.is_some_and(|open| self.segments.copies(open).any(|copy| copy == repair.to)) {
            self.seal(Point::Dirty);
        }
    }
}

/// Whether the bytes are a record, header and payload.
fn is_whole(bytes: &[u8]) -> bool {
    let Ok((_, entries)) = record::decode(&bytes[..BLOCK_SIZE]) else { return false };
    bad_payload(&entries, bytes[BLOCK_SIZE..].chunks_exact(BLOCK_SIZE).map(Some)).is_empty()
}
