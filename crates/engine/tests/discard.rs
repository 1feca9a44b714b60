//! Freed segments are given to their devices.

#![forbid(unsafe_code)]

#[path = "../benches/instant.rs"]
#[allow(dead_code, reason = "the bench uses the rest")]
mod instant;

use forebay_engine::{Command, RequestKind};
use instant::{VOLUME, World, WorldSpec};

const MIB: u64 = 1 << 20;
const POOL_BYTES: u64 = 256 * MIB;

/// Bytes of segments that the devices got back when 64 MiB were removed, and when a pool that is
/// full was written to.
fn given(discards: bool) -> (u64, u64) {
    let mut spec = WorldSpec::quiet(POOL_BYTES, POOL_BYTES);
    spec.discards = discards;
    let mut world = World::new(&spec);
    world.write_all(64 * MIB, 128 << 10);
    world.command(Command::Drain(VOLUME));
    steps(&mut world);
    world.command(Command::RemoveVolume(VOLUME));
    steps(&mut world);
    assert_eq!(world.commands.len(), 2, "{:?}", world.commands);
    let removed = world.engine.pool_stats().discarded_bytes;
    let mut world = World::new(&spec);
    world.run(8, 4096, RequestKind::Write, 128 << 10, |n| n % 2048 * 32);
    (removed, world.engine.pool_stats().discarded_bytes)
}

fn steps(world: &mut World) {
    for _ in 0..20_000 {
        world.now += 1_000_000;
        world.step();
    }
}

#[test]
fn what_is_freed_is_given_to_the_device() {
    let (removed, written) = given(true);
    assert!(removed >= 56 * MIB, "{removed} bytes of 64 MiB");
    assert!(written > 0, "what is used again was given before");
}

#[test]
fn a_device_without_use_for_it_is_not_told() {
    assert_eq!(given(false), (0, 0));
}
