//! Devices of tiers that are not to be believed, though no other device says so: copies of all that
//! is there, and files that were cut before the daemon was started.

use crate::tiers::{big, check, fill, tiers, wait_for, world};
use crate::world::{Said, World, pattern};
use std::fs::{self, File};

const MIB: u64 = 1 << 20;

fn ask(world: &World, line: &str) -> Said {
    world.forebay(&line.split(' ').collect::<Vec<_>>())
}

fn copy(world: &World, names: &[&str], ending: (&str, &str)) {
    for name in names {
        let of = |ending: &str| world.path(&format!("{name}{ending}"));
        fs::copy(of(ending.0), of(ending.1)).unwrap();
    }
}

fn rewrite(world: &World) {
    let mut nbd = world.nbd("big");
    nbd.write(0, &pattern(77, MIB as usize)).unwrap();
    nbd.flush().unwrap();
}

/// A volume that was stopped, copied to `.old`, started and written to again.
fn with_older_copies() -> World {
    let mut world = world();
    big(&world);
    fill(&world, "big", 40);
    world.stop();
    copy(&world, &NAMES, ("", ".old"));
    world.start();
    rewrite(&world);
    world
}

const NAMES: [&str; 2] = ["fast.img", "slow.img"];

/// With the other device missing, or as old, an older copy was served as if nothing had happened.
#[test]
fn copies_from_before_the_last_start_are_refused_where_nothing_newer_is_here() {
    for (restored, missing) in [(&NAMES[..], None), (&NAMES[..1], Some("slow.img"))] {
        let mut world = with_older_copies();
        world.kill();
        copy(&world, &NAMES, ("", ".new"));
        copy(&world, restored, (".old", ""));
        if let Some(missing) = missing {
            fs::remove_file(world.path(missing)).unwrap();
        }
        world.start();
        let status = ask(&world, "status").expect(3);
        status.says("older than what it had").says("forebay volume remove big");
        assert_eq!(world.volume("big")["state"], "offline");
        ask(&world, "volume attach big").expect(4).complains("older than what it had");
        copy(&world, &NAMES, (".new", ""));
        ask(&world, "volume attach big").expect(0);
        ask(&world, "status").expect(0);
        let mut nbd = world.nbd("big");
        assert!(nbd.read(0, MIB as u32) == Ok(pattern(77, MIB as usize)));
    }
}

/// What somebody says twice is done: the volume is forgotten, and made of what is there.
#[test]
fn copies_are_taken_after_the_volume_was_removed() {
    let mut world = with_older_copies();
    world.stop();
    copy(&world, &NAMES, (".old", ""));
    world.start();
    ask(&world, "status").expect(3).says("older than what it had");
    ask(&world, "volume remove big").expect(0);
    ask(&world, "volume create big --tier fast.img --tier slow.img").expect(0);
    check(&world, "big", 40);
    world.stop();
    world.start();
    check(&world, "big", 40);
}

/// A copy of the same life, put back after it was stopped in order.
#[test]
fn a_copy_from_before_an_orderly_stop_is_refused() {
    let mut world = World::started();
    world.empty_file("only.img", 64 * MIB);
    ask(&world, "volume create big --tier only.img").expect(0);
    fill(&world, "big", 10);
    copy(&world, &["only.img"], ("", ".old"));
    rewrite(&world);
    world.stop();
    copy(&world, &["only.img"], (".old", ""));
    world.start();
    ask(&world, "status").expect(3).says("older than what it had");
}

/// It was only in memory that the file had been cut: the next start read zeros.
#[test]
fn a_file_that_was_cut_is_not_believed_after_a_kill_though_it_has_its_size_again() {
    let mut world = world();
    let create = "volume create big --tier fast.img --tier slow.img --placement spill";
    ask(&world, create).expect(0);
    fill(&world, "big", 100);
    let resize = |world: &World, bytes| {
        File::options().write(true).open(world.path("slow.img")).unwrap().set_len(bytes).unwrap();
    };
    resize(&world, 8 * MIB);
    wait_for("nobody has noticed", || {
        tiers(&world, "big")["tiers"]["devices"][1]["state"] == "cut"
    });
    let state = world.state_dir().join("state.json");
    wait_for("it is not remembered", || fs::read_to_string(&state).unwrap().contains("\"cut\""));
    world.kill();
    resize(&world, 128 * MIB);
    world.start();
    assert_eq!(tiers(&world, "big")["tiers"]["devices"][1]["state"], "missing");
    let slow = world.text("slow.img");
    let was_cut = format!("{slow}, on tier 1, was cut while it was in use, and is not used");
    ask(&world, "status").expect(3).says(&was_cut).says(&format!("action: restore {slow}"));
    let refused = ask(&world, "volume attach big").expect(4);
    refused.complains(&format!("{slow} was cut")).complains("--drop-lost");
    let mut nbd = world.nbd("big");
    assert!(nbd.read(0, MIB as u32) == Ok(pattern(1, MIB as usize)));
    assert!(nbd.read(99 * MIB, 4096).is_err(), "zeros for what was cut off");
    drop(nbd);
    // Whoever takes it out of service, puts it back and says so is believed.
    ask(&world, "volume detach big --force").expect(0);
    ask(&world, "volume attach big");
    assert_eq!(tiers(&world, "big")["tiers"]["devices"][1]["state"], "ok");
}
