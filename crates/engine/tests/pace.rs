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
