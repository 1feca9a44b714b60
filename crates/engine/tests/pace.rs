//! How fast dirty blocks go home beside clients that keep the origin busy: the simulator's rules
//! would allow it to be slower.

#[allow(dead_code, reason = "the benches use the rest")]
#[path = "../benches/instant.rs"]
mod instant;

use forebay_engine::{Command, RequestKind};
use instant::{Random, VOLUME, World, WorldSpec};

const BLOCK: u64 = 4096;
const POOL_BYTES: u64 = 64 << 20;
const VOLUME_BLOCKS: u64 = 64 << 10;
const SECOND: u64 = 1_000_000_000;

/// A disk of 1,000 I/Os a second and 256 readers: what is under way when a slice begins keeps the
/// disk busy for a quarter of a second. That is not the slice's time: it would shrink to the least
/// there is, and rest for most of a second.
#[test]
fn reads_under_way_do_not_make_slices_shorter() {
    let mut spec = WorldSpec::new(POOL_BYTES, VOLUME_BLOCKS * BLOCK);
    (spec.tuning.dirty_target, spec.tuning.dirty_high) = (0.01, 0.01);
    let mut world = World::new(&spec);
    let mut random = Random(1);
    world.origin_io_ns = 1_000_000;
    // Every second block: none has a neighbour that goes home with it.
    world.run(8, 3000, RequestKind::Write, BLOCK, |n| 2 * n);
    let home = |world: &World| world.engine.volume_stats(VOLUME).expect("it").writeback_blocks;
    let (before, until) = (home(&world), world.now + 10 * SECOND);
    while world.now < until {
        world.churn(256, 1, |_| (RequestKind::Read, 8192 + random.below(VOLUME_BLOCKS - 8192), 1));
    }
    let each_second = (home(&world) - before) / 10;
    assert!(each_second >= 100, "{each_second} blocks a second went home");
}

/// A drain is what one does before maintenance, beside users: with a slice of all that is dirty in
/// the disk's queue a reader had 31 of its 1,000 I/Os a second.
#[test]
fn a_drain_leaves_half_of_the_origin_to_a_reader() {
    let spec = WorldSpec::quiet(POOL_BYTES, VOLUME_BLOCKS * BLOCK);
    let mut world = World::new(&spec);
    let mut random = Random(1);
    world.run(8, 3000, RequestKind::Write, BLOCK, |n| 2 * n);
    world.origin_io_ns = 1_000_000;
    world.command(Command::Drain(VOLUME));
    let (before, until) = (world.replies(), world.now + SECOND);
    while world.now < until {
        world.churn(1, 1, |_| (RequestKind::Read, 8192 + random.below(VOLUME_BLOCKS - 8192), 1));
    }
    let read = world.replies() - before;
    let home = world.engine.volume_stats(VOLUME).expect("it").writeback_blocks;
    assert!((300..=700).contains(&read), "{read} reads beside {home} blocks that went home");
    assert!(home >= 300, "{read} reads beside {home} blocks that went home");
}

/// A drain of every second of the first 512 blocks, beside clients that write, before a disk of 100
/// I/Os a second whose speed is known: how long it took, and the longest that `depth` of their
/// writes waited, in milliseconds.
fn drained_beside(depth: u64, pause_ns: u64, mut block: impl FnMut() -> u64) -> (u64, u64) {
    let mut world = World::new(&WorldSpec::quiet(POOL_BYTES, VOLUME_BLOCKS * BLOCK));
    world.origin_io_ns = 10_000_000;
    for _ in 0..10 {
        world.run(3, 3, RequestKind::Write, BLOCK, |n| n);
        drain(&mut world, |_| {});
    }
    world.run(8, 256, RequestKind::Write, BLOCK, |n| 2 * n);
    let (begun, mut sent, mut longest) = (world.now, world.now, 0);
    drain(&mut world, |world| {
        if world.under_way() == 0 && world.now >= sent + pause_ns {
            sent = world.now;
            (0..depth).for_each(|_| world.submit(RequestKind::Write, block() * BLOCK, BLOCK));
        }
        longest = longest.max(if world.under_way() > 0 { world.now - sent } else { 0 });
    });
    assert_eq!(world.errors, 0);
    let (took, longest) = ((world.now - begun) / 1_000_000, longest / 1_000_000);
    println!("{depth} writers: the drain took {took} ms, the longest write {longest} ms");
    (took, longest)
}

/// Drains the volume; before each step somebody does something.
fn drain(world: &mut World, mut before: impl FnMut(&mut World)) {
    let (begun, asked) = (world.now, world.commands.len());
    world.command(Command::Drain(VOLUME));
    while world.commands.len() == asked {
        assert!(world.now - begun < 300 * SECOND, "the drain does not end");
        before(world);
        world.step();
    }
}

/// A few blocks that are written again and again: some were dirty at any moment.
#[test]
fn a_drain_ends_although_a_client_writes_the_same_blocks_again() {
    let mut random = Random(1);
    let (took, longest) = drained_beside(1, 5_000_000, || 50_000 + random.below(16));
    assert!(took < 6_000, "{took} ms");
    assert!(longest < 500, "a write waited {longest} ms");
}

/// All that is dirty is written again within the time of a slice.
#[test]
fn a_drain_ends_although_clients_write_all_dirty_blocks_again() {
    let mut random = Random(1);
    let (took, longest) = drained_beside(4, 1_000_000, || 2 * random.below(256));
    assert!(took < 20_000, "{took} ms");
    assert!(longest < 500, "a write waited {longest} ms");
}

/// Blocks become dirty faster than the disk takes them.
#[test]
fn a_drain_ends_although_clients_write_faster_than_the_origin() {
    let mut random = Random(1);
    let (took, longest) = drained_beside(16, 10_000_000, || random.below(VOLUME_BLOCKS));
    assert!(took < 250_000, "{took} ms");
    assert!(longest < 600, "a write waited {longest} ms");
}

/// A stream goes past the cache. What the origin refuses of it goes there after all.
#[test]
fn a_write_that_the_origin_refuses_is_cached() {
    let mut spec = WorldSpec::quiet(POOL_BYTES, VOLUME_BLOCKS * BLOCK);
    spec.tuning.sequential_bytes = 64 * BLOCK;
    let mut world = World::new(&spec);
    let past = |world: &World| world.engine.volume_stats(VOLUME).expect("it").write_bytes_origin;
    world.run(1, 64, RequestKind::Write, 16 * BLOCK, |n| 16 * n);
    assert!(past(&world) > 0, "the stream is not seen");
    world.origin_refuses = true;
    world.run(1, 64, RequestKind::Write, 16 * BLOCK, |n| 16 * (64 + n));
    assert_eq!(world.errors, 0);
    world.origin_refuses = false;
    drain(&mut world, |_| {});
}

/// There is no moment without a request under way.
#[test]
fn a_removal_ends_although_clients_never_stop() {
    let mut world = World::new(&WorldSpec::quiet(POOL_BYTES, VOLUME_BLOCKS * BLOCK));
    world.run(8, 64, RequestKind::Write, BLOCK, |n| 2 * n);
    world.origin_io_ns = 1_000_000;
    let (begun, asked, mut random) = (world.now, world.commands.len(), Random(1));
    world.command(Command::RemoveVolume(VOLUME));
    while world.commands.len() == asked {
        assert!(world.now - begun < 10 * SECOND, "the removal does not end");
        world.churn(4, 1, |_| (RequestKind::Write, random.below(VOLUME_BLOCKS), 1));
    }
    assert!(world.errors > 0, "nobody was turned away");
}
