//! Devices that come after the start, when others of their pool are here already.

use crate::world::{DEVICE_BYTES, World, pattern};
use std::fs;

const DEVICES: [&str; 3] = ["ssd.img", "two.img", "three.img"];
const BYTES: usize = 16 << 20;
const PIECE: usize = 1 << 20;
const HELD: &str = "of dirty data are only on what is missing";

/// A pool of three devices, each two of which hold some of what is dirty. The daemon has stopped in
/// order, and two of the devices are not there when it starts again.
fn two_of_three_late() -> World {
    let mut world = World::started();
    world.empty_file("two.img", DEVICE_BYTES);
    world.empty_file("three.img", DEVICE_BYTES);
    let [one, two, three] = DEVICES;
    let with = ["--with", one, "--with", two, "--with", three, "--mode", "writeback"];
    world.forebay(&[&["cache", "big.img"][..], &with].concat()).expect(0);
    let mut client = world.nbd("big");
    for at in (0..BYTES).step_by(PIECE) {
        client.write(at as u64, &pattern(at as u64 + 7, PIECE)).unwrap();
    }
    client.flush().unwrap();
    drop(client);
    world.stop();
    for device in &DEVICES[1..] {
        fs::rename(world.path(device), world.path(&format!("{device}.away"))).unwrap();
    }
    world.start();
    world
}

fn bring_back(world: &World) {
    for device in &DEVICES[1..] {
        fs::rename(world.path(&format!("{device}.away")), world.path(device)).unwrap();
    }
}

#[test]
fn nothing_is_lost_when_devices_come_late() {
    let world = two_of_three_late();
    world.forebay(&["status"]).expect(3).says("offline").says(HELD);
    world.forebay(&["volume", "attach", "big"]).expect(1).complains(HELD).complains("--keep-dirty");
    bring_back(&world);
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
    world.forebay(&attach).expect(0);
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
}
