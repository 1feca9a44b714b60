//! What ends many blocks goes in slices: no call takes more than so many steps.

#![forbid(unsafe_code)]

#[path = "../benches/instant.rs"]
#[allow(dead_code, reason = "the bench uses the rest")]
mod instant;

use forebay_engine::{Command, RequestKind};
use instant::{Meter, VOLUME, World, WorldSpec};

const MIB: u64 = 1 << 20;
/// What one `settle` has to stop at, and a slice of each kind of work beyond it.
const STEPS_MAX: u64 = 12_000;

/// A pool of which a half is dirty, and what one call took at most of what follows.
fn worst(watch: impl FnOnce(&mut World)) -> u64 {
    let mut world = World::new(&WorldSpec::quiet(256 * MIB, 256 * MIB));
    world.write_all(64 * MIB, 128 << 10);
    world.run(8, 512, RequestKind::Read, 128 << 10, |n| (512 + n) * 32);
    world.meter = Some(Meter::default());
    watch(&mut world);
    let meter = world.meter.take().expect("it was given one");
    meter.calls.iter().map(|call| call.steps).max().expect("there were calls")
}

#[test]
fn a_large_range_is_zeroed_in_slices() {
    let steps = worst(|world| {
        world.submit(RequestKind::WriteZeroes { unmap: false }, 0, 256 * MIB);
        let before = world.replies();
        while world.replies() == before {
            world.step();
        }
        assert_eq!(world.engine.pool_stats().cached_blocks, 0);
    });
    assert!(steps <= STEPS_MAX, "{steps} steps");
}

#[test]
fn what_went_home_becomes_clean_in_slices() {
    let steps = worst(|world| {
        world.command(Command::Drain(VOLUME));
        while world.commands.is_empty() {
            world.step();
        }
        assert_eq!(world.engine.volume_stats(VOLUME).expect("it").dirty_blocks, 0);
    });
    assert!(steps <= STEPS_MAX, "{steps} steps");
}
