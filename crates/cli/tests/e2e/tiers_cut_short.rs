//! Devices that were being added to the tiers of a volume, or removed, when the daemon was killed
//! or the machine went down: what the daemon remembers of them is not what the set says. Each was
//! called missing at every start, and nothing but `volume remove` ended that.

use crate::tiers::{big, check, fill, tiers, world};
use crate::world::{Said, World};
use serde_json::{Value, json};
use std::fs;

const MIB: u64 = 1 << 20;

fn ask(world: &World, line: &str) -> Said {
    world.forebay(&line.split(' ').collect::<Vec<_>>())
}

fn state(world: &World) -> Value {
    serde_json::from_slice(&fs::read(world.state_dir().join("state.json")).unwrap()).unwrap()
}

fn put_state(world: &World, state: &Value) {
    let path = world.state_dir().join("state.json");
    fs::write(path, serde_json::to_vec(state).unwrap()).unwrap();
}

fn remembered(world: &World) -> Vec<(String, u64)> {
    let of = |it: &Value| {
        let uri = it["uri"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        (uri, it["tier"].as_u64().unwrap())
    };
    state(world)["tiered"][0]["members"].as_array().unwrap().iter().map(of).collect()
}

fn both() -> Vec<(String, u64)> {
    vec![("fast.img".to_owned(), 0), ("slow.img".to_owned(), 1)]
}

/// A device that is remembered and that the set knows nothing of, on this tier.
fn stray(world: &World, tier: u64) -> Value {
    json!({
        "uri": world.text("new.img"), "uuid": "0123456789abcdef0123456789abcdef", "tier": tier,
        "use_percent": 100,
    })
}

#[test]
fn a_device_that_was_being_added_before_a_kill_is_not_called_missing() {
    let mut world = world();
    world.empty_file("new.img", 32 * MIB);
    big(&world);
    fill(&world, "big", 4);
    ask(&world, "tier pin big 0-2047 --tier 1").expect(0);
    for tier in [1, 2, 15] {
        world.kill();
        let mut before = state(&world);
        let tiered = &mut before["tiered"][0];
        if tier == 1 {
            // Before the slow one: that had another number already, and what is pinned to it, too.
            (tiered["members"][1]["tier"], tiered["pins"][0]["tier"]) = (2.into(), 2.into());
        }
        tiered["members"].as_array_mut().unwrap().push(stray(&world, tier));
        put_state(&world, &before);
        world.start();
        ask(&world, "status").expect(0);
        assert_eq!(remembered(&world), both());
        assert_eq!(state(&world)["tiered"][0]["pins"][0]["tier"], 1);
    }
    let text = "new.img is no device of its tiers: it was being added or removed when that was cut";
    assert_eq!(world.log().matches(text).count(), 3, "{}", world.log());
    world.stop();
    world.start();
    assert_eq!(world.log().matches(text).count(), 3, "it is said once");
    ask(&world, "tier add big new.img").expect(0).says("tier 2");
    let said = state(&world);
    assert!(said["tiered"][0]["members"][2]["unsettled"].is_null(), "{said:#}");
    check(&world, "big", 4);
}

#[test]
fn a_device_that_has_left_before_a_kill_is_not_called_missing() {
    let mut world = world();
    world.empty_file("new.img", 64 * MIB);
    big(&world);
    ask(&world, "tier add big new.img").expect(0);
    fill(&world, "big", 4);
    ask(&world, "tier pin big 4096-6143 --tier 2").expect(0);
    let before = state(&world);
    ask(&world, "tier remove big 2").expect(0).says("is free");
    world.kill();
    put_state(&world, &before);
    world.start();
    ask(&world, "status").expect(0);
    assert_eq!(remembered(&world), both());
    assert_eq!(tiers(&world, "big")["tiers"]["pinned_bytes"], 0);
    ask(&world, "tier remove big new.img").expect(2).complains("has no tier");
    ask(&world, "tier add big new.img").expect(0);
    check(&world, "big", 4);
}

/// After a start of the machine an ephemeral volume is made anew, and was not, for ever: the file
/// was no device of it.
#[test]
fn an_ephemeral_volume_is_made_anew_without_a_device_that_was_being_added() {
    let mut world = world();
    world.empty_file("new.img", 32 * MIB);
    ask(&world, "volume create scratch -y --size 8M --tier ram:24M --tier slow.img").expect(0);
    world.stop();
    let mut before = state(&world);
    let tiered = &mut before["tiered"][0];
    tiered["boot"] = "an earlier one".into();
    let mut added = stray(&world, 2);
    added["unsettled"] = true.into();
    tiered["members"].as_array_mut().unwrap().push(added);
    put_state(&world, &before);
    world.start();
    ask(&world, "status").expect(0).says("it began empty");
    assert_eq!(remembered(&world).len(), 2);
    assert!(world.log().contains("new.img was being added to its tiers, or removed"));
    ask(&world, "tier add scratch new.img").expect(0);
    fill(&world, "scratch", 4);
    check(&world, "scratch", 4);
}
