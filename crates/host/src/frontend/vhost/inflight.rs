//! What a queue has taken and not answered, in memory that the other side keeps while this process
//! is replaced (vhost-user protocol, "Inflight I/O tracking", split virtqueues).
//!
//! A process that is killed has made its stores in program order, and nobody else writes here, so
//! the order of the stores below is what a successor sees.
//!
//! The other side can write anything here. What is read is a flag, a counter, or a number that
//! becomes a [`Head`] before anything is found by it. It can cut the file too: see
//! [`QueueLog::is_lost`].

use super::head::Head;
use forebay_sys::shared::Shared;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vm_memory::volatile_memory::Error;
use vm_memory::{Bytes, VolatileMemory, VolatileSlice};

/// Bytes before the descriptors' states, and of each of these.
const HEAD_BYTES: usize = 16;
const STATE_BYTES: usize = 16;
/// Queues begin at multiples of this.
const ALIGNMENT: usize = 64;
const VERSION: u16 = 1;

const VERSION_AT: usize = 8;
const COUNT_AT: usize = 10;
const LAST_HEAD_AT: usize = 12;
const USED_AT: usize = 14;
/// In a state: the flag, and the number that orders requests.
const COUNTER_AT: usize = 8;

/// Bytes that one queue takes.
pub fn queue_bytes(queue_size: u16) -> usize {
    (HEAD_BYTES + STATE_BYTES * usize::from(queue_size)).next_multiple_of(ALIGNMENT)
}

/// The memory of all queues.
#[derive(Debug, Clone)]
pub struct Region {
    memory: Arc<Shared>,
    queue_size: u16,
}

impl Region {
    /// Maps it.
    ///
    /// # Errors
    /// The file is too small, or cannot be mapped.
    pub fn map(file: File, offset: u64, queues: u16, queue_size: u16) -> io::Result<Region> {
        let bytes = queue_bytes(queue_size) * usize::from(queues);
        Ok(Region { memory: Arc::new(Shared::map(file, offset, bytes)?), queue_size })
    }

    /// The part of one queue, if it fits.
    pub fn queue(&self, index: usize, size: u16) -> Option<QueueLog> {
        let start = index.checked_mul(queue_bytes(self.queue_size))?;
        let end = start + queue_bytes(size);
        (size <= self.queue_size && end <= self.memory.region().size()).then(|| QueueLog {
            memory: Arc::clone(&self.memory),
            start,
            size,
            counter: 0,
        })
    }
}

/// The part of one queue.
#[derive(Debug)]
pub struct QueueLog {
    memory: Arc<Shared>,
    start: usize,
    size: u16,
    counter: u64,
}

impl QueueLog {
    /// Bytes of this queue's part: those of others cannot be had here.
    fn slice(&self, at: usize, len: usize) -> VolatileSlice<'_> {
        let part = self.memory.region().get_slice(self.start, queue_bytes(self.size));
        let part = part.expect("checked when it was made");
        part.subslice(at, len).expect("the head of the part, or a state of one of its heads")
    }

    fn get16(&self, at: usize) -> u16 {
        self.slice(at, 2).load(0, Ordering::Acquire).expect("aligned and inside")
    }

    fn set16(&self, at: usize, value: u16) {
        self.slice(at, 2).store(value, 0, Ordering::Release).expect("aligned and inside");
    }

    fn state(&self, head: Head) -> VolatileSlice<'_> {
        self.slice(HEAD_BYTES + STATE_BYTES * usize::from(head.number()), STATE_BYTES)
    }

    fn set_state(&self, head: Head, taken: u8) {
        let stored: Result<(), Error> = self.state(head).store(taken, 0, Ordering::Release);
        stored.expect("inside");
    }

    /// Begins to keep a queue whose used index is `used`. Returns the requests that were taken and
    /// not answered, in the order in which they were taken.
    pub fn open(&mut self, used: u16) -> Vec<Head> {
        if self.get16(VERSION_AT) != VERSION || self.get16(COUNT_AT) != self.size {
            for head in Head::all(self.size) {
                self.set_state(head, 0);
            }
            self.set16(COUNT_AT, self.size);
            self.set16(USED_AT, used);
            self.set16(VERSION_AT, VERSION);
            return Vec::new();
        }
        if self.get16(USED_AT) != used {
            // The last answer was given and not noted.
            if let Some(last) = Head::new(self.get16(LAST_HEAD_AT), self.size) {
                self.set_state(last, 0);
            }
            self.set16(USED_AT, used);
        }
        let counter = |head: Head| -> u64 {
            self.state(head).load(COUNTER_AT, Ordering::Acquire).expect("aligned and inside")
        };
        let taken = |head: &Head| {
            let flag: u8 = self.state(*head).load(0, Ordering::Acquire).expect("inside");
            flag == 1
        };
        let mut heads: Vec<(u64, Head)> =
            Head::all(self.size).filter(taken).map(|head| (counter(head), head)).collect();
        heads.sort_unstable();
        self.counter = heads.last().map_or(0, |&(counter, _)| counter.wrapping_add(1));
        heads.into_iter().map(|(_, head)| head).collect()
    }

    /// A request was taken from the queue.
    pub fn take(&mut self, head: Head) {
        let stored: Result<(), Error> =
            self.state(head).store(self.counter, COUNTER_AT, Ordering::Release);
        stored.expect("aligned and inside");
        self.counter = self.counter.wrapping_add(1);
        self.set_state(head, 1);
    }

    /// Whether the other side took the memory away before now.
    pub fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// A request is about to be answered.
    pub fn answering(&self, head: Head) {
        self.set16(LAST_HEAD_AT, head.number());
    }

    /// It is answered: the used index is `used` now.
    pub fn answered(&self, head: Head, used: u16) {
        self.set_state(head, 0);
        self.set16(USED_AT, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Region {
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * queue_bytes(8) as u64).unwrap();
        Region::map(file, 0, 2, 8).unwrap()
    }

    fn head(number: u16) -> Head {
        Head::new(number, 8).unwrap()
    }

    #[test]
    fn a_successor_finds_what_was_not_answered_in_order() {
        let region = region();
        let mut log = region.queue(1, 8).unwrap();
        assert_eq!(log.open(5), []);
        for number in [3, 1, 7] {
            log.take(head(number));
        }
        log.answering(head(1));
        log.answered(head(1), 6);
        assert_eq!(region.queue(1, 8).unwrap().open(6), [3, 7].map(head));
        // Killed between the answer and its note: the used index has moved.
        log.answering(head(3));
        let mut successor = region.queue(1, 8).unwrap();
        assert_eq!(successor.open(7), [head(7)]);
        successor.take(head(3));
        assert_eq!(region.queue(1, 8).unwrap().open(7), [7, 3].map(head));
        assert_eq!(region.queue(0, 8).unwrap().open(0), [], "queues are apart");
    }

    #[test]
    fn whatever_stands_in_it_a_queue_finds_its_own_heads_and_leaves_the_others_alone() {
        let region = region();
        let one = queue_bytes(8);
        let written = |at: usize| {
            let mut bytes = vec![0; one];
            region.memory.region().get_slice(at, one).unwrap().copy_to(&mut bytes[..]);
            bytes
        };
        let last_heads = [8, 9, 511, u16::MAX];
        for (last, fill) in last_heads.into_iter().zip([1_u8, 0x80, 0xff, 1]) {
            region
                .memory
                .region()
                .get_slice(0, 2 * one)
                .unwrap()
                .copy_from(&vec![fill; 2 * one][..]);
            let mut log = region.queue(0, 8).unwrap();
            log.set16(VERSION_AT, VERSION);
            log.set16(COUNT_AT, 8);
            log.set16(LAST_HEAD_AT, last);
            let heads = log.open(7);
            // Of equal counters the lower head goes first. One byte of a state is the flag.
            let expected: Vec<Head> = Head::all(8).filter(|_| fill == 1).collect();
            assert_eq!(heads, expected);
            for head in Head::all(8) {
                log.take(head);
                log.answering(head);
                log.answered(head, 8);
            }
            assert_eq!(written(one), vec![fill; one], "the other queue's part");
        }
    }

    #[test]
    fn a_small_queue_leaves_the_part_of_a_large_one_alone() {
        let region = region();
        let part = || {
            let mut bytes = vec![0; queue_bytes(8)];
            region.memory.region().get_slice(0, bytes.len()).unwrap().copy_to(&mut bytes[..]);
            bytes
        };
        let mut large = region.queue(0, 8).unwrap();
        assert_eq!(large.open(0), []);
        Head::all(8).for_each(|head| large.take(head));
        let before = part();
        let mut small = region.queue(1, 4).unwrap();
        assert_eq!(small.open(0), []);
        Head::all(4).for_each(|head| small.take(head));
        assert!(part() == before);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let region = region();
        assert!(region.queue(2, 8).is_none());
        assert!(region.queue(0, 16).is_none());
        let small = tempfile::tempfile().unwrap();
        assert!(Region::map(small, 0, 1, 8).is_err());
        assert!(Region::map(tempfile::tempfile().unwrap(), u64::MAX, 1, 8).is_err());
    }
}
