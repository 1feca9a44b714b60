//! `--run`: a daemon of the user's own, in the background.

use crate::Cli;
use forebay_api::hint::Care;
use forebay_api::socket::{CONTROL_SOCKET, default_state_dir};
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
fn program() -> PathBuf {
    let beside = std::env::current_exe().map(|own| own.with_file_name("forebayd"));
    beside.ok().filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("forebayd"))
}

fn start(dir: &Path) -> Result<Client, ApiError> {
    let program = program();
    let failed = |what: &str, error: std::io::Error| ApiError::failed(format!("{what}: {error}"));
    fs::create_dir_all(dir).map_err(|e| failed(&format!("make {}", dir.display()), e))?;
    let dir = fs::canonicalize(dir).map_err(|e| failed(&format!("find {}", dir.display()), e))?;
    let log_path = dir.join("forebayd.log");
    let log = File::options()
        .create(true)
        .append(true)
        .open(&log_path)
        .map_err(|e| failed(&format!("open {}", log_path.display()), e))?;
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
            eprintln!(
                "started forebayd (process {}) with its state and log in {}",
                child.id(),
                dir.display()
            );
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
