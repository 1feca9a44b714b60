//! A daemon of its own for each test, with its origin and its cache on files.

use forebay_api::reply::{JobState, State, VolumeInfo};
use forebay_api::request::{CacheRequest, Change, Named, VolumeCreateTiered};
use forebay_api::tiers::Placement;
use forebay_api::{Body, Client, Mode, Request};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take. The machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Daemon {
    directory: tempfile::TempDir,
    child: Child,
    client: Client,
}

impl Daemon {
    /// A daemon with the volume `data`: an origin that holds `origin`, behind a cache of
    /// `cache_bytes`.
    pub fn with_volume(origin: &[u8], cache_bytes: u64, mode: Mode) -> Daemon {
        let daemon = Daemon::with_files(&[("cache", cache_bytes)]);
        std::fs::write(daemon.path("origin"), origin).unwrap();
        let path = |name| daemon.path(name).to_str().unwrap().to_owned();
        let request = CacheRequest {
            export: forebay_api::request::Export::Auto,
            origin: path("origin"),
            devices: vec![path("cache")],
            name: Some("data".to_owned()),
            mode: Some(mode),
            ram: None,
            dry_run: false,
            force: false,
        };
        daemon.ask(&Request::Cache(request));
        daemon
    }

    /// A daemon in a directory with empty files of these sizes.
    fn with_files(files: &[(&str, u64)]) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            File::create(directory.path().join(name)).unwrap().set_len(*bytes).unwrap();
        }
        let child = spawn(&directory);
        let client = Client::new(directory.path().join("state/control.sock"));
        let daemon = Daemon { directory, child, client };
        daemon.wait_for_control();
        daemon
    }

    /// A daemon with the volume `data` of so many bytes, over three tiers of which the slowest
    /// could hold it; one is memory, if `ephemeral`.
    pub fn with_tiers(bytes: u64, ephemeral: bool) -> Daemon {
        const OWN: u64 = 10 << 20;
        let daemon = Daemon::with_files(&[
            ("fast", OWN + bytes / 8),
            ("middle", OWN + bytes / 4),
            ("slow", OWN + bytes),
        ]);
        let path = |name| daemon.path(name).to_str().unwrap().to_owned();
        let fast = match ephemeral {
            true => format!("ram:{}", OWN + bytes / 8),
            false => path("fast"),
        };
        daemon.ask(&Request::VolumeCreateTiered(VolumeCreateTiered {
            name: "data".to_owned(),
            tiers: vec![vec![fast], vec![path("middle")], vec![path("slow")]],
            size: Some(bytes.to_string()),
            use_percent: None,
            overcommit: false,
            placement: Some(Placement::Heat),
            durable: false,
            pool: None,
            mode: None,
            export: forebay_api::request::Export::Auto,
            dry_run: false,
            force: false,
            accept_ephemeral: true,
            allow_missing: false,
        }));
        daemon
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn uri(&self) -> String {
        let socket = self.path("state/nbd.sock");
        format!("nbd+unix:///data?socket={}", socket.display())
    }

    pub fn ask(&self, request: &Request) -> Body {
        self.client.ask(request).unwrap_or_else(|error| panic!("{request:?}: {error:?}"))
    }

    pub fn volume(&self) -> VolumeInfo {
        let named = Named { name: "data".to_owned() };
        match self.ask(&Request::VolumeShow(named)) {
            Body::Volumes { mut volumes } => volumes.remove(0),
            other => panic!("{other:?}"),
        }
    }

    /// Ends the daemon as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{status}: {}", self.log());
    }

    /// Starts a daemon where one was, and waits until it serves.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.directory);
        self.wait_for_control();
        let start = Instant::now();
        while self.volume().state != State::Ok {
            self.look_for_trouble(start, "the volume is not served");
        }
    }

    /// Sends everything home, by a job.
    pub fn drain(&self) {
        let change = Change { name: "data".to_owned(), ..Change::default() };
        self.ask(&Request::VolumeDrain(change));
        let start = Instant::now();
        loop {
            let named = Named { name: "data".to_owned() };
            let Body::Job { job } = self.ask(&Request::Job(named)) else { panic!("not a job") };
            match job.map(|job| job.progress) {
                Some(JobState::Running) => {}
                Some(JobState::Done { .. }) | None => return,
                Some(other) => panic!("{other:?}: {}", self.log()),
            }
            self.look_for_trouble(start, "the drain does not end");
        }
    }

    fn wait_for_control(&self) {
        let start = Instant::now();
        while self.client.ask(&Request::Daemon).is_err() {
            self.look_for_trouble(start, "the daemon does not answer");
        }
    }

    fn look_for_trouble(&self, start: Instant, what: &str) {
        assert!(start.elapsed() < PATIENCE, "{what}: {}", self.log());
        std::thread::sleep(Duration::from_millis(20));
    }

    /// What the daemon has written to its standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

fn spawn(directory: &tempfile::TempDir) -> Child {
    let log = File::options().create(true).append(true).open(directory.path().join("log")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_forebayd"))
        .arg("--private")
        .arg("--state-dir")
        .arg(directory.path().join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}
