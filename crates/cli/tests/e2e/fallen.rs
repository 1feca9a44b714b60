//! Internal errors: a panic in the thread of one pool, and in a request.

use crate::guest_disk::{connect, waits_until};
use crate::nbd::Nbd;
use crate::world::{DEVICE_BYTES, ORIGIN_BYTES, World, pattern};
use forebay_api::Client;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
/// Longest answer that a client of the other pool may get; the build is one for tests, on a machine
/// that does other things too.
const PAUSE_MAX: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);
const WRITERS: u64 = 4;

/// `big` in a pool of its own, and `other` in another one. A write of certain words panics.
fn two_pools() -> World {
    let mut world = World::new();
    world.empty_file("other.img", ORIGIN_BYTES as u64);
    world.empty_file("ssd2.img", DEVICE_BYTES);
    let mut daemon = world.daemon_command();
    daemon.env("FOREBAY_PLANTED_PANIC", "1");
    world.spawn(daemon);
    let cache = |origin, device| {
        let with = ["--with", device, "--mode", "writeback"];
        world.forebay(&[&["cache", origin], &with[..]].concat()).expect(0);
    };
    cache("big.img", "ssd.img");
    cache("other.img", "ssd2.img");
    world
}

fn words() -> Vec<u8> {
    let mut words = b"forebay: a planted panic".to_vec();
    words.resize(BLOCK, 0);
    words
}

fn fall(world: &World) {
    assert!(world.nbd("big").write(0, &words()).is_err(), "nobody answers");
}

/// A client of `big` as soon as it is served.
fn served_again(world: &World) -> Nbd {
    let (socket, begin) = (world.state_dir().join("nbd.sock"), Instant::now());
    loop {
        if let Some(mut client) = Nbd::attempt(&socket, "big")
            && client.read(0, BLOCK as u32).is_ok()
        {
            return client;
        }
        assert!(begin.elapsed() < PATIENCE, "it is not served again: {}", world.log());
        thread::sleep(Duration::from_millis(2));
    }
}

/// Of each block the number of the last write that was acknowledged, and of one that may have been
/// under way.
type Written = BTreeMap<u64, [Option<u64>; 2]>;

/// Writes blocks of its own until the server is gone.
fn write_on(world: &World, own: u64) -> Written {
    let (mut client, mut written) = (world.nbd("big"), Written::new());
    for number in 1.. {
        let at = (1 + own + number * 7919 % 512 * WRITERS) * BLOCK as u64;
        let done = client.write(at, &pattern(number, BLOCK)).is_ok();
        let numbers = written.entry(at).or_default();
        if !done {
            numbers[1] = Some(number);
            break;
        }
        numbers[0] = Some(number);
    }
    written
}

/// Reads and writes `other`. How many requests, and the longest.
fn use_other(world: &World, ends: &AtomicBool) -> (u64, Duration) {
    let (mut client, mut longest, mut count) = (world.nbd("other"), Duration::ZERO, 0);
    while !ends.load(Ordering::Relaxed) {
        let (begin, at) = (Instant::now(), count * 7919 % 2048 * BLOCK as u64);
        match count % 2 {
            0 => client.write(at, &pattern(count, BLOCK)).expect("the other pool is served"),
            _ => drop(client.read(at, BLOCK as u32).expect("the other pool is served")),
        }
        longest = longest.max(begin.elapsed());
        count += 1;
    }
    (count, longest)
}

#[test]
fn a_pool_that_panics_under_load_is_served_again_and_the_other_one_notices_nothing() {
    let mut world = two_pools();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| use_other(&world, &ends));
        let writers: Vec<_> = (0..WRITERS)
            .map(|own| {
                scope.spawn({
                    let world = &world;
                    move || write_on(world, own)
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(500));
        let begin = Instant::now();
        fall(&world);
        let mut client = served_again(&world);
        println!("served again after {:?}", begin.elapsed());
        let mut count = 0;
        for (at, numbers) in writers.into_iter().flat_map(|writer| writer.join().unwrap()) {
            let now = client.read(at, BLOCK as u32).unwrap();
            let may_be = numbers.into_iter().flatten().any(|number| now == pattern(number, BLOCK));
            assert!(may_be || numbers[0].is_none(), "block at {at}: {numbers:?}");
            count += usize::from(numbers[0].is_some());
        }
        client.write(0, &pattern(3, BLOCK)).unwrap();
        client.flush().unwrap();
        thread::sleep(Duration::from_millis(200));
        ends.store(true, Ordering::Relaxed);
        let (requests, longest) = other.join().unwrap();
        println!("{count} blocks are there; the other pool: {requests} requests, {longest:?}");
        assert!(count > 100, "{count}");
        assert!(requests > 100 && longest < PAUSE_MAX, "{requests} requests, {longest:?}");
    });
    let status = world.forebay(&["status"]).expect(0);
    let status = status.says("internal error, once since forebayd started").says("a planted panic");
    status.says("report it, with the backtrace in the log of forebayd");
    let log = world.log();
    assert!(log.contains("internal error in thread forebay-shard"), "{log}");
    assert!(log.contains("forebay_host::shard::run"), "the backtrace: {log}");
    let pool = |name| world.volume(name)["pool"].as_str().unwrap().to_string();
    let client = Client::new(world.state_dir().join("control.sock"));
    let (_, text) = client.http("GET", "/metrics", b"").unwrap();
    let text = String::from_utf8(text).unwrap();
    for (name, count) in [("big", 1), ("other", 0)] {
        let pool = pool(name);
        let line = format!("forebay_pool_internal_errors_total{{pool=\"{pool}\"}} {count}\n");
        assert!(text.contains(&line), "{line} is not in {text}");
    }
    // It is the same daemon, and it stops in order.
    world.stop();
}

#[test]
fn a_pool_that_panics_three_times_within_a_minute_stays_closed() {
    let world = two_pools();
    world.nbd("big").write(1 << 20, &pattern(5, BLOCK)).unwrap();
    for _ in 0..2 {
        fall(&world);
        served_again(&world);
    }
    world.forebay(&["status"]).expect(0).says("2 times since forebayd started");
    fall(&world);
    let begin = Instant::now();
    let status = loop {
        let status = world.forebay(&["status"]);
        if status.out.contains("stays closed") {
            break status;
        }
        assert!(begin.elapsed() < PATIENCE, "{status:#?}");
        thread::sleep(Duration::from_millis(20));
    };
    let status = status.expect(3).says("after 3 internal errors within a minute");
    status.says("forebay volume attach big").says("report it").says("offline");
    thread::sleep(Duration::from_millis(500));
    let socket = world.state_dir().join("nbd.sock");
    assert!(Nbd::attempt(&socket, "big").is_none(), "nobody opens it by himself");
    let mut other = world.nbd("other");
    other.write(0, &pattern(6, BLOCK)).unwrap();
    world.forebay(&["volume", "attach", "big"]).expect(0);
    assert_eq!(world.nbd("big").read(1 << 20, BLOCK as u32).unwrap(), pattern(5, BLOCK));
    assert_eq!(other.read(0, BLOCK as u32).unwrap(), pattern(6, BLOCK), "the same connection");
    // Whoever opened it by hand has three more.
    fall(&world);
    served_again(&world);
}

#[test]
fn a_request_that_panics_with_locks_held_costs_nobody_else_anything() {
    let world = two_pools();
    for _ in 0..2 {
        let said = world.forebay(&["volume", "drain", "a-planted-panic"]).expect(1);
        said.complains("the request was not finished").complains("see the daemon's log");
    }
    world.forebay(&["status"]).expect(0);
    world.nbd("big").write(0, &pattern(7, BLOCK)).unwrap();
    world.forebay(&["volume", "drain", "big"]).expect(0);
    assert!(world.log().contains("a planted panic of a request"));
}

#[test]
fn a_machines_disk_is_there_again_after_a_panic_of_its_pool() {
    let world = two_pools();
    world.empty_file("disk.img", ORIGIN_BYTES as u64);
    let cache = ["cache", "disk.img", "--with", "ssd.img", "--export", "vhost-user"];
    world.forebay(&cache).expect(0);
    let socket = world.state_dir().join("vhost/disk.sock");
    let (machine, features) = connect(&socket);
    fall(&world);
    served_again(&world);
    drop(machine);
    waits_until("the socket is there again", || UnixStream::connect(&socket).is_ok());
    assert_eq!(connect(&socket).1, features);
    world.forebay(&["status"]).expect(0);
}
