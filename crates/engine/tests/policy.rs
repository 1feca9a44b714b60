//! What the policies achieve, as numbers: a wrong policy gives right answers, only later, so no
//! rule of the simulator sees it. Each number is far from what it is with the policy turned off.

#[allow(dead_code, reason = "the benches use the rest")]
#[path = "../benches/instant.rs"]
mod instant;

use forebay_engine::stats::Reason;
use forebay_engine::{BlockStatus, RequestKind};
use instant::{VOLUME, World, WorldSpec};
use std::ops::Range;

const BLOCK: u64 = 4096;
/// Slots of the pool, about.
const POOL: u64 = 16 << 10;
const SECOND: u64 = 1_000_000_000;

/// A pool that admits each miss, knows no streams and sends nothing home by itself.
fn spec() -> WorldSpec {
    WorldSpec::quiet(POOL * BLOCK, 8 * POOL * BLOCK)
}

fn read(world: &mut World, blocks: Range<u64>) {
    let count = blocks.end - blocks.start;
    world.run(8, count, RequestKind::Read, BLOCK, |n| blocks.start + n);
}

fn write(world: &mut World, depth: u64, blocks: Range<u64>) {
    let count = blocks.end - blocks.start;
    world.run(depth, count, RequestKind::Write, BLOCK, |n| blocks.start + n);
}

/// Share of these blocks that are cached, in percent.
fn cached(world: &World, blocks: Range<u64>) -> u64 {
    let count = blocks.end - blocks.start;
    let is_there =
        |block: &u64| world.engine.block_status(VOLUME, *block) != BlockStatus::NotCached;
    100 * blocks.filter(is_there).count() as u64 / count
}

fn filled(world: &World) -> u64 {
    world.engine.pool_stats().written_bytes.fill / BLOCK
}

fn dirty(world: &World) -> u64 {
    world.engine.volume_stats(VOLUME).expect("the volume").dirty_blocks
}

fn rest(world: &mut World, time: u64) {
    let end = world.now + time;
    while world.now < end {
        world.step();
    }
}

#[test]
fn misses_are_admitted_at_once_until_the_cache_was_full_and_then_the_second_time() {
    let mut spec = spec();
    spec.tuning.admit_second_miss = true;
    let mut world = World::new(&spec);
    read(&mut world, 0..1000);
    assert_eq!(filled(&world), 1000, "all are admitted at first");
    read(&mut world, 1000..2 * POOL);
    let (first, again) = (3 * POOL..3 * POOL + 1000, 3 * POOL..3 * POOL + 1000);
    let before = filled(&world);
    read(&mut world, first);
    let once = filled(&world) - before;
    assert!(once <= 50, "{once} of 1000 were admitted at their first miss");
    read(&mut world, again.clone());
    let twice = filled(&world) - before - once;
    assert!(twice >= 900, "{twice} of 1000 were admitted at their second miss");
    read(&mut world, again);
    assert!(filled(&world) - before - once - twice <= 50, "then they are cached");
}

#[test]
fn the_oldest_go_first_but_for_those_that_were_read_again() {
    let mut world = World::new(&spec());
    read(&mut world, 0..POOL * 3 / 4);
    // A part of the older half of the log is read again.
    let (hot, old) = (0..1000, 1000..2000);
    read(&mut world, hot.clone());
    read(&mut world, POOL..POOL * 3 / 2);
    let late = POOL + POOL / 4..POOL * 3 / 2;
    let shares = [hot, old, late].map(|blocks| cached(&world, blocks));
    assert!(shares[0] >= 35, "{shares:?} percent: read again, kept where there was room");
    assert!(shares[1] <= 5, "{shares:?} percent: of the same age, and not read again");
    assert!(shares[2] >= 95, "{shares:?} percent: new");
}

#[test]
fn a_few_dirty_blocks_go_home_when_nobody_asks_anything() {
    let mut spec = spec();
    spec.tuning.idle_ns = SECOND;
    let mut world = World::new(&spec);
    write(&mut world, 8, 0..300);
    rest(&mut world, SECOND / 2);
    assert_eq!(dirty(&world), 300, "below the target they wait for a rest");
    rest(&mut world, SECOND);
    assert_eq!(dirty(&world), 0, "and go home in it");
    let stats = world.engine.volume_stats(VOLUME).expect("the volume");
    assert_eq!((stats.writeback_blocks, stats.origin_flushes), (300, 1));
}

#[test]
fn writers_are_slowed_to_what_goes_home_before_they_would_have_to_stop() {
    let mut spec = spec();
    // One block goes home after the other.
    (spec.tuning.writeback_depth, spec.tuning.writeback_slice_blocks) = (1, 64);
    (spec.tuning.dirty_high, spec.tuning.dirty_max) = (0.2, 0.5);
    let mut world = World::new(&spec);
    let mut most = 0;
    for n in 0..160 {
        write(&mut world, 32, n * 128..(n + 1) * 128);
        most = most.max(dirty(&world));
    }
    let slots = world.engine.pool_stats().slots;
    let (share, took_ns) = (100 * most / slots, world.now / (160 * 128));
    assert!((20..=45).contains(&share), "{share} percent were dirty");
    // What goes home takes some 80 ns a block here: as fast as that, not faster.
    assert!((80..=1000).contains(&took_ns), "a write took {took_ns} ns");
}

#[test]
fn what_was_cached_is_cached_after_a_crash() {
    let mut world = World::new(&spec());
    read(&mut world, 0..4000);
    write(&mut world, 8, 8000..9000);
    rest(&mut world, 20 * SECOND);
    let mut world = World::with_devices(&spec(), world.kill());
    let shares = [0..4000, 8000..9000].map(|blocks| cached(&world, blocks));
    assert_eq!(shares, [100, 100], "percent");
    read(&mut world, 0..4000);
    let stats = world.engine.volume_stats(VOLUME).expect("the volume");
    assert_eq!((stats.read_hits_full, stats.read_misses), (4000, 0));
    assert_eq!(filled(&world), 0, "nothing was filled again");
}

/// What was read from a fast origin was all under way to a slow cache device at once, and hits
/// waited behind it.
#[test]
fn fills_do_not_pile_up_before_a_cache_device_that_is_slow() {
    let mut world = World::new(&spec());
    world.cache_hangs = true;
    world.run(8, 384, RequestKind::Read, 128 << 10, |n| n * 64);
    world.release();
    rest(&mut world, 2 * SECOND);
    assert!((1024..=17 * 128).contains(&filled(&world)), "{} blocks", filled(&world));
    let stats = world.engine.volume_stats(VOLUME).expect("the volume");
    assert_eq!(stats.not_cached[Reason::DeviceBusy as usize], 384 * 32 - filled(&world));
    world.run(8, 384, RequestKind::Read, 128 << 10, |n| n * 64);
    assert_eq!(filled(&world), 384 * 32, "one that keeps up gets all");
}
