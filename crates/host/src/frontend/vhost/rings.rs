//! A queue's rings in the guest's memory, and the log of what was taken from them, behind one door.
//!
//! Both have the same size, since one is made from the other, so a [`Head`] from the available ring
//! is one of the log's too. A head that the queue does not have is not taken: nothing is written
//! down of it, and who looks at the queue next finds it where it was.

use super::head::Head;
use super::inflight::{QueueLog, Region};
use super::memory::Memory;
use super::segment::{self, Segment};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_queue::{Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

/// The other side broke the rules of the queue: it is not served until it is set up again.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

const OUTSIDE: Broken = Broken("its rings are not in memory");
const LOST: Broken = Broken("the machine took memory away that it shares with the daemon");

/// The rings of one queue, and its part of the in-flight log if there is one.
#[derive(Debug)]
pub struct Rings {
    memory: Arc<Memory>,
    queue: Queue,
    log: Option<QueueLog>,
}

impl Rings {
    /// The rings of a queue that lies in this memory. `log` is the memory of the log, and the
    /// queue's number there.
    pub fn new(memory: Arc<Memory>, queue: Queue, log: Option<(&Region, usize)>) -> Rings {
        let log = log.and_then(|(region, index)| region.queue(index, queue.size()));
        Rings { memory, queue, log }
    }

    /// Asked after each access, before what was read leads to anything.
    ///
    /// # Errors
    /// The memory of the rings, of requests or of the log is another one than it was.
    pub fn check(&self) -> Result<(), Broken> {
        let lost = self.memory.is_lost() || self.log.as_ref().is_some_and(QueueLog::is_lost);
        if lost { Err(LOST) } else { Ok(()) }
    }

    /// Finds the segments of a request: see [`segment::walk`].
    ///
    /// # Errors
    /// The other side broke a rule of the queue.
    pub fn walk(
        &self,
        head: Head,
        parts: (&mut Vec<Segment>, &mut Vec<Segment>),
    ) -> Result<(), Broken> {
        let table = (GuestAddress(self.queue.desc_table()), self.queue.size());
        segment::walk(self.memory.map(), table, head, parts).map_err(Broken)?;
        self.check()
    }

    /// Descriptors of the queue.
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// As [`segment::copy_in`], and the memory is still there.
    pub fn copy_in(&self, segments: &[Segment], skip: u64, out: &mut [u8]) -> bool {
        segment::copy_in(self.memory.map(), segments, skip, out) && self.check().is_ok()
    }

    /// As [`segment::copy_out`].
    pub fn copy_out(&self, segments: &[Segment], skip: u64, data: &[u8]) -> bool {
        segment::copy_out(self.memory.map(), segments, skip, data)
    }

    /// Whether what is taken is written down.
    pub fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// Where the next request to take stands.
    pub fn next_avail(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Where the next answer goes.
    pub fn next_used(&self) -> u16 {
        self.queue.next_used()
    }

    /// Begins. Returns the requests that an earlier owner took and did not answer, in the order in
    /// which they were taken.
    ///
    /// # Errors
    /// The rings do not lie in memory.
    pub fn open(&mut self) -> Result<Vec<Head>, Broken> {
        if !self.queue.is_valid(self.memory.map()) {
            return Err(OUTSIDE);
        }
        let used =
            self.queue.used_idx(self.memory.map(), Ordering::Acquire).map_err(|_| OUTSIDE)?.0;
        self.queue.set_next_used(used);
        let again = self.log.as_mut().map(|log| log.open(used));
        self.check()?;
        let Some(again) = again else { return Ok(Vec::new()) };
        self.queue.set_next_avail(used.wrapping_add(again.len() as u16));
        Ok(again)
    }

    /// Takes the next request, and writes that down.
    ///
    /// # Errors
    /// What the guest wrote into the ring cannot be.
    pub fn take(&mut self) -> Result<Option<Head>, Broken> {
        let size = self.queue.size();
        let mut waiting = self.queue.iter(self.memory.map()).map_err(|error| match error {
            Error::InvalidAvailRingIndex => Broken("more requests wait than it has room for"),
            _ => OUTSIDE,
        })?;
        let Some(chain) = waiting.next() else { return self.check().map(|()| None) };
        let Some(head) = Head::new(chain.head_index(), size) else {
            waiting.go_to_previous_position();
            return Err(Broken("a request begins at a descriptor that it does not have"));
        };
        self.check()?;
        if let Some(log) = &mut self.log {
            log.take(head);
        }
        Ok(Some(head))
    }

    /// Answers a request, whose status lies there: so many bytes were written for the guest.
    pub fn answer(&mut self, head: Head, (status, at): (u8, GuestAddress), bytes: u32) {
        // Where the status cannot be written nobody waits for it.
        let _ = self.memory.map().write_obj(status, at);
        if let Some(log) = &self.log {
            log.answering(head);
        }
        // It fails only where the rings have left memory: nobody waits then.
        let _ = self.queue.add_used(self.memory.map(), head.number(), bytes);
        if let Some(log) = &self.log {
            log.answered(head, self.queue.next_used());
        }
    }

    /// Tells the guest that it need not kick.
    ///
    /// # Errors
    /// The rings do not lie in memory.
    pub fn refuse_kicks(&mut self) -> Result<(), Broken> {
        self.queue.disable_notification(self.memory.map()).map_err(|_| OUTSIDE)
    }

    /// Tells the guest to kick. Whether requests came before it knew.
    ///
    /// # Errors
    /// The rings do not lie in memory.
    pub fn ask_for_kicks(&mut self) -> Result<bool, Broken> {
        self.queue.enable_notification(self.memory.map()).map_err(|_| OUTSIDE)
    }

    /// Whether the guest wants to be told of the answers since this was asked last.
    pub fn wants_call(&mut self) -> bool {
        self.queue.needs_notification(self.memory.map()).unwrap_or(true)
    }
}
