//! The data plane: each tag of each queue is a slot that the kernel fills with a request, over and
//! over. A slot is answered and asks for its next request in one entry of the shard's ring.
//!
//! With user copy, data goes between the kernel's request and the engine's buffer by one `pread` or
//! `pwrite` on the character device. They copy memory and never wait; through the ring the kernel
//! would hand each to another thread, because a character device cannot promise that.

use super::device::UblkSetup;
use crate::driver::Loan;
use crate::frontend::SECTOR_BYTES;
use crate::frontend::port::{PortAnswer, PortLink, errno};
use forebay_engine::{Buf, BufPool, IoError, Request, RequestKind, VolumeId};
use forebay_sys::ublk::uapi::{self, IoDescriptor};
use forebay_sys::ublk::{Descriptors, IoCommand, Node};
use std::io;
use std::os::unix::fs::FileExt;

/// Who has a slot.
#[derive(Debug)]
enum Slot {
    /// The kernel, which will fill it. Without user copy the ring has a buffer for it.
    Kernel,
    /// The engine.
    Engine(IoDescriptor),
    /// A request that is kept for the next server: this one ends.
    Kept,
    /// Nobody: the kernel gave it back.
    Ended,
}

/// One device.
pub(crate) struct UblkPort {
    node: Node,
    pub volume: VolumeId,
    queues: Vec<Descriptors>,
    depth: u16,
    request_bytes_max: u32,
    slots: Vec<Slot>,
    /// Slots that the kernel has, and that the engine has.
    with_kernel: usize,
    with_engine: usize,
    stopping: bool,
    /// The shard ends: what the kernel has stays with it.
    leaving: bool,
}

impl UblkPort {
    pub fn new(setup: UblkSetup) -> UblkPort {
        UblkPort {
            node: setup.node,
            volume: setup.volume,
            queues: setup.queues,
            depth: setup.depth,
            request_bytes_max: setup.request_bytes_max,
            slots: Vec::new(),
            with_kernel: 0,
            with_engine: 0,
            stopping: false,
            leaving: false,
        }
    }

    /// Asks for requests of all slots.
    ///
    /// # Errors
    /// The shard has no ring.
    pub fn start(&mut self, link: &mut PortLink) -> io::Result<()> {
        if link.ring().is_none() {
            let text = "ublk needs io_uring; it is switched off or not allowed";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        for index in 0..self.queues.len() * usize::from(self.depth) {
            let buf = self.fresh(link.bufs);
            self.slots.push(Slot::Ended);
            self.hand_over(link, index as u32, None, buf);
        }
        Ok(())
    }

    /// A buffer for a slot's next request.
    fn fresh(&self, bufs: &mut BufPool) -> Buf {
        if self.node.user_copy() {
            Buf::empty()
        } else {
            bufs.take(self.request_bytes_max as usize)
        }
    }

    fn place(&self, index: u32) -> (u16, u16) {
        let depth = u32::from(self.depth);
        ((index / depth) as u16, (index % depth) as u16)
    }

    /// Gives a slot to the kernel, with the answer to its request, if there was one.
    fn hand_over(&mut self, link: &mut PortLink, index: u32, answer: Option<i32>, buf: Buf) {
        let place = self.place(index);
        self.slots[index as usize] = Slot::Kernel;
        self.with_kernel += 1;
        let (ring, key) = link.ring().expect("looked at when it started");
        ring.ublk((key, index), &self.node, IoCommand { place, answer }, buf);
    }

    /// The kernel filled a slot, or gives it back.
    pub fn arrived(&mut self, link: &mut PortLink, index: u32, (result, loan): (i32, Loan)) {
        self.with_kernel -= 1;
        let slot = std::mem::replace(&mut self.slots[index as usize], Slot::Ended);
        assert!(matches!(slot, Slot::Kernel), "only slots of the kernel arrive");
        let Loan::Buf(buf) = loan else { unreachable!("a buffer is lent with each slot") };
        if result != 0 {
            link.bufs.give(buf);
            if result != -libc::ENODEV && !self.leaving {
                let error = io::Error::from_raw_os_error(-result);
                let (queue, tag) = self.place(index);
                link.tell(format!("ublk: the kernel refuses tag {tag} of queue {queue}: {error}"));
            }
            return;
        }
        if self.leaving {
            link.bufs.give(buf);
            self.slots[index as usize] = Slot::Kept;
            return;
        }
        let (queue, tag) = self.place(index);
        let descriptor = self.queues[usize::from(queue)].get(tag);
        match self.request(link, (queue, tag), &descriptor, buf) {
            Ok(request) => {
                self.slots[index as usize] = Slot::Engine(descriptor);
                self.with_engine += 1;
                link.submit(index, request);
            }
            Err(error) => self.answer(link, index, -error, Buf::empty()),
        }
    }

    /// The engine's request for a descriptor. `buf` is the slot's; with user copy it is empty.
    ///
    /// # Errors
    /// A number of an error: the kernel asks for what it was told not to ask for.
    fn request(
        &self,
        link: &mut PortLink,
        (queue, tag): (u16, u16),
        descriptor: &IoDescriptor,
        mut buf: Buf,
    ) -> Result<Request, i32> {
        let operation = descriptor.operation & uapi::OP_MASK;
        let (offset, len) = match operation {
            // Its place is all ones.
            uapi::OP_FLUSH => (0, 0),
            _ => {
                let offset =
                    descriptor.start_sector.checked_mul(SECTOR_BYTES).ok_or(libc::EINVAL)?;
                (offset, u64::from(descriptor.sectors) * SECTOR_BYTES)
            }
        };
        let is_data = matches!(operation, uapi::OP_READ | uapi::OP_WRITE);
        if is_data && (len == 0 || len > u64::from(self.request_bytes_max)) {
            link.bufs.give(buf);
            return Err(libc::EINVAL);
        }
        if is_data && self.node.user_copy() {
            buf = link.bufs.take_spared(len as usize).ok_or(libc::ENOMEM)?;
        }
        let kind = match operation {
            uapi::OP_READ => RequestKind::Read,
            uapi::OP_WRITE => RequestKind::Write,
            uapi::OP_FLUSH => RequestKind::Flush,
            uapi::OP_DISCARD => RequestKind::Discard,
            uapi::OP_WRITE_ZEROES => {
                let unmap = descriptor.operation & uapi::OP_NO_UNMAP == 0;
                RequestKind::WriteZeroes { unmap }
            }
            _ => {
                link.bufs.give(buf);
                return Err(libc::EOPNOTSUPP);
            }
        };
        if is_data {
            buf.set_len(len as usize);
        } else {
            link.bufs.give(std::mem::replace(&mut buf, Buf::empty()));
        }
        if operation == uapi::OP_WRITE && self.node.user_copy() {
            let at = uapi::data_at(queue, tag);
            if let Err(e) = self.node.file().read_exact_at(buf.bytes_mut(), at) {
                link.bufs.give(buf);
                return Err(e.raw_os_error().unwrap_or(libc::EIO));
            }
        }
        let fua = descriptor.operation & uapi::OP_FUA != 0 && kind == RequestKind::Write;
        Ok(Request { volume: self.volume, kind, offset, len, fua, buf })
    }

    /// The engine answered a slot's request.
    pub fn complete(&mut self, link: &mut PortLink, index: u32, answer: PortAnswer) {
        self.with_engine -= 1;
        let slot = std::mem::replace(&mut self.slots[index as usize], Slot::Kept);
        let Slot::Engine(descriptor) = slot else { unreachable!("only its slots are answered") };
        let PortAnswer { result, buf } = answer;
        let done = match (result, descriptor.operation & uapi::OP_MASK) {
            // Whoever serves the device next is asked again.
            (Err(IoError::Shutdown), _) => return link.bufs.give(buf),
            (Err(error), _) => -errno(error),
            (Ok(()), uapi::OP_READ) => self.copy_out(index, &buf),
            (Ok(()), uapi::OP_WRITE) => (u64::from(descriptor.sectors) * SECTOR_BYTES) as i32,
            (Ok(()), _) => 0,
        };
        self.answer(link, index, done, buf);
    }

    /// Gives the data of a read to the kernel. Without user copy it takes it with the answer.
    fn copy_out(&self, index: u32, buf: &Buf) -> i32 {
        let (queue, tag) = self.place(index);
        if self.node.user_copy() {
            let at = uapi::data_at(queue, tag);
            if let Err(e) = self.node.file().write_all_at(buf.bytes(), at) {
                return -e.raw_os_error().unwrap_or(libc::EIO);
            }
        }
        buf.len() as i32
    }

    /// Answers a slot's request and asks for the next. `buf` holds the data of a read.
    fn answer(&mut self, link: &mut PortLink, index: u32, result: i32, mut buf: Buf) {
        if self.node.user_copy() {
            link.bufs.give(std::mem::replace(&mut buf, Buf::empty()));
        } else if buf.capacity() < self.request_bytes_max as usize {
            let mut fresh = self.fresh(link.bufs);
            fresh.bytes_mut()[..buf.len()].copy_from_slice(buf.bytes());
            link.bufs.give(std::mem::replace(&mut buf, fresh));
        } else {
            buf.set_len(self.request_bytes_max as usize);
        }
        self.hand_over(link, index, Some(result), buf);
    }

    /// Takes no more requests. With `leaving` the shard ends and with it its ring: what the kernel
    /// has stays there, for the next server. Else the device was stopped or rests, and the kernel
    /// gives everything back.
    pub fn stop(&mut self, leaving: bool) {
        self.stopping = true;
        self.leaving |= leaving;
    }

    /// Whether the kernel has not given all slots back, as it does when the device is taken away.
    pub fn is_connected(&self) -> bool {
        self.with_kernel > 0 || self.with_engine > 0
    }

    /// Whether the engine has nothing of it; nor the kernel, unless it may keep it.
    pub fn is_at_rest(&self) -> bool {
        self.with_engine == 0 && (self.with_kernel == 0 || self.leaving)
    }
}
