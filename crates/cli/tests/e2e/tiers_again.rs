//! Devices of tiers that come back while the volume is used, and paths that lead to something else
//! by now.

use crate::nbd::Nbd;
use crate::tiers::{big, check, fill, tiers, wait_for, world};
use crate::world::pattern;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Each client has a block of its own, which it writes, reads and flushes until it is told to stop:
/// how often it did.
fn work(mut nbd: Nbd, client: u64, rounds: &AtomicU64, is_over: &AtomicBool) {
    let at = client * 4096;
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        let data = pattern(client * 1_000_000 + round, 4096);
        assert_eq!(nbd.write(at, &data), Ok(()), "write {round} of client {client}");
        assert!(nbd.read(at, 4096) == Ok(data), "read {round} of client {client}");
        if round % 8 == 0 {
            assert_eq!(nbd.flush(), Ok(()), "flush {round} of client {client}");
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Requests under way as a device came back were never answered, others failed, and so did each
/// FLUSH from then on.
#[test]
fn a_device_comes_back_while_clients_work() {
    let mut world = world();
    big(&world);
    world.stop();
    fs::rename(world.path("slow.img"), world.path("away.img")).unwrap();
    world.start();
    let counts: Vec<AtomicU64> = (0..6).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (client, count) in (0..).zip(&counts) {
            let (nbd, is_over) = (world.nbd("big"), &is_over);
            scope.spawn(move || work(nbd, client, count, is_over));
        }
        let counts_now = || counts.iter().map(|it| it.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let go_on = |what: &str| {
            let before = counts_now();
            let all = || counts_now().iter().zip(&before).all(|(now, before)| *now > before + 2);
            wait_for(what, all);
        };
        go_on("clients begin");
        fs::rename(world.path("away.img"), world.path("slow.img")).unwrap();
        world.forebay(&["volume", "attach", "big"]).expect(0).says("is used again");
        go_on("all clients go on");
        world.forebay(&["status"]).expect(0);
        is_over.store(true, Ordering::Relaxed);
    });
}

/// An orderly stop leaves nothing to replay, and a copy of a device that was made before it, in the
/// same life, is not taken for the device.
#[test]
fn a_snapshot_of_a_device_from_before_a_stop_is_not_believed() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 60);
    fs::copy(world.path("slow.img"), world.path("snapshot.img")).unwrap();
    let mut nbd = world.nbd("big");
    for n in 0..60 {
        nbd.write(n * MIB, &pattern(n + 1001, MIB as usize)).unwrap();
    }
    nbd.flush().unwrap();
    drop(nbd);
    world.stop();
    fs::rename(world.path("slow.img"), world.path("true.img")).unwrap();
    fs::rename(world.path("snapshot.img"), world.path("slow.img")).unwrap();
    world.start();
    let mut nbd = world.nbd("big");
    for n in 0..60 {
        match nbd.read(n * MIB, MIB as u32) {
            Ok(data) => assert!(data == pattern(n + 1001, MIB as usize), "old data at MiB {n}"),
            Err(error) => assert_eq!(error, 5),
        }
    }
    assert_eq!(nbd.flush(), Ok(()), "all was stopped in order");
    drop(nbd);
    assert_eq!(tiers(&world, "big")["tiers"]["devices"][1]["state"], "missing");
}

/// `tier remove` went over whatever was at the path of a device.
#[test]
fn what_is_at_the_path_of_a_removed_device_is_left_alone() {
    let world = world();
    big(&world);
    world.empty_file("third.img", 64 * MIB);
    world.forebay(&["tier", "add", "big", "third.img"]).expect(0);
    fill(&world, "big", 8);
    fs::rename(world.path("third.img"), world.path("renamed.img")).unwrap();
    let foreign = pattern(7, 4 * MIB as usize);
    fs::write(world.path("third.img"), &foreign).unwrap();
    world.forebay(&["tier", "remove", "big", "2", "-y"]).expect(0).says("is gone");
    assert!(fs::read(world.path("third.img")).unwrap() == foreign, "somebody else's data");
    check(&world, "big", 8);
    // The device itself is free.
    wait_for("the device is free", || {
        std::thread::sleep(Duration::from_millis(50));
        world.forebay(&["tier", "add", "big", "renamed.img", "--dry-run"]).code == 0
    });
}
