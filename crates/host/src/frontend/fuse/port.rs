//! A FUSE connection on a shard: requests are read from `/dev/fuse` when it is readable, and each
//! is answered by one write to it. Data goes between the kernel and the engine's buffers without
//! another copy.
//!
//! Answers that are there at the same time go through the ring, in one system call: each wakes a
//! kernel thread that tells the block layer, and takes the processor when the system call ends.

use super::reply;
use super::wire::{self, Agreed, Call, Fault, OutHeader};
use crate::driver::Loan;
use crate::frontend::port::{PortAnswer, PortLink, errno};
use crate::frontend::{SECTOR_BYTES, VolumeBytes};
use forebay_engine::{Buf, BufPool, IoError, Keyed, Request, RequestKind, VolumeId};
use forebay_sys as sys;
use forebay_sys::driver::Parts;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use zerocopy::IntoBytes;

/// Requests under way at once. The kernel keeps the others.
const REQUESTS_MAX: usize = 256;
/// Requests read before they are worked on and answered. With more, whoever asks would have nothing
/// to go on with meanwhile; with fewer, the answers of a batch would cost more changes of threads.
const BATCH_MAX: usize = 8;
/// From this Linux on, a ring writes to a device that can be polled without another thread.
const RING_SINCE: (u32, u32) = (6, 12);
/// The first bytes of a write have a buffer of their own: few writes are longer, and a long one is
/// two parts.
const SMALL_BYTES: usize = 64 << 10;
/// Bytes of one part of a range to zero, and parts under way at once.
const RANGE_PART_BYTES: u64 = 32 << 20;
const RANGE_PARTS_MAX: u32 = 4;
/// The tag under which the device is waited on. Others are of slots whose answers the ring
/// writes.
const POLL: u32 = u32::MAX;
/// Bytes of the longest answer to reads, writes and the like, without the data.
const HEAD_BYTES: usize = size_of::<OutHeader>() + size_of::<reply::WriteOut>();
/// `fallocate` modes, without the one that keeps the size.
const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;

/// What a FUSE port is made of.
#[derive(Debug)]
pub struct FuseSetup {
    /// An open `/dev/fuse` whose first request is answered.
    pub device: OwnedFd,
    /// The volume.
    pub volume: VolumeId,
    /// Its size.
    pub bytes: VolumeBytes,
    /// What was agreed on with the kernel.
    pub agreed: Agreed,
    /// The origin can give space back at little cost, so that a hole may be punched. Otherwise the
    /// kernel is told that it is not supported, and writes zeros where it needs them.
    pub punch: bool,
    /// The connection had another owner: what that one read and did not answer is asked for again.
    pub taken_over: bool,
}

/// What a request waits for.
enum Work {
    Read,
    Write { len: u32 },
    Flush,
    Zero { unmap: bool, next: u64, end: u64 },
}

/// A request that is not answered.
struct Slot {
    unique: u64,
    work: Work,
    /// Parts that the engine has.
    parts: u32,
    error: Option<IoError>,
    /// Of a read that is done: the data.
    data: Buf,
}

/// What an answer begins with.
struct Head {
    bytes: [u8; HEAD_BYTES],
    len: usize,
}

/// An answer that the ring writes.
pub(crate) struct Answer {
    head: Head,
    data: Buf,
}

impl Parts for Answer {
    fn each_part<'a>(&'a self, mut add: impl FnMut(&'a [u8])) {
        add(self.head.bytes());
        add(self.data.bytes());
    }
}

/// One connection.
pub(crate) struct FusePort {
    device: OwnedFd,
    pub volume: VolumeId,
    bytes: VolumeBytes,
    bytes_max: usize,
    punch: bool,
    taken_over: bool,
    slots: Keyed<Slot>,
    /// Slots to answer before the next wait.
    answers: Vec<u32>,
    /// The ring answers where several answers are there.
    by_ring: bool,
    /// The device is waited on.
    polling: bool,
    /// The wait is being ended.
    cancelling: bool,
    /// No more requests are taken.
    stopping: bool,
    /// The kernel's end is gone.
    ended: bool,
    /// Room for the next request: its head, and the data of a write.
    head: [u8; wire::HEAD_BYTES],
    small: Buf,
    large: Buf,
}

impl FusePort {
    pub fn new(setup: FuseSetup) -> FusePort {
        let bytes_max = setup.agreed.bytes_max as usize;
        assert!(bytes_max > SMALL_BYTES && bytes_max.is_multiple_of(4096));
        FusePort {
            device: setup.device,
            volume: setup.volume,
            bytes: setup.bytes,
            bytes_max,
            punch: setup.punch,
            taken_over: setup.taken_over,
            slots: Keyed::default(),
            answers: Vec::new(),
            by_ring: false,
            polling: false,
            cancelling: false,
            stopping: false,
            ended: false,
            head: [0; wire::HEAD_BYTES],
            small: Buf::empty(),
            large: Buf::empty(),
        }
    }

    /// Begins to take requests.
    ///
    /// # Errors
    /// The kernel does not know the connection, or cannot send requests again.
    pub fn start(&mut self, link: &mut PortLink) -> io::Result<()> {
        sys::socket::set_nonblocking(self.device.as_raw_fd(), true)?;
        if self.taken_over {
            self.write(wire::resend_notice().as_bytes(), &[])?;
        }
        self.by_ring = link.ring().is_some() && sys::kernel_release() >= RING_SINCE;
        self.small = link.bufs.take(SMALL_BYTES);
        self.large = link.bufs.take(self.bytes_max - SMALL_BYTES);
        Ok(())
    }

    /// The device is readable, or the wait for that has ended, or the ring has written an answer.
    pub fn arrived(&mut self, link: &mut PortLink, tag: u32, (result, loan): (i32, Loan)) {
        if let Loan::Answer(answer) = loan {
            let slot = self.slots.get_mut(tag).expect("a slot stays until it is answered");
            if slot.error.is_none() {
                slot.data = answer.data;
            }
            if result < 0 && result != -libc::ENOENT {
                // Nothing reached the kernel: it still waits.
                self.write_answer(tag);
            }
            return self.forget(link, tag);
        }
        self.polling = false;
        self.cancelling = false;
        if result == -libc::ECANCELED || self.stopping {
            return;
        }
        for _ in 0..BATCH_MAX {
            if self.slots.len() >= REQUESTS_MAX || self.ended || !self.receive(link) {
                return;
            }
        }
    }

    /// Reads one request and begins it. Whether there may be more.
    fn receive(&mut self, link: &mut PortLink) -> bool {
        self.small.set_len(SMALL_BYTES);
        self.large.set_len(self.bytes_max - SMALL_BYTES);
        let parts = [&mut self.head[..], self.small.bytes_mut(), self.large.bytes_mut()];
        match sys::file::read_parts(self.device.as_raw_fd(), parts) {
            Ok(len) => self.begin(link, len),
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN) => return false,
                // The request was withdrawn while it was read.
                Some(libc::ENOENT | libc::EINTR) => {}
                // The loop device let go of the file: nobody uses it.
                Some(libc::ENODEV) => {
                    self.ended = true;
                    return false;
                }
                _ => {
                    self.ended = true;
                    let volume = self.volume.0;
                    link.tell(format!(
                        "the FUSE connection of volume {volume} broke ({e}); detach the volume \
                         and attach it again"
                    ));
                    return false;
                }
            },
        }
        true
    }

    /// Begins the request of `len` bytes that was read.
    fn begin(&mut self, link: &mut PortLink, len: usize) {
        let mut args = [0; wire::ARGS_BYTES_MAX];
        let (head, tail) = args.split_at_mut(wire::HEAD_BYTES);
        head.copy_from_slice(&self.head);
        tail.copy_from_slice(&self.small.bytes()[..tail.len()]);
        match wire::parse(&args[..len.min(args.len())], len) {
            Ok((unique, call)) => self.call(link, unique, call),
            Err(Fault::Broken(unique)) => self.answer(unique, libc::EINVAL, &[]),
            Err(Fault::NoHeader) => {}
        }
    }

    fn call(&mut self, link: &mut PortLink, unique: u64, call: Call) {
        match call {
            Call::Read { offset, len } => self.read(link, unique, offset, len),
            Call::Write { offset, len, sync } => self.take_write(link, unique, offset, len, sync),
            Call::Fsync => {
                let tag = self.slot(unique, Work::Flush, 1);
                let request = self.request(RequestKind::Flush, 0, 0, Buf::empty());
                link.submit(tag, request);
            }
            Call::Fallocate { mode, offset, len } => self.zero(link, unique, mode, offset, len),
            // Nobody else can reach the directory: no other name is looked up, and its own
            // attributes are not asked for.
            Call::Lookup => self.answer(unique, 0, reply::entry(self.bytes.get()).as_bytes()),
            Call::Getattr => self.answer(unique, 0, reply::attr(self.bytes.get()).as_bytes()),
            Call::Setattr { access, size } => {
                let refused = access || size.is_some_and(|size| size != self.bytes.get());
                let error = if refused { libc::EPERM } else { 0 };
                self.answer(unique, error, reply::attr(self.bytes.get()).as_bytes());
            }
            Call::Open => self.answer(unique, 0, reply::open().as_bytes()),
            Call::Statfs => self.answer(unique, 0, reply::statfs(self.bytes.get()).as_bytes()),
            Call::Nothing => self.answer(unique, 0, &[]),
            Call::Silent => {}
            // A second INIT never comes.
            Call::Init | Call::Unknown => self.answer(unique, libc::ENOSYS, &[]),
        }
    }

    fn slot(&mut self, unique: u64, work: Work, parts: u32) -> u32 {
        self.slots.insert(Slot { unique, work, parts, error: None, data: Buf::empty() })
    }

    fn request(&self, kind: RequestKind, offset: u64, len: u64, buf: Buf) -> Request {
        Request { volume: self.volume, kind, offset, len, fua: false, buf }
    }

    fn read(&mut self, link: &mut PortLink, unique: u64, offset: u64, len: u32) {
        let len = u64::from(len).min(self.bytes.get().saturating_sub(offset));
        if !aligned(offset, len) || len > self.bytes_max as u64 {
            return self.answer(unique, libc::EINVAL, &[]);
        }
        if len == 0 {
            return self.answer(unique, 0, &[]);
        }
        let Some(buf) = link.bufs.take_spared(len as usize) else {
            return self.answer(unique, libc::ENOMEM, &[]);
        };
        let tag = self.slot(unique, Work::Read, 1);
        let request = self.request(RequestKind::Read, offset, len, buf);
        link.submit(tag, request);
    }

    /// Begins a write whose data is in the buffers.
    fn take_write(&mut self, link: &mut PortLink, unique: u64, offset: u64, len: u32, fua: bool) {
        let aligned = aligned(offset, len.into());
        if len == 0 || !aligned || len as usize > self.bytes_max {
            return self.answer(unique, libc::EINVAL, &[]);
        }
        let first = (len as usize).min(SMALL_BYTES);
        let rest = len as usize - first;
        // What the next request is read into.
        let room = match rest {
            0 => Some(Buf::empty()),
            _ => link.bufs.try_take(self.bytes_max - SMALL_BYTES),
        };
        let (Some(fresh), Some(room)) = (link.bufs.take_spared(SMALL_BYTES), room) else {
            return self.answer(unique, libc::ENOMEM, &[]);
        };
        let tag = self.slot(unique, Work::Write { len }, 1 + u32::from(rest > 0));
        let mut small = std::mem::replace(&mut self.small, fresh);
        small.set_len(first);
        let request = self.request(RequestKind::Write, offset, first as u64, small);
        link.submit(tag, Request { fua, ..request });
        if rest > 0 {
            let mut large = std::mem::replace(&mut self.large, room);
            large.set_len(rest);
            let offset = offset + first as u64;
            let request = self.request(RequestKind::Write, offset, rest as u64, large);
            link.submit(tag, Request { fua, ..request });
        }
    }

    /// Begins to zero a range. A hole must read as zeros, so it is more than a discard.
    fn zero(&mut self, link: &mut PortLink, unique: u64, mode: u32, offset: u64, len: u64) {
        let unmap = match mode & !KEEP_SIZE {
            PUNCH if self.punch => true,
            ZERO => false,
            _ => return self.answer(unique, libc::EOPNOTSUPP, &[]),
        };
        let end = offset.checked_add(len).filter(|&end| len > 0 && end <= self.bytes.get());
        let Some(end) = end.filter(|_| aligned(offset, len)) else {
            return self.answer(unique, libc::EINVAL, &[]);
        };
        let tag = self.slot(unique, Work::Zero { unmap, next: offset, end }, 0);
        self.zero_more(link, tag);
    }

    /// Gives the engine the next parts of a range.
    fn zero_more(&mut self, link: &mut PortLink, tag: u32) {
        let volume = self.volume;
        let slot = self.slots.get_mut(tag).expect("a slot stays until it is answered");
        let Work::Zero { unmap, next, end } = &mut slot.work else { return };
        while slot.parts < RANGE_PARTS_MAX && *next < *end && slot.error.is_none() {
            let len = (*end - *next).min(RANGE_PART_BYTES);
            let kind = RequestKind::WriteZeroes { unmap: *unmap };
            let (offset, buf) = (*next, Buf::empty());
            link.submit(tag, Request { volume, kind, offset, len, fua: false, buf });
            *next += len;
            slot.parts += 1;
        }
    }

    /// The engine answered a part of a request.
    pub fn complete(&mut self, link: &mut PortLink, tag: u32, answer: PortAnswer) {
        let slot = self.slots.get_mut(tag).expect("a slot stays until it is answered");
        slot.parts -= 1;
        slot.error = slot.error.or(answer.result.err());
        match slot.work {
            Work::Read => slot.data = answer.buf,
            _ => link.bufs.give(answer.buf),
        }
        self.zero_more(link, tag);
        let slot = self.slots.get(tag).expect("seen above");
        match (slot.parts, slot.error) {
            // Whoever has the connection next is asked again. If nobody has it, the kernel gives an
            // error.
            (0, Some(IoError::Shutdown)) => self.forget(link, tag),
            (0, _) => self.answers.push(tag),
            _ => {}
        }
    }

    fn forget(&mut self, link: &mut PortLink, tag: u32) {
        let slot = self.slots.remove(tag).expect("a slot stays until it is answered");
        link.bufs.give(slot.data);
    }

    /// Answers what is done.
    fn answer_all(&mut self, link: &mut PortLink) {
        let ring = self.answers.len() > 1 && self.by_ring;
        let mut answers = std::mem::take(&mut self.answers);
        for tag in answers.drain(..) {
            if ring {
                self.start_answer(link, tag);
            } else {
                self.write_answer(tag);
                self.forget(link, tag);
            }
        }
        self.answers = answers;
    }

    /// Has the ring answer a request.
    fn start_answer(&mut self, link: &mut PortLink, tag: u32) {
        let slot = self.slots.get_mut(tag).expect("a slot stays until it is answered");
        let head = slot.answer().0;
        // Of a read that failed, nothing is told but the error.
        let data = if slot.error.is_none() { std::mem::take(&mut slot.data) } else { Buf::empty() };
        let (ring, key) = link.ring().expect("looked at when it started");
        ring.write_port((key, tag), self.device.as_raw_fd(), Answer { head, data });
    }

    /// Answers a request on the spot.
    fn write_answer(&self, tag: u32) {
        let (head, data) = self.slots.get(tag).expect("a slot stays until it is answered").answer();
        let _ = self.write(head.bytes(), data);
    }

    /// Answers a request. The kernel refuses only answers to what it has withdrawn.
    fn answer(&self, unique: u64, error: i32, body: &[u8]) {
        let body = if error == 0 { body } else { &[] };
        let header = wire::out_header(unique, error, body.len());
        let _ = self.write(header.as_bytes(), body);
    }

    fn write(&self, header: &[u8], body: &[u8]) -> io::Result<()> {
        sys::file::write_parts(self.device.as_raw_fd(), [header, body]).map(drop)
    }

    /// Answers what is done, and waits on the device, or ends that wait.
    pub fn arm(&mut self, link: &mut PortLink) {
        self.answer_all(link);
        if self.stopping {
            if self.polling && !self.cancelling {
                self.cancelling = true;
                link.cancel(POLL);
            }
        } else if !self.polling && !self.ended && self.slots.len() < REQUESTS_MAX {
            self.polling = true;
            link.poll(POLL, self.device.as_raw_fd());
        }
    }

    /// Takes no more requests.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether the kernel's end is there.
    pub fn is_connected(&self) -> bool {
        !self.ended
    }

    /// Whether nothing is under way.
    pub fn is_at_rest(&self) -> bool {
        !self.polling && self.slots.is_empty()
    }

    /// Gives the buffers back.
    pub fn release(self, bufs: &mut BufPool) {
        bufs.give(self.small);
        bufs.give(self.large);
    }
}

impl Slot {
    /// What the kernel is answered: the head, and the data.
    fn answer(&self) -> (Head, &[u8]) {
        let written;
        let (small, data): (&[u8], &[u8]) = match (self.error, &self.work) {
            (None, Work::Read) => (&[], self.data.bytes()),
            (None, Work::Write { len }) => {
                written = reply::write(*len);
                (written.as_bytes(), &[])
            }
            _ => (&[], &[]),
        };
        let error = self.error.map_or(0, errno);
        let header = wire::out_header(self.unique, error, small.len() + data.len());
        let mut head = Head { bytes: [0; HEAD_BYTES], len: size_of::<OutHeader>() + small.len() };
        let (first, rest) = head.bytes.split_at_mut(size_of::<OutHeader>());
        first.copy_from_slice(header.as_bytes());
        rest[..small.len()].copy_from_slice(small);
        (head, data)
    }
}

impl Head {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn aligned(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(SECTOR_BYTES) && len.is_multiple_of(SECTOR_BYTES)
}
