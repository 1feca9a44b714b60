//! Developer tasks: `cargo xtask TASK`. One entry point for people and for CI.
#![forbid(unsafe_code)]

mod bench;
mod check;
mod command;
mod e2e;
mod fuzz;
mod golden;
mod install;
mod planted;
mod tidy;
mod vm;

use anyhow::{Result, ensure};
use clap::Parser;
use std::path::Path;

/// Developer tasks of Forebay.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// All that a change must pass: format, lints, tidy, tests, simulator seeds, documentation.
    Ci,
    /// The tests alone: unit and integration tests, simulator seeds, mutation proof.
    Test {
        /// Seeds of simulated worlds to run in swarm mode.
        #[arg(long, default_value_t = check::SEEDS)]
        seeds: u64,
    },
    /// The simulator's seeds that take hours: of the swarm and of each bend.
    Night,
    /// House rules that the compiler does not know.
    Tidy {
        /// Lower the numbers in the list of exceptions to what they are now.
        #[arg(long)]
        shrink: bool,
    },
    /// Measure: writes a dated directory below bench/results.
    Bench {
        /// Which ones; all if none is named.
        names: Vec<String>,
    },
    /// Show the product on simulated disks, without root, in under two minutes.
    Demo {
        /// Handed on to `forebay demo`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// What a user does with a block device, on this machine: needs root, FUSE and loop devices.
    E2e {
        /// Which ones; all if none is named.
        names: Vec<String>,
    },
    /// What others may send us, guided by coverage: takes a C++ compiler.
    Fuzz(fuzz::Arguments),
    /// Put the files of an installation in place, as a package has them.
    Install {
        /// The directory that stands for the root.
        #[arg(long, value_name = "DIR")]
        destdir: std::path::PathBuf,
    },
    /// Scenarios in a virtual machine with stock kernels, and power cuts.
    Vm(vm::Arguments),
    /// The part of `vm` that runs in the virtual machine.
    #[command(hide = true)]
    Guest,
    /// Bugs put into a copy of the checkout, one at a time: a test must fail for each. Takes long.
    Planted {
        /// Which ones; all if none is named.
        names: Vec<String>,
    },
    /// Write the golden images of the on-disk format anew.
    Golden,
}

/// The root of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

fn demo(arguments: &[String]) -> Result<()> {
    command::cargo(&["build", "--release", "-p", "forebay-daemon", "-p", "forebay-cli"])?;
    let forebay = command::release_binary("forebay")?;
    let status = std::process::Command::new(&forebay).arg("demo").args(arguments).status()?;
    ensure!(status.success(), "`forebay demo` failed: {status}");
    Ok(())
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Ci => check::ci(),
        Task::Test { seeds } => check::test(seeds),
        Task::Night => check::night(),
        Task::Tidy { shrink } => tidy::run(root(), shrink),
        Task::Bench { names } => bench::run(&names),
        Task::Demo { arguments } => demo(&arguments),
        Task::E2e { names } => e2e::run(&names),
        Task::Fuzz(arguments) => fuzz::run_targets(&arguments),
        Task::Install { destdir } => install::run(&destdir),
        Task::Vm(arguments) => vm::run(&arguments),
        Task::Guest => vm::guest::main(),
        Task::Planted { names } => planted::run_bugs(&names),
        Task::Golden => golden::write(&root().join("crates/format/tests/golden")),
    }
}
