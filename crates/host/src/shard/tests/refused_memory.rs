//! The system refuses memory: whoever asks for it waits or is refused, and the pool goes on. It
//! ended by a panic.
//!
//! The limit is one of a process, so each test is run again in a process of its own.

use super::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Instant;

const ALONE: &str = "FOREBAY_TEST_ALONE";
const MIB: u64 = 1 << 20;
const NO_MEMORY: u32 = 12;
/// What is left to the process: more than the spare, and much less than clients may hold.
pub(super) const LEFT: u64 = 48 * MIB;

/// Whether this is the process of the test: else it was run in one.
pub(super) fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let name = format!("shard::tests::{test}");
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &name, "--nocapture"]).env(ALONE, "1");
    // One arena: what is free in others would be counted already.
    command.env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1");
    assert!(command.status().unwrap().success());
    false
}

fn mapped_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// From now on the process gets so many bytes and no more, or as many as it likes.
pub(super) fn allow(more: Option<u64>) {
    let Rlimit { maximum, .. } = getrlimit(Resource::As);
    let current = more.map_or(maximum, |more| Some(mapped_bytes() + more));
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
}

/// A pool with a volume of a gigabyte, and a client that has read and written.
fn warm() -> (Rig, PathBuf, Client) {
    let rig = rig(Backend::Auto);
    let path = rig.dir.path().join("wide");
    std::fs::File::create_new(&path).unwrap().set_len(1 << 30).unwrap();
    rig.add_as("wide", path.to_str().unwrap(), Mode::WriteBack);
    let path = rig.listen();
    let mut client = Client::connect(&path, "wide");
    for _ in 0..16 {
        goes_on(&mut client);
    }
    (rig, path, client)
}

/// A client writes and reads a block.
fn goes_on(client: &mut Client) {
    client.send(wire::Command::Write, 1, 0, 4096, &[7; 4096]);
    assert_eq!(client.reply(), (0, 1));
    client.send(wire::Command::Read, 2, 0, 4096, &[]);
    assert_eq!(client.reply(), (0, 2));
    assert_eq!(client.read(4096), [7; 4096]);
}

#[test]
fn clients_wait_for_memory_that_the_system_refuses_and_others_go_on() {
    if !is_alone("refused_memory::clients_wait_for_memory_that_the_system_refuses_and_others_go_on")
    {
        return;
    }
    let (rig, path, mut honest) = warm();
    let mut greedy: Vec<Client> = (0..4).map(|_| Client::connect(&path, "wide")).collect();
    let mut taken = vec![0; 1 << 20];
    allow(Some(LEFT));
    let reads: Vec<u8> =
        (0..64).flat_map(|n| head(wire::Command::Read, n, (64 + n) * MIB, 1 << 20)).collect();
    greedy.iter_mut().for_each(|it| it.0.write_all(&reads).unwrap());
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        goes_on(&mut honest);
    }
    assert!(rig.server.held_bytes() > 2 * LEFT, "more is asked than there is");
    // Those who take their answers get all of them. Who has taken all that was there is refused
    // while others hold the memory.
    for client in &mut greedy {
        for _ in 0..64 {
            match client.reply().0 {
                0 => client.0.read_exact(&mut taken).unwrap(),
                error => assert_eq!(error, NO_MEMORY),
            }
        }
    }
    goes_on(&mut honest);
    allow(None);
    rig.shard.stop(SECONDS).unwrap();
}

#[test]
fn who_has_nothing_under_way_is_refused_where_there_is_no_memory() {
    if !is_alone("refused_memory::who_has_nothing_under_way_is_refused_where_there_is_no_memory") {
        return;
    }
    let (rig, _path, mut client) = warm();
    let data = vec![9; 1 << 20];
    let write = [head(wire::Command::Write, 4, MIB, 1 << 20), data.clone()].concat();
    let mut back = vec![0; 1 << 20];
    allow(Some(0));
    client.send(wire::Command::Read, 3, MIB, 1 << 20, &[]);
    assert_eq!(client.reply(), (NO_MEMORY, 3));
    client.0.write_all(&write).unwrap();
    assert_eq!(client.reply(), (NO_MEMORY, 4));
    goes_on(&mut client);
    // The last answer may be here before it is counted as sent.
    let start = Instant::now();
    while rig.server.held_bytes() > 0 {
        assert!(start.elapsed() < SECONDS, "{} bytes are held", rig.server.held_bytes());
        std::thread::sleep(Duration::from_millis(1));
    }
    allow(None);
    client.0.write_all(&write).unwrap();
    assert_eq!(client.reply(), (0, 4));
    client.send(wire::Command::Read, 5, MIB, 1 << 20, &[]);
    assert_eq!(client.reply(), (0, 5));
    client.0.read_exact(&mut back).unwrap();
    assert!(back == data);
    rig.shard.stop(SECONDS).unwrap();
}
