//! `cargo xtask fuzz`: the targets of `fuzz/` under libFuzzer, with the compiler of this checkout.
//!
//! What libFuzzer needs of the compiler is an LLVM pass that stable Rust has (`-C passes`), so
//! neither nightly nor cargo-fuzz is needed; libFuzzer itself comes with `libfuzzer-sys` and takes
//! a C++ compiler.

use crate::command::{cargo_command, output, run, run_and_read};
use crate::root;
use anyhow::{Context, Result, bail, ensure};
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Coverage of edges by counters, and comparisons, as cargo-fuzz has them; checks of debug builds.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions -Coverflow-checks --cfg fuzzing";
/// Memory of the fuzzer as a whole, in MiB, and of one allocation.
const RSS_MIB_MAX: u32 = 2048;
const ALLOCATION_MIB_MAX: u32 = 256;
/// One input may take so many seconds.
const INPUT_S_MAX: u32 = 20;
/// Files that the kept corpus of a target has at most: the smallest of those that cover something.
const KEPT_MAX: usize = 160;

/// `cargo xtask fuzz`
#[derive(clap::Args)]
pub struct Arguments {
    /// Which targets; all if none is named.
    targets: Vec<String>,
    /// How long each target runs.
    #[arg(long, default_value_t = 60, value_name = "N")]
    seconds: u64,
    /// Targets that run at once.
    #[arg(long, default_value_t = 1, value_name = "N")]
    jobs: usize,
    /// Put what was found to cover more, made small, into the corpus that the tests replay.
    #[arg(long)]
    keep: bool,
}

/// Where things lie.
struct Places {
    binary: PathBuf,
    /// What guided runs have found so far, by target.
    found: PathBuf,
    /// Inputs that failed.
    failed: PathBuf,
    corpus: PathBuf,
}

/// Runs the targets.
///
/// # Errors
/// An input fails, or the fuzzer cannot be built.
pub fn run_targets(arguments: &Arguments) -> Result<()> {
    let places = build()?;
    let all = targets(&places.corpus)?;
    if let Some(unknown) = arguments.targets.iter().find(|name| !all.contains(name)) {
        bail!("no target {unknown:?}; there are {}", all.join(", "));
    }
    let chosen = if arguments.targets.is_empty() { &all } else { &arguments.targets };
    let waiting = Mutex::new(chosen.iter().cloned().collect::<VecDeque<String>>());
    let rows = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no thread panics").pop_front();
                    let Some(name) = next else { return };
                    let row = guided(&places, &name, arguments.seconds);
                    rows.lock().expect("no thread panics").push((name, row));
                }
            });
        }
    });
    let rows = rows.into_inner().expect("no thread panics");
    println!();
    for (name, row) in &rows {
        match row {
            Ok(row) => println!("{name:14} {row}"),
            Err(error) => println!("{name:14} failed: {error:#}"),
        }
    }
    if arguments.keep {
        chosen.iter().try_for_each(|name| keep(&places, name))?;
    }
    let failed = rows.iter().filter(|(_, row)| row.is_err()).count();
    ensure!(
        failed == 0,
        "{failed} targets failed; the inputs are in {}. Mend what they show, and put them into \
         fuzz/corpus",
        places.failed.display()
    );
    Ok(())
}

/// The targets are the folders of the corpus.
fn targets(corpus: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(corpus).with_context(|| format!("list {}", corpus.display()))?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn build() -> Result<Places> {
    let version = output(Command::new("rustc").arg("-vV").current_dir(root()))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc does not tell the machine that it is for")?;
    let target = root().join("target/fuzz");
    let mut cargo = cargo_command(&["build", "--release", "-p", "forebay-fuzz"]);
    // With a target named, build scripts and macros are built without the flags.
    cargo.args(["--features", "guided", "--bin", "guided", "--target", host, "--target-dir"]);
    cargo.arg(&target).env("RUSTFLAGS", FLAGS).env("CARGO_PROFILE_RELEASE_LTO", "off");
    run(&mut cargo)?;
    let binary = target.join(host).join("release/guided");
    let (found, failed) = (target.join("found"), target.join("failed"));
    fs::create_dir_all(&failed)?;
    Ok(Places { binary, found, failed, corpus: root().join("fuzz/corpus") })
}

fn fuzzer(places: &Places, name: &str) -> Command {
    let mut fuzzer = Command::new(&places.binary);
    fuzzer.env("FOREBAY_FUZZ_TARGET", name).current_dir(root());
    fuzzer.arg(format!("-rss_limit_mb={RSS_MIB_MAX}"));
    fuzzer.arg(format!("-malloc_limit_mb={ALLOCATION_MIB_MAX}"));
    fuzzer.arg(format!("-timeout={INPUT_S_MAX}"));
    fuzzer.arg(format!("-artifact_prefix={}/{name}-", places.failed.display()));
    fuzzer
}

/// Runs one target. What it came to, in words.
fn guided(places: &Places, name: &str, seconds: u64) -> Result<String> {
    let found = places.found.join(name);
    fs::create_dir_all(&found)?;
    let mut fuzzer = fuzzer(places, name);
    fuzzer
        .arg(format!("-max_total_time={seconds}"))
        .args(["-print_final_stats=1", "-max_len=4096"]);
    fuzzer.args(["-reload=0"]).arg(&found).arg(places.corpus.join(name));
    let lines = run_and_read(&mut fuzzer)?;
    let number = |what: &str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(what));
        line.map_or("?", |rest| rest.trim()).to_owned()
    };
    let covered = lines.iter().rev().find_map(|line| line.split_once("cov: "));
    let covered = covered.and_then(|(_, rest)| rest.split(' ').next()).unwrap_or("?");
    Ok(format!(
        "{} inputs, {} a second, {covered} edges covered, {} MiB",
        number("stat::number_of_executed_units:"),
        number("stat::average_exec_per_sec:"),
        number("stat::peak_rss_mb:"),
    ))
}

/// Makes the corpus anew: of all inputs the small ones that together cover what all cover. What a
/// person put there, under a name with letters beyond a hash's, stays.
fn keep(places: &Places, name: &str) -> Result<()> {
    let (corpus, merged) = (places.corpus.join(name), places.found.join(format!("{name}.merged")));
    let _ = fs::remove_dir_all(&merged);
    fs::create_dir_all(&merged)?;
    let mut merge = fuzzer(places, name);
    merge.args(["-merge=1", "-use_counters=0"]).arg(&merged);
    run_and_read(merge.arg(&corpus).arg(places.found.join(name)))?;
    for entry in fs::read_dir(&corpus)? {
        let entry = entry?;
        let is_hash = entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_hexdigit());
        if is_hash {
            fs::remove_file(entry.path())?;
        }
    }
    let files = fs::read_dir(&merged)?.map(|entry| {
        let entry = entry?;
        Ok((entry.metadata()?.len(), entry.file_name()))
    });
    let mut files = files.collect::<Result<Vec<_>>>()?;
    files.sort();
    for (_, file) in files.iter().take(KEPT_MAX) {
        fs::copy(merged.join(file), corpus.join(file))?;
    }
    println!("{name}: {} of {} inputs are kept", files.len().min(KEPT_MAX), files.len());
    Ok(())
}
