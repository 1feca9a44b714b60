//! Tiers on devices that say that they have no room. The limit on the size of the daemon's files
//! stands for a file system that is full: a sparse file fails behind it, and one that is small does
//! not meet it.

use crate::tiers::{check, fill, tiers};
use crate::world::{World, pattern};
use std::fs::File;

const MIB: u64 = 1 << 20;

#[test]
fn a_file_that_cannot_grow_is_passed_by_and_status_says_so() {
    let mut world = World::new();
    world.empty_file("fast.img", 64 * MIB);
    world.empty_file("slow.img", 31 * MIB);
    world.start_limited(32 * MIB);
    let args = ["volume", "create", "big", "--tier", "fast.img", "--tier", "slow.img"];
    world.forebay(&args).expect(0);
    // The fast one has 54 places, and what it lies on has room for 22 of them; the slow one has 21.
    fill(&world, "big", 40);
    check(&world, "big", 40);
    let shown = tiers(&world, "big");
    let devices = shown["tiers"]["devices"].as_array().unwrap();
    assert!(devices[0]["full"].as_bool().unwrap(), "{shown:#}");
    assert!(devices[0]["no_room_errors"].as_u64().unwrap() > 0, "{shown:#}");
    assert!(devices[1]["used_bytes"].as_u64().unwrap() > 8 * MIB, "{shown:#}");
    let status = world.forebay(&["status"]);
    let status = status.says("degraded").says("fast.img, on tier 0, has no room");
    status.says("make room on what the device lies on");
    // Where there is none anywhere the client is told, and all else goes on.
    let mut nbd = world.nbd("big");
    let told = (40..60).find_map(|n| nbd.write(n * MIB, &pattern(n + 1, MIB as usize)).err());
    assert_eq!(told, Some(28), "ENOSPC");
    drop(nbd);
    check(&world, "big", 40);
    // With room again it is used as before.
    world.stop();
    world.start();
    check(&world, "big", 40);
    let mut nbd = world.nbd("big");
    for n in 40..60 {
        nbd.write(n * MIB, &pattern(n + 1, MIB as usize)).unwrap();
    }
    drop(nbd);
    check(&world, "big", 60);
    let status = world.forebay(&["status"]).expect(0);
    assert!(!status.out.contains("has no room"), "{status:#?}");
}

/// A write behind the end of a file makes it larger, and what was cut off reads as zeros then:
/// nothing said so, and `status` was ok.
#[test]
fn a_file_that_is_cut_in_use_fails_and_does_not_read_as_zeros() {
    let mut world = World::new();
    world.empty_file("fast.img", 32 * MIB);
    world.empty_file("slow.img", 32 * MIB);
    world.start();
    let args = ["volume", "create", "big", "--tier", "fast.img", "--tier", "slow.img"];
    world.forebay(&[&args[..], &["--placement", "spill"]].concat()).expect(0);
    fill(&world, "big", 40);
    let file = File::options().write(true).open(world.path("fast.img")).unwrap();
    file.set_len(14 * MIB).unwrap();
    let mut nbd = world.nbd("big");
    // Its 22 places begin at 10 MiB. Whoever writes there makes it larger again.
    for n in 10..22 {
        let _ = nbd.write(n * MIB + 4096, &pattern(99, (MIB - 4096) as usize));
    }
    assert!(nbd.flush().is_err(), "it is not durable what was written there");
    for n in 5..20 {
        let read = nbd.read(n * MIB, 4096);
        assert_eq!(read, Err(5), "MiB {n}");
    }
    let at = 39 * MIB;
    assert!(nbd.read(at, MIB as u32) == Ok(pattern(40, MIB as usize)), "the other tier goes on");
    drop(nbd);
    let status = world.forebay(&["status"]).says("degraded");
    status.says("fast.img, on tier 0, was cut to ");
}
