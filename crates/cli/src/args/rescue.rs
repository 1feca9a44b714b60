//! The grammar of `volume rescue`.

use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Arguments of `volume rescue`.
#[derive(Debug, Args)]
pub struct RescueArgs {
    /// The volume
    pub name: String,
    /// The file to write, as large as the volume and sparse, with a map of what is in it beside it
    /// (.map for .img); or a directory, for NAME.img and NAME.map in it
    #[arg(long, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath,
        required_unless_present = "dry_run")]
    pub to: Option<PathBuf>,
    /// The cache devices of the volume's pool, or copies of them, that no daemon uses; of a mirror
    /// one is enough. They are only read. Without this a running daemon is asked
    #[arg(long, value_name = "DEVICE", num_args = 1.., value_hint = ValueHint::AnyPath)]
    pub from: Vec<PathBuf>,
    /// State directory of the daemon that used the devices: tells whether they are the newest
    /// [default: as forebayd has it]
    #[arg(long, requires = "from", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub state_dir: Option<PathBuf>,
    /// Replace files that are there; read devices though they hold an older state than once
    #[arg(long)]
    pub force: bool,
    /// Only read, and say how much would be written and how much is lost
    #[arg(long)]
    pub dry_run: bool,
}
