//! Devices of tiers that are found under other names than before.

use crate::tiers::{big, check, fill, tiers, world};
use crate::world::World;
use std::fs;

fn exchange(world: &World, one: &str, other: &str) {
    let [one, other, aside] = [one, other, "aside.img"].map(|it| world.path(it));
    fs::rename(&one, &aside).unwrap();
    fs::rename(&other, &one).unwrap();
    fs::rename(&aside, &other).unwrap();
}

fn named(world: &World) -> Vec<String> {
    let shown = tiers(world, "big");
    let devices = shown["tiers"]["devices"].as_array().unwrap();
    let name = |it: &str| it.rsplit('/').next().unwrap().to_owned();
    devices.iter().map(|it| name(it["device"].as_str().unwrap())).collect()
}

#[test]
fn devices_that_change_names_are_told_by_what_they_hold() {
    let mut world = world();
    big(&world);
    world.empty_file("more.img", 96 << 20);
    world.forebay(&["tier", "add", "big", "more.img"]).expect(0);
    fill(&world, "big", 60);
    world.stop();
    exchange(&world, "fast.img", "more.img");
    world.start();
    assert_eq!(named(&world), ["more.img", "slow.img", "fast.img"]);
    world.forebay(&["status"]).expect(0);
    // The name that is given up is the one of the device that leaves.
    world.forebay(&["tier", "remove", "big", "fast.img"]).expect(0).says("fast.img is free");
    let inspected = world.forebay(&["inspect", "fast.img"]);
    assert_ne!(inspected.code, 0, "nothing is on it");
    world.kill();
    world.start();
    assert_eq!(named(&world), ["more.img", "slow.img"]);
    check(&world, "big", 60);
}

#[test]
fn a_device_that_is_missing_is_not_named_as_one_that_is_there() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 20);
    world.stop();
    fs::rename(world.path("slow.img"), world.path("away.img")).unwrap();
    fs::rename(world.path("fast.img"), world.path("slow.img")).unwrap();
    world.start();
    assert_eq!(named(&world), ["slow.img", "fast.img"]);
    world.forebay(&["status"]).expect(3).says("fast.img, on tier 1, is missing");
    // It is back, as what is missing.
    fs::rename(world.path("away.img"), world.path("fast.img")).unwrap();
    world.forebay(&["volume", "attach", "big"]).expect(0).says("is used again");
    check(&world, "big", 20);
}

#[test]
fn of_two_devices_that_say_they_are_one_the_one_that_is_used_is_named() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 20);
    world.stop();
    fs::rename(world.path("slow.img"), world.path("away.img")).unwrap();
    fs::copy(world.path("fast.img"), world.path("slow.img")).unwrap();
    world.start();
    assert_eq!(named(&world), ["fast.img", "slow.img"]);
    world.forebay(&["status"]).expect(3).says("slow.img, on tier 1, is missing");
    fs::rename(world.path("away.img"), world.path("slow.img")).unwrap();
    world.forebay(&["volume", "attach", "big"]).expect(0).says("slow.img is used again");
    check(&world, "big", 20);
}

#[test]
fn a_volume_that_was_detached_and_removed_is_made_again_of_its_devices() {
    let world = world();
    big(&world);
    fill(&world, "big", 20);
    world.forebay(&["volume", "detach", "big"]).expect(0);
    world.forebay(&["volume", "remove", "big"]).expect(0).says("is forgotten");
    big(&world);
    check(&world, "big", 20);
    world.forebay(&["volume", "detach", "big"]).expect(0);
    world.forebay(&["volume", "remove", "big"]).expect(0);
    world.forebay(&["pool", "create", "p", "fast.img", "--force", "--yes"]).expect(0);
}
