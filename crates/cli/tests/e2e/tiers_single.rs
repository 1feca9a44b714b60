//! One device of a tier of several that is emptied and taken out, as an administrator does it who
//! has found out that this disk, and none beside it, has to go.

use crate::tiers::{check, fill, tiers, wait_for, world};
use crate::world::{Said, World};
use serde_json::{Value, json};
use std::fs;
use std::process::Stdio;

const MIB: u64 = 1 << 20;

fn ask(world: &World, line: &str) -> Said {
    world.forebay(&line.split(' ').collect::<Vec<_>>())
}

/// A volume of two devices on the fast tier and one on the slow one, with so many mebibytes in it.
fn three(filled: u64) -> World {
    let world = world();
    world.empty_file("other.img", 32 * MIB);
    let line = "volume create d --tier fast.img,other.img --tier slow.img --size 60M";
    ask(&world, line).expect(0);
    fill(&world, "d", filled);
    world
}

fn device(world: &World, name: &str) -> Option<Value> {
    let shown = tiers(world, "d");
    let mut devices = shown["tiers"]["devices"].as_array().unwrap().iter();
    devices.find(|it| it["device"].as_str().unwrap().ends_with(name)).cloned()
}

fn used(world: &World, name: &str) -> u64 {
    device(world, name).unwrap()["used_bytes"].as_u64().unwrap()
}

#[test]
fn one_device_of_a_tier_of_several_is_emptied_and_taken_out() {
    let mut world = three(20);
    let fast = world.path("fast.img").display().to_string();
    let moves = used(&world, "fast.img");
    assert!(moves > 0);
    let planned = ask(&world, "tier evacuate d fast.img --dry-run").expect(0);
    planned.says(&format!("would move {}.0M off {fast} (of tier 0); at most", moves / MIB));
    let planned = ask(&world, "tier remove d fast.img --dry-run -o json").expect(0).json();
    let told = planned["told"].as_array().unwrap();
    assert_eq!(told[0]["told"], "would-evacuate");
    let (devices, whole) = (json!([fast]), json!(false));
    assert_eq!((&told[0]["devices"], &told[0]["whole_tier"]), (&devices, &whole));
    assert_eq!(told[1]["told"], "would-remove-tier");
    assert_eq!(device(&world, "fast.img").unwrap()["state"], "ok", "nothing has begun");

    ask(&world, "tier evacuate d fast.img").expect(0).says(&fast).says(" is empty");
    // The other one has room for what lived there: nothing goes to a slower tier.
    assert_eq!((used(&world, "fast.img"), used(&world, "slow.img")), (0, 0));
    assert_eq!(device(&world, "other.img").unwrap()["state"], "ok");
    let shown = tiers(&world, "d");
    let evacuations = json!([
        {"tier": 0, "devices": [fast], "whole_tier": false, "left_bytes": 0}
    ]);
    assert_eq!(shown["tiers"]["evacuations"], evacuations);
    let action =
        format!("forebay tier remove d {fast}; to use it again: forebay tier cancel d {fast}");
    ask(&world, "tier show d").expect(0).says(&format!("{fast}, 0 left on it")).says(&action);
    let empty = format!("{fast} is empty, and takes nothing new");
    ask(&world, "status").expect(0).says(&empty).says(&action);
    ask(&world, "tier evacuate d fast.img").expect(0).says(&format!("{fast} is empty already"));
    // Nothing new comes there, and a killed daemon knows that, too.
    world.kill();
    world.start();
    fill(&world, "d", 40);
    assert_eq!(used(&world, "fast.img"), 0);
    let gone = ask(&world, "tier remove d fast.img").expect(0);
    gone.says(&format!("{fast} is free: tier 0 of volume d goes on without it"));
    assert!(device(&world, "fast.img").is_none());
    check(&world, "d", 40);
    world.stop();
    fs::remove_file(world.path("fast.img")).unwrap();
    world.start();
    ask(&world, "status").expect(0);
    check(&world, "d", 40);
    // A new one takes its place, on the same tier.
    world.empty_file("fast.img", 32 * MIB);
    ask(&world, "tier add d fast.img --tier 0").expect(0);
    assert_eq!(device(&world, "fast.img").unwrap()["tier"], 0);
}

#[test]
fn several_devices_of_a_tier_leave_at_once() {
    let world = three(20);
    world.empty_file("third.img", 32 * MIB);
    ask(&world, "tier add d third.img --tier 0").expect(0);
    let fast = world.path("fast.img").display().to_string();
    let other = world.path("other.img").display().to_string();
    let said = ask(&world, "tier evacuate d other.img,fast.img").expect(0);
    said.says(&format!("all of {fast} and {other} ")).says(" is empty");
    // Each is told of alone, and can be used again alone.
    ask(&world, "tier show d").expect(0).says(&format!("forebay tier remove d {other}; "));
    ask(&world, "tier cancel d other.img").expect(0).says(&format!("{other} is in use again"));
    ask(&world, "tier cancel d other.img").expect(0).says(&format!("{other} is in use"));
    let shown = tiers(&world, "d");
    assert_eq!(shown["tiers"]["evacuations"][0]["devices"], json!([fast]));
    ask(&world, "tier remove d fast.img,other.img").expect(0).says("is free: tier 0 of volume d");
    check(&world, "d", 20);
    // What is left of the tier is the tier.
    let said = ask(&world, "tier remove d third.img").expect(0);
    said.says("tier 0 of volume d is gone").says("tier 1 is tier 0 now");
    check(&world, "d", 20);
}

#[test]
fn what_cannot_leave_is_refused_and_stays_as_it_was() {
    let world = three(50);
    world.empty_file("lone.img", 32 * MIB);
    world.empty_file("twin.img", 32 * MIB);
    ask(&world, "volume create two --tier lone.img,twin.img --size 40M").expect(0);
    for verb in ["evacuate", "remove", "cancel"] {
        let said = |named: &str, code: i32| {
            let said = ask(&world, &format!("tier {verb} d {named} --dry-run")).expect(code);
            let again = ask(&world, &format!("tier {verb} d {named}")).expect(code);
            assert_eq!(said.err, again.err);
            again
        };
        said("nosuch.img", 2).complains("volume d has no tier ").complains("nosuch.img, but 0 (");
        said("fast.img,nosuch.img", 2).complains("nosuch.img, but 0 (");
        // That of another volume.
        said("lone.img", 2).complains("lone.img, but 0 (");
        said("fast.img,fast.img", 2).complains("fast.img is named twice");
        said("fast.img,slow.img", 2).complains("slow.img is on another tier");
        said("7", 2).complains("volume d has no tier 7");
    }
    let said = ask(&world, "tier remove two lone.img,twin.img").expect(4);
    said.complains("is the only tier of volume two");
    // The other one is smaller than the volume.
    for verb in ["evacuate", "remove"] {
        let said = ask(&world, &format!("tier {verb} two lone.img")).expect(4);
        said.complains("volume two has 40.0M, and the other devices hold")
            .complains("--overcommit");
    }
    fill(&world, "two", 40);
    for verb in ["evacuate", "remove"] {
        let said = ask(&world, &format!("tier {verb} two lone.img --overcommit")).expect(4);
        said.complains("lone.img holds ").complains(", and the others have room for ");
    }
    ask(&world, "tier pause d").expect(0);
    ask(&world, "tier evacuate d fast.img --no-wait").expect(0);
    let busy = ask(&world, "tier evacuate d other.img").expect(1);
    busy.complains("another tier or device is being emptied").complains("forebay tier show");
    let shown = tiers(&world, "two");
    assert_eq!(shown["tiers"]["evacuations"], json!([]));
    assert_eq!(shown["tiers"]["overcommit"], false);
    check(&world, "two", 40);
    check(&world, "d", 50);
}

#[test]
fn an_evacuation_of_one_device_goes_on_after_a_kill_and_can_be_cancelled() {
    let mut world = three(50);
    let fast = world.path("fast.img").display().to_string();
    ask(&world, "tier set d --rate 4M").expect(0);
    let moves = used(&world, "fast.img");
    ask(&world, "tier evacuate d fast.img --no-wait").expect(0).says("are moving off ");
    wait_for("nothing moves", || used(&world, "fast.img") < moves);
    ask(&world, "status").expect(0).says(&format!("{fast} is being emptied, "));
    world.kill();
    world.start();
    let left = used(&world, "fast.img");
    assert!(left > 0, "it was killed too late");
    let again = ask(&world, "tier evacuate d fast.img --no-wait").expect(0);
    again.says(&format!("are moving off {fast} already"));
    ask(&world, "tier set d --rate 1G").expect(0);
    wait_for("it does not go on", || used(&world, "fast.img") == 0);
    check(&world, "d", 50);
    // Who watches hears that it was cancelled, and is not told that it is empty.
    ask(&world, "tier cancel d 0").expect(0);
    ask(&world, "tier pause d").expect(0);
    let mut watched = world.command(&["tier", "evacuate", "d", "other.img"]);
    let watched = watched.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let leaves = |world: &World| device(world, "other.img").unwrap()["leaving"] == true;
    wait_for("it does not begin", || leaves(&world));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    ask(&world, "tier cancel d other.img").expect(0);
    let said = Said::of(watched.wait_with_output().unwrap()).expect(1);
    said.complains("is in use again: somebody has cancelled its evacuation");
    assert!(!leaves(&world));
    check(&world, "d", 50);
}

/// A tier was taken for emptied as a whole: of the volume's room nothing of it counted, and
/// overcommit that was lent ended when something else was refused.
#[test]
fn the_rest_of_the_tier_counts_while_one_device_leaves() {
    let world = three(10);
    let rate = |world: &World| tiers(world, "d")["tiers"]["overcommit"] == true;
    ask(&world, "tier evacuate d slow.img --overcommit").expect(0);
    assert!(rate(&world));
    ask(&world, "tier evacuate d fast.img --overcommit").expect(0);
    ask(&world, "tier cancel d fast.img").expect(0);
    assert!(rate(&world), "the volume is larger than what takes data still");
    ask(&world, "tier cancel d slow.img").expect(0);
    assert!(!rate(&world));
    // Pins that the rest cannot hold are told.
    ask(&world, "tier pin d 0-81919 --tier 0").expect(0);
    let planned = ask(&world, "tier remove d fast.img --dry-run").expect(0);
    let waits = "40.0M are pinned to tier 0, which holds ";
    planned.says(waits).says("waits for it");
    ask(&world, "tier pin d 0-2047 --tier fast.img").expect(0).says("live on tier 0");
    ask(&world, "tier evacuate d fast.img").expect(0).says(waits);
    ask(&world, "tier pin d 0-81919 --tier 0").expect(4).complains("tier 0 holds 23.0M");
    ask(&world, "tier remove d fast.img").expect(0).says(waits);
    ask(&world, "tier show d").expect(0).says(waits);
    check(&world, "d", 10);
}

/// Memory of one size has one name.
#[test]
fn of_two_devices_with_one_name_the_one_that_leaves_is_meant() {
    let world = world();
    let line = "volume create d -y --tier ram:24M,ram:24M --tier slow.img --size 40M";
    ask(&world, line).expect(0);
    fill(&world, "d", 10);
    let leave = |world: &World| {
        let shown = tiers(world, "d");
        let devices = shown["tiers"]["devices"].as_array().unwrap().iter();
        devices.filter(|it| it["leaving"] == true).count()
    };
    for _ in 0..2 {
        ask(&world, "tier evacuate d ram:24M").expect(0).says(" is empty");
        assert_eq!(leave(&world), 1);
    }
    ask(&world, "tier cancel d ram:24M").expect(0).says(" is in use again");
    assert_eq!(leave(&world), 0);
    ask(&world, "tier evacuate d ram:24M,ram:24M").expect(0).says("tier 0 ").says(" is empty");
    assert_eq!(leave(&world), 2);
    let said = ask(&world, "tier evacuate d ram:24M,ram:24M,ram:24M").expect(2);
    said.complains(" is named twice");
    ask(&world, "tier remove d ram:24M,ram:24M").expect(4).complains("is the last memory");
    ask(&world, "tier cancel d 0").expect(0);
    ask(&world, "tier remove d ram:24M").expect(0).says(" is free: tier 0 of volume d");
    check(&world, "d", 10);
}

#[test]
fn one_device_of_a_tier_is_given_up_and_the_others_stay() {
    let mut world = three(40);
    let lost = used(&world, "other.img");
    assert!(lost > 0);
    ask(&world, "tier remove d other.img --drop-lost -y").expect(2).complains("it can be emptied");
    world.stop();
    fs::rename(world.path("other.img"), world.path("away.img")).unwrap();
    world.start();
    for verb in ["evacuate", "remove"] {
        let said = ask(&world, &format!("tier {verb} d other.img")).expect(4);
        said.complains("other.img is missing").complains("--drop-lost");
        // Beside it one can leave all the same.
        let planned = ask(&world, &format!("tier {verb} d fast.img --dry-run")).expect(0);
        planned.says("fast.img (of tier 0)");
    }
    let said = ask(&world, "tier remove d other.img --drop-lost -y").expect(0);
    said.says("is no device of volume d any more");
    assert!(device(&world, "other.img").is_none());
    let stays = device(&world, "fast.img").unwrap();
    assert_eq!((&stays["state"], &stays["tier"]), (&json!("ok"), &json!(0)));
    assert_eq!(tiers(&world, "d")["tiers"]["lost_bytes"].as_u64().unwrap(), lost);
    ask(&world, "tier evacuate d fast.img").expect(0).says("is empty");
}
