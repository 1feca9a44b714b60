//! Cache devices that somebody made to do harm, and files that are none.

use crate::world::{DEVICE_BYTES, World};
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::superblock::{SUPERBLOCK_SIZE, Superblock, text_field};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use std::time::{Duration, Instant};

/// Most memory of a daemon that serves next to nothing.
const SMALL_KIB: u64 = 100 << 10;
const HOSTILE: &str = "x\nSYSTEMD_WANTS=debug-shell.service\u{1b}[2J";
const SHOWN: &str = r"x\nSYSTEMD_WANTS=debug-shell.service\x1b[2J";

/// Changes what both superblock copies of `ssd.img` say.
fn forge(world: &World, change: impl Fn(&mut Superblock)) {
    let file = File::options().read(true).write(true).open(world.path("ssd.img")).unwrap();
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    for offset in SUPERBLOCK_OFFSETS {
        file.read_exact_at(&mut bytes, offset).unwrap();
        if let Ok(mut superblock) = Superblock::decode(&bytes) {
            change(&mut superblock);
            superblock.encode(&mut bytes);
            file.write_all_at(&bytes, offset).unwrap();
        }
    }
}

/// A stopped daemon whose pool `fast` on `ssd.img` has a volume `big`.
fn stopped() -> World {
    let mut world = World::started();
    world.forebay(&["pool", "create", "fast", "ssd.img"]).expect(0);
    let create = ["volume", "create", "big", "--origin", "big.img", "--export", "nbd"];
    world.forebay(&create).expect(0);
    world.stop();
    world
}

#[track_caller]
fn is_plain(text: &str) {
    let lines = ["SYSTEMD_WANTS", "-- forged"];
    assert!(!text.contains('\u{1b}'), "{text:?}");
    assert!(!text.lines().any(|line| lines.iter().any(|it| line.starts_with(it))), "{text:?}");
}

#[test]
fn a_device_with_names_that_nobody_could_have_given_is_refused_and_shows_them_escaped() {
    for of_pool in [true, false] {
        let mut world = stopped();
        forge(&world, |superblock| match of_pool {
            true => superblock.header.pool_name = text_field(HOSTILE),
            false => superblock.volumes[0].name = text_field(HOSTILE),
        });
        let inspected = world.forebay(&["inspect", "ssd.img"]).expect(1).says(SHOWN);
        is_plain(&inspected.out);
        fs::remove_dir_all(world.state_dir()).unwrap();
        world.start();
        let said = world.forebay(&["pool", "create", "fast", "ssd.img"]);
        assert_ne!(said.code, 0, "{said:#?}");
        is_plain(&format!("{}{}", said.out, said.err));
        world.forebay(&["status"]).expect(0);
        world.stop();
        is_plain(&world.log());
    }
}

#[test]
fn a_known_pool_whose_names_were_forged_is_not_opened_and_the_daemon_goes_on() {
    let mut world = stopped();
    forge(&world, |superblock| superblock.volumes[0].name = text_field(HOSTILE));
    world.start();
    let status = world.forebay(&["pool", "show", "fast"]);
    assert!(status.out.contains(SHOWN) || status.err.contains(SHOWN), "{status:#?}");
    is_plain(&format!("{}{}", status.out, status.err));
    let log = world.log();
    assert!(log.contains(SHOWN), "{log}");
    is_plain(&log);
}

#[test]
fn the_uri_of_an_origin_is_printed_escaped() {
    let mut world = stopped();
    let origin = "/none\n-- forged\u{1b}[2J";
    forge(&world, |superblock| superblock.volumes[0].origin = text_field(origin));
    is_plain(&world.forebay(&["inspect", "ssd.img"]).expect(0).says(r"/none\n-- forged").out);
    for format in ["json", "jsonl", "csv"] {
        is_plain(&world.forebay(&["inspect", "ssd.img", "-o", format]).expect(0).out);
    }
    world.start();
    for args in [&["status"][..], &["volume", "list", "-o", "wide"], &["volume", "show", "big"]] {
        let said = world.forebay(args);
        is_plain(&format!("{}{}", said.out, said.err));
    }
    world.stop();
    is_plain(&world.log());
}

/// Its most memory until now.
fn most_kib(world: &World) -> u64 {
    let client = forebay_api::Client::new(world.state_dir().join("control.sock"));
    let Ok(forebay_api::Body::Daemon(daemon)) = client.ask(&forebay_api::Request::Daemon) else {
        panic!("no daemon");
    };
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid)).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A superblock that said 1 TiB, on a sparse file, cost gigabytes at the first look at it.
#[test]
fn memory_is_taken_for_what_a_pool_holds_and_not_for_what_it_says() {
    let mut world = World::started();
    // Its index would take 160 MiB.
    world.empty_file("huge.img", 64 << 30);
    world.forebay(&["pool", "create", "huge", "huge.img"]).expect(0);
    assert!(most_kib(&world) < SMALL_KIB, "{} KiB when it was made", most_kib(&world));
    world.stop();
    world.start();
    world.forebay(&["pool", "show", "huge"]).expect(0).says("huge");
    assert!(most_kib(&world) < SMALL_KIB, "{} KiB when it was opened", most_kib(&world));
}

#[test]
fn what_is_no_device_is_refused_and_nothing_waits_for_it() {
    let world = World::started();
    let fifo = world.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let begin = Instant::now();
    world.forebay(&["inspect", "fifo"]).expect(1).complains("neither a file nor a block device");
    world.forebay(&["inspect", "/dev/zero"]).expect(1).complains("neither a file");
    world.forebay(&["pool", "create", "fast", "fifo"]).expect(2).complains("special file");
    world.forebay(&["config", "check", "fifo"]).expect(1).says("no regular file");
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[test]
fn what_the_daemon_writes_down_is_its_users_alone_under_any_umask() {
    let mut world = World::new();
    let daemon = world.daemon_command();
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 0; exec \"$0\" \"$@\""]);
    shell.arg(daemon.get_program()).args(daemon.get_args());
    world.spawn(shell);
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&world.state_dir()), 0o700);
    for entry in fs::read_dir(world.state_dir()).unwrap().map(Result::unwrap) {
        let (path, is_dir) = (entry.path(), entry.file_type().unwrap().is_dir());
        assert!(is_dir || mode(&path) == 0o600, "{path:?} has {:o}", mode(&path));
    }
    let state: Value =
        serde_json::from_slice(&fs::read(world.state_dir().join("state.json")).unwrap()).unwrap();
    assert_eq!(state["volumes"][0]["name"], "big");
    assert_eq!(fs::metadata(world.path("ssd.img")).unwrap().len(), DEVICE_BYTES);
}
