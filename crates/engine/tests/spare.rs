//! Whether a device that hangs may be called failed at once: only where what is dirty on it is on
//! another that works and moves.

#[allow(dead_code, reason = "the benches use the rest")]
#[path = "../benches/instant.rs"]
mod instant;

use forebay_engine::{DeviceId, RequestKind};
use instant::{Devices, World, WorldSpec};

const BLOCK: u64 = 4096;
const FIRST: DeviceId = DeviceId(0);
const SECOND: DeviceId = DeviceId(1);

fn world(devices: u64) -> World {
    let spec = WorldSpec { devices, ..WorldSpec::quiet(64 << 20, 64 << 20) };
    World::with_devices(&spec, Devices::of(&spec, false))
}

fn write(world: &mut World, blocks: u64) {
    world.run(16, blocks, RequestKind::Write, BLOCK, |n| n);
}

#[test]
fn the_only_device_cannot_be_spared() {
    assert!(!world(1).engine.can_spare(FIRST, |_| true));
}

#[test]
fn one_of_two_can_be_spared_as_long_as_the_other_moves() {
    let mut world = world(2);
    write(&mut world, 256);
    for (hangs, other) in [(FIRST, SECOND), (SECOND, FIRST)] {
        assert!(world.engine.can_spare(hangs, |device| device == other));
        assert!(!world.engine.can_spare(hangs, |device| device == hangs));
        assert!(!world.engine.can_spare(hangs, |_| false));
    }
}

#[test]
fn what_is_left_of_two_cannot_be_spared() {
    let mut world = world(2);
    world.second_dead = true;
    write(&mut world, 256);
    assert_eq!(world.errors, 0, "the first device took what the second did not");
    assert!(!world.engine.can_spare(FIRST, |_| true));
    assert!(world.engine.can_spare(SECOND, |_| true), "all that it held is on the first");
}
