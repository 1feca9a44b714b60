//! Repair: recovery gives each record that counts its second copy back.
//!
//! A crash may have left only one copy of what was not flushed. Before the first answer both are
//! whole again, as far as they can be read: dirty data is mirrored.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::limits::{CACHE_READ_TRIES, REPAIRS_MAX};
use crate::op::Op;
use crate::open_error::OpenError;
use crate::recovery::Opening;
use crate::recovery::found::{Found, bad_payload};
use crate::recovery::io::Repair;
use forebay_format::BLOCK_SIZE;
use forebay_format::io::Buf;
use forebay_format::record;

impl Opening {
    pub(super) fn recover_repair(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        let skip = engine.is(Mutant::RepairSkipped);
        let records = self.records.iter().filter(|_| !skip);
        let repairs = records.filter_map(|found| engine.repair_of(found)).collect();
        self.repairs = repairs;
        self.repair_more(engine)
    }

    fn repair_more(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        while self.repairing < REPAIRS_MAX {
            let Some(repair) = self.repairs.pop_front() else { break };
            self.repairing += 1;
            let buf = engine.io.take(repair.blocks as usize * BLOCK_SIZE);
            engine.repair_read(repair, buf);
        }
        if self.repairing == 0 {
            return self.recover_settle(engine);
        }
        Ok(())
    }
}

impl Engine {
    fn repair_of(&self, found: &Found) -> Option<Repair> {
        let header = &found.header;
        let own = found.segment();
        let partner = self.segments.partner(own).filter(|_| found.is_dirty_class())?;
        let unit = self.segments.unit(self.segments.unit_of(own));
        let current = unit.generation == header.segment_generation.get();
        let both = self.segments.holds(own) && self.segments.holds(partner);
        let (from, to) = match found.whole {
            [true, false] => (own, partner),
            [false, true] => (partner, own),
            _ => return None,
        };
        let blocks = 1 + u32::from(header.payload_blocks.get());
        let repair =
            Repair { from, to, offset: header.offset.get(), blocks, tries: 0, written: false };
        (current && both).then_some(repair)
    }

    fn repair_read(&mut self, repair: Repair, buf: Buf) {
        let slot = self.segments.slot(repair.from, repair.offset);
        let (device, offset) = self.segments.locate(slot);
        self.io.read(Op::Repair(repair), Target::Cache(device), offset, buf);
    }

    pub(crate) fn repair_done(&mut self, repair: Repair, end: Completion) {
        let Completion { result, buf } = end;
        let slot = self.segments.slot(repair.to, repair.offset);
        let (device, offset) = self.segments.locate(slot);
        if !repair.written && result.is_ok() && is_whole(buf.bytes()) {
            self.io.write(
                Op::Repair(Repair { written: true, ..repair }),
                Target::Cache(device),
                offset,
                buf,
            );
            return;
        }
        if !repair.written && repair.tries + 1 < CACHE_READ_TRIES {
            return self.repair_read(Repair { tries: repair.tries + 1, ..repair }, buf);
        }
        self.io.give(buf);
        if repair.written && result.is_err() {
            self.device_failed(device, "a write failed");
        }
        if !self.log.is_dead() {
            self.recovering(|opening, engine| {
                opening.repairing -= 1;
                opening.repair_more(engine)
            });
        }
    }
}

/// Whether the bytes are a record, header and payload.
fn is_whole(bytes: &[u8]) -> bool {
    let Ok((_, entries)) = record::decode(&bytes[..BLOCK_SIZE]) else { return false };
    bad_payload(&entries, bytes[BLOCK_SIZE..].chunks_exact(BLOCK_SIZE).map(Some)).is_empty()
}
