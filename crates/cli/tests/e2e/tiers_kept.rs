//! What an administrator chose for tiers, and what lies on devices, is not lost without a word.

use crate::tiers::{big, check, fill, tiers, wait_for, world};
use crate::world::{Said, World};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn ask(world: &World, line: &str) -> Said {
    world.forebay(&line.split(' ').collect::<Vec<_>>())
}

/// They were gone, and nothing said so.
#[test]
fn what_was_chosen_for_a_volume_comes_back_with_its_devices() {
    let mut world = world();
    let line = "volume create big --tier fast.img --tier slow.img";
    ask(&world, &format!("{line} --size 60M")).expect(0);
    fill(&world, "big", 10);
    ask(&world, "tier pin big 0-2047 --tier 1").expect(0);
    ask(&world, "tier set big --rate 5M --window 01:00-02:00 --placement spill").expect(0);
    ask(&world, "tier pause big").expect(0);
    ask(&world, "volume remove big --dry-run").expect(0).says("pins of 1.0M").says("the rate");
    let gone = ask(&world, "volume remove big").expect(0);
    gone.says("pins of 1.0M").says("the window").says("the pause").says("the placement spill");
    ask(&world, &format!("{line} --dry-run")).expect(0).says("pins of 1.0M");
    ask(&world, line).expect(0).says("as before: pins of 1.0M").says("the rate of 5.0M/s");
    let is_as_before = |world: &World| {
        let shown = tiers(world, "big")["tiers"].clone();
        assert_eq!((&shown["paused"], &shown["window"]), (&true.into(), &"01:00-02:00".into()));
        assert_eq!(
            (&shown["rate_bytes"], &shown["pinned_bytes"]),
            (&(5 * MIB).into(), &MIB.into())
        );
        assert_eq!(shown["placement"], "spill");
    };
    is_as_before(&world);
    world.kill();
    world.start();
    is_as_before(&world);
    check(&world, "big", 10);
    // What is asked for counts.
    ask(&world, "volume remove big").expect(0);
    ask(&world, &format!("{line} --placement heat")).expect(0);
    assert_eq!(tiers(&world, "big")["tiers"]["placement"], "heat");
    // On another machine nobody knows them.
    ask(&world, "volume detach big").expect(0);
    ask(&world, "volume remove big --dry-run").expect(0).says("pins of 1.0M");
    ask(&world, "volume remove big").expect(0).says("is forgotten").says("pins of 1.0M");
    world.stop();
    fs::remove_dir_all(world.state_dir()).unwrap();
    world.start();
    ask(&world, line).expect(0).says("was on the devices").says("defaults");
    assert_eq!(tiers(&world, "big")["tiers"]["paused"], false);
    check(&world, "big", 10);
}

/// A whole set was overwritten without being named.
#[test]
fn force_says_what_is_lost_and_asks() {
    let world = world();
    ask(&world, "volume create q --tier fast.img --tier slow.img --size 60M").expect(0);
    fill(&world, "q", 10);
    ask(&world, "volume remove q").expect(0);
    let line = "volume create v --tier fast.img --force";
    let planned = ask(&world, &format!("{line} --dry-run")).expect(0);
    planned.says("would ask first").says("member 0 of tiered volume \"q\"").says("60.0M");
    let said = ask(&world, line).expect(4);
    said.complains("this destroys member 0 of tiered volume \"q\"").complains("--yes");
    ask(&world, "volume create q --tier fast.img --tier slow.img").expect(0);
    check(&world, "q", 10);
    ask(&world, "volume remove q").expect(0);
    ask(&world, &format!("{line} -y")).expect(0);
    ask(&world, "tier add v slow.img --force --dry-run").expect(0).says("member 1 of tiered");
    let said = ask(&world, "tier add v slow.img --force").expect(4);
    said.complains("this destroys member 1 of tiered volume \"q\"").complains("--yes");
    ask(&world, "tier add v slow.img --force -y").expect(0);
    // Of empty devices nobody asks.
    world.empty_file("empty.img", 32 << 20);
    ask(&world, "volume create w --tier empty.img --force").expect(0);
}

#[test]
fn a_part_of_a_set_is_told_with_what_is_missing_of_it() {
    let world = world();
    ask(&world, "volume create q --tier fast.img --tier slow.img --size 60M").expect(0);
    ask(&world, "volume remove q").expect(0);
    let said = ask(&world, "volume create v --tier fast.img").expect(4);
    let said = said.complains("member 0 of tiered volume \"q\"").complains("volume create q");
    let said = said.complains("member 1").complains("slow.img").complains("identity");
    said.complains("forebay inspect").complains("--force");
    world.empty_file("empty.img", 32 << 20);
    let said = ask(&world, "volume create q --tier fast.img --tier empty.img").expect(4);
    said.complains("member 1").complains("to serve it");
}

/// Naming one device of two took both of them.
#[test]
fn one_device_of_a_tier_of_several_is_not_taken_for_the_tier() {
    let world = world();
    world.empty_file("third.img", 64 << 20);
    ask(&world, "volume create d --tier fast.img --tier slow.img,third.img --size 20M").expect(0);
    let states = || {
        let shown = tiers(&world, "d");
        let devices = shown["tiers"]["devices"].as_array().unwrap().iter();
        devices.map(|it| it["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    ask(&world, "tier evacuate d slow.img").expect(0).says("slow.img").says(" is empty");
    assert_eq!(states(), ["ok", "leaving", "ok"]);
    ask(&world, "tier cancel d slow.img").expect(0).says("slow.img is in use again");
    assert_eq!(states(), ["ok", "ok", "ok"]);
    ask(&world, "tier evacuate d slow.img,third.img").expect(0).says("is empty");
    ask(&world, "tier remove d third.img,slow.img").expect(0).says("is free");
    assert_eq!(tiers(&world, "d")["tiers"]["devices"].as_array().unwrap().len(), 1);
}

/// It stayed for ever, even when the evacuation was cancelled.
#[test]
fn overcommit_that_an_evacuation_was_given_ends_with_it() {
    let world = world();
    big(&world);
    fill(&world, "big", 5);
    let is_over = |world: &World| tiers(world, "big")["tiers"]["overcommit"] == true;
    ask(&world, "tier evacuate big 1 --overcommit").expect(0);
    assert!(is_over(&world));
    ask(&world, "tier cancel big 1").expect(0);
    assert!(!is_over(&world));
    // What was chosen stays.
    ask(&world, "tier set big --overcommit on").expect(0).says("overcommit");
    ask(&world, "tier evacuate big 1 --overcommit").expect(0);
    ask(&world, "tier cancel big 1").expect(0);
    assert!(is_over(&world));
    ask(&world, "tier set big --overcommit off").expect(0);
    assert!(!is_over(&world));
    ask(&world, "tier remove big 1 --overcommit").expect(0);
    assert!(is_over(&world));
    let said = ask(&world, "tier set big --overcommit off").expect(4);
    said.complains("volume big has").complains("forebay tier add");
}

/// It advised a resize that could not work.
#[test]
fn a_device_that_is_added_is_told_with_a_size_that_works() {
    let world = world();
    world.empty_file("a.img", 24 * MIB);
    world.empty_file("b.img", 24 * MIB);
    world.empty_file("c.img", 1 << 30);
    world.empty_file("d.img", 64 * MIB);
    ask(&world, "volume create e --tier a.img").expect(0);
    let planned = ask(&world, "tier add e b.img --use 80% --dry-run").expect(0);
    let more = ask(&world, "tier add e b.img --use 80%").expect(0);
    let device = tiers(&world, "e")["tiers"]["devices"][1]["bytes"].as_u64().unwrap() / MIB;
    planned.says(&format!("({device}.0M)"));
    let more = more.says(&format!("has {device}.0M more"));
    let capacity = tiers(&world, "e")["tiers"]["capacity_bytes"].as_u64().unwrap() / MIB;
    let advice = format!("forebay volume resize e --size {capacity}M");
    let more = more.says(&advice);
    assert!(!more.out.contains("the map has room"), "{more:#?}");
    ask(&world, advice.strip_prefix("forebay ").unwrap()).expect(0);
    let limited = ask(&world, "tier add e c.img").expect(0);
    let limited = limited.says("the map has room for 96.0M").says("needs a new volume");
    limited.says("forebay volume resize e --size 96M");
    let too_large = ask(&world, "volume resize e --size 200M").expect(4);
    too_large.complains("room for 96.0M").complains("action: ");
    let cut = ask(&world, "volume resize e --size 100%").expect(0);
    cut.says("to 96.0M").says("the map has room for 96.0M");
    let nothing = ask(&world, "tier add e d.img").expect(0);
    assert!(!nothing.out.contains("resize"), "{nothing:#?}");
}

#[test]
fn an_emptied_tier_says_how_to_go_on() {
    let world = world();
    ask(&world, "volume create big --tier fast.img --tier slow.img --size 60M").expect(0);
    fill(&world, "big", 20);
    ask(&world, "tier evacuate big 0").expect(0);
    for line in ["status", "tier show big"] {
        let said = ask(&world, line).expect(0).says("action: ");
        said.says("forebay tier remove big 0").says("forebay tier cancel big 0");
    }
    ask(&world, "tier cancel big 0").expect(0);
    let status = ask(&world, "status").expect(0);
    assert!(!status.out.contains("tier remove"), "{status:#?}");
    // A removal whose watching ends is an evacuation from then on.
    ask(&world, "tier pause big").expect(0);
    fill(&world, "big", 40);
    let mut watched = world.command(&["tier", "remove", "big", "0"]);
    let watched = watched.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("it does not begin", || ask(&world, "status").out.contains("is being emptied"));
    std::thread::sleep(Duration::from_millis(300));
    let pid = watched.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let said = Said::of(watched.wait_with_output().unwrap());
    said.complains("still have to move").complains("ask again: forebay tier remove big 0");
}

#[test]
fn what_a_dry_run_says_of_an_evacuation_knows_of_a_pause() {
    let world = world();
    ask(&world, "volume create big --tier fast.img --tier slow.img --size 60M").expect(0);
    fill(&world, "big", 10);
    ask(&world, "tier pause big").expect(0);
    let planned = ask(&world, "tier evacuate big 0 --dry-run").expect(0);
    let planned = planned.says("moves are paused").says("forebay tier resume big");
    assert!(!planned.out.contains("at least"), "{planned:#?}");
}

/// The share of 100 % was taken of what a division had cut.
#[test]
fn a_file_of_the_size_that_is_needed_is_large_enough() {
    let world = world();
    world.empty_file("small.img", MIB);
    let said = ask(&world, "volume create s --tier small.img").expect(4);
    let needed = said.err.split("small for a tier of this volume: ").nth(1).unwrap();
    let needed: u64 = needed.split(' ').next().unwrap().parse().unwrap();
    world.empty_file("small.img", needed - 1);
    ask(&world, "volume create s --tier small.img").expect(4);
    world.empty_file("small.img", needed);
    ask(&world, "volume create s --tier small.img").expect(0);
}

#[test]
fn a_device_that_is_there_is_not_put_elsewhere_without_a_word() {
    let world = world();
    big(&world);
    ask(&world, "tier add big slow.img").expect(0);
    ask(&world, "tier add big slow.img --tier 1").expect(0);
    ask(&world, "tier add big slow.img --before 1").expect(0);
    for wish in ["--tier 0", "--before 0"] {
        let said = ask(&world, &format!("tier add big slow.img {wish}")).expect(4);
        said.complains("slow.img is on tier 1 of volume big");
    }
}
