//! Devices of tiers that have other names than they are known by: after a restart of the machine,
//! in another slot, or because the old name belongs to something else by now.

use crate::tiers::{big, check, fill, tiers, world};
use crate::world::{Said, World};
use std::fs;

fn ask(world: &World, line: &str) -> Said {
    world.forebay(&line.split(' ').collect::<Vec<_>>())
}

fn rename(world: &World, from: &str, to: &str) {
    fs::create_dir_all(world.path("dev")).unwrap();
    fs::rename(world.path(from), world.path(to)).unwrap();
}

fn names(world: &World) -> Vec<String> {
    let shown = tiers(world, "big");
    let devices = shown["tiers"]["devices"].as_array().unwrap();
    let name = |it: &str| it.rsplit('/').next().unwrap().to_owned();
    devices.iter().map(|it| name(it["device"].as_str().unwrap())).collect()
}

/// A volume that was filled, in a daemon that was stopped.
fn stopped() -> World {
    let mut world = world();
    big(&world);
    fill(&world, "big", 60);
    world.stop();
    world
}

/// It stayed missing, whatever was done, until somebody wrote to state.json.
#[test]
fn a_disk_that_has_another_name_after_a_reboot_is_found_by_what_it_holds() {
    let mut world = stopped();
    rename(&world, "slow.img", "dev/sdx");
    fs::write(world.path("dev/other"), [7; 4096]).unwrap();
    fs::write(world.path("dev/empty"), []).unwrap();
    world.start();
    assert_eq!(names(&world), ["fast.img", "sdx"]);
    ask(&world, "status").expect(0);
    check(&world, "big", 60);
    // Every device, and the name that is remembered is the new one.
    world.stop();
    rename(&world, "fast.img", "dev/sdy");
    world.start();
    assert_eq!(names(&world), ["sdy", "sdx"]);
    check(&world, "big", 60);
    world.kill();
    fs::rename(world.path("dev"), world.path("gone")).unwrap();
    fs::create_dir(world.path("dev")).unwrap();
    world.start();
    assert_eq!(world.volume("big")["state"], "offline");
    fs::remove_dir(world.path("dev")).unwrap();
    fs::rename(world.path("gone"), world.path("dev")).unwrap();
    ask(&world, "volume attach big").expect(0);
    ask(&world, "status").expect(0);
    check(&world, "big", 60);
}

#[test]
fn a_disk_that_comes_later_under_another_name_is_found_by_attach() {
    let mut world = stopped();
    rename(&world, "slow.img", "away.img");
    world.start();
    ask(&world, "status").expect(3).says("slow.img, on tier 1, is missing");
    // It said that all was well.
    let said = ask(&world, "volume attach big").expect(1);
    said.complains("slow.img, on tier 1, is still missing").complains("volume create big --tier");
    ask(&world, "volume attach big --dry-run").expect(1).complains("is still missing");
    rename(&world, "away.img", "dev/sdx");
    ask(&world, "volume attach big --dry-run").expect(0).says("would use").says("dev/sdx");
    ask(&world, "volume attach big").expect(0).says("dev/sdx is used again");
    ask(&world, "status").expect(0);
    assert_eq!(names(&world), ["fast.img", "sdx"]);
    check(&world, "big", 60);
    ask(&world, "volume attach big").expect(0);
}

/// It was "choose another name", and there was no way to tell the new one.
#[test]
fn create_with_a_volumes_own_devices_takes_their_new_names_over() {
    let mut world = stopped();
    rename(&world, "slow.img", "away.img");
    world.start();
    ask(&world, "status").expect(3).says("is missing");
    world.empty_file("other.img", 64 << 20);
    let other = ask(&world, "volume create big --tier fast.img --tier other.img").expect(1);
    other.complains("there is a volume \"big\"");
    let line = "volume create big --tier fast.img --tier away.img";
    ask(&world, &format!("{line} --dry-run")).expect(0).says("away.img");
    assert_eq!(names(&world), ["fast.img", "slow.img"]);
    ask(&world, line).expect(0).says("away.img is used again");
    assert_eq!(names(&world), ["fast.img", "away.img"]);
    ask(&world, "status").expect(0);
    check(&world, "big", 60);
    ask(&world, line).expect(0);
    // While all are in use.
    rename(&world, "away.img", "moved.img");
    let line = "volume create big --tier fast.img --tier moved.img";
    ask(&world, line).expect(0).says("moved.img");
    world.stop();
    world.start();
    assert_eq!(names(&world), ["fast.img", "moved.img"]);
    check(&world, "big", 60);
}

/// The whole volume was offline: "stop that first".
#[test]
fn a_name_that_belongs_to_something_else_by_now_is_a_missing_device() {
    let other = World::started();
    let mut world = stopped();
    rename(&world, "slow.img", "away.img");
    world.empty_file("slow.img", 64 << 20);
    let taken = world.text("slow.img");
    other.forebay(&["volume", "create", "theirs", "--tier", &taken]).expect(0);
    world.start();
    let status = ask(&world, "status").expect(3).says("slow.img, on tier 1, is missing");
    assert!(!status.out.contains("offline"), "{status:#?}");
    check_first(&world);
    rename(&world, "away.img", "dev/sdx");
    ask(&world, "volume attach big").expect(0).says("dev/sdx is used again");
    ask(&world, "status").expect(0);
    check(&world, "big", 60);
}

/// What is on the fast tier is served.
fn check_first(world: &World) {
    let mut nbd = world.nbd("big");
    assert!((0..60).any(|n| nbd.read(n << 20, 4096).is_ok()));
}

#[test]
fn a_missing_device_has_an_action_also_where_nothing_lives_on_it() {
    let mut world = world();
    big(&world);
    world.stop();
    rename(&world, "slow.img", "away.img");
    world.start();
    let status = ask(&world, "status").expect(3).says("slow.img, on tier 1, is missing");
    status.says("forebay volume attach big").says("--drop-lost");
}

#[test]
fn of_two_copies_of_a_missing_device_none_is_chosen() {
    let mut world = stopped();
    rename(&world, "slow.img", "dev/sdx");
    fs::copy(world.path("dev/sdx"), world.path("dev/sdy")).unwrap();
    world.start();
    ask(&world, "status").expect(3).says("slow.img, on tier 1, is missing");
    let said = ask(&world, "volume attach big").expect(1);
    said.complains("sdx").complains("sdy").complains("copy");
    fs::remove_file(world.path("dev/sdy")).unwrap();
    ask(&world, "volume attach big").expect(0).says("dev/sdx is used again");
    check(&world, "big", 60);
}
