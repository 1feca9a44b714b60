//! What a daemon says while it starts, and when it has no room to remember anything.

use crate::world::{World, pattern};
use forebay_api::Client;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A write-back volume with dirty data in a daemon that was killed.
fn killed() -> World {
    let mut world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    world.nbd("big").write(0, &pattern(4, 1 << 20)).unwrap();
    world.kill();
    world
}

/// A daemon waits for devices that its forerunner still has: the start takes as long as the test
/// likes.
#[test]
fn volumes_of_a_pool_that_is_being_opened_are_opening() {
    let mut world = killed();
    let device = File::open(world.path("ssd.img")).unwrap();
    device.lock().unwrap();
    world.launch(world.daemon_command());
    let begin = Instant::now();
    let status = loop {
        let said = world.forebay(&["status"]);
        if said.code != 1 {
            break said;
        }
        assert!(begin.elapsed() < Duration::from_secs(4), "{said:#?}");
    };
    let status = status.expect(0).says("opening").says("has not opened all pools yet");
    for word in ["offline", "--drop-dirty", "not configured", "do not use", "action:"] {
        assert!(!status.out.contains(word), "{word}: {status:#?}");
    }
    let volume = world.volume("big");
    assert_eq!(volume["state"], "opening", "{volume}");
    assert!(volume["dirty_bytes"].is_null(), "{volume}");
    let client = Client::new(world.state_dir().join("control.sock"));
    let (_, metrics) = client.http("GET", "/metrics", b"").unwrap();
    let metrics = String::from_utf8(metrics).unwrap();
    let line = |state: &str| {
        metrics.lines().any(|line| {
            line.starts_with("forebay_volume_state") && line.contains(state) && line.ends_with(" 1")
        })
    };
    assert!(line("\"opening\"") && !line("\"offline\""), "{metrics}");
    world.forebay(&["why", "big"]).expect(1).complains("is being opened");
    device.unlock().unwrap();
    world.wait_opened();
    assert_eq!(world.volume("big")["state"], "ok");
}

/// `status` called it detached, and `tier show` had it attached.
#[test]
fn a_volume_over_tiers_is_opening_until_its_devices_are_open() {
    let mut world = World::started();
    world.empty_file("fast.img", 32 << 20);
    world.forebay(&["volume", "create", "thin", "--tier", "fast.img"]).expect(0);
    world.kill();
    let device = File::open(world.path("fast.img")).unwrap();
    device.lock().unwrap();
    world.launch(world.daemon_command());
    let begin = Instant::now();
    loop {
        let said = world.forebay(&["volume", "show", "thin", "-o", "json"]);
        if said.code == 0 || said.out.contains("state") {
            assert_eq!(said.json()["state"], "opening", "{said:#?}");
            if begin.elapsed() > Duration::from_secs(1) {
                break;
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(4), "{said:#?}");
    }
    let said = world.forebay(&["tier", "show", "thin"]).expect(1);
    let said = said.complains("the tiers of volume thin are being opened");
    assert!(!said.err.contains("attach"), "{said:#?}");
    device.unlock().unwrap();
    world.wait_opened();
    assert_eq!(world.volume("thin")["state"], "ok");
}

/// Fills the state directory: nothing can be written beside what is there.
fn block(world: &World) {
    fs::create_dir(world.state_dir().join("state.json.new")).unwrap();
}

fn unblock(world: &World) {
    fs::remove_dir(world.state_dir().join("state.json.new")).unwrap();
}

#[test]
fn what_cannot_be_remembered_is_not_done() {
    let mut world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    world.nbd("big").write(0, &pattern(4, 1 << 20)).unwrap();
    world.empty_file("b.cache", 64 << 20);
    let origin = File::options().write(true).open(world.path("big.img")).unwrap();
    origin.set_len(32 << 20).unwrap();
    let before = world.volume("big");
    block(&world);
    for command in [
        &["volume", "mode", "big", "writethrough"][..],
        &["volume", "mode", "big", "writeonly"],
        &["volume", "resize", "big"],
        &["volume", "detach", "big"],
        &["volume", "remove", "big"],
        &["pool", "create", "b", "b.cache"],
    ] {
        let said = world.forebay(command).expect(1);
        let said = said.complains("state.json").complains("nothing was changed");
        assert!(!said.err.contains("drop-dirty"), "{said:#?}");
        let now = world.volume("big");
        for key in ["state", "mode", "bytes", "dirty_bytes", "export"] {
            assert_eq!(now[key], before[key], "{command:?}: {key}");
        }
    }
    assert!(fs::read(world.path("b.cache")).unwrap().iter().all(|&byte| byte == 0));
    world.forebay(&["volume", "drain", "big"]).expect(0);
    unblock(&world);
    world.forebay(&["volume", "mode", "big", "writethrough"]).expect(0);
    world.forebay(&["volume", "resize", "big"]).expect(0);
    world.stop();
    world.start();
    let now = world.volume("big");
    assert_eq!((&now["mode"], &now["bytes"]), (&"writethrough".into(), &(32 << 20).into()));
}

#[test]
fn what_was_done_and_could_not_be_remembered_is_told_and_may_be_repeated() {
    let mut world = World::started();
    let origin = "spindle:big.img?preset=nas-5400&cache=0&rate=4&rate-inner=4";
    let cache = ["cache", origin, "--name", "big", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    let mut client = world.nbd("big");
    for at in (0..24 << 20).step_by(64 << 10) {
        client.write(at, &[5; 4096]).unwrap();
    }
    drop(client);
    let mode = ["volume", "mode", "big", "writethrough"];
    world.forebay(&[&mode[..], &["--no-wait"]].concat()).expect(0).says("started");
    block(&world);
    let begin = Instant::now();
    let show = || world.forebay(&["volume", "show", "big"]).expect(0);
    while show().out.contains(" runs, ") {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    }
    show().says("it is done, but not remembered").says("writethrough");
    world.forebay(&mode).expect(1).complains("state.json");
    unblock(&world);
    world.forebay(&mode).expect(0);
    let state = fs::read_to_string(world.state_dir().join("state.json")).unwrap();
    assert!(state.contains("\"may_be_dirty\": false"), "{state}");
    world.stop();
    world.start();
    assert_eq!(world.volume("big")["mode"], "writethrough");
}

/// A full file system at the place of the state directory, where this machine lets us make one.
struct Full<'w>(&'w Path);

impl Full<'_> {
    fn mount(dir: &Path) -> Option<Full<'_>> {
        let mount = |args: &[&str]| Command::new("mount").args(args).arg(dir).output();
        let made = mount(&["-t", "tmpfs", "-o", "size=64k", "none"]).ok()?;
        made.status.success().then_some(Full(dir))
    }

    fn fill(&self) {
        fs::write(self.0.join("filler"), vec![1; 64 << 10]).unwrap_err();
    }
}

impl Drop for Full<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_start_with_a_full_state_directory_says_so_and_advises_no_loss() {
    let mut world = World::new();
    let dir = world.state_dir();
    fs::create_dir(&dir).unwrap();
    let Some(full) = Full::mount(&dir) else { return };
    world.start();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    world.nbd("big").write(0, &[3; 4096]).unwrap();
    world.kill();
    full.fill();
    world.start();
    let status = world.forebay(&["status"]).expect(3).says("offline");
    let status = status.says(&format!("the state directory {} is full", dir.display()));
    let status = status.says("make room there").says("forebay volume attach big");
    assert!(!status.out.contains("drop-dirty"), "{status:#?}");
    for verb in ["drain", "remove", "attach"] {
        let said = world.forebay(&["volume", verb, "big"]);
        assert!(said.code != 0 && !said.err.contains("drop-dirty"), "{said:#?}");
        said.complains("make room there");
    }
    fs::remove_file(dir.join("filler")).unwrap();
    world.forebay(&["volume", "attach", "big"]).expect(0);
    assert_eq!(world.nbd("big").read(0, 4096).unwrap(), [3; 4096]);
    world.forebay(&["status"]).expect(0);
    world.stop();
}

/// Who asked a daemon that does not run waited two minutes, and read "Resource temporarily
/// unavailable".
#[test]
fn a_daemon_that_was_stopped_by_a_signal_is_told_at_once() {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    world.signal("-STOP");
    for words in [&["status"][..], &["volume", "show", "big"], &["pool", "list"]] {
        let begin = Instant::now();
        let said = world.forebay(words);
        let took = begin.elapsed();
        let said = said.expect(1).complains("was stopped by a signal");
        said.complains("let it go on: kill -CONT ");
        assert!(took < Duration::from_secs(5), "{words:?} took {took:?}");
    }
    world.signal("-CONT");
    world.forebay(&["status"]).expect(0);
    world.stop();
}
