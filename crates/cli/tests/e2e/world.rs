//! A daemon of the test's own, and the command line that talks to it.

use crate::nbd::Nbd;
use forebay_api::Client;
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Bytes of the origin.
pub const ORIGIN_BYTES: usize = 24 << 20;
/// Bytes of the cache device.
pub const DEVICE_BYTES: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// What a program said.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn of(output: std::process::Output) -> Said {
        Said {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Asserts the exit code, and shows everything if it is another.
    #[track_caller]
    pub fn expect(self, code: i32) -> Said {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Asserts that standard error has this text.
    #[track_caller]
    pub fn complains(self, text: &str) -> Said {
        assert!(self.err.contains(text), "{text:?} is missing in {self:#?}");
        self
    }

    /// Asserts that standard output has this text.
    #[track_caller]
    pub fn says(self, text: &str) -> Said {
        assert!(self.out.contains(text), "{text:?} is missing in {self:#?}");
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:#?}"))
    }
}

/// A directory with a daemon in it.
pub struct World {
    pub dir: TempDir,
    daemon: Option<Child>,
}

/// The program `forebayd`, built beside `forebay`.
fn forebayd() -> PathBuf {
    // A test run of the workspace builds it too, for the daemon's own tests.
    let path = Path::new(env!("CARGO_BIN_EXE_forebay")).with_file_name("forebayd");
    assert!(path.is_file(), "build it first: cargo build -p forebay-daemon");
    path
}

/// Bytes that differ everywhere.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next()).collect();
    bytes.truncate(len);
    bytes
}

impl World {
    /// A directory with an origin full of data and an empty cache device; no daemon yet.
    pub fn new() -> World {
        let dir = TempDir::new().expect("a temporary directory");
        let world = World { dir, daemon: None };
        fs::write(world.path("big.img"), pattern(1, ORIGIN_BYTES)).unwrap();
        world.empty_file("ssd.img", DEVICE_BYTES);
        world
    }

    /// As [`World::new`], with a running daemon.
    pub fn started() -> World {
        let mut world = World::new();
        world.start();
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_string()
    }

    pub fn empty_file(&self, name: &str, bytes: u64) {
        File::create(self.path(name)).unwrap().set_len(bytes).unwrap();
    }

    pub fn state_dir(&self) -> PathBuf {
        self.path("state")
    }

    pub fn daemon_command(&self) -> Command {
        let mut command = Command::new(forebayd());
        command.arg("--private").arg("--state-dir").arg(self.state_dir());
        command.env("SYSTEMD_FSTAB", self.path("fstab"));
        command.env("FOREBAY_DEVICES_DIR", self.path("dev"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Starts the daemon and waits until it has opened its pools.
    pub fn start(&mut self) {
        self.spawn(self.daemon_command());
    }

    /// As [`World::start`]; the kernel refuses it to write to a file behind `bytes`.
    pub fn start_limited(&mut self, bytes: u64) {
        let daemon = self.daemon_command();
        let mut shell = Command::new("bash");
        let script = format!("ulimit -f {}; exec \"$0\" \"$@\"", bytes / 1024);
        shell.arg("-c").arg(script).arg(daemon.get_program()).args(daemon.get_args());
        shell.stdin(Stdio::null()).stdout(Stdio::null());
        self.spawn(shell);
    }

    /// As [`World::start`], of this command.
    pub fn spawn(&mut self, command: Command) {
        self.launch(command);
        self.wait_opened();
    }

    /// Starts a daemon, and waits for nothing.
    pub fn launch(&mut self, mut command: Command) {
        let log = File::options().create(true).append(true).open(self.path("log")).unwrap();
        let child = command.stderr(log).spawn().expect("start forebayd");
        self.daemon = Some(child);
    }

    /// Waits until the daemon has opened its pools.
    pub fn wait_opened(&self) {
        let client = Client::new(self.state_dir().join("control.sock"));
        let begin = Instant::now();
        loop {
            let log = || fs::read_to_string(self.path("log")).unwrap_or_default();
            let status = client.http("GET", "/v1/status", b"");
            let opened = |body: &[u8]| !String::from_utf8_lossy(body).contains("not opened all");
            if status.is_ok_and(|(code, body)| code == 200 && opened(&body)) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "forebayd does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let mut child = self.daemon.take().expect("a running daemon");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Sends the daemon a signal, as `-TERM`.
    pub fn signal(&self, signal: &str) {
        let pid = self.daemon.as_ref().expect("a running daemon").id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(&mut self) {
        self.signal("-TERM");
        let mut child = self.daemon.take().expect("a running daemon");
        let begin = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < PATIENCE, "forebayd does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(child.wait().unwrap().success(), "{}", self.log());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Runs `forebay` in the world's directory.
    pub fn forebay(&self, args: &[&str]) -> Said {
        let output = self.command(args).output().expect("run forebay");
        Said::of(output)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(args).current_dir(self.dir.path());
        command.env("FOREBAY_SOCKET", self.state_dir()).env("NO_COLOR", "1").stdin(Stdio::null());
        command
    }

    /// The one volume of this name, as JSON.
    pub fn volume(&self, name: &str) -> Value {
        self.forebay(&["volume", "show", name, "-o", "json"]).json()
    }

    pub fn nbd(&self, name: &str) -> Nbd {
        Nbd::connect(&self.state_dir().join("nbd.sock"), name)
            .unwrap_or_else(|| panic!("no export {name}: {}", self.log()))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut child) = self.daemon.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("log of forebayd:\n{}", self.log());
        }
    }
}
