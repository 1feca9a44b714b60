//! `cargo xtask ci`, `cargo xtask test` and `cargo xtask night`.

use crate::command::{cargo, cargo_command, run, run_and_read};
use crate::{command, root, tidy};
use anyhow::Result;
use std::time::{Duration, Instant};

/// Seeds of each run that is bent towards one thing: what fits beside the swarm.
const BENT_SEEDS: [(&str, u64); 23] = [
    ("brief", 900),
    ("away", 900),
    ("dwindle", 500),
    ("repair", 900),
    ("harm", 900),
    ("starve", 900),
    ("admin", 900),
    ("linger", 900),
    ("turnover", 200),
    ("spare", 900),
    ("vain", 900),
    ("overtake", 900),
    ("evict", 900),
    ("untold", 300),
    ("resort", 150),
    ("late", 600),
    ("replug", 600),
    ("older", 600),
    ("stripes", 600),
    ("replace", 900),
    ("large", 50),
    ("cloud", 40),
    ("short", 500),
];
/// Swarm seeds of each run. A run by hand may ask for more.
pub const SEEDS: u64 = 6_000;
/// Tiered worlds of each run.
const TIERED_SEEDS: u64 = 1_000;
/// A night has so many times as many seeds of each bend, of tiered worlds, and of the swarm.
const NIGHT_BENT: u64 = 22;
const NIGHT_TIERED: u64 = 20;
const NIGHT_SWARM: u64 = 33;

/// How long each step took.
#[derive(Default)]
struct Steps(Vec<(&'static str, Duration)>);

impl Steps {
    fn take<T>(&mut self, name: &'static str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let done = step()?;
        self.0.push((name, start.elapsed()));
        Ok(done)
    }

    fn print(&self) {
        let step = |it: &(&str, Duration)| format!("{} {} s", it.0, it.1.as_secs());
        let all: Duration = self.0.iter().map(|it| it.1).sum();
        let steps: Vec<String> = self.0.iter().map(step).collect();
        println!("time:      {} s: {}", all.as_secs(), steps.join(", "));
    }
}

/// All that a change must pass.
///
/// # Errors
/// The first step that fails.
pub fn ci() -> Result<()> {
    let mut steps = Steps::default();
    steps.take("format and tidy", || {
        cargo(&["fmt", "--all", "--check"])?;
        tidy::run(root(), false)
    })?;
    steps.take("lints", || {
        cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    })?;
    steps.take("documentation", || {
        let mut documentation = cargo_command(&["doc", "--workspace", "--no-deps"]);
        run(documentation.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    run_tests(SEEDS, steps)
}

/// The tests alone.
///
/// # Errors
/// The first step that fails.
pub fn test(seeds: u64) -> Result<()> {
    run_tests(seeds, Steps::default())
}

fn run_tests(seeds: u64, mut steps: Steps) -> Result<()> {
    // What the simulator and the block devices of this machine run.
    let programs = ["-p", "forebay-sim", "-p", "forebay-daemon", "-p", "forebay-cli"];
    steps.take("release build", || cargo(&[&["build", "--release"][..], &programs].concat()))?;
    let build = ["test", "--workspace", "--tests", "--no-run", "--quiet"];
    steps.take("build of the tests", || cargo(&build))?;
    let tests = steps.take("tests", unit_and_integration_tests)?;
    let examples = steps.take("examples", examples)?;
    steps.take("simulator", || simulator(seeds, TIERED_SEEDS, 1))?;
    let mutants = steps.take("mutants", mutation_proof)?;
    println!();
    println!("tests:     {tests}");
    println!("examples:  {examples}");
    println!("simulator: {seeds} swarm seeds, {TIERED_SEEDS} tiered worlds without a new failure");
    println!("mutants:   {mutants}");
    steps.print();
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

/// The seeds that do not fit into a run of CI.
///
/// # Errors
/// The first seed that fails.
pub fn night() -> Result<()> {
    let start = Instant::now();
    simulator(NIGHT_SWARM * SEEDS, NIGHT_TIERED * TIERED_SEEDS, NIGHT_BENT)?;
    println!("all of it: {} s", start.elapsed().as_secs());
    Ok(())
}

fn simulator(swarm: u64, tiered: u64, bent_times: u64) -> Result<()> {
    let known = "crates/sim/seeds/known-failures.txt";
    let run = ["run", "--release", "-p", "forebay-sim", "--"];
    let of_seeds = |kind: &[&str], count: u64| {
        let seeds = format!("0..{count}");
        cargo(&[&run[..], kind, &["--seeds", &seeds, "--known", known]].concat())
    };
    of_seeds(&["--swarm"], swarm)?;
    of_seeds(&["--tiered"], tiered)?;
    BENT_SEEDS
        .iter()
        .try_for_each(|&(bend, count)| of_seeds(&["--bend", bend], bent_times * count))?;
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
