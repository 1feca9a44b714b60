//! Pools with as many segments as real ones, driven until the log has hardly any room: what ends
//! many blocks at once must not take the room that is needed to make more. (The simulator's pools
//! are too small to show it.)

use forebay_engine::{
    Buf, Command, CommandId, CommandReply, Completion, DeviceSettings, Effect, Engine, Event, Mode,
    OriginSettings, Request, RequestId, RequestKind, Settings, State, Target, Tuning, VolumeId,
};
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::superblock::{
    PoolSpec, SUPERBLOCK_SIZE, Superblock, VolumeEntry, new_pool, text_field,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use zerocopy::FromZeros;

const VOLUME: VolumeId = VolumeId(1);
const POOL_BYTES: u64 = 256 << 20;
const VOLUME_BYTES: u64 = 4 * POOL_BYTES;
const SEGMENT_BLOCKS: u32 = 64;
const BLOCK: u64 = 4096;
/// Share of the pool's blocks that is written again and again, in thousandths.
const SET: u64 = 680;
/// Requests under way.
const DEPTH: u64 = 64;
const SECOND: u64 = 1_000_000_000;
/// A flash device, and a slow disk that does one write after the other, in nanoseconds.
const CACHE_NS: u64 = 60_000;
const ORIGIN_NS: u64 = 60_000_000;

/// An engine, a cache device in memory, and an origin that only takes time.
struct World {
    engine: Engine,
    cache: Vec<u8>,
    now: u64,
    out: Vec<Effect>,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    next: u64,
    origin_free: u64,
    asked: u64,
    replies: u64,
    commands: Vec<CommandReply>,
}

/// A new pool with one volume.
fn new_cache() -> Vec<u8> {
    let spec = PoolSpec {
        name: "room".into(),
        uuid: [1; 16],
        devices: vec![(POOL_BYTES, [2; 16])],
        segment_blocks: Some(SEGMENT_BLOCKS),
    };
    let mut superblock = new_pool(&spec).expect("a pool of this size").remove(0);
    let mut volume = VolumeEntry::new_zeroed();
    volume.id = VOLUME.0.into();
    volume.used = 1;
    volume.bytes = VOLUME_BYTES.into();
    volume.name = text_field("room");
    volume.mode = Mode::WriteBack as u8;
    superblock.volumes.push(volume);
    superblock.header.volume_id_next = 2.into();
    let mut cache = vec![0; POOL_BYTES as usize];
    for offset in SUPERBLOCK_OFFSETS {
        let at = offset as usize;
        superblock.encode(&mut cache[at..at + SUPERBLOCK_SIZE]);
    }
    cache
}

impl World {
    fn open(cache: Vec<u8>, origin_is_there: bool) -> World {
        let copies = SUPERBLOCK_OFFSETS.map(|offset| {
            let at = offset as usize;
            Superblock::decode(&cache[at..at + SUPERBLOCK_SIZE])
        });
        let (superblock, _) = Superblock::choose(copies).expect("a superblock");
        let device = DeviceSettings {
            behind: false,
            bytes: POOL_BYTES,
            volatile_cache: true,
            present: true,
        };
        let origin =
            OriginSettings { volume: VOLUME, present: origin_is_there, volatile_cache: true };
        let settings = Settings {
            superblock,
            devices: vec![device],
            origins: vec![origin],
            distrust_epoch: 0,
            ram_bytes: 0,
            tuning: Tuning { sequential_bytes: u64::MAX, ..Tuning::default() },
        };
        let mut out = Vec::new();
        let engine = Engine::open(settings, 0, &mut out);
        let mut world = World {
            engine,
            cache,
            now: 0,
            out,
            due: BinaryHeap::new(),
            events: BTreeMap::new(),
            next: 0,
            origin_free: 0,
            asked: 0,
            replies: 0,
            commands: Vec::new(),
        };
        while world.engine.state() == State::Opening {
            assert!(world.step(), "the opening stands still");
        }
        assert_eq!(world.engine.state(), State::Serving);
        world
    }

    fn slots(&self) -> u64 {
        let stats = self.engine.pool_stats();
        stats.segments * u64::from(SEGMENT_BLOCKS)
    }

    fn ends(&mut self, at: u64, event: Event) {
        self.next += 1;
        self.due.push(Reverse((at, self.next)));
        self.events.insert(self.next, event);
    }

    fn carry_out(&mut self, effect: Effect) {
        let done = |op, result, buf| Event::Done(op, Completion { result, buf });
        let on_cache = self.now + CACHE_NS;
        let mut on_origin = || {
            self.origin_free = self.origin_free.max(self.now) + ORIGIN_NS;
            self.origin_free
        };
        match effect {
            Effect::Read { op, target: Target::Cache(_), offset, mut buf } => {
                let at = offset as usize;
                let len = buf.len();
                buf.bytes_mut().copy_from_slice(&self.cache[at..at + len]);
                self.ends(on_cache, done(op, Ok(()), buf));
            }
            Effect::Write { op, target: Target::Cache(_), offset, buf } => {
                let at = offset as usize;
                let old = self.cache[at..at + buf.len()].chunks_mut(BLOCK as usize);
                for (old, new) in old.zip(buf.bytes().chunks(BLOCK as usize)) {
                    // Pages that stay zero take no memory.
                    if old != new {
                        old.copy_from_slice(new);
                    }
                }
                self.ends(on_cache, done(op, Ok(()), buf));
            }
            Effect::Read { op, buf, .. } | Effect::Write { op, buf, .. } => {
                let at = on_origin();
                self.ends(at, done(op, Ok(()), buf));
            }
            Effect::Zero { op, .. } | Effect::Discard { op, .. } => {
                let at = on_origin();
                self.ends(at, done(op, Ok(()), Buf::empty()));
            }
            Effect::Flush { op, target: Target::Cache(_) } | Effect::Distrust { op, .. } => {
                self.ends(on_cache, done(op, Ok(()), Buf::empty()));
            }
            Effect::Flush { op, .. } => {
                let at = self.origin_free.max(self.now) + CACHE_NS;
                self.ends(at, done(op, Ok(()), Buf::empty()));
            }
            Effect::Reply { .. } => self.replies += 1,
            Effect::CommandDone { reply, .. } => self.commands.push(reply),
            Effect::Notice(_) => {}
        }
    }

    /// Does what is next. `false`: nothing will ever happen again.
    fn step(&mut self) -> bool {
        self.engine.settle(self.now, &mut self.out);
        let effects = std::mem::take(&mut self.out);
        if !effects.is_empty() {
            effects.into_iter().for_each(|effect| self.carry_out(effect));
            return true;
        }
        let ends = self.due.peek().map(|Reverse((at, _))| *at);
        let Some(next) = ends.into_iter().chain(self.engine.deadline()).min() else { return false };
        self.now = self.now.max(next);
        if ends != Some(next) {
            self.now = self.now.max(next + 1);
            self.engine.handle(self.now, Event::Tick, &mut self.out);
        }
        while let Some(&Reverse((at, name))) = self.due.peek()
            && at <= self.now
        {
            self.due.pop();
            let event = self.events.remove(&name).expect("one event for each name");
            self.engine.handle(self.now, event, &mut self.out);
        }
        true
    }

    fn ask(&mut self, kind: RequestKind, block: u64, blocks: u64) {
        self.asked += 1;
        let len = blocks * BLOCK;
        let data = matches!(kind, RequestKind::Read | RequestKind::Write);
        let buf = if data { Buf::zeroed(len as usize) } else { Buf::empty() };
        let request = Request { volume: VOLUME, kind, offset: block * BLOCK, len, fua: false, buf };
        let event = Event::Submit(RequestId(self.asked), request);
        self.engine.handle(self.now, event, &mut self.out);
    }

    /// Every other block of a part of the volume is written, in no order, over and over, until
    /// writers wait for room.
    fn starve(&mut self) {
        let set = self.slots() * SET / 1000;
        let mut random = 1_u64;
        let mut last = (0, 0);
        loop {
            while self.asked - self.replies < DEPTH {
                random =
                    random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                // All once, then some of them again.
                let n =
                    if self.asked < set { self.asked * 7919 % set } else { (random >> 33) % set };
                self.ask(RequestKind::Write, 2 * n, 1);
            }
            assert!(self.step(), "writers wait for ever");
            if self.replies != last.0 {
                last = (self.replies, self.now);
            } else if self.now - last.1 > 2 * SECOND && self.asked > 2 * set {
                return;
            }
            assert!(self.asked < 40 * set, "the log always found room");
        }
    }

    fn command(&mut self, command: Command) -> Option<CommandReply> {
        self.commands.clear();
        let id = CommandId(self.next + (1 << 40));
        self.engine.handle(self.now, Event::Command(id, command), &mut self.out);
        let end = self.now + 3600 * SECOND;
        while self.commands.is_empty() && self.now < end && self.step() {}
        self.commands.pop()
    }
}

#[test]
fn dirty_data_that_is_given_up_leaves_room() {
    let mut world = World::open(new_cache(), true);
    world.starve();
    let mut world = World::open(world.cache, false);
    assert_eq!(world.command(Command::ForceDropDirty(VOLUME)), Some(CommandReply::Changed));
    assert_eq!(world.command(Command::Shutdown), Some(CommandReply::Changed));
}
