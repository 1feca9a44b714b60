//! What tiers of memory and an SSD are worth for temporary files: the machine as it ships, on
//! modelled devices in virtual time, beside a linear array of the same devices.
//!
//! `cargo bench -p forebay-tier --bench scratch -- stay oldest through burst` prints one JSON line
//! for each run. `ram=MIB`, `rate=MIB/s`, `reserve=PERMILLE`, `cost=ACCESSES`, `seed=N`, `warm=N`
//! and `ops=N` before a workload change what it runs with. Memory 10 µs + 3 GB/s, SSD 100 µs + 500
//! MB/s, each with one transfer at a time; a client waits 30 µs more for each request, of whatever
//! peer. Data are not kept: only places count.
#![forbid(unsafe_code)]

mod volume;

use forebay_format::io::Time;
use forebay_format::tier::EXTENT_SIZE;
use forebay_tier::*;
use std::collections::{BTreeMap, VecDeque};
use volume::{Access, Linear, Sizes, Volume, World};

const REQUEST: u64 = 16 << 10;
const OLD: usize = 38;
const NEWEST: usize = 10;
/// What a request costs its client besides.
const FRONT_END_NS: Time = 30_000;
const MS: Time = 1_000_000;

/// Chance, the same in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Files on a volume, each a list of mebibytes: the next free one behind the last that was taken.
struct Files {
    sizes: Sizes,
    files: VecDeque<Vec<u32>>,
    growing: (Vec<u32>, u64),
    taken: Vec<bool>,
    cursor: u32,
    is_fifo: bool,
    rng: Rng,
    /// Discards that have to be asked for.
    discards: VecDeque<Access>,
}

impl Files {
    fn new(seed: u64, is_fifo: bool, sizes: Sizes) -> Files {
        let taken = vec![false; sizes.volume as usize];
        let (files, discards, growing) = (VecDeque::new(), VecDeque::new(), (Vec::new(), 0));
        let rng = Rng(seed);
        let mut files = Files { sizes, files, growing, taken, cursor: 0, is_fifo, rng, discards };
        files.growing.0 = files.take();
        files
    }

    fn take(&mut self) -> Vec<u32> {
        let mut units = Vec::new();
        while units.len() < self.sizes.file as usize {
            let unit = self.cursor;
            self.cursor = (self.cursor + 1) % self.sizes.volume;
            if !std::mem::replace(&mut self.taken[unit as usize], true) {
                units.push(unit);
            }
        }
        units
    }

    /// Writes on in the file that grows; when it is whole another is deleted.
    fn write(&mut self, len: u64) -> Access {
        let (units, at) = (&self.growing.0, self.growing.1);
        let offset = u64::from(units[(at / EXTENT_SIZE) as usize]) * EXTENT_SIZE + at % EXTENT_SIZE;
        self.growing.1 += len;
        if self.growing.1 == u64::from(self.sizes.file) * EXTENT_SIZE {
            if self.files.len() == OLD + NEWEST {
                let victim = if self.is_fifo { 0 } else { OLD };
                for unit in self.files.remove(victim).expect("it is there") {
                    self.taken[unit as usize] = false;
                    let offset = u64::from(unit) * EXTENT_SIZE;
                    self.discards.push_back(Access::Discard { offset, len: EXTENT_SIZE });
                }
            }
            let next = self.take();
            self.files.push_back(std::mem::replace(&mut self.growing, (next, 0)).0);
        }
        Access::Write { offset, len }
    }

    fn access(&mut self) -> Access {
        if let Some(discard) = self.discards.pop_front() {
            return discard;
        }
        if self.rng.below(100) < 20 {
            return self.write(REQUEST);
        }
        let first = self.files.len() - NEWEST;
        let file = match self.rng.below(100) < 70 {
            true => first + self.rng.below(NEWEST as u64) as usize,
            false => self.rng.below(first as u64) as usize,
        };
        let unit = self.files[file][self.rng.below(u64::from(self.sizes.file)) as usize];
        let within = self.rng.below(EXTENT_SIZE / REQUEST) * REQUEST;
        Access::Read { offset: u64::from(unit) * EXTENT_SIZE + within, len: REQUEST }
    }
}

#[derive(Default)]
struct Run {
    bytes: u64,
    written: u64,
    fast: u64,
    reads: u64,
    time: Time,
    moved: u64,
    /// Bytes in each window.
    windows: Vec<u64>,
}

impl Run {
    fn mbs(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.time.max(1) as f64
    }

    /// The least of so many windows in a row, in MB/s.
    fn worst(&self, count: usize, window: Time) -> f64 {
        let whole = &self.windows[..self.windows.len().saturating_sub(1)];
        let sums = whole.windows(count).map(|it| it.iter().sum::<u64>());
        let least = sums.min().unwrap_or(0);
        least as f64 * 1e3 / (count as u64 * window) as f64
    }
}

/// Runs requests, so many at a time.
fn run(
    volume: &mut dyn Volume,
    depth: usize,
    ops: u64,
    window: Time,
    mut next: impl FnMut() -> Access,
) -> Run {
    let mut run = Run::default();
    let (begun, moved) = (volume.now(), volume.moved_bytes());
    // Clients that are busy with themselves, and until when.
    let mut clients: VecDeque<Time> = (0..depth).map(|_| begun).collect();
    let (mut asked, mut answered) = (0, 0);
    let mut under_way: BTreeMap<u64, Access> = BTreeMap::new();
    let mut id = 1 << 32 | volume.now();
    while answered < ops {
        while asked < ops && clients.front().is_some_and(|it| *it <= volume.now()) {
            clients.pop_front();
            let access = next();
            if let Access::Read { offset, .. } = access {
                run.reads += 1;
                run.fast += u64::from(volume.is_fast(offset));
            }
            id += 1;
            volume.submit(id, access);
            under_way.insert(id, access);
            asked += 1;
        }
        let ready = clients.front().copied().filter(|_| asked < ops);
        for id in volume.wait(ready.unwrap_or(Time::MAX)) {
            answered += 1;
            let access = under_way.remove(&id).expect("it was asked for");
            let client = match access {
                Access::Discard { .. } => volume.now(),
                Access::Read { len, .. } | Access::Write { len, .. } => {
                    run.bytes += len;
                    let number = ((volume.now() - begun) / window) as usize;
                    run.windows.resize(run.windows.len().max(number + 1), 0);
                    run.windows[number] += len;
                    volume.now() + FRONT_END_NS
                }
            };
            if let Access::Write { len, .. } = access {
                run.written += len;
            }
            let at = clients.partition_point(|it| *it <= client);
            clients.insert(at, client);
        }
    }
    run.time = volume.now() - begun;
    run.moved = volume.moved_bytes() - moved;
    run
}

fn rest(volume: &mut dyn Volume, time: Time) {
    let end = volume.now() + time;
    while volume.now() < end {
        assert_eq!(volume.wait(end), []);
    }
}

/// What a run may be told.
#[derive(Clone, Copy)]
struct Options {
    tuning: Tuning,
    sizes: Sizes,
    seed: u64,
    warm: u64,
    ops: u64,
}

fn peers(options: Options) -> Vec<(&'static str, Box<dyn Volume>)> {
    let with = |placement| World::new(Tuning { placement, ..options.tuning }, options.sizes);
    vec![
        ("heat", Box::new(with(Placement::Heat))),
        ("spill", Box::new(with(Placement::Spill))),
        ("linear", Box::new(Linear::new(options.sizes))),
    ]
}

fn files(name: &str, is_fifo: bool, options: Options) {
    for depth in [16, 1] {
        let mut linear = 0.0;
        for (peer, mut volume) in peers(options).into_iter().rev() {
            let volume = volume.as_mut();
            let mut files = Files::new(options.seed, is_fifo, options.sizes);
            let fill = (OLD + NEWEST) as u64 * u64::from(options.sizes.file) * 4;
            run(volume, 1, fill, MS, || files.write(EXTENT_SIZE / 4));
            let warm = run(volume, depth, options.warm, 100 * MS, || files.access());
            let main = run(volume, depth, options.ops, 100 * MS, || files.access());
            if peer == "linear" {
                linear = main.mbs();
            }
            println!(
                "{{\"bench\": \"scratch\", \"workload\": \"{name}\", \"depth\": {depth}, \
                 \"seed\": {}, \"peer\": \"{peer}\", \"mbs\": {:.1}, \"of_linear\": {:.3}, \
                 \"fast_percent\": {:.1}, \"moved_per_new_byte\": {:.3}, \"warm_s\": {:.1}, \
                 \"warm_mbs\": {:.1}, \"warm_moved_per_new_byte\": {:.3}, \
                 \"worst_second_mbs\": {:.1}}}",
                options.seed,
                main.mbs(),
                main.mbs() / linear,
                100.0 * main.fast as f64 / main.reads as f64,
                main.moved as f64 / main.written as f64,
                warm.time as f64 / 1e9,
                warm.mbs(),
                warm.moved as f64 / warm.written as f64,
                main.worst(10, 100 * MS),
            );
        }
    }
}

/// One stream of writes, 256 KiB each, eight at a time.
fn stream(volume: &mut dyn Volume, from: u64, bytes: u64, window: Time) -> Run {
    let len = EXTENT_SIZE / 4;
    let mut offset = from;
    run(volume, 8, bytes / len, window, || {
        offset += len;
        Access::Write { offset: offset - len, len }
    })
}

fn through(options: Options) {
    for (peer, mut volume) in peers(options) {
        let it = stream(volume.as_mut(), 0, u64::from(options.sizes.volume) * EXTENT_SIZE, 50 * MS);
        println!(
            "{{\"bench\": \"scratch\", \"workload\": \"through\", \"peer\": \"{peer}\", \
             \"mbs\": {:.1}, \"moved_mib\": {}, \"worst_second_mbs\": {:.1}, \
             \"worst_tenth_mbs\": {:.1}}}",
            it.mbs(),
            it.moved >> 20,
            it.worst(20, 50 * MS),
            it.worst(2, 50 * MS),
        );
    }
}

fn burst(options: Options) {
    for (peer, mut volume) in peers(options) {
        let volume = volume.as_mut();
        let reserve =
            u64::from(options.sizes.ram) * u64::from(options.tuning.reserve_per_mille) / 1000;
        let empty = stream(volume, 0, reserve * EXTENT_SIZE, MS).mbs();
        let fill = u64::from(options.sizes.ram) * 24 / 10;
        stream(volume, 64 * EXTENT_SIZE, fill * EXTENT_SIZE, MS);
        let mut at = 64 + fill;
        for (name, tenths) in [("half", 5), ("whole", 10), ("double", 20), ("again", 10)] {
            let mut free = Vec::new();
            for _ in 0..30 {
                free.push(volume.free_fast());
                rest(volume, 1000 * MS);
            }
            let full = volume.free_fast();
            let back = free.iter().position(|it| u64::from(*it) >= reserve);
            let size = reserve * tenths / 10;
            let it = stream(volume, at * EXTENT_SIZE, size * EXTENT_SIZE, MS);
            at += size;
            println!(
                "{{\"bench\": \"scratch\", \"workload\": \"burst\", \"peer\": \"{peer}\", \
                 \"burst\": \"{name}\", \"mib\": {size}, \"mbs\": {:.1}, \"of_empty\": {:.3}, \
                 \"free_before\": {full}, \"reserve\": {reserve}, \"back_after_s\": {}}}",
                it.mbs(),
                it.mbs() / empty,
                back.map_or("null".to_owned(), |it| it.to_string()),
            );
        }
    }
}

fn main() {
    // As a volume has it whose fastest tier is memory.
    let tuning = Tuning { move_rate: 20 << 20, reserve_per_mille: 50, ..Tuning::default() };
    let mut options =
        Options { tuning, sizes: Sizes::of(503), seed: 1, warm: 600_000, ops: 300_000 };
    for argument in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        let number = |text: &str| text.parse::<u64>().expect("a number");
        match argument.split_once('=') {
            Some(("rate", it)) => options.tuning.move_rate = number(it) << 20,
            Some(("reserve", it)) => options.tuning.reserve_per_mille = number(it) as u32,
            Some(("cost", it)) => options.tuning.swap_cost = Some(number(it) as u32),
            Some(("ram", it)) => options.sizes = Sizes::of(number(it) as u32),
            Some(("seed", it)) => options.seed = number(it),
            Some(("warm", it)) => options.warm = number(it),
            Some(("ops", it)) => options.ops = number(it),
            _ => match argument.as_str() {
                "stay" => files("stay", false, options),
                "oldest" => files("oldest", true, options),
                "through" => through(options),
                "burst" => burst(options),
                other => panic!("no workload {other}"),
            },
        }
    }
}
