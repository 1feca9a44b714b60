//! Volumes that go on on another disk, which holds a copy of the one before.

use crate::world::{DEVICE_BYTES, World, pattern};
use std::fs::{self, File};

const BLOCK: usize = 4096;
const HOME: u64 = 0;
const DIRTY: u64 = 1 << 20;
const MISSED: u64 = 4 << 20;

/// A volume with a block that is home and one that is dirty; the daemon has ended, its origin is
/// called `out.img` now, and `copy.img` holds the same.
fn moved_away(ends: fn(&mut World)) -> World {
    let mut world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    let mut client = world.nbd("big");
    client.write(HOME, &pattern(5, BLOCK)).unwrap();
    client.flush().unwrap();
    world.forebay(&["volume", "drain", "big"]).expect(0);
    client.write(DIRTY, &pattern(6, BLOCK)).unwrap();
    client.flush().unwrap();
    drop(client);
    ends(&mut world);
    fs::copy(world.path("big.img"), world.path("copy.img")).unwrap();
    fs::rename(world.path("big.img"), world.path("out.img")).unwrap();
    world.start();
    assert_eq!(world.volume("big")["state"], "offline");
    world
}

fn holds_all(world: &World) {
    let mut client = world.nbd("big");
    assert!(client.read(HOME, BLOCK as u32).unwrap() == pattern(5, BLOCK));
    assert!(client.read(DIRTY, BLOCK as u32).unwrap() == pattern(6, BLOCK));
}

#[test]
fn a_volume_goes_on_on_a_copy_of_its_origin_with_what_is_dirty() {
    let mut world = moved_away(World::stop);
    let attach = ["volume", "attach", "big", "--origin", "copy.img"];
    let plan = world.forebay(&[&attach[..], &["--dry-run"]].concat()).expect(0);
    plan.says("on ").says("copy.img").says("4.0K of dirty data");
    assert_eq!(world.volume("big")["state"], "offline", "that was a plan");
    world.forebay(&attach).expect(0).says("big was on ").says("big.img before");
    holds_all(&world);
    // Also when nothing but the pool tells where it is.
    world.kill();
    world.start();
    holds_all(&world);
    assert_eq!(world.volume("big")["origin"], world.text("copy.img"));
    world.forebay(&["volume", "drain", "big"]).expect(0);
    let held = fs::read(world.path("copy.img")).unwrap();
    assert!(held[DIRTY as usize..][..BLOCK] == pattern(6, BLOCK));
    let before = fs::read(world.path("out.img")).unwrap();
    assert!(before[DIRTY as usize..][..BLOCK] != pattern(6, BLOCK), "the one before is left alone");
    world.forebay(&attach).expect(0).says("in service");
}

#[test]
fn what_may_be_no_copy_is_taken_only_when_that_is_said() {
    let world = moved_away(World::kill);
    let attach = |origin| ["volume", "attach", "big", "--origin", origin];
    // After a crash nobody knows what it looked like.
    let refused = world.forebay(&attach("copy.img")).expect(4);
    refused.complains("nothing tells whether").complains("copy.img --keep-dirty");
    let accept = [&attach("copy.img")[..], &["--keep-dirty"]].concat();
    world.forebay(&accept).expect(4).complains("--yes");
    world.forebay(&[&accept[..], &["--yes"]].concat()).expect(0);
    holds_all(&world);

    let world = moved_away(World::stop);
    world.empty_file("other.img", DEVICE_BYTES);
    let refused = world.forebay(&attach("other.img")).expect(4);
    refused.complains("it is no copy of that").complains("other.img --keep-dirty");
    assert_eq!(world.volume("big")["origin"], world.text("big.img"), "it is as it was");
    fs::rename(world.path("out.img"), world.path("big.img")).unwrap();
    world.forebay(&["volume", "attach", "big"]).expect(0);
    holds_all(&world);
}

#[test]
fn what_cannot_be_an_origin_is_refused_and_the_volume_stays_as_it_is() {
    let world = moved_away(World::stop);
    let attach = |volume, origin| world.forebay(&["volume", "attach", volume, "--origin", origin]);
    attach("no", "copy.img").expect(1).complains("no volume \"no\"");
    attach("big", "none.img").expect(1).complains("none.img");
    world.empty_file("small.img", 1 << 20);
    attach("big", "small.img").expect(4).complains("is too small for volume big");
    attach("big", "ssd.img").expect(4).complains("ssd.img");
    attach("big", "ram:64M").expect(4).complains("ends with forebayd");
    world.empty_file("next.img", DEVICE_BYTES);
    world.forebay(&["cache", "next.img", "--with", "ssd.img", "--name", "next"]).expect(0);
    attach("big", "next.img").expect(4).complains("is the origin of volume next");
    attach("next", "copy.img").expect(1).complains("forebay volume detach next");
    let both = ["volume", "attach", "big", "--origin", "copy.img", "--drop-dirty"];
    world.forebay(&both).expect(2).complains("--drop-dirty");
    attach("big", "copy.img").expect(0);
    holds_all(&world);
}

#[test]
fn one_that_was_taken_out_of_service_goes_on_wherever_it_is_put() {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"]).expect(0);
    world.nbd("big").write(HOME, &pattern(5, BLOCK)).unwrap();
    world.forebay(&["volume", "detach", "big"]).expect(0);
    world.empty_file("other.img", DEVICE_BYTES);
    world.empty_file("small.img", 1 << 20);
    let other = world.forebay(&["volume", "attach", "big", "--origin", "other.img"]).expect(4);
    other.complains("it is no copy of that");
    let small = world.forebay(&["volume", "attach", "big", "--origin", "small.img"]).expect(4);
    small.complains("is too small");
    fs::copy(world.path("big.img"), world.path("copy.img")).unwrap();
    let attach = ["volume", "attach", "big", "--origin", "copy.img"];
    world.forebay(&attach).expect(0).says("big.img before");
    assert!(world.nbd("big").read(HOME, BLOCK as u32).unwrap() == pattern(5, BLOCK));
    world.stop();
    fs::remove_file(world.path("big.img")).unwrap();
    world.start();
    assert_eq!(world.volume("big")["state"], "ok");
}

/// The disk dies under its clients, and a copy of it takes its place: they notice nothing.
#[test]
fn an_origin_that_is_lost_is_replaced_under_its_clients() {
    let world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    let mut client = world.nbd("big");
    client.write(HOME, &pattern(5, BLOCK)).unwrap();
    client.flush().unwrap();
    world.forebay(&["volume", "drain", "big"]).expect(0);
    fs::copy(world.path("big.img"), world.path("copy.img")).unwrap();
    client.write(DIRTY, &pattern(6, BLOCK)).unwrap();
    File::options().write(true).open(world.path("big.img")).unwrap().set_len(0).unwrap();
    fs::rename(world.path("big.img"), world.path("out.img")).unwrap();
    crate::lost::until(&world, "is lost", || {
        let _ = client.read(MISSED, BLOCK as u32);
    });
    let attach = ["volume", "attach", "big", "--origin", "copy.img", "--keep-dirty", "--yes"];
    world.forebay(&attach).expect(0);
    assert!(client.read(DIRTY, BLOCK as u32).unwrap() == pattern(6, BLOCK));
    assert!(client.read(HOME, BLOCK as u32).unwrap() == pattern(5, BLOCK));
    let held = fs::read(world.path("copy.img")).unwrap();
    assert!(client.read(MISSED, BLOCK as u32).unwrap() == held[MISSED as usize..][..BLOCK]);
    world.forebay(&["volume", "drain", "big"]).expect(0);
    assert_eq!(world.volume("big")["state"], "ok");
}
