//! Another device at the place of one that is gone, and addresses and sizes that are taken or odd.

use crate::world::{ORIGIN_BYTES, World, pattern};
use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

const DEVICE_BYTES: u64 = 64 << 20;

/// A write-back volume with dirty data whose device has made room for a blank one, and the data.
fn replaced() -> (World, Vec<u8>) {
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img", "--mode", "writeback"]).expect(0);
    let mut model = pattern(1, ORIGIN_BYTES);
    let data = pattern(2, 1 << 20);
    let mut client = world.nbd("big");
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    model[..data.len()].copy_from_slice(&data);
    world.kill();
    fs::rename(world.path("ssd.img"), world.path("away.img")).unwrap();
    world.empty_file("ssd.img", DEVICE_BYTES);
    world.start();
    (world, model)
}

#[test]
fn no_pool_is_made_in_the_place_of_one_that_may_hold_dirty_data() {
    let (world, model) = replaced();
    world.forebay(&["status"]).expect(3).says("offline").says("do not use the origin");
    let volume = world.volume("big");
    assert!(volume["dirty_bytes"].is_null() && volume["used_bytes"].is_null(), "{volume}");
    let client = forebay_api::Client::new(world.state_dir().join("control.sock"));
    let (_, metrics) = client.http("GET", "/metrics", b"").unwrap();
    let metrics = String::from_utf8(metrics).unwrap();
    assert!(metrics.contains("forebay_pool_degraded{pool=\"ssd\"} 1"), "{metrics}");
    for how in [&["--yes"][..], &["--force", "--yes"], &["--dry-run"]] {
        let create = [&["pool", "create", "ssd", "ssd.img"], how].concat();
        let said = world.forebay(&create).expect(4);
        said.complains("the volumes big").complains("remove big --drop-dirty");
    }
    // There is no block device whose users could be freed.
    world.forebay(&["volume", "detach", "big", "--force"]).expect(1).complains("ssd.img");
    assert!(fs::read(world.path("ssd.img")).unwrap().iter().all(|&byte| byte == 0));
    fs::rename(world.path("away.img"), world.path("ssd.img")).unwrap();
    world.forebay(&["volume", "attach", "big"]).expect(0);
    assert!(world.nbd("big").read_all() == model);
}

#[test]
fn a_pool_that_another_took_the_place_of_is_old_when_it_is_back() {
    let (mut world, _) = replaced();
    world.forebay(&["volume", "remove", "big", "--drop-dirty", "--yes"]).expect(0);
    world.forebay(&["pool", "create", "ssd", "ssd.img"]).expect(0);
    world.forebay(&["volume", "create", "big", "--origin", "big.img"]).expect(0);
    let new = pattern(3, 8192);
    world.nbd("big").write(0, &new).unwrap();
    world.stop();
    fs::rename(world.path("ssd.img"), world.path("new.img")).unwrap();
    fs::rename(world.path("away.img"), world.path("ssd.img")).unwrap();
    world.start();
    world.forebay(&["status"]).expect(3).says("what they hold is old");
    world.stop();
    fs::rename(world.path("new.img"), world.path("ssd.img")).unwrap();
    world.start();
    world.forebay(&["status"]).expect(0);
    assert!(world.nbd("big").read(0, 8192).unwrap() == new);
}

#[test]
fn another_pool_of_the_name_is_not_the_one_that_was_there() {
    let (mut world, _) = replaced();
    let mut other = World::started();
    other.forebay(&["pool", "create", "ssd", "ssd.img"]).expect(0);
    other.stop();
    fs::rename(other.path("ssd.img"), world.path("ssd.img")).unwrap();
    world.stop();
    world.start();
    world.forebay(&["status"]).expect(3).says("another pool of the name ssd").says("offline");
    let said = world.forebay(&["pool", "create", "ssd", "ssd.img"]).expect(1);
    said.complains("another pool of the name ssd");
}

#[test]
fn a_pool_with_a_device_that_is_gone_is_destroyed_on_the_other() {
    let mut world = World::started();
    world.empty_file("two.img", DEVICE_BYTES);
    world.forebay(&["pool", "create", "pair", "ssd.img", "two.img"]).expect(0);
    world.stop();
    fs::rename(world.path("two.img"), world.path("away.img")).unwrap();
    world.start();
    world.forebay(&["status"]).expect(3).says("forebay pool replace pair");
    let done = world.forebay(&["pool", "destroy", "pair", "--yes"]).expect(0);
    done.says("no longer on").says("two.img was not wiped");
    world.forebay(&["pool", "create", "again", "ssd.img"]).expect(0);
    fs::rename(world.path("away.img"), world.path("two.img")).unwrap();
    let back = world.forebay(&["pool", "create", "pair", "two.img"]).expect(4);
    back.complains("it was not touched");
}

#[test]
fn a_tcp_address_that_is_taken_keeps_no_volume_from_service() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut world = World::new();
    let mut command = world.daemon_command();
    command.args(["--nbd-listen", &address]);
    world.spawn(command);
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    let status = world.forebay(&["status"]).expect(0);
    status.says(&format!("no NBD at {address}")).says("choose another nbd-listen");
    assert!(world.nbd("big").read_all() == pattern(1, ORIGIN_BYTES));
    drop(taken);
    let begin = Instant::now();
    while std::net::TcpStream::connect(&address).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it is tried again");
        std::thread::sleep(Duration::from_millis(200));
    }
    let status = world.forebay(&["status"]).expect(0);
    assert!(!status.out.contains("no NBD at"), "{status:#?}");
}

#[test]
fn a_volume_grows_into_whole_blocks_and_so_can_grow_again() {
    let world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    let origin = fs::File::options().write(true).open(world.path("big.img")).unwrap();
    let bytes = ORIGIN_BYTES as u64;
    origin.set_len(bytes + 8192 + 512).unwrap();
    let said = world.forebay(&["volume", "resize", "big"]).expect(0);
    said.says(&format!("from {bytes} bytes to {} bytes", bytes + 8192));
    origin.set_len(2 * bytes).unwrap();
    world.forebay(&["volume", "resize", "big"]).expect(0);
    assert_eq!(world.volume("big")["bytes"], 2 * bytes);
}

#[test]
fn what_is_attached_again_is_not_said_to_be_empty() {
    let world = World::started();
    world.empty_file("blank.img", 16 << 20);
    world.forebay(&["cache", "blank.img", "--with", "ssd.img"]).expect(0);
    let said = world.forebay(&["volume", "attach", "blank"]).expect(0);
    assert!(!said.out.contains("mkfs"), "{said:#?}");
}
