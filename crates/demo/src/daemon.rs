//! A real `forebayd`, started beside this program, asked through its control socket, and killed.

use forebay_api::hint::{Care, Log};
use forebay_api::reply::JobState;
use forebay_api::request::{Change, Export, Named, PoolCreate, VolumeCreate, VolumeMode};
use forebay_api::socket::{CONTROL_SOCKET, NBD_SOCKET};
use forebay_api::stats::VolumeCounters;
use forebay_api::tiers::{ExplainTiers, TierSet, VolumeCreateTiered};
use forebay_api::{ApiError, Body, Client, Hint, Mode, Outcome, Request};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::nbd;

/// Longest time from the start of the daemon to its first answer.
const START_MAX: Duration = Duration::from_secs(20);
/// Longest time that a switch of modes may take.
const JOB_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);
/// Name of the demo's cached volume, and of its pool.
pub const VOLUME: &str = "demo";

/// A running daemon. Dropping it kills it.
pub struct Daemon {
    state_dir: PathBuf,
    child: Arc<Mutex<Child>>,
    client: Client,
}

impl Daemon {
    /// Starts `forebayd` on `state_dir` and waits until it answers.
    ///
    /// # Errors
    /// Says why it did not start, with the end of its log.
    pub fn start(state_dir: &Path) -> Result<Daemon, ApiError> {
        let failed = |what: &str, e: std::io::Error| ApiError::failed(format!("{what}: {e}"));
        let program = program();
        let log_path = state_dir.join("forebayd.log");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log_path)
            .map_err(|e| failed(&format!("open {}", log_path.display()), e))?;
        let child = Command::new(&program)
            // Nobody else looks for it, and one that is killed takes no announcement away.
            .arg("--private")
            .arg("--state-dir")
            .arg(state_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C is for the demo; it ends the daemon itself.
            .process_group(0)
            .spawn()
            .map_err(|e| {
                failed(&format!("start {}", program.display()), e)
                    .hint(Hint::SeeTo { what: Care::Build })
            })?;
        let daemon = Daemon {
            state_dir: state_dir.to_path_buf(),
            child: Arc::new(Mutex::new(child)),
            client: Client::new(state_dir.join(CONTROL_SOCKET)),
        };
        let deadline = Instant::now() + START_MAX;
        while daemon.client.ask(&Request::Daemon).is_err() {
            let ended = daemon.child.lock().expect("no holder panics").try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(&log_path).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(5).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                return Err(ApiError::failed(format!(
                    "forebayd does not answer; its log ends in:\n  {}",
                    tail.join("\n  ")
                )));
            }
            thread::sleep(PAUSE);
        }
        Ok(daemon)
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.child.lock().expect("no holder panics").id()
    }

    /// Kills the daemon (SIGKILL) `after` this time, from another thread.
    pub fn kill_after(&self, after: Duration) {
        let child = self.child.clone();
        thread::spawn(move || {
            thread::sleep(after);
            let _ = child.lock().expect("no holder panics").kill();
        });
    }

    /// Waits until the killed daemon is gone.
    pub fn wait_for_death(&self) {
        loop {
            let ended = self.child.lock().expect("no holder panics").try_wait();
            if !matches!(ended, Ok(None)) {
                return;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Makes a pool on `cache`, whatever it holds, and a volume in front of `origin`.
    ///
    /// # Errors
    /// The daemon's.
    pub fn make_volume(&self, cache: &Path, origin: &str, mode: Mode) -> Result<(), ApiError> {
        self.client.ask(&Request::PoolCreate(PoolCreate {
            name: VOLUME.to_string(),
            devices: vec![cache.display().to_string()],
            ram: None,
            dry_run: false,
            force: true,
            keep_dirty: false,
        }))?;
        self.client.ask(&Request::VolumeCreate(VolumeCreate {
            name: VOLUME.to_string(),
            origin: origin.to_string(),
            pool: Some(VOLUME.to_string()),
            mode: Some(mode),
            export: Export::Nbd,
            dry_run: false,
        }))?;
        Ok(())
    }

    /// Switches the mode and waits until that is done, which may include sending dirty data home.
    ///
    /// # Errors
    /// The daemon's, or that it takes too long.
    pub fn switch(&self, mode: Mode) -> Result<Duration, ApiError> {
        let request = VolumeMode { name: VOLUME.to_string(), mode, dry_run: false };
        self.job(&Request::VolumeMode(request))
    }

    /// Sends all dirty data home.
    ///
    /// # Errors
    /// The daemon's, or that it takes too long.
    pub fn drain(&self) -> Result<Duration, ApiError> {
        let request = Change { name: VOLUME.to_string(), ..Change::default() };
        self.job(&Request::VolumeDrain(request))
    }

    fn job(&self, request: &Request) -> Result<Duration, ApiError> {
        let since = Instant::now();
        match self.client.ask(request)? {
            Body::Done(done) if done.outcome == Outcome::Started => {}
            Body::Done(_) => return Ok(since.elapsed()),
            other => return Err(unexpected(&other)),
        }
        let named = Named { name: VOLUME.to_string() };
        loop {
            let Body::Job { job: Some(job) } = self.client.ask(&Request::Job(named.clone()))?
            else {
                return Err(ApiError::failed("the daemon forgot the job that it had started"));
            };
            match job.progress {
                JobState::Running if since.elapsed() > JOB_MAX => {
                    return Err(ApiError::failed(format!("{:?} takes too long", job.job)));
                }
                JobState::Running => thread::sleep(PAUSE),
                JobState::Done { .. } => return Ok(since.elapsed()),
                JobState::Failed { error } => return Err(error),
            }
        }
    }

    /// The counters of the volume.
    ///
    /// # Errors
    /// The daemon's.
    pub fn counters(&self) -> Result<VolumeCounters, ApiError> {
        match self.client.ask(&Request::Counters)? {
            Body::Counters(counters) => counters
                .volumes
                .into_iter()
                .find(|volume| volume.name == VOLUME)
                .ok_or_else(|| ApiError::failed("the daemon does not know its volume any more")),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes a volume over tiers.
    ///
    /// # Errors
    /// The daemon's.
    pub fn make_tiered(&self, wanted: VolumeCreateTiered) -> Result<(), ApiError> {
        self.client.ask(&Request::VolumeCreateTiered(wanted)).map(drop)
    }

    /// Lets moves of a volume copy at most so much a second.
    ///
    /// # Errors
    /// The daemon's.
    pub fn move_at(&self, volume: &str, rate: &str) -> Result<(), ApiError> {
        let rate = Some(rate.to_string());
        let set = TierSet { name: volume.to_string(), rate, ..TierSet::default() };
        self.client.ask(&Request::TierSet(set)).map(drop)
    }

    /// The tier of each mebibyte of a volume; `None` of one that was never written.
    ///
    /// # Errors
    /// The daemon's.
    pub fn places(&self, volume: &str, bytes: u64) -> Result<Vec<Option<u8>>, ApiError> {
        let ranges = vec![(0, bytes)];
        let asked = ExplainTiers { name: volume.to_string(), ranges };
        match self.client.ask(&Request::Explain(asked))? {
            Body::Extents { extents, .. } => Ok(extents.iter().map(|it| it.tier).collect()),
            other => Err(unexpected(&other)),
        }
    }

    /// Removes a volume with all that it holds.
    ///
    /// # Errors
    /// The daemon's.
    pub fn remove(&self, volume: &str) -> Result<(), ApiError> {
        let name = volume.to_string();
        let change = Change { name, force: true, accept_loss: true, ..Change::default() };
        self.client.ask(&Request::VolumeRemove(change)).map(drop)
    }

    /// Connects to the volume, waiting while it is still being opened.
    ///
    /// # Errors
    /// When it does not open in time.
    pub fn connect(&self) -> Result<nbd::Client, ApiError> {
        self.connect_to(VOLUME)
    }

    /// The same for a volume of this name.
    ///
    /// # Errors
    /// When it does not open in time.
    pub fn connect_to(&self, volume: &str) -> Result<nbd::Client, ApiError> {
        let deadline = Instant::now() + START_MAX;
        loop {
            match nbd::Client::connect(&self.state_dir.join(NBD_SOCKET), volume) {
                Ok(client) => return Ok(client),
                Err(error) if Instant::now() > deadline => {
                    return Err(ApiError::failed(format!("connect to the volume: {error}"))
                        .hint(Hint::SeeLog { of: Log::Demo }));
                }
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let mut child = self.child.lock().expect("no holder panics");
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn unexpected(body: &Body) -> ApiError {
    ApiError::failed(format!("an answer to something else: {body:?}"))
        .hint(Hint::SeeTo { what: Care::Version })
}

/// The daemon's program: beside this one, else in the search path.
fn program() -> PathBuf {
    let beside = std::env::current_exe().map(|own| own.with_file_name("forebayd"));
    beside.ok().filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("forebayd"))
}
