//! Somebody writes to an origin while the daemon is stopped.

use crate::world::{ORIGIN_BYTES, World, pattern};
use std::fs::File;
use std::os::unix::fs::FileExt;

const AT_HEAD: usize = 64 << 10;
const FAR: usize = 16 << 20;
const DIRTY: usize = 2 << 20;

/// A warm volume in a daemon that was stopped, and what it holds.
fn stopped(mode: &str) -> (World, Vec<u8>) {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", mode]).expect(0);
    let mut model = pattern(1, ORIGIN_BYTES);
    assert!(world.nbd("big").read_all() == model);
    if mode == "writeback" {
        let data = pattern(9, 4096);
        let mut client = world.nbd("big");
        client.write(DIRTY as u64, &data).unwrap();
        client.flush().unwrap();
        model[DIRTY..][..4096].copy_from_slice(&data);
    }
    world.stop();
    (world, model)
}

/// Writes to the origin behind the daemon's back.
fn scribble(world: &World, model: &mut [u8], at: usize) {
    let data = pattern(at as u64, 4096);
    let file = File::options().write(true).open(world.path("big.img")).unwrap();
    file.write_all_at(&data, at as u64).unwrap();
    model[at..][..4096].copy_from_slice(&data);
}

#[test]
fn cached_blocks_of_a_file_that_was_written_to_are_forgotten() {
    for at in [AT_HEAD, FAR] {
        let (mut world, mut model) = stopped("writethrough");
        world.start();
        let used = world.volume("big")["used_bytes"].as_u64().unwrap();
        assert!(used > 8 << 20, "where nothing was written it stays warm: {used}");
        world.stop();
        scribble(&world, &mut model, at);
        world.start();
        assert!(world.nbd("big").read_all() == model, "what is at {at} is the new data");
        world.forebay(&["status"]).expect(0);
        // What was noted then says nothing of later lives.
        world.kill();
        scribble(&world, &mut model, at);
        world.start();
        assert_ne!(world.volume("big")["used_bytes"], 0, "after a crash nobody can tell");
    }
}

#[test]
fn dirty_data_over_an_origin_that_was_written_to_waits_for_a_decision() {
    let (mut world, mut model) = stopped("writeback");
    let kept = model[DIRTY..][..4096].to_vec();
    scribble(&world, &mut model, AT_HEAD);
    for _ in 0..2 {
        world.start();
        let status = world.forebay(&["status"]).expect(3);
        status.says("offline").says("somebody wrote to it while forebayd was stopped");
        let refused = world.forebay(&["volume", "attach", "big"]).expect(4);
        refused.complains("--keep-dirty").complains("--drop-dirty");
        // An orderly stop does not make it right.
        world.stop();
    }
    world.start();
    world.forebay(&["volume", "attach", "big", "--keep-dirty"]).expect(0);
    assert_eq!(world.nbd("big").read(DIRTY as u64, 4096).unwrap(), kept);
    world.forebay(&["status"]).expect(0);
    world.stop();
    world.start();
    world.forebay(&["status"]).expect(0);
    assert_eq!(world.nbd("big").read(DIRTY as u64, 4096).unwrap(), kept, "it was decided");
}

#[test]
fn a_touch_alone_does_not_hold_dirty_data_up() {
    let (mut world, mut model) = stopped("writeback");
    scribble(&world, &mut model, FAR);
    world.start();
    world.forebay(&["status"]).expect(0);
    assert_eq!(world.nbd("big").read(DIRTY as u64, 4096).unwrap(), model[DIRTY..][..4096]);
}
