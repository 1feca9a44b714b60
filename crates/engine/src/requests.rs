//! Requests under way: what each waits for, which of them may be under way together, and whose turn
//! it is where room is short. A list is of those that wait for it, and of nobody else.

use crate::event::*;
use crate::ids::{Dseq, Key, Written};
use crate::requests::fetches::Fetches;
use crate::requests::overlap::{Access, Overlap};
use crate::requests::progress::Merge;
use crate::requests::turns::Turns;
use crate::slab::Slab;
use forebay_format::BLOCK_SIZE;
use forebay_format::io::Buf;
use std::ops::Range;

mod fetches;
mod key;
pub mod overlap;
mod progress;
mod stall;
mod turns;

pub use fetches::Joined;
pub use key::ReqKey;

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Recovery.
    Recovery,
    /// Overlapping requests before it.
    Turn,
    /// The end of the writeback slice of its volume.
    Slice,
    /// Room in the log for its entries.
    Entries,
    /// Room in the log for its blocks, or its turn to take some.
    Room,
    /// The log to be durable up to this number: then the origin may be written.
    Intent(Dseq),
    /// The log to be written up to this number: the origin was, and nothing older may come back.
    Logged(Dseq),
    /// Promises of FLUSH and FUA, and zeros at the origin.
    Durable {
        /// The log is durable up to here.
        dseq: Dseq,
        /// So many writes to the origin are.
        written: Written,
        /// The dirty blocks of its range end then: the zeros that replace them are there.
        ends: bool,
    },
    /// Blocks of its range to end, in slices, which the origin has durable zeros for.
    Ends,
    /// Its parts: device I/Os and records.
    Parts,
}

/// Requests that wait for the same, in one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// [`Wait::Recovery`].
    Recovery,
    /// [`Wait::Slice`].
    Slice,
    /// [`Wait::Entries`].
    Entries,
    /// [`Wait::Intent`] and [`Wait::Logged`].
    Log,
    /// [`Wait::Durable`].
    Durable,
}

const QUEUES: usize = 5;

impl Wait {
    /// Where requests that wait for this are listed. The others are where what they wait for is.
    fn queue(self) -> Option<Queue> {
        match self {
            Wait::Recovery => Some(Queue::Recovery),
            Wait::Slice => Some(Queue::Slice),
            Wait::Entries => Some(Queue::Entries),
            Wait::Intent(_) | Wait::Logged(_) => Some(Queue::Log),
            Wait::Durable { .. } => Some(Queue::Durable),
            Wait::Turn | Wait::Room | Wait::Ends | Wait::Parts => None,
        }
    }
}

/// A client's request under way.
#[derive(Debug)]
pub struct Req {
    /// The executor's name for it. I13: nothing counts requests by it, or looks for one again.
    pub id: RequestId,
    /// Its volume.
    pub volume: VolumeId,
    /// What is asked.
    pub kind: RequestKind,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Answer only when durable.
    pub fua: bool,
    /// The request's buffer.
    pub buf: Buf,
    /// When it came.
    pub since: Time,
    /// First block.
    pub first: Key,
    /// Last block.
    pub last: Key,
    /// See [`Requests::wait`].
    wait: Wait,
    /// It holds its blocks against overlapping requests.
    holds: bool,
    /// Device I/Os and records that it waits for.
    pub pending: u32,
    /// The first error.
    pub error: Option<IoError>,
    /// A write has overtaken this read: what it brings may be old.
    overtaken: bool,
    /// It is part of a sequential stream.
    pub sequential: bool,
    /// Blocks of a write that are in the log already.
    pub written: u64,
    /// The log holds all of a write when it is durable up to here.
    pub written_dseq: Dseq,
    /// Old content of the first and last block of a write that does not cover them, with its valid
    /// sectors.
    pub merge: Merge,
    /// Blocks found in the cache.
    pub hits: u32,
    /// Blocks read from the origin.
    pub misses: u32,
    /// The origin has zeroed its range.
    pub zeroed: bool,
    /// It is a write into the cache.
    pub cached: bool,
    /// It is a write that found no room in the cache: it goes to the origin.
    pub around: bool,
}

impl Req {
    /// A request for these blocks, which waits for its turn.
    pub fn new(id: RequestId, request: Request, first: Key, last: Key, now: Time) -> Req {
        Req {
            id,
            volume: request.volume,
            kind: request.kind,
            offset: request.offset,
            len: request.len,
            fua: request.fua,
            buf: request.buf,
            since: now,
            first,
            last,
            wait: Wait::Turn,
            holds: false,
            pending: 0,
            error: None,
            overtaken: false,
            sequential: false,
            written: 0,
            written_dseq: Dseq::NONE,
            merge: [None, None],
            hits: 0,
            misses: 0,
            zeroed: false,
            cached: false,
            around: false,
        }
    }

    /// Blocks of its range.
    pub fn blocks(&self) -> u64 {
        self.last - self.first + 1
    }

    /// What it waits for.
    pub fn waits_for(&self) -> Wait {
        self.wait
    }

    /// Whether it holds its blocks against overlapping requests.
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// Whether a write has overtaken this read: what it brings may be old.
    pub fn overtaken(&self) -> bool {
        self.overtaken
    }

    /// Sectors of block `key` that the request covers.
    pub fn mask_of(&self, key: Key, base: Key) -> u8 {
        let start = (key - base) * BLOCK_SIZE as u64;
        let from = self.offset.max(start) - start;
        let to = (self.offset + self.len).min(start + BLOCK_SIZE as u64) - start;
        let (from, to) = (from as u32 / 512, to as u32 / 512);
        (((1_u32 << to) - 1) & !((1_u32 << from) - 1)) as u8
    }

    /// Where the request's part of block `key` lies: range in the block, and first byte in the
    /// buffer.
    pub fn part_of(&self, key: Key, base: Key) -> (Range<usize>, usize) {
        let start = (key - base) * BLOCK_SIZE as u64;
        let from = self.offset.max(start);
        let to = (self.offset + self.len).min(start + BLOCK_SIZE as u64);
        ((from - start) as usize..(to - start) as usize, (from - self.offset) as usize)
    }
}

/// How a read gets its next blocks that are not in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// Another read brings so many.
    Joined(u64),
    /// It reads so many itself, and others may join it.
    Own(u64),
}

/// All requests under way.
#[derive(Debug, Default)]
pub struct Requests {
    all: Slab<Req>,
    overlap: Overlap,
    fetches: Fetches,
    queues: [Vec<ReqKey>; QUEUES],
    /// Ranges being zeroed at the origin: first and last block, and the request.
    zeroing: Vec<(Key, Key, ReqKey)>,
    /// Those that wait for room: whose turn it is, and until when they pause.
    turns: Turns,
    /// Times that a write waited for it.
    stalls: u64,
}

impl Requests {
    /// Takes a request in.
    #[inline]
    pub fn insert(&mut self, req: Req) -> ReqKey {
        ReqKey(self.all.insert(req))
    }

    /// Forgets a request that is answered. Those that it held up may begin. Its buffer.
    #[inline]
    pub fn forget(&mut self, name: ReqKey) -> Buf {
        let req = self.all.get_mut(name.0).expect("a request is answered once");
        assert_eq!(req.pending, 0, "nothing of a request runs on after its answer");
        let buf = std::mem::take(&mut req.buf);
        if req.holds {
            self.overlap.release(name);
        }
        self.zeroing.retain(|&(_, _, zeroing)| zeroing != name);
        self.all.forget(name.0);
        buf
    }

    /// The request, unless it is answered.
    #[inline]
    pub fn find(&self, name: ReqKey) -> Option<&Req> {
        self.all.get(name.0)
    }

    /// A request that is under way for sure.
    #[inline]
    pub fn get(&self, name: ReqKey) -> &Req {
        self.find(name).expect("the request is under way")
    }

    /// As [`Requests::get`], for what happens to it.
    #[inline]
    fn at(&mut self, name: ReqKey) -> &mut Req {
        self.all.get_mut(name.0).expect("the request is under way")
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether no request is under way.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (ReqKey, &Req)> {
        self.all.iter().map(|(name, req)| (ReqKey(name), req))
    }

    /// The request waits for this from now on.
    #[inline]
    pub fn wait(&mut self, name: ReqKey, wait: Wait) {
        self.at(name).wait = wait;
        if let Some(queue) = wait.queue() {
            self.queues[queue as usize].push(name);
        }
    }

    /// Those of a list.
    pub fn waiting(&self, queue: Queue) -> &[ReqKey] {
        &self.queues[queue as usize]
    }

    /// Takes all of a list, to go on; who still waits says so again.
    pub fn take_all(&mut self, queue: Queue) -> Vec<ReqKey> {
        let taken = std::mem::take(&mut self.queues[queue as usize]);
        taken.iter().for_each(|&name| self.at(name).wait = Wait::Parts);
        taken
    }

    /// Takes the one at a place of a list; another one is there now.
    pub fn take(&mut self, queue: Queue, at: usize) -> ReqKey {
        self.queues[queue as usize].swap_remove(at)
    }

    /// Whether any waits for more in the log than is there up to `dseq`.
    pub fn want_more_than(&self, dseq: Dseq) -> bool {
        self.waiting(Queue::Log).iter().any(|&name| match self.get(name).wait {
            Wait::Intent(wanted) | Wait::Logged(wanted) => wanted > dseq,
            _ => unreachable!("the others are not listed here"),
        })
    }

    /// Lets a request begin on its blocks, or makes it wait behind what it overlaps.
    #[inline]
    pub fn acquire(&mut self, name: ReqKey, access: Access) -> bool {
        let req = self.all.get_mut(name.0).expect("the request is under way");
        req.holds = self.overlap.acquire(name, req.first, req.last, access);
        req.wait = if req.holds { Wait::Parts } else { Wait::Turn };
        req.holds
    }

    /// A request that waited for its turn, and has it now.
    #[inline]
    pub fn next_ready(&mut self) -> Option<ReqKey> {
        let name = self.overlap.next_ready()?;
        let req = self.at(name);
        (req.holds, req.wait) = (true, Wait::Parts);
        Some(name)
    }

    /// The request is done with its blocks, if it holds them.
    #[inline]
    pub fn release(&mut self, name: ReqKey) {
        if std::mem::take(&mut self.at(name).holds) {
            self.overlap.release(name);
        }
    }

    /// A write reaches these blocks. Reads under way may bring older ones, which enter no cache;
    /// nobody who comes later `joins` them. I7.
    pub fn overtake(&mut self, first: Key, last: Key, joins: bool) {
        let all = &mut self.all;
        self.overlap.reads(first, last, |read| {
            all.get_mut(read.0).expect("the request is under way").overtaken = true;
        });
        if !joins {
            self.fetches.overtake(first, last);
        }
    }

    /// How a read gets the next of its blocks that are not in the cache.
    pub fn fetch(&mut self, name: ReqKey, key: Key, blocks: u64) -> Fetch {
        if let Some(blocks) = self.fetches.joins(key, blocks) {
            self.fetches.join(Joined { req: name, key, blocks });
            return Fetch::Joined(blocks);
        }
        let blocks = self.fetches.lacks(key, blocks);
        self.fetches.begin(name, key, blocks);
        Fetch::Own(blocks)
    }

    /// A read of a request from the origin has ended: those that have joined it.
    pub fn fetched(&mut self, name: ReqKey, key: Key) -> Vec<Joined> {
        self.fetches.end(name, key)
    }

    /// The range of a request is being zeroed at the origin until it is answered.
    pub fn zeroes(&mut self, name: ReqKey) {
        let Req { first, last, .. } = *self.get(name);
        self.zeroing.push((first, last, name));
    }

    /// Whether a block is being zeroed at the origin.
    pub fn is_zeroing(&self, key: Key) -> bool {
        self.zeroing.iter().any(|&(first, last, _)| (first..=last).contains(&key))
    }

    /// Whether any of a volume waits for room.
    pub fn waits_for_room(&self, volume: VolumeId) -> bool {
        self.turns.is_waiting(volume)
    }

    /// Nobody who waits for room goes on before.
    pub fn pause_until(&self) -> Time {
        self.turns.pause_until()
    }

    /// A volume is gone.
    pub fn forget_volume(&mut self, volume: VolumeId) {
        self.turns.forget(volume);
    }

    /// Times that a write waited for room.
    pub fn stalls(&self) -> u64 {
        self.stalls
    }

    /// Asserts that the lists are of those that wait for it, and of nobody else.
    pub fn check(&self) {
        for queue in [Queue::Recovery, Queue::Slice, Queue::Entries, Queue::Log, Queue::Durable] {
            let listed = self.waiting(queue);
            let wait = |name: &&ReqKey| self.get(**name).wait.queue() == Some(queue);
            assert_eq!(listed.iter().filter(wait).count(), listed.len(), "{queue:?}");
            let waiting = self.iter().filter(|(_, req)| req.wait.queue() == Some(queue)).count();
            assert_eq!(waiting, listed.len(), "{queue:?}");
        }
        assert!(!self.is_empty() || self.fetches.is_empty(), "a read that nobody waits for");
    }
}
