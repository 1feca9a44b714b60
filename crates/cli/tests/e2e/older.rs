//! Devices that come back with an old state of their pool, and without those that have the newest.

use crate::world::{DEVICE_BYTES, ORIGIN_BYTES, World, pattern};
use std::fs;

const OLD: &str = "holds an old state";
const PLACE: u64 = 1 << 20;

fn write(world: &World, seed: u64) -> Vec<u8> {
    let data = pattern(seed, 64 << 10);
    let mut client = world.nbd("big");
    client.write(PLACE, &data).unwrap();
    client.flush().unwrap();
    data
}

fn read(world: &World) -> Vec<u8> {
    world.nbd("big").read(PLACE, 64 << 10).unwrap()
}

fn rename(world: &World, from: &str, to: &str) {
    fs::rename(world.path(from), world.path(to)).unwrap();
}

/// A pool of two devices that went on without its second one: what was written with both, and what
/// only the first has. The daemon is down, the second is back and the first away.
fn only_the_old_one(mode: &str) -> (World, Vec<u8>, Vec<u8>) {
    let mut world = World::started();
    world.empty_file("two.img", DEVICE_BYTES);
    let cache = ["cache", "big.img", "--with", "ssd.img", "--with", "two.img", "--mode", mode];
    world.forebay(&cache).expect(0);
    let old = write(&world, 5);
    assert!(read(&world) == old);
    world.kill();
    rename(&world, "two.img", "two.away");
    world.start();
    world.forebay(&["status"]).expect(3).says("degraded");
    let new = write(&world, 6);
    assert!(read(&world) == new);
    world.kill();
    rename(&world, "two.away", "two.img");
    rename(&world, "ssd.img", "ssd.away");
    world.start();
    (world, old, new)
}

#[test]
fn dirty_data_of_an_old_state_is_not_served_and_the_newest_is_when_it_is_back() {
    let (mut world, _, new) = only_the_old_one("writeback");
    world.forebay(&["status"]).expect(3).says("offline").says(OLD);
    world.forebay(&["volume", "attach", "big"]).expect(1).complains(OLD).complains("ssd.img");
    let removed = world.forebay(&["volume", "remove", "big"]);
    assert_ne!(removed.code, 0, "{removed:#?}");
    assert!(fs::read(world.path("big.img")).unwrap() == pattern(1, ORIGIN_BYTES), "the origin");
    world.kill();
    rename(&world, "ssd.away", "ssd.img");
    world.start();
    world.forebay(&["status"]).expect(3).says("degraded");
    assert!(read(&world) == new);
}

#[test]
fn an_old_state_is_used_when_an_administrator_says_so() {
    let (world, old, _) = only_the_old_one("writeback");
    world.forebay(&["volume", "attach", "big", "--keep-dirty", "--yes"]).expect(0);
    assert!(read(&world) == old);
}

#[test]
fn clean_blocks_of_an_old_state_are_not_served() {
    let (world, _, new) = only_the_old_one("writethrough");
    world.forebay(&["status"]).expect(3).says("from its origin alone").says(OLD);
    assert!(read(&world) == new);
}

#[test]
fn an_older_copy_of_the_only_device_is_not_taken_for_it() {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"]).expect(0);
    write(&world, 5);
    world.kill();
    fs::copy(world.path("ssd.img"), world.path("ssd.copy")).unwrap();
    world.start();
    let new = write(&world, 6);
    world.kill();
    rename(&world, "ssd.img", "ssd.away");
    rename(&world, "ssd.copy", "ssd.img");
    world.start();
    world.forebay(&["status"]).expect(3).says("offline").says(OLD);
    world.kill();
    rename(&world, "ssd.away", "ssd.img");
    world.start();
    world.forebay(&["status"]).expect(0);
    assert!(read(&world) == new);
}
