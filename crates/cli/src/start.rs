//! `--run`: a daemon of the user's own, in the background.

use crate::Cli;
use forebay_api::hint::{Care, Choice};
use forebay_api::socket::{CONTROL_SOCKET, candidates, default_state_dir};
use forebay_api::{ApiError, Client, Hint};
use forebay_format::name::escaped;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(20);
const LOG_LINES: usize = 5;

/// The running daemon, or one that is started in `state_dir`.
///
/// # Errors
/// Says why the daemon did not start, with the end of its log.
pub fn find_or_start(cli: &Cli, state_dir: Option<&Path>) -> Result<Client, ApiError> {
    let own = state_dir.map(|dir| dir.join(CONTROL_SOCKET));
    let found = match &own {
        Some(socket) => Client::find(std::slice::from_ref(socket)),
        None => cli.client(),
    };
    if let Ok(client) = found {
        return Ok(client);
    }
    let dir = state_dir.map_or_else(default_state_dir, Path::to_path_buf);
    start(&dir)
}

/// The daemon's program: beside this one, else in the search path.
pub fn program() -> PathBuf {
    let beside = std::env::current_exe().map(|own| own.with_file_name("forebayd"));
    beside.ok().filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("forebayd"))
}

fn start(dir: &Path) -> Result<Client, ApiError> {
    let program = program();
    let failed = |what: &str, error: std::io::Error| ApiError::failed(format!("{what}: {error}"));
    let of_place = |what: &str, path: &Path, error| {
        let choose = Hint::Choose { what: Choice::StatePlace };
        failed(&format!("{what} {}", path.display()), error).hint(choose)
    };
    fs::create_dir_all(dir).map_err(|error| of_place("make", dir, error))?;
    let dir = fs::canonicalize(dir).map_err(|error| of_place("find", dir, error))?;
    let log_path = dir.join("forebayd.log");
    let log = File::options().create(true).append(true).open(&log_path);
    let log = log.map_err(|error| of_place("open", &log_path, error))?;
    let mut child = Command::new(&program)
        .arg("--state-dir")
        .arg(&dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0)
        .spawn()
        .map_err(|e| {
            failed(&format!("start {}", program.display()), e)
                .hint(Hint::SeeTo { what: Care::Program })
        })?;
    let client = Client::new(dir.join(CONTROL_SOCKET));
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        if client.ask(&forebay_api::Request::Daemon).is_ok() {
            tell(child.id(), &dir);
            return Ok(client);
        }
        let ended = child.try_wait().ok().flatten();
        if ended.is_some() || Instant::now() > deadline {
            let log = fs::read_to_string(&log_path).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
                eprintln!("  {}", escaped(line));
            }
            let what = match ended {
                Some(status) => format!("forebayd ended at once ({status})"),
                None => format!("forebayd does not answer after {START_TIMEOUT:?}"),
            };
            return Err(ApiError::failed(format!("{what}; its log ends so"))
                .hint(Hint::SeeWholeLog { path: log_path.display().to_string() }));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What there is to know of the daemon that was started.
fn tell(process: u32, dir: &Path) {
    let shown = dir.display();
    eprintln!("started forebayd (process {process}) with its state and log in {shown}");
    eprintln!("  to stop it: kill {process}");
    // It leaves a link where `forebay` looks, if there is such a place.
    let own = fs::canonicalize(dir.join(CONTROL_SOCKET));
    let is_own = |path: PathBuf| {
        own.as_ref().is_ok_and(|own| fs::canonicalize(path).is_ok_and(|it| it == *own))
    };
    if !candidates().into_iter().any(is_own) {
        eprintln!("  tell forebay where it is: export FOREBAY_SOCKET={shown}");
    }
}
