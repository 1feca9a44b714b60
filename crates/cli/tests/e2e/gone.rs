//! What is gone for good: an origin under dirty data, one of two cache devices.

use crate::world::{DEVICE_BYTES, ORIGIN_BYTES, World, pattern};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A write-back volume with 1 MiB of dirty data whose origin is gone.
fn without_origin() -> World {
    let mut world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    let mut client = world.nbd("big");
    client.write(0, &pattern(4, 1 << 20)).unwrap();
    client.flush().unwrap();
    world.kill();
    fs::rename(world.path("big.img"), world.path("away.img")).unwrap();
    world.start();
    world
}

const NEVER: &str = "if it will never be back, and 1.0M of dirty data is lost with it: forebay \
                     volume remove big --drop-dirty";

#[test]
fn every_verb_names_the_way_on_without_the_origin() {
    let world = without_origin();
    let status = world.forebay(&["status"]).expect(3);
    status.says("when it is back: forebay volume attach big").says(NEVER);
    for verb in [
        &["remove", "big"][..],
        &["detach", "big"],
        &["drain", "big"],
        &["mode", "big", "writethrough"],
        &["attach", "big"],
    ] {
        let said = world.forebay(&[&["volume"][..], verb].concat()).expect(1);
        said.complains("when it is back: forebay volume attach big").complains(NEVER);
    }
}

#[test]
fn a_volume_whose_origin_never_comes_back_is_removed_with_what_is_lost() {
    let mut world = without_origin();
    let remove = ["volume", "remove", "big", "--drop-dirty"];
    let plan = world.forebay(&[&remove[..], &["--dry-run"]].concat()).expect(0);
    plan.says("would give up 1.0M of dirty data of volume big, which is lost, and forget it");
    world.forebay(&remove).expect(4).complains("--yes");
    let done = world.forebay(&[&remove[..], &["--yes"]].concat()).expect(0);
    done.says("volume big is removed; 1.0M of dirty data is lost");
    world.forebay(&["pool", "destroy", "ssd", "--yes"]).expect(0);
    world.stop();
    world.start();
    world.forebay(&["status"]).expect(0).says("no volumes");
}

/// Reads a volume over one connection until `ends`. The longest read.
fn read_on(world: &World, volume: &str, ends: &AtomicBool) -> Duration {
    let (mut client, mut longest) = (world.nbd(volume), Duration::ZERO);
    while !ends.load(Ordering::Relaxed) {
        let begin = Instant::now();
        client.read(0, 4096).unwrap();
        longest = longest.max(begin.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    longest
}

#[test]
fn an_origin_that_is_back_cuts_off_no_client_of_another_volume() {
    let mut world = without_origin();
    world.empty_file("other.img", 16 << 20);
    let create = ["volume", "create", "other", "--origin", "other.img"];
    world.forebay(&create).expect(0);
    let mut model = pattern(1, ORIGIN_BYTES);
    model[..1 << 20].copy_from_slice(&pattern(4, 1 << 20));
    let ends = AtomicBool::new(false);
    let longest = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_on(&world, "other", &ends));
        fs::rename(world.path("away.img"), world.path("big.img")).unwrap();
        world.forebay(&["volume", "attach", "big"]).expect(0);
        assert!(world.nbd("big").read_all() == model, "dirty blocks and others");
        ends.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    world.forebay(&["status"]).expect(0);
    world.forebay(&["volume", "drain", "big"]).expect(0);
    // A copy of it in its place is another file.
    let data = pattern(5, 4096);
    world.nbd("big").write(8192, &data).unwrap();
    model[8192..][..4096].copy_from_slice(&data);
    world.kill();
    fs::rename(world.path("big.img"), world.path("away.img")).unwrap();
    world.start();
    fs::copy(world.path("away.img"), world.path("big.img")).unwrap();
    let mut client = world.nbd("other");
    world.forebay(&["volume", "attach", "big"]).expect(4).complains("--keep-dirty");
    world.forebay(&["status"]).expect(3).says("another file");
    world.forebay(&["volume", "attach", "big", "--keep-dirty", "--yes"]).expect(0);
    assert!(world.nbd("big").read_all() == model);
    client.read(0, 4096).unwrap();
    world.forebay(&["status"]).expect(0);
}

#[test]
fn of_an_origin_that_was_accepted_nothing_old_is_shown_and_it_is_the_right_one_then() {
    let mut world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    // All of it is cached, and one block of it is dirty.
    for _ in 0..2 {
        assert!(world.nbd("big").read_all() == pattern(1, ORIGIN_BYTES));
    }
    let data = pattern(5, 4096);
    world.nbd("big").write(8192, &data).unwrap();
    world.stop();
    fs::rename(world.path("big.img"), world.path("away.img")).unwrap();
    let mut model = pattern(2, ORIGIN_BYTES);
    fs::write(world.path("big.img"), &model).unwrap();
    model[8192..][..4096].copy_from_slice(&data);
    world.start();
    world.forebay(&["volume", "attach", "big"]).expect(4).complains("--keep-dirty");
    let plan =
        |how: &[&str]| world.forebay(&[&["volume", "attach", "big", "--dry-run"], how].concat());
    plan(&[]).expect(4).complains("another file");
    plan(&["--keep-dirty"]).expect(0).says("4.0K of dirty data is for the origin as it is now");
    plan(&["--drop-dirty"]).expect(0).says("would give up 4.0K of dirty data of volume big");
    fs::rename(world.path("big.img"), world.path("third.img")).unwrap();
    plan(&[]).expect(1).complains("cannot be used");
    plan(&["--drop-dirty"]).expect(1).complains("cannot be used");
    fs::rename(world.path("third.img"), world.path("big.img")).unwrap();
    world.forebay(&["volume", "attach", "big", "--keep-dirty", "--yes"]).expect(0);
    assert!(world.nbd("big").read_all() == model, "clean blocks of the first are forgotten");
    world.forebay(&["volume", "drain", "big"]).expect(0);
    assert!(fs::read(world.path("big.img")).unwrap() == model);
    world.nbd("big").write(16384, &data).unwrap();
    model[16384..][..4096].copy_from_slice(&data);
    world.kill();
    world.start();
    assert!(world.nbd("big").read_all() == model, "it is the right one at each start");
    world.kill();
    fs::rename(world.path("big.img"), world.path("second.img")).unwrap();
    fs::rename(world.path("away.img"), world.path("big.img")).unwrap();
    world.start();
    world.forebay(&["status"]).expect(3).says("another file").says("offline");
    world.forebay(&["volume", "attach", "big"]).expect(4).complains("--keep-dirty");
    fs::rename(world.path("second.img"), world.path("big.img")).unwrap();
    world.forebay(&["volume", "attach", "big"]).expect(0);
    assert!(world.nbd("big").read_all() == model);
}

/// A pool of two whose second device is missing.
fn half() -> World {
    let mut world = World::started();
    world.empty_file("two.img", DEVICE_BYTES);
    world.forebay(&["pool", "create", "ma", "ssd.img", "two.img"]).expect(0);
    let create = ["volume", "create", "big", "--origin", "big.img", "--mode", "writeback"];
    world.forebay(&create).expect(0);
    world.stop();
    fs::rename(world.path("two.img"), world.path("away.img")).unwrap();
    world.start();
    world
}

#[test]
fn a_pool_with_one_of_two_devices_says_that_dirty_data_has_one_copy() {
    let world = half();
    let status = world.forebay(&["status"]).expect(3);
    let two = world.text("two.img");
    let status = status.says(&format!("{two}, a cache device of pool ma, is missing"));
    let status = status.says("new dirty data has one copy only");
    let status = status.says(&format!("forebay pool replace ma {two} NEW"));
    assert!(!status.out.contains("no dirty data is accepted"), "{status:#?}");
    assert!(!status.out.contains("has failed"), "{status:#?}");
    world.nbd("big").write(0, &[3; 4096]).unwrap();
    assert_eq!(world.volume("big")["dirty_bytes"], 4096, "it is accepted");
}

#[test]
fn a_missing_device_that_is_back_is_told_by_the_verb_of_the_manual() {
    let mut world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    world.nbd("big").write(0, &[3; 4096]).unwrap();
    world.kill();
    fs::rename(world.path("ssd.img"), world.path("away.img")).unwrap();
    world.start();
    let back = "bring its devices back, then: forebay volume attach big";
    world.forebay(&["status"]).expect(3).says(back);
    world.forebay(&["volume", "attach", "big"]).expect(1).complains(back);
    world.forebay(&["volume", "drain", "big"]).expect(1).complains(back);
    fs::rename(world.path("away.img"), world.path("ssd.img")).unwrap();
    world.forebay(&["volume", "attach", "big"]).expect(0);
}
