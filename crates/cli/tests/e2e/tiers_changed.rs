//! Tiers that are changed, found again and looked at, as an administrator who has only the manual
//! does it. Each of these was done otherwise, or in silence, before.

use crate::tiers::{big, check, fill, tiers, wait_for, world};
use crate::world::{Said, World};
use serde_json::Value;
use std::fs;
use std::process::Stdio;

const MIB: u64 = 1 << 20;

fn ask(world: &World, line: &str) -> Said {
    world.forebay(&line.split(' ').collect::<Vec<_>>())
}

fn devices(world: &World, name: &str) -> Vec<(u64, String)> {
    let shown = tiers(world, name);
    let of = |it: &Value| {
        let device = it["device"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        (it["tier"].as_u64().unwrap(), device)
    };
    shown["tiers"]["devices"].as_array().unwrap().iter().map(of).collect()
}

fn named(all: &[(u64, &str)]) -> Vec<(u64, String)> {
    all.iter().map(|(tier, name)| (*tier, (*name).to_owned())).collect()
}

/// Fifteen times a new slowest tier in place of the fastest one, and there were "16 tiers".
#[test]
fn numbers_of_tiers_follow_each_other_however_often_they_change() {
    let mut world = world();
    for name in ["a.img", "b.img", "c.img"] {
        world.empty_file(name, 24 * MIB);
    }
    ask(&world, "volume create big --tier a.img --tier b.img --size 8M").expect(0);
    fill(&world, "big", 4);
    let names = ["a.img", "b.img", "c.img"];
    for turn in 0..18 {
        let [old, new] = [names[turn % 3], names[(turn + 2) % 3]];
        ask(&world, &format!("tier add big {new}")).expect(0).says("tier 2");
        // What is pinned goes with its tier, not with its number.
        ask(&world, "tier pin big 0-2047 --tier 2").expect(0);
        ask(&world, "tier pin big 2048-4095 --tier 0").expect(0);
        ask(&world, "tier evacuate big 0").expect(0);
        ask(&world, "tier remove big 0 --dry-run").expect(0).says(old);
        let gone = ask(&world, "tier remove big 0").expect(0);
        gone.says("is gone").says("tier 1 is tier 0 now, tier 2 is tier 1");
        let left = [names[(turn + 1) % 3], new];
        assert_eq!(devices(&world, "big"), named(&[(0, left[0]), (1, left[1])]), "turn {turn}");
        if turn % 6 == 5 {
            world.kill();
            world.start();
            assert_eq!(devices(&world, "big"), named(&[(0, left[0]), (1, left[1])]));
        }
        // What was pinned to the tier that is gone is not pinned any more.
        assert_eq!(tiers(&world, "big")["tiers"]["pinned_bytes"], MIB, "turn {turn}");
        let is_there = || {
            let said = ask(&world, "explain big 0 -o json").expect(0).json();
            said["extents"][0]["tier"] == 1
        };
        wait_for("what is pinned is not on its tier", is_there);
    }
    check(&world, "big", 4);
}

/// The machine has closed the numbers up, and the daemon was killed before it could remember that.
#[test]
fn numbers_are_as_the_devices_say_after_a_kill_in_between() {
    let mut world = world();
    for name in ["a.img", "b.img"] {
        world.empty_file(name, 24 * MIB);
    }
    ask(&world, "volume create big --tier a.img --tier b.img --size 8M").expect(0);
    fill(&world, "big", 4);
    ask(&world, "tier pin big 0-2047 --tier 1").expect(0);
    world.stop();
    let path = world.state_dir().join("state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    state["tiered"][0]["members"][0]["tier"] = 2.into();
    state["tiered"][0]["members"][1]["tier"] = 5.into();
    state["tiered"][0]["pins"][0]["tier"] = 5.into();
    fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
    world.start();
    let is_there = || {
        let said = ask(&world, "explain big 0 -o json").expect(0).json();
        let extent = &said["extents"][0];
        extent["tier"] == 1 && extent["why"] == "it is pinned to this tier"
    };
    wait_for("what is pinned is not on its tier", is_there);
    let state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(state["tiered"][0]["pins"][0]["tier"], 1);
    check(&world, "big", 4);
}

/// It became larger than its tiers without a word.
#[test]
fn a_volume_is_larger_than_its_tiers_only_if_somebody_said_so() {
    let world = world();
    big(&world);
    fill(&world, "big", 5);
    for verb in ["evacuate", "remove"] {
        for line in [format!("tier {verb} big 1"), format!("tier {verb} big 1 --dry-run")] {
            let said = ask(&world, &line).expect(4);
            said.complains("volume big has")
                .complains("the other tiers hold")
                .complains("--overcommit");
        }
    }
    assert_eq!(tiers(&world, "big")["tiers"]["devices"][1]["state"], "ok");
    let planned = ask(&world, "tier remove big 1 --overcommit --dry-run").expect(0);
    planned.says("would move").says("writes fail when they are full");
    ask(&world, "tier evacuate big 1 --overcommit").expect(0);
    assert_eq!(tiers(&world, "big")["tiers"]["overcommit"], true);
    ask(&world, "tier cancel big 1").expect(0);
    let said = ask(&world, "tier remove big 1 --overcommit").expect(0);
    said.says("is free").says("writes fail when they are full");
    check(&world, "big", 5);
    // Whoever made it so asked for it.
    world.empty_file("other.img", 32 * MIB);
    world.empty_file("third.img", 32 * MIB);
    ask(&world, "volume create thin --tier other.img --tier third.img --size 1G --overcommit")
        .expect(0);
    ask(&world, "tier remove thin 1").expect(0);
}

#[test]
fn a_volume_that_is_found_again_without_a_device_says_which() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 100);
    ask(&world, "volume remove big").expect(0);
    let slow = world.text("slow.img");
    fs::rename(world.path("slow.img"), world.path("away.img")).unwrap();
    for line in ["volume create big --tier fast.img --dry-run", "volume create big --tier fast.img"]
    {
        let said = ask(&world, line).expect(4);
        said.complains("is missing").complains(&slow).complains("--allow-missing");
    }
    let found = ask(&world, "volume create big --tier fast.img --allow-missing").expect(0);
    found.says("is missing").says(&slow);
    ask(&world, "status").expect(3).says("slow.img, on tier 1, is missing");
    fs::rename(world.path("away.img"), world.path("slow.img")).unwrap();
    ask(&world, "volume attach big").expect(0).says("is used again");
    check(&world, "big", 100);
    // By identity alone, where nobody knows a name.
    ask(&world, "volume remove big").expect(0);
    world.stop();
    fs::remove_dir_all(world.state_dir()).unwrap();
    fs::rename(world.path("slow.img"), world.path("away.img")).unwrap();
    world.start();
    let said = ask(&world, "volume create big --tier fast.img").expect(4);
    said.complains("a device of tier 1 is missing, with the identity ");
    ask(&world, "volume create big --tier fast.img --allow-missing").expect(0);
    ask(&world, "status").expect(3).says("on tier 1, is missing");
    // The volume's devices cannot be told by name: it is found anew with all of them.
    ask(&world, "volume remove big").expect(0);
    ask(&world, "volume create big --tier fast.img --tier away.img").expect(0);
    check(&world, "big", 100);
}

#[test]
fn a_volume_that_is_found_again_has_the_size_it_had_and_no_twins() {
    let world = world();
    ask(&world, "volume create big --tier fast.img --tier slow.img --size 60M").expect(0);
    let there = "volume create big --tier fast.img --tier slow.img --size 61M";
    ask(&world, there).expect(1).complains("has 60.0M").complains("forebay volume resize big");
    ask(&world, "volume remove big").expect(0);
    ask(&world, there).expect(4).complains("has 60.0M").complains("forebay volume resize big");
    let dry = format!("{there} --dry-run");
    ask(&world, &dry).expect(4).complains("has 60.0M");
    fs::copy(world.path("slow.img"), world.path("twin.img")).unwrap();
    let twins = "volume create big --tier fast.img --tier slow.img,twin.img";
    let said = ask(&world, twins).expect(4);
    said.complains("slow.img and ").complains("twin.img are the same device");
    let same = "volume create big --tier fast.img --tier slow.img --size 60M";
    ask(&world, same).expect(0).says("was on the devices");
}

#[test]
fn devices_are_called_by_names_that_people_know_and_that_no_terminal_obeys() {
    let world = world();
    let memory = "volume create v -y --tier ram:";
    ask(&world, &format!("{memory}0")).expect(2).complains("ram:0: give a size");
    let small = ask(&world, &format!("{memory}1M")).expect(4).complains("ram:1048576 is too small");
    assert!(!small.err.contains("/proc"), "{small:#?}");
    let name = "new\n\x1b[31m\tline.img";
    world.empty_file(name, 32 * MIB);
    world.forebay(&["volume", "create", "odd", "--tier", name, "--tier", "slow.img"]).expect(0);
    let shown = ask(&world, "tier show odd").expect(0);
    let lines: Vec<&str> = shown.out.lines().collect();
    let heading = lines.iter().position(|line| line.contains("DEVICE")).unwrap();
    let column = lines[heading].find("STATE").unwrap();
    for line in &lines[heading + 1..] {
        assert_eq!(line.find("ok "), Some(column), "{shown:#?}");
    }
}

#[test]
fn a_dry_run_says_what_the_verb_would_do() {
    let mut world = world();
    ask(&world, "volume create one --tier fast.img").expect(0);
    ask(&world, "volume create scratch -y --size 8M --tier ram:24M --tier slow.img").expect(0);
    let both = |world: &World, line: &str, text: &str| {
        ask(world, &format!("{line} --dry-run")).expect(4).complains(text);
        ask(world, line).expect(4).complains(text);
    };
    both(&world, "tier remove one 0", "is the only tier of volume one");
    both(&world, "tier remove scratch 0", "is the last memory of volume scratch");
    both(&world, "tier remove one fast.img", "forebay volume remove one");
    // Nothing has moved for what is refused anyway.
    assert_eq!(tiers(&world, "scratch")["tiers"]["devices"][0]["state"], "ok");
    world.empty_file("a.img", 24 * MIB);
    world.empty_file("b.img", 64 * MIB);
    ask(&world, "volume create two --tier a.img --tier b.img --size 60M").expect(0);
    both(&world, "tier pin two 0-61439 --tier 0", "tier 0 holds 15.0M, and 30.0M would be pinned");
    fill(&world, "two", 4);
    ask(&world, "tier pin two 0-16383 --tier 0").expect(0);
    world.stop();
    fs::rename(world.path("a.img"), world.path("away.img")).unwrap();
    world.start();
    both(&world, "tier remove two 0", "a.img is missing");
    both(&world, "tier evacuate two 0", "a.img is missing");
    ask(&world, "tier remove two 0").expect(4).complains("--drop-lost");
    ask(&world, "volume remove two").expect(0).says("its tiers hold everything but what is on");
}

#[test]
fn an_evacuation_that_goes_on_can_be_watched_again() {
    let world = world();
    ask(&world, "volume create big --tier fast.img --tier slow.img --size 60M").expect(0);
    fill(&world, "big", 50);
    ask(&world, "tier pause big").expect(0);
    ask(&world, "tier evacuate big 0 --no-wait").expect(0).says("are moving off tier 0");
    ask(&world, "tier evacuate big 0 --no-wait").expect(0).says("are moving off tier 0");
    let status = ask(&world, "status").expect(0);
    status.says("tiers:  moves are paused; tier 0 is being emptied, ").says(" left on it");
    let mut watched = world.command(&["tier", "evacuate", "big", "fast.img"]);
    let watched = watched.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    ask(&world, "tier resume big").expect(0);
    Said::of(watched.wait_with_output().unwrap()).expect(0).says("is empty");
    ask(&world, "tier evacuate big 0").expect(0).says("tier 0 is empty already");
    ask(&world, "status").expect(0).says("tiers:  tier 0 is empty, and takes nothing new");
    check(&world, "big", 50);
}

#[test]
fn what_is_told_of_tiers_is_true() {
    let mut world = world();
    big(&world);
    fill(&world, "big", 100);
    assert_eq!(world.volume("big")["used_bytes"], 100 * MIB);
    ask(&world, "tier show big").expect(0).says("at most 20.0M/s");
    world.stop();
    fs::rename(world.path("slow.img"), world.path("away.img")).unwrap();
    world.start();
    let said = ask(&world, "volume detach big").expect(0);
    said.says("its tiers hold everything but what is on").says("slow.img, which is missing");
    ask(&world, "volume attach big").expect(3).says("slow.img, on tier 1, is missing");
    ask(&world, "tier remove big slow.img --drop-lost -y").expect(0).says("writes fail");
    let status = ask(&world, "status").expect(3).says("cannot be read");
    assert!(!status.out.contains("bring its devices back"), "{status:#?}");
    status.says("action: write it again, or discard it");
}

#[test]
fn a_pause_outlives_the_daemon() {
    let mut world = world();
    big(&world);
    ask(&world, "tier pause big").expect(0);
    world.kill();
    world.start();
    assert_eq!(tiers(&world, "big")["tiers"]["paused"], true);
    ask(&world, "tier pause big -o json").expect(0).says("unchanged");
    ask(&world, "tier resume big").expect(0);
    world.stop();
    world.start();
    assert_eq!(tiers(&world, "big")["tiers"]["paused"], false);
}

/// The time of day, `minutes` from now, where the machine is.
fn clock(minutes: i64) -> String {
    let then = format!("{minutes} minutes");
    let said = std::process::Command::new("date").args(["-d", &then, "+%H:%M"]).output().unwrap();
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

#[test]
fn moves_have_a_time_of_the_day() {
    let mut world = world();
    ask(&world, "volume create big --tier fast.img --tier slow.img --size 60M").expect(0);
    fill(&world, "big", 20);
    ask(&world, "tier set big --window 22-6").expect(2).complains("22:00-06:00");
    // Not now, for hours.
    let closed = format!("{}-{}", clock(120), clock(180));
    ask(&world, &format!("tier set big --window {closed}")).expect(0).says(&closed);
    ask(&world, "status").expect(0).says("tiers:  moves wait for their time");
    ask(&world, "tier show big").expect(0).says(&closed).says("wait for their time");
    let waits = ask(&world, "tier evacuate big 0").expect(1);
    waits.complains("moves wait for their time").complains(&closed);
    world.kill();
    world.start();
    let shown = tiers(&world, "big")["tiers"].clone();
    assert_eq!((&shown["outside_window"], &shown["paused"]), (&true.into(), &false.into()));
    assert_eq!(shown["window"], closed);
    assert!(shown["evacuations"][0]["left_bytes"].as_u64().unwrap() > 0, "{shown:#}");
    // A pause of an administrator is another thing.
    ask(&world, "tier pause big").expect(0);
    ask(&world, "tier resume big").expect(0).says("but only in the time");
    let open = format!("{}-{}", clock(-120), clock(120));
    ask(&world, &format!("tier set big --window {open}")).expect(0);
    ask(&world, "tier evacuate big 0").expect(0).says("is empty");
    ask(&world, "tier cancel big 0").expect(0);
    ask(&world, &format!("tier set big --window {closed}")).expect(0);
    ask(&world, "tier set big --window always").expect(0);
    assert_eq!(tiers(&world, "big")["tiers"]["outside_window"], false);
    check(&world, "big", 20);
}

/// Nobody asks for anything when the time has come: the daemon looks at the clock.
#[test]
fn the_time_for_moves_comes_by_itself() {
    let world = world();
    ask(&world, "volume create big --tier fast.img --tier slow.img --size 60M").expect(0);
    fill(&world, "big", 20);
    let soon = format!("{}-{}", clock(1), clock(120));
    ask(&world, &format!("tier set big --window {soon}")).expect(0);
    ask(&world, "tier evacuate big 0 --no-wait").expect(0);
    let left = || tiers(&world, "big")["tiers"]["evacuations"][0]["left_bytes"] == 0;
    let begin = std::time::Instant::now();
    while !left() {
        assert!(begin.elapsed().as_secs() < 100, "{}", ask(&world, "tier show big").out);
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
}

#[test]
fn iostat_tells_how_long_each_tier_takes() {
    let world = world();
    big(&world);
    fill(&world, "big", 40);
    check(&world, "big", 40);
    let said = ask(&world, "iostat -v -o json").expect(0).json();
    for tier in said["volumes"][0]["tiers"].as_array().unwrap() {
        let ns = |key: &str| tier[key].as_f64().unwrap_or(0.0);
        assert!((1e3..1e10).contains(&ns("read_ns")), "{said:#}");
        assert!((1e3..1e10).contains(&ns("write_ns")), "{said:#}");
    }
    ask(&world, "iostat -v").expect(0).says(" ms each)");
}
