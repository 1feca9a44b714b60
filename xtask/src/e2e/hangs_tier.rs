//! A device of tiers hangs: people are told, and for how long; it can be given up, or the volume be
//! taken out of service, in a time that is known.

use super::hangs::{SOON, Sick, begin_io, io, until};
use crate::bench::daemon::{Daemon, Directory};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// After five seconds a device counts as one that does not answer.
const TOLD: Duration = Duration::from_secs(12);
/// What `docs/tiers.md` promises for `volume detach --force`.
const LEAVES: Duration = Duration::from_secs(20);

/// # Errors
/// The first step that fails.
pub fn run() -> Result<()> {
    let directory = Directory::create(None, "e2e-hangs-tier")?;
    let sick = Sick::mount(&directory)?;
    // What does not fit there is on the one that hangs.
    let fast = directory.file("fast", 12 << 20)?.display().to_string();
    let slow = sick.path().display().to_string();
    let other = directory.file("other", 64 << 20)?.display().to_string();
    let mut daemon = Daemon::start(&directory, &[])?;
    let tiers = ["--tier", &fast, "--tier", &slow, "--placement", "spill", "--export", "nbd"];
    daemon.forebay_within(SOON, &[&["volume", "create", "big"][..], &tiers].concat())?;
    io(&daemon, "big", "write -P 1", SOON)?;
    for words in ["write -P 2", "read"] {
        hang(&daemon, &sick, words, &leave)?;
        until(SOON, "the volume is served again", || {
            daemon.said(&["volume", "attach", "big"])?;
            Ok(io(&daemon, "big", "read", SOON).is_ok())
        })?;
    }
    // Beside another one of its tier it is emptied when it answers again, and taken out alone.
    let beside = directory.file("beside", 64 << 20)?.display().to_string();
    daemon.forebay_within(SOON, &["tier", "add", "big", &beside, "--tier", "1"])?;
    hang(&daemon, &sick, "read", &|daemon| cannot_leave(daemon, &slow, &beside))?;
    daemon.forebay_within(LEAVES, &["tier", "evacuate", "big", &slow])?;
    daemon.forebay_within(SOON, &["tier", "cancel", "big", &slow])?;
    daemon.forebay_within(LEAVES, &["tier", "remove", "big", &beside])?;
    let goes_on = |daemon: &Daemon| go_on(daemon, &slow, &other);
    hang(&daemon, &sick, "read", &goes_on)?;
    io(&daemon, "big", "read -P 3", SOON)?;
    daemon.stop()
}

/// Who waits for it to be emptied is told why that does not go on. The others of its tier stay.
fn cannot_leave(daemon: &Daemon, slow: &str, beside: &str) -> Result<()> {
    let (is_empty, told) = daemon.said(&["tier", "evacuate", "big", slow])?;
    ensure!(!is_empty && told.contains("a device does not answer"), "{told}");
    let (_, shown) = daemon.said(&["tier", "show", "big"])?;
    ensure!(shown.contains(&format!("leaves     {slow}, ")), "{shown}");
    let stays = shown.lines().find(|line| line.contains(beside));
    ensure!(stays.is_some_and(|line| line.contains(" ok ")), "{shown}");
    Ok(())
}

/// What an administrator does while the device hangs, and a client waits for it.
fn hang(
    daemon: &Daemon,
    sick: &Sick,
    words: &str,
    does: &dyn Fn(&Daemon) -> Result<()>,
) -> Result<()> {
    sick.signal("-STOP")?;
    let mut stuck = begin_io(daemon, "big", words)?;
    let done = is_waited_for(daemon, sick).and_then(|()| is_told(daemon));
    let done = done.and_then(|()| does(daemon));
    sick.signal("-CONT")?;
    let ended = until(SOON, "who waited goes on", || Ok(stuck.try_wait()?.is_some()));
    let _ = stuck.kill();
    let _ = stuck.wait();
    done.and(ended)
}

/// It answers as long as nobody knows that it does not: who asks early is told when that is known.
fn is_waited_for(daemon: &Daemon, sick: &Sick) -> Result<()> {
    std::thread::sleep(Duration::from_secs(2));
    let slow = sick.path().display().to_string();
    let (_, planned) =
        daemon.said(&["tier", "remove", "big", &slow, "--drop-lost", "--dry-run"])?;
    ensure!(planned.contains("which is here and does not answer"), "{planned}");
    Ok(())
}

fn is_told(daemon: &Daemon) -> Result<()> {
    until(TOLD, "status names the device", || {
        let (is_well, told) = daemon.said(&["status"])?;
        Ok(!is_well && told.contains("has not answered for") && told.contains("action:"))
    })?;
    let waits = || -> Result<u64> {
        let (_, shown) = daemon.said(&["tier", "show", "big"])?;
        let told = shown.split("has not answered for ").nth(1);
        let told = told.with_context(|| format!("tier show calls it well: {shown}"))?;
        Ok(told.split(' ').next().unwrap_or_default().parse()?)
    };
    let first = waits()?;
    std::thread::sleep(Duration::from_secs(3));
    let then = waits()?;
    ensure!((first + 2..first + 6).contains(&then), "{first} s, and 3 s later {then} s");
    Ok(())
}

/// The volume is taken out of service.
fn leave(daemon: &Daemon) -> Result<()> {
    daemon.forebay_within(LEAVES, &["volume", "detach", "big", "--force"])?;
    Ok(())
}

/// The device is given up for good, and another takes its place.
fn go_on(daemon: &Daemon, slow: &str, other: &str) -> Result<()> {
    daemon.forebay_within(SOON, &["tier", "remove", "big", slow, "--drop-lost", "--yes"])?;
    daemon.forebay_within(SOON, &["tier", "add", "big", other])?;
    io(daemon, "big", "write -P 3", SOON)?;
    let (is_well, told) = daemon.said(&["status"])?;
    ensure!(is_well, "{told}");
    Ok(())
}
