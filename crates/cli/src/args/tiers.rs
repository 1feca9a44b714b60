//! The grammar of tiers.

use clap::{Args, Subcommand, ValueHint};
use forebay_api::tiers::Placement;

/// What only a volume over tiers has.
#[derive(Debug, Clone, Args)]
pub struct TieredArgs {
    /// Size of the volume, as 200G, or 80% of what its tiers hold [default: all of that]
    #[arg(long, requires = "tiers")]
    pub size: Option<String>,
    /// How much of each device is used, as 80%; an SSD is faster with some left unwritten
    #[arg(long = "use", value_name = "PERCENT", requires = "tiers", value_parser = parse_percent)]
    pub use_percent: Option<u8>,
    /// The volume may be larger than its tiers together; when they are full, writes fail
    #[arg(long, requires = "tiers")]
    pub overcommit: bool,
    /// heat (what is used moves up) or spill (fill one, then the next) [default: heat]
    #[arg(long, requires = "tiers")]
    pub placement: Option<Placement>,
    /// Refuse tiers whose content ends with the machine
    #[arg(long, requires = "tiers")]
    pub durable: bool,
    /// Overwrite what the devices hold
    #[arg(long, requires = "tiers")]
    pub force: bool,
    /// Serve the volume that is on the devices already without others that belong to it: what
    /// lives on those cannot be read until they are back
    #[arg(long, requires = "tiers", conflicts_with = "force")]
    pub allow_missing: bool,
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("give on or off".to_string()),
    }
}

fn parse_percent(text: &str) -> Result<u8, String> {
    match text.trim_end_matches('%').parse::<u8>() {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => Err("give a share from 1% to 100%".to_string()),
    }
}

/// Verbs of `tier`.
#[derive(Debug, Subcommand)]
pub enum TierCommand {
    /// Show the tiers of a volume
    Show {
        /// The volume
        name: String,
        /// List what of the volume cannot be read
        #[arg(long)]
        lost: bool,
    },
    /// Add a device to the tiers of a volume, while it is in use
    Add(TierAddArgs),
    /// Empty a tier, or devices of one, and take them out; or give up a device that will never be
    /// back
    Remove {
        #[command(flatten)]
        tier: TierArgs,
        /// The device is missing for good: what of the volume lives on it is lost
        #[arg(long)]
        drop_lost: bool,
        /// The volume may be larger than what is left; when that is full, writes fail
        #[arg(long)]
        overcommit: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Move everything off a tier, or devices of one, which take nothing new; goes on after a
    /// restart
    Evacuate {
        #[command(flatten)]
        tier: TierArgs,
        /// The volume may be larger than what is left; when that is full, writes fail
        #[arg(long)]
        overcommit: bool,
        /// Return at once; the daemon goes on, and `tier show` tells how far it is
        #[arg(long)]
        no_wait: bool,
    },
    /// End an evacuation: the tier, or the device, is used again
    Cancel(TierArgs),
    /// Have parts of a volume live on a certain tier
    Pin {
        #[command(flatten)]
        what: ExplainArgs,
        /// The tier: its number, 0 for the fastest, or one of its devices
        #[arg(long)]
        tier: String,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Have parts of a volume live where they would again
    Unpin {
        #[command(flatten)]
        what: ExplainArgs,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Change how data is placed, how fast it moves and when
    Set {
        /// The volume
        name: String,
        /// heat (what is used moves up) or spill (fill one, then the next)
        #[arg(long)]
        placement: Option<Placement>,
        /// Most that moves copy in a second, as 100M; not below 1M
        #[arg(long, value_name = "SIZE")]
        rate: Option<String>,
        /// When moves may run, as 22:00-06:00 in the time zone of forebayd, or always
        #[arg(long, value_name = "FROM-TO")]
        window: Option<String>,
        /// on: the volume may be larger than its tiers; when they are full, writes fail
        #[arg(long, value_name = "on|off", value_parser = parse_switch)]
        overcommit: Option<bool>,
    },
    /// Move nothing until `resume`, also after a restart
    Pause {
        /// The volume
        name: String,
    },
    /// Move again what should move
    Resume {
        /// The volume
        name: String,
    },
}

/// Arguments of `tier add`.
#[derive(Debug, Args)]
pub struct TierAddArgs {
    /// The volume
    pub name: String,
    /// The device: a file, a block device, or ram:SIZE
    #[arg(value_hint = ValueHint::AnyPath)]
    pub device: String,
    /// Put it beside the devices of this tier [default: a new tier, slower than all others]
    #[arg(long, value_name = "N")]
    pub tier: Option<u8>,
    /// Make a new tier of it, before this one
    #[arg(long, value_name = "N", conflicts_with = "tier")]
    pub before: Option<u8>,
    /// How much of it is used, as 80%
    #[arg(long = "use", value_name = "PERCENT", value_parser = parse_percent)]
    pub use_percent: Option<u8>,
    /// Overwrite what it holds
    #[arg(long)]
    pub force: bool,
    /// Do not ask before data is overwritten
    #[arg(short, long)]
    pub yes: bool,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// A tier, or devices of one.
#[derive(Debug, Clone, Args)]
pub struct TierArgs {
    /// The volume
    pub name: String,
    /// Number of the tier, 0 for the fastest; or a device of it, or several with commas between:
    /// the others of that tier stay
    #[arg(value_name = "TIER|DEVICE")]
    pub tier: String,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The volume
    pub name: String,
    /// A sector (512 bytes) of the volume; sectors, as 2048-4095; or a file of a file system that
    /// is mounted from it
    #[arg(value_name = "LBA|FILE")]
    pub what: String,
}
