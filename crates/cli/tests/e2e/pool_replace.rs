//! A cache device of a pool of two gives its place to another one.

use crate::world::{DEVICE_BYTES, World, pattern};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

const WRITTEN: usize = 8 << 20;

/// A pool of two, and a volume in write-back before it.
fn pair() -> World {
    let world = World::started();
    world.empty_file("two.img", DEVICE_BYTES);
    world.empty_file("three.img", DEVICE_BYTES);
    let (one, two) = (world.text("ssd.img"), world.text("two.img"));
    world.forebay(&["pool", "create", "ma", &one, &two]).expect(0);
    let create = ["volume", "create", "big", "--origin", "big.img", "--mode", "writeback"];
    world.forebay(&create).expect(0);
    world
}

/// Ends the writing, however the test does.
struct Ends<'t>(&'t AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes on over one connection until `ends`, so that what is dirty does not go home.
fn write_on(world: &World, ends: &AtomicBool) {
    let mut client = world.nbd("big");
    let mut at = 0;
    while !ends.load(Ordering::Relaxed) {
        client.write(WRITTEN as u64 + at, &pattern(7, 64 << 10)).unwrap();
        at = (at + (64 << 10)) % (4 << 20);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn write_all(world: &World, seed: u64) {
    let mut client = world.nbd("big");
    for (n, piece) in pattern(seed, WRITTEN).chunks(1 << 20).enumerate() {
        client.write((n as u64) << 20, piece).unwrap();
    }
    client.flush().unwrap();
}

fn reads_back(world: &World, seed: u64) {
    let (mut client, all) = (world.nbd("big"), pattern(seed, WRITTEN));
    for (n, piece) in all.chunks(1 << 20).enumerate() {
        assert!(client.read((n as u64) << 20, 1 << 20).unwrap() == piece, "MiB {n}");
    }
}

#[test]
fn a_device_that_is_gone_is_replaced_and_then_the_other_one_may_go() {
    let mut world = pair();
    world.kill();
    fs::remove_file(world.path("two.img")).unwrap();
    world.start();
    let two = world.text("two.img");
    let status = world.forebay(&["status"]).expect(3);
    status.says(&format!("forebay pool replace ma {two} NEW"));
    write_all(&world, 3);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| write_on(&world, &ends));
        let _last = Ends(&ends);
        let replace = ["pool", "replace", "ma", "two.img", "three.img"];
        let plan = world.forebay(&[&replace[..], &["--dry-run"]].concat()).expect(0);
        plan.says("would put").says("nothing was changed");
        world.forebay(&replace).expect(0).says("has the place of");
        let shown = world.forebay(&["pool", "show", "ma", "-o", "json"]).expect(0).json();
        assert_eq!(shown["dirty_one_copy_bytes"], 0, "{shown}");
        assert!(shown["dirty_two_copies_bytes"].as_u64().unwrap() > 0, "{shown}");
    });
    world.kill();
    fs::remove_file(world.path("ssd.img")).unwrap();
    world.start();
    world.forebay(&["pool", "show", "ma"]).expect(3).says("missing or failed");
    reads_back(&world, 3);
}

#[test]
fn a_device_that_works_is_replaced_under_load_and_a_kill_changes_nothing() {
    let mut world = pair();
    write_all(&world, 4);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| write_on(&world, &ends));
        let _last = Ends(&ends);
        let replace = ["pool", "replace", "ma", "ssd.img", "three.img", "--no-wait"];
        world.forebay(&replace).expect(0);
    });
    // In the middle of it: some of what is dirty has one copy.
    world.kill();
    world.start();
    world.forebay(&["status"]).expect(0);
    reads_back(&world, 4);
    // The old one is none of the pool's, and of no use without --force.
    let again = ["pool", "replace", "ma", "two.img", "ssd.img"];
    world.forebay(&again).expect(4).complains("--force");
    world.forebay(&[&again[..], &["--force", "--yes"]].concat()).expect(0);
    reads_back(&world, 4);
}

#[test]
fn a_device_comes_back_as_an_empty_one() {
    let mut world = pair();
    write_all(&world, 5);
    world.kill();
    fs::rename(world.path("two.img"), world.path("away.img")).unwrap();
    world.start();
    write_all(&world, 6);
    fs::rename(world.path("away.img"), world.path("two.img")).unwrap();
    let back = ["pool", "replace", "ma", "two.img", "two.img"];
    world.forebay(&back).expect(4).complains("all that it holds of it is given up");
    world.forebay(&[&back[..], &["--force", "--yes"]].concat()).expect(0);
    world.forebay(&["status"]).expect(0);
    reads_back(&world, 6);
    world.kill();
    world.start();
    world.forebay(&["status"]).expect(0);
    reads_back(&world, 6);
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let world = pair();
    let replace = |rest: &[&str]| world.forebay(&[&["pool", "replace"], rest].concat());
    replace(&["ma", "none.img", "three.img"]).expect(1).complains("has no device");
    replace(&["ma", "ssd.img", "two.img"]).expect(4).complains("a device of the pool ma");
    replace(&["ma", "ssd.img", "big.img"]).expect(4).complains("origin of volume big");
    world.empty_file("small.img", DEVICE_BYTES / 2);
    replace(&["ma", "ssd.img", "small.img"]).expect(4).complains("the place of");
    world.empty_file("alone.img", DEVICE_BYTES);
    world.forebay(&["pool", "create", "single", "alone.img"]).expect(0);
    let one = replace(&["single", "alone.img", "three.img"]).expect(4);
    one.complains("the only device").complains("forebay pool destroy single");
}

/// A kill in the middle left the path of the new device behind: it counted as one of the pool for
/// ever, and could not be the new one.
#[test]
fn what_a_kill_left_behind_is_the_new_device_all_the_same() {
    let mut world = pair();
    world.stop();
    let (two, three) = (world.text("two.img"), world.text("three.img"));
    let state = world.state_dir().join("state.json");
    let text = fs::read_to_string(&state).unwrap();
    let both = text.replacen(&format!("\"{two}\""), &format!("\"{two}\", \"{three}\""), 1);
    assert_ne!(text, both);
    fs::write(&state, both).unwrap();
    fs::remove_file(world.path("two.img")).unwrap();
    world.start();
    world.forebay(&["pool", "replace", "ma", "two.img", "three.img"]).expect(0);
    world.forebay(&["status"]).expect(0);
    let left: serde_json::Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    assert_eq!(left["pools"][0]["devices"], serde_json::json!([world.text("ssd.img"), three]));
}
