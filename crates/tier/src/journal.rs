//! The journal of the map: numbers its records, writes them to the members that hold the map, and
//! knows how far each has them.
//!
//! A change counts as said when the first holder has it: no killed process can lose it. It counts
//! as confirmed when all holders have a record, flushed, that says so (`barrier.rs`).

use crate::event::MemberId;
use crate::io::{Io, Purpose, UnderWay};
use crate::limits::{
    LEISURE_NS, RECORDS_PER_CHANGE, RECORDS_PER_WRITE, RECORDS_SPARE, UNCONFIRMED_MAX,
};
use forebay_format::BLOCK_SIZE;
use forebay_format::io::Time;
use forebay_format::tier::{ENTRIES_MAX, Entry, Record, TierLayout};
use std::collections::VecDeque;

/// What a holder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It gets records, and has not all pages yet.
    Joins,
    /// It has the map.
    Holds,
    /// It has the map, and others are about to hold it instead: nothing is said by it alone.
    Leaves,
    /// It failed.
    Failed,
    /// Others hold the map instead.
    Left,
}

impl Role {
    fn is_alive(self) -> bool {
        matches!(self, Role::Joins | Role::Holds | Role::Leaves)
    }
}

/// A member that holds the map.
#[derive(Debug)]
struct Holder {
    member: MemberId,
    /// It has all records up to this one.
    written: u64,
    is_writing: bool,
    role: Role,
    /// Records before this one need not be kept there.
    tail: u64,
}

/// What a start has to say again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beside {
    /// Extents that are partly written, and those of which blocks are lost.
    pub unsaid: usize,
    /// Extents of which the last change is not confirmed.
    pub unconfirmed: usize,
}

/// The journal.
#[derive(Debug)]
pub(crate) struct Journal {
    set: u64,
    epoch: u64,
    layout: TierLayout,
    /// What the record that is open says so far; its number is `next`.
    open: Vec<Entry>,
    /// It is to be written though it may say nothing but what is confirmed.
    is_forced: bool,
    /// Somebody waits for it, or may lose by it if it is not written; else only for this time.
    is_urgent: bool,
    open_until: Option<Time>,
    next: u64,
    /// The last record that says anything of an extent.
    last: u64,
    /// Records that some holder does not have yet, from `first` on.
    closed: VecDeque<Vec<u8>>,
    first: u64,
    /// All that records up to this one say is durable, data included.
    confirmed: u64,
    /// Records up to this one are durable themselves.
    durable: u64,
    holders: Vec<Holder>,
    /// Changes that were promised room.
    promised: u64,
    /// Records that saying again what is not in pages may take.
    again: u64,
}

impl Journal {
    /// One whose next record is `next`, of which those up to `confirmed` are, in the life `epoch`,
    /// with these holders and their tails.
    pub fn new(
        (set, epoch): (u64, u64),
        layout: TierLayout,
        (next, confirmed): (u64, u64),
        holders: &[(MemberId, u64)],
        fine_max: usize,
    ) -> Journal {
        let holder = |&(member, tail): &(MemberId, u64)| Holder {
            member,
            written: next - 1,
            is_writing: false,
            role: Role::Holds,
            tail,
        };
        Journal {
            set,
            epoch,
            layout,
            open: Vec::new(),
            is_forced: false,
            is_urgent: false,
            open_until: None,
            next,
            last: next - 1,
            closed: VecDeque::new(),
            first: next,
            confirmed,
            durable: confirmed,
            holders: holders.iter().map(holder).collect(),
            promised: 0,
            again: again(fine_max, &layout),
        }
    }

    /// So many extents may be partly written from now on.
    pub fn set_fine_max(&mut self, fine_max: usize) {
        self.again = again(fine_max, &self.layout);
    }

    fn alive(&self) -> impl Iterator<Item = &Holder> {
        self.holders.iter().filter(|holder| holder.role.is_alive())
    }

    /// Members that hold the map, by index.
    pub fn holders(&self) -> impl Iterator<Item = (usize, MemberId)> {
        let all = self.holders.iter().enumerate();
        all.filter(|(_, holder)| holder.role.is_alive())
            .map(|(index, holder)| (index, holder.member))
    }

    /// Whether a member is among them.
    pub fn is_holder(&self, member: MemberId) -> bool {
        self.alive().any(|holder| holder.member == member)
    }

    /// Whether anybody holds the map.
    pub fn is_held(&self) -> bool {
        self.alive().any(|holder| holder.role != Role::Joins)
    }

    /// Whether somebody else holds the map.
    pub fn is_held_without(&self, member: MemberId) -> bool {
        self.alive().any(|holder| holder.role != Role::Joins && holder.member != member)
    }

    fn blocks(&self) -> u64 {
        u64::from(self.layout.journal_blocks)
    }

    fn used(&self) -> u64 {
        let tail = self.alive().map(|holder| holder.tail).min().unwrap_or(self.next);
        self.next - tail
    }

    /// Whether the ring is half full, and a checkpoint would make room: time for one.
    pub fn wants_checkpoint(&self) -> bool {
        self.used() + self.again > self.blocks() / 2 && self.has_much()
    }

    /// Whether a checkpoint would make room.
    pub fn has_much(&self) -> bool {
        self.used() > self.blocks() / 8 + self.again
    }

    /// Promises room for one change, where pages cannot say so much and so much is unconfirmed.
    pub fn promise(&mut self, beside: Beside) -> bool {
        let kept = self.used() + self.kept(beside) + RECORDS_SPARE;
        let free = self.blocks().saturating_sub(kept);
        let has_room = (self.promised + 1) * RECORDS_PER_CHANGE <= free;
        self.promised += u64::from(has_room);
        has_room
    }

    /// Records that are kept for what is said again: by a checkpoint what pages cannot say, and
    /// before that one is over, by the start after a kill, once more, with all that is unconfirmed
    /// (`start.rs`).
    fn kept(&self, beside: Beside) -> u64 {
        let records = |entries: u64| entries.div_ceil(ENTRIES_MAX as u64) + 1;
        let Beside { unsaid, unconfirmed } = beside;
        // Who waits for room waits for a checkpoint, and that is only begun where it makes room.
        let most = (self.blocks() / 8 * 7).saturating_sub(self.again + RECORDS_SPARE + 4);
        let twice = (2 * records(unsaid as u64)).min(most);
        // What was promised may come to be either.
        self.again.max(twice) + records(unconfirmed as u64 + 2 * (self.promised + 1))
    }

    /// The change does not come.
    pub fn forgo(&mut self) {
        self.promised -= 1;
    }

    /// Takes in a change that was promised room; the number of the record that says it.
    pub fn append(&mut self, entry: Entry) -> u64 {
        self.promised -= 1;
        self.say(entry)
    }

    /// The same for what nobody waits for: it is written with what others say, or a while later.
    pub fn append_at_leisure(&mut self, entry: Entry, now: Time) -> u64 {
        self.promised -= 1;
        let seq = self.take_in(entry);
        self.open_until.get_or_insert(now + LEISURE_NS);
        seq
    }

    /// Says something without a promise: what a checkpoint says again, what a failure makes known.
    pub fn say(&mut self, entry: Entry) -> u64 {
        let seq = self.take_in(entry);
        self.is_urgent = true;
        seq
    }

    fn take_in(&mut self, entry: Entry) -> u64 {
        self.last = self.next;
        let same = |it: &&mut Entry| it.extent == entry.extent && it.kind == entry.kind;
        if let Some(before) = self.open.iter_mut().find(same) {
            *before = entry;
            return self.next;
        }
        if self.open.len() == ENTRIES_MAX {
            self.close();
            self.last = self.next;
        }
        self.open.push(entry);
        self.next
    }

    /// The number of the last record that says anything.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The number of the record that is open.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Begins a new record.
    pub fn close(&mut self) {
        if self.open.is_empty() && !self.is_forced {
            return;
        }
        let entries = std::mem::take(&mut self.open);
        let (epoch, seq) = (self.epoch, self.next);
        let (confirmed, durable) = (self.confirmed, self.durable);
        assert!(self.used() < self.blocks(), "the journal overruns its tail");
        let mut bytes = vec![0; BLOCK_SIZE];
        Record { epoch, seq, confirmed, durable, entries }.encode(self.set, &mut bytes);
        self.closed.push_back(bytes);
        self.next += 1;
        (self.is_forced, self.is_urgent, self.open_until) = (false, false, None);
    }

    /// All up to record `seq` is durable but for a record that says so: the number of that one.
    pub fn say_confirmed(&mut self, seq: u64) -> u64 {
        assert!(seq >= self.confirmed && seq < self.next);
        self.confirmed = seq;
        self.is_forced = true;
        let said = self.next;
        self.close();
        said
    }

    /// Records up to this one are durable.
    pub fn set_durable(&mut self, seq: u64) {
        self.durable = self.durable.max(seq.min(self.confirmed));
    }

    /// Whether the first holder has this record: of those that go on.
    pub fn is_said(&self, seq: u64) -> bool {
        let is_staying = |holder: &&Holder| holder.role == Role::Holds;
        let first = self.alive().find(is_staying).or_else(|| self.alive().next());
        self.is_held() && first.is_some_and(|holder| holder.written >= seq)
    }

    /// Whether all holders have this record.
    pub fn is_everywhere(&self, seq: u64) -> bool {
        self.is_held() && self.alive().all(|holder| holder.written >= seq)
    }

    /// Somebody waits for the record that is open.
    pub fn hurry(&mut self) {
        self.is_urgent |= !self.open.is_empty();
    }

    /// When the record that is open is to be written, if nobody waits for it.
    pub fn due(&self) -> Option<Time> {
        self.open_until.filter(|_| !self.is_urgent)
    }

    /// Writes what is to be written to holders that write nothing.
    pub fn send(&mut self, io: &mut Io) {
        let first_is_idle = self.alive().next().is_some_and(|holder| !holder.is_writing);
        self.is_urgent |= self.due().is_some_and(|due| due <= io.now());
        if first_is_idle && self.is_urgent {
            self.close();
        }
        let (first, next) = (self.first, self.next);
        let blocks = self.blocks();
        for (index, holder) in self.holders.iter_mut().enumerate() {
            let from = holder.written + 1;
            if !holder.role.is_alive() || holder.is_writing || from >= next {
                continue;
            }
            // Up to the end of the ring, and not too many.
            let until_wrap = blocks - from % blocks;
            let count = (next - from).min(until_wrap).min(RECORDS_PER_WRITE);
            let mut buf = io.buf(count as usize * BLOCK_SIZE);
            let rooms = buf.bytes_mut().chunks_exact_mut(BLOCK_SIZE);
            let records = self.closed.iter().skip((from - first) as usize);
            rooms.zip(records).for_each(|(room, record)| room.copy_from_slice(record));
            holder.is_writing = true;
            let what = Purpose::Records(index, from + count - 1);
            io.write(UnderWay::meta(holder.member, what), self.layout.record_offset(from), buf);
        }
    }

    /// The holder has records up to this one.
    pub fn written(&mut self, index: usize, seq: u64) {
        let holder = &mut self.holders[index];
        holder.is_writing = false;
        holder.written = seq;
        self.forget();
    }

    fn forget(&mut self) {
        let everywhere = self.alive().map(|holder| holder.written).min().unwrap_or(self.next - 1);
        while self.first <= everywhere && self.closed.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// A holder failed: the others go on. Whether it was one until now.
    pub fn fail(&mut self, index: usize) -> Option<MemberId> {
        let holder = &mut self.holders[index];
        holder.is_writing = false;
        if !std::mem::replace(&mut holder.role, Role::Failed).is_alive() {
            return None;
        }
        let member = holder.member;
        self.forget();
        Some(member)
    }

    /// Whether those that have the map have all records that one had which failed: some were
    /// answered when only that one had them.
    pub fn is_handed_over(&self) -> bool {
        let failed = self.holders.iter().filter(|holder| holder.role == Role::Failed);
        let needed = failed.map(|holder| holder.written).max().unwrap_or(0);
        let mut with_map = self.alive().filter(|holder| holder.role != Role::Joins);
        self.is_held() && with_map.all(|holder| holder.written >= needed)
    }

    /// Records before this one are not needed any more on a holder.
    pub fn set_tail(&mut self, index: usize, tail: u64) {
        let holder = &mut self.holders[index];
        holder.tail = tail;
        if holder.role == Role::Joins {
            holder.role = Role::Holds;
        }
    }

    /// A member gets records from now on; it holds the map when it has a tail. What was said before
    /// is in the pages that it gets.
    pub fn join(&mut self, member: MemberId) -> usize {
        self.close();
        let (written, tail) = (self.next - 1, self.next);
        let role = Role::Joins;
        self.holders.push(Holder { member, written, is_writing: false, role, tail });
        self.holders.len() - 1
    }

    /// Whether a holder has all pages but those that changed since the last checkpoint.
    pub fn has_map(&self, index: usize) -> bool {
        self.holders[index].role != Role::Joins
    }

    /// Whether a member has all of the map.
    pub fn has_map_on(&self, member: MemberId) -> bool {
        self.alive().any(|holder| holder.role != Role::Joins && holder.member == member)
    }

    /// Members that have the map and go on to hold it.
    pub fn staying(&self) -> impl Iterator<Item = MemberId> {
        let staying = self.holders.iter().filter(|holder| holder.role == Role::Holds);
        staying.map(|holder| holder.member)
    }

    /// Whether a member failed to hold the map, or is about to stop.
    pub fn is_unfit(&self, member: MemberId) -> bool {
        let is_unfit = |it: &Holder| matches!(it.role, Role::Failed | Role::Leaves);
        self.holders.iter().any(|it| it.member == member && is_unfit(it))
    }

    /// Whether a member failed to hold the map.
    pub fn has_failed(&self, member: MemberId) -> bool {
        self.holders.iter().any(|it| it.member == member && it.role == Role::Failed)
    }

    fn set_role(&mut self, member: MemberId, from: Role, to: Role) {
        let own = |it: &&mut Holder| it.member == member && it.role == from;
        self.holders.iter_mut().filter(own).for_each(|it| it.role = to);
    }

    /// Others are about to hold the map instead of a member; or not after all.
    pub fn set_leaving(&mut self, member: MemberId, is_leaving: bool) {
        match is_leaving {
            true => self.set_role(member, Role::Holds, Role::Leaves),
            false => self.set_role(member, Role::Leaves, Role::Holds),
        }
    }

    /// Others hold the map instead of a member.
    pub fn let_go(&mut self, member: MemberId) {
        self.set_role(member, Role::Leaves, Role::Left);
        self.forget();
    }

    /// Members that do not have the map yet do not get it.
    pub fn let_go_of_joining(&mut self) {
        let joining = self.holders.iter_mut().filter(|it| it.role == Role::Joins);
        joining.for_each(|it| it.role = Role::Left);
        self.forget();
    }

    /// What a number stood for is over: another member has it.
    pub fn forgive(&mut self, member: MemberId) {
        self.set_role(member, Role::Failed, Role::Left);
    }
}

/// Records that saying again what is not in pages may take.
fn again(fine_max: usize, layout: &TierLayout) -> u64 {
    let entries = (fine_max + UNCONFIRMED_MAX) as u64;
    let entries = entries.min(2 * u64::from(layout.extents_max));
    entries.div_ceil(ENTRIES_MAX as u64) + 1
}
