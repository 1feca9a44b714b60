//! Requests for whose data the system refuses memory.

use super::super::request::Status;
use super::{PART_BYTES, QueuePort};
use crate::frontend::port::PortLink;
use forebay_engine::Buf;

impl QueuePort {
    /// There is no memory for a request's data: it waits for what else is under way, or fails.
    pub(super) fn lack(&mut self, tag: u32) {
        if self.slots.len() == 1 {
            return self.finish(tag, Status::Error);
        }
        let slot = self.take_back(tag);
        self.lacking.push_back(slot);
    }

    /// Nobody looks at requests any more for which there was no memory.
    pub(super) fn end_lacking(&mut self) {
        for slot in std::mem::take(&mut self.lacking) {
            // Where it is written down, who serves the queue next does it.
            if !self.setup.rings.is_logged() {
                let status = (Status::Error as u8, slot.status);
                self.setup.rings.answer(slot.head, status, 1);
                self.signal = true;
            }
        }
    }
}

/// Buffers for the parts of `len` bytes, if the system has memory for all. One that is `alone` has
/// nothing else under way.
pub(super) fn take_parts(link: &mut PortLink, len: u64, alone: bool) -> Option<Vec<Buf>> {
    let mut bufs = Vec::new();
    for part in 0..len.div_ceil(PART_BYTES) {
        let bytes = PART_BYTES.min(len - part * PART_BYTES);
        let buf = match alone {
            true => link.bufs.take_spared(bytes as usize),
            false => link.bufs.try_take(bytes as usize),
        };
        let Some(buf) = buf else {
            bufs.into_iter().for_each(|buf| link.bufs.give(buf));
            return None;
        };
        bufs.push(buf);
    }
    Some(bufs)
}
