//! A daemon that a control group holds to little memory.

use crate::world::{World, pattern};
use forebay_nbd::client::Connection;
use forebay_nbd::wire::Command as Nbd;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A control group with a limit of memory.
struct Group(PathBuf);

impl Group {
    /// `None` where none can be made.
    fn new(name: &str, bytes: u64) -> Option<Group> {
        let root = Path::new("/sys/fs/cgroup");
        let kinds = [("memory", "memory.limit_in_bytes"), ("", "memory.max")];
        kinds.into_iter().find_map(|(below, limit)| {
            let group = root.join(below).join(format!("forebay-{name}-{}", std::process::id()));
            if !root.join(below).join("cgroup.procs").exists() || fs::create_dir(&group).is_err() {
                return None;
            }
            let group = Group(group);
            fs::write(group.0.join(limit), bytes.to_string()).ok().map(|()| group)
        })
    }

    /// Starts the daemon in it.
    fn launch(&self, world: &mut World) {
        let daemon = world.daemon_command();
        let mut shell = Command::new("bash");
        let script = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", self.0.display());
        shell.arg("-c").arg(script).arg(daemon.get_program()).args(daemon.get_args());
        shell.stdin(Stdio::null()).stdout(Stdio::null());
        world.spawn(shell);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The daemon may still be on its way out.
        let begin = Instant::now();
        while fs::remove_dir(&self.0).is_err() && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Finding S12: four of them had the daemon killed.
#[test]
fn twenty_clients_that_do_not_read_leave_an_honest_one_served_under_a_limit() {
    let Some(group) = Group::new("clients", 256 << 20) else {
        return eprintln!("skipped: no control group for memory can be made");
    };
    let mut world = World::new();
    group.launch(&mut world);
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    let socket = world.state_dir().join("nbd.sock");
    let connect = || Connection::open(UnixStream::connect(&socket).unwrap(), "big").unwrap();
    let deaf: Vec<_> = (0..20)
        .map(|_| {
            let mut connection = connect();
            for _ in 0..32 {
                connection.send(Nbd::Read, 0, 4 << 20, &[]).unwrap();
            }
            connection
        })
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    let (mut honest, all) = (connect(), pattern(1, crate::world::ORIGIN_BYTES));
    let begin = Instant::now();
    for (number, len) in [4 << 10, 256 << 10].into_iter().cycle().take(40).enumerate() {
        let (at, mut data) = (number * 516 * 1024, vec![0; len]);
        honest.read(at as u64, &mut data).unwrap();
        assert!(data == all[at..at + len]);
        honest.write(at as u64, &data).unwrap();
    }
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let client = forebay_api::Client::new(world.state_dir().join("control.sock"));
    let Ok(forebay_api::Body::Daemon(daemon)) = client.ask(&forebay_api::Request::Daemon) else {
        panic!("no daemon");
    };
    assert_eq!(daemon.clients_cap_bytes, 32 << 20);
    assert!((1 << 20..32 << 20).contains(&daemon.clients_bytes), "{daemon:?}");
    drop(deaf);
    world.stop();
}

#[test]
fn a_limit_that_is_too_small_for_a_pool_is_said_and_the_daemon_stays() {
    let Some(group) = Group::new("small", 100 << 20) else {
        return eprintln!("skipped: no control group for memory can be made");
    };
    let mut world = World::started();
    world.forebay(&["cache", "big.img", "--with", "ssd.img"]).expect(0);
    world.stop();
    group.launch(&mut world);
    let why = "raise the memory limit of forebayd (MemoryMax= of its unit, or its control group)";
    let said = world.forebay(&["status", "-o", "json"]);
    assert!(said.out.contains(why), "{said:#?}");
    assert!(world.log().contains("needs at least"), "{}", world.log());
    world.stop();
}
