//! A tiered origin whose members are memory. Each I/O ends well, at once and in order: what disks
//! do to it is the simulator's matter, what stands on them is ours.

use forebay_format::BLOCK_SIZE;
use forebay_format::io::{Buf, Completion, OpId};
use forebay_format::tier::{SUPERBLOCK_OFFSETS, Superblock};
use forebay_tier::{
    Assembled, Command, CommandId, CommandReply, Effect, Event, Io, IoId, MemberId, MemberSettings,
    Notice, Placement, Settings, Tiers, Tuning, assemble,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Steps in which whatever was asked must have ended.
const STEPS_MAX: usize = 100_000;

/// A block, and the first and last byte of it that are meant, the last not included.
type Piece = (usize, usize, usize);

/// A member: blocks that many have in common, and those that were written since.
#[derive(Clone)]
pub struct Device {
    common: Arc<Vec<u8>>,
    own: BTreeMap<usize, Box<[u8; BLOCK_SIZE]>>,
}

impl Device {
    /// One with this content.
    pub fn new(content: Vec<u8>) -> Device {
        assert_eq!(content.len() % BLOCK_SIZE, 0);
        Device { common: Arc::new(content), own: BTreeMap::new() }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.common.len() as u64
    }

    /// A block.
    pub fn block(&self, block: usize) -> &[u8] {
        let common = || &self.common[block * BLOCK_SIZE..][..BLOCK_SIZE];
        self.own.get(&block).map_or_else(common, |own| &own[..])
    }

    /// A block, to write to.
    pub fn block_mut(&mut self, block: usize) -> &mut [u8] {
        let common = &self.common[block * BLOCK_SIZE..][..BLOCK_SIZE];
        let copy = || Box::new(common.try_into().expect("one block"));
        &mut self.own.entry(block).or_insert_with(copy)[..]
    }

    /// The same content, all of it common.
    pub fn settled(&self) -> Device {
        let blocks = self.common.len() / BLOCK_SIZE;
        Device::new((0..blocks).flat_map(|block| self.block(block).to_vec()).collect())
    }

    /// The blocks of a range, each with what of it is in the range. All I/O stays on its device.
    fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = Piece> + use<> {
        let end = offset.checked_add(len as u64).expect("an I/O ends");
        assert!(end <= self.bytes(), "{len} bytes at {offset} are beyond the device");
        let (from, end) = (offset as usize, end as usize);
        (from / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE)).map(move |block| {
            let start = block * BLOCK_SIZE;
            (block, from.saturating_sub(start), (end - start).min(BLOCK_SIZE))
        })
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let mut done = 0;
        for (block, from, end) in self.pieces(offset, into.len()) {
            into[done..done + end - from].copy_from_slice(&self.block(block)[from..end]);
            done += end - from;
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        for (block, from, end) in self.pieces(offset, bytes.len()) {
            self.block_mut(block)[from..end].copy_from_slice(&bytes[done..done + end - from]);
            done += end - from;
        }
    }

    /// The newest of its superblocks.
    pub fn superblock(&self) -> Option<Superblock> {
        let copies = SUPERBLOCK_OFFSETS.map(|offset| self.block(offset as usize / BLOCK_SIZE));
        Superblock::newest_of(copies).ok()
    }
}

/// Who of these devices is who, if they can be opened. A set is not opened whose superblock gives a
/// member more slots than its device has room for.
pub fn assembled(devices: &[Device]) -> Option<(Assembled, Vec<Option<usize>>)> {
    let found = devices.iter().enumerate();
    let (of, found): (Vec<usize>, Vec<Superblock>) =
        found.filter_map(|(number, it)| Some((number, it.superblock()?))).unzip();
    let assembled = assemble(&found)?;
    let places: Vec<Option<usize>> =
        assembled.found.iter().map(|it| it.map(|found| of[found])).collect();
    let layout = assembled.superblock.layout();
    let fits = |(number, place): (usize, &Option<usize>)| {
        let slots = assembled.superblock.members()[number].slots.get();
        place.is_none_or(|device| slots <= layout.slots(devices[device].bytes()))
    };
    let fit = places.iter().enumerate().all(fits);
    fit.then_some((assembled, places))
}

/// The machine at work.
pub struct Executor {
    /// The machine.
    pub tiers: Tiers,
    /// Its members, by number.
    pub devices: Vec<Option<Device>>,
    /// What it told.
    pub notices: Vec<Notice>,
    now: u64,
    replies: Vec<Completion>,
    commands: Vec<CommandReply>,
}

impl Executor {
    /// Opens the set that these devices are, and runs until it is open or refused. `None` if nobody
    /// would try.
    pub fn open(devices: Vec<Device>, boot: [u8; 16]) -> Option<Executor> {
        let (assembled, places) = assembled(&devices)?;
        let mut devices: Vec<Option<Device>> = devices.into_iter().map(Some).collect();
        let devices: Vec<Option<Device>> =
            places.iter().map(|place| place.and_then(|it| devices[it].take())).collect();
        let member = |device: &Option<Device>| MemberSettings {
            is_here: device.is_some(),
            volatile_cache: true,
            discards: true,
            piece_blocks: 16,
            stripe_blocks: 0,
        };
        let tuning = Tuning {
            placement: Placement::Spill,
            move_rate: 1 << 40,
            fine_max: 64,
            ..Tuning::default()
        };
        let settings = Settings {
            members: devices.iter().map(member).collect(),
            superblock: assembled.superblock,
            boot,
            tuning,
            is_paused: false,
            mutant: None,
        };
        let mut effects = Vec::new();
        let tiers = Tiers::open(settings, 0, &mut effects);
        let (notices, replies, commands) = (Vec::new(), Vec::new(), Vec::new());
        let mut executor = Executor { tiers, devices, notices, now: 0, replies, commands };
        executor.run(effects, |it| !it.notices.is_empty());
        executor.tiers.check();
        Some(executor)
    }

    /// The devices as they are: a killed process leaves them so, with each I/O that had ended.
    pub fn kill(self) -> Vec<Device> {
        self.devices.into_iter().flatten().collect()
    }

    /// Carries out what is wanted, and lets time pass, until that is there.
    fn run(&mut self, mut effects: Vec<Effect>, until: impl Fn(&Executor) -> bool) {
        for _ in 0..STEPS_MAX {
            let mut next = Vec::new();
            for effect in effects.drain(..) {
                if let Some((op, buf)) = self.perform(effect) {
                    let done = Completion { result: Ok(()), buf };
                    self.tiers.handle(self.now, Event::Done(op, done), &mut next);
                }
            }
            self.tiers.settle(self.now, &mut next);
            if next.is_empty() {
                if until(self) {
                    return;
                }
                let due = self.tiers.deadline().expect("somebody waits for something");
                self.now = due.max(self.now);
                self.tiers.handle(self.now, Event::Tick, &mut next);
            }
            effects = next;
        }
        panic!("it stands still");
    }

    fn device(&mut self, member: MemberId) -> &mut Device {
        let device = self.devices[usize::from(member.0)].as_mut();
        device.expect("only members that are here get I/O")
    }

    fn perform(&mut self, effect: Effect) -> Option<(OpId, Buf)> {
        match effect {
            Effect::Read { op, member, offset, mut buf } => {
                self.device(member).read(offset, buf.bytes_mut());
                return Some((op, buf));
            }
            Effect::Write { op, member, offset, buf } => {
                self.device(member).write(offset, buf.bytes());
                return Some((op, buf));
            }
            Effect::Flush { op, .. } => return Some((op, Buf::empty())),
            Effect::Discard { op, member, offset, len } => {
                // Something else stands there from now on, where it matters: at the ends.
                let device = self.device(member);
                device.write(offset, &[0xdd; BLOCK_SIZE]);
                device.write(offset + len - BLOCK_SIZE as u64, &[0xdd; BLOCK_SIZE]);
                return Some((op, Buf::empty()));
            }
            Effect::Reply { completion, .. } => self.replies.push(completion),
            Effect::CommandDone { reply, .. } => self.commands.push(reply),
            Effect::Notice(notice) => self.notices.push(notice),
        }
        None
    }

    /// Asks for an I/O. Its end.
    pub fn ask(&mut self, io: Io) -> Completion {
        let mut effects = Vec::new();
        let is_read = matches!(io, Io::Read { .. });
        self.tiers.handle(self.now, Event::Submit(IoId(1), io), &mut effects);
        self.run(effects, |it| !it.replies.is_empty());
        if !is_read {
            self.tiers.check();
        }
        self.replies.pop().expect("it is answered once")
    }

    /// Gives a command. Its answer.
    pub fn command(&mut self, command: Command) -> CommandReply {
        let mut effects = Vec::new();
        self.tiers.handle(self.now, Event::Command(CommandId(1), command), &mut effects);
        self.run(effects, |it| !it.commands.is_empty());
        self.tiers.check();
        self.commands.pop().expect("it is answered once")
    }
}
