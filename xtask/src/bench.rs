//! `cargo xtask bench [NAME…]`: the numbers, each with its command and its raw output.
//!
//! A run makes `bench/results/<date>-<names>/` with `machine.txt`, `commands.txt`, the raw output
//! of every measurement, and `summary.md` with medians and targets. A bench is a function here that
//! adds rows.

mod burst;
pub mod daemon;
mod demo;
mod engine;
mod fio;
mod fuse;
mod gap;
mod limited;
pub mod loop_device;
mod nbd;
pub mod nbd_client;
mod recovery;
mod results;
mod settle;
mod simulator;
mod spindle;
mod traces;
mod vhost;

use crate::{command, root};
use anyhow::{Result, ensure};
use results::Results;
use std::path::Path;

/// A bench: its name, and what runs it.
type Bench = (&'static str, fn(&mut Results) -> Result<()>);

/// All benches, in the order in which they run.
const BENCHES: [Bench; 14] = [
    ("engine", engine::run),
    ("settle", settle::run),
    ("nbd", nbd::run),
    ("fuse", fuse::run),
    ("vhost", vhost::run),
    ("limited", limited::run),
    ("spindle", spindle::run),
    ("burst", burst::run),
    ("gap", gap::run),
    ("gap-drain", gap::drain::run),
    ("gap-long", gap::run_long),
    ("recovery", recovery::run),
    ("demo", demo::run),
    ("simulator", simulator::run),
];

/// Runs the named benches, or all.
///
/// # Errors
/// An unknown name, or the first bench that could not run. A target that was missed is no error: it
/// is a line in the summary.
pub fn run(names: &[String]) -> Result<()> {
    if let [name, folder] = names
        && name == "traces"
    {
        return run_traces(Path::new(folder));
    }
    for name in names {
        let known = BENCHES.map(|bench| bench.0);
        ensure!(
            known.contains(&name.as_str()),
            "no bench `{name}`: there are {}, and traces FOLDER",
            known.join(", ")
        );
    }
    // The engine's benches are built by `cargo bench`; the others run what a user runs.
    if names == ["fuse"] || names == ["vhost"] {
        command::cargo(&["build", "--release", "-p", "forebay-daemon", "-p", "forebay-cli"])?;
    } else if names != ["engine"] && names != ["settle"] {
        command::cargo(&["build", "--release", "--workspace"])?;
    }
    let wanted = |bench: &&Bench| names.is_empty() || names.iter().any(|name| name == bench.0);
    let what = if names.is_empty() { "all".to_string() } else { names.join("-") };
    let mut results = Results::create(&root().join("bench/results"), &what)?;
    for (name, run) in BENCHES.iter().filter(wanted) {
        eprintln!("==> bench {name}");
        results.section(name);
        let ended = run(&mut results);
        // What was measured before a failure is kept.
        results.write_summary()?;
        ended?;
    }
    println!("{}", results.directory().display());
    Ok(())
}

/// The bench that needs traces, of which not all may be passed on.
fn run_traces(folder: &Path) -> Result<()> {
    let mut results = Results::create(&root().join("bench/results"), "traces")?;
    results.section("traces");
    traces::run(&mut results, folder)?;
    results.write_summary()?;
    println!("{}", results.directory().display());
    Ok(())
}

/// The middle of the values; the mean of the two middle ones if their number is even.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// Ours over theirs, round by round: what slowed both in a round falls out.
fn ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(super::median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(super::median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(super::median(&[]).is_nan());
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        assert_eq!(super::ratios(&[3.0, 8.0], &[2.0, 4.0]), [1.5, 2.0]);
    }
}
