//! A cache in front of a file full of data: made, used, switched, killed, taken away.

use crate::nbd::Nbd;
use crate::world::{ORIGIN_BYTES, World, pattern};
use std::fs;

/// Writes patterns through a client and keeps a model of what must be there.
fn write_some(client: &mut Nbd, model: &mut [u8], seed: u64) {
    for index in 0..64_u64 {
        let offset = (seed * 131 + index * 977) * 4096 % (ORIGIN_BYTES as u64 - 65_536);
        let data = pattern(seed * 1000 + index, if index % 8 == 0 { 65_536 } else { 4096 });
        client.write(offset, &data).expect("write");
        model[offset as usize..][..data.len()].copy_from_slice(&data);
    }
}

#[test]
fn a_file_full_of_data_is_cached_used_in_each_mode_and_given_back_whole() {
    let world = World::started();
    let mut model = pattern(1, ORIGIN_BYTES);
    world
        .forebay(&["cache", "big.img", "--with", "ssd.img"])
        .expect(0)
        .says("volume big: 24.0M")
        .says("nbd+unix:///big?socket=")
        .complains("memory needed:");
    let mut client = world.nbd("big");
    assert_eq!(client.bytes, ORIGIN_BYTES as u64);
    assert!(client.read_all() == model, "the volume shows what the origin holds");
    for (seed, mode) in
        ["writeback", "writethrough", "writearound", "writeonly", "passthrough"].iter().enumerate()
    {
        world.forebay(&["volume", "mode", "big", mode]).expect(0);
        assert_eq!(world.volume("big")["mode"], *mode);
        world.forebay(&["volume", "mode", "big", mode]).expect(0).says("is in mode");
        write_some(&mut client, &mut model, seed as u64 + 2);
        assert!(client.read_all() == model, "{mode}: what was written is read");
    }
    client.flush().expect("flush");
    world.forebay(&["volume", "mode", "big", "writeback"]).expect(0);
    write_some(&mut client, &mut model, 99);
    world.forebay(&["volume", "drain", "big"]).expect(0);
    assert_eq!(world.volume("big")["dirty_bytes"], 0);
    world
        .forebay(&["volume", "detach", "big"])
        .expect(4)
        .complains("1 client(s) are connected to volume big");
    // One that hangs up just now is no reason to refuse.
    let leaves = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(client);
    });
    world.forebay(&["volume", "detach", "big"]).expect(0);
    leaves.join().unwrap();
    assert!(fs::read(world.path("big.img")).unwrap() == model, "the origin holds everything");
    assert_eq!(world.volume("big")["state"], "detached");
    world.forebay(&["volume", "detach", "big"]).expect(0).says("is detached");
    assert!(Nbd::connect(&world.state_dir().join("nbd.sock"), "big").is_none());
    world.forebay(&["volume", "attach", "big"]).expect(0);
    assert!(world.nbd("big").read_all() == model);
    world.forebay(&["volume", "remove", "big", "--force"]).expect(0);
    world.forebay(&["volume", "show", "big"]).expect(1).complains("no volume \"big\"");
    world.forebay(&["pool", "destroy", "ssd"]).expect(4).complains("--yes");
    world.forebay(&["pool", "destroy", "ssd", "--yes"]).expect(0);
    assert!(fs::read(world.path("big.img")).unwrap() == model);
}

#[test]
fn a_line_of_fstab_that_mounts_the_origin_past_its_cache_is_named() {
    let world = World::started();
    std::os::unix::fs::symlink(world.path("big.img"), world.path("by another name")).unwrap();
    let place = world.text("by another name").replace(' ', "\\040");
    let table = format!("# A comment\n/dev/null /a ext4\n{place} /srv/big\text4 loop 0 2\n");
    fs::write(world.path("fstab"), table).unwrap();
    let cache = ["cache", "big.img", "--with", "ssd.img"];
    for more in [&["--dry-run"][..], &[]] {
        let said = world.forebay(&[&cache[..], more].concat()).expect(0);
        said.says("beware       line 3 of").says("at /srv/big").says("/dev/forebay/big");
    }
    world.empty_file("other.img", 1 << 20);
    let said = world.forebay(&["volume", "create", "other", "--origin", "other.img"]).expect(0);
    assert!(!said.out.contains("beware"), "{}", said.out);
}

#[test]
fn a_volume_grows_with_its_origin_while_it_is_in_use() {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"]).expect(0);
    let mut client = world.nbd("big");
    world.forebay(&["volume", "resize", "big"]).expect(0).says("has 24.0M already");
    let refused = world.forebay(&["volume", "resize", "big", "--size", "32M"]).expect(4);
    refused.complains("has 24.0M, not 32.0M").complains("make the origin larger first");
    let file = fs::File::options().write(true).open(world.path("big.img")).unwrap();
    file.set_len(40 << 20).unwrap();
    let planned = world.forebay(&["volume", "resize", "big", "--dry-run"]).expect(0);
    planned.says("would grow volume big from 24.0M to 40.0M");
    assert_eq!(world.volume("big")["bytes"], 24 << 20);
    let grown = world.forebay(&["volume", "resize", "big", "--size", "32M"]).expect(0);
    grown.says("from 24.0M to 32.0M").says("when they connect again");
    let done = world.forebay(&["volume", "resize", "big", "-o", "json"]).expect(0).json();
    assert_eq!(
        (&done["outcome"], &done["volume"]["bytes"]),
        (&"changed".into(), &(40 << 20).into())
    );
    let smaller = world.forebay(&["volume", "resize", "big", "--size", "50%"]).expect(4);
    smaller.complains("cannot be made smaller").complains("forebay volume remove big");
    world.forebay(&["volume", "resize", "big", "--size", "much"]).expect(2);
    // The client that was there all the time, and one that comes now.
    let data = pattern(7, 65_536);
    client.write((40 << 20) - 65_536, &data).unwrap();
    client.flush().unwrap();
    world.kill();
    world.start();
    let mut client = world.nbd("big");
    assert_eq!(client.bytes, 40 << 20);
    assert!(client.read((40 << 20) - 65_536, 65_536).unwrap() == data);
    drop(client);
    world.forebay(&["volume", "remove", "big"]).expect(0);
    assert!(fs::read(world.path("big.img")).unwrap()[(40 << 20) - 65_536..] == data);
    // A machine's disk; an origin that has one size as long as it is open.
    file.set_len(41 << 20).unwrap();
    let create = ["volume", "create", "vm", "--origin", "big.img", "--export", "vhost-user"];
    world.forebay(&create).expect(0);
    file.set_len(42 << 20).unwrap();
    let grown = world.forebay(&["volume", "resize", "vm"]).expect(0);
    grown.says("from 41.0M to 42.0M").says("a machine sees it when it connects");
    world.forebay(&["volume", "create", "memory", "--origin", "ram:8M"]).expect(0);
    world.forebay(&["volume", "resize", "memory"]).expect(0).says("has 8.0M already");
}

#[test]
fn what_was_acknowledged_is_there_after_kill_9_and_a_restart() {
    let mut world = World::started();
    let mut model = pattern(1, ORIGIN_BYTES);
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"]).expect(0);
    for round in 0..3 {
        let mut client = world.nbd("big");
        assert!(client.read_all() == model, "round {round}");
        write_some(&mut client, &mut model, 10 + round);
        world.kill();
        let origin = fs::read(world.path("big.img")).unwrap();
        assert!(origin != model, "some of it is nowhere but in the cache");
        world.start();
        let volume = world.volume("big");
        assert_eq!(volume["state"], "ok", "{volume:#}");
        assert_eq!(volume["mode"], "writeback");
    }
    assert!(world.nbd("big").read_all() == model);
    world.forebay(&["volume", "remove", "big", "--force"]).expect(0);
    assert!(fs::read(world.path("big.img")).unwrap() == model, "the origin holds everything");
}

#[test]
fn an_orderly_stop_keeps_the_cache_warm_and_the_same_command_changes_nothing() {
    let mut world = World::started();
    let command = ["cache", "big.img", "--with", "ssd.img", "-o", "json"];
    assert_eq!(world.forebay(&command).expect(0).json()["outcome"], "changed");
    assert_eq!(world.forebay(&command).expect(0).json()["outcome"], "unchanged");
    let model = pattern(1, ORIGIN_BYTES);
    assert!(world.nbd("big").read_all() == model);
    let used = world.volume("big")["used_bytes"].as_u64().unwrap();
    assert!(used > 0, "reads fill the cache");
    world.stop();
    assert!(!world.state_dir().join("nbd.sock").exists());
    world.start();
    assert_eq!(world.volume("big")["used_bytes"].as_u64().unwrap(), used);
    assert!(world.nbd("big").read_all() == model);
    let counters = world.forebay(&["iostat", "-o", "json"]).expect(0).json();
    assert!(counters["volumes"][0]["hit_ratio"].as_f64().unwrap() > 0.5, "{counters:#}");
    assert_eq!(world.forebay(&command).expect(0).json()["outcome"], "unchanged");
}

#[test]
fn one_pool_serves_many_volumes_and_survives_each_of_them() {
    let mut world = World::started();
    world.forebay(&["pool", "create", "fast", "ssd.img"]).expect(0).complains("memory needed");
    world.forebay(&["pool", "create", "fast", "ssd.img"]).expect(0).says("is open");
    for number in 0..4 {
        let name = format!("v{number}");
        fs::write(world.path(&name), pattern(number + 20, 1 << 20)).unwrap();
        let create = ["volume", "create", &name, "--origin", &name, "--mode", "writeback"];
        world.forebay(&create).expect(0);
    }
    for number in 0..4 {
        let mut client = world.nbd(&format!("v{number}"));
        assert!(client.read_all() == pattern(number + 20, 1 << 20));
        client.write(4096 * number, &pattern(number + 40, 4096)).unwrap();
    }
    world.forebay(&["volume", "remove", "v1"]).expect(0);
    world.kill();
    world.start();
    let list = world.forebay(&["volume", "list", "-o", "jsonl"]).expect(0).out;
    assert_eq!(list.lines().count(), 3, "{list}");
    for number in [0, 2, 3] {
        let mut wanted = pattern(number + 20, 1 << 20);
        wanted[4096 * number as usize..][..4096].copy_from_slice(&pattern(number + 40, 4096));
        assert!(world.nbd(&format!("v{number}")).read_all() == wanted, "v{number}");
    }
    world.forebay(&["pool", "destroy", "fast", "--yes"]).expect(4).complains("v0, v2, v3");
}

#[test]
fn a_state_directory_that_is_lost_costs_nothing_but_the_commands() {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"]).expect(0);
    let data = pattern(77, 4096);
    world.nbd("big").write(8192, &data).unwrap();
    world.kill();
    fs::remove_dir_all(world.state_dir()).unwrap();
    world.start();
    let cache = ["cache", "big.img", "--with", "ssd.img"];
    // Nobody can tell how old the dirty data is.
    world.forebay(&cache).expect(1).complains("pool create ssd").complains("--keep-dirty");
    world.forebay(&["pool", "create", "ssd", "ssd.img", "--keep-dirty"]).expect(0);
    world.forebay(&cache).expect(0);
    assert_eq!(world.volume("big")["mode"], "writeback");
    assert!(world.nbd("big").read(8192, 4096).unwrap() == data);
}

#[test]
fn why_counts_what_was_written_past_the_cache() {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", "passthrough"]).expect(0);
    let bytes = |reason: &str| {
        let why = world.forebay(&["why", "big", "-o", "json"]).expect(0).json();
        let reasons = why["reasons"].as_array().unwrap().iter();
        reasons
            .filter(|it| it["reason"] == reason)
            .map(|it| it["bytes"].as_u64().unwrap())
            .sum::<u64>()
    };
    let data = pattern(9, 1 << 20);
    world.nbd("big").write(0, &data).unwrap();
    assert_eq!((bytes("mode"), bytes("sequential")), (1 << 20, 0));
    world.forebay(&["volume", "mode", "big", "writeback"]).expect(0);
    let mut client = world.nbd("big");
    for at in 0..ORIGIN_BYTES as u64 >> 20 {
        client.write(at << 20, &data).unwrap();
    }
    assert_eq!(bytes("mode"), 1 << 20);
    assert!(bytes("sequential") >= 4 << 20, "{}", bytes("sequential"));
}
