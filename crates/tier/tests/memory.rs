//! The machine on devices that are memory, each I/O of which ends at once.

use forebay_format::io::{Buf, Completion, Time};
use forebay_format::tier::{EXTENT_SIZE, SUPERBLOCK_OFFSETS, Superblock};
use forebay_tier::*;

const BLOCK: usize = 4096;

struct World {
    tiers: Tiers,
    devices: Vec<Vec<u8>>,
    now: Time,
    next: u64,
    replies: Vec<(IoId, Completion)>,
    done: Vec<CommandReply>,
    notices: Vec<Notice>,
}

fn member(uuid: u8, tier: u8, slots: u64) -> NewMember {
    NewMember { uuid: [uuid; 16], bytes: (slots + 1) * EXTENT_SIZE, tier, is_volatile: false }
}

fn spec(members: Vec<NewMember>, extents: u64) -> NewSet {
    NewSet {
        name: "v".into(),
        set: [9; 16],
        bytes: extents * EXTENT_SIZE,
        journal_blocks: 64,
        bytes_max: 64 * EXTENT_SIZE,
        overcommit: false,
        members,
    }
}

impl World {
    fn new(spec: &NewSet, tuning: Tuning) -> World {
        let superblocks = create(spec).expect("the set is possible");
        let mut devices = Vec::new();
        for (member, superblock) in spec.members.iter().zip(&superblocks) {
            let mut device = vec![0xee; member.bytes as usize];
            for offset in SUPERBLOCK_OFFSETS {
                superblock.encode(&mut device[offset as usize..][..BLOCK]);
            }
            devices.push(device);
        }
        World::open(devices, tuning)
    }

    fn open(devices: Vec<Vec<u8>>, tuning: Tuning) -> World {
        let superblock = |device: &Vec<u8>| {
            let copies = SUPERBLOCK_OFFSETS.map(|offset| &device[offset as usize..][..BLOCK]);
            Superblock::newest_of(copies).expect("a member")
        };
        let found: Vec<Superblock> = devices.iter().map(superblock).collect();
        let assembled = assemble(&found).expect("a set");
        let settings = |found: &Option<usize>| MemberSettings {
            is_here: found.is_some(),
            volatile_cache: true,
            discards: true,
            piece_blocks: 16,
        };
        let settings = Settings {
            members: assembled.found.iter().map(settings).collect(),
            superblock: assembled.superblock,
            boot: [1; 16],
            tuning,
            mutant: None,
        };
        let mut out = Vec::new();
        let tiers = Tiers::open(settings, 0, &mut out);
        let (replies, done, notices) = (Vec::new(), Vec::new(), Vec::new());
        let mut world = World { tiers, devices, now: 0, next: 0, replies, done, notices };
        world.run(out);
        assert!(world.tiers.is_open(), "{:?}", world.notices);
        world
    }

    fn run(&mut self, mut effects: Vec<Effect>) {
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

    fn ask(&mut self, io: Io) -> Completion {
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

    fn pass(&mut self, ticks: u32) {
        for _ in 0..ticks {
            let Some(due) = self.tiers.deadline() else { return };
            self.now = self.now.max(due);
            let mut out = Vec::new();
            self.tiers.handle(self.now, Event::Tick, &mut out);
            self.run(out);
        }
    }

    fn command(&mut self, command: Command) -> CommandReply {
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

    fn write(&mut self, offset: u64, len: usize, byte: u8) {
        let mut buf = Buf::zeroed(len);
        buf.bytes_mut().fill(byte);
        assert_eq!(self.ask(Io::Write { offset, buf }).result, Ok(()));
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let done = self.ask(Io::Read { offset, buf: Buf::zeroed(len) });
        assert_eq!(done.result, Ok(()));
        done.buf.bytes().to_vec()
    }

    fn again(mut self, tuning: Tuning) -> World {
        assert_eq!(self.command(Command::Stop), CommandReply::Changed);
        assert!(self.tiers.is_stopped());
        World::open(self.devices, tuning)
    }
}

fn still() -> Tuning {
    Tuning { placement: Placement::Spill, ..Tuning::default() }
}

#[test]
fn what_was_never_written_is_zeros_and_what_was_stays() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 12), still());
    assert_eq!(world.read(5 * EXTENT_SIZE - 4096, 8192), vec![0; 8192]);
    world.write(EXTENT_SIZE - 512, 1024, 7);
    let around = world.read(EXTENT_SIZE - 4096, 8192);
    assert!(around[..3584].iter().all(|&byte| byte == 0));
    assert!(around[3584..4608].iter().all(|&byte| byte == 7));
    assert!(around[4608..].iter().all(|&byte| byte == 0));
    assert_eq!(world.ask(Io::Flush).result, Ok(()));
    let mut world = world.again(still());
    assert_eq!(world.read(EXTENT_SIZE - 4096, 8192), around);
}

#[test]
fn it_spills_and_discards_give_room_back() {
    let mut world = World::new(&spec(vec![member(1, 0, 2), member(2, 1, 4)], 6), still());
    for extent in 0..6 {
        world.write(extent * EXTENT_SIZE, 1 << 20, extent as u8 + 1);
        let tier = world.tiers.place_of(extent as u32).expect("it lives somewhere").0;
        assert_eq!(tier, MemberId(u8::from(extent >= 2)));
    }
    for piece in 0..256 {
        let (offset, len) = (piece * 4096, 4096);
        assert_eq!(world.ask(Io::Discard { offset, len }).result, Ok(()));
    }
    assert_eq!(world.tiers.place_of(0), None);
    world.pass(5);
    assert_eq!(world.tiers.free_slots(MemberId(0)), 1);
    assert_eq!(world.read(0, 8192), vec![0; 8192]);
    let mut world = world.again(still());
    assert_eq!(world.read(0, 8192), vec![0; 8192]);
    assert_eq!(world.read(EXTENT_SIZE, 4096), vec![2; 4096]);
}

#[test]
fn a_tier_is_emptied_and_everything_is_there() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 8), still());
    for extent in 0..6_u64 {
        world.write(extent * EXTENT_SIZE + 4096, 300 << 10, extent as u8 + 1);
    }
    assert_eq!(world.command(Command::Evacuate(0)), CommandReply::Changed);
    assert_eq!(world.tiers.free_slots(MemberId(0)), 4);
    let mut world = world.again(still());
    for extent in 0..6_u64 {
        assert_eq!(world.read(extent * EXTENT_SIZE, 4096), vec![0; 4096]);
        assert_eq!(world.read(extent * EXTENT_SIZE + 4096, 4096), vec![extent as u8 + 1; 4096]);
        assert_eq!(world.tiers.place_of(extent as u32).map(|it| it.0), Some(MemberId(1)));
    }
    assert_eq!(world.command(Command::Cancel(0)), CommandReply::Changed);
    assert_eq!(world.command(Command::Cancel(0)), CommandReply::Refused(Refusal::NotLeaving));
}

#[test]
fn what_is_hot_comes_up_and_room_is_kept() {
    let tuning = Tuning { reserve_per_mille: 250, ..Tuning::default() };
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 20)], 20), tuning);
    for extent in 0..20_u64 {
        world.write(extent * EXTENT_SIZE, 64 << 10, extent as u8 + 1);
    }
    for _ in 0..200 {
        world.read(17 * EXTENT_SIZE, 4096);
        world.pass(3);
    }
    assert_eq!(world.tiers.place_of(17).map(|it| it.0), Some(MemberId(0)));
    assert!(world.tiers.free_slots(MemberId(0)) >= 1);
    for extent in 0..20_u64 {
        assert_eq!(world.read(extent * EXTENT_SIZE, 4096), vec![extent as u8 + 1; 4096]);
    }
}

#[test]
fn the_journal_goes_round() {
    let mut world = World::new(&spec(vec![member(1, 0, 4), member(2, 1, 8)], 8), still());
    for turn in 0..3_u64 {
        for block in 0..200 {
            world.write(block * 8192, 4096, (turn + block) as u8);
        }
    }
    for block in 0..200 {
        let (offset, len) = (block * 8192, 4096);
        assert_eq!(world.ask(Io::Zero { offset, len, unmap: true }).result, Ok(()));
        world.write(block * 8192, 4096, block as u8);
    }
    let mut world = world.again(still());
    for block in 0..200 {
        assert_eq!(world.read(block * 8192, 4096), vec![block as u8; 4096]);
        assert_eq!(world.read(block * 8192 + 4096, 4096), vec![0; 4096]);
    }
}
