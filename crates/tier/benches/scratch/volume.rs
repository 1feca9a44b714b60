//! Volumes on modelled devices.

use forebay_format::io::{Buf, Completion, IoError, OpId, Time};
use forebay_format::tier::{EXTENT_SIZE, TierLayout};
use forebay_tier::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Mebibytes.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub ram: u32,
    pub ssd: u32,
    pub volume: u32,
    pub file: u32,
}

impl Sizes {
    pub fn of(ram: u32) -> Sizes {
        Sizes { ram, ssd: ram * 10 / 3, volume: ram * 4, file: ram / 16 }
    }
}

/// A device that transfers one thing after the other.
struct Device {
    latency: Time,
    bytes_per_s: u64,
    free_at: Time,
}

impl Device {
    fn take(&mut self, now: Time, len: u64) -> Time {
        self.free_at = self.free_at.max(now) + len * 1_000_000_000 / self.bytes_per_s;
        self.free_at + self.latency
    }
}

fn devices() -> [Device; 2] {
    let ram = Device { latency: 10_000, bytes_per_s: 3_000_000_000, free_at: 0 };
    let ssd = Device { latency: 100_000, bytes_per_s: 500_000_000, free_at: 0 };
    [ram, ssd]
}

/// One request.
#[derive(Clone, Copy)]
pub enum Access {
    Read { offset: u64, len: u64 },
    Write { offset: u64, len: u64 },
    Discard { offset: u64, len: u64 },
}

/// A volume that answers.
pub trait Volume {
    fn submit(&mut self, id: u64, access: Access);
    /// Lets time pass until something is answered, or until `end`; who was answered.
    fn wait(&mut self, end: Time) -> Vec<u64>;
    fn now(&self) -> Time;
    fn is_fast(&self, offset: u64) -> bool;
    fn moved_bytes(&self) -> u64;
    fn free_fast(&self) -> u32;
}

/// Memory, then the SSD.
pub struct Linear {
    ram: u32,
    devices: [Device; 2],
    now: Time,
    due: BinaryHeap<Reverse<(Time, u64)>>,
}

impl Linear {
    pub fn new(sizes: Sizes) -> Linear {
        Linear { ram: sizes.ram, devices: devices(), now: 0, due: BinaryHeap::new() }
    }
}

impl Volume for Linear {
    fn submit(&mut self, id: u64, access: Access) {
        let at = match access {
            Access::Read { offset, len } | Access::Write { offset, len } => {
                let device = usize::from(!self.is_fast(offset));
                self.devices[device].take(self.now, len)
            }
            Access::Discard { .. } => self.now,
        };
        self.due.push(Reverse((at, id)));
    }

    fn wait(&mut self, end: Time) -> Vec<u64> {
        match self.due.peek() {
            Some(&Reverse((at, id))) if at <= end => {
                self.due.pop();
                self.now = self.now.max(at);
                vec![id]
            }
            _ => {
                self.now = self.now.max(end);
                Vec::new()
            }
        }
    }

    fn now(&self) -> Time {
        self.now
    }

    fn is_fast(&self, offset: u64) -> bool {
        offset < u64::from(self.ram) * EXTENT_SIZE
    }

    fn moved_bytes(&self) -> u64 {
        0
    }

    fn free_fast(&self) -> u32 {
        0
    }
}

/// Tiers.
pub struct World {
    tiers: Tiers,
    devices: [Device; 2],
    now: Time,
    due: BinaryHeap<Reverse<(Time, u64)>>,
    done: BTreeMap<u64, Completion>,
    effects: Vec<Effect>,
    answered: Vec<u64>,
}

impl World {
    pub fn new(tuning: Tuning, sizes: Sizes) -> World {
        let member = |uuid: u8, tier: u8, slots: u32| {
            let layout = TierLayout { journal_blocks: 2048, extents_max: 4 * sizes.volume };
            let bytes = layout.slots_offset() + u64::from(slots) * EXTENT_SIZE;
            NewMember { uuid: [uuid; 16], bytes, tier, is_volatile: tier == 0 }
        };
        let spec = NewSet {
            name: "bench".into(),
            set: [7; 16],
            bytes: u64::from(sizes.volume) * EXTENT_SIZE,
            journal_blocks: 2048,
            bytes_max: u64::from(4 * sizes.volume) * EXTENT_SIZE,
            overcommit: false,
            members: vec![member(1, 0, sizes.ram), member(2, 1, sizes.ssd)],
        };
        let superblock = create(&spec).expect("a possible set").remove(0);
        let member = MemberSettings {
            is_here: true,
            volatile_cache: false,
            discards: true,
            piece_blocks: 4,
            stripe_blocks: 0,
        };
        let settings = Settings {
            superblock,
            members: vec![member, member],
            boot: [1; 16],
            tuning,
            is_paused: false,
            mutant: None,
        };
        let mut effects = Vec::new();
        let tiers = Tiers::open(settings, 0, &mut effects);
        let mut world = World {
            tiers,
            devices: devices(),
            now: 0,
            due: BinaryHeap::new(),
            done: BTreeMap::new(),
            effects,
            answered: Vec::new(),
        };
        while !world.tiers.is_open() {
            world.step(Time::MAX);
        }
        world
    }

    fn step(&mut self, end: Time) {
        self.tiers.settle(self.now, &mut self.effects);
        for effect in std::mem::take(&mut self.effects) {
            let (op, at, buf) = match effect {
                Effect::Read { op, member, buf, .. } | Effect::Write { op, member, buf, .. } => {
                    let device = &mut self.devices[usize::from(member.0)];
                    (op, device.take(self.now, buf.len() as u64), buf)
                }
                Effect::Flush { op, .. } | Effect::Discard { op, .. } => {
                    (op, self.now, Buf::empty())
                }
                Effect::Reply { id, completion } => {
                    assert_eq!(completion.result, Ok::<(), IoError>(()));
                    self.answered.push(id.0);
                    continue;
                }
                Effect::CommandDone { .. } | Effect::Notice(_) => continue,
            };
            self.done.insert(op.0, Completion { result: Ok(()), buf });
            self.due.push(Reverse((at, op.0)));
        }
        if !self.answered.is_empty() {
            return;
        }
        let tick = self.tiers.deadline().unwrap_or(Time::MAX).min(end);
        match self.due.peek() {
            Some(&Reverse((at, _))) if at <= tick => {
                let Some(Reverse((at, op))) = self.due.pop() else { return };
                self.now = self.now.max(at);
                let completion = self.done.remove(&op).expect("it is under way");
                let event = Event::Done(OpId(op), completion);
                self.tiers.handle(self.now, event, &mut self.effects);
            }
            _ => {
                self.now = self.now.max(tick);
                self.tiers.handle(self.now, Event::Tick, &mut self.effects);
            }
        }
    }
}

impl Volume for World {
    fn submit(&mut self, id: u64, access: Access) {
        let io = match access {
            Access::Write { offset, len } => Io::Write { offset, buf: Buf::zeroed(len as usize) },
            Access::Read { offset, len } => Io::Read { offset, buf: Buf::zeroed(len as usize) },
            Access::Discard { offset, len } => Io::Discard { offset, len },
        };
        self.tiers.handle(self.now, Event::Submit(IoId(id), io), &mut self.effects);
    }

    fn wait(&mut self, end: Time) -> Vec<u64> {
        while self.answered.is_empty() && self.now < end {
            self.step(end);
        }
        std::mem::take(&mut self.answered)
    }

    fn now(&self) -> Time {
        self.now
    }

    fn is_fast(&self, offset: u64) -> bool {
        self.tiers.place_of((offset / EXTENT_SIZE) as u32).is_some_and(|it| it.0 == MemberId(0))
    }

    fn moved_bytes(&self) -> u64 {
        self.tiers.moved_bytes()
    }

    fn free_fast(&self) -> u32 {
        self.tiers.free_slots(MemberId(0))
    }
}
