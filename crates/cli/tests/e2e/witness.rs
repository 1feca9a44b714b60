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
