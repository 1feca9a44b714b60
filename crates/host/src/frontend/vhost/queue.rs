//! One virtqueue on a shard: a kick wakes it, requests are taken until none is left, answers go
//! back with one notification for all that ended together.

mod lacking;

use super::head::Head;
use super::request::{self, Call, HEAD_BYTES, ID_BYTES, RANGE_BYTES, Status};
use super::rings::{Broken, Rings};
use super::segment::Segment;
use crate::frontend::port::{PortAnswer, PortLink};
use forebay_engine::{Buf, BufPool, IoError, Keyed, Request, RequestKind, VolumeId};
use forebay_sys as sys;
use lacking::take_parts;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use vm_memory::{Address, GuestAddress};

/// Descriptors of a queue.
pub const QUEUE_SIZE_MAX: u16 = 1024;
/// Bytes of one request to the engine; a longer one is several parts.
const PART_BYTES: u64 = 1 << 20;
/// Parts of a request.
const PARTS_MAX: u64 = 32;
/// Requests that are taken in one go, before others of the shard have their turn.
const TAKE_MAX: usize = 64;
/// Bytes that are copied in one go, beyond which others have their turn.
const COPY_MAX: u64 = 4 * PART_BYTES;
/// Descriptors that are followed in one go, beyond which others have their turn.
const FOLLOW_MAX: usize = 8192;
/// Bytes of data that are under way, beyond which nothing more is taken. One request fits.
const BYTES_MAX: u64 = 2 * PARTS_MAX * PART_BYTES;
/// The tag under which the kick is waited on.
const KICK: u32 = u32::MAX;

/// What a queue is made of.
#[derive(Debug)]
pub struct QueueSetup {
    /// The volume.
    pub volume: VolumeId,
    /// Name of the disk, for the guest.
    pub name: [u8; ID_BYTES],
    /// Where the queue lies in the guest's memory, how far it has come, and what was taken and not
    /// answered.
    pub(super) rings: Rings,
    /// Tells that there are requests.
    pub kick: File,
    /// Tells the guest that there are answers.
    pub call: Option<File>,
    /// The guest knows nothing of a volatile cache: each write is durable before its answer.
    pub durable_writes: bool,
    /// Where the next request to take stands when the queue has come to rest.
    pub next_avail: Arc<AtomicU16>,
}

/// A request that is not answered.
#[derive(Debug)]
struct Slot {
    head: Head,
    /// Where its data goes.
    data: Vec<Segment>,
    status: GuestAddress,
    /// Bytes for the guest, without the status.
    bytes: u64,
    /// Bytes of data, for either side.
    held: u64,
    /// Parts that the engine has.
    parts: u32,
    error: Option<IoError>,
}

/// One virtqueue.
pub(crate) struct QueuePort {
    pub volume: VolumeId,
    setup: QueueSetup,
    slots: Keyed<Slot>,
    /// Requests that were taken, and for whose data the system had no memory. Others are under way,
    /// whose ends free some; until then nothing more is taken.
    lacking: VecDeque<Slot>,
    /// Segments of the request being taken: for us, and for the guest.
    readable: Vec<Segment>,
    writable: Vec<Segment>,
    /// Vectors to use again.
    spare: Vec<Vec<Segment>>,
    /// Bytes of data under way.
    held: u64,
    /// Bytes copied and descriptors followed in this go.
    copied: u64,
    followed: usize,
    /// The guest need not kick: the ring is looked at.
    attentive: bool,
    /// Answers were given of which the guest does not know.
    signal: bool,
    polling: bool,
    cancelling: bool,
    stopping: bool,
    broken: bool,
}

impl QueuePort {
    pub fn new(setup: QueueSetup) -> QueuePort {
        QueuePort {
            volume: setup.volume,
            setup,
            slots: Keyed::default(),
            lacking: VecDeque::new(),
            readable: Vec::new(),
            writable: Vec::new(),
            spare: Vec::new(),
            held: 0,
            copied: 0,
            followed: 0,
            attentive: false,
            signal: false,
            polling: false,
            cancelling: false,
            stopping: false,
            broken: false,
        }
    }

    /// Begins to take requests; first those that an earlier owner of the queue took and did not
    /// answer.
    ///
    /// # Errors
    /// The queue does not lie in the guest's memory, or the kick is no descriptor to wait on.
    pub fn start(&mut self, link: &mut PortLink) -> io::Result<()> {
        let again = self.setup.rings.open();
        let again = again.map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why.0))?;
        for head in again {
            if let Err(broken) = self.begin(link, head) {
                // The rest stays written down.
                self.give_up(link, &broken);
                break;
            }
        }
        self.take_some(link);
        Ok(())
    }

    /// The kick came, or the wait for it has ended.
    pub fn arrived(&mut self, link: &mut PortLink, tag: u32, result: i32) {
        assert_eq!(tag, KICK, "nothing else is started");
        (self.polling, self.cancelling) = (false, false);
        if result == -libc::ECANCELED || self.stopping {
            return;
        }
        if result < 0 {
            return self.give_up(link, &Broken("its kick cannot be waited on"));
        }
        // If another took the count there is nothing to clear.
        sys::eventfd::clear(&self.setup.kick);
        self.take_some(link);
    }

    /// Takes requests until there are none, or it is the turn of others. The guest need not kick
    /// any more, until [`QueuePort::park`]. Whether there were some.
    fn take_some(&mut self, link: &mut PortLink) -> bool {
        if self.broken || self.stopping {
            return false;
        }
        if !std::mem::replace(&mut self.attentive, true)
            && let Err(broken) = self.setup.rings.refuse_kicks()
        {
            self.give_up(link, &broken);
            return false;
        }
        (self.copied, self.followed) = (0, 0);
        for taken in 0..TAKE_MAX {
            let enough = self.copied >= COPY_MAX || self.followed >= FOLLOW_MAX;
            if enough || self.held >= BYTES_MAX {
                return taken > 0;
            }
            let lacked = self.lacking.pop_front();
            let begun = match lacked.map_or_else(|| self.setup.rings.take(), |it| Ok(Some(it.head)))
            {
                Ok(None) => return taken > 0,
                Ok(Some(head)) => self.begin(link, head),
                Err(broken) => Err(broken),
            };
            if let Err(broken) = begun {
                self.give_up(link, &broken);
                return true;
            }
            if !self.lacking.is_empty() {
                return taken > 0;
            }
        }
        true
    }

    /// Whether the ring is to be looked at, because the guest does not kick.
    pub fn is_attentive(&self) -> bool {
        self.attentive && !self.broken && !self.stopping
    }

    /// Looks for requests without a kick. Whether there were some.
    pub fn look(&mut self, link: &mut PortLink) -> bool {
        self.is_attentive() && self.take_some(link)
    }

    /// The ring is not looked at any more: the guest shall kick. Whether there were more requests.
    pub fn park(&mut self, link: &mut PortLink) -> bool {
        // Where too much is under way the answers go on, and with them the look at the ring.
        if !self.is_attentive() || self.held >= BYTES_MAX || !self.lacking.is_empty() {
            return false;
        }
        self.attentive = false;
        match self.setup.rings.ask_for_kicks() {
            // Some came after the last look and before kicks were asked for.
            Ok(more) => more && self.take_some(link),
            Err(broken) => {
                self.give_up(link, &broken);
                false
            }
        }
    }

    fn give_up(&mut self, link: &mut PortLink, broken: &Broken) {
        self.broken = true;
        // Zeros that took the place of lost memory break rules that the guest kept.
        let lost = self.setup.rings.check().err();
        let broken = lost.as_ref().unwrap_or(broken);
        link.tell(format!(
            "a queue of the guest's disk on volume {} is broken ({}); it is served again after the \
             guest's driver or machine has been restarted",
            self.volume.0, broken.0
        ));
    }

    /// Begins the request whose first descriptor this is.
    fn begin(&mut self, link: &mut PortLink, head: Head) -> Result<(), Broken> {
        let rings = &self.setup.rings;
        rings.walk(head, (&mut self.readable, &mut self.writable))?;
        self.followed += self.readable.len() + self.writable.len();
        if self.slots.len() >= usize::from(rings.size()) {
            return Err(Broken("it holds more requests than it has room for"));
        }
        let last = self.writable.last().filter(|last| last.len > 0);
        let last = last.ok_or(Broken("a request has no room for its status"))?;
        let status = last.address.checked_add(u64::from(last.len) - 1);
        let status = status.ok_or(Broken("an address is too large"))?;
        let mut bytes = [0; HEAD_BYTES];
        if !rings.copy_in(&self.readable, 0, &mut bytes) {
            return Err(Broken("a request has no head"));
        }
        let room: u64 = self.writable.iter().map(|segment| u64::from(segment.len)).sum();
        let mut data = self.spare.pop().unwrap_or_default();
        data.clone_from(&self.writable);
        let slot = Slot { head, data, status, bytes: 0, held: 0, parts: 0, error: None };
        let tag = self.slots.insert(slot);
        match request::parse_head(&bytes) {
            Some(Call::Read(offset)) => self.read(link, tag, offset, room - 1),
            Some(Call::Write(offset)) => self.write(link, tag, offset),
            Some(Call::Flush) => {
                self.submit(link, tag, RequestKind::Flush, (0, 0), Buf::empty());
            }
            Some(Call::Name) => self.name(tag, room - 1),
            Some(Call::Discard) => self.range(link, tag, false),
            Some(Call::WriteZeroes) => self.range(link, tag, true),
            Some(Call::Unknown) => self.finish(tag, Status::Unsupported),
            None => self.finish(tag, Status::Error),
        }
        Ok(())
    }

    fn slot(&mut self, tag: u32) -> &mut Slot {
        self.slots.get_mut(tag).expect("a slot stays until it is answered")
    }

    fn hold(&mut self, tag: u32, bytes: u64) {
        self.slot(tag).held = bytes;
        self.held += bytes;
    }

    fn take_back(&mut self, tag: u32) -> Slot {
        let slot = self.slots.remove(tag).expect("a slot stays until it is answered");
        self.held -= slot.held;
        slot
    }

    /// Gives the engine a part of a request. The tag holds the slot, and the part's number above
    /// it.
    fn submit(
        &mut self,
        link: &mut PortLink,
        tag: u32,
        kind: RequestKind,
        (offset, len): (u64, u64),
        buf: Buf,
    ) {
        self.slot(tag & 0xffff).parts += 1;
        let changes = !matches!(kind, RequestKind::Read | RequestKind::Flush);
        let fua = changes && self.setup.durable_writes;
        link.submit(tag, Request { volume: self.volume, kind, offset, len, fua, buf });
    }

    fn read(&mut self, link: &mut PortLink, tag: u32, offset: u64, len: u64) {
        let end = offset.checked_add(len);
        if len == 0 || len > PARTS_MAX * PART_BYTES || end.is_none() {
            return self.finish(tag, Status::Error);
        }
        let alone = self.slots.len() == 1;
        let Some(bufs) = take_parts(link, len, alone) else { return self.lack(tag) };
        self.slot(tag).bytes = len;
        self.hold(tag, len);
        for (part, buf) in bufs.into_iter().enumerate() {
            let range = (offset + part as u64 * PART_BYTES, buf.len() as u64);
            self.submit(link, tag | (part as u32) << 16, RequestKind::Read, range, buf);
        }
    }

    fn write(&mut self, link: &mut PortLink, tag: u32, offset: u64) {
        let len: u64 = self.readable.iter().map(|segment| u64::from(segment.len)).sum();
        let len = len - HEAD_BYTES as u64;
        let end = offset.checked_add(len);
        if len == 0 || len > PARTS_MAX * PART_BYTES || end.is_none() {
            return self.finish(tag, Status::Error);
        }
        let alone = self.slots.len() == 1;
        let Some(mut bufs) = take_parts(link, len, alone) else { return self.lack(tag) };
        self.hold(tag, len);
        self.copied += len;
        let rings = &self.setup.rings;
        let copied = bufs.iter_mut().enumerate().all(|(part, buf)| {
            let skip = HEAD_BYTES as u64 + part as u64 * PART_BYTES;
            rings.copy_in(&self.readable, skip, buf.bytes_mut())
        });
        if !copied {
            bufs.into_iter().for_each(|buf| link.bufs.give(buf));
            return self.finish(tag, Status::Error);
        }
        for (part, buf) in bufs.into_iter().enumerate() {
            let range = (offset + part as u64 * PART_BYTES, buf.len() as u64);
            self.submit(link, tag | (part as u32) << 16, RequestKind::Write, range, buf);
        }
    }

    fn name(&mut self, tag: u32, room: u64) {
        let name = self.setup.name;
        let bytes = name.len().min(room as usize);
        let slot = self.slot(tag);
        slot.bytes = bytes as u64;
        let data = std::mem::take(&mut slot.data);
        let written = self.setup.rings.copy_out(&data, 0, &name[..bytes]);
        self.slot(tag).data = data;
        self.finish(tag, if written { Status::Ok } else { Status::Error });
    }

    fn range(&mut self, link: &mut PortLink, tag: u32, zeroes: bool) {
        let mut range = [0; RANGE_BYTES];
        let len: u64 = self.readable.iter().map(|segment| u64::from(segment.len)).sum();
        let one = len == (HEAD_BYTES + RANGE_BYTES) as u64;
        if !one || !self.setup.rings.copy_in(&self.readable, HEAD_BYTES as u64, &mut range) {
            return self.finish(tag, Status::Error);
        }
        match request::parse_range(&range, zeroes) {
            Err(status) => self.finish(tag, status),
            Ok((_, 0, _)) => self.finish(tag, Status::Ok),
            Ok((offset, len, unmap)) => {
                let kind =
                    if zeroes { RequestKind::WriteZeroes { unmap } } else { RequestKind::Discard };
                self.submit(link, tag, kind, (offset, len), Buf::empty());
            }
        }
    }

    /// The engine answered a part of a request.
    pub fn complete(&mut self, link: &mut PortLink, tag: u32, answer: PortAnswer) {
        let (tag, part) = (tag & 0xffff, u64::from(tag >> 16));
        let slot = self.slot(tag);
        slot.parts -= 1;
        slot.error = slot.error.or(answer.result.err());
        if slot.bytes > 0 && answer.result.is_ok() {
            let data = std::mem::take(&mut slot.data);
            let written = self.setup.rings.copy_out(&data, part * PART_BYTES, answer.buf.bytes());
            let slot = self.slot(tag);
            slot.data = data;
            if !written {
                slot.error = Some(IoError::Io);
            }
        }
        link.bufs.give(answer.buf);
        let slot = self.slot(tag);
        if slot.parts > 0 {
            return;
        }
        let error = slot.error;
        if error == Some(IoError::Shutdown) && self.setup.rings.is_logged() {
            // It stays written down: who serves the queue next does it.
            self.take_back(tag);
            return;
        }
        self.finish(tag, Status::of(error));
    }

    /// Answers a request.
    fn finish(&mut self, tag: u32, status: Status) {
        let slot = self.take_back(tag);
        let bytes = if status == Status::Ok { slot.bytes as u32 + 1 } else { 1 };
        self.setup.rings.answer(slot.head, (status as u8, slot.status), bytes);
        self.signal = true;
        self.spare.push(slot.data);
    }

    /// Tells the guest of answers, and waits for the next kick, or ends that wait.
    pub fn arm(&mut self, link: &mut PortLink) {
        if self.stopping && !self.broken {
            self.end_lacking();
        }
        if std::mem::take(&mut self.signal) {
            let wanted = self.setup.rings.wants_call();
            if let Some(call) = self.setup.call.as_ref().filter(|_| wanted) {
                sys::eventfd::tell(call);
            }
        }
        if !self.broken
            && let Err(broken) = self.setup.rings.check()
        {
            // What was done last touched it, and nothing follows that would say so.
            self.give_up(link, &broken);
        }
        if self.stopping {
            if self.polling && !self.cancelling {
                self.cancelling = true;
                link.cancel(KICK);
            }
        } else if !self.polling && !self.broken {
            self.polling = true;
            link.poll(KICK, self.setup.kick.as_raw_fd());
        }
    }

    /// The kick came while nothing waited for it.
    pub fn kicked(&mut self, link: &mut PortLink) {
        self.take_some(link);
    }

    /// How far the available ring and the used ring came, and how many requests are under way.
    pub fn counts(&self) -> (u16, u16, usize) {
        let rings = &self.setup.rings;
        (rings.next_avail(), rings.next_used(), self.slots.len())
    }

    /// Takes no more requests.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether nothing is under way.
    pub fn is_at_rest(&self) -> bool {
        !self.polling && self.slots.is_empty()
    }

    /// Says how far it came.
    pub fn release(self, _bufs: &mut BufPool) {
        self.setup.next_avail.store(self.setup.rings.next_avail(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
