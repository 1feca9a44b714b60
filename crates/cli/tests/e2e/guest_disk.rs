//! A volume as a virtual machine's disk: the socket, who may end it, and what comes back.

use crate::world::{ORIGIN_BYTES, World, pattern};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a machine asks first, and a feature that each must understand.
const GET_FEATURES: u32 = 1;
const VERSION_1: u64 = 1 << 32;
/// Flags of a message: its version, and whether it is a reply.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects as QEMU does. What the disk can do.
pub fn connect(socket: &Path) -> (UnixStream, u64) {
    let mut stream = UnixStream::connect(socket).expect("connect to the disk's socket");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let asked = [GET_FEATURES, VERSION, 0].map(u32::to_le_bytes).concat();
    stream.write_all(&asked).unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).expect("an answer");
    let word = |at: usize| u32::from_le_bytes(reply[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(4), word(8)), (GET_FEATURES, VERSION | REPLY, 8));
    (stream, u64::from_le_bytes(reply[12..].try_into().unwrap()))
}

pub fn waits_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_machines_disk_is_kept_while_a_machine_uses_it_and_is_there_after_a_crash() {
    let mut world = World::started();
    let socket = world.state_dir().join("vhost/big.sock");
    let cache = ["cache", "big.img", "--with", "ssd.img", "--export", "vhost-user"];
    world.forebay(&cache).expect(0).says("vhost/big.sock (vhost-user-blk)");
    let (machine, features) = connect(&socket);
    assert_ne!(features & VERSION_1, 0, "{features:#x}");
    let refused = world.forebay(&["volume", "detach", "big"]).expect(4);
    refused.complains("a virtual machine uses volume big").complains("--force");
    // The machine goes on, and connects again when the daemon was killed.
    drop(machine);
    world.kill();
    world.start();
    waits_until("the socket is there again", || UnixStream::connect(&socket).is_ok());
    let (mut machine, again) = connect(&socket);
    assert_eq!(again, features);
    world.forebay(&["volume", "detach", "big", "--force"]).expect(0);
    assert!(!socket.exists(), "a detached volume has no socket");
    assert_eq!(machine.read(&mut [0; 1]).unwrap_or(0), 0, "its machine is cut off");
    assert!(fs::read(world.path("big.img")).unwrap() == pattern(1, ORIGIN_BYTES));
    world.forebay(&["volume", "attach", "big"]).expect(0);
    // A machine that is just ending is waited for.
    let (machine, _) = connect(&socket);
    let ending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(machine);
    });
    world.forebay(&["volume", "detach", "big"]).expect(0);
    ending.join().unwrap();
    world.forebay(&["volume", "attach", "big"]).expect(0);
    connect(&socket);
    waits_until("a machine that left does not keep the volume", || {
        world.forebay(&["volume", "remove", "big"]).code == 0
    });
}

#[test]
fn a_disk_that_cannot_be_made_is_told_and_made_when_somebody_asks() {
    let world = World::started();
    let place = world.state_dir().join("vhost");
    fs::write(&place, "in the way").unwrap();
    let cache = ["cache", "big.img", "--with", "ssd.img", "--export", "vhost-user"];
    world.forebay(&cache).expect(0).says("it has no block device").says("volume attach big");
    world.forebay(&["status"]).expect(3).says("degraded").says("it has no block device");
    world.forebay(&["volume", "attach", "big"]).expect(1).complains("vhost-user socket");
    fs::remove_file(&place).unwrap();
    world.forebay(&["volume", "attach", "big"]).expect(0).says("vhost/big.sock");
    connect(&place.join("big.sock"));
    let status = world.forebay(&["status"]).expect(0);
    assert!(!status.out.contains("degraded"), "{}", status.out);
}
