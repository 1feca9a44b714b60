//! What only the cache holds, kept by `volume rescue`: by the daemon, and from the devices alone.

use crate::witness;
use crate::world::{DEVICE_BYTES, ORIGIN_BYTES, Said, World, pattern};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SECTOR: usize = 512;
const BLOCK: usize = 4096;
/// The device that a copy of is made, and the one that holds the same.
const DEVICES: [&str; 2] = ["ssd.img", "two.img"];

/// Writes, by their offset: whole blocks, many and one, single sectors in the midst of a block and
/// at its ends, and what crosses blocks.
fn writes() -> BTreeMap<usize, Vec<u8>> {
    let mut writes = BTreeMap::new();
    for (seed, (at, bytes)) in (40..).zip([
        (SECTOR, SECTOR),
        (3 * BLOCK, BLOCK),
        (5 * BLOCK - SECTOR, 2 * SECTOR),
        (7 * BLOCK + 2 * SECTOR, 3 * SECTOR),
        (1 << 20, 1 << 20),
        (9 << 20, 40 * BLOCK + SECTOR),
        (ORIGIN_BYTES - SECTOR, SECTOR),
    ]) {
        writes.insert(at, pattern(seed, bytes));
    }
    writes
}

/// A write-back volume on two devices, with all of [`writes`] dirty.
fn written() -> World {
    let world = World::started();
    world.empty_file("two.img", DEVICE_BYTES);
    let cache = ["cache", "big.img", "--with", DEVICES[0], DEVICES[1], "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    let mut client = world.nbd("big");
    for (at, data) in writes() {
        client.write(at as u64, &data).unwrap();
    }
    client.flush().unwrap();
    world
}

/// The same, with the daemon killed.
fn killed() -> World {
    let mut world = written();
    world.kill();
    world
}

/// What a map says: the bytes of each kind, in ranges.
fn map(path: &Path) -> BTreeMap<char, Vec<(usize, usize)>> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next().unwrap().split_whitespace().nth(1), Some("+"), "{text}");
    let number = |word: &str| usize::from_str_radix(&word[2..], 16).unwrap();
    let (mut found, mut end) = (BTreeMap::<char, Vec<_>>::new(), 0);
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (at, bytes) = (number(words[0]), number(words[1]));
        assert_eq!(at, end, "{text}");
        end = at + bytes;
        found.entry(words[2].chars().next().unwrap()).or_default().push((at, bytes));
    }
    assert_eq!(end, ORIGIN_BYTES, "{text}");
    found
}

/// Writes what an image holds by its map onto a disk, as the manual says, without other programs.
fn apply(world: &World, image: &str, of: &str, disk: &str) {
    let script = r#"while read -r at bytes kind _; do [ "$kind" = + ] && dd if="$1" of="$3" bs=1M \
        iflag=skip_bytes,count_bytes oflag=seek_bytes conv=notrunc status=none \
        skip=$((at)) seek=$((at)) count=$((bytes)) || continue; done < "$2""#;
    let mut shell = Command::new("bash");
    shell.args(["-c", script, "apply", image, of, disk]).current_dir(world.dir.path());
    assert!(shell.status().unwrap().success());
}

/// What was the origin, with all that is dirty.
fn whole() -> Vec<u8> {
    let mut whole = pattern(1, ORIGIN_BYTES);
    for (at, data) in writes() {
        whole[at..at + data.len()].copy_from_slice(&data);
    }
    whole
}

/// Asserts that an image and its map have all that is dirty, and nothing else.
#[track_caller]
fn assert_has_all(world: &World, name: &str) {
    let of = map(&world.path(&format!("{name}.map")));
    let wanted: Vec<(usize, usize)> = writes().iter().map(|(at, it)| (*at, it.len())).collect();
    assert_eq!(of[&'+'], wanted);
    assert!(!of.contains_key(&'-'), "{of:?}");
    let image = fs::read(world.path(&format!("{name}.img"))).unwrap();
    let mut expected = vec![0; ORIGIN_BYTES];
    for (at, data) in writes() {
        expected[at..at + data.len()].copy_from_slice(&data);
    }
    assert!(image == expected, "{name}.img");
    fs::write(world.path("disk.img"), pattern(1, ORIGIN_BYTES)).unwrap();
    apply(world, &format!("{name}.img"), &format!("{name}.map"), "disk.img");
    assert!(fs::read(world.path("disk.img")).unwrap() == whole(), "the repaired disk");
}

fn rescue(world: &World, to: &str, more: &[&str]) -> Said {
    world.forebay(&[&["volume", "rescue", "big", "--to", to], more].concat())
}

fn contents(world: &World) -> [Vec<u8>; 2] {
    DEVICES.map(|device| fs::read(world.path(device)).unwrap())
}

#[test]
fn from_both_devices_and_from_each_all_that_is_dirty_is_kept_and_they_stay_as_they_are() {
    let world = killed();
    fs::remove_file(world.path("big.img")).unwrap();
    let before = contents(&world);
    let said = rescue(&world, "both.img", &["--from", DEVICES[0], DEVICES[1]]).expect(0);
    said.says("in 7 range(s) is in both.img").says("ddrescue --force --domain-mapfile=both.map");
    assert_has_all(&world, "both");
    for (device, name) in DEVICES.into_iter().zip(["one", "other"]) {
        let to = format!("{name}.img");
        rescue(&world, &to, &["--from", device]).expect(0).says("is missing");
        assert_has_all(&world, name);
    }
    assert!(contents(&world) == before, "they were only to be read");
    let state: Vec<_> = fs::read_dir(world.state_dir()).unwrap().collect();
    let copy = fs::copy(world.path("two.img"), world.path("copy.img"));
    copy.unwrap();
    fs::create_dir(world.path("kept")).unwrap();
    rescue(&world, "kept", &["--from", "copy.img"]).expect(0);
    assert!(world.path("kept/big.img").exists() && world.path("kept/big.map").exists());
    assert_eq!(fs::read_dir(world.state_dir()).unwrap().count(), state.len());
}

#[test]
fn a_dry_run_writes_nothing_and_tells_the_same() {
    let world = killed();
    let dry = ["volume", "rescue", "big", "--dry-run", "-o", "json", "--from", DEVICES[1]];
    let told = world.forebay(&dry).expect(0).json();
    let said = rescue(&world, "big.out", &["-o", "json", "--from", DEVICES[1]]).expect(0).json();
    assert_eq!(said["image"], "big.out");
    assert_eq!(said["map"], "big.out.map");
    for field in ["rescued_bytes", "rescued", "lost_bytes", "lost", "log_end", "volume_bytes"] {
        assert_eq!(told[field], said[field], "{field}");
    }
    let bytes: usize = writes().values().map(Vec::len).sum();
    assert_eq!(said["rescued_bytes"], bytes);
    // What is seen is written down a moment later.
    assert!(said["log_end"].as_u64().unwrap() >= said["log_seen"].as_u64().unwrap());
    let files = fs::read_dir(world.dir.path()).unwrap();
    let files = files.filter(|it| it.as_ref().unwrap().path().extension() == Some("map".as_ref()));
    assert_eq!(files.count(), 1, "of the dry run there is none");
}

/// Where a device has these bytes.
fn find(content: &[u8], bytes: &[u8]) -> u64 {
    let found: Vec<usize> =
        (0..content.len()).step_by(SECTOR).filter(|&at| content[at..].starts_with(bytes)).collect();
    assert_eq!(found.len(), 1, "the log has it once");
    found[0] as u64
}

fn flip(world: &World, device: &str, bytes: &[u8]) {
    let at = find(&fs::read(world.path(device)).unwrap(), bytes);
    let file = File::options().write(true).open(world.path(device)).unwrap();
    let flipped: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    file.write_all_at(&flipped, at).unwrap();
}

#[test]
fn of_a_block_that_is_bad_on_one_device_the_other_copy_is_kept_and_of_two_bad_ones_none() {
    let mut world = written();
    world.stop();
    let data = &writes()[&(1 << 20)];
    let block = |n: usize| &data[n * BLOCK..(n + 1) * BLOCK];
    flip(&world, DEVICES[0], block(3));
    flip(&world, DEVICES[1], block(5));
    rescue(&world, "both.img", &["--from", DEVICES[0], DEVICES[1]]).expect(0);
    assert_has_all(&world, "both");
    let alone = rescue(&world, "one.img", &["--from", DEVICES[1]]).expect(3);
    alone.says("LOST: 4.0K in 1 range(s)").says("4096 bytes at 1069056: no device has a good copy");
    flip(&world, DEVICES[1], block(3));
    let json = ["-o", "json", "--from", DEVICES[0], DEVICES[1]];
    let said = rescue(&world, "less.img", &json).expect(3).json();
    let lost = ((1 << 20) + 3 * BLOCK, BLOCK);
    assert_eq!(said["lost_bytes"], BLOCK);
    let told = &said["lost"].as_array().unwrap()[..];
    assert!(matches!(told, [it] if it["offset"] == lost.0 && it["bytes"] == lost.1), "{told:?}");
    assert_eq!(map(&world.path("less.map"))[&'-'], [lost]);
    // All else is there, and the disk keeps what it has where nothing is known.
    fs::write(world.path("disk.img"), pattern(1, ORIGIN_BYTES)).unwrap();
    apply(&world, "less.img", "less.map", "disk.img");
    let mut expected = whole();
    expected[lost.0..lost.0 + lost.1]
        .copy_from_slice(&pattern(1, ORIGIN_BYTES)[lost.0..lost.0 + lost.1]);
    assert!(fs::read(world.path("disk.img")).unwrap() == expected);
    let text = fs::read_to_string(world.path("less.map")).unwrap();
    assert!(text.contains("# volume big of pool ssd"), "{text}");
}

/// After a crash a record that is damaged may look like one that was torn: then the log ends before
/// it. That it was longer once is known elsewhere.
#[test]
fn a_log_that_is_damaged_at_its_end_is_not_silently_taken_for_the_newest() {
    let mut world = written();
    witness::until_seen(&world, 7);
    world.kill();
    flip(&world, DEVICES[1], &writes()[&(ORIGIN_BYTES - SECTOR)]);
    let from = ["--from", DEVICES[1]];
    let first = rescue(&world, "kept.img", &from);
    if first.code == 4 {
        first.complains("hold an OLDER state, or are damaged").complains("--force");
        assert!(!world.path("kept.img").exists());
        rescue(&world, "kept.img", &[&["--force"], &from[..]].concat()).expect(3).says("OLDER");
    } else {
        first.expect(3).says("LOST: 512 in 1 range(s)");
    }
    rescue(&world, "both.img", &["--from", DEVICES[0], DEVICES[1]]).expect(0);
    assert_has_all(&world, "both");
}

#[test]
fn older_copies_are_told_from_the_newest_where_that_is_known_and_never_refused_elsewhere() {
    let mut world = written();
    fs::copy(world.path("ssd.img"), world.path("old.img")).unwrap();
    let before = witness::until_seen(&world, 7);
    world.nbd("big").write(0, &pattern(60, SECTOR)).unwrap();
    witness::until_seen(&world, before + 1);
    world.kill();
    let refused = rescue(&world, "kept.img", &["--from", "old.img"]).expect(4);
    refused.complains("OLDER state").complains("name the newest devices instead");
    let force = ["--force", "-o", "json", "--from", "old.img"];
    let said = rescue(&world, "kept.img", &force).expect(3).json();
    assert!(said["log_end"].as_u64() < said["log_seen"].as_u64(), "{said}");
    assert_eq!(said["is_older"], true);
    assert_has_all(&world, "kept");
    // Where nothing is known of them they are read, and that is told.
    let unknown = ["--state-dir", "nowhere", "--from", "old.img"];
    let said = rescue(&world, "again.img", &unknown).expect(0);
    said.says("nowhere tells whether this is the newest state").says("--state-dir DIR");
    assert!(!world.path("nowhere").exists());
    assert_has_all(&world, "again");
}

/// Pulls the disk out of a volume in use: nothing of it goes home any more.
fn without_origin() -> World {
    let world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    File::options().write(true).open(world.path("big.img")).unwrap().set_len(0).unwrap();
    fs::remove_file(world.path("big.img")).unwrap();
    let mut client = world.nbd("big");
    let end = Instant::now() + Duration::from_secs(30);
    while !world.volume("big").to_string().contains("is lost") {
        assert!(Instant::now() < end, "the loss is not seen");
        assert!(client.read(20 << 20, 4096).is_err(), "nothing is cached");
        std::thread::sleep(Duration::from_millis(50));
    }
    for (at, data) in writes() {
        client.write(at as u64, &data).unwrap();
    }
    client.flush().unwrap();
    world
}

#[test]
fn a_daemon_gives_what_only_its_cache_holds_though_the_origin_is_lost() {
    let world = without_origin();
    let dry = world.forebay(&["volume", "rescue", "big", "--dry-run"]).expect(0);
    dry.says("would be rescued").says("nothing was written");
    let said = rescue(&world, "kept.img", &[]).expect(0);
    said.says("in 7 range(s) is in kept.img").says("ddrescue --force --domain-mapfile=kept.map");
    assert_has_all(&world, "kept");
    // Devices that a daemon uses are not read beside it.
    let refused = rescue(&world, "other.img", &["--from", "ssd.img"]).expect(4);
    refused.complains("is in use by another process").complains("from the daemon that serves");
    assert!(!world.path("other.img").exists());
}

#[test]
fn a_volume_that_is_not_served_since_the_start_is_rescued_with_and_without_the_daemon() {
    let mut world = killed();
    fs::rename(world.path("big.img"), world.path("away.img")).unwrap();
    world.start();
    rescue(&world, "kept.img", &[]).expect(0);
    assert_has_all(&world, "kept");
    world.stop();
    rescue(&world, "again.img", &["--from", DEVICES[0], DEVICES[1]]).expect(0);
    assert_has_all(&world, "again");
}

/// With --force cache devices in use were overwritten, and a map vouched for an image that had only
/// been begun.
#[test]
fn nothing_but_what_a_rescue_wrote_is_overwritten() {
    let world = without_origin();
    for precious in ["ssd.img", "state/state.json"] {
        let before = fs::read(world.path(precious)).unwrap();
        let refused = rescue(&world, precious, &["--force"]).expect(4);
        refused.complains("is nothing that a rescue has written");
        std::os::unix::fs::symlink(world.path(precious), world.path("link.img")).unwrap();
        rescue(&world, "link.img", &["--force"]).expect(4).complains("is no file");
        fs::rename(world.path("link.img"), world.path("link.map")).unwrap();
        rescue(&world, "link.img", &["--force"]).expect(4).complains("is no file");
        fs::remove_file(world.path("link.map")).unwrap();
        assert!(fs::read(world.path(precious)).unwrap() == before, "{precious}");
    }
    rescue(&world, "kept.img", &[]).expect(0);
    fs::hard_link(world.path("kept.img"), world.path("second.img")).unwrap();
    rescue(&world, "kept.img", &["--force"]).expect(4).complains("is nothing that a rescue");
    fs::remove_file(world.path("second.img")).unwrap();
    rescue(&world, "kept.img", &["--force"]).expect(0);
    assert_has_all(&world, "kept");
}

#[test]
fn nothing_is_dirty_of_a_volume_that_is_home() {
    let world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    world.nbd("big").write(0, &pattern(7, BLOCK)).unwrap();
    world.forebay(&["volume", "drain", "big"]).expect(0);
    rescue(&world, "kept.img", &[]).expect(0).says("nothing is dirty; the origin has all of it");
    let of = map(&world.path("kept.map"));
    assert_eq!(of.keys().collect::<Vec<_>>(), [&'?']);
}

#[test]
fn what_is_there_is_not_overwritten_and_what_cannot_be_is_named() {
    let mut world = killed();
    let from = ["--from", DEVICES[0], DEVICES[1]];
    let forced = ["--force", "--from", DEVICES[0], DEVICES[1]];
    rescue(&world, "kept.img", &from).expect(0);
    let before = fs::read(world.path("kept.img")).unwrap();
    rescue(&world, "kept.img", &from).expect(4).complains("kept.img is there").complains("--force");
    fs::rename(world.path("kept.img"), world.path("moved.img")).unwrap();
    rescue(&world, "kept.img", &from).expect(4).complains("kept.map is there already");
    assert!(!world.path("kept.img").exists());
    rescue(&world, "kept.img", &forced).expect(0);
    assert!(fs::read(world.path("kept.img")).unwrap() == before);
    for (to, why) in [
        ("big.img", "is nothing that a rescue has written"),
        ("ssd.img", "what is to be read"),
        ("two.img", "what is to be read"),
        ("/dev/null", "is no file"),
    ] {
        rescue(&world, to, &forced).expect(4).complains(why);
    }
    assert!(fs::read(world.path("big.img")).unwrap() == pattern(1, ORIGIN_BYTES));
    rescue(&world, "none/kept.img", &from).expect(1).complains("there is no such directory");
    rescue(&world, "/dev/full", &from).expect(4).complains("is no file");
    let to = ["volume", "rescue", "other", "--to", "x.img", "--from", DEVICES[0]];
    world.forebay(&to).expect(1).complains("pool ssd, which is on the devices, has no volume");
    world.forebay(&["volume", "rescue", "big"]).expect(2).complains("--to");
    let none = rescue(&world, "x.img", &[]).expect(1);
    none.complains("no forebayd answers").complains("--from DEVICE");
    world.start();
    let to = ["volume", "rescue", "other", "--to", "x.img"];
    world.forebay(&to).expect(1).complains("no volume \"other\"");
    assert!(!world.path("x.img").exists() && !world.path("x.map").exists());
}

#[test]
fn devices_that_are_too_short_of_another_pool_or_none_at_all_are_named() {
    let mut world = killed();
    let old = fs::read(world.path("ssd.img")).unwrap();
    fs::write(world.path("short.img"), &old[..old.len() / 2]).unwrap();
    rescue(&world, "x.img", &["--from", "short.img"]).expect(1).complains("shrank from");
    rescue(&world, "x.img", &["--from", "short.img", "two.img"]).expect(0).says("shrank from");
    assert_has_all(&world, "x");
    rescue(&world, "y.img", &["--from", "big.img"]).expect(1).complains("no Forebay superblock");
    rescue(&world, "y.img", &["--from", "gone.img"]).expect(1).complains("gone.img");
    rescue(&world, "y.img", &["--from", "state"]).expect(1).complains("directory");
    world.empty_file("foreign.img", DEVICE_BYTES);
    world.start();
    world.forebay(&["pool", "create", "foreign", "foreign.img"]).expect(0);
    world.stop();
    let other = rescue(&world, "y.img", &["--from", "foreign.img", "two.img"]).expect(1);
    other.complains("pool foreign, which is on the devices, has no volumes");
    assert!(!world.path("y.img").exists());
    let beside = rescue(&world, "y.img", &["--from", "two.img", "foreign.img"]).expect(0);
    beside.says("belongs to another pool, \"foreign\"");
}

#[test]
fn a_file_system_that_is_too_small_leaves_what_it_took_with_a_map_of_that() {
    let world = killed();
    // The limit stands in for a full file system: the kernel refuses in the same place.
    let mut shell = Command::new("bash");
    let limit = (ORIGIN_BYTES - (8 << 20)) / 1024;
    let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" \"$@\"");
    let words = ["volume", "rescue", "big", "--to", "kept.img", "--from", DEVICES[0]];
    let forebay = world.command(&words);
    shell.arg("-c").arg(script).arg(forebay.get_program()).args(forebay.get_args());
    shell.current_dir(world.dir.path()).env("FOREBAY_SOCKET", world.state_dir());
    let said = Said::of(shell.output().unwrap()).expect(1);
    said.complains("kept.img: File too large").complains("--to FILE");
}
