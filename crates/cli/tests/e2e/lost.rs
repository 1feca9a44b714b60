//! Origins that are lost while they are used, and come back.

use crate::world::{DEVICE_BYTES, World, pattern};
use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const CACHED: u64 = 0;
const WRITTEN: u64 = 1 << 20;
const MISSED: u64 = 4 << 20;
const BUSY: u64 = 6 << 20;
/// Longest answer that a client of the other volume may get; the build is one for tests, on a
/// machine that does other things too.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Two volumes of one pool, of which `big` has a block cached and another one dirty.
fn two_volumes() -> World {
    let world = World::started();
    let cache = |origin, more: &[&str]| {
        world.forebay(&[&["cache", origin, "--mode", "writeback"], more].concat()).expect(0);
    };
    cache("big.img", &["--with", "ssd.img"]);
    world.empty_file("other.img", DEVICE_BYTES);
    cache("other.img", &["--with", "ssd.img"]);
    let mut client = world.nbd("big");
    client.write(CACHED, &pattern(5, BLOCK)).unwrap();
    client.flush().unwrap();
    drop(client);
    world.forebay(&["volume", "drain", "big"]).expect(0);
    let mut client = world.nbd("big");
    client.write(WRITTEN, &pattern(6, BLOCK)).unwrap();
    client.flush().unwrap();
    world
}

/// Pulls the disk out: what is open of it has nothing any more, and its path leads nowhere.
fn lose(world: &World) -> Vec<u8> {
    let held = fs::read(world.path("big.img")).unwrap();
    File::options().write(true).open(world.path("big.img")).unwrap().set_len(0).unwrap();
    fs::rename(world.path("big.img"), world.path("out.img")).unwrap();
    held
}

fn plug_in(world: &World, held: &[u8]) {
    fs::write(world.path("out.img"), held).unwrap();
    fs::rename(world.path("out.img"), world.path("big.img")).unwrap();
}

/// Asks for what is not cached until the daemon knows that it is not there.
fn until_status(world: &World, text: &str) {
    let mut client = world.nbd("big");
    until(world, text, || {
        // While clients write, nothing goes home: a file that was cut takes it, and grows again.
        let _ = client.write(BUSY, &pattern(9, BLOCK));
        let _ = client.read(MISSED, BLOCK as u32);
    });
}

pub fn until(world: &World, text: &str, mut asks: impl FnMut()) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        asks();
        let status = world.volume("big").to_string();
        if status.contains(text) {
            return;
        }
        assert!(Instant::now() < end, "{text} is not in {status}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn an_origin_is_lost_and_comes_back_under_its_clients() {
    let world = two_volumes();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut client = world.nbd("other");
            let (mut longest, mut count) = (Duration::ZERO, 0_u64);
            while !ends.load(Ordering::Relaxed) {
                let begin = Instant::now();
                let at = count * 7919 % 2048 * BLOCK as u64;
                if count.is_multiple_of(2) {
                    client.write(at, &pattern(count, BLOCK)).expect("the other volume is served");
                } else {
                    client.read(at, BLOCK as u32).expect("the other volume is served");
                }
                longest = longest.max(begin.elapsed());
                count += 1;
            }
            (longest, count)
        });
        let mut client = world.nbd("big");
        let held = lose(&world);
        assert!(client.read(MISSED, BLOCK as u32).is_err(), "it is not there");
        until_status(&world, "is lost");
        world.forebay(&["status"]).expect(3).says("degraded").says("used again as soon as");
        // The connection stays, and what is cached is served; what is written stays in the cache.
        assert_eq!(client.read(CACHED, BLOCK as u32).unwrap(), pattern(5, BLOCK));
        client.write(WRITTEN + BLOCK as u64, &pattern(7, BLOCK)).unwrap();
        client.flush().unwrap();
        world.forebay(&["volume", "drain", "big"]).expect(1).complains("is lost");
        plug_in(&world, &held);
        until_status(&world, r#""state":"ok""#);
        let at = MISSED as usize;
        assert_eq!(client.read(MISSED, BLOCK as u32).unwrap(), held[at..at + BLOCK]);
        world.forebay(&["volume", "drain", "big"]).expect(0);
        let home = fs::read(world.path("big.img")).unwrap();
        let at = WRITTEN as usize;
        assert_eq!(home[at..at + BLOCK], pattern(6, BLOCK));
        assert_eq!(home[at + BLOCK..at + 2 * BLOCK], pattern(7, BLOCK));
        ends.store(true, Ordering::Relaxed);
        let (longest, count) = other.join().unwrap();
        println!("the other volume: {count} requests, the longest took {longest:?}");
        assert!(count > 100 && longest < PAUSE_MAX, "{count} requests, the longest {longest:?}");
    });
}

#[test]
fn an_origin_that_comes_back_smaller_or_as_another_one_is_not_used() {
    let world = two_volumes();
    let mut client = world.nbd("big");
    let held = lose(&world);
    until_status(&world, "is lost");
    plug_in(&world, &held[..held.len() / 2]);
    until_status(&world, "shrank");
    assert_eq!(client.read(CACHED, BLOCK as u32).unwrap(), pattern(5, BLOCK));
    assert!(client.read(MISSED, BLOCK as u32).is_err());
    fs::rename(world.path("big.img"), world.path("out.img")).unwrap();
    fs::write(world.path("big.img"), &held).unwrap();
    until_status(&world, "another file");
    assert!(client.read(MISSED, BLOCK as u32).is_err());
    // An administrator may say that it is the right one: what is dirty goes there.
    world.forebay(&["volume", "attach", "big", "--keep-dirty", "--yes"]).expect(0);
    until_status(&world, r#""state":"ok""#);
    assert_eq!(client.read(CACHED, BLOCK as u32).unwrap(), pattern(5, BLOCK));
    world.forebay(&["volume", "drain", "big"]).expect(0);
    let at = WRITTEN as usize;
    assert_eq!(fs::read(world.path("big.img")).unwrap()[at..at + BLOCK], pattern(6, BLOCK));
}

#[test]
fn the_dirty_data_of_an_origin_that_is_lost_for_good_is_given_up() {
    let world = two_volumes();
    // Some of it is on its way home when the origin is lost, and nothing was flushed there.
    let mut client = world.nbd("big");
    (0..64).for_each(|at| client.write(at << 16, &pattern(at, BLOCK)).unwrap());
    lose(&world);
    drop(client);
    until_status(&world, "is lost");
    world.forebay(&["volume", "remove", "big"]).expect(1).complains("--drop-dirty");
    world.forebay(&["volume", "remove", "big", "--drop-dirty", "--yes"]).expect(0).says("is lost");
    world.forebay(&["status"]).expect(0);
}

#[test]
fn a_volume_whose_flushes_fail_says_so() {
    let world = two_volumes();
    world.forebay(&["volume", "mode", "big", "writethrough"]).expect(0);
    let mut client = world.nbd("big");
    client.write(WRITTEN, &pattern(8, BLOCK)).unwrap();
    let held = lose(&world);
    until_status(&world, "is lost");
    plug_in(&world, &held);
    until_status(&world, "each FLUSH fails");
    assert!(client.flush().is_err());
    drop(client);
    world.forebay(&["volume", "detach", "big"]).expect(1).complains("has failed a FLUSH");
    world.forebay(&["volume", "detach", "big"]).expect(0);
    world.forebay(&["volume", "attach", "big"]).expect(0);
    world.forebay(&["status"]).expect(0);
    world.nbd("big").flush().unwrap();
}

#[test]
fn a_loss_is_seen_though_nobody_asks() {
    let world = two_volumes();
    world.forebay(&["volume", "drain", "big"]).expect(0);
    let held = lose(&world);
    until(&world, "is lost", || ());
    plug_in(&world, &held);
    until(&world, r#""state":"ok""#, || ());
    let at = WRITTEN as usize;
    assert_eq!(world.nbd("big").read(WRITTEN, BLOCK as u32).unwrap(), held[at..at + BLOCK]);
}
