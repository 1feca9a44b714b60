//! A cache device that is gone when the daemon starts, and comes back later, or never.

use crate::world::{ORIGIN_BYTES, World, pattern};
use std::fs;

/// A volume whose cache holds all of it, in a daemon that was stopped, and what it holds.
fn warm(mode: &str) -> (World, Vec<u8>) {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", mode]).expect(0);
    let model = pattern(1, ORIGIN_BYTES);
    assert!(world.nbd("big").read_all() == model);
    assert!(world.volume("big")["used_bytes"].as_u64().unwrap() > 8 << 20);
    world.stop();
    (world, model)
}

fn take_away(world: &World) {
    fs::rename(world.path("ssd.img"), world.path("away.img")).unwrap();
}

fn bring_back(world: &World) {
    fs::rename(world.path("away.img"), world.path("ssd.img")).unwrap();
}

fn write(world: &World, model: &mut [u8], seed: u64) {
    let data = pattern(seed, 4096);
    let at = 8192 * seed as usize;
    let mut client = world.nbd("big");
    client.write(at as u64, &data).unwrap();
    client.flush().unwrap();
    model[at..][..4096].copy_from_slice(&data);
}

#[test]
fn without_dirty_data_the_volume_goes_on_and_old_cached_blocks_are_never_seen() {
    let (mut world, mut model) = warm("writethrough");
    take_away(&world);
    world.start();
    let status = world.forebay(&["status"]).expect(3);
    let status = status.says("degraded").says("passthrough").says("from its origin alone");
    let status = status.says("ssd.img (uuid ").says("forebay volume attach big");
    assert!(!status.out.contains("offline"), "{status:#?}");
    write(&world, &mut model, 5);
    assert!(world.nbd("big").read_all() == model);
    // Asking for the pool without its device changes nothing, and cuts nobody off.
    let mut client = world.nbd("big");
    world.forebay(&["volume", "attach", "big"]).expect(1).complains("ssd.img");
    assert_eq!(client.read(0, 4096).unwrap(), model[..4096]);
    drop(client);
    let said = world.forebay(&["volume", "mode", "big", "writeback"]).expect(1);
    said.complains("cannot switch its mode while").complains("forebay volume remove big");
    world.forebay(&["volume", "detach", "big"]).expect(1).complains("cannot be detached while");
    world.empty_file("other.img", 1 << 20);
    let create = ["volume", "create", "other", "--origin", "other.img"];
    world.forebay(&create).expect(1).complains("ssd.img");
    world.forebay(&["volume", "drain", "big"]).expect(0).says("no dirty data");
    // A crash in this state loses nothing that was acknowledged.
    world.kill();
    assert!(fs::read(world.path("big.img")).unwrap() == model);
    world.start();
    write(&world, &mut model, 6);
    bring_back(&world);
    world.forebay(&["volume", "attach", "big"]).expect(0);
    let volume = world.volume("big");
    assert_eq!((&volume["state"], &volume["mode"]), (&"ok".into(), &"writethrough".into()));
    assert!(world.nbd("big").read_all() == model, "the cache's old blocks are not used");
    assert!(world.nbd("big").read_all() == model, "nor later");
    world.stop();
    world.start();
    world.forebay(&["status"]).expect(0);
    let used = world.volume("big")["used_bytes"].as_u64().unwrap();
    assert!(used > 8 << 20, "the cache is warm again: {used}");
    assert!(world.nbd("big").read_all() == model);
}

#[test]
fn a_device_that_is_back_at_the_next_start_is_used_again_and_starts_cold() {
    let (mut world, mut model) = warm("writearound");
    take_away(&world);
    world.start();
    write(&world, &mut model, 7);
    world.stop();
    bring_back(&world);
    world.start();
    world.forebay(&["status"]).expect(0).says("writearound");
    assert_eq!(world.volume("big")["used_bytes"], 0);
    assert!(world.nbd("big").read_all() == model);
}

#[test]
fn a_superblock_that_is_zeroed_is_a_missing_device() {
    let (mut world, mut model) = warm("writethrough");
    let bytes = vec![0; 256 << 10];
    let file = fs::File::options().write(true).open(world.path("ssd.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    drop(file);
    world.start();
    world.forebay(&["status"]).expect(3).says("degraded").says("no pool can be opened");
    write(&world, &mut model, 3);
    assert!(world.nbd("big").read_all() == model);
    world.forebay(&["volume", "remove", "big"]).expect(0);
    world.forebay(&["pool", "destroy", "ssd", "--yes"]).expect(0).says("forgotten");
    let again = ["cache", "big.img", "--with", "ssd.img", "--force", "--yes"];
    world.forebay(&again).expect(0);
    assert!(world.nbd("big").read_all() == model);
    world.forebay(&["status"]).expect(0);
}

#[test]
fn dirty_data_keeps_the_volume_offline_until_its_device_is_back() {
    let (mut world, mut model) = warm("writeback");
    world.start();
    write(&world, &mut model, 4);
    world.kill();
    take_away(&world);
    world.start();
    let status = world.forebay(&["status"]).expect(3);
    let status = status.says("offline").says("ssd.img (uuid ").says("do not use the origin");
    status.says("forebay volume remove big --drop-dirty");
    assert!(world.volume("big")["export"].is_null());
    assert!(!world.state_dir().join("nbd.sock").exists(), "nothing is served");
    world.forebay(&["volume", "remove", "big"]).expect(4).complains("--drop-dirty");
    world.forebay(&["volume", "remove", "big", "--force"]).expect(4).complains("--drop-dirty");
    world.forebay(&["pool", "destroy", "ssd", "--yes"]).expect(4).complains("remove big");
    bring_back(&world);
    world.forebay(&["volume", "attach", "big"]).expect(0);
    assert!(world.nbd("big").read_all() == model);
}

#[test]
fn what_was_given_up_with_a_missing_device_never_comes_back_with_it() {
    let (mut world, mut model) = warm("writeback");
    world.start();
    write(&world, &mut model, 4);
    let home = fs::read(world.path("big.img")).unwrap();
    world.kill();
    take_away(&world);
    world.start();
    world.forebay(&["volume", "remove", "big", "--drop-dirty"]).expect(4).complains("--yes");
    world.forebay(&["volume", "remove", "big", "--drop-dirty", "--yes"]).expect(0);
    bring_back(&world);
    world.forebay(&["pool", "create", "ssd", "ssd.img"]).expect(0);
    world.forebay(&["volume", "show", "big"]).expect(1).complains("no volume \"big\"");
    world.stop();
    world.start();
    world.forebay(&["status"]).expect(0).says("no volumes");
    assert!(fs::read(world.path("big.img")).unwrap() == home, "nothing was written home");
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    assert!(world.nbd("big").read_all() == home);
}

#[test]
fn a_pool_that_was_destroyed_while_its_device_was_missing_is_refused() {
    let (mut world, _) = warm("writethrough");
    take_away(&world);
    world.start();
    world.forebay(&["volume", "remove", "big"]).expect(0);
    world.forebay(&["pool", "destroy", "ssd", "--yes"]).expect(0).says("forgotten");
    bring_back(&world);
    let said = world.forebay(&["pool", "create", "ssd", "ssd.img"]).expect(4);
    said.complains("destroyed while its devices were missing").complains("--force");
    world.forebay(&["pool", "create", "ssd", "ssd.img", "--force", "--yes"]).expect(0);
    world.forebay(&["status"]).expect(0);
}

#[test]
fn a_detached_volume_stays_detached_without_its_device() {
    let (mut world, _) = warm("writethrough");
    world.start();
    world.forebay(&["volume", "detach", "big"]).expect(0);
    world.stop();
    take_away(&world);
    world.start();
    assert_eq!(world.volume("big")["state"], "detached");
    world.forebay(&["volume", "attach", "big"]).expect(1).complains("ssd.img");
    bring_back(&world);
    world.forebay(&["volume", "attach", "big"]).expect(0);
    assert_eq!(world.volume("big")["state"], "ok");
}

#[test]
fn another_pool_of_the_same_name_does_not_take_the_place_of_the_missing_one() {
    let (mut world, mut model) = warm("writethrough");
    let (other, _) = warm("writeback");
    take_away(&world);
    world.start();
    write(&world, &mut model, 3);
    fs::copy(other.path("ssd.img"), world.path("ssd.img")).unwrap();
    let said = world.forebay(&["volume", "attach", "big"]).expect(1);
    said.complains("hold another pool of the name ssd");
    assert!(world.nbd("big").read_all() == model, "it is still served without its pool");
    bring_back(&world);
    world.forebay(&["volume", "attach", "big"]).expect(0);
    assert!(world.nbd("big").read_all() == model);
}
