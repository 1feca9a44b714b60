//! Older copies of a pool's devices, which somebody put in the place of the newest ones.

use crate::world::{World, pattern};
use std::fs;
use std::time::{Duration, Instant};

const WRITTEN: usize = 1 << 20;

/// How far the log was durable, as the state directory says.
fn witnessed(world: &World) -> u64 {
    let files = fs::read_dir(world.state_dir()).unwrap().map(|entry| entry.unwrap().path());
    let mut files = files.filter(|path| path.to_string_lossy().contains("/witness-"));
    files.next().map_or(0, |path| fs::read_to_string(path).unwrap().trim().parse().unwrap())
}

/// Waits until the log was seen to be durable up to this record; up to which it was.
pub fn until_seen(world: &World, record: u64) -> u64 {
    let end = Instant::now() + Duration::from_secs(20);
    while witnessed(world) < record {
        assert!(Instant::now() < end, "only {} is seen", witnessed(world));
        std::thread::sleep(Duration::from_millis(20));
    }
    witnessed(world)
}

/// A volume that was written to twice, and its cache device as it was between. What is seen is
/// written down a moment later: it is waited for, or the older device says as much as the newest.
fn used(mode: &str) -> World {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", mode]).expect(0);
    let mut client = world.nbd("big");
    client.write(0, &pattern(1, WRITTEN)).unwrap();
    client.flush().unwrap();
    fs::copy(world.path("ssd.img"), world.path("old.img")).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let before = witnessed(&world);
    client.write(0, &pattern(2, WRITTEN)).unwrap();
    client.flush().unwrap();
    drop(client);
    let end = Instant::now() + Duration::from_secs(20);
    while witnessed(&world) == before {
        assert!(Instant::now() < end, "nothing new is seen");
        std::thread::sleep(Duration::from_millis(20));
    }
    world
}

fn swap(world: &World) {
    fs::rename(world.path("ssd.img"), world.path("new.img")).unwrap();
    fs::rename(world.path("old.img"), world.path("ssd.img")).unwrap();
    fs::rename(world.path("new.img"), world.path("old.img")).unwrap();
}

#[test]
fn an_older_copy_of_the_same_life_is_not_believed() {
    for (mode, orderly) in [("writeback", false), ("writeback", true), ("writethrough", false)] {
        let mut world = used(mode);
        match orderly {
            true => world.stop(),
            false => world.kill(),
        }
        swap(&world);
        world.start();
        let told = world.forebay(&["status"]).expect(3);
        told.says("older state");
        if mode == "writethrough" {
            // Its origin has all: it is served without the pool.
            assert!(world.nbd("big").read(0, WRITTEN as u32).unwrap() == pattern(2, WRITTEN));
            continue;
        }
        world.stop();
        swap(&world);
        world.start();
        world.forebay(&["status"]).expect(0);
        assert!(world.nbd("big").read(0, WRITTEN as u32).unwrap() == pattern(2, WRITTEN));
    }
}

#[test]
fn an_administrator_goes_on_with_an_older_copy() {
    let mut world = used("writeback");
    world.stop();
    swap(&world);
    world.start();
    world.forebay(&["status"]).expect(3).says("volume attach big --keep-dirty");
    let attach = ["volume", "attach", "big", "--keep-dirty"];
    let dry = world.forebay(&[&attach[..], &["--dry-run"]].concat()).expect(0);
    dry.says("would go on with what is here");
    world.forebay(&[&attach[..], &["--yes"]].concat()).expect(0);
    assert!(world.nbd("big").read(0, WRITTEN as u32).unwrap() == pattern(1, WRITTEN));
    world.stop();
    world.start();
    world.forebay(&["status"]).expect(0);
}

fn forget_witness(world: &World) {
    let files = fs::read_dir(world.state_dir()).unwrap().map(|entry| entry.unwrap().path());
    let mut files = files.filter(|path| path.to_string_lossy().contains("/witness-"));
    fs::remove_file(files.next().expect("there is one")).unwrap();
    assert!(files.next().is_none());
}

#[test]
fn without_a_witness_dirty_data_waits_for_an_administrator() {
    let mut world = used("writeback");
    world.stop();
    forget_witness(&world);
    world.start();
    let told = world.forebay(&["status"]).expect(3);
    told.says("1024 KiB of volume big").says("forebay volume attach big --keep-dirty");
    let attach = ["volume", "attach", "big", "--keep-dirty", "--yes"];
    // Nobody is there to answer.
    world.forebay(&attach[..4]).expect(4).complains("would go on with what is here");
    world.forebay(&[&attach[..4], &["--dry-run"]].concat()).expect(0).says("would go on");
    world.forebay(&["status"]).expect(3);
    world.forebay(&attach).expect(0);
    assert!(world.nbd("big").read(0, WRITTEN as u32).unwrap() == pattern(2, WRITTEN));
    world.stop();
    world.start();
    world.forebay(&["status"]).expect(0);
}

#[test]
fn without_a_witness_what_is_clean_is_read_from_the_origin() {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    // The second miss is admitted.
    for _ in 0..3 {
        let mut client = world.nbd("big");
        (0..64).rev().for_each(|n| drop(client.read(n << 16, 4096).unwrap()));
    }
    let used = |world: &World| {
        let told = world.forebay(&["status", "-o", "json"]).expect(0).json();
        told["volumes"][0]["used_bytes"].as_u64().unwrap()
    };
    let cached = used(&world);
    assert!(cached > 0);
    world.stop();
    world.start();
    assert_eq!(used(&world), cached);
    world.stop();
    forget_witness(&world);
    world.start();
    assert_eq!(used(&world), 0);
}

/// A version that kept no witness was in use here: that there is none tells nothing.
#[test]
fn a_pool_of_an_older_version_is_opened_as_before() {
    let mut world = used("writeback");
    world.stop();
    forget_witness(&world);
    let state = world.state_dir().join("state.json");
    let text = fs::read_to_string(&state).unwrap();
    let older = text.replace("      \"witnessed\": true,\n", "");
    assert_ne!(older, text);
    fs::write(&state, older).unwrap();
    world.start();
    world.forebay(&["status"]).expect(0);
    world.stop();
    forget_witness(&world);
    world.start();
    world.forebay(&["status"]).expect(3).says("nothing here tells");
}

#[test]
fn a_pool_from_elsewhere_with_dirty_data_is_not_taken_before_that_is_accepted() {
    let mut world = used("writeback");
    world.stop();
    fs::remove_dir_all(world.state_dir()).unwrap();
    world.start();
    let create = ["pool", "create", "ssd", "ssd.img"];
    let with = |flags: &[&'static str]| world.forebay(&[&create[..], flags].concat());
    with(&["--dry-run"]).expect(0).says("is refused without --keep-dirty");
    for _ in 0..2 {
        let refused = with(&["--yes"]).expect(1);
        refused.complains("1024 KiB of volume big").complains("ssd.img --keep-dirty");
        world.forebay(&["volume", "show", "big"]).expect(1).complains("no volume");
    }
    with(&["--keep-dirty", "--dry-run"]).expect(0).says("whatever its age is");
    with(&["--keep-dirty", "--yes"]).expect(0);
    assert!(world.nbd("big").read(0, WRITTEN as u32).unwrap() == pattern(2, WRITTEN));
}

/// Of two branches the one that somebody went on with is the newest, however long the other is.
#[test]
fn what_was_abandoned_is_not_believed_again() {
    let mut world = used("writeback");
    world.stop();
    swap(&world);
    world.start();
    world.forebay(&["volume", "attach", "big", "--keep-dirty", "--yes"]).expect(0);
    let mut client = world.nbd("big");
    client.write(0, &pattern(3, 4096)).unwrap();
    client.flush().unwrap();
    drop(client);
    world.stop();
    swap(&world);
    world.start();
    world.forebay(&["status"]).expect(3).says("old state").says("put the newest devices back");
    world.stop();
    swap(&world);
    world.start();
    world.forebay(&["status"]).expect(0);
    assert!(world.nbd("big").read(0, 4096).unwrap() == pattern(3, 4096));
}
