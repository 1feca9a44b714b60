//! The grammar: noun, verb. Help texts and shell completions come from here.

mod rescue;
mod tiers;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use forebay_api::request::Export;
use forebay_api::{Mode, Size};
pub use rescue::RescueArgs;
use std::path::PathBuf;
pub use tiers::{ExplainArgs, TierAddArgs, TierArgs, TierCommand, TieredArgs};

/// A cache of fast storage in front of slow storage, as an ordinary block device.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done (also when nothing had to change), 1 failed, 2 usage, \
    3 degraded, 4 refused for safety.")]
pub struct Cli {
    /// Control socket of the daemon, or its directory [default: $FOREBAY_SOCKET, else
    /// /run/forebay/control.sock, else $XDG_RUNTIME_DIR/forebay/control.sock]
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub socket: Option<PathBuf>,
    /// How to print
    #[arg(short = 'o', long = "output", global = true, value_enum, default_value = "table")]
    pub output: Format,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For people, with more columns
    Wide,
    /// One JSON document, of several reports one a line; sizes in bytes, ratios 0 to 1
    Json,
    /// One JSON object a line
    Jsonl,
    /// Comma separated values with a heading; sizes in bytes
    Csv,
}

/// Whether words that are no command ask for JSON all the same.
pub fn wanted_json(words: &[String]) -> Option<Format> {
    let mut given = words.iter().take_while(|word| *word != "--").map(String::as_str);
    let mut format = None;
    while let Some(word) = given.next() {
        let short = word.strip_prefix("-o").map(|value| value.strip_prefix('=').unwrap_or(value));
        let value = match word {
            "-o" | "--output" => given.next(),
            _ => word.strip_prefix("--output=").or(short),
        };
        format = value.and_then(|value| Format::from_str(value, false).ok()).or(format);
    }
    format.filter(|format| matches!(format, Format::Json | Format::Jsonl))
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Put fast devices in front of an origin: makes the pool, the volume and the export
    Cache(CacheArgs),
    /// Pools of cache devices
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Volumes: the block devices that clients see
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Tiers of volumes: devices between which data moves
    #[command(subcommand)]
    Tier(TierCommand),
    /// Show on which tier parts of a volume live, and why there
    Explain(ExplainArgs),
    /// Show all volumes on a line each, and what needs attention
    Status,
    /// Show rates, hit ratios and latencies
    Iostat(IostatArgs),
    /// Show what was not cached, by reason
    Why {
        /// The volume
        volume: String,
    },
    /// The daemon's configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Show what is on a cache device; needs no daemon and never writes
    Inspect(InspectArgs),
    /// Show what a cache does, on simulated disks: without root, in under two minutes
    Demo(DemoArgs),
}

/// Flags of every verb that changes something.
#[derive(Debug, Clone, Args)]
pub struct ChangeFlags {
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask before data is overwritten
    #[arg(short, long)]
    pub yes: bool,
}

/// Arguments of `cache`.
#[derive(Debug, Args)]
// What --with takes has no end but another option.
#[command(override_usage = "forebay cache <ORIGIN> --with <DEVICE>... [OPTIONS]")]
pub struct CacheArgs {
    /// What is slow: a file, a block device, spindle:PATH?preset=nas-5400 or ram:SIZE
    #[arg(value_hint = ValueHint::AnyPath)]
    pub origin: String,
    /// What is fast: files or block devices
    #[arg(long = "with", value_name = "DEVICE", required = true, num_args = 1..,
        value_hint = ValueHint::AnyPath)]
    pub devices: Vec<PathBuf>,
    /// How writes are cached: writethrough, writeback, writearound, writeonly, passthrough
    #[arg(long)]
    pub mode: Option<Mode>,
    /// Name of the volume [default: after the origin]
    #[arg(long)]
    pub name: Option<String>,
    /// How it is made visible: auto, ublk, loop, nbd-kernel, nbd, vhost-user or none
    #[arg(long, default_value = "auto")]
    pub export: Export,
    /// Most memory that a new pool may take, as 4G, or 10% of the machine's
    #[arg(long, value_name = "SIZE")]
    pub ram: Option<Size>,
    /// Overwrite what the cache devices hold
    #[arg(long)]
    pub force: bool,
    /// Start a daemon in the background if none answers
    #[arg(long)]
    pub run: bool,
    /// State directory of the daemon that --run starts
    #[arg(long, requires = "run", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub flags: ChangeFlags,
}

/// Verbs of `pool`.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Make a pool of cache devices; says first how much memory it will need
    Create(PoolCreateArgs),
    /// List all pools
    List,
    /// Show one pool
    Show {
        /// The pool
        name: String,
    },
    /// Put another device in the place of one that failed, or still works, while the pool serves
    Replace(PoolReplaceArgs),
    /// Take a pool without volumes off its devices
    Destroy {
        /// The pool
        name: String,
        #[command(flatten)]
        flags: ChangeFlags,
    },
}

/// Arguments of `pool replace`.
#[derive(Debug, Args)]
pub struct PoolReplaceArgs {
    /// The pool
    pub name: String,
    /// The device that goes, as `forebay pool show` has it
    #[arg(value_hint = ValueHint::AnyPath)]
    pub old: PathBuf,
    /// The device that comes: empty, and as large; or OLD again, to bring it back empty
    #[arg(value_hint = ValueHint::AnyPath)]
    pub new: PathBuf,
    /// Overwrite what the new device holds
    #[arg(long)]
    pub force: bool,
    /// Do not wait until all that is dirty has two copies again
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub flags: ChangeFlags,
}

/// Arguments of `pool create`.
#[derive(Debug, Args)]
pub struct PoolCreateArgs {
    /// Name of the pool
    pub name: String,
    /// Its devices: files or block devices
    #[arg(required = true, value_name = "DEVICE", value_hint = ValueHint::AnyPath)]
    pub devices: Vec<PathBuf>,
    /// Most memory that it may take, as 4G, or 10% of the machine's
    #[arg(long, value_name = "SIZE")]
    pub ram: Option<Size>,
    /// Overwrite what the devices hold
    #[arg(long)]
    pub force: bool,
    /// The pool that is on the devices has dirty data, and nobody can tell how old that is: go on
    /// with it
    #[arg(long, conflicts_with = "force")]
    pub keep_dirty: bool,
    #[command(flatten)]
    pub flags: ChangeFlags,
}

/// Verbs of `volume`.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Put a pool in front of an origin, or tiers together
    Create(VolumeCreateArgs),
    /// List all volumes
    List,
    /// Show one volume
    Show {
        /// The volume
        name: String,
    },
    /// Switch the mode, live; drains first when dirty data may not stay
    Mode {
        /// The volume
        name: String,
        /// writethrough, writeback, writearound, writeonly or passthrough
        mode: Mode,
        #[command(flatten)]
        flags: JobFlags,
    },
    /// Make the volume as large as its origin has become, while it is in use
    Resize(ResizeArgs),
    /// Send all dirty data to the origin; the volume goes on in its mode
    Drain(JobArgs),
    /// Drain, then take out of service: the origin holds everything. `attach` brings it back
    Detach(JobArgs),
    /// Bring a detached or offline volume into service
    Attach(AttachArgs),
    /// Drain, take out of service and forget: the origin holds everything
    Remove(RemoveArgs),
    /// Keep what only the cache holds in a file, for when the origin is gone, or the pool does not
    /// open
    Rescue(RescueArgs),
    /// End a drain, a switch of mode, a detach or a removal that is under way: the volume goes on
    Cancel {
        /// The volume
        name: String,
    },
}

/// Flags of a verb that may take as long as there is dirty data.
#[derive(Debug, Clone, Args)]
pub struct JobFlags {
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask before data is lost
    #[arg(short, long)]
    pub yes: bool,
    /// Return at once; the daemon goes on, and `volume show` tells how far it is
    #[arg(long)]
    pub no_wait: bool,
}

/// A volume and what to do with it. Ctrl-C while it drains stops that: the volume stays as it was.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// The volume
    pub name: String,
    #[command(flatten)]
    pub flags: JobFlags,
    /// Also when clients are connected: they get errors
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `volume remove`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// Also when missing cache devices hold dirty data of the volume, which is lost
    #[arg(long)]
    pub drop_dirty: bool,
}

/// Arguments of `volume create`.
#[derive(Debug, Args)]
pub struct VolumeCreateArgs {
    /// Name of the volume
    pub name: String,
    /// What is slow: a file, a block device, spindle:PATH?preset=nas-5400 or ram:SIZE
    #[arg(long, value_name = "URI", value_hint = ValueHint::AnyPath,
        required_unless_present = "tiers")]
    pub origin: Option<String>,
    /// A tier, the fastest first: a file, a block device, ram:SIZE, or several with commas between
    /// them; given once for each tier. Data lives on one of them, and moves
    #[arg(long = "tier", value_name = "DEVICE[,DEVICE]", value_hint = ValueHint::AnyPath,
        conflicts_with = "origin")]
    pub tiers: Vec<String>,
    #[command(flatten)]
    pub tiered: TieredArgs,
    /// The pool that caches it; of an origin it may be left out when there is only one, and tiers
    /// need none
    #[arg(long)]
    pub pool: Option<String>,
    /// How writes are cached: writethrough, writeback, writearound, writeonly, passthrough
    #[arg(long)]
    pub mode: Option<Mode>,
    /// How it is made visible: auto, ublk, loop, nbd-kernel, nbd, vhost-user or none
    #[arg(long, default_value = "auto")]
    pub export: Export,
    #[command(flatten)]
    pub flags: ChangeFlags,
}

/// Arguments of `volume attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// The volume
    pub name: String,
    /// The origin was changed and is right: forget what the cache holds, dirty data too
    #[arg(long, conflicts_with = "keep_dirty")]
    pub drop_dirty: bool,
    /// The origin was changed and the cache is right: write the dirty data to it as it is now. Or
    /// devices of the pool will never be back: go on with those here, without what only they hold
    #[arg(long)]
    pub keep_dirty: bool,
    /// The origin is here from now on: a disk that holds a copy of the one before, or the same one
    #[arg(long, value_name = "NEW", conflicts_with = "drop_dirty")]
    pub origin: Option<String>,
    #[command(flatten)]
    pub flags: ChangeFlags,
}

/// Arguments of `volume resize`.
#[derive(Debug, Args)]
pub struct ResizeArgs {
    /// The volume
    pub name: String,
    /// How large, such as 200G [default: all of the origin]
    #[arg(long)]
    pub size: Option<String>,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `iostat`.
#[derive(Debug, Args)]
pub struct IostatArgs {
    /// Seconds between two reports [default: one report only]
    #[arg(value_parser = parse_interval)]
    pub interval: Option<f64>,
    /// Reports in all [default: until Ctrl-C]
    pub count: Option<u64>,
    /// Latencies too
    #[arg(short = 'l', long)]
    pub latency: bool,
    /// Each device of tiers, too
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Leave out the first report, which is about the time since the start
    #[arg(short = 'y', long)]
    pub skip_first: bool,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("an interval is a number of seconds from 0.1 to 86400".to_string()),
    }
}

/// Verbs of `config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Report everything that is wrong with the configuration; changes nothing
    Check {
        /// The main file; conf.d/*.toml beside it belongs to it
        #[arg(default_value = forebay_api::config::CONFIG_PATH, value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// List all keys of the configuration
    Keys,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A cache device or a copy of one; or members of a tiered volume, looked at together
    #[arg(required = true, value_name = "DEVICE", value_hint = ValueHint::AnyPath)]
    pub devices: Vec<PathBuf>,
    /// Segments whose first records are shown
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub segments: u32,
    /// Records shown of each segment
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub records: u32,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Keep the folder with disk, cache and state, and say how to go on with it
    #[arg(long)]
    pub keep: bool,
    /// Where to write the page with the plots
    #[arg(long, value_name = "FILE", default_value = "forebay-demo.html",
        value_hint = ValueHint::FilePath)]
    pub html: PathBuf,
}
