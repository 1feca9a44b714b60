//! I/O under way: names, what each is for, and what it keeps in use.

use crate::event::{Effect, MemberId, Notice};
use crate::limits::{HANG_LOOK_NS, HANG_NS};
use forebay_format::io::{Buf, BufPool, OpId, Time};
use forebay_format::tier::Place;
use std::collections::{BTreeMap, BTreeSet};

/// What an I/O is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Part of a client's request.
    Part(u64),
    /// What a move reads or writes, by extent and number of the move.
    Piece(u32, u64),
    /// Records, to the holder with this index, up to this one.
    Records(usize, u64),
    /// A flush of a member for the barrier: of data, of the journal.
    Barrier(MemberId),
    /// A step of the checkpoint of the holder with this index.
    Checkpoint(usize),
    /// A superblock.
    Superblock(MemberId),
    /// What says that a member belongs to the set is overwritten.
    Wipe,
    /// A start flushes a member, or reads this copy of its superblock.
    Settle(MemberId, usize),
    /// A read of a start.
    Recovery(u64),
    /// A member is told that a place is free.
    Trim(Place),
    /// Nothing any more: it took too long for what it was for.
    GivenUp,
}

/// An I/O under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnderWay {
    pub purpose: Purpose,
    pub member: MemberId,
    /// Where data are read or written: not used otherwise until this ends.
    pub place: Option<Place>,
    pub is_write: bool,
    pub is_flush: bool,
    pub is_client: bool,
    /// Bytes that are read or written.
    pub bytes: u64,
    /// When it was wanted.
    pub began: Time,
}

/// The owner of names, of effects and of the time.
#[derive(Debug)]
pub(crate) struct Io {
    now: Time,
    next: u64,
    under_way: BTreeMap<OpId, UnderWay>,
    effects: Vec<Effect>,
    bufs: BufPool,
    /// Members that had not ended an I/O for long when that was last looked at, and when that was.
    hanging: BTreeSet<MemberId>,
    looked: Time,
    /// Counts what happens, so that rounds go on as long as something does.
    stirred: u64,
}

/// Bytes of buffers that are kept for the next use.
const KEPT_BYTES: usize = 4 << 20;

impl Io {
    pub fn new(now: Time) -> Io {
        Io {
            now,
            next: 0,
            under_way: BTreeMap::new(),
            effects: Vec::new(),
            bufs: BufPool::new(KEPT_BYTES),
            hanging: BTreeSet::new(),
            looked: now,
            stirred: 0,
        }
    }

    pub fn now(&self) -> Time {
        self.now
    }

    pub fn set_now(&mut self, now: Time) {
        assert!(now >= self.now, "time goes backwards");
        self.now = now;
    }

    pub fn take_effects(&mut self, out: &mut Vec<Effect>) {
        out.append(&mut self.effects);
    }

    /// Something happened that others may have waited for.
    pub fn stir(&mut self) {
        self.stirred += 1;
    }

    pub fn stirred(&self) -> u64 {
        self.stirred
    }

    pub fn emit(&mut self, effect: Effect) {
        self.stir();
        self.effects.push(effect);
    }

    pub fn notice(&mut self, notice: Notice) {
        self.effects.push(Effect::Notice(notice));
    }

    /// A buffer with unspecified content.
    pub fn buf(&mut self, len: usize) -> Buf {
        self.bufs.take(len)
    }

    pub fn give(&mut self, buf: Buf) {
        self.bufs.give(buf);
    }

    fn name(&mut self, under_way: UnderWay) -> OpId {
        self.stir();
        self.next += 1;
        let op = OpId(self.next);
        self.under_way.insert(op, UnderWay { began: self.now, ..under_way });
        op
    }

    pub fn read(&mut self, what: UnderWay, offset: u64, buf: Buf) {
        let op = self.name(UnderWay { bytes: buf.len() as u64, ..what });
        self.effects.push(Effect::Read { op, member: what.member, offset, buf });
    }

    pub fn write(&mut self, what: UnderWay, offset: u64, buf: Buf) {
        let bytes = buf.len() as u64;
        let op = self.name(UnderWay { is_write: true, bytes, ..what });
        self.effects.push(Effect::Write { op, member: what.member, offset, buf });
    }

    pub fn flush(&mut self, member: MemberId, purpose: Purpose) {
        let op = self.name(UnderWay { is_flush: true, ..UnderWay::meta(member, purpose) });
        self.effects.push(Effect::Flush { op, member });
    }

    pub fn discard(&mut self, member: MemberId, purpose: Purpose, offset: u64, len: u64) {
        let op = self.name(UnderWay::meta(member, purpose));
        self.effects.push(Effect::Discard { op, member, offset, len });
    }

    /// The end of an I/O.
    pub fn ended(&mut self, op: OpId) -> UnderWay {
        self.under_way.remove(&op).expect("each I/O ends once")
    }

    /// Whether any I/O of a member is under way.
    pub fn is_busy(&self, member: MemberId) -> bool {
        self.under_way.values().any(|it| it.member == member)
    }

    /// When the oldest I/O of a member began that is under way.
    pub fn oldest(&self, member: MemberId) -> Option<Time> {
        self.under_way.values().filter(|it| it.member == member).map(|it| it.began).min()
    }

    /// Whether a member did not end an I/O for long, when that was last looked at.
    pub fn hangs(&self, member: MemberId) -> bool {
        self.hanging.contains(&member)
    }

    /// The members that did not.
    pub fn hanging(&self) -> impl Iterator<Item = MemberId> {
        self.hanging.iter().copied()
    }

    /// When to look again whether I/O takes too long.
    pub fn look_due(&self) -> Option<Time> {
        // Names are given in order.
        let overdue = self.under_way.values().next().map(|it| it.began + HANG_NS);
        let due = overdue.or((!self.hanging.is_empty()).then_some(0))?;
        Some(due.max(self.looked + HANG_LOOK_NS))
    }

    /// Looks which members take too long for an I/O, hints aside. Those that do.
    pub fn look(&mut self) -> Vec<(OpId, UnderWay)> {
        self.looked = self.now;
        let old = self.under_way.iter().take_while(|(_, it)| it.began + HANG_NS <= self.now);
        let is_hint = |it: &UnderWay| matches!(it.purpose, Purpose::Trim(_) | Purpose::Wipe);
        let old = old.filter(|(_, it)| !is_hint(it)).map(|(&op, &it)| (op, it));
        let old: Vec<(OpId, UnderWay)> = old.collect();
        self.hanging = old.iter().map(|(_, it)| it.member).collect();
        old
    }

    /// What an I/O under way was for does not wait for it any more.
    pub fn give_up(&mut self, op: OpId) {
        self.stir();
        self.under_way.get_mut(&op).expect("it is under way").purpose = Purpose::GivenUp;
    }

    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }
}

impl UnderWay {
    /// I/O on what is no extent.
    pub fn meta(member: MemberId, purpose: Purpose) -> UnderWay {
        UnderWay {
            purpose,
            member,
            place: None,
            is_write: false,
            is_flush: false,
            is_client: false,
            bytes: 0,
            began: 0,
        }
    }
}
