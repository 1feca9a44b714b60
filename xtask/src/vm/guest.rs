//! What runs inside the virtual machine, as a child of its first process.

pub mod daemon;
pub mod fsck;
pub mod load;
pub mod nbd;
pub mod power;
pub mod systemd;
pub mod ublk;
pub mod vhost;

use super::qemu::MARK;
use super::scenario;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What the kernel's command line says.
pub struct Guest {
    words: Vec<String>,
}

impl Guest {
    /// The value of `forebay.NAME=`.
    pub fn word(&self, name: &str) -> Option<&str> {
        self.words
            .iter()
            .find_map(|word| word.strip_prefix("forebay.")?.strip_prefix(name)?.strip_prefix('='))
    }

    /// The number in `forebay.NAME=`, or 0.
    pub fn number(&self, name: &str) -> u64 {
        self.word(name).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// The disk whose serial number is `name`.
    ///
    /// # Errors
    /// If there is none.
    pub fn disk(&self, name: &str) -> Result<PathBuf> {
        for entry in fs::read_dir("/sys/block")? {
            let entry = entry?;
            let serial = fs::read_to_string(entry.path().join("serial")).unwrap_or_default();
            if serial.trim() == name {
                return Ok(PathBuf::from("/dev").join(entry.file_name()));
            }
        }
        bail!("no disk with the serial number {name}")
    }
}

/// Runs the scenario that the kernel's command line names, and tells its result on the console.
///
/// # Errors
/// If there is no such scenario.
pub fn main() -> Result<()> {
    let line = fs::read_to_string("/proc/cmdline").context("read the kernel's command line")?;
    let guest = Guest { words: line.split_whitespace().map(str::to_string).collect() };
    let name =
        guest.word("scenario").context("this runs in a virtual machine: `cargo xtask vm`")?;
    if name == "shell" {
        println!("forebayd, forebay, fio and busybox are here; `exit` ends the machine.");
        Command::new("setsid").args(["cttyhack", "sh"]).status()?;
        return Ok(());
    }
    if name == "none" {
        say("pass", name);
        return Ok(());
    }
    let scenario = scenario::find(name).with_context(|| format!("no scenario {name}"))?;
    say("start", name);
    let whole_system = scenario.system.is_some();
    match (scenario.run)(&guest) {
        Ok(()) if whole_system && guest.number("life") < guest.number("last") => say("next", name),
        Ok(()) => say("pass", name),
        Err(error) => {
            show_state();
            say("fail", &format!("{error:#}").replace('\n', " | "));
        }
    }
    if whole_system {
        run("systemctl", &["poweroff", "--no-block"])?;
    }
    Ok(())
}

/// Prints a line for the host.
pub fn say(word: &str, rest: &str) {
    println!("{MARK}{word} {rest}");
    let _ = std::io::stdout().flush();
}

/// What helps to understand a failure.
fn show_state() {
    let user_processes = "ps -o pid,stat,args | grep -v '\\['";
    for (program, arguments) in [
        ("dmesg", &[][..]),
        ("sh", &["-c", user_processes]),
        ("tail", &["-n40", daemon::LOG]),
        ("journalctl", &["-b", "-n60", "--no-pager", "-o", "short-monotonic"]),
    ] {
        let shown = output(program, arguments, Duration::from_secs(5));
        match shown {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let lines: Vec<&str> = text.lines().collect();
                println!("--- {program}\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
            }
            Err(e) => println!("--- {program}: {e:#}"),
        }
    }
}

/// Runs a program to its end, but at most for `limit`.
///
/// # Errors
/// If it cannot be started or does not end. That it fails is in the output.
pub fn output(program: &str, arguments: &[&str], limit: Duration) -> Result<Output> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().with_context(|| format!("start {program}"))?;
    let (send, end) = std::sync::mpsc::channel();
    let id = child.id().to_string();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    match end.recv_timeout(limit) {
        Ok(output) => Ok(output?),
        Err(_) => {
            // Left behind if it cannot be killed: that is what is being told.
            let _ = Command::new("kill").args(["-9", &id]).status();
            bail!("`{program} {}` did not end in {limit:?}", arguments.join(" "))
        }
    }
}

/// Runs a program that must succeed within a minute (software emulation is slow) and returns what
/// it printed.
///
/// # Errors
/// With the end of what it printed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    run_for(program, arguments, Duration::from_secs(60))
}

/// As [`run`], with another limit.
///
/// # Errors
/// As [`run`].
pub fn run_for(program: &str, arguments: &[&str], limit: Duration) -> Result<String> {
    let start = Instant::now();
    let output = output(program, arguments, limit)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let words = format!("{program} {}", arguments.join(" "));
    println!("{:6.2} s  {words}", start.elapsed().as_secs_f64());
    let lines: Vec<&str> = out.lines().chain(err.lines()).collect();
    let tail = lines[lines.len().saturating_sub(8)..].join(" | ");
    if !output.status.success() {
        println!("{out}\n{err}");
        bail!("`{words}`: {}: {tail}", output.status);
    }
    Ok(out)
}

/// Waits until `ready` says so.
///
/// # Errors
/// With what was waited for.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let end = Instant::now() + limit;
    while !ready()? {
        ensure!(Instant::now() < end, "{what}: not after {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
