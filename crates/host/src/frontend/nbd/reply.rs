//! Replies to requests, in the three forms that a client may have chosen.

use super::core::Core;
use super::fault::Fault;
use super::slots::{buf_bytes, read_bytes};
use forebay_engine::BufPool;
use forebay_nbd::wire::{self, Command, Head, Header, chunk};

impl Core {
    /// Queues the reply to the request in `slot`.
    pub(super) fn reply(&mut self, slot: u32, bufs: &mut BufPool) {
        let request = self.slots.get(slot);
        let (header, fault) = (request.header, request.fault);
        match fault {
            Some(fault) => {
                // A read that failed holds its buffers; one that was refused has none.
                if !request.parts.is_empty() {
                    request.parts.drain(..).for_each(|buf| bufs.give(buf));
                    self.release(read_bytes(&header, self.limits.part_bytes_max));
                }
                self.fault_reply(&header, fault);
            }
            None if header.command == Command::Read && header.len > 0 => {
                self.read_reply(slot, &header);
            }
            None => self.done_reply(&header),
        }
    }

    /// Starts a chunk with `len` bytes of payload.
    pub(super) fn chunk_head(&self, header: &Header, flags: u16, kind: u16, len: u64) -> Head {
        if self.negotiated.extended {
            let head = Head::new().u32(wire::EXTENDED_REPLY_MAGIC).u16(flags).u16(kind);
            head.u64(header.cookie).u64(header.offset).u64(len)
        } else {
            let head = Head::new().u32(wire::STRUCTURED_REPLY_MAGIC).u16(flags).u16(kind);
            head.u64(header.cookie).u32(len as u32)
        }
    }

    fn done_reply(&mut self, header: &Header) {
        // Where chunks were negotiated, a reply that is not to a read may still be a simple one.
        let chunks = self.negotiated.extended
            || self.negotiated.structured && header.command == Command::Read;
        let head = if chunks {
            self.chunk_head(header, chunk::DONE, chunk::NONE, 0)
        } else {
            Head::simple_reply(0, header.cookie)
        };
        self.out.head(head.bytes());
    }

    fn read_reply(&mut self, slot: u32, header: &Header) {
        let head = if self.negotiated.structured {
            let len = header.len + 8;
            self.chunk_head(header, chunk::DONE, chunk::OFFSET_DATA, len).u64(header.offset)
        } else {
            Head::simple_reply(0, header.cookie)
        };
        self.out.head(head.bytes());
        for buf in self.slots.get(slot).parts.drain(..) {
            let charge = buf_bytes(buf.len() as u64);
            self.out.data(buf, charge);
        }
    }

    fn fault_reply(&mut self, header: &Header, ((errno, text), offset): (Fault, u64)) {
        if !self.negotiated.structured {
            return self.out.head(Head::simple_reply(errno as u32, header.cookie).bytes());
        }
        // Offsets are for errors within the request's range, on the device.
        let in_device = errno == wire::Errno::Io
            && matches!(header.command, Command::Read | Command::Write | Command::Trim);
        let (kind, tail) = if in_device { (chunk::ERROR_OFFSET, 8) } else { (chunk::ERROR, 0) };
        let len = 6 + text.len() as u64 + tail;
        let head = self.chunk_head(header, chunk::DONE, kind, len);
        self.out.head(head.u32(errno as u32).u16(text.len() as u16).bytes());
        self.out.head(text.as_bytes());
        if in_device {
            self.out.head(Head::new().u64(offset).bytes());
        }
    }
}
