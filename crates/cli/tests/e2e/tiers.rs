//! Volumes over tiers, as an administrator has them.

use crate::world::{Said, World, pattern};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// A world with a small fast file and a larger slow one.
pub fn world() -> World {
    let world = World::started();
    world.empty_file("fast.img", 32 * MIB);
    world.empty_file("slow.img", 128 * MIB);
    world
}

fn create(world: &World, args: &[&str]) -> Said {
    world.forebay(&[&["volume", "create"][..], args].concat())
}

/// A volume of the two files.
pub fn big(world: &World) {
    create(world, &["big", "--tier", "fast.img", "--tier", "slow.img"]).expect(0);
}

pub fn fill(world: &World, name: &str, mebibytes: u64) {
    let mut nbd = world.nbd(name);
    for n in 0..mebibytes {
        nbd.write(n * MIB, &pattern(n + 1, MIB as usize)).unwrap();
    }
    nbd.flush().unwrap();
}

pub fn check(world: &World, name: &str, mebibytes: u64) {
    let mut nbd = world.nbd(name);
    for n in 0..mebibytes {
        assert!(nbd.read(n * MIB, MIB as u32) == Ok(pattern(n + 1, MIB as usize)), "MiB {n}");
    }
}

pub fn tiers(world: &World, name: &str) -> Value {
    world.forebay(&["tier", "show", name, "-o", "json"]).expect(0).json()
}

pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_lies_on_tiers_stays_through_kill_stop_and_removal() {
    let mut world = world();
    let said = create(&world, &["big", "--tier", "fast.img", "--tier", "slow.img", "--dry-run"]);
    said.expect(0).says("would make volume big").says("nothing was changed");
    big(&world);
    fill(&world, "big", 100);
    world.kill();
    world.start();
    check(&world, "big", 100);
    let shown = tiers(&world, "big");
    let devices = shown["tiers"]["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2, "{shown:#}");
    assert!(devices.iter().all(|it| it["used_bytes"].as_u64().unwrap() > 0), "{shown:#}");
    world.stop();
    world.start();
    check(&world, "big", 100);
    let again = create(&world, &["big", "--tier", "fast.img", "--tier", "slow.img", "-o", "json"]);
    assert_eq!(again.expect(0).json()["outcome"], "unchanged");
    world.forebay(&["volume", "detach", "big"]).expect(0).says("its tiers hold everything");
    world.forebay(&["volume", "attach", "big"]).expect(0);
    check(&world, "big", 3);
    world.forebay(&["volume", "remove", "big"]).expect(0).says("its tiers hold everything");
    world.forebay(&["volume", "show", "big"]).expect(1);
    // The devices say themselves what they are, whatever they are called now.
    fs::rename(world.path("slow.img"), world.path("moved.img")).unwrap();
    let args = ["big", "--tier", "fast.img", "--tier", "moved.img"];
    create(&world, &args).expect(0).says("was on the devices");
    check(&world, "big", 100);
    world.stop();
    world.start();
    check(&world, "big", 100);
}

#[test]
fn a_volume_with_memory_is_ephemeral_and_asks_first() {
    let mut world = world();
    let args = ["scratch", "--tier", "ram:24M", "--tier", "slow.img"];
    let said = create(&world, &args).expect(4);
    said.complains("will be lost when this machine is started anew").complains("--yes");
    let planned = create(&world, &[&args[..], &["--dry-run"]].concat()).expect(0);
    planned.says("would ask first").says("ephemeral");
    let durable = create(&world, &[&args[..], &["--durable"]].concat()).expect(2);
    durable.complains("does not outlive the machine").complains("as a cache");
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    file.as_file().set_len(32 * MIB).unwrap();
    let args_of_file = ["v", "--durable", "-y", "--tier", file.path().to_str().unwrap()];
    create(&world, &args_of_file).expect(2).complains("does not outlive the machine");
    create(&world, &[&args[..], &["-y"]].concat()).expect(0);
    assert_eq!(world.volume("scratch")["tiers"]["ephemeral"], true);
    world.forebay(&["status"]).expect(0).says("ephemeral");
    fill(&world, "scratch", 60);
    // It outlives the daemon, not what holds its memory.
    world.kill();
    world.start();
    check(&world, "scratch", 60);
    world.forebay(&["volume", "remove", "scratch"]).expect(4).complains("is ephemeral");
    world.kill();
    let holder = world.state_dir().join("holder.sock");
    let pattern = format!("hold {}", holder.display());
    assert!(Command::new("pkill").args(["-KILL", "-f", &pattern]).status().unwrap().success());
    world.start();
    let status = world.forebay(&["status"]).expect(0);
    status.says("began empty").says("the process that held its memory has ended");
    let mut nbd = world.nbd("scratch");
    for n in 0..60 {
        assert!(nbd.read(n * MIB, MIB as u32) == Ok(vec![0; MIB as usize]), "MiB {n}");
    }
    drop(nbd);
    fill(&world, "scratch", 60);
    check(&world, "scratch", 60);
    // Its users, and what it holds, are two things to agree to.
    let nbd = world.nbd("scratch");
    let remove = |more: &[&str]| world.forebay(&[&["volume", "remove", "scratch"], more].concat());
    remove(&["--yes"]).expect(4).complains("1 client(s) are connected");
    let said = remove(&["--force"]).expect(4).complains("is ephemeral: what it holds, ");
    said.complains("M, is lost with it").complains("--yes");
    let plan = remove(&["--force", "--dry-run", "-o", "json"]).expect(0).json();
    let risk = &plan["risks"][0];
    assert_eq!((&risk["told"], &risk["volume"]), (&json!("content-lost"), &json!("scratch")));
    // What moves just then takes two places.
    assert!(risk["lost_bytes"].as_u64().unwrap() >= 60 * MIB, "{plan}");
    assert_eq!(world.volume("scratch")["clients"], 1);
    drop(nbd);
    remove(&["--yes"]).expect(0).says("is removed");
}

#[test]
fn what_holds_memory_ends_when_nobody_can_ask_for_it() {
    let mut world = world();
    create(&world, &["scratch", "--tier", "ram:24M", "-y"]).expect(0);
    world.kill();
    let socket = world.state_dir().join("holder.sock");
    let pattern = format!("hold {}", socket.display());
    let is_there =
        || Command::new("pgrep").args(["-f", &pattern]).output().unwrap().status.success();
    assert!(is_there());
    fs::remove_file(socket).unwrap();
    wait_for("the holder goes on", || !is_there());
}

#[test]
fn after_another_start_of_the_machine_nothing_of_an_ephemeral_volume_is_served() {
    let mut world = world();
    create(&world, &["scratch", "--tier", "ram:24M", "--tier", "slow.img", "-y"]).expect(0);
    fill(&world, "scratch", 60);
    world.stop();
    let path = world.state_dir().join("state.json");
    let state = fs::read_to_string(&path).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(&path, state.replace(boot.trim(), "00000000-0000-0000-0000-000000000000")).unwrap();
    world.start();
    world.forebay(&["status"]).expect(0).says("the machine was started anew");
    let mut nbd = world.nbd("scratch");
    for n in 0..60 {
        assert!(nbd.read(n * MIB, MIB as u32) == Ok(vec![0; MIB as usize]), "MiB {n}");
    }
}

#[test]
fn a_missing_tier_takes_only_its_own_along_and_comes_back() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 100);
    // Room for what is written while the other is missing.
    wait_for("the fast tier is full", || {
        let fast = tiers(&world, "big")["tiers"]["devices"][0].clone();
        fast["used_bytes"].as_u64() < fast["bytes"].as_u64()
    });
    world.stop();
    fs::rename(world.path("slow.img"), world.path("away.img")).unwrap();
    world.start();
    let status = world.forebay(&["status"]).expect(3);
    status.says("slow.img, on tier 1, is missing").says("cannot be read");
    let shown = world.forebay(&["tier", "show", "big", "--lost"]).expect(0);
    shown.says("missing").says("lost: sectors");
    let mut nbd = world.nbd("big");
    let (mut lost, mut kept) = (0, 0);
    for n in 0..100 {
        match nbd.read(n * MIB, MIB as u32) {
            Ok(data) => {
                assert!(data == pattern(n + 1, MIB as usize), "MiB {n}");
                kept += 1;
            }
            Err(error) => {
                assert_eq!(error, 5);
                lost += 1;
            }
        }
    }
    assert!(lost > 60 && kept > 10, "{lost} {kept}");
    // What is new lives elsewhere, and stays when the tier is back.
    nbd.write(100 * MIB, &pattern(101, MIB as usize)).unwrap();
    drop(nbd);
    fs::rename(world.path("away.img"), world.path("slow.img")).unwrap();
    world.forebay(&["volume", "attach", "big", "--dry-run"]).expect(0).says("would use");
    world.forebay(&["volume", "attach", "big"]).expect(0).says("is used again");
    world.forebay(&["status"]).expect(0);
    check(&world, "big", 101);
}

#[test]
fn devices_that_are_of_use_to_somebody_are_refused_and_left_alone() {
    let world = world();
    let refused = |args: &[&str], code: i32, text: &str| {
        let create = |last: &[&str]| create(&world, &[args, last].concat());
        create(&["--dry-run"]).expect(code).complains(text);
        create(&["-y"]).expect(code).complains(text);
    };
    let two = ["v", "--tier", "fast.img", "--tier"];
    refused(&[&two[..], &["fast.img"]].concat(), 2, "is named twice");
    refused(&[&two[..], &["nowhere.img"]].concat(), 1, "no such file");
    world.empty_file("tiny.img", MIB);
    refused(&[&two[..], &["tiny.img"]].concat(), 4, "too small for a tier");
    refused(&[&two[..], &["slow.img", "--size", "10G"]].concat(), 4, "less than the volume has");
    refused(&[&two[..], &["slow.img", "--mode", "writeback"]].concat(), 2, "give --pool, too");
    refused(&[&two[..], &["ram:100T"]].concat(), 4, "can be given to them");
    refused(&[&two[..], &["ram:50%"]].concat(), 2, "give a size");
    let mkfs = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(world.path("slow.img")).status();
    assert!(mkfs.unwrap().success());
    refused(&[&two[..], &["slow.img"]].concat(), 4, "holds ext4 file system");
    world.forebay(&["pool", "create", "p", "ssd.img"]).expect(0);
    refused(&[&two[..], &["ssd.img"]].concat(), 4, "is a cache device of the pool p");
    world.forebay(&["volume", "create", "o", "--origin", "big.img"]).expect(0);
    refused(&[&two[..], &["big.img"]].concat(), 4, "is the origin of volume o");
    create(&world, &["v", "--tier", "fast.img"]).expect(0);
    refused(&["w", "--tier", "fast.img"], 4, "is a tier of volume v");
    world.forebay(&["pool", "create", "q", "fast.img"]).expect(4).complains("a tier of volume v");
    let origin = world.forebay(&["volume", "create", "x", "--origin", "fast.img"]);
    origin.expect(4).complains("is a tier of volume v");
    world.forebay(&["volume", "mode", "v", "writeback"]).expect(1).complains("has no cache");
    // With --force it is made of what held something.
    create(&world, &["w", "--tier", "slow.img"]).expect(4).complains("--force");
    create(&world, &["w", "--tier", "slow.img", "--force", "--yes"]).expect(0);
}

#[test]
fn tiers_that_are_full_say_so_before_and_then_refuse_writes() {
    let world = world();
    let args = ["thin", "--tier", "fast.img", "--size", "1G"];
    create(&world, &args).expect(4).complains("less than the volume has");
    create(&world, &[&args[..], &["--overcommit"]].concat()).expect(0);
    let larger = ["volume", "resize", "thin", "--dry-run", "--size"];
    world.forebay(&[&larger[..], &["4G"]].concat()).expect(0).says("would grow");
    world.forebay(&[&larger[..], &["5G"]].concat()).expect(4).complains("room for 4.0G");
    world.forebay(&["status"]).expect(0);
    let mut nbd = world.nbd("thin");
    let data = pattern(7, MIB as usize);
    let mut written = 0;
    let error = loop {
        match nbd.write(written * MIB, &data) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 32, "more than there is");
    };
    assert_eq!(error, 28, "ENOSPC");
    assert!(written > 15, "{written}");
    // What is there can be written, and read.
    nbd.write(0, &data).unwrap();
    assert_eq!(nbd.read((written - 1) * MIB, MIB as u32), Ok(data));
    nbd.flush().unwrap();
    world.forebay(&["status"]).expect(3).says("almost full");
}

#[test]
fn a_tier_is_emptied_while_it_is_used_and_explained() {
    let mut world = world();
    create(&world, &["big", "--tier", "fast.img", "--tier", "slow.img", "--size", "60M"]).expect(0);
    fill(&world, "big", 5);
    let said = world.forebay(&["explain", "big", "0-2047"]).expect(0);
    said.says("fast.img").says("on the fastest tier");
    fill(&world, "big", 50);
    world.forebay(&["explain", "big", "200000"]).expect(2).complains("behind the end");
    world.forebay(&["tier", "evacuate", "big", "1"]).expect(4).complains("the others have room");
    world.forebay(&["tier", "evacuate", "big", "7"]).expect(2).complains("has no tier 7");
    let planned = world.forebay(&["tier", "evacuate", "big", "fast.img", "--dry-run"]).expect(0);
    planned.says("would move").says("that takes at least");
    world.forebay(&["tier", "pause", "big"]).expect(0);
    world.forebay(&["tier", "show", "big"]).expect(0).says("paused");
    let waits = world.forebay(&["tier", "evacuate", "big", "0"]).expect(1);
    waits.complains("nothing has moved for 10 s").complains("moves are paused");
    world.forebay(&["tier", "cancel", "big", "0"]).expect(0);
    world.forebay(&["tier", "resume", "big"]).expect(0);
    world.forebay(&["tier", "evacuate", "big", "0", "--no-wait"]).expect(0);
    // It goes on by itself.
    world.kill();
    world.start();
    let used = |world: &World| tiers(world, "big")["tiers"]["devices"][0]["used_bytes"].as_u64();
    wait_for("the tier is not empty", || used(&world) == Some(0));
    check(&world, "big", 50);
    assert_eq!(tiers(&world, "big")["tiers"]["devices"][0]["state"], "leaving");
    world.forebay(&["tier", "cancel", "big", "fast.img"]).expect(0).says("in use again");
    assert_eq!(tiers(&world, "big")["tiers"]["devices"][0]["state"], "ok");
    check(&world, "big", 50);
}

#[test]
fn a_volume_over_tiers_grows() {
    let mut world = world();
    create(&world, &["big", "--tier", "fast.img", "--tier", "slow.img", "--size", "40M"]).expect(0);
    fill(&world, "big", 40);
    let more = world.forebay(&["volume", "resize", "big", "--size", "1G"]).expect(4);
    let more = more.complains("the tiers of volume big hold").complains("forebay tier add");
    let most = world.volume("big")["tiers"]["capacity_bytes"].as_u64().unwrap() / MIB;
    more.complains(&format!("as fits: forebay volume resize big --size {most}M"));
    // There is no origin that could be made smaller.
    let less = world.forebay(&["volume", "resize", "big", "--size", "20M"]).expect(4);
    assert!(!less.err.contains("origin"), "{less:#?}");
    less.complains("cannot be made smaller").complains("make a new volume");
    world.forebay(&["volume", "resize", "big", "--size", "90M"]).expect(0).says("has grown");
    fill(&world, "big", 90);
    world.kill();
    world.start();
    assert_eq!(world.nbd("big").bytes, 90 * MIB);
    check(&world, "big", 90);
}

#[test]
fn a_pool_caches_a_volume_over_tiers() {
    let mut world = world();
    world.forebay(&["pool", "create", "p", "ssd.img"]).expect(0);
    let args = ["big", "--tier", "fast.img", "--tier", "slow.img", "--pool", "p"];
    create(&world, &[&args[..], &["--mode", "writeback"]].concat()).expect(0);
    fill(&world, "big", 100);
    world.kill();
    world.start();
    check(&world, "big", 100);
    world.forebay(&["volume", "drain", "big"]).expect(0);
    check(&world, "big", 100);
    assert_eq!(world.volume("big")["pool"], "p");
    world.forebay(&["volume", "remove", "big"]).expect(0);
    world.forebay(&["pool", "destroy", "p", "-y"]).expect(0);
    create(&world, &args[..5]).expect(0).says("was on the devices");
    check(&world, "big", 100);
}

#[test]
fn an_older_tier_is_not_believed() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 100);
    world.stop();
    fs::copy(world.path("slow.img"), world.path("old.img")).unwrap();
    world.start();
    let mut nbd = world.nbd("big");
    for n in 0..100 {
        nbd.write(n * MIB, &pattern(n + 1001, MIB as usize)).unwrap();
    }
    nbd.flush().unwrap();
    drop(nbd);
    world.stop();
    fs::rename(world.path("old.img"), world.path("slow.img")).unwrap();
    world.start();
    world.forebay(&["status"]).expect(3).says("slow.img, on tier 1, is missing");
    world.forebay(&["volume", "attach", "big"]).expect(4).complains("older than what the volume");
    let mut nbd = world.nbd("big");
    for n in 0..100 {
        match nbd.read(n * MIB, MIB as u32) {
            Ok(data) => assert!(data == pattern(n + 1001, MIB as usize), "old data at MiB {n}"),
            Err(error) => assert_eq!(error, 5),
        }
    }
}

#[test]
fn both_maps_bad_is_an_error_and_nothing_is_written() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 30);
    world.stop();
    for name in ["fast.img", "slow.img"] {
        let file = fs::File::options().write(true).open(world.path(name)).unwrap();
        // All of the journal and the map, and none of the superblocks.
        for block in 20..2000 {
            file.write_all_at(&pattern(block, 4096), block * 4096).unwrap();
        }
    }
    let before = fs::read(world.path("slow.img")).unwrap();
    world.start();
    let status = world.forebay(&["status"]).expect(3);
    status.says("offline").says("the tiers cannot be opened");
    assert!(fs::read(world.path("slow.img")).unwrap() == before, "something was written");
    world.forebay(&["volume", "remove", "big"]).expect(0);
}

#[test]
fn devices_join_and_leave_while_the_volume_is_used() {
    let mut world = world();
    // Behind the last whole extent, so that none is trimmed there.
    let slow = File::options().write(true).open(world.path("slow.img")).unwrap();
    slow.write_all_at(&[0xEE; 4096], 128 * MIB + (64 << 10)).unwrap();
    let made_of = ["--tier", "fast.img", "--tier", "slow.img", "--size", "60M", "--force", "--yes"];
    create(&world, &[&["big"][..], &made_of].concat()).expect(0);
    fill(&world, "big", 60);
    world.empty_file("more.img", 96 * MIB);
    world.empty_file("first.img", 24 * MIB);
    let add = |args: &[&str]| world.forebay(&[&["tier", "add", "big"][..], args].concat());
    add(&["ram:24M"]).expect(4).complains("this volume does not");
    add(&["more.img", "--tier", "7"]).expect(2).complains("there is no tier 7");
    add(&["more.img", "--dry-run"]).expect(0).says("would add").says("as tier 2");
    add(&["more.img"]).expect(0).says("tier 2");
    add(&["more.img"]).expect(0).says("is a device of the tiers");
    add(&["first.img", "--before", "0"]).expect(0).says("tier 0");
    world.forebay(&["volume", "resize", "big", "--size", "150M"]).expect(0);
    fill(&world, "big", 150);
    world.kill();
    world.start();
    check(&world, "big", 150);
    let numbers = |world: &World| -> Vec<(u64, String)> {
        let shown = tiers(world, "big");
        let devices = shown["tiers"]["devices"].as_array().unwrap().clone();
        let number = |it: &Value| it["tier"].as_u64().unwrap();
        let name =
            |it: &Value| it["device"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        devices.iter().map(|it| (number(it), name(it))).collect()
    };
    let all = ["first.img", "fast.img", "slow.img", "more.img"];
    let wanted: Vec<_> = (0..).zip(all.map(String::from)).collect();
    assert_eq!(numbers(&world), wanted);
    // Too much for the rest.
    world.forebay(&["tier", "remove", "big", "slow.img"]).expect(4).complains("room for");
    let mut nbd = world.nbd("big");
    nbd.discard(60 * MIB, 90 * MIB as u32).unwrap();
    nbd.flush().unwrap();
    drop(nbd);
    let remove = ["tier", "remove", "big", "slow.img", "--overcommit"];
    let planned = world.forebay(&[&remove[..], &["--dry-run"]].concat()).expect(0);
    planned.says("would move").says("would remove tier 2");
    world.forebay(&remove).expect(0).says("is free");
    assert_eq!(numbers(&world).len(), 3);
    check(&world, "big", 60);
    // It is free, and nothing is on it.
    assert!(fs::read(world.path("slow.img")).unwrap().iter().all(|byte| *byte == 0));
    create(&world, &["other", "--tier", "slow.img"]).expect(0);
    world.kill();
    world.start();
    check(&world, "big", 60);
    assert_eq!(numbers(&world).len(), 3);
}

#[test]
fn a_device_that_will_never_be_back_is_given_up() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 100);
    world.stop();
    fs::rename(world.path("slow.img"), world.path("away.img")).unwrap();
    world.start();
    let remove = ["tier", "remove", "big", "slow.img", "--drop-lost"];
    world.forebay(&remove).expect(4).complains("would give up");
    world.forebay(&[&remove[..], &["-y"]].concat()).expect(0).says("is lost, and fails to be read");
    let mut nbd = world.nbd("big");
    let lost: Vec<u64> = (0..100).filter(|n| nbd.read(n * MIB, 4096) == Err(5)).collect();
    assert!(lost.len() > 60, "{lost:?}");
    // The fast tier is full: something has to go first.
    let kept = (0..100).find(|n| !lost.contains(n)).unwrap();
    nbd.discard(kept * MIB, MIB as u32).unwrap();
    nbd.flush().unwrap();
    let data = pattern(lost[0] + 1, MIB as usize);
    wait_for("room for a mebibyte", || nbd.write(lost[0] * MIB, &data) == Ok(()));
    assert!(nbd.read(lost[0] * MIB, MIB as u32) == Ok(pattern(lost[0] + 1, MIB as usize)));
    nbd.flush().unwrap();
    drop(nbd);
    // Whatever comes back is no member any more.
    fs::rename(world.path("away.img"), world.path("slow.img")).unwrap();
    world.stop();
    world.start();
    let mut nbd = world.nbd("big");
    for n in 0..100 {
        match nbd.read(n * MIB, MIB as u32) {
            Ok(data) if n == kept => assert!(data == vec![0; MIB as usize], "MiB {n}"),
            Ok(data) => assert!(data == pattern(n + 1, MIB as usize), "MiB {n}"),
            Err(error) => assert!(error == 5 && lost[1..].contains(&n), "MiB {n}"),
        }
    }
}

#[test]
fn what_is_pinned_lives_where_it_should_also_after_a_restart() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 60);
    let on = |world: &World, lba: &str| {
        let said = world.forebay(&["explain", "big", lba, "-o", "json"]).expect(0).json();
        said["extents"][0]["tier"].as_u64().unwrap()
    };
    let pin = ["tier", "pin", "big", "0-4095", "--tier"];
    world.forebay(&[&pin[..], &["9"]].concat()).expect(2).complains("has no tier 9");
    world.forebay(&[&pin[..], &["1", "--dry-run"]].concat()).expect(0).says("2.0M");
    world.forebay(&[&pin[..], &["slow.img"]].concat()).expect(0).says("live on tier 1");
    world.forebay(&["tier", "pin", "big", "4096-6143", "--tier", "0"]).expect(0);
    wait_for("what is pinned does not move", || on(&world, "0") == 1 && on(&world, "4096") == 0);
    world.forebay(&["tier", "show", "big"]).expect(0).says("3.0M");
    world.kill();
    world.start();
    let mut nbd = world.nbd("big");
    for _ in 0..200 {
        nbd.read(0, 65536).unwrap();
    }
    drop(nbd);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((on(&world, "0"), on(&world, "4096")), (1, 0));
    world.forebay(&["explain", "big", "0"]).expect(0).says("pinned");
    world.forebay(&["tier", "unpin", "big", "0-6143"]).expect(0);
    world.forebay(&["tier", "set", "big", "--rate", "0"]).expect(2).complains("such as 100M");
    world.forebay(&["tier", "set", "big", "--rate", "100M", "--placement", "spill"]).expect(0);
    world.forebay(&["tier", "show", "big"]).expect(0).says("spill").says("100M/s");
    check(&world, "big", 60);
}

/// What `--use` leaves of a device is trimmed when the device becomes one of a tier, be it later.
#[test]
fn what_is_not_used_of_a_device_is_trimmed() {
    let world = world();
    let full = |name: &str| fs::write(world.path(name), vec![7; 32 << 20]).unwrap();
    let half_is_there = |name: &str| {
        let blocks = fs::metadata(world.path(name)).unwrap().blocks() * 512;
        assert!((16 * MIB..18 * MIB).contains(&blocks), "{name}: {blocks}");
    };
    ["fast.img", "third.img"].into_iter().for_each(full);
    create(&world, &["big", "--tier", "fast.img", "--use", "50%", "--force", "-y"]).expect(0);
    half_is_there("fast.img");
    world.forebay(&["tier", "add", "big", "third.img", "--use", "50%", "--force", "-y"]).expect(0);
    half_is_there("third.img");
}
