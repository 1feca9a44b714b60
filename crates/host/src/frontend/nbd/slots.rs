//! The requests of one connection that are under way.

use super::Ticket;
use super::fault::Fault;
use super::status::{Contexts, Extents};
use forebay_engine::Buf;
use forebay_nbd::wire::Header;

/// What the engine counts in.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// One request.
pub(super) struct Slot {
    /// Counts the requests that used this slot, so that an old ticket is noticed.
    generation: u32,
    used: bool,
    /// The request.
    pub(super) header: Header,
    /// The next part to give to the engine.
    pub(super) next_part: u64,
    /// Parts that the engine has.
    pub(super) waiting: usize,
    /// It has parts that nobody was asked for.
    pub(super) going: bool,
    /// A read's data, by part.
    pub(super) parts: Vec<Buf>,
    /// What a block-status request has found, by context.
    pub(super) extents: Vec<Extents>,
    /// Contexts that a block-status request asks for.
    pub(super) contexts: Contexts,
    /// The first error, and where.
    pub(super) fault: Option<(Fault, u64)>,
}

/// All requests of a connection. Slots are used again and keep their memory.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    /// Requests under way.
    pub(super) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts a request.
    pub(super) fn insert(&mut self, header: Header) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                used: false,
                header,
                next_part: 0,
                waiting: 0,
                going: false,
                parts: Vec::new(),
                extents: Vec::new(),
                contexts: Contexts::default(),
                fault: None,
            });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        assert!(!slot.used);
        assert!(slot.parts.is_empty() && slot.extents.is_empty());
        slot.used = true;
        slot.header = header;
        slot.next_part = 0;
        slot.waiting = 0;
        slot.contexts = Contexts::default();
        slot.fault = None;
        index
    }

    /// Ends a request whose parts are all answered.
    pub(super) fn remove(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert!(slot.used);
        assert!(slot.waiting == 0 && !slot.going);
        slot.used = false;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
    }

    /// The request in a slot.
    pub(super) fn get(&mut self, index: u32) -> &mut Slot {
        let slot = &mut self.slots[index as usize];
        assert!(slot.used);
        slot
    }

    /// Names part `part` of the request in slot `index`. Of one without data it is how many blocks
    /// the part has.
    pub(super) fn ticket(&self, index: u32, part: u64) -> Ticket {
        assert!(index < 1 << 16);
        assert!(part < 1 << 16);
        let generation = self.slots[index as usize].generation;
        Ticket(u64::from(generation) << 32 | part << 16 | u64::from(index))
    }

    /// The slot and part that a ticket names. A ticket that was answered before is a bug of the
    /// loop.
    pub(super) fn find(&self, ticket: Ticket) -> (u32, u64) {
        let index = ticket.0 as u16;
        let slot = &self.slots[usize::from(index)];
        assert!(slot.used);
        assert_eq!(slot.generation, (ticket.0 >> 32) as u32);
        assert!(slot.waiting > 0);
        (u32::from(index), ticket.0 >> 16 & 0xffff)
    }
}

/// Where part `part` of `[offset, offset + len)` starts and how long it is, or `None` behind the
/// last. Parts end at multiples of `part_bytes`, so that an unaligned request has at most two
/// unaligned parts.
pub(super) fn part_range(offset: u64, len: u64, part: u64, part_bytes: u64) -> Option<(u64, u64)> {
    let end = offset + len;
    let start = if part == 0 { offset } else { (offset / part_bytes + part) * part_bytes };
    if start >= end {
        return None;
    }
    let part_end = (offset / part_bytes + part + 1).saturating_mul(part_bytes).min(end);
    Some((start, part_end - start))
}

/// Memory that a buffer of `len` bytes takes from the pool, which knows powers of two only.
pub(super) fn buf_bytes(len: u64) -> u64 {
    len.next_multiple_of(BLOCK_BYTES).next_power_of_two()
}

/// All parts of a request.
pub(super) fn part_ranges(header: &Header, part_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let Header { offset, len, .. } = *header;
    (0..).map_while(move |part| part_range(offset, len, part, part_bytes))
}

/// Memory that the parts of a read take.
pub(super) fn read_bytes(header: &Header, part_bytes: u64) -> u64 {
    part_ranges(header, part_bytes).map(|(_, len)| buf_bytes(len)).sum()
}
