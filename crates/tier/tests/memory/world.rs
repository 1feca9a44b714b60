//! The machine on devices that are memory, each I/O of which ends at once, and what is asked of it.

use forebay_format::io::{Buf, Completion, IoError, OpId, Time};
use forebay_format::tier::{EXTENT_SIZE, JOURNAL_OFFSET, SUPERBLOCK_OFFSETS, Superblock};
use forebay_tier::*;
use std::collections::BTreeSet;

const BLOCK: usize = 4096;
pub const SECOND: Time = 1_000_000_000;
pub const JOURNAL_BLOCKS: u32 = 64;
/// Where slots begin.
const SLOTS_OFFSET: u64 = EXTENT_SIZE;

/// What becomes of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Done,
    Fails,
    /// It waits in `held`.
    Held,
}

pub struct World {
    pub tiers: Tiers,
    pub devices: Vec<Vec<u8>>,
    pub now: Time,
    pub next: u64,
    pub replies: Vec<(IoId, Completion)>,
    pub done: Vec<CommandReply>,
    pub notices: Vec<Notice>,
    /// I/O that is carried out; what comes behind is never answered.
    pub fuel: u64,
    /// Records that go to this member fail.
    pub broken: Option<MemberId>,
    /// Records that go to this one wait in `held`.
    pub slow: Option<MemberId>,
    pub held: Vec<Effect>,
    /// What becomes of each I/O.
    pub fate: Box<dyn FnMut(&Effect) -> Fate>,
    /// Members that have room for nothing new: blocks that were never written there.
    pub full: BTreeSet<MemberId>,
    /// Of these members reads of extents fail.
    pub unreadable: BTreeSet<MemberId>,
    /// Blocks that were written, by member.
    taken: BTreeSet<(MemberId, u64)>,
}

pub fn member(uuid: u8, tier: u8, slots: u64) -> NewMember {
    NewMember { uuid: [uuid; 16], bytes: (slots + 1) * EXTENT_SIZE, tier, is_volatile: false }
}

/// One of so many bytes, full of what nobody knows.
pub fn device(bytes: u64) -> Vec<u8> {
    vec![0xee; bytes as usize]
}

pub fn spec(members: Vec<NewMember>, extents: u64) -> NewSet {
    NewSet {
        name: "v".into(),
        set: [9; 16],
        bytes: extents * EXTENT_SIZE,
        journal_blocks: JOURNAL_BLOCKS,
        bytes_max: 64 * EXTENT_SIZE,
        overcommit: false,
        members,
    }
}

/// The newest superblock of a device.
pub fn superblock(device: &[u8]) -> Option<Superblock> {
    let copy = |offset| device.get(offset as usize..).and_then(|it| it.get(..BLOCK));
    let [Some(one), Some(other)] = SUPERBLOCK_OFFSETS.map(copy) else { return None };
    Superblock::newest_of([one, other]).ok()
}

/// The end of an I/O that failed.
fn failed(effect: Effect) -> Event {
    let (op, buf) = match effect {
        Effect::Read { op, buf, .. } | Effect::Write { op, buf, .. } => (op, buf),
        Effect::Flush { op, .. } | Effect::Discard { op, .. } => (op, Buf::empty()),
        other => unreachable!("{other:?} is no I/O"),
    };
    Event::Done(op, Completion { result: Err(IoError::Io), buf })
}

pub fn filled(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.bytes_mut().fill(byte);
    buf
}

impl World {
    pub fn new(spec: &NewSet, tuning: Tuning) -> World {
        let superblocks = create(spec).expect("the set is possible");
        let mut devices = Vec::new();
        for (member, superblock) in spec.members.iter().zip(&superblocks) {
            let mut device = device(member.bytes);
            for offset in SUPERBLOCK_OFFSETS {
                superblock.encode(&mut device[offset as usize..][..BLOCK]);
            }
            devices.push(device);
        }
        World::open(devices, tuning)
    }

    /// Opens the set that is found on these devices, each at the place of its number.
    pub fn open(devices: Vec<Vec<u8>>, tuning: Tuning) -> World {
        World::open_as(devices, tuning, |_, it| it)
    }

    /// The same; members are what is made of their number and usual settings.
    pub fn open_as(
        devices: Vec<Vec<u8>>,
        tuning: Tuning,
        of: impl Fn(usize, MemberSettings) -> MemberSettings,
    ) -> World {
        let found: Vec<Superblock> = devices.iter().filter_map(|it| superblock(it)).collect();
        let assembled = assemble(&found).expect("a set");
        let settings =
            |(number, found): (usize, &Option<usize>)| of(number, World::settings(found.is_some()));
        let settings = Settings {
            members: assembled.found.iter().enumerate().map(settings).collect(),
            superblock: assembled.superblock,
            boot: [1; 16],
            tuning,
            is_paused: false,
            mutant: None,
        };
        let mut out = Vec::new();
        let tiers = Tiers::open(settings, 0, &mut out);
        let (replies, done, notices) = (Vec::new(), Vec::new(), Vec::new());
        let (now, next, fuel) = (0, 0, u64::MAX);
        let (broken, slow, held) = (None, None, Vec::new());
        let fate: Box<dyn FnMut(&Effect) -> Fate> = Box::new(|_| Fate::Done);
        let (full, unreadable, taken) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut world = World {
            tiers,
            devices,
            now,
            next,
            replies,
            done,
            notices,
            fuel,
            broken,
            slow,
            held,
            fate,
            full,
            unreadable,
            taken,
        };
        world.run(out);
        assert!(world.tiers.is_open(), "{:?}", world.notices);
        world
    }

    pub fn settings(is_here: bool) -> MemberSettings {
        MemberSettings {
            is_here,
            volatile_cache: true,
            discards: true,
            piece_blocks: 16,
            stripe_blocks: 0,
        }
    }

    pub fn run(&mut self, mut effects: Vec<Effect>) {
        for _ in 0..100_000 {
            let mut events = Vec::new();
            for effect in effects.drain(..) {
                events.extend(self.carry_out(effect));
            }
            let is_quiet = events.is_empty();
            for event in events {
                self.tiers.handle(self.now, event, &mut effects);
            }
            self.tiers.settle(self.now, &mut effects);
            self.tiers.check();
            if is_quiet && effects.is_empty() {
                return;
            }
        }
        panic!("it never rests");
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        let is_io = !matches!(
            effect,
            Effect::Reply { .. } | Effect::CommandDone { .. } | Effect::Notice(_)
        );
        if is_io && self.fuel == 0 {
            return None;
        }
        self.fuel -= u64::from(is_io);
        let records = JOURNAL_OFFSET..JOURNAL_OFFSET + u64::from(JOURNAL_BLOCKS) * BLOCK as u64;
        if let Effect::Write { op, member, offset, .. } = &effect
            && records.contains(offset)
        {
            if self.broken == Some(*member) {
                let result = Err(IoError::Io);
                return Some(Event::Done(*op, Completion { result, buf: Buf::empty() }));
            }
            if self.slow == Some(*member) {
                self.held.push(effect);
                return None;
            }
        }
        match if is_io { (self.fate)(&effect) } else { Fate::Done } {
            Fate::Done => {}
            Fate::Fails => return Some(failed(effect)),
            Fate::Held => {
                self.held.push(effect);
                return None;
            }
        }
        if let Some((op, error)) = self.refusal(&effect) {
            let (Effect::Read { buf, .. } | Effect::Write { buf, .. }) = effect else {
                unreachable!("only these are refused");
            };
            return Some(Event::Done(op, Completion { result: Err(error), buf }));
        }
        let (op, buf) = match effect {
            Effect::Read { op, member, offset, mut buf } => {
                let len = buf.len();
                let device = &self.devices[usize::from(member.0)];
                buf.bytes_mut().copy_from_slice(&device[offset as usize..][..len]);
                (op, buf)
            }
            Effect::Write { op, member, offset, buf } => {
                let device = &mut self.devices[usize::from(member.0)];
                device[offset as usize..][..buf.len()].copy_from_slice(buf.bytes());
                (op, buf)
            }
            Effect::Flush { op, .. } => (op, Buf::empty()),
            Effect::Discard { op, member, offset, len } => {
                let device = &mut self.devices[usize::from(member.0)];
                device[offset as usize..][..len as usize].fill(0xdd);
                (op, Buf::empty())
            }
            Effect::Reply { id, completion } => {
                self.replies.push((id, completion));
                return None;
            }
            Effect::CommandDone { reply, .. } => {
                self.done.push(reply);
                return None;
            }
            Effect::Notice(notice) => {
                self.notices.push(notice);
                return None;
            }
        };
        Some(Event::Done(op, Completion { result: Ok(()), buf }))
    }

    /// What becomes of each I/O from now on.
    pub fn decide(&mut self, fate: impl FnMut(&Effect) -> Fate + 'static) {
        self.fate = Box::new(fate);
    }

    /// What was held goes on, and nothing is held any more.
    pub fn release(&mut self) {
        self.decide(|_| Fate::Done);
        let held = std::mem::take(&mut self.held);
        self.run(held);
    }

    /// What was held fails.
    pub fn fail_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        let mut out = Vec::new();
        for effect in held {
            self.tiers.handle(self.now, failed(effect), &mut out);
        }
        self.run(out);
    }

    /// What all of a block is, or why it cannot be read.
    pub fn byte(&mut self, offset: u64) -> Result<u8, IoError> {
        let done = self.ask(Io::Read { offset, buf: Buf::zeroed(BLOCK) });
        let bytes = done.buf.bytes();
        done.result.map(|()| {
            assert!(bytes.iter().all(|&byte| byte == bytes[0]), "a block is written as a whole");
            bytes[0]
        })
    }

    /// A request that may not be answered at once.
    pub fn submit(&mut self, io: Io) -> IoId {
        self.next += 1;
        let id = IoId(self.next);
        let mut out = Vec::new();
        self.tiers.handle(self.now, Event::Submit(id, io), &mut out);
        self.run(out);
        id
    }

    /// A command that may not be answered at once.
    pub fn begin(&mut self, command: Command) {
        let mut out = Vec::new();
        self.tiers.handle(self.now, Event::Command(CommandId(1), command), &mut out);
        self.run(out);
    }

    /// The answer to a request, if there is one.
    pub fn answer(&mut self, id: IoId) -> Option<Result<(), IoError>> {
        let at = self.replies.iter().position(|reply| reply.0 == id)?;
        Some(self.replies.remove(at).1.result)
    }

    /// Whether an I/O of an extent fails. What of a member was written has its room.
    fn refusal(&mut self, effect: &Effect) -> Option<(OpId, IoError)> {
        match effect {
            Effect::Read { op, member, offset, .. } => {
                let fails = self.unreadable.contains(member) && *offset >= SLOTS_OFFSET;
                fails.then_some((*op, IoError::Io))
            }
            Effect::Write { op, member, offset, buf } => {
                let first = offset / BLOCK as u64;
                let end = (offset + buf.len() as u64).div_ceil(BLOCK as u64);
                let blocks = (first..end).map(|block| (*member, block));
                let is_new = |it: &(MemberId, u64)| !self.taken.contains(it);
                let is_full = self.full.contains(member) && *offset >= SLOTS_OFFSET;
                if is_full && blocks.clone().any(|it| is_new(&it)) {
                    return Some((*op, IoError::NoSpace));
                }
                self.taken.extend(blocks);
                None
            }
            _ => None,
        }
    }

    pub fn ask(&mut self, io: Io) -> Completion {
        self.next += 1;
        let mut out = Vec::new();
        self.tiers.handle(self.now, Event::Submit(IoId(self.next), io), &mut out);
        self.run(out);
        // A flush of its own may have to come first.
        self.pass(1);
        let (id, completion) = self.replies.pop().expect("it is answered");
        assert_eq!(id, IoId(self.next));
        completion
    }

    /// So many ticks, each when it is due; what is held is not held for so long that it hangs.
    pub fn pass(&mut self, ticks: u32) {
        for _ in 0..ticks {
            let Some(due) = self.tiers.deadline() else { return };
            if !self.held.is_empty() && due >= self.now + SECOND {
                return;
            }
            self.tick(due);
        }
    }

    pub fn tick(&mut self, at: Time) {
        self.now = self.now.max(at);
        let mut out = Vec::new();
        self.tiers.handle(self.now, Event::Tick, &mut out);
        self.run(out);
    }

    pub fn command(&mut self, command: Command) -> CommandReply {
        let mut out = Vec::new();
        self.tiers.handle(self.now, Event::Command(CommandId(1), command), &mut out);
        self.run(out);
        for _ in 0..10_000 {
            if let Some(reply) = self.done.pop() {
                return reply;
            }
            self.pass(1);
        }
        panic!("the command is not answered");
    }

    /// A command that may not come to its end.
    pub fn command_cut(&mut self, command: Command) -> Option<CommandReply> {
        let mut out = Vec::new();
        self.tiers.handle(self.now, Event::Command(CommandId(1), command), &mut out);
        self.run(out);
        self.pass(5);
        self.done.pop()
    }

    pub fn write(&mut self, offset: u64, len: usize, byte: u8) {
        let buf = filled(len, byte);
        assert_eq!(self.ask(Io::Write { offset, buf }).result, Ok(()));
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let done = self.ask(Io::Read { offset, buf: Buf::zeroed(len) });
        assert_eq!(done.result, Ok(()));
        done.buf.bytes().to_vec()
    }

    pub fn again(self, tuning: Tuning) -> World {
        self.again_without(&[], tuning)
    }

    /// Stopped, and opened again without some of its devices.
    pub fn again_without(mut self, missing: &[usize], tuning: Tuning) -> World {
        assert_eq!(self.command(Command::Stop), CommandReply::Changed);
        assert!(self.tiers.is_stopped());
        World::open(self.without(missing), tuning)
    }

    /// What is on the devices now, without some of them.
    pub fn without(&self, missing: &[usize]) -> Vec<Vec<u8>> {
        let mut devices = self.devices.clone();
        missing.iter().for_each(|&member| devices[member] = Vec::new());
        devices
    }
}

pub fn still() -> Tuning {
    Tuning { placement: Placement::Spill, ..Tuning::default() }
}
