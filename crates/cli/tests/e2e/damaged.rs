//! A cache device that is damaged, or whose file system is full.

use crate::world::{ORIGIN_BYTES, World, pattern};
use serde_json::Value;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

fn overwrite(world: &World, offset: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(world.path("ssd.img")).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// A daemon that was stopped twice, so that there are two checkpoints, and what its volume holds.
fn stopped(mode: &str) -> (World, Vec<u8>) {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", mode]).expect(0);
    let mut model = pattern(1, ORIGIN_BYTES);
    for round in 0..2 {
        let data = pattern(50 + round, 8192);
        let at = 1 << (20 + round);
        world.nbd("big").write(at, &data).unwrap();
        model[at as usize..][..8192].copy_from_slice(&data);
        world.stop();
        world.start();
    }
    world.stop();
    (world, model)
}

/// Where the checkpoints begin and end, the newest first.
fn checkpoints(world: &World) -> Vec<Range<u64>> {
    let found = world.forebay(&["inspect", "ssd.img", "-o", "json"]).expect(0).json();
    let mut found: Vec<Value> = found["checkpoints"].as_array().unwrap().clone();
    found.sort_by_key(|one| std::cmp::Reverse(one["generation"].as_u64()));
    let place = |one: &Value| {
        let (offset, bytes) = (one["offset"].as_u64().unwrap(), one["bytes"].as_u64().unwrap());
        offset..offset + bytes
    };
    found.iter().map(place).collect()
}

#[test]
fn one_superblock_copy_is_enough_and_the_log_says_which() {
    for (name, damage) in [("zeroed", vec![0; 32 << 10]), ("corrupt", b"wrong".to_vec())] {
        for (offset, bad, used) in [(0, "first", "second"), (65536, "second", "first")] {
            let (mut world, model) = stopped("writeback");
            // Not the magic number: the checksum has to tell.
            let at = offset + if name == "corrupt" { 4096 } else { 0 };
            overwrite(&world, at, &damage);
            world.start();
            assert_eq!(world.volume("big")["state"], "ok", "{name}, {bad}");
            assert!(world.nbd("big").read_all() == model, "{name}, {bad}");
            let log = world.log();
            assert!(log.contains(&format!("the {bad} superblock copy was passed over")), "{log}");
            assert!(log.contains(&format!("the {used} one (generation ")), "{log}");
        }
    }
}

#[test]
fn a_damaged_checkpoint_costs_a_longer_start_and_is_told() {
    // The index, which is read last, and what follows it, which is read first.
    let places: [fn(Range<u64>) -> u64; 2] = [|place| place.start, |place| place.end - 4096];
    for place in places {
        let (mut world, model) = stopped("writeback");
        overwrite(&world, place(checkpoints(&world).remove(0)), &[0x55; 512]);
        world.start();
        assert_eq!(world.volume("big")["state"], "ok");
        assert!(world.nbd("big").read_all() == model);
        let log = world.log();
        assert!(log.contains("is damaged; trying the next copy"), "{log}");
    }
}

#[test]
fn two_damaged_checkpoints_stop_a_volume_with_dirty_data_and_no_other() {
    let (mut world, _) = stopped("writeback");
    checkpoints(&world).iter().for_each(|at| overwrite(&world, at.start, &[0x55; 512]));
    world.start();
    let status = world.forebay(&["status"]).expect(3).says("offline");
    status.says("the checkpoint is damaged, and so is the one before").says("--drop-dirty");
    let (mut world, model) = stopped("writethrough");
    checkpoints(&world).iter().for_each(|at| overwrite(&world, at.start, &[0x55; 512]));
    world.start();
    world.forebay(&["status"]).expect(3).says("degraded").says("from its origin alone");
    assert!(world.nbd("big").read_all() == model);
}

#[test]
fn a_damaged_record_loses_what_it_held_and_nothing_else() {
    let (mut world, model) = stopped("writethrough");
    let found = world.forebay(&["inspect", "ssd.img", "-o", "json"]).expect(0).json();
    let segment = &found["segments"][0];
    let payload = segment["offset"].as_u64().unwrap() + 4096;
    overwrite(&world, payload, &[0xaa; 64]);
    world.start();
    assert!(world.nbd("big").read_all() == model, "a bad clean block is read from the origin");
}

#[test]
fn a_truncated_device_is_named_with_both_sizes() {
    let (mut world, _) = stopped("writeback");
    let device = File::options().write(true).open(world.path("ssd.img")).unwrap();
    let whole = fs::read(world.path("ssd.img")).unwrap();
    device.set_len(20 << 20).unwrap();
    world.start();
    let status = world.forebay(&["status"]).expect(3).says("do not use the origin");
    status.says("shrank from 67108864 to 20971520 bytes").says("forebay volume attach big");
    fs::write(world.path("ssd.img"), whole).unwrap();
    world.forebay(&["volume", "attach", "big"]).expect(0);
}

/// The file-size limit of the daemon stands in for a full file system: the kernel refuses in the
/// same place.
#[test]
fn a_full_file_system_under_the_cache_is_told_with_what_to_do() {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"]).expect(0);
    world.stop();
    world.start_limited(8 << 20);
    let mut client = world.nbd("big");
    let data = pattern(9, 256 << 10);
    let mut model = pattern(1, ORIGIN_BYTES);
    let mut refused = Vec::new();
    for at in (0..ORIGIN_BYTES).step_by(2 * data.len()) {
        match client.write(at as u64, &data) {
            Ok(()) => model[at..][..data.len()].copy_from_slice(&data),
            Err(_) => refused.push(at),
        }
    }
    drop(client);
    let status = world.forebay(&["status"]).expect(3).says("degraded");
    let status = status.says("make room on the file system that it lies on, then start again");
    assert!(status.out.contains("ssd.img failed at"), "{status:#?}");
    if world.volume("big")["dirty_bytes"] != 0 {
        let said = world.forebay(&["volume", "drain", "big"]).expect(1);
        said.complains("the cache device failed").complains("start forebayd again");
    }
    assert!(!refused.is_empty());
    // With room again, everything that was acknowledged is there. A block of a write that was
    // refused is old or new.
    world.kill();
    world.start();
    assert_eq!(world.volume("big")["state"], "ok");
    let now = world.nbd("big").read_all();
    for at in (0..ORIGIN_BYTES).step_by(4096) {
        let write = at / (2 * data.len()) * (2 * data.len());
        let may_be_new = refused.contains(&write) && at < write + data.len();
        let is = &now[at..][..4096];
        let is_new = || is == &data[at - write..][..4096];
        assert!(is == &model[at..][..4096] || may_be_new && is_new(), "{at}: {refused:?}");
    }
}
