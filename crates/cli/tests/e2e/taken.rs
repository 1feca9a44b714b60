//! Names and devices that are taken: refused by their names before anything is changed, and by a
//! dry run as for real.

use crate::world::{DEVICE_BYTES, World, pattern};
use std::fs;

fn is_blank(world: &World, name: &str) -> bool {
    fs::read(world.path(name)).unwrap().iter().all(|&byte| byte == 0)
}

/// As an administrator has it who makes a second volume, and believes that it is mirrored: the
/// device beside that of the pool was left out without a word.
#[test]
fn a_device_beside_those_of_a_pool_is_refused_before_anything_is_changed() {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    world.empty_file("b.cache", DEVICE_BYTES);
    world.empty_file("o3.img", 1 << 20);
    for with in [
        &["--with", "ssd.img", "--with", "b.cache"][..],
        &["--with", "ssd.img", "b.cache"],
        &["--with", "b.cache", "ssd.img"],
    ] {
        for more in [&[][..], &["--dry-run"], &["--force", "--yes"]] {
            let cache = [&["cache", "o3.img"][..], with, more].concat();
            let said = world.forebay(&cache).expect(4);
            let said = said.complains("b.cache is no device of the pool ssd");
            let alone = format!("forebay cache {} --with {}", "ORIGIN", world.text("ssd.img"));
            said.complains(&alone).complains("forebay pool destroy ssd");
        }
    }
    assert!(is_blank(&world, "b.cache"));
    world.forebay(&["volume", "show", "o3"]).expect(1);
    world.forebay(&["cache", "o3.img", "--with", "ssd.img"]).expect(0);
}

#[test]
fn one_device_of_a_pool_names_all_of_it() {
    let world = World::started();
    world.empty_file("two.img", DEVICE_BYTES);
    world.empty_file("o2.img", 1 << 20);
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "two.img"]).expect(0);
    world.forebay(&["cache", "o2.img", "--with", "two.img"]).expect(0);
    assert_eq!(world.volume("o2")["pool"], "ssd");
}

#[test]
fn a_volume_that_is_known_and_not_served_is_no_success() {
    let mut world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    world.nbd("big").write(0, &[7; 4096]).unwrap();
    world.kill();
    fs::copy(world.path("big.img"), world.path("copy.img")).unwrap();
    fs::rename(world.path("copy.img"), world.path("big.img")).unwrap();
    world.start();
    for more in [&[][..], &["--dry-run"]] {
        let said = world.forebay(&[&cache[..], more].concat()).expect(1);
        said.complains("big is not served")
            .complains("the origin is another file")
            .complains("forebay volume attach big --keep-dirty");
    }
    let create = ["volume", "create", "big", "--origin", "big.img"];
    world.forebay(&create).expect(1).complains("is not served");
}

#[test]
fn a_dry_run_refuses_a_cache_device_that_is_the_origin_of_a_volume() {
    let world = World::started();
    world.empty_file("o2.img", DEVICE_BYTES);
    world.empty_file("o3.img", 1 << 20);
    world.forebay(&["cache", "o2.img", "--with", "ssd.img"]).expect(0);
    for more in [&[][..], &["--dry-run"]] {
        for command in
            [&["cache", "o3.img", "--with", "o2.img"][..], &["pool", "create", "p", "o2.img"]]
        {
            let said = world.forebay(&[command, more].concat()).expect(4);
            said.complains("o2.img is the origin of volume o2");
        }
    }
    assert!(is_blank(&world, "o2.img"));
}

#[test]
fn a_dry_run_refuses_a_device_that_another_daemon_uses() {
    let first = World::started();
    first.forebay(&["pool", "create", "fast", "ssd.img"]).expect(0);
    let second = World::started();
    for name in ["other", "fast"] {
        let plan = ["pool", "create", name, &first.text("ssd.img"), "--dry-run"];
        second.forebay(&plan).expect(4).complains("in use by another process");
    }
}

#[test]
fn a_dry_run_refuses_a_name_that_is_taken() {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    world.empty_file("o2.img", 1 << 20);
    world.empty_file("b.cache", DEVICE_BYTES);
    for more in [&[][..], &["--dry-run"]] {
        for device in ["ssd.img", "b.cache"] {
            let cache = ["cache", "o2.img", "--with", device, "--name", "big"];
            let said = world.forebay(&[&cache[..], more].concat()).expect(1);
            said.complains("there is a volume \"big\"");
            let cache = ["cache", "big.img", "--with", device, "--name", "again"];
            let said = world.forebay(&[&cache[..], more].concat()).expect(1);
            said.complains("is the origin of volume big");
        }
    }
    assert!(is_blank(&world, "b.cache"));
}

#[test]
fn a_dry_run_for_a_volume_that_is_there_says_that_nothing_would_be_done() {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    for command in [
        &["volume", "create", "big", "--origin", "big.img", "--dry-run"][..],
        &["cache", "big.img", "--with", "ssd.img", "--dry-run"],
    ] {
        let said = world.forebay(command).expect(0);
        let said = said.says("volume big is there already: nothing would be done");
        let said = said.says("nothing was changed (--dry-run)");
        assert!(!said.out.contains("try it"), "{said:#?}");
    }
}

#[test]
fn a_dry_run_of_a_removal_refuses_what_the_removal_would() {
    let mut world = World::started();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"];
    world.forebay(&cache).expect(0);
    let client = world.nbd("big");
    for verb in ["remove", "detach"] {
        let said = world.forebay(&["volume", verb, "big", "--dry-run"]).expect(4);
        said.complains("1 client(s) are connected");
    }
    drop(client);
    let mut client = world.nbd("big");
    client.write(0, &pattern(4, 1 << 20)).unwrap();
    client.flush().unwrap();
    world.kill();
    drop(client);
    fs::rename(world.path("big.img"), world.path("away.img")).unwrap();
    world.start();
    for verb in [&["remove"][..], &["detach"], &["drain"], &["mode", "big", "writethrough"]] {
        let name: &[&str] = if verb.len() == 1 { &["big"] } else { &[] };
        for more in [&["--dry-run"][..], &[]] {
            let said = world.forebay(&[&["volume"][..], verb, name, more].concat()).expect(1);
            said.complains("the origin").complains("cannot be used");
        }
    }
}

#[test]
fn a_pool_of_another_name_than_was_configured_is_told_of_one_device() {
    let mut world = World::started();
    world.forebay(&["pool", "create", "fast", "ssd.img"]).expect(0);
    world.stop();
    fs::remove_dir_all(world.state_dir()).unwrap();
    fs::create_dir(world.state_dir()).unwrap();
    let device = world.text("ssd.img");
    let text = format!("[[pool]]\nname = \"slow\"\ndevices = [\"{device}\"]\n");
    fs::write(world.state_dir().join("forebay.toml"), text).unwrap();
    world.start();
    let status = world.forebay(&["status"]).expect(3);
    status.says("ssd.img holds the pool \"fast\", not \"slow\"");
}
