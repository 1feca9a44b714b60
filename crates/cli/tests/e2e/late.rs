//! Devices that come after the start, when others of their pool are here already.

use crate::world::{DEVICE_BYTES, World, pattern};
use std::fs;

const DEVICES: [&str; 4] = ["ssd.img", "two.img", "three.img", "four.img"];
const BYTES: usize = 16 << 20;
const PIECE: usize = 1 << 20;
const BLOCK: usize = 4096;
const HELD: &str = "of dirty data are only on what is missing";

/// A pool of so many devices, each two of which hold some of what is dirty.
fn devices(count: usize) -> World {
    let world = World::started();
    let mut words = vec!["cache", "big.img", "--mode", "writeback"];
    for device in &DEVICES[..count] {
        words.extend(["--with", device]);
    }
    DEVICES[1..count].iter().for_each(|device| world.empty_file(device, DEVICE_BYTES));
    world.forebay(&words).expect(0);
    world
}

fn write_all(world: &World, seed: u64) {
    let mut client = world.nbd("big");
    for at in (0..BYTES).step_by(PIECE) {
        client.write(at as u64, &pattern(at as u64 + seed, PIECE)).unwrap();
    }
    client.flush().unwrap();
}

/// The offsets of what is written at once.
fn pieces() -> impl Iterator<Item = u64> {
    (0..BYTES as u64).step_by(PIECE)
}

fn rename_away(world: &World, devices: &[&str]) {
    for device in devices {
        fs::rename(world.path(device), world.path(&format!("{device}.away"))).unwrap();
    }
}

fn bring_back(world: &World, devices: &[&str]) {
    for device in devices {
        fs::rename(world.path(&format!("{device}.away")), world.path(device)).unwrap();
    }
}

/// The daemon has stopped in order, and two of three devices are not there when it starts again.
fn two_of_three_late() -> World {
    let mut world = devices(3);
    write_all(&world, 7);
    world.stop();
    rename_away(&world, &DEVICES[1..3]);
    world.start();
    world
}

#[test]
fn nothing_is_lost_when_devices_come_late() {
    let world = two_of_three_late();
    world.forebay(&["status"]).expect(3).says("offline").says(HELD);
    world.forebay(&["volume", "attach", "big"]).expect(1).complains(HELD).complains("--keep-dirty");
    bring_back(&world, &DEVICES[1..3]);
    world.forebay(&["volume", "attach", "big"]).expect(0);
    world.forebay(&["status"]).expect(0);
    let mut client = world.nbd("big");
    for at in (0..BYTES).step_by(PIECE) {
        assert!(
            client.read(at as u64, PIECE as u32).unwrap() == pattern(at as u64 + 7, PIECE),
            "{at}"
        );
    }
}

#[test]
fn an_administrator_may_give_up_what_will_never_be_back() {
    let world = two_of_three_late();
    let attach = ["volume", "attach", "big", "--keep-dirty"];
    world.forebay(&[&attach[..], &["--dry-run"]].concat()).expect(0).says("give up").says(HELD);
    world.forebay(&["status"]).expect(3).says("offline");
    let offered = format!("{} --keep-dirty", attach[..3].join(" "));
    world.forebay(&["status"]).expect(3).says(&format!("forebay {offered}"));
    world.forebay(&attach).expect(4).complains("give up");
    world.forebay(&[&attach[..], &["--yes"]].concat()).expect(0);
    world.forebay(&["status"]).expect(3).says("degraded");
    let mut client = world.nbd("big");
    let (mut whole, mut lost) = (0, 0);
    for at in (0..BYTES).step_by(PIECE) {
        match client.read(at as u64, PIECE as u32) {
            Ok(data) => {
                assert!(data == pattern(at as u64 + 7, PIECE), "{at}");
                whole += 1;
            }
            Err(_) => lost += 1,
        }
    }
    assert!(whole > 0 && lost > 0, "{whole} pieces are whole, of {lost} something is lost");
    drop(client);
    // Nothing sends home what is lost: it is written anew, or given up.
    world.forebay(&["volume", "drain", "big"]).expect(1).complains("--drop-dirty");
    world.forebay(&["volume", "remove", "big"]).expect(1).complains("--drop-dirty");
    world.forebay(&["volume", "remove", "big", "--drop-dirty", "--yes"]).expect(0).says("lost");
    world.forebay(&["pool", "destroy", "ssd", "--yes"]).expect(0);
    let home = fs::read(world.path("big.img")).unwrap();
    let pieces = (0..BYTES).step_by(PIECE);
    let pieces = pieces.filter(|&at| home[at..at + PIECE] == pattern(at as u64 + 7, PIECE)[..]);
    assert!(pieces.count() >= whole, "what could be read is home");
}

#[test]
fn what_was_written_last_before_a_crash_is_not_given_up_unseen() {
    for last in 8..14 {
        let mut world = devices(4);
        write_all(&world, 7);
        world.stop();
        rename_away(&world, &DEVICES[1..3]);
        world.start();
        (8..=last).for_each(|seed| write_all(&world, seed));
        world.kill();
        rename_away(&world, &DEVICES[3..]);
        world.start();
        world.forebay(&["status"]).expect(3);
        // Where it is known what the missing device holds, that may be given up. Where it is not,
        // and where the end of the log may be there, the pool stays closed.
        if world.forebay(&["volume", "attach", "big", "--keep-dirty", "--yes"]).code == 0 {
            let mut client = world.nbd("big");
            let wanted: Vec<u8> = pieces().flat_map(|at| pattern(at + last, PIECE)).collect();
            for (at, wanted) in (0..).step_by(BLOCK).zip(wanted.chunks_exact(BLOCK)) {
                let read = client.read(at, BLOCK as u32);
                assert!(read.is_err() || read == Ok(wanted.to_vec()), "old data at {at}");
            }
            continue;
        }
        world.kill();
        bring_back(&world, &DEVICES[3..]);
        world.start();
        let mut client = world.nbd("big");
        for at in pieces() {
            assert!(client.read(at, PIECE as u32).unwrap() == pattern(at + last, PIECE), "{at}");
        }
    }
}
