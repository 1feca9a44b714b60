//! forebayd: the process that serves Forebay's volumes.
//!
//! One thread for each pool does all its work (see `forebay_host::shard`). Beside them: this thread
//! with the control socket, one that looks after things now and then, and one for each job that
//! waits for a drain.
#![forbid(unsafe_code)]

mod control;
mod convert;
mod export;
mod job;
mod journal;
mod listeners;
mod lock;
mod looks;
mod manager;
mod memories;
mod memory;
mod panics;
mod parts;
mod place;
mod rescue;
mod sampler;
mod state;
mod supervisor;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use forebay_api::ErrorKind;
use forebay_api::config::{CONFIG_PATH, Config, Problem, files_of};
use forebay_host::process;
use manager::Manager;
use place::Place;
use std::fmt;
use std::io::IsTerminal;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use supervisor::Supervisor;

#[global_allocator]
static MEMORY: forebay_host::LazyZeros = forebay_host::LazyZeros;

/// Serves Forebay's volumes. Without root and without systemd: forebayd --state-dir DIR
#[derive(Debug, Parser)]
#[command(name = "forebayd", version)]
struct Args {
    /// Directory of the state; control.sock and nbd.sock go there too [default: as root
    /// /var/lib/forebay with the sockets in /run/forebay, else ~/.local/state/forebay with the
    /// sockets in $XDG_RUNTIME_DIR/forebay]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Configuration; conf.d/*.toml beside it belongs to it [default: DIR/forebay.toml with
    /// --state-dir, else /etc/forebay/forebay.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve NBD over TCP too, at this address and port
    #[arg(long, value_name = "ADDRESS:PORT")]
    nbd_listen: Option<SocketAddr>,
    /// Do not announce the control socket at the place where `forebay` looks by itself
    #[arg(long)]
    private: bool,
    /// How to write the log, which goes to standard error
    #[arg(long, value_enum, default_value = "text")]
    log: LogFormat,
    #[command(subcommand)]
    other: Option<Other>,
}

/// What the program is beside the daemon.
#[derive(Debug, clap::Subcommand)]
enum Other {
    /// Holds open files for the daemon in this state directory; the daemon starts it
    #[command(hide = true)]
    Hold {
        /// The socket to listen on
        socket: PathBuf,
    },
    /// Prints what only the cache devices of a pool that nobody serves hold of a volume; `forebay
    /// volume rescue --from` starts it, and keeps that
    #[command(hide = true)]
    Rescue(rescue::Args),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// A line for people
    Text,
    /// A JSON object a line
    Json,
}

fn main() -> ExitCode {
    let args = Args::parse();
    start_log(args.log);
    panics::log_them();
    process::stand_limits();
    let done = match &args.other {
        Some(Other::Hold { socket }) => export::run_holder(socket),
        Some(Other::Rescue(wanted)) => rescue::run(wanted, args.state_dir.as_deref()),
        None => run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            // What no second try can mend is told apart, so that a service manager makes none.
            match error.is::<BadConfig>() {
                true => ExitCode::from(ErrorKind::Usage.exit_code()),
                false => ExitCode::FAILURE,
            }
        }
    }
}

fn start_log(format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    match format {
        LogFormat::Text if journal::is_connected() => {
            let log = log.with_ansi(false).event_format(journal::Journal);
            log.fmt_fields(journal::fields()).init();
        }
        LogFormat::Text => log.compact().fmt_fields(journal::fields()).init(),
        LogFormat::Json => log.json().init(),
    }
}

/// What matters once block devices of this machine are served, and is best done before there are
/// threads. None of it is needed to serve.
fn stand_apart() {
    if forebay_host::is_root() {
        stand_apart_as_root();
    }
    if let Err(error) = process::forget_rights() {
        tracing::warn!("more rights than it takes to serve: {error}");
    }
}

fn stand_apart_as_root() {
    match process::own_mounts() {
        Ok(true) => tracing::debug!("mounts of its own"),
        Ok(false) => {}
        Err(error) => tracing::warn!("mounts of its own: {error}"),
    }
    if let Err(error) = process::io_flusher() {
        tracing::warn!(
            "the kernel may wait for our block devices to give us memory ({error}): under a \
             memory limit that is shared with their users all may stand still. Give forebayd \
             CAP_SYS_RESOURCE, or a control group of its own"
        );
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    stand_apart();
    let config = read_config(&args)?;
    // Given away when the process has ended, and not before: threads of it that wait for a disk may
    // go on when this one is done, and hold the devices of pools.
    let place = ManuallyDrop::new(Place::take(args.state_dir.as_deref())?);
    let state = state::Store::open(place.state_dir())?;
    config.check_listen(args.nbd_listen).map_err(bad_argument)?;
    let listen = match (args.nbd_listen, &config.nbd_listen) {
        (Some(address), _) => Some(address),
        (None, Some(text)) => Some(text.parse().context("nbd-listen in the configuration")?),
        (None, None) => None,
    };
    let control = place.bind_control()?;
    let announced = if args.private { None } else { place.announce() };
    tracing::info!(
        state_dir = %place.state_dir().display(),
        control = %place.control_socket().display(),
        "forebayd {} starts",
        env!("CARGO_PKG_VERSION")
    );
    if !args.private && announced.is_none() && args.state_dir.is_some() {
        let socket = place.control_socket();
        tracing::info!("tell clients where it is: export FOREBAY_SOCKET={}", socket.display());
    }
    let supervisor = Supervisor::new(&place, config, state, listen)?;
    let manager = Arc::new(Manager::find());
    let own = Arc::clone(&supervisor);
    thread("open", move || {
        if !panics::passes(|| own.open_all()) {
            own.opened_anyway();
        }
    })?;
    let own = Arc::clone(&supervisor);
    thread("watch", move || panics::again(|| own.keep_watch()))?;
    let (telling, told) = (Arc::clone(&manager), Arc::clone(&supervisor));
    thread("manager", move || panics::again(|| telling.keep_told(&told)))?;
    let result = control::serve(control, &supervisor, &manager);
    drop(announced);
    result
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_string());
    thread.spawn(run).map(drop).context("start a thread")
}

fn read_config(args: &Args) -> anyhow::Result<Config> {
    let main = match (&args.config, &args.state_dir) {
        (Some(path), _) => {
            path.metadata().map_err(|error| {
                let message = format!("read it: {error}");
                BadConfig(vec![Problem { file: path.clone(), line: 0, message }])
            })?;
            path.clone()
        }
        (None, Some(dir)) => dir.join("forebay.toml"),
        (None, None) => PathBuf::from(CONFIG_PATH),
    };
    Ok(Config::read(&files_of(&main)).map_err(BadConfig)?)
}

/// What the command line asks for and the configuration does not allow.
fn bad_argument(message: String) -> BadConfig {
    BadConfig(vec![Problem { file: PathBuf::from("--nbd-listen"), line: 0, message }])
}

/// Everything that is wrong with the configuration.
#[derive(Debug)]
struct BadConfig(Vec<Problem>);

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "the configuration has {} problem(s): {}", lines.len(), lines.join("; "))
    }
}

impl std::error::Error for BadConfig {}
