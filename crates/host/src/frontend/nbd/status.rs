//! Metadata contexts and block status.

use super::core::Core;
use super::fault::NO_MEMORY;
use super::slots::{BLOCK_BYTES, Slot, buf_bytes};
use super::{SessionEvent, Ticket};
use forebay_engine::{BlockStatus, Buf, BufPool};
use forebay_nbd::wire::{self, Head, chunk, cmd_flag};
use std::ops::Range;

/// Identity of `base:allocation`. Where an origin does not tell, everything counts as allocated.
const ALLOCATION: u32 = 1;

/// Bits of `base:allocation`: the origin has no space for it, and it reads as zeros.
const STATE_HOLE: u32 = 3;

/// Identity of `forebay:cache`.
const CACHE: u32 = 2;

/// The contexts of every export.
pub(super) const NAMES: [(u32, &str); 2] =
    [(ALLOCATION, "base:allocation"), (CACHE, "forebay:cache")];

/// Bit of `forebay:cache`: the block is in the cache.
pub const STATE_CACHED: u32 = 1;

/// Bit of `forebay:cache`: the block is newer than the origin.
pub const STATE_DIRTY: u32 = 2;

/// Bytes of one extent in the reply, in its longer form.
const EXTENT_BYTES_MAX: usize = 16;

/// A set of contexts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Contexts(u8);

impl Contexts {
    /// All that there are.
    pub(super) fn all() -> Contexts {
        NAMES.iter().fold(Contexts(0), |set, (id, _)| Contexts(set.0 | 1 << id))
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn has(self, id: u32) -> bool {
        self.0 & 1 << id != 0
    }

    /// Adds what `query` selects: a name, or when listing also all names of a namespace.
    pub(super) fn query(&mut self, query: &str, exact: bool) {
        for (id, name) in NAMES {
            let namespace = query.ends_with(':') && name.starts_with(query) && !exact;
            if query == name || namespace {
                self.0 |= 1 << id;
            }
        }
    }

    /// The contexts of this set whose identities `ids` lists, or `None` if one of them is not in
    /// the set or comes twice.
    pub(super) fn chosen(self, ids: &[u8]) -> Option<Contexts> {
        let mut chosen = Contexts(0);
        for id in ids.chunks_exact(4).map(|id| wire::u32_at(id, 0)) {
            if id > 7 || !self.has(id) || chosen.has(id) {
                return None;
            }
            chosen.0 |= 1 << id;
        }
        Some(chosen)
    }
}

/// What there is to say of a block.
#[derive(Debug, Clone, Copy)]
pub struct BlockState {
    /// Where it is in the cache.
    pub cache: BlockStatus,
    /// The origin has no space for it: all of it reads as zeros there.
    pub hole: bool,
}

impl From<BlockStatus> for BlockState {
    fn from(cache: BlockStatus) -> BlockState {
        BlockState { cache, hole: false }
    }
}

/// What `base:allocation` says of a block.
fn allocation_of(state: BlockState) -> u32 {
    if state.hole && state.cache != BlockStatus::Dirty { STATE_HOLE } else { 0 }
}

/// What `forebay:cache` says of a block.
fn state_of(status: BlockStatus) -> u32 {
    match status {
        BlockStatus::NotCached => 0,
        BlockStatus::Clean => STATE_CACHED,
        BlockStatus::Dirty => STATE_CACHED | STATE_DIRTY,
    }
}

impl Core {
    /// Bytes of the buffer for the longest answer of one context.
    fn status_bytes(&self) -> u64 {
        (8 + EXTENT_BYTES_MAX * self.limits.status_extents_max) as u64
    }

    /// The contexts of a request in `slot` for whose blocks the loop is asked.
    fn contexts_asked(&mut self, slot: u32) -> Vec<u32> {
        let contexts = self.slots.get(slot).contexts;
        let is_sparse = self.export.as_ref().is_some_and(|export| export.sparse);
        let asked = |id: &u32| contexts.has(*id) && (*id == CACHE || is_sparse);
        [ALLOCATION, CACHE].into_iter().filter(asked).collect()
    }

    /// What a block-status request in `slot` is charged.
    pub(super) fn status_charge(&mut self, slot: u32) -> u64 {
        buf_bytes(self.status_bytes()) * self.contexts_asked(slot).len() as u64
    }

    /// Begins to look where the blocks of a range are, or answers at once if nobody wants to know.
    pub(super) fn begin_status(
        &mut self,
        slot: u32,
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) {
        if self.contexts_asked(slot).is_empty() {
            self.allocation_chunk(slot, chunk::DONE);
            self.slots.remove(slot);
            return;
        }
        self.begin(slot, bufs, events);
    }

    /// Takes the memory for the answers of a block-status request. Whether there was some.
    fn start_extents(&mut self, slot: u32, bufs: &mut BufPool) -> bool {
        let header = self.slots.get(slot).header;
        let one = header.flags & cmd_flag::REQ_ONE != 0;
        let count_max = if one { 1 } else { self.limits.status_extents_max };
        let form = (self.negotiated.extended, count_max);
        for id in self.contexts_asked(slot) {
            let Some(buf) = bufs.try_take(self.status_bytes() as usize) else {
                self.slots.get(slot).extents.drain(..).for_each(|it| bufs.give(it.buf));
                return false;
            };
            let extents = Extents::start(buf, id, header.offset, form);
            self.slots.get(slot).extents.push(extents);
        }
        true
    }

    /// The blocks that a block-status request looks at next, and where it ends.
    fn status_slice(&mut self, slot: u32) -> (Range<u64>, u64) {
        let (blocks_max, slice) = (self.limits.status_blocks_max, self.limits.status_slice_blocks);
        let Slot { header, next_part, .. } = *self.slots.get(slot);
        let first = header.offset / BLOCK_BYTES;
        let last = (header.offset + header.len).div_ceil(BLOCK_BYTES).min(first + blocks_max);
        let start = first + next_part * slice;
        (start..last.min(start + slice), last)
    }

    /// Asks the loop where the next blocks of a block-status request are.
    pub(super) fn ask_status(
        &mut self,
        slot: u32,
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) {
        if self.slots.get(slot).extents.is_empty() && !self.start_extents(slot, bufs) {
            let charge = self.status_charge(slot);
            self.release(charge);
            let request = self.slots.get(slot);
            request.fault = Some((NO_MEMORY, request.header.offset));
            return self.finish_if_done(slot, bufs);
        }
        let ticket = self.slots.ticket(slot, 0);
        let volume = self.export.as_ref().expect("a request has an export").volume;
        let (blocks, _) = self.status_slice(slot);
        self.slots.get(slot).waiting += 1;
        self.in_flight += 1;
        self.dataless += self.limits.part_bytes_max;
        let (block, count) = (blocks.start, blocks.end - blocks.start);
        events.push(SessionEvent::Status { ticket, volume, block, count });
    }

    /// The loop's answer: goes on with the next blocks, or builds and queues the reply.
    pub(super) fn status<S: Into<BlockState>>(
        &mut self,
        ticket: Ticket,
        mut lookup: impl FnMut(u64) -> S,
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) {
        let (slot, _) = self.slots.find(ticket);
        self.in_flight -= 1;
        self.dataless -= self.limits.part_bytes_max;
        let (blocks, last) = self.status_slice(slot);
        let request = self.slots.get(slot);
        request.waiting -= 1;
        if self.gone {
            return request.extents.drain(..).for_each(|extents| bufs.give(extents.buf));
        }
        request.next_part += 1;
        let mut ends = blocks.end == last;
        for block in blocks {
            let state = lookup(block).into();
            request.extents.iter_mut().for_each(|it| it.block(block * BLOCK_BYTES, state));
            if request.extents.iter().all(Extents::is_full) {
                ends = true;
                break;
            }
        }
        match ends {
            true => self.status_reply(slot, last),
            false => {
                // It is not long, and one that is through is worth more than two that are half.
                self.slots.get(slot).going = true;
                self.going.push_front(slot);
            }
        }
        self.go_on(bufs, events);
    }

    /// Queues the reply to a block-status request, of which the blocks up to `last` were looked at.
    fn status_reply(&mut self, slot: u32, last: u64) {
        let request = self.slots.get(slot);
        let header = request.header;
        let mut extents = std::mem::take(&mut request.extents);
        if request.contexts.has(ALLOCATION) && extents.iter().all(|it| it.context != ALLOCATION) {
            self.allocation_chunk(slot, 0);
        }
        let end = (last * BLOCK_BYTES).min(header.offset + header.len);
        let charge = buf_bytes(self.status_bytes());
        let extended = self.negotiated.extended;
        let kind = if extended { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS };
        let mut left = extents.len();
        for buf in extents.drain(..).map(|extents| extents.finish(end)) {
            left -= 1;
            let flags = if left == 0 { chunk::DONE } else { 0 };
            let head = self.chunk_head(&header, flags, kind, buf.len() as u64);
            self.out.head(head.bytes());
            self.out.data(buf, charge);
        }
        self.slots.get(slot).extents = extents;
        self.slots.remove(slot);
    }

    /// Queues the answer about allocation: one extent.
    fn allocation_chunk(&mut self, slot: u32, flags: u16) {
        let header = self.slots.get(slot).header;
        if self.negotiated.extended {
            let head = self.chunk_head(&header, flags, chunk::BLOCK_STATUS_EXT, 24);
            self.out.head(head.bytes());
            let extent = Head::new().u32(ALLOCATION).u32(1).u64(header.len).u32(0).u32(0);
            self.out.head(extent.bytes());
        } else {
            let head = self.chunk_head(&header, flags, chunk::BLOCK_STATUS, 12);
            self.out.head(head.bytes());
            let extent = Head::new().u32(ALLOCATION).u32(header.len as u32).u32(0);
            self.out.head(extent.bytes());
        }
    }
}

/// Writes the extents of one context into a buffer.
pub(super) struct Extents {
    buf: Buf,
    context: u32,
    extended: bool,
    len: usize,
    count: usize,
    count_max: usize,
    /// Where the extent that is not written yet begins, and its state.
    at: u64,
    state: Option<u32>,
}

impl Extents {
    fn start(buf: Buf, context: u32, at: u64, (extended, count_max): (bool, usize)) -> Extents {
        let mut extents =
            Extents { buf, context, extended, len: 0, count: 0, count_max, at, state: None };
        extents.put(context);
        if extended {
            extents.put(0);
        }
        extents
    }

    fn put(&mut self, value: u32) {
        let bytes = &mut self.buf.bytes_mut()[self.len..self.len + 4];
        bytes.copy_from_slice(&value.to_be_bytes());
        self.len += 4;
    }

    fn is_full(&self) -> bool {
        self.count == self.count_max
    }

    /// Takes in the block that begins at byte `start`.
    fn block(&mut self, start: u64, block: BlockState) {
        let next = match self.context {
            ALLOCATION => allocation_of(block),
            _ => state_of(block.cache),
        };
        if let Some(state) = self.state.replace(next)
            && state != next
        {
            self.push(start, state);
        }
    }

    /// Writes the extent up to `end`, if there is room.
    fn push(&mut self, end: u64, state: u32) {
        if self.is_full() {
            return;
        }
        let bytes = end - self.at;
        if self.extended {
            self.put((bytes >> 32) as u32);
            self.put(bytes as u32);
            self.put(0);
        } else {
            self.put(u32::try_from(bytes).expect("the blocks looked up fit 32 bits"));
        }
        self.put(state);
        self.count += 1;
        self.at = end;
    }

    /// Ends at `end`. What was written.
    fn finish(mut self, end: u64) -> Buf {
        if let Some(state) = self.state {
            self.push(end, state);
        }
        if self.extended {
            self.buf.bytes_mut()[4..8].copy_from_slice(&(self.count as u32).to_be_bytes());
        }
        self.buf.set_len(self.len);
        self.buf
    }
}
