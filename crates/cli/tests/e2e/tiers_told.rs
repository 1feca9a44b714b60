//! What is told of tiers by those who change them: each of these was said otherwise, and was wrong.

use crate::tiers::{big, check, fill, tiers, wait_for, world};
use crate::world::{Said, World};
use serde_json::Value;
use std::fs::{self, File};

const MIB: u64 = 1 << 20;

fn ask(world: &World, line: &str) -> Said {
    world.forebay(&line.split(' ').collect::<Vec<_>>())
}

/// Cuts a file, and has that noticed by what fails there.
fn cut(world: &World, name: &str, bytes: u64) {
    let mut nbd = world.nbd("big");
    File::options().write(true).open(world.path(name)).unwrap().set_len(bytes).unwrap();
    let mut at = 0;
    wait_for("it is not noticed", || {
        let _ = nbd.read(at * MIB, 4096);
        at = (at + 1) % 12;
        let shown = tiers(world, "big");
        let devices = shown["tiers"]["devices"].as_array().unwrap();
        devices.iter().any(|it| it["cut_to_bytes"].is_u64() && it["failing"] == true)
    });
}

/// What had just moved there came back from its old places, and was called lost.
#[test]
fn what_is_lost_with_a_device_is_what_cannot_be_read_any_more() {
    let world = world();
    big(&world);
    fill(&world, "big", 12);
    // What moves now is not confirmed for a while.
    ask(&world, "tier set big --rate 1G").expect(0);
    ask(&world, "tier pin big 0-24575 --tier 1").expect(0);
    let lives = |name: &str| {
        let shown = tiers(&world, "big");
        let devices = shown["tiers"]["devices"].as_array().unwrap();
        let own = devices.iter().find(|it| it["device"].as_str().unwrap().ends_with(name));
        own.unwrap()["used_bytes"].as_u64().unwrap()
    };
    wait_for("it does not move", || lives("fast.img") == 0);
    cut(&world, "slow.img", MIB);
    let planned = ask(&world, "tier remove big slow.img --drop-lost --dry-run").expect(0);
    planned.says("at most");
    let said = ask(&world, "tier remove big slow.img --drop-lost -y -o json").expect(0).json();
    let told = said["told"].as_array().unwrap();
    let given_up = told.iter().find(|it| it["told"] == "device-given-up").unwrap();
    let lost = tiers(&world, "big")["lost"].clone();
    let lost: u64 = lost.as_array().unwrap().iter().map(|it| it[1].as_u64().unwrap()).sum();
    assert_eq!(given_up["lost_bytes"], lost, "{said:#}");
}

/// It named a `volume create` that is refused while the volume is there.
#[test]
fn a_device_that_was_given_up_is_added_again_only_with_force() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 40);
    world.stop();
    fs::rename(world.path("slow.img"), world.path("away.img")).unwrap();
    world.start();
    ask(&world, "tier pin big 0-20479 --tier 0").expect(0);
    ask(&world, "tier remove big slow.img --drop-lost -y").expect(0);
    let refused = ask(&world, "tier add big away.img").expect(4);
    assert!(!refused.err.contains("volume create"), "{refused:#?}");
    refused.complains("which goes on without it").complains("--force");
    ask(&world, "tier add big away.img --force -y").expect(0);
    ask(&world, "status").expect(3).says("cannot be read");
}

#[test]
fn pins_that_have_no_room_after_a_device_was_given_up_are_told() {
    let mut world = world();
    big(&world);
    world.empty_file("third.img", 64 * MIB);
    ask(&world, "tier add big third.img --tier 0").expect(0);
    ask(&world, "tier pin big 0-122879 --tier 0").expect(0);
    world.stop();
    fs::rename(world.path("third.img"), world.path("away.img")).unwrap();
    world.start();
    let said = ask(&world, "tier remove big third.img --drop-lost -y").expect(0);
    said.says("60.0M are pinned to tier 0, which holds ").says("waits for it");
    ask(&world, "tier show big").expect(0).says("60.0M are pinned to tier 0, which holds ");
}

/// Its memory is gone at once, and it was said that its tiers hold everything until a restart.
#[test]
fn nothing_holds_an_ephemeral_volume_that_was_removed() {
    let world = world();
    ask(&world, "volume create scratch -y --size 8M --tier ram:24M --tier slow.img").expect(0);
    fill(&world, "scratch", 4);
    ask(&world, "volume detach scratch").expect(0).says("until the machine is started anew");
    ask(&world, "volume attach scratch").expect(0);
    let removed = ask(&world, "volume remove scratch -y").expect(0);
    assert!(!removed.out.contains("hold everything"), "{removed:#?}");
    removed.says("what it held is gone with its memory").says("slow.img may be used anew");
    let create = "volume create other --tier fast.img --tier slow.img";
    let refused = ask(&world, create).expect(4);
    assert!(!refused.err.contains("(member 0)"), "{refused:#?}");
    refused.complains("which had memory and has ended with that").complains("--force");
    ask(&world, &format!("{create} --force -y")).expect(0);
}

/// A volume whose moves copy a byte a second never empties a tier.
#[test]
fn a_rate_at_which_nothing_would_end_is_refused() {
    let world = world();
    big(&world);
    for rate in ["1", "0", "1000K"] {
        let refused = ask(&world, &format!("tier set big --rate {rate}")).expect(2);
        refused.complains("1.0M/s at least").complains("forebay tier pause big");
    }
    assert_eq!(tiers(&world, "big")["tiers"]["rate_bytes"], 20 * MIB);
    ask(&world, "tier set big --rate 1M").expect(0).says("1.0M/s");
}

#[test]
fn the_columns_of_devices_have_what_is_wrong_with_them() {
    let world = world();
    big(&world);
    fill(&world, "big", 4);
    let shown = ask(&world, "tier show big -o csv").expect(0);
    let mut lines = shown.out.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let heading = lines.next().unwrap();
    let column = |key| heading.iter().position(|it| *it == key).unwrap_or_else(|| panic!("{key}"));
    let [map, failing, waits] = ["holds_map", "failing", "waits_s"].map(column);
    for line in lines {
        assert!(["yes", "no"].contains(&line[map]), "{shown:#?}");
        assert_eq!((line[failing], line[waits]), ("no", "0"), "{shown:#?}");
    }
    cut(&world, "fast.img", MIB);
    let shown = tiers(&world, "big");
    let failing: Vec<&Value> =
        shown["tiers"]["devices"].as_array().unwrap().iter().map(|it| &it["failing"]).collect();
    let csv = ask(&world, "tier show big -o csv").expect(0).out;
    let yes = csv.lines().skip(1).filter(|it| it.contains(",yes,")).count();
    assert!(yes >= failing.iter().filter(|it| **it == &Value::Bool(true)).count(), "{csv}");
}

/// One that lost a part of it said ",;".
#[test]
fn what_tiers_lack_is_a_sentence() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 40);
    ask(&world, "tier pin big 0-2047 --tier 0").expect(0);
    world.stop();
    fs::rename(world.path("slow.img"), world.path("away.img")).unwrap();
    world.start();
    let removed = ask(&world, "volume remove big").expect(0);
    removed.says("slow.img, which is missing; what was chosen for it (pins of 1.0M)");
    fs::rename(world.path("away.img"), world.path("slow.img")).unwrap();
    big(&world);
    check(&world, "big", 40);
}
