//! What runs inside the virtual machine, as a child of its first process.

pub mod daemon;
pub mod fsck;
pub mod load;
pub mod nbd;
pub mod power;
pub mod raid;
pub mod systemd;
pub mod tiers;
pub mod ublk;
pub mod vhost;

use super::qemu::MARK;
use super::scenario::{self, Scenario};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// From the start of a disk: both copies of a superblock, and more.
const EMPTIED_BYTES: usize = 4 << 20;

/// How long what a program printed may take to arrive once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

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

    /// Whether several scenarios run here.
    pub fn shares_boot(&self) -> bool {
        self.word("scenario").is_some_and(|names| names.contains(','))
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
    let find = |name| scenario::find(name).with_context(|| format!("no scenario {name}"));
    let scenarios: Vec<&Scenario> = name.split(',').map(find).collect::<Result<_>>()?;
    let whole_system = scenarios.iter().any(|scenario| scenario.system.is_some());
    match run_all(&guest, &scenarios) {
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

/// Runs scenarios one after the other, each with disks that look new.
fn run_all(guest: &Guest, scenarios: &[&Scenario]) -> Result<()> {
    for (number, scenario) in scenarios.iter().enumerate() {
        say("start", scenario.name);
        if number > 0 {
            empty_disks(guest, scenario)?;
        }
        let start = Instant::now();
        (scenario.run)(guest).with_context(|| scenario.name.to_string())?;
        if scenarios.len() > 1 {
            let seconds = start.elapsed().as_secs();
            say("measured", &format!("{}: {seconds} s in the guest", scenario.name));
        }
        if let Some(module) = scenario.without.filter(|_| number + 1 < scenarios.len()) {
            run("insmod", &[&format!("/modules/{module}.ko")])?;
        }
    }
    Ok(())
}

/// Takes from a scenario's disks what another one left: superblocks and file systems.
fn empty_disks(guest: &Guest, scenario: &Scenario) -> Result<()> {
    daemon::forget_state()?;
    for (name, _) in scenario.disks {
        let disk = guest.disk(name)?;
        let mut file = fs::File::options().write(true).open(&disk)?;
        file.write_all(&vec![0; EMPTIED_BYTES]).and_then(|()| file.sync_all())?;
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
    let mut child = command.spawn().with_context(|| format!("start {program}"))?;
    let streams = [
        Gathered::from(child.stdout.take().expect("piped")),
        Gathered::from(child.stderr.take().expect("piped")),
    ];
    let (send, end) = std::sync::mpsc::channel();
    let id = child.id().to_string();
    std::thread::spawn(move || send.send(child.wait()));
    match end.recv_timeout(limit) {
        Ok(status) => {
            let [stdout, stderr] = streams.map(Gathered::all);
            Ok(Output { status: status?, stdout, stderr })
        }
        Err(_) => {
            for stream in &streams {
                println!("{}", String::from_utf8_lossy(&stream.so_far()));
            }
            // Left behind if it cannot be killed: that is what is being told.
            let _ = Command::new("kill").args(["-9", &id]).status();
            bail!("`{program} {}` did not end in {limit:?}", arguments.join(" "))
        }
    }
}

/// What a program prints, read as it comes.
struct Gathered {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Gathered {
    fn from(mut stream: impl Read + Send + 'static) -> Gathered {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut chunk) {
                own.lock().expect("no panic holds it").extend_from_slice(&chunk[..count]);
            }
        });
        Gathered { bytes, reader }
    }

    fn so_far(&self) -> Vec<u8> {
        self.bytes.lock().expect("no panic holds it").clone()
    }

    /// What was printed by a program that has ended. One that it left behind may hold the stream.
    fn all(self) -> Vec<u8> {
        let end = Instant::now() + LAST_WORDS;
        while !self.reader.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.so_far()
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
