//! Who waits for what: requests, their parts (one extent each), and the order of those that change
//! one extent. Two changes of one block are never under way together, nor is one with a piece of
//! it that is being copied (T5).

use crate::event::IoId;
use crate::part::touched_by;
use forebay_format::io::{Buf, IoError};
use forebay_format::tier::{Blocks, Place};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// What a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Zero { unmap: bool },
    Discard,
}

/// A request of a client.
#[derive(Debug)]
pub(crate) struct Request {
    pub id: IoId,
    pub kind: Kind,
    pub buf: Buf,
    pub offset: u64,
    pub len: u64,
    /// Bytes that parts were made for.
    pub made: u64,
    /// Parts that have not ended.
    pub parts: u32,
    pub error: Option<IoError>,
}

/// What a part does to its extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Read,
    Write,
    /// Zeros are written, if anything is.
    WriteZeros,
    /// Whole blocks.
    Zero {
        unmap: bool,
    },
    /// Whole blocks.
    Discard,
}

/// A part of a request.
#[derive(Debug)]
pub(crate) struct Part {
    pub request: u64,
    pub what: What,
    pub extent: u32,
    /// Bytes in the extent.
    pub range: Range<u64>,
    /// First byte in the request's buffer.
    pub at: usize,
    /// Blocks that are changed: with what a first write of a block brings along.
    pub blocks: Blocks,
    /// Written blocks when a read began: the others are zeros.
    pub valid: Blocks,
    /// Device I/Os under way.
    pub legs: u32,
    /// The one that counts has failed.
    pub error: Option<IoError>,
    /// Where the one that counts goes.
    pub place: Option<Place>,
    /// That one has ended well, and may not be durable.
    pub is_there: bool,
    /// Where the other one of a write goes, and how that has failed.
    pub mirror: Option<Place>,
    pub mirror_error: Option<IoError>,
    /// The journal has promised room.
    pub is_promised: bool,
    /// The journal has to say that blocks are written.
    pub is_first: bool,
    /// The request's own buffer is with the device.
    pub has_buf: bool,
    /// Devices that had no room for it, and moves that were begun for its sake.
    pub refused: u32,
}

impl Part {
    /// The I/O that counts has ended.
    pub fn main_ended(&mut self, result: Result<(), IoError>) {
        self.is_there = result.is_ok() && self.what != What::Read && self.legs > 0;
        self.error = self.error.or(result.err());
    }

    /// How a write has ended, of an extent that lives here now: it may have gone back meanwhile to
    /// where it came from.
    pub fn outcome(&self, place: Option<Place>) -> Option<IoError> {
        match place {
            _ if place == self.place => self.error,
            Some(_) if place == self.mirror => self.mirror_error,
            _ => Some(IoError::Io),
        }
    }
}

/// What goes on with one extent.
#[derive(Debug, Default)]
struct Order {
    /// Changes under way.
    changes: Vec<(u64, Blocks)>,
    /// Blocks that a move copies, or wants to copy next.
    claim: Blocks,
    waiting: VecDeque<(u64, Blocks)>,
}

/// The owner of requests and their order.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    next: u64,
    requests: BTreeMap<u64, Request>,
    parts: BTreeMap<u64, Part>,
    orders: BTreeMap<u32, Order>,
    /// Requests of which parts can be made.
    making: VecDeque<u64>,
    /// Changes that need not wait any more.
    ready: VecDeque<u64>,
    /// Parts that wait for the journal to say something.
    said: BTreeSet<(u64, u64)>,
    /// Parts that wait for room in the journal, for a free place.
    for_room: Vec<u64>,
    for_space: Vec<u64>,
    /// Parts that wait for their extent to live where there is room. They change nothing.
    for_refuge: Vec<u64>,
}

impl Requests {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn add(&mut self, request: Request) -> u64 {
        let number = self.number();
        self.requests.insert(number, request);
        number
    }

    pub fn request(&mut self, number: u64) -> &mut Request {
        self.requests.get_mut(&number).expect("the request is not answered")
    }

    pub fn remove(&mut self, number: u64) -> Request {
        self.requests.remove(&number).expect("a request is answered once")
    }

    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn has(&self, number: u64) -> bool {
        self.requests.contains_key(&number)
    }

    /// The extent of a part, and its bytes there.
    pub fn place_of(&self, part: u64) -> (u32, Range<u64>) {
        let part = &self.parts[&part];
        (part.extent, part.range.clone())
    }

    pub fn add_part(&mut self, part: Part) -> u64 {
        let number = self.number();
        self.request(part.request).parts += 1;
        self.parts.insert(number, part);
        number
    }

    pub fn part(&mut self, number: u64) -> &mut Part {
        self.parts.get_mut(&number).expect("the part has not ended")
    }

    pub fn remove_part(&mut self, number: u64) -> Part {
        let part = self.parts.remove(&number).expect("a part ends once");
        self.request(part.request).parts -= 1;
        part
    }

    /// A member may have lost what was written there: so have writes that wait for their other
    /// place only, and of which nothing is said yet.
    pub fn doubt(&mut self, member: u8) {
        for part in self.parts.values_mut() {
            let is_here = part.place.is_some_and(|it| it.member() == member);
            if is_here && part.is_there && part.is_first {
                part.error = part.error.or(Some(IoError::Io));
            }
        }
    }

    /// More parts of this request can be made later.
    pub fn make_later(&mut self, request: u64) {
        if !self.making.contains(&request) {
            self.making.push_back(request);
        }
    }

    pub fn making(&mut self) -> Option<u64> {
        self.making.pop_front()
    }

    pub fn is_making(&self) -> bool {
        !self.making.is_empty()
    }

    /// Whether a change may begin; if not, it waits.
    pub fn may_change(&mut self, part: u64) -> bool {
        let (extent, blocks) = (self.parts[&part].extent, self.parts[&part].blocks);
        let order = self.orders.entry(extent).or_default();
        let is_free = order.is_free(blocks)
            && order.waiting.iter().all(|(_, other)| other.and(blocks).is_empty());
        match is_free {
            true => order.changes.push((part, blocks)),
            false => order.waiting.push_back((part, blocks)),
        }
        is_free
    }

    /// A change that is under way changes more than was thought. If that cannot be now, it waits.
    pub fn widen(&mut self, part: u64, blocks: Blocks) -> bool {
        let extent = self.parts[&part].extent;
        let order = self.orders.get_mut(&extent).expect("a change is under way");
        let at = order.changes.iter().position(|(it, _)| *it == part).expect("it is under way");
        if blocks.without(order.changes[at].1).is_empty() {
            return true;
        }
        order.changes.swap_remove(at);
        let is_free = order.is_free(blocks);
        match is_free {
            true => order.changes.push((part, blocks)),
            false => order.waiting.push_front((part, blocks)),
        }
        is_free
    }

    /// Blocks of an extent that are being changed.
    pub fn changing(&self, extent: u32) -> Blocks {
        let changes = self.orders.get(&extent).map_or(&[][..], |order| &order.changes);
        changes.iter().fold(Blocks::NONE, |all, (_, blocks)| all.or(*blocks))
    }

    /// Whether changes of an extent are under way besides this one.
    pub fn is_changed_by_others(&self, extent: u32, part: u64) -> bool {
        let others = |order: &Order| {
            order.changes.iter().any(|(it, _)| *it != part) || !order.waiting.is_empty()
        };
        self.orders.get(&extent).is_some_and(others)
    }

    /// A change has ended: others may begin.
    pub fn changed(&mut self, extent: u32, part: u64) {
        // One that waits for a refuge is no change.
        let Some(order) = self.orders.get_mut(&extent) else { return };
        order.changes.retain(|(other, _)| *other != part);
        self.wake(extent);
    }

    fn wake(&mut self, extent: u32) {
        let Some(order) = self.orders.get_mut(&extent) else { return };
        let mut kept = VecDeque::new();
        let mut before = Blocks::NONE;
        for (part, blocks) in std::mem::take(&mut order.waiting) {
            if order.is_free(blocks) && before.and(blocks).is_empty() {
                order.changes.push((part, blocks));
                self.ready.push_back(part);
            } else {
                before = before.or(blocks);
                kept.push_back((part, blocks));
            }
        }
        order.waiting = kept;
        if order.changes.is_empty() && order.waiting.is_empty() && order.claim.is_empty() {
            self.orders.remove(&extent);
        }
    }

    /// A change that may begin now.
    pub fn pop_ready(&mut self) -> Option<u64> {
        self.ready.pop_front()
    }

    /// A move wants these blocks for itself: no new change of them begins. Whether it has them.
    pub fn claim(&mut self, extent: u32, blocks: Blocks) -> bool {
        let order = self.orders.entry(extent).or_default();
        order.claim = blocks;
        order.changes.iter().all(|(_, other)| other.and(blocks).is_empty())
    }

    /// The move is done with them: changes may begin.
    pub fn unclaim(&mut self, extent: u32) {
        if let Some(order) = self.orders.get_mut(&extent) {
            order.claim = Blocks::NONE;
        }
        self.wake(extent);
    }

    /// The part ends when the journal has said record `seq`.
    pub fn wait_said(&mut self, part: u64, seq: u64) {
        self.said.insert((seq, part));
    }

    /// The next part that waits for a record up to this one.
    pub fn pop_said(&mut self, is_said: impl Fn(u64) -> bool) -> Option<u64> {
        let first = self.said.first().copied().filter(|(seq, _)| is_said(*seq))?;
        self.said.remove(&first);
        Some(first.1)
    }

    /// All parts that wait for the journal: it is gone.
    pub fn drop_said(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.said).into_iter().map(|(_, part)| part).collect()
    }

    pub fn wait_room(&mut self, part: u64) {
        self.for_room.push(part);
    }

    pub fn wait_space(&mut self, part: u64) {
        self.for_space.push(part);
    }

    /// A change is none for now: others may begin, and its extent may leave.
    pub fn step_back(&mut self, part: u64) {
        let extent = self.parts[&part].extent;
        self.changed(extent, part);
        self.for_refuge.push(part);
    }

    /// It changes its extent after all; whether it may begin. If not, it waits.
    pub fn come_back(&mut self, part: u64) -> bool {
        let own = self.part(part);
        own.blocks = touched_by(&own.range);
        self.may_change(part)
    }

    pub fn wait_refuge(&mut self, part: u64) {
        self.for_refuge.push(part);
    }

    pub fn take_for_refuge(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.for_refuge)
    }

    pub fn take_for_room(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.for_room)
    }

    pub fn take_for_space(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.for_space)
    }

    pub fn waits_for_room(&self) -> bool {
        !self.for_room.is_empty()
    }

    pub fn waits_for_space(&self) -> bool {
        !self.for_space.is_empty()
    }
}

impl Order {
    fn is_free(&self, blocks: Blocks) -> bool {
        self.claim.and(blocks).is_empty()
            && self.changes.iter().all(|(_, other)| other.and(blocks).is_empty())
    }
}
