//! A queue's rings in the guest's memory, and the log of what was taken from them, behind one door.
//!
//! Both have the same size, since one is made from the other, so a [`Head`] from the available ring
//! is one of the log's too. A head that the queue does not have is not taken: nothing is written
//! down of it, and who looks at the queue next finds it where it was.

use super::head::Head;
use super::inflight::{QueueLog, Region};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_queue::{Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// The other side broke the rules of the queue: it is not served until it is set up again.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

const OUTSIDE: Broken = Broken("its rings are not in memory");

/// The rings of one queue, and its part of the in-flight log if there is one.
#[derive(Debug)]
pub struct Rings {
    memory: Arc<GuestMemoryMmap>,
    queue: Queue,
    log: Option<QueueLog>,
}

impl Rings {
    /// The rings of a queue that lies in this memory. `log` is the memory of the log, and the
    /// queue's number there.
    pub fn new(memory: Arc<GuestMemoryMmap>, queue: Queue, log: Option<(&Region, usize)>) -> Rings {
        let log = log.and_then(|(region, index)| region.queue(index, queue.size()));
        Rings { memory, queue, log }
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Where the descriptors lie, and how many there are.
    pub fn table(&self) -> (GuestAddress, u16) {
        (GuestAddress(self.queue.desc_table()), self.queue.size())
    }

    /// Whether what is taken is written down.
    pub fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// Where the next request to take stands.
    pub fn next_avail(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Begins. Returns the requests that an earlier owner took and did not answer, in the order in
    /// which they were taken.
    ///
    /// # Errors
    /// The rings do not lie in memory.
    pub fn open(&mut self) -> Result<Vec<Head>, Broken> {
        if !self.queue.is_valid(&*self.memory) {
            return Err(OUTSIDE);
        }
        let used = self.queue.used_idx(&*self.memory, Ordering::Acquire).map_err(|_| OUTSIDE)?.0;
        self.queue.set_next_used(used);
        let Some(log) = &mut self.log else { return Ok(Vec::new()) };
        let again = log.open(used);
        self.queue.set_next_avail(used.wrapping_add(again.len() as u16));
        Ok(again)
    }

    /// Takes the next request, and writes that down.
    ///
    /// # Errors
    /// What the guest wrote into the ring cannot be.
    pub fn take(&mut self) -> Result<Option<Head>, Broken> {
        let size = self.queue.size();
        let mut waiting = self.queue.iter(&*self.memory).map_err(|error| match error {
            Error::InvalidAvailRingIndex => Broken("more requests wait than it has room for"),
            _ => OUTSIDE,
        })?;
        let Some(chain) = waiting.next() else { return Ok(None) };
        let Some(head) = Head::new(chain.head_index(), size) else {
            waiting.go_to_previous_position();
            return Err(Broken("a request begins at a descriptor that it does not have"));
        };
        if let Some(log) = &mut self.log {
            log.take(head);
        }
        Ok(Some(head))
    }

    /// Answers a request: so many bytes were written for the guest.
    pub fn answer(&mut self, head: Head, bytes: u32) {
        if let Some(log) = &self.log {
            log.answering(head);
        }
        // It fails only where the rings have left memory: nobody waits then.
        let _ = self.queue.add_used(&*self.memory, head.number(), bytes);
        if let Some(log) = &self.log {
            log.answered(head, self.queue.next_used());
        }
    }

    /// Tells the guest that it need not kick.
    ///
    /// # Errors
    /// The rings do not lie in memory.
    pub fn refuse_kicks(&mut self) -> Result<(), Broken> {
        self.queue.disable_notification(&*self.memory).map_err(|_| OUTSIDE)
    }

    /// Tells the guest to kick. Whether requests came before it knew.
    ///
    /// # Errors
    /// The rings do not lie in memory.
    pub fn ask_for_kicks(&mut self) -> Result<bool, Broken> {
        self.queue.enable_notification(&*self.memory).map_err(|_| OUTSIDE)
    }

    /// Whether the guest wants to be told of the answers since this was asked last.
    pub fn wants_call(&mut self) -> bool {
        self.queue.needs_notification(&*self.memory).unwrap_or(true)
    }
}
