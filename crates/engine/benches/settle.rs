//! How much one call of the engine does at worst: a pool of 20 GiB in states in which there is much
//! to do at once.
//!
//! `cargo bench -p forebay-engine --bench settle -- [STATE…]` prints for each state the calls that
//! took longest and those that took most steps, one JSON line each. A state is run some times, and
//! of a call's times the shortest counts: the machine does other things too. `cargo xtask bench
//! settle` does it under callgrind, too, which counts the instructions of these calls alone: see
//! `profile`. `--again` takes the devices that the last run has made. A state begins with a start
//! on them: callgrind could not bear to fill 20 GiB.
// The bench measures real time: the ban is for the engine.
#![allow(clippy::disallowed_methods)]
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "the tests use the rest")]
mod instant;

use forebay_engine::{Command, RequestKind, Tuning};
use instant::{Call, Devices, Meter, Random, VOLUME, World, WorldSpec};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;
const BLOCK: u64 = 4096;
const POOL: u64 = 20 * GIB;
const VOLUME_BYTES: u64 = 64 * GIB;
const VOLUME_BLOCKS: u64 = VOLUME_BYTES / BLOCK;
/// Calls that are printed, by time, by time without their payload's, and by steps each.
const WORST: usize = 3;
/// Times that a state is run.
const ROUNDS: usize = 3;

/// A state: how its devices are made, the world on them, and what is then watched.
struct State {
    name: &'static str,
    make: fn() -> World,
    spec: fn() -> WorldSpec,
    watch: fn(&mut World),
}

const STATES: [State; 12] = [
    State { name: "refuses", make: dirty, spec, watch: refuses },
    State { name: "full", make: full_of_dirty, spec, watch: full },
    State { name: "full-refuses", make: full_of_dirty, spec, watch: full_refuses },
    State { name: "dies-clean", make: full_of_clean, spec, watch: dies },
    State { name: "dies-dirty", make: dirty, spec, watch: dies },
    State { name: "one-of-two-dies", make: two_devices, spec: spec_of_two, watch: one_dies },
    State { name: "checkpoint", make: dirty, spec, watch: checkpoint },
    State { name: "removal", make: full_of_clean, spec: spec_with_ram, watch: removal },
    State { name: "drain", make: dirty, spec, watch: drain },
    State { name: "zero", make: clean_and_dirty, spec: spec_with_ram, watch: zero },
    State { name: "drop-dirty", make: dirty, spec: spec_without_origin, watch: drop_dirty },
    State { name: "drop-dirty-dead", make: dirty, spec, watch: drop_dirty_dead },
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let profiled: VecDeque<usize> = match words.iter().position(|word| word == "--profile") {
        None => VecDeque::new(),
        Some(at) => words[at + 1].split(',').map(|call| call.parse().expect("a call")).collect(),
    };
    for state in &STATES {
        let named = words.iter().any(|word| STATES.iter().any(|state| state.name == word));
        if named && !words.iter().any(|word| word == state.name) {
            continue;
        }
        let devices = PathBuf::from(format!("{}/{}", env!("CARGO_TARGET_TMPDIR"), state.name));
        if profiled.is_empty() && !words.iter().any(|word| word == "--again") {
            (state.make)().kill().save(&devices).expect("the devices can be kept");
        }
        let mut calls: Vec<Call> = Vec::new();
        for _ in 0..if profiled.is_empty() { ROUNDS } else { 1 } {
            let profile = (!profiled.is_empty()).then_some(profile as fn(usize));
            let meter = Meter { profiled: profiled.clone(), profile, ..Meter::default() };
            let again = watched(state, &devices, meter);
            assert!(calls.is_empty() || calls.len() == again.len(), "a state goes as it went");
            let least = calls.iter().chain(again.iter().skip(calls.len())).zip(&again);
            calls = least.map(|(a, b)| Call { ns: a.ns.min(b.ns), ..*b }).collect();
        }
        report(state.name, &calls);
    }
}

/// The calls of a state.
fn watched(state: &State, devices: &Path, meter: Meter) -> Vec<Call> {
    let spec = (state.spec)();
    let devices = Devices::load(&spec, devices).expect("they were kept");
    let mut world = World::with_devices(&spec, devices);
    world.shed();
    world.meter = Some(meter);
    (state.watch)(&mut world);
    world.meter.take().expect("it was given one").calls
}

/// Before and after a call that is to be counted: tells who runs callgrind, and waits until that
/// has switched the counting on or off, and has made the file that standard input names.
fn profile(call: usize) {
    println!("profile {call}");
    let gate = PathBuf::from(std::env::var("FOREBAY_GATE").expect("who counts names a file"));
    while !gate.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::fs::remove_file(gate).expect("it was made for us");
}

/// Prints the worst calls.
fn report(state: &str, calls: &[Call]) {
    let mut worst = Vec::new();
    let keys: [fn(&Call) -> u64; 3] =
        [|call| call.ns, |call| call.ns.saturating_sub(call.payload / 4), |call| call.steps];
    for key in keys {
        let mut by: Vec<usize> = (0..calls.len()).collect();
        by.sort_by_key(|&at| std::cmp::Reverse(key(&calls[at])));
        worst.extend(by.into_iter().take(WORST));
    }
    worst.sort_unstable();
    worst.dedup();
    for at in worst {
        let Call { what, steps, ns, payload } = calls[at];
        println!(
            "{{\"state\": \"{state}\", \"call\": {at}, \"of\": {}, \"what\": \"{what}\", \
             \"steps\": {steps}, \"us\": {:.1}, \"payload_kib\": {}}}",
            calls.len(),
            ns as f64 / 1000.0,
            payload / KIB
        );
    }
}

/// Nothing goes home by itself but for want of room, or above 60 % of what may be dirty.
fn spec() -> WorldSpec {
    let mut spec = WorldSpec::quiet(POOL, VOLUME_BYTES);
    spec.tuning = Tuning { dirty_target: 1.0, ..spec.tuning };
    spec
}

fn spec_with_ram() -> WorldSpec {
    WorldSpec { ram_bytes: GIB, ..spec() }
}

fn spec_of_two() -> WorldSpec {
    WorldSpec { devices: 2, ..spec() }
}

fn spec_without_origin() -> WorldSpec {
    WorldSpec { origin_present: false, ..spec() }
}

fn world(spec: &WorldSpec) -> World {
    World::with_devices(spec, Devices::of(spec, true))
}

/// Random writes of 4 KiB until so many bytes are dirty.
fn write_until(world: &mut World, bytes: u64) {
    let mut random = Random(3);
    while dirty_bytes(world) < bytes {
        world.run(128, 10_000, RequestKind::Write, BLOCK, |_| random.below(VOLUME_BLOCKS));
    }
}

fn dirty_bytes(world: &World) -> u64 {
    world.engine.volume_stats(VOLUME).expect("it").dirty_blocks * BLOCK
}

/// Reads of 128 KiB, far from each other, that bring so many bytes in.
fn read_in(world: &mut World, bytes: u64) {
    let stride = VOLUME_BYTES / bytes;
    world.run(32, bytes / (128 * KIB), RequestKind::Read, 128 * KIB, |n| n * 32 * stride);
}

/// 10 GiB that are dirty in blocks of 4 KiB all over the volume.
fn dirty() -> World {
    let mut world = world(&spec());
    write_until(&mut world, 10 * GIB);
    world
}

/// As much is dirty as may be, or as there is room for.
fn full_of_dirty() -> World {
    let mut world = world(&spec());
    world.origin_hangs = true;
    let mut random = Random(5);
    let mut before = 0;
    loop {
        world.churn(128, 1_000, |_| (RequestKind::Write, random.below(VOLUME_BLOCKS), 1));
        if world.replies() == before {
            return world;
        }
        before = world.replies();
    }
}

fn full_of_clean() -> World {
    let mut world = world(&spec());
    read_in(&mut world, POOL);
    world
}

/// Half the pool clean, 5 GiB dirty.
fn clean_and_dirty() -> World {
    let mut world = world(&spec());
    read_in(&mut world, POOL / 2);
    write_until(&mut world, 5 * GIB);
    world
}

/// The same on two devices, with less that is dirty, twice.
fn two_devices() -> World {
    let mut world = world(&spec_of_two());
    read_in(&mut world, POOL / 2);
    write_until(&mut world, 4 * GIB);
    world
}

/// So many steps of 32 clients, a third of whose requests write.
fn clients(world: &mut World, steps: u64) {
    let mut random = Random(7);
    world.churn(32, steps, |n| {
        let kind = if n % 3 == 0 { RequestKind::Write } else { RequestKind::Read };
        (kind, random.below(VOLUME_BLOCKS), 1)
    });
}

fn writers(world: &mut World, steps: u64) {
    let mut random = Random(11);
    world.churn(128, steps, |_| (RequestKind::Write, random.below(VOLUME_BLOCKS), 1));
}

/// The origin takes nothing; then it takes all again.
fn refuses(world: &mut World) {
    world.origin_refuses = true;
    world.command(Command::Drain(VOLUME));
    clients(world, 20_000);
    world.origin_refuses = false;
    clients(world, 10_000);
}

/// 128 writers wait for an origin that hangs; then it goes on.
fn full(world: &mut World) {
    world.origin_hangs = true;
    writers(world, 5_000);
    world.release();
    writers(world, 20_000);
}

/// The same with one that refuses.
fn full_refuses(world: &mut World) {
    world.origin_refuses = true;
    writers(world, 10_000);
    world.origin_refuses = false;
    writers(world, 20_000);
}

fn dies(world: &mut World) {
    world.cache_dead = true;
    clients(world, 10_000);
}

fn one_dies(world: &mut World) {
    world.second_dead = true;
    clients(world, 20_000);
}

/// From the first block of a checkpoint to its end, and one more, beside 128 writers.
fn checkpoint(world: &mut World) {
    let before = world.engine.pool_stats().checkpoints;
    while world.engine.pool_stats().checkpoints < before + 2 {
        writers(world, 1_000);
    }
}

/// Until a command is answered.
fn commanded(world: &mut World, command: Command) {
    world.commands.clear();
    world.command(command);
    while world.commands.is_empty() {
        world.step();
    }
}

fn removal(world: &mut World) {
    read_in(world, GIB); // Into RAM.
    commanded(world, Command::RemoveVolume(VOLUME));
}

/// All goes home: the first slices of that.
fn drain(world: &mut World) {
    world.command(Command::Drain(VOLUME));
    for _ in 0..40_000 {
        world.step();
    }
}

/// All of the volume is zeroed.
fn zero(world: &mut World) {
    read_in(world, GIB);
    world.submit(RequestKind::WriteZeroes { unmap: false }, 0, VOLUME_BYTES);
    let before = world.replies();
    while world.replies() == before {
        world.step();
    }
    clients(world, 5_000);
}

fn drop_dirty(world: &mut World) {
    commanded(world, Command::ForceDropDirty(VOLUME));
}

fn drop_dirty_dead(world: &mut World) {
    world.cache_dead = true;
    clients(world, 2_000);
    commanded(world, Command::ForceDropDirty(VOLUME));
}
