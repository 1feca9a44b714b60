//! What takes as long as there is dirty data, and its end.

use crate::world::{Said, World, pattern};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A write-back volume with so many pieces of 128 KiB of dirty data, of which its origin takes 32 a
/// second.
fn dirty(pieces: u64) -> World {
    let world = World::started();
    let origin = "spindle:big.img?preset=nas-5400&cache=0&rate=4&rate-inner=4";
    let cache = ["cache", origin, "--with", "ssd.img", "--name", "big", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    for part in 0..pieces {
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
    let world = dirty(64);
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

/// For as long as it took, each write waited for the origin, to which the dirty data were going.
#[test]
fn what_is_written_while_a_mode_is_left_is_cached_as_before() {
    let world = dirty(64);
    let mut client = world.nbd("big");
    world.forebay(&["volume", "mode", "big", "writethrough", "--no-wait"]).expect(0);
    let mut waits: Vec<Duration> = (0..9)
        .map(|at| {
            let begin = Instant::now();
            client.write((at << 18) + (160 << 10), &pattern(at, 4096)).unwrap();
            begin.elapsed()
        })
        .collect();
    waits.sort();
    assert!(waits[4] < Duration::from_millis(25), "{waits:?}");
    assert_eq!(world.volume("big")["job"]["job"], "mode", "{}", world.volume("big"));
    world.forebay(&["volume", "cancel", "big"]).expect(0);
    until_no_job_runs(&world);
    assert_eq!(world.volume("big")["mode"], "writeback");
}

#[test]
fn a_job_that_nobody_waits_for_can_be_ended() {
    let world = dirty(64);
    world.forebay(&["volume", "drain", "big", "--no-wait"]).expect(0).says("started");
    let second = world.forebay(&["volume", "mode", "big", "writethrough"]).expect(1);
    second.complains("a drain of volume big is under way").complains("forebay volume cancel big");
    world.forebay(&["volume", "cancel", "big"]).expect(0).says("asked the drain to stop");
    until_no_job_runs(&world);
    world.forebay(&["volume", "cancel", "big"]).expect(0).says("no job runs for volume big");
    world.forebay(&["volume", "drain", "big"]).expect(0).says("sent home");
}

#[test]
fn a_volume_is_detached_under_clients_that_never_stop() {
    let world = dirty(4);
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let mut client = world.nbd("big");
                let goes_on = |_: &u64| !stops.load(Ordering::Relaxed);
                scope.spawn(move || {
                    let data = pattern(99, 4096);
                    let write = |at: u64| client.write(at % 512 * 4096, &data);
                    (0..).take_while(goes_on).map(write).take_while(Result::is_ok).count()
                })
            })
            .collect();
        let mut detach = world.command(&["volume", "detach", "big", "--force", "--yes"]);
        let mut detach = detach.stdout(Stdio::null()).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while detach.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let ended = detach.try_wait().unwrap();
        let _ = detach.kill();
        stops.store(true, Ordering::Relaxed);
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
        let wrote = writers.into_iter().map(|writer| writer.join().unwrap());
        assert!(wrote.min() > Some(0), "a writer wrote nothing");
    });
    assert_eq!(world.volume("big")["state"], "detached");
}
