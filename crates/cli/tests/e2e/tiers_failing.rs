//! Devices of tiers that fail while they are used, as an administrator meets them. What is cut off
//! a file fails everything on it: its reads, its writes and its FLUSHes.

use crate::tiers::{big, check, fill, tiers, wait_for, world};
use crate::world::{Said, World, pattern};
use serde_json::Value;
use std::fs::{self, File};

const MIB: u64 = 1 << 20;

fn ask(world: &World, line: &str) -> Said {
    world.forebay(&line.split(' ').collect::<Vec<_>>())
}

fn cut(world: &World, name: &str, bytes: u64) {
    File::options().write(true).open(world.path(name)).unwrap().set_len(bytes).unwrap();
}

fn device(world: &World, name: &str, number: usize) -> Value {
    tiers(world, name)["tiers"]["devices"][number].clone()
}

/// Whoever has written to a file that was cut hears it from the next FLUSH.
fn cut_and_noticed(world: &World, name: &str, bytes: u64) {
    let mut nbd = world.nbd("big");
    nbd.write(0, &pattern(9, 4096)).unwrap();
    cut(world, name, bytes);
    assert!(nbd.flush().is_err(), "what was cut has kept nothing");
}

/// A volume whose disk had failed could be neither detached nor removed, however often one asked.
#[test]
fn a_volume_whose_tier_has_failed_is_let_go_when_asked_for_twice() {
    for (verb, done) in [("detach", "detached"), ("remove", "removed")] {
        let world = world();
        big(&world);
        fill(&world, "big", 4);
        cut_and_noticed(&world, "fast.img", MIB);
        let status = ask(&world, "status").expect(3);
        assert!(!status.out.contains("each FLUSH fails"), "{status:#?}");
        let refused = ask(&world, &format!("volume {verb} big")).expect(1);
        let again = format!("action: to {verb} it all the same, ask again: forebay volume {verb}");
        refused.complains(&format!("volume big is not {done}: ")).complains(&again);
        let log = world.log();
        assert!(!log.contains("again"), "{log}");
        let attached = ask(&world, "volume attach big").expect(3);
        attached.says("is in service: nothing was changed").says("fast.img, on tier 0, was cut");
        ask(&world, &format!("volume {verb} big")).expect(0).says(&format!("is {done}"));
        if verb == "detach" {
            // It is as it was, but for what was written since.
            cut(&world, "fast.img", 32 * MIB);
            let back = ask(&world, "volume attach big");
            assert!([0, 3].contains(&back.code), "{back:#?}");
        }
    }
}

#[test]
fn force_takes_a_volume_out_of_service_whose_tier_has_failed() {
    for verb in ["detach", "remove"] {
        let world = world();
        big(&world);
        fill(&world, "big", 4);
        cut_and_noticed(&world, "fast.img", MIB);
        ask(&world, &format!("volume {verb} big --force")).expect(0);
    }
}

/// Nobody had written anything: the same, for ever.
#[test]
fn a_volume_is_let_go_whose_tier_has_failed_while_nobody_wrote() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 4);
    world.stop();
    world.start();
    cut(&world, "fast.img", MIB);
    wait_for("it is not let go", || ask(&world, "volume detach big").code == 0);
}

/// `tier show` called a file ok that was cut, and listed 1M of 91M as lost.
#[test]
fn a_file_that_was_cut_is_called_so_and_all_that_lives_on_it_is_lost() {
    let world = world();
    // Nothing moves: what is written behind the end makes the file large again.
    let create = "volume create big --tier fast.img --tier slow.img --placement spill";
    ask(&world, create).expect(0);
    fill(&world, "big", 100);
    let slow = || device(&world, "big", 1)["used_bytes"].as_u64().unwrap();
    assert!(slow() > 60 * MIB);
    cut(&world, "slow.img", 8 * MIB);
    let mut nbd = world.nbd("big");
    wait_for("nobody has noticed", || {
        (0..100).for_each(|n| drop(nbd.read(n * MIB, 4096)));
        device(&world, "big", 1)["cut_to_bytes"].is_u64()
    });
    drop(nbd);
    assert_eq!(device(&world, "big", 1)["state"], "cut");
    let shown = ask(&world, "tier show big").expect(0);
    assert!(shown.out.lines().any(|it| it.contains("slow.img") && it.contains(" cut ")));
    let lost = tiers(&world, "big")["lost"].clone();
    let lost: u64 = lost.as_array().unwrap().iter().map(|it| it[1].as_u64().unwrap()).sum();
    assert_eq!(lost, slow());
    assert_eq!(tiers(&world, "big")["tiers"]["lost_bytes"], slow());
    let status = ask(&world, "status").expect(3);
    let slow = world.text("slow.img");
    status
        .says(&format!("action: restore {slow}, all of it"))
        .says("forebay volume detach big --force, then forebay volume attach big")
        .says(&format!("forebay tier remove big {slow} --drop-lost"));
}

/// Who gave up a device that was there read that none was missing.
#[test]
fn a_device_that_is_here_and_useless_is_given_up_or_it_is_said_how() {
    let world = world();
    big(&world);
    fill(&world, "big", 4);
    let said = ask(&world, "tier remove big 0 --drop-lost -y").expect(2);
    said.complains("fast.img is here, answers, and neither fails nor was cut")
        .complains("forebay tier evacuate big");
    cut_and_noticed(&world, "fast.img", MIB);
    let planned = ask(&world, "tier remove big 0 --drop-lost --dry-run").expect(0);
    planned.says("fast.img, which is here and was cut, and ");
    let said = ask(&world, "tier remove big fast.img --drop-lost -y");
    if said.code == 0 {
        return;
    }
    let fast = world.text("fast.img");
    said.expect(4)
        .complains("fast.img is here and was cut")
        .complains("forebay volume detach big --force")
        .complains(&format!("forebay tier remove big {fast} --drop-lost"));
    // That is the way.
    fs::rename(world.path("fast.img"), world.path("away.img")).unwrap();
    ask(&world, "volume detach big --force").expect(0);
    ask(&world, "volume attach big").expect(3);
    ask(&world, &format!("tier remove big {fast} --drop-lost -y")).expect(0);
}

/// `status` was ok while writes failed: what was free on the tier that was being emptied counted.
#[test]
fn a_volume_without_room_says_so_while_a_tier_is_emptied() {
    let world = world();
    ask(&world, "volume create thin --tier fast.img --tier slow.img --size 1G --overcommit")
        .expect(0);
    fill(&world, "thin", 16);
    ask(&world, "tier pause thin").expect(0);
    ask(&world, "tier evacuate thin 1 --no-wait").expect(0);
    ask(&world, "status").expect(0);
    let mut nbd = world.nbd("thin");
    let data = pattern(7, MIB as usize);
    let full = (16..64).find_map(|n| nbd.write(n * MIB, &data).err().map(|it| (n, it)));
    let (first, error) = full.expect("the fast tier is full");
    assert_eq!(error, 28, "ENOSPC");
    for n in first..first + 5 {
        assert_eq!(nbd.write(n * MIB, &data), Err(28));
    }
    ask(&world, "status").expect(3).says("its tiers are almost full");
    let refused = "refused (ENOSPC)";
    assert_eq!(world.log().matches(refused).count(), 1, "{}", world.log());
    wait_for("it is not in the log", || world.log().contains("almost full"));
    let metrics = forebay_api::Client::new(world.state_dir().join("control.sock"));
    let (_, metrics) = metrics.http("GET", "/metrics", b"").unwrap();
    let metrics = String::from_utf8(metrics).unwrap();
    let line = "forebay_tiers_refused_writes_total{volume=\"thin\",pool=\"\"} 6";
    assert!(metrics.contains(line), "{metrics}");
}

/// Why nothing moved was said by `tier show` alone.
#[test]
fn an_evacuation_without_room_says_so_in_status() {
    let world = world();
    let create = "volume create thin --tier fast.img --tier slow.img --size 1G --overcommit";
    ask(&world, &format!("{create} --placement spill")).expect(0);
    fill(&world, "thin", 40);
    ask(&world, "tier pause thin").expect(0);
    let mut nbd = world.nbd("thin");
    let on_slow = device(&world, "thin", 1)["used_bytes"].as_u64().unwrap() / MIB;
    assert!((1..40).contains(&on_slow), "{on_slow}");
    // Room for what is on the slow one, until somebody else has taken it.
    for n in 0..on_slow.min(40 - on_slow) {
        nbd.discard(n * MIB, MIB as u32).unwrap();
    }
    nbd.flush().unwrap();
    wait_for("there is no room", || ask(&world, "tier evacuate thin 1 --no-wait").code == 0);
    let data = pattern(7, MIB as usize);
    assert!((100..200).any(|n| nbd.write(n * MIB, &data) == Err(28)), "it is not full");
    ask(&world, "tier resume thin").expect(0);
    wait_for("status does not say why", || {
        let said = ask(&world, "status");
        said.out.contains("tier 1 is being emptied, and ")
            && said.out.contains("there is no room where it should go")
            && said.out.contains("forebay tier cancel thin 1")
    });
}

/// `attach` said that all was well, and the log said nothing of a device that was there.
#[test]
fn an_attach_without_a_device_names_it_and_says_that_the_volume_is_degraded() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 100);
    world.stop();
    fs::copy(world.path("slow.img"), world.path("old.img")).unwrap();
    world.start();
    fill(&world, "big", 100);
    world.stop();
    fs::rename(world.path("slow.img"), world.path("away.img")).unwrap();
    world.start();
    ask(&world, "volume attach big").expect(1).complains("slow.img, on tier 1, is still missing");
    ask(&world, "volume detach big").expect(0);
    ask(&world, "volume attach big").expect(3).says("slow.img, on tier 1, is missing");
    fs::rename(world.path("old.img"), world.path("slow.img")).unwrap();
    world.stop();
    world.start();
    assert!(world.log().contains("slow.img is here and not used: older"), "{}", world.log());
    ask(&world, "volume detach big").expect(0);
    ask(&world, "volume attach big").expect(3).says("slow.img is here and not used: older");
    fs::rename(world.path("away.img"), world.path("slow.img")).unwrap();
    ask(&world, "volume attach big").expect(0).says("is used again");
    check(&world, "big", 100);
}
