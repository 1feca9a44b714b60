//! I/O of members: what the machine may ask, and how it ends.

use super::admin::Asked;
use super::places::{Slot, UNDER_WAY};
use super::{Due, Step, Tiered};
use crate::disk::{Finished, FlushLoss, Io, IoKind};
use crate::model::{Stamp, Violation};
use forebay_format::io::{IoError, OpId, Time};
use forebay_format::tier::{DOUBLES_OFFSET, EXTENT_SIZE, JOURNAL_OFFSET};
use forebay_format::{BLOCK_SIZE, SECTOR_SIZE, SECTORS_PER_BLOCK};
use forebay_tier::{Command, Effect, Event, MemberId, Notice};
use std::ops::Range;

/// An I/O under way.
#[derive(Debug, Clone)]
pub struct Op {
    pub member: usize,
    pub kind: IoKind,
    pub discards: bool,
    /// First block of the member.
    pub first: u64,
    /// What of the member it touches.
    pub area: Area,
    /// The blocks of the volume that lie there; `None` if nobody knows.
    pub blocks: Option<Vec<Range<u64>>>,
    pub invoke: Stamp,
}

/// A part of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// Superblocks.
    Superblock,
    /// Heads, doubles and pages of the map.
    Map,
    Journal,
    Slots,
    /// A flush: all of it.
    All,
}

/// An error that the machine got from a member.
#[derive(Debug, Clone)]
pub struct Delivered {
    pub stamp: Stamp,
    pub member: usize,
    pub kind: IoKind,
    pub area: Area,
    pub blocks: Option<Vec<Range<u64>>>,
    /// It had no room.
    pub no_room: bool,
    pub at: Time,
}

impl Tiered {
    pub(super) fn perform_one(&mut self, effect: Effect) -> Result<(), Violation> {
        match effect {
            Effect::Read { op, member, offset, buf } => {
                let len = buf.len() as u64;
                self.start_io(op, member, offset, len, Io::Read(buf))
            }
            Effect::Write { op, member, offset, buf } => {
                let len = buf.len() as u64;
                self.start_io(op, member, offset, len, Io::Write(buf))
            }
            Effect::Flush { op, member } => self.start_io(op, member, 0, 0, Io::Flush),
            Effect::Discard { op, member, offset, len } => {
                let io = Io::Discard(len / SECTOR_SIZE as u64);
                self.start_io(op, member, offset, len, io)
            }
            Effect::Reply { id, completion } => self.reply(id, completion),
            Effect::CommandDone { id, reply } => self.command_done(id, reply),
            Effect::Notice(notice) => self.notice(notice),
        }
    }

    /// Rule I: I/O is whole sectors of a member that is there, in one part of it.
    fn start_io(
        &mut self,
        op: OpId,
        member: MemberId,
        offset: u64,
        len: u64,
        io: Io,
    ) -> Result<(), Violation> {
        self.totals.ios += 1;
        self.note(op.0 ^ offset.rotate_left(20) ^ len.rotate_left(40));
        let what = format!("{} {member:?} {offset}+{len} ({op:?})", name_of(&io));
        self.say(|_| what.clone());
        let wrong = |why: &str| Err(Violation::new("I", format!("{what}: {why}")));
        let member = usize::from(member.0);
        if !self.life.is_here.get(member).is_some_and(|is_here| *is_here) {
            return wrong("that member is not there");
        }
        if self.life.stopped {
            return wrong("the set was closed");
        }
        let flush = matches!(io, Io::Flush);
        let end = self.disks[member].sectors() * SECTOR_SIZE as u64;
        let aligned = |value: u64| value.is_multiple_of(SECTOR_SIZE as u64);
        if !flush && (!aligned(offset) || !aligned(len) || len == 0 || offset + len > end) {
            return wrong("not whole sectors of the member");
        }
        let discards = matches!(io, Io::Discard(_));
        if discards && !self.plan.members[member].discards {
            return wrong("it does not want to know what is free");
        }
        let slots_offset = self.plan.layout().slots_offset();
        if !flush && offset < slots_offset && offset + len > slots_offset {
            return wrong("both the map and a slot");
        }
        let area = if flush { Area::All } else { self.area(offset) };
        if discards && area != Area::Slots {
            return wrong("the map is needed");
        }
        let blocks = match area {
            Area::Slots => self.blocks_of(member, offset - slots_offset, len, &io),
            _ => Some(Vec::new()),
        };
        let kind = kind_of(&io);
        let first = offset / BLOCK_SIZE as u64;
        let invoke = self.next_stamp();
        let entry = Op { member, kind, discards, first, area, blocks, invoke };
        self.note_unflushed(&entry, UNDER_WAY);
        self.count_io(&entry);
        self.disks[member].submit(op, offset / SECTOR_SIZE as u64, io);
        self.ops.insert(op, entry);
        let latency = &self.plan.members[member].latency;
        let after = if self.calm { latency.base_ns } else { latency.draw(&mut self.rng) };
        let end = self.end_of(member, self.now + after);
        self.schedule(end - self.now, Due::Io(op));
        Ok(())
    }

    fn area(&self, offset: u64) -> Area {
        let layout = self.plan.layout();
        match offset {
            at if at >= layout.slots_offset() => Area::Slots,
            at if at >= layout.pages_offset() => Area::Map,
            at if at >= JOURNAL_OFFSET => Area::Journal,
            at if at >= forebay_format::tier::HEAD_OFFSETS[0] => Area::Map,
            _ => Area::Superblock,
        }
    }

    /// The blocks of the volume that an I/O on slots touches.
    fn blocks_of(
        &mut self,
        member: usize,
        from: u64,
        len: u64,
        io: &Io,
    ) -> Option<Vec<Range<u64>>> {
        let mut blocks = Vec::new();
        let mut at = from;
        while at < from + len {
            let end = (at / EXTENT_SIZE + 1) * EXTENT_SIZE;
            let end = end.min(from + len);
            let slot: Slot = (member, (at / EXTENT_SIZE) as u32);
            let inside = at % EXTENT_SIZE;
            let sectors = inside / SECTOR_SIZE as u64..(inside + end - at) / SECTOR_SIZE as u64;
            let data = match io {
                Io::Write(buf) => Some(&buf.bytes()[(at - from) as usize..(end - from) as usize]),
                _ => None,
            };
            blocks.push(self.blocks_in(slot, sectors, data)?);
            at = end;
        }
        Some(blocks)
    }

    fn note_unflushed(&mut self, op: &Op, done: Stamp) {
        if op.kind != IoKind::Write || op.discards {
            return;
        }
        let mut first = op.first;
        for blocks in op.blocks.iter().flatten() {
            let count = blocks.end - blocks.start;
            self.places.written(op.member, first, blocks.clone(), done);
            first += count;
        }
    }

    fn count_io(&mut self, op: &Op) {
        match (op.area, op.kind) {
            (Area::Journal, IoKind::Write) => {
                let before = self.life.journal_at.insert(op.member, op.first);
                let wrapped = before.is_some_and(|before| before > op.first);
                self.coverage.add("journals wrapped", u64::from(wrapped));
            }
            (Area::Map, IoKind::Write) if op.first == DOUBLES_OFFSET / BLOCK_SIZE as u64 => {
                self.coverage.mark("checkpoints");
            }
            (Area::Slots, IoKind::Write) if op.discards => self.coverage.mark("slots discarded"),
            _ => {}
        }
    }

    pub(super) fn finish_io(&mut self, op: OpId) -> Step {
        let entry = self.ops.remove(&op).expect("an I/O under way");
        let now = self.now;
        let mut rng = self.rng.clone();
        let finished = self.disks[entry.member].complete(op, now, &mut rng);
        self.rng = rng;
        let finished = finished.expect("an I/O of this disk");
        let stamp = self.next_stamp();
        let failed = finished.completion.result.is_err();
        self.note(op.0 ^ u64::from(failed) << 63);
        self.say(|_| format!("done {op:?}{}", if failed { " with an error" } else { "" }));
        self.note_unflushed(&entry, stamp);
        if failed {
            self.io_failed(&entry, &finished, stamp);
        } else if entry.kind == IoKind::Flush {
            self.places.flushed(entry.member, entry.invoke);
        }
        self.feed(Event::Done(op, finished.completion))
    }

    fn io_failed(&mut self, op: &Op, finished: &Finished, stamp: Stamp) {
        let no_room = finished.completion.result == Err(IoError::NoSpace);
        self.coverage.add("errors: no room", u64::from(no_room));
        self.coverage.mark(match (op.kind, op.area) {
            (IoKind::Read, Area::Slots) => "errors: slot read",
            (IoKind::Read, _) => "errors: map read",
            (IoKind::Write, Area::Slots) => "errors: slot write",
            (IoKind::Write, _) => "errors: map write",
            (IoKind::Flush, _) => "errors: flush",
        });
        if op.area != Area::Slots {
            self.trouble.suspects.insert(op.member);
        }
        if op.kind != IoKind::Read && matches!(op.area, Area::Superblock | Area::All) {
            self.trouble.unwritten.insert(op.member);
        }
        if op.kind == IoKind::Flush {
            self.flush_failed(op.member, !finished.forgot.is_empty(), stamp);
        }
        let (member, kind, area) = (op.member, op.kind, op.area);
        let blocks = op.blocks.clone();
        let at = self.now;
        self.life.errors.push(Delivered { stamp, member, kind, area, blocks, no_room, at });
    }

    /// What was written to the member since its last good flush may be lost.
    fn flush_failed(&mut self, member: usize, forgot: bool, stamp: Stamp) {
        let per_block = SECTORS_PER_BLOCK as u64;
        for block in self.places.unflushed(member) {
            let sectors = block * per_block..(block + 1) * per_block;
            for sector in sectors.filter(|_| forgot) {
                if self.known[sector as usize] {
                    self.checker.loosen(0, sector, stamp, false);
                }
            }
        }
        if forgot {
            self.coverage.mark("writes forgotten");
            debug_assert_eq!(self.disks[member].flush_loss, FlushLoss::Forget);
        }
        self.life.flush_failed.insert(member);
    }

    /// What an administrator is told.
    pub(super) fn notice(&mut self, notice: Notice) -> Result<(), Violation> {
        self.say(|_| format!("notice {notice:?}"));
        let unjustified = match &notice {
            Notice::Opened { records, extents, cut, doubt } => {
                return self.opened(*records, *extents, (*cut, *doubt));
            }
            Notice::OpenFailed(error) => {
                self.life.open_failed = Some(*error);
                false
            }
            Notice::HolderLost(member) => {
                self.coverage.mark("holders lost");
                let member = usize::from(member.0);
                let away = !self.life.is_here.get(member).copied().unwrap_or(false);
                let known = self.trouble.suspects.contains(&member)
                    || self.trouble.rotten.contains(&member);
                // One that does not answer may be given up.
                let hangs = self.life.hangs.as_ref().is_some_and(|it| it.0 == member);
                let given_up = Command::GiveUp(MemberId(member as u8));
                let gives_up = |it: &Asked| it.command == given_up;
                let is_given_up = hangs && self.commands.values().any(gives_up);
                !away && !known && !is_given_up && !self.has_failed(member)
            }
            Notice::HolderFound(_) => {
                self.coverage.mark("holders found");
                self.look_at_holders();
                false
            }
            Notice::BlocksLost { extent, .. } => {
                self.coverage.mark("blocks called lost");
                self.blocks_lost(*extent)
            }
            Notice::MoveFailed { member, .. } => {
                self.coverage.mark("moves failed");
                let member = usize::from(member.0);
                self.life.is_here[member] && !self.has_failed(member)
            }
        };
        if unjustified {
            return Err(Violation::new("E", format!("{notice:?} without a reason")));
        }
        Ok(())
    }

    /// Blocks of an extent are called lost: those may be that clients have not flushed since they
    /// were written, if its member failed to flush, or is being given up. Whether neither is so.
    fn blocks_lost(&mut self, extent: u32) -> bool {
        let all = 0..self.space.extents_max();
        let Some(extent) = all.into_iter().find(|&it| self.space.extent_of(it) == extent) else {
            return true;
        };
        let stamp = self.next_stamp();
        for block in self.places.unconfirmed(extent) {
            self.checker.lose_block(0, block * SECTORS_PER_BLOCK as u64, stamp);
        }
        let gives_up = |it: &Asked| matches!(it.command, Command::GiveUp(_));
        self.life.flush_failed.is_empty() && !self.commands.values().any(gives_up)
    }

    /// Whether the member returned an error in this life.
    pub(super) fn has_failed(&self, member: usize) -> bool {
        self.life.errors.iter().any(|error| error.member == member)
    }
}

fn name_of(io: &Io) -> &'static str {
    match io {
        Io::Read(_) => "read",
        Io::Write(_) => "write",
        Io::Zero(_) => "zero",
        Io::Discard(_) => "discard",
        Io::Flush => "flush",
    }
}

fn kind_of(io: &Io) -> IoKind {
    match io {
        Io::Read(_) => IoKind::Read,
        Io::Write(_) | Io::Zero(_) | Io::Discard(_) => IoKind::Write,
        Io::Flush => IoKind::Flush,
    }
}
