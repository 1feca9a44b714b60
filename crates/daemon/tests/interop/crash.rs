//! `kill -9` in the middle of writes: what was acknowledged is there afterwards, in every mode.

use crate::daemon::Daemon;
use crate::tools::{nbd_python, run, tool};
use crate::{MIB, noise};
use forebay_api::Mode;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Writes, remembers what was acknowledged, and checks it. See there.
const MODEL: &str = include_str!("crash.py");

in_every_mode! {
    nothing_acknowledged_is_lost: model,
    fio_finds_what_it_had_written: fio,
}

mod tiers {
    use super::{CYCLES, Daemon, MIB, model_on, write_and_find};

    /// Kills of a run by hand: `FOREBAY_KILLS=200`.
    fn kills() -> u32 {
        let wanted = std::env::var("FOREBAY_KILLS").ok();
        wanted.map_or(CYCLES, |count| count.parse().expect("FOREBAY_KILLS is a number"))
    }

    fn model(ephemeral: bool) {
        let mut daemon = Daemon::with_tiers(32 * MIB as u64, ephemeral);
        if model_on(&mut daemon, &vec![0; 32 * MIB], kills()) {
            let moved = daemon.volume().tiers.expect("it has tiers").moved_bytes;
            eprintln!("{moved} bytes moved in the last life");
        }
    }

    #[test]
    fn nothing_acknowledged_is_lost_while_all_moves() {
        model(false);
    }

    #[test]
    fn nothing_acknowledged_is_lost_from_memory() {
        model(true);
    }

    #[test]
    fn fio_finds_what_it_had_written() {
        write_and_find(&mut Daemon::with_tiers(64 * MIB as u64, false));
    }
}

/// Kills of a run.
const CYCLES: u32 = 3;

/// A libnbd client writes without flushing until the daemon is killed under it. Each sector must
/// then hold the last acknowledged write, or one that was under way.
fn model(mode: Mode) {
    let first = noise(8 * MIB, 6);
    let mut daemon = Daemon::with_volume(&first, 24 << 20, mode);
    if !model_on(&mut daemon, &first, CYCLES) {
        return;
    }
    daemon.drain();
    run(&mut python("check", 9, &daemon));
    let read = run(&mut python("dump", 9, &daemon));
    let origin = std::fs::read(daemon.path("origin")).unwrap();
    let dumped = std::fs::read(daemon.path("journal.dump")).unwrap();
    assert!(origin == dumped, "origin and volume differ after a drain: {read}");
}

/// The model, with its verb.
fn python(verb: &str, seed: u32, daemon: &Daemon) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", MODEL, verb, &daemon.uri(), &seed.to_string()]);
    command.args([daemon.path("origin-copy"), daemon.path("journal")]);
    command
}

/// Has the model write to a volume that holds `first`, kills the daemon so often, and checks.
/// Whether it could be done here.
fn model_on(daemon: &mut Daemon, first: &[u8], kills: u32) -> bool {
    let Some(found) = nbd_python() else { return false };
    drop(found);
    std::fs::write(daemon.path("origin-copy"), first).unwrap();
    for cycle in 0..kills {
        let mut writer = python("write", cycle, daemon);
        let mut writer = writer.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut word = String::new();
        BufReader::new(writer.stdout.as_mut().unwrap()).read_line(&mut word).unwrap();
        assert_eq!(word, "going\n");
        std::thread::sleep(Duration::from_millis(200 + 300 * u64::from(cycle % 4)));
        daemon.kill();
        assert!(writer.wait().unwrap().success());
        daemon.start_again();
        let text = run(&mut python("check", cycle, daemon));
        eprint!("{text}");
    }
    true
}

/// fio keeps the state of its own verification over the kill. What it calls complete was
/// acknowledged, and `kill -9` of the daemon may lose nothing acknowledged, flushed or not.
fn fio(mode: Mode) {
    write_and_find(&mut Daemon::with_volume(&vec![0; 64 * MIB], 48 << 20, mode));
}

fn write_and_find(daemon: &mut Daemon) {
    if tool("fio", "fio").is_none() {
        return;
    }
    let directory = daemon.path("fio");
    std::fs::create_dir(&directory).unwrap();
    let fio = |daemon: &Daemon, more: &[&str]| {
        let mut fio = Command::new("fio");
        fio.current_dir(&directory).args([
            "--name=crash",
            "--ioengine=nbd",
            &format!("--uri={}", daemon.uri()),
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=16",
            "--size=64M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--randseed=9",
            &format!("--aux-path={}", directory.display()),
        ]);
        fio.args(more).stdin(Stdio::null());
        fio
    };
    // fio stops by itself and flushes nothing: killed under it, it counts writes that were under
    // way as complete (so it does with other servers). The model above covers those.
    run(&mut fio(daemon, &["--do_verify=0", "--runtime=2", "--rate_iops=4000"]));
    assert!(directory.join("local-crash-0-verify.state").exists());
    daemon.kill();
    daemon.start_again();
    run(&mut fio(daemon, &["--verify_state_load=1", "--verify_only"]));
}
