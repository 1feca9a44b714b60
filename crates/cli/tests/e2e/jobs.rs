//! What takes as long as there is dirty data, and its end.

use crate::world::{Said, World, pattern};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A write-back volume with 8 MiB of dirty data, which take its origin two seconds.
fn dirty() -> World {
    let world = World::started();
    let origin = "spindle:big.img?preset=nas-5400&cache=0&rate=4&rate-inner=4";
    let cache = ["cache", origin, "--with", "ssd.img", "--name", "big", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    for part in 0..64 {
        world.nbd("big").write(part << 18, &pattern(part, 128 << 10)).unwrap();
    }
    world
}

/// The command, with Ctrl-C after so many milliseconds.
fn interrupted(world: &World, words: &[&str], after_ms: u64) -> Said {
    let mut command = world.command(words);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(after_ms));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    Said::of(child.wait_with_output().unwrap())
}

fn until_no_job_runs(world: &World) {
    let end = Instant::now() + Duration::from_secs(10);
    while world.volume("big")["job"]["state"] == "running" {
        assert!(Instant::now() < end, "{}", world.volume("big"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_early_ctrl_c_ends_the_job_too() {
    let world = dirty();
    for words in [
        &["volume", "drain", "big"][..],
        &["volume", "mode", "big", "writethrough"],
        &["volume", "remove", "big", "--yes"],
    ] {
        let said = interrupted(&world, words, 150);
        assert!(said.err.contains("cancelled; the volume stays as it was"), "{said:?}");
        until_no_job_runs(&world);
        assert_eq!(world.volume("big")["mode"], "writeback");
    }
}

#[test]
fn a_job_that_nobody_waits_for_can_be_ended() {
    let world = dirty();
    world.forebay(&["volume", "drain", "big", "--no-wait"]).expect(0).says("started");
    let second = world.forebay(&["volume", "mode", "big", "writethrough"]).expect(1);
    second.complains("a drain of volume big is under way").complains("forebay volume cancel big");
    world.forebay(&["volume", "cancel", "big"]).expect(0).says("asked the drain to stop");
    until_no_job_runs(&world);
    world.forebay(&["volume", "cancel", "big"]).expect(0).says("no job runs for volume big");
    world.forebay(&["volume", "drain", "big"]).expect(0).says("sent home");
}
