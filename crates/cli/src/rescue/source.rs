//! Where the parts of what only the cache holds come from: the daemon that serves the pool, or
//! `forebayd rescue`, which reads the devices of one that nobody serves.

use crate::Cli;
use crate::args::RescueArgs;
use crate::path;
use crate::show::unexpected;
use crate::start::program;
use forebay_api::hint::{Care, Devices};
use forebay_api::request::VolumeRescue;
use forebay_api::{ApiError, Body, Client, Hint, Reply, Request, RescuePart, socket};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Whom to ask for the next part.
pub enum Source {
    /// The daemon, with the next request.
    Daemon(Client, Option<VolumeRescue>),
    /// A process of ours, and whether it has printed the last part.
    Devices { child: Child, lines: BufReader<ChildStdout>, is_over: bool },
}

impl Source {
    /// The source that is asked for.
    ///
    /// # Errors
    /// No daemon answers, or `forebayd` cannot be started.
    pub fn open(cli: &Cli, args: &RescueArgs) -> Result<Source, ApiError> {
        if !args.from.is_empty() {
            return start(cli, args);
        }
        let client = cli.client().map_err(|error| {
            let volume = args.name.clone();
            error.hint(Hint::RescueFrom { volume, devices: Devices::Unknown })
        })?;
        let (name, dry_run) = (args.name.clone(), args.dry_run);
        Ok(Source::Daemon(client, Some(VolumeRescue { name, from: 0, dry_run })))
    }

    /// What it is called in a report.
    pub fn name(&self) -> &'static str {
        match self {
            Source::Daemon(..) => "daemon",
            Source::Devices { .. } => "devices",
        }
    }

    /// The next part; `None` behind the last.
    ///
    /// # Errors
    /// Whoever is asked says why, or ends before the end.
    pub fn next(&mut self) -> Result<Option<RescuePart>, ApiError> {
        let body = match self {
            Source::Daemon(client, wanted) => {
                let Some(wanted) = wanted.clone() else { return Ok(None) };
                client.ask(&Request::VolumeRescue(wanted))?
            }
            Source::Devices { is_over: true, .. } => return Ok(None),
            Source::Devices { child, lines, .. } => read(child, lines)?,
        };
        let part = match body {
            Body::Rescued(part) => *part,
            Body::Error { error } => return Err(error),
            body => return Err(unexpected(&body)),
        };
        match self {
            Source::Daemon(_, wanted) => {
                *wanted =
                    wanted.take().zip(part.next).map(|(it, from)| VolumeRescue { from, ..it });
            }
            Source::Devices { is_over, .. } => *is_over = part.next.is_none(),
        }
        Ok(Some(part))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Source::Devices { child, .. } = self {
            // It reads on while nobody takes that. One that has ended is none to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(cli: &Cli, args: &RescueArgs) -> Result<Source, ApiError> {
    let named = cli.socket.as_deref().and_then(socket::state_dir_of);
    let asked = std::env::var_os("FOREBAY_SOCKET").filter(|path| !path.is_empty());
    let asked = asked.and_then(|path| socket::state_dir_of(Path::new(&path)));
    let program = program();
    let mut command = Command::new(&program);
    if let Some(dir) = args.state_dir.clone().or(named).or(asked) {
        command.arg("--state-dir").arg(dir);
    }
    command.arg("rescue");
    command.args(args.force.then_some("--force")).args(args.dry_run.then_some("--dry-run"));
    command.arg("--").arg(&args.name);
    for device in &args.from {
        command.arg(path::device(device)?);
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(|error| {
            ApiError::failed(format!("start {}: {error}", program.display()))
                .hint(Hint::SeeTo { what: Care::Program })
        })?;
    let lines = BufReader::new(child.stdout.take().expect("it is piped"));
    Ok(Source::Devices { child, lines, is_over: false })
}

fn read(child: &mut Child, lines: &mut BufReader<ChildStdout>) -> Result<Body, ApiError> {
    let mut line = Vec::new();
    let read = lines.read_until(b'\n', &mut line);
    read.map_err(|error| ApiError::failed(format!("read what forebayd rescue prints: {error}")))?;
    if line.is_empty() {
        let status = child.wait().map_or_else(|error| error.to_string(), |it| it.to_string());
        return Err(ApiError::failed(format!("forebayd rescue ended too early ({status})")));
    }
    serde_json::from_slice::<Reply>(&line).map(|reply| reply.body).map_err(|error| {
        ApiError::failed(format!("what forebayd rescue prints is not known: {error}"))
            .hint(Hint::SeeTo { what: Care::Version })
    })
}
