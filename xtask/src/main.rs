//! Developer tasks: `cargo xtask TASK`. One entry point for people and for CI.
#![forbid(unsafe_code)]

mod golden;

use anyhow::Result;
use clap::Parser;
use std::path::Path;

/// Developer tasks of Forebay.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Write the golden images of the on-disk format anew.
    Golden,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Golden => golden::write(&root().join("crates/format/tests/golden")),
    }
}
