//! What placement is worth: workloads of known heat, and block traces, through the machine on
//! modelled devices in virtual time.
//!
//! `cargo bench -p forebay-tier --bench placement -- zipf jump` prints one JSON line for each run;
//! a file of 9-byte records (number of a block of 4 KiB, then 0 for a read or 1 for a write) in the
//! place of a name runs a trace; `moving` is reads that arrive by chance while everything moves.
//! Devices take one transfer at a time: SSD 100 µs + 500 MB/s, hard disk 8 ms where it has to seek
//! and 150 MB/s, with 80 ms for a FLUSH after writes, as the disk of `bench/rig` has. Data are not
//! kept: only places count.
#![forbid(unsafe_code)]

mod device;

use crate::device::{Device, PIECE_OF_DISK, SECOND};
use forebay_format::io::{Buf, Completion, OpId, Time};
use forebay_format::tier::{EXTENT_SIZE, TierLayout};
use forebay_tier::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;

const BLOCK: u64 = 4096;
const DEPTH: usize = 8;
/// Largest request that a trace is joined to.
const REQUEST_BYTES: u64 = 64 << 10;

/// One access.
#[derive(Clone, Copy)]
struct Access {
    offset: u64,
    len: u64,
    write: bool,
}

struct World {
    tiers: Tiers,
    devices: Vec<Device>,
    now: Time,
    due: BinaryHeap<Reverse<(Time, u64)>>,
    done: BTreeMap<u64, Completion>,
    effects: Vec<Effect>,
    answered: Vec<IoId>,
    next: u64,
}

impl World {
    /// A fast tier of so many extents over a slow one that holds all; every extent is written, in
    /// order, before anything moves.
    fn new(fast: u32, extents: u32) -> World {
        let member = |uuid: u8, tier: u8, slots: u32| {
            let layout = TierLayout { journal_blocks: 2048, extents_max: extents };
            let bytes = layout.slots_offset() + u64::from(slots) * EXTENT_SIZE;
            NewMember { uuid: [uuid; 16], bytes, tier, is_volatile: false }
        };
        let spec = NewSet {
            name: "bench".into(),
            set: [7; 16],
            bytes: u64::from(extents) * EXTENT_SIZE,
            journal_blocks: 2048,
            bytes_max: 0,
            overcommit: false,
            members: vec![member(1, 0, fast), member(2, 1, extents)],
        };
        let superblock = create(&spec).expect("a possible set").remove(0);
        let member = |piece_blocks| MemberSettings {
            is_here: true,
            volatile_cache: piece_blocks == PIECE_OF_DISK,
            discards: false,
            piece_blocks,
            stripe_blocks: 0,
        };
        let tuning = Tuning { plan_every: 1_000_000_000, ..Tuning::default() };
        let settings = Settings {
            superblock,
            members: vec![member(4), member(PIECE_OF_DISK)],
            boot: [1; 16],
            tuning,
            is_paused: false,
            mutant: None,
        };
        let mut effects = Vec::new();
        let tiers = Tiers::open(settings, 0, &mut effects);
        let mut world = World {
            tiers,
            devices: vec![Device::ssd(), Device::disk()],
            now: 0,
            due: BinaryHeap::new(),
            done: BTreeMap::new(),
            effects,
            answered: Vec::new(),
            next: 0,
        };
        while !world.tiers.is_open() {
            world.step(Time::MAX);
        }
        world.command(Command::Pause);
        for extent in 0..u64::from(extents) {
            world.submit(Access { offset: extent * EXTENT_SIZE, len: EXTENT_SIZE, write: true });
            while world.answered.is_empty() {
                world.step(Time::MAX);
            }
            world.answered.clear();
        }
        world.command(Command::Resume);
        world
    }

    fn command(&mut self, command: Command) {
        self.tiers.handle(self.now, Event::Command(CommandId(1), command), &mut self.effects);
    }

    fn submit(&mut self, access: Access) {
        self.next += 1;
        let buf = Buf::zeroed(access.len as usize);
        let io = match access.write {
            true => Io::Write { offset: access.offset, buf },
            false => Io::Read { offset: access.offset, buf },
        };
        self.tiers.handle(self.now, Event::Submit(IoId(self.next), io), &mut self.effects);
    }

    /// Carries out what is wanted, and lets time pass to what is due next, or until `end`.
    fn step(&mut self, end: Time) {
        self.tiers.settle(self.now, &mut self.effects);
        for effect in std::mem::take(&mut self.effects) {
            let (op, at, buf) = match effect {
                Effect::Read { op, member, offset, buf } => {
                    let device = &mut self.devices[usize::from(member.0)];
                    (op, device.take(self.now, offset, buf.len() as u64), buf)
                }
                Effect::Write { op, member, offset, buf } => {
                    let device = &mut self.devices[usize::from(member.0)];
                    (op, device.write(self.now, offset, buf.len() as u64), buf)
                }
                Effect::Flush { op, member } => {
                    (op, self.devices[usize::from(member.0)].flush(self.now), Buf::empty())
                }
                Effect::Discard { op, .. } => (op, self.now, Buf::empty()),
                Effect::Reply { id, completion } => {
                    assert_eq!(completion.result, Ok(()));
                    self.answered.push(id);
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
                assert!(tick < Time::MAX, "something happens");
                self.now = self.now.max(tick);
                self.tiers.handle(self.now, Event::Tick, &mut self.effects);
            }
        }
    }

    /// Reads of a block each that arrive by chance, so many a second; what each took, in order.
    fn arrivals(&mut self, per_s: f64, for_s: u64, mut pick: impl FnMut() -> u64) -> Vec<Time> {
        let mut rng = Rng(3);
        let end = self.now + for_s * SECOND;
        let mut next = self.now;
        let mut begun: BTreeMap<IoId, Time> = BTreeMap::new();
        let mut took = Vec::new();
        while next < end || !begun.is_empty() {
            if next <= self.now && next < end {
                self.submit(Access { offset: pick(), len: BLOCK, write: false });
                begun.insert(IoId(self.next), next);
                next += (-(1.0 - rng.unit()).ln() / per_s * 1e9) as Time;
            }
            self.step(if next < end { next.max(self.now) } else { Time::MAX });
            for id in std::mem::take(&mut self.answered) {
                took.push(self.now - begun.remove(&id).expect("it was asked"));
            }
        }
        took.sort_unstable();
        took
    }

    fn is_fast(&self, offset: u64) -> bool {
        self.tiers.place_of((offset / EXTENT_SIZE) as u32).is_some_and(|it| it.0 == MemberId(0))
    }

    /// Runs accesses, so many at a time; how many of those behind the first `skipped` were served
    /// by the fast tier, and the time and bytes moved from there on.
    fn run(&mut self, accesses: &[Access], skipped: usize) -> Run {
        let mut run = Run::default();
        let (mut next, mut under_way) = (0, 0);
        let mut begun = (self.now, self.tiers.moved_bytes());
        while next < accesses.len() || under_way > 0 {
            while next < accesses.len() && under_way < DEPTH {
                if next == skipped {
                    begun = (self.now, self.tiers.moved_bytes());
                }
                let access = accesses[next];
                if next >= skipped {
                    run.accesses += 1;
                    run.bytes += access.len;
                    run.fast += u64::from(self.is_fast(access.offset));
                }
                self.submit(access);
                next += 1;
                under_way += 1;
            }
            self.step(Time::MAX);
            under_way -= std::mem::take(&mut self.answered).len();
        }
        run.time = self.now - begun.0;
        // A move reads and writes what it copies; a swap moves two extents.
        run.moved = self.tiers.moved_bytes() - begun.1;
        run
    }
}

#[derive(Default)]
struct Run {
    accesses: u64,
    fast: u64,
    bytes: u64,
    moved: u64,
    time: Time,
}

impl Run {
    fn print(&self, name: &str, best: f64) {
        let share = 100.0 * self.fast as f64 / self.accesses as f64;
        println!(
            "{{\"bench\": \"placement\", \"workload\": \"{name}\", \"accesses\": {}, \
             \"fast_percent\": {share:.1}, \"best_static_percent\": {best:.1}, \
             \"moved_per_byte\": {:.3}, \"mean_ms\": {:.2}}}",
            self.accesses,
            self.moved as f64 / self.bytes as f64,
            self.time as f64 / 1e6 * DEPTH as f64 / self.accesses as f64,
        );
    }
}

/// Chance, the same in every run.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Ranks by zipf 1.1 over so many blocks, hot blocks in runs of `run` blocks that lie anywhere.
struct Zipf {
    sums: Vec<f64>,
    place: Vec<u32>,
    run: usize,
}

impl Zipf {
    fn new(blocks: usize, run: usize, rng: &mut Rng) -> Zipf {
        let mut sums = Vec::with_capacity(blocks);
        let mut sum = 0.0;
        for rank in 1..=blocks {
            sum += 1.0 / (rank as f64).powf(1.1);
            sums.push(sum);
        }
        let mut place: Vec<u32> = (0..(blocks / run) as u32).collect();
        for index in (1..place.len()).rev() {
            place.swap(index, (rng.next() % (index as u64 + 1)) as usize);
        }
        Zipf { sums, place, run }
    }

    fn block(&self, rng: &mut Rng, shift: usize) -> u64 {
        let wanted = rng.unit() * self.sums[self.sums.len() - 1];
        let rank = self.sums.partition_point(|sum| *sum < wanted).min(self.sums.len() - 1);
        let run = (rank / self.run + shift) % self.place.len();
        u64::from(self.place[run]) * self.run as u64 + (rank % self.run) as u64
    }
}

/// The share of accesses that the hottest extents serve, as many as the fast tier has.
fn best_static(accesses: &[Access], fast: u32) -> f64 {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for access in accesses {
        *counts.entry(access.offset / EXTENT_SIZE).or_default() += 1;
    }
    let mut counts: Vec<u64> = counts.into_values().collect();
    counts.sort_unstable_by_key(|count| Reverse(*count));
    let served: u64 = counts.iter().take(fast as usize).sum();
    100.0 * served as f64 / accesses.len() as f64
}

const ZIPF_FAST: u32 = 1024;
const ZIPF_EXTENTS: u32 = 4096;

fn zipf(accesses: usize) {
    for (name, run) in [("zipf-scattered", 1), ("zipf-clustered", 256)] {
        let mut rng = Rng(1);
        let zipf = Zipf::new(ZIPF_EXTENTS as usize * 256, run, &mut rng);
        let access = |_| {
            let offset = zipf.block(&mut rng, 0) * BLOCK;
            Access { offset, len: BLOCK, write: rng.next().is_multiple_of(4) }
        };
        let all: Vec<Access> = (0..accesses).map(access).collect();
        let best = best_static(&all[accesses / 2..], ZIPF_FAST);
        World::new(ZIPF_FAST, ZIPF_EXTENTS).run(&all, accesses / 2).print(name, best);
    }
}

/// The hot set goes elsewhere: accesses until the share is within three points again.
fn jump(accesses: usize) {
    let mut rng = Rng(2);
    let zipf = Zipf::new(ZIPF_EXTENTS as usize * 256, 256, &mut rng);
    let mut world = World::new(ZIPF_FAST, ZIPF_EXTENTS);
    let mut some = |count: usize, shift: usize| -> Vec<Access> {
        let access =
            |_| Access { offset: zipf.block(&mut rng, shift) * BLOCK, len: BLOCK, write: false };
        (0..count).map(access).collect()
    };
    let before = world.run(&some(accesses, 0), accesses / 2);
    let settled = before.fast as f64 / before.accesses as f64;
    let step = 10_000;
    for round in 1..200 {
        let run = world.run(&some(step, 2048), 0);
        let share = run.fast as f64 / run.accesses as f64;
        if share > settled - 0.03 {
            println!(
                "{{\"bench\": \"placement\", \"workload\": \"jump\", \"before_percent\": {:.1}, \
                 \"accesses_to_recover\": {}, \"per_extent_of_the_fast_tier\": {:.1}}}",
                100.0 * settled,
                round * step,
                (round * step) as f64 / f64::from(ZIPF_FAST),
            );
            return;
        }
    }
    println!("{{\"bench\": \"placement\", \"workload\": \"jump\", \"accesses_to_recover\": null}}");
}

/// Reads of a hard disk that is about half busy with them, while the fast tier is emptied onto it,
/// and while what they read moves up; beside the same with moves paused.
fn moving() {
    const FAST: u32 = 2048;
    const EXTENTS: u32 = 4096;
    const PER_S: f64 = 60.0;
    for (name, command) in
        [("emptied", Command::Evacuate(vec![MemberId(0)])), ("rising", Command::Resume)]
    {
        let mut paused = 0;
        for is_moving in [false, true] {
            let mut world = World::new(FAST, EXTENTS);
            world.command(Command::Pause);
            let mut rng = Rng(4);
            // What is on the disk; of that a tenth, often, where it is to rise.
            let slow: Vec<u64> = (0..u64::from(EXTENTS)).map(|it| it * EXTENT_SIZE).collect();
            let mut slow: Vec<u64> = slow.into_iter().filter(|it| !world.is_fast(*it)).collect();
            if name == "rising" {
                slow.truncate(slow.len() / 10);
            }
            let pick = || {
                let extent = slow[(rng.next() % slow.len() as u64) as usize];
                extent + rng.next() % 256 * BLOCK
            };
            if is_moving {
                world.command(command.clone());
                world.command(Command::Resume);
            }
            let (before, began) = (world.tiers.moved_bytes(), world.now);
            let took = world.arrivals(PER_S, 120, pick);
            let rank = |percent: usize| took[(took.len() - 1) * percent / 100];
            let moved = (world.tiers.moved_bytes() - before) as f64;
            if !is_moving {
                paused = rank(99);
            }
            println!(
                "{{\"bench\": \"placement\", \"workload\": \"moving\", \"what\": \"{name}\", \
                 \"is_moving\": {is_moving}, \"reads\": {}, \"p50_ms\": {:.1}, \
                 \"p99_ms\": {:.1}, \"max_ms\": {:.1}, \"of_paused\": {:.2}, \
                 \"moved_mbs\": {:.1}}}",
                took.len(),
                rank(50) as f64 / 1e6,
                rank(99) as f64 / 1e6,
                rank(100) as f64 / 1e6,
                rank(99) as f64 / paused as f64,
                moved / (world.now - began) as f64 * 1e3,
            );
        }
    }
}

/// Neighbours in a trace are one request; extents that it touches lie side by side.
fn trace(file: &Path, percent: u32) -> std::io::Result<()> {
    let bytes = std::fs::read(file)?;
    let mut extents: BTreeMap<u64, u64> = BTreeMap::new();
    let records = bytes.chunks_exact(9).map(|record| {
        (u64::from_le_bytes(record[..8].try_into().expect("8 bytes")), record[8] != 0)
    });
    let records: Vec<(u64, bool)> = records.collect();
    for (block, _) in &records {
        extents.insert(block * BLOCK / EXTENT_SIZE, 0);
    }
    extents.values_mut().enumerate().for_each(|(number, place)| *place = number as u64);
    let mut all: Vec<Access> = Vec::new();
    let mut end = (u64::MAX, false);
    for (block, write) in records {
        let place = extents[&(block * BLOCK / EXTENT_SIZE)];
        let offset = place * EXTENT_SIZE + block * BLOCK % EXTENT_SIZE;
        match all.last_mut() {
            Some(last)
                if end == (offset, write)
                    && last.len < REQUEST_BYTES
                    && !offset.is_multiple_of(EXTENT_SIZE) =>
            {
                last.len += BLOCK;
            }
            _ => all.push(Access { offset, len: BLOCK, write }),
        }
        end = (offset + BLOCK, write);
    }
    let fast = (extents.len() as u32 * percent / 100).max(4);
    let skipped = all.len() / 5;
    let best = best_static(&all[skipped..], fast);
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let mut world = World::new(fast, extents.len() as u32);
    world.run(&all, skipped).print(&format!("{name}, fast tier {percent} %"), best);
    Ok(())
}

fn main() {
    for argument in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        match argument.as_str() {
            "zipf" => zipf(3_000_000),
            "jump" => jump(1_500_000),
            "moving" => moving(),
            file => trace(Path::new(file), 20).unwrap_or_else(|error| panic!("{file}: {error}")),
        }
    }
}
