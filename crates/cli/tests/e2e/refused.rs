//! Bad input: each is refused with a message that names what is wrong and what to do.

use crate::world::{DEVICE_BYTES, Said, World};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Writes marks into an otherwise empty file.
fn marked(world: &World, name: &str, marks: &[(u64, &[u8])]) {
    world.empty_file(name, DEVICE_BYTES);
    let file = File::options().write(true).open(world.path(name)).unwrap();
    marks.iter().for_each(|(offset, bytes)| file.write_all_at(bytes, *offset).unwrap());
}

#[test]
fn a_device_that_holds_something_is_named_and_refused_without_force() {
    let world = World::started();
    marked(&world, "xfs.img", &[(0, b"XFSB")]);
    marked(&world, "gpt.img", &[(512, b"EFI PART")]);
    marked(&world, "mbr.img", &[(450, b"\x83"), (510, b"\x55\xaa")]);
    marked(&world, "odd.img", &[(12_345, b"something")]);
    for (device, what) in [
        ("xfs.img", "xfs file system"),
        ("gpt.img", "GPT partition table"),
        ("mbr.img", "MBR partition table"),
        ("odd.img", "unknown data"),
    ] {
        let before = fs::read(world.path(device)).unwrap();
        for command in
            [&["pool", "create", "fast", device][..], &["cache", "big.img", "--with", device]]
        {
            let said = world.forebay(command).expect(4);
            said.complains(&format!("{} holds {what}", world.text(device))).complains("--force");
        }
        let plan = ["pool", "create", "fast", device, "--dry-run"];
        world.forebay(&plan).expect(4).says(&format!("HOLDS {what}")).says("memory needed");
        let forced = ["pool", "create", "fast", device, "--force"];
        world.forebay(&forced).expect(4).complains("--yes").complains(what);
        assert!(fs::read(world.path(device)).unwrap() == before, "{device} was not touched");
    }
    world.forebay(&["pool", "create", "fast", "xfs.img", "--force", "--yes"]).expect(0);
}

#[test]
fn another_pool_is_named_and_refused() {
    let world = World::started();
    world.forebay(&["pool", "create", "one", "ssd.img"]).expect(0);
    let said = world.forebay(&["pool", "create", "two", "ssd.img"]).expect(4);
    said.complains("the pool one uses these devices").complains("forebay pool destroy one");
    let mut other = World::new();
    fs::copy(world.path("ssd.img"), other.path("ssd.img")).unwrap();
    other.start();
    let said = other.forebay(&["pool", "create", "two", "ssd.img"]).expect(4);
    said.complains("holds Forebay pool \"one\"").complains("forebay pool create one");
    let swapped = other.forebay(&["cache", "ssd.img", "--with", "big.img"]).expect(4);
    assert!(swapped.err.contains("swapped") || swapped.err.contains("unknown data"));
}

#[test]
fn a_pool_that_another_daemon_uses_is_refused_and_its_process_named() {
    let first = World::started();
    first.forebay(&["pool", "create", "fast", "ssd.img"]).expect(0);
    let second = World::started();
    let device = first.text("ssd.img");
    let said = second.forebay(&["pool", "create", "fast", &device]).expect(4);
    said.complains("in use by another process (pid ").complains("stop that first");
}

#[test]
fn a_device_that_is_too_small_or_needs_too_much_memory_is_refused_with_numbers() {
    let world = World::started();
    world.empty_file("tiny.img", 1 << 20);
    let said = world.forebay(&["pool", "create", "fast", "tiny.img"]).expect(1);
    said.complains("tiny.img (1.0M) is too small").complains("at least");
    // Sparse: takes no space here, and would need more than 10 GiB of index and ghost.
    world.empty_file("huge.img", 4 << 40);
    let said = world.forebay(&["pool", "create", "fast", "huge.img", "--ram", "1G"]).expect(4);
    let said = said.complains("needs at least 10.").complains("--ram allows 1.0G");
    assert!(said.err.contains("allow more: --ram 1"), "{said:#?}");
    assert_eq!(fs::read(world.path("huge.img").with_file_name("tiny.img")).unwrap()[..4], [0; 4]);
    world.forebay(&["pool", "list"]).expect(0);
    world.forebay(&["pool", "create", "fast", "none.img"]).expect(1).complains("truncate -s");
}

#[test]
fn usage_errors_have_exit_code_two() {
    let world = World::started();
    for args in [
        &["cache", "big.img"][..],
        &["volume", "mode", "big", "fast"],
        &["pool", "create", "fast", "ssd.img", "--ram", "lots"],
        &["iostat", "0"],
        &["frobnicate"],
        &["volume", "create", "a b", "--origin", "big.img"],
        &["volume", "create", "v", "--origin", "big.img", "--export", "iscsi"],
        &["volume", "create", "v", "--origin", "big.img"],
        &["cache", "ssd.img", "--with", "ssd.img"],
    ] {
        let said = world.forebay(args).expect(2);
        assert!(!said.err.is_empty());
    }
    let said = world.forebay(&["volume", "create", "v", "--origin", "s3://bucket"]).expect(2);
    said.complains("there is no pool yet");
    world.forebay(&["volume", "show", "vz"]).expect(1).complains("no volume \"vz\"");
}

#[test]
fn without_a_daemon_the_command_to_start_one_is_printed_and_run_starts_it() {
    let world = World::new();
    let said = world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(1);
    said.complains("no forebayd answers").complains("forebayd --state-dir").complains("--run");
    let said = world.forebay(&["status", "-o", "json"]).expect(1);
    let error: serde_json::Value = serde_json::from_str(&said.err).unwrap();
    assert_eq!(error["schema"], 1);
    assert_eq!(error["error"]["kind"], "failed");
    let run = ["cache", "big.img", "--with", "ssd.img", "--run", "--state-dir", "state"];
    let said = world.forebay(&run).expect(0).says("nbd+unix:///big");
    said.complains("started forebayd (process ");
    let client = forebay_api::Client::new(world.state_dir().join("control.sock"));
    let Ok(forebay_api::Body::Daemon(daemon)) = client.ask(&forebay_api::Request::Daemon) else {
        panic!("no daemon runs");
    };
    // Again: the daemon that runs is used.
    let again = world.forebay(&run);
    let stopped = Command::new("kill").arg(daemon.pid.to_string()).status().unwrap();
    again.expect(0);
    assert!(stopped.success());
}

/// It was told after two minutes.
#[test]
fn a_demo_whose_page_cannot_be_written_is_not_played() {
    let world = World::new();
    let begin = Instant::now();
    world
        .forebay(&["demo", "--html", "/proc/nowhere/page.html"])
        .expect(1)
        .complains("--html FILE");
    assert!(begin.elapsed() < Duration::from_secs(5));
}

/// As in a container: nobody in particular, without a directory of the session.
#[test]
fn run_works_for_anybody_who_has_a_place_for_it() {
    let world = World::new();
    let (dir, nobody) = (world.path("."), 65534);
    let bin = world.path("bin");
    fs::create_dir(&bin).unwrap();
    let own = Path::new(env!("CARGO_BIN_EXE_forebay"));
    for name in ["forebay", "forebayd"] {
        fs::copy(own.with_file_name(name), bin.join(name)).unwrap();
    }
    let is_root = fs::metadata(&bin).unwrap().uid() == 0;
    if is_root {
        for path in [&dir, &world.path("big.img"), &world.path("ssd.img")] {
            std::os::unix::fs::chown(path, Some(nobody), Some(nobody)).unwrap();
        }
    }
    let forebay = |home: Option<&Path>, words: &[&str]| {
        let mut command = Command::new(bin.join("forebay"));
        command.args(words).current_dir(&dir).env_clear().stdin(Stdio::null());
        command.env("PATH", "/usr/bin:/bin").envs(home.map(|home| ("HOME", home)));
        if is_root {
            command.uid(nobody).gid(nobody);
        }
        Said::of(command.output().unwrap())
    };
    let run = ["cache", "big.img", "--with", "ssd.img", "--name", "data", "--run"];
    let nowhere = Path::new("/proc/nowhere");
    forebay(Some(nowhere), &run).expect(1).complains("--state-dir DIR").complains("XDG_STATE_HOME");
    let home = world.path("home");
    let said = forebay(Some(&home), &run).expect(0).complains("to stop it: kill ");
    let process = said.err.split("to stop it: kill ").nth(1).unwrap().lines().next().unwrap();
    let status = forebay(Some(&home), &["status"]);
    assert!(Command::new("kill").arg(process).status().unwrap().success());
    status.expect(0).says("data");
    assert!(!said.err.contains("FOREBAY_SOCKET"), "it is found by itself: {}", said.err);
}

#[test]
fn a_configuration_with_problems_stops_the_daemon_and_check_reports_them_all() {
    let world = World::new();
    let config = world.path("forebay.toml");
    fs::write(&config, "rma = \"1G\"\n[[pool]]\nname = \"fast\"\ndevice = \"/dev/sda\"\n").unwrap();
    let said = world.forebay(&["config", "check", "forebay.toml"]).expect(1);
    said.says("forebay.toml:1: unknown key \"rma\" at the top; did you mean \"ram\"?")
        .says("forebay.toml:4: unknown key \"device\" in [[pool]]; did you mean \"devices\"?");
    let output = world
        .daemon_command()
        .arg("--config")
        .arg(&config)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("did you mean \"devices\""), "{text}");
    fs::write(&config, "ram = \"1G\"\n").unwrap();
    world.forebay(&["config", "check", "forebay.toml"]).expect(0).says("no problem");
}

#[test]
fn a_configured_pool_and_volume_are_there_after_the_start() {
    let mut world = World::started();
    world.forebay(&["pool", "create", "fast", "ssd.img"]).expect(0);
    world.stop();
    fs::remove_dir_all(world.state_dir()).unwrap();
    fs::create_dir(world.state_dir()).unwrap();
    let text = format!(
        "[[pool]]\nname = \"fast\"\ndevices = [\"{}\"]\n\n[[volume]]\nname = \"big\"\norigin = \
         \"{}\"\nmode = \"writearound\"\n",
        world.text("ssd.img"),
        world.text("big.img")
    );
    fs::write(world.state_dir().join("forebay.toml"), text).unwrap();
    for _ in 0..2 {
        world.start();
        let volume = world.volume("big");
        assert_eq!((&volume["state"], &volume["mode"]), (&"ok".into(), &"writearound".into()));
        world.stop();
    }
}

#[test]
fn a_configured_volume_over_tiers_is_made_once_and_takes_nothing_that_holds_something() {
    let mut world = World::started();
    world.stop();
    let text = format!(
        "[[volume]]\nname = \"scratch\"\ntiers = [\"ram:16M\", \"{}\"]\nsize = \
         \"50%\"\nplacement = \"spill\"\n",
        world.text("ssd.img")
    );
    fs::write(world.state_dir().join("forebay.toml"), text).unwrap();
    world.start();
    let tiers = world.volume("scratch")["tiers"].clone();
    assert_eq!((&tiers["placement"], &tiers["ephemeral"]), (&"spill".into(), &true.into()));
    world.nbd("scratch").write(0, &[7; 4096]).unwrap();
    world.kill();
    world.start();
    assert_eq!(world.nbd("scratch").read(0, 4096).unwrap(), [7; 4096], "it was there");
    world.forebay(&["volume", "remove", "scratch", "--yes"]).expect(0);
    world.stop();
    world.start();
    let log = world.log();
    let why = "has ended with that; it was not touched";
    assert!(log.contains("the configured volume: ") && log.contains(why), "{log}");
    world.forebay(&["volume", "show", "scratch"]).expect(1);
}

#[test]
fn an_origin_that_is_another_file_is_refused_while_dirty_with_both_choices() {
    let mut world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    world.nbd("big").write(0, &[7; 4096]).unwrap();
    world.kill();
    fs::copy(world.path("big.img"), world.path("copy.img")).unwrap();
    fs::rename(world.path("copy.img"), world.path("big.img")).unwrap();
    world.start();
    let status = world.forebay(&["status"]).expect(3);
    let status = status.says("offline").says("the origin is another file");
    status.says("forebay volume attach big --drop-dirty").says("attach big --keep-dirty");
    world.forebay(&["volume", "attach", "big"]).expect(4).complains("--drop-dirty");
    world.forebay(&["volume", "attach", "big", "--drop-dirty"]).expect(4).complains("--yes");
    world.forebay(&["volume", "attach", "big", "--keep-dirty"]).expect(0);
    assert_eq!(world.nbd("big").read(0, 4096).unwrap(), [7; 4096]);
    world.stop();
    world.start();
    assert_eq!(world.volume("big")["state"], "ok", "the choice is remembered");
}

#[test]
fn an_origin_that_shrank_is_refused_while_dirty_and_no_news_when_clean() {
    let mut world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    world.nbd("big").write(20 << 20, &[7; 4096]).unwrap();
    world.kill();
    let origin = File::options().write(true).open(world.path("big.img")).unwrap();
    origin.set_len(8 << 20).unwrap();
    world.start();
    let status = world.forebay(&["status"]).expect(3);
    status.says("the origin shrank from 25165824 to 8388608 bytes").says("--drop-dirty");
    world.forebay(&["volume", "attach", "big", "--drop-dirty", "--yes"]).expect(0);
    assert_eq!(world.nbd("big").bytes, 8 << 20);
}

#[test]
fn a_client_that_is_no_client_gets_an_answer() {
    let world = World::started();
    let client = forebay_api::Client::new(world.state_dir().join("control.sock"));
    let post = |body: &[u8]| client.http("POST", "/v1", body).unwrap();
    for body in [&b""[..], b"{", b"{\"verb\":\"frob\"}", b"\xff", &[b'x'; 40_000]] {
        let (status, answer) = post(body);
        assert_eq!(status, 400, "{}", String::from_utf8_lossy(&answer));
        assert!(String::from_utf8_lossy(&answer).contains("no request that forebayd knows"));
    }
    assert_eq!(post(&vec![b'x'; 200_000]).0, 413);
    assert_eq!(client.http("GET", "/nothing", b"").unwrap().0, 404);
    assert_eq!(client.http("PUT", "/v1", b"").unwrap().0, 405);
    world.forebay(&["status"]).expect(0);
    let told = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["--socket", "/nonexistent", "status"])
        .output()
        .unwrap();
    assert_eq!(told.status.code(), Some(1));
}

#[test]
fn one_volume_more_than_a_pool_can_hold_is_told_before_anything_is_made() {
    let world = World::started();
    for number in 0..112 {
        let name = format!("v{number}");
        world.empty_file(&name, 1 << 20);
        world.forebay(&["cache", &name, "--with", "ssd.img", "--export", "none"]).expect(0);
    }
    world.empty_file("more", 1 << 20);
    let before = world.forebay(&["status", "-o", "json"]).expect(0).json();
    for dry in [&["--dry-run"][..], &[]] {
        let words = [&["cache", "more", "--with", "ssd.img"][..], dry].concat();
        world.forebay(&words).expect(4).complains("has 112 volumes, as many as it can hold");
    }
    let after = world.forebay(&["status", "-o", "json"]).expect(0).json();
    let names = |status: &serde_json::Value| {
        let volumes = status["volumes"].as_array().expect("a list").iter();
        volumes.map(|volume| volume["name"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!((names(&before).len(), names(&before)), (112, names(&after)));
    world.forebay(&["volume", "remove", "v7", "--yes"]).expect(0);
    world.forebay(&["cache", "more", "--with", "ssd.img", "--export", "none"]).expect(0);
}
