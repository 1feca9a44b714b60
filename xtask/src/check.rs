//! `cargo xtask ci` and `cargo xtask test`.

use crate::command::{cargo, cargo_command, run, run_and_read};
use crate::{command, root, tidy};
use anyhow::Result;
use std::time::Instant;

/// Seeds of each run that are bent towards one thing: what fits, beside the swarm, in a quarter of
/// an hour.
const BENT_SEEDS: [(&str, &str); 20] = [
    ("brief", "0..5000"),
    ("away", "0..5000"),
    ("dwindle", "0..1500"),
    ("repair", "0..5000"),
    ("harm", "0..5000"),
    ("starve", "0..5000"),
    ("admin", "0..5000"),
    ("linger", "0..5000"),
    ("turnover", "0..1000"),
    ("spare", "0..5000"),
    ("vain", "0..5000"),
    ("overtake", "0..5000"),
    ("evict", "0..5000"),
    ("untold", "0..500"),
    ("resort", "0..200"),
    ("late", "0..2000"),
    ("replug", "0..1000"),
    ("large", "0..300"),
    ("cloud", "0..100"),
    ("short", "0..1000"),
];
/// Swarm seeds of each run. A run by hand may ask for more.
pub const SEEDS: u64 = 20_000;

/// All that a change must pass.
///
/// # Errors
/// The first step that fails.
pub fn ci() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    tidy::run(root(), false)?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    let mut documentation = cargo_command(&["doc", "--workspace", "--no-deps"]);
    run(documentation.env("RUSTDOCFLAGS", "-D warnings"))?;
    test(SEEDS)
}

/// The tests alone.
///
/// # Errors
/// The first step that fails.
pub fn test(seeds: u64) -> Result<()> {
    let start = Instant::now();
    cargo(&["build", "--release", "--workspace"])?;
    let tests = unit_and_integration_tests()?;
    let examples = examples()?;
    simulator(seeds)?;
    let mutants = mutation_proof()?;
    println!();
    println!("tests:     {tests}");
    println!("examples:  {examples}");
    println!("simulator: {seeds} swarm seeds without a new failure");
    println!("mutants:   {mutants}");
    println!("all of it: {} s", start.elapsed().as_secs());
    Ok(())
}

fn unit_and_integration_tests() -> Result<String> {
    if command::exists("cargo", &["nextest", "--version"]) {
        let mut nextest = cargo_command(&["nextest", "run", "--workspace", "--no-fail-fast"]);
        let lines = run_and_read(&mut nextest)?;
        let summary = lines.iter().rev().find(|line| line.contains("tests run:"));
        return Ok(summary.map_or("no summary", |line| line.trim()).to_string());
    }
    eprintln!("cargo-nextest is missing: `cargo test` runs the same tests, more slowly");
    let tests = ["test", "--workspace", "--tests", "--no-fail-fast"];
    let lines = run_and_read(&mut cargo_command(&tests))?;
    Ok(format!("{} passed", passed(&lines)))
}

/// The examples of the documentation, which nextest does not run.
fn examples() -> Result<String> {
    let lines = run_and_read(&mut cargo_command(&["test", "--doc", "--workspace"]))?;
    Ok(format!("{} passed", passed(&lines)))
}

/// Sums up the results that `cargo test` prints.
fn passed(lines: &[String]) -> u64 {
    lines
        .iter()
        .filter_map(|line| line.strip_prefix("test result: ok. "))
        .filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

fn simulator(seeds: u64) -> Result<()> {
    let seeds = format!("0..{seeds}");
    let known = "crates/sim/seeds/known-failures.txt";
    let run = ["run", "--release", "-p", "forebay-sim", "--", "--swarm", "--seeds", &seeds];
    cargo(&[&run[..], &["--known", known]].concat())?;
    let run = ["run", "--release", "-p", "forebay-sim", "--"];
    BENT_SEEDS.iter().try_for_each(|&(bend, seeds)| {
        cargo(&[&run[..], &["--bend", bend, "--seeds", seeds, "--known", known]].concat())
    })?;
    cargo(&[&run[..], &["--first", "--hashes", "crates/sim/seeds/hashes.txt"]].concat())
}

/// Puts known bugs back, one at a time, and wants each of them caught.
fn mutation_proof() -> Result<String> {
    let mut mutants = cargo_command(&["test", "--release", "-p", "forebay-sim"]);
    mutants.args(["--features", "mutants", "--test", "mutants", "--", "--nocapture"]);
    let lines = run_and_read(&mut mutants)?;
    Ok(format!("{} tests passed", passed(&lines)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_of_cargo_test_are_summed_up() {
        let lines = [
            "running 2 tests",
            "test result: ok. 2 passed; 0 failed; 0 ignored",
            "test result: ok. 40 passed; 0 failed; 1 ignored",
        ];
        assert_eq!(super::passed(&lines.map(String::from)), 42);
    }
}
