//! How much one call of the engine does at worst: `crates/engine/benches/settle.rs`, by itself for
//! the time, and under callgrind for the instructions of the calls that took most.
//!
//! The bench is deterministic, so that a call's number names it in each run. Callgrind looks at the
//! named ones alone: the bench stops before and after each, `vgdb` switches the instrumentation on
//! and off, and a file lets the bench go on.

use super::results::{Results, Row, Target};
use crate::command::{cargo_command, output};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const INSTRUCTIONS_MAX: f64 = 600_000.0;
/// What the payload costs: checksums, copies, and the zeroing of new buffers for it.
const PAYLOAD: [&str; 4] = ["crc32c", "memcpy", "memmove", "memset"];

/// What is known of a call.
struct Call {
    what: String,
    steps: f64,
    us: f64,
}

/// The calls of each state that took most.
type Calls = BTreeMap<String, BTreeMap<u64, Call>>;

/// Runs the bench by itself and then under callgrind; only the states that the variable
/// `FOREBAY_SETTLE_STATES` names, if it names any.
///
/// # Errors
/// If it cannot be built or fails, or valgrind is not installed.
pub fn run(results: &mut Results) -> Result<()> {
    let bench = build()?;
    let mut calls = Calls::new();
    let states = std::env::var("FOREBAY_SETTLE_STATES").unwrap_or_default();
    let words = ["--bench"].into_iter().chain(states.split_whitespace());
    let raw = output(Command::new(&bench).args(words.clone()))?;
    let words: Vec<String> = ["settle"].into_iter().chain(words).map(String::from).collect();
    for line in results.raw_json("settle.jsonl", &words, &raw)? {
        take(&mut calls, &line)?;
    }
    for (state, calls) in &calls {
        let counted = count(results, &bench, state, calls)?;
        rows(results, state, calls, &counted);
    }
    Ok(())
}

/// Where cargo has put the bench.
fn build() -> Result<PathBuf> {
    let words = ["bench", "-p", "forebay-engine", "--bench", "settle", "--no-run"];
    let raw = output(cargo_command(&words).args(["--quiet", "--message-format=json"]))?;
    let messages = raw.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut executables = messages.filter_map(|it| it["executable"].as_str().map(PathBuf::from));
    executables.next_back().context("cargo names no executable of the bench")
}

/// Remembers a call.
fn take(calls: &mut Calls, line: &Value) -> Result<()> {
    let (state, number) = (line["state"].as_str(), line["call"].as_u64());
    let (state, number) = state.zip(number).with_context(|| format!("read `{line}`"))?;
    let (steps, us) = (line["steps"].as_f64().unwrap_or(0.0), line["us"].as_f64().unwrap_or(0.0));
    let what = line["what"].as_str().unwrap_or_default().to_string();
    calls.entry(state.to_string()).or_default().insert(number, Call { what, steps, us });
    Ok(())
}

/// The instructions of some calls, by number: all, and those beyond the payload.
fn count(
    results: &mut Results,
    bench: &Path,
    state: &str,
    calls: &BTreeMap<u64, Call>,
) -> Result<BTreeMap<u64, (f64, f64)>> {
    let directory = crate::root().join("target/tmp/callgrind");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory)?;
    let (gate, out) = (directory.join("gate"), directory.join("out"));
    let numbers: Vec<String> = calls.keys().map(ToString::to_string).collect();
    let mut child = Command::new("valgrind")
        .args(["--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"])
        .args(["--toggle-collect=*profiled_call*", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(bench)
        .args(["--bench", state, "--profile", &numbers.join(",")])
        .env("FOREBAY_GATE", &gate)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("start valgrind: it is a package of its own")?;
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut seen = BTreeSet::new();
    for line in lines {
        let line = line?;
        let Some(number) = line.strip_prefix("profile ") else { continue };
        let pid = format!("--pid={}", child.id());
        let tell = |words: &[&str]| output(Command::new("vgdb").arg(&pid).args(words));
        if seen.insert(number.to_string()) {
            tell(&["instrumentation", "on"])?;
        } else {
            tell(&["dump"])?;
            tell(&["instrumentation", "off"])?;
        }
        std::fs::write(&gate, "")?;
    }
    ensure!(child.wait()?.success(), "the bench failed under callgrind, in state {state}");
    let mut counted = BTreeMap::new();
    let mut kept = String::new();
    for (at, &number) in calls.keys().enumerate() {
        let dump = std::fs::read_to_string(directory.join(format!("out.{}", at + 1)))
            .context("read what callgrind has counted")?;
        let by_name = instructions(&dump);
        let all: u64 = by_name.values().sum();
        let payload = by_name.iter().filter(|(name, _)| PAYLOAD.iter().any(|it| name.contains(it)));
        let beyond = all - payload.map(|(_, count)| count).sum::<u64>();
        if all == 0 {
            bail!("callgrind has counted nothing of call {number} in state {state}");
        }
        counted.insert(number, (all as f64, beyond as f64));
        kept += &format!("call {number}: {all} instructions, {beyond} beyond payload\n");
        let mut most: Vec<_> = by_name.iter().collect();
        most.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (name, count) in most.iter().take(25) {
            kept += &format!("{count:>12} {name}\n");
        }
    }
    let words = ["valgrind", "--tool=callgrind", "settle", state, "--profile", &numbers.join(",")];
    results.raw(&format!("callgrind-{state}.txt"), &words.map(String::from), &kept)?;
    Ok(counted)
}

/// Instructions of each function itself.
fn instructions(dump: &str) -> BTreeMap<&str, u64> {
    let mut by_name = BTreeMap::new();
    let (mut name, mut called) = ("", false);
    for line in dump.lines() {
        if let Some(function) = line.strip_prefix("fn=") {
            name = function;
        } else if line.starts_with("calls=") {
            called = true; // The next line is what the called function took.
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let count = line.split_whitespace().nth(1).and_then(|count| count.parse::<u64>().ok());
            if let Some(count) = count.filter(|_| !std::mem::take(&mut called)) {
                *by_name.entry(name).or_default() += count;
            }
        }
    }
    by_name
}

fn rows(
    results: &mut Results,
    state: &str,
    calls: &BTreeMap<u64, Call>,
    counted: &BTreeMap<u64, (f64, f64)>,
) {
    let most = |key: &dyn Fn(u64) -> f64| {
        let by = |a: &&u64, b: &&u64| key(**a).total_cmp(&key(**b));
        *calls.keys().max_by(by).expect("a state has calls")
    };
    let worst = most(&|at| counted[&at].1);
    let Call { what, steps, us } = &calls[&worst];
    let note =
        format!("a {what}: {:.0} with payload, {steps} steps, {us:.0} µs", counted[&worst].0);
    let row = |what: &str, value, unit, target, note: &str| {
        Row::new(&format!("{state}: {what}"), vec![value], unit, target, note)
    };
    let target = Target::AtMost(INSTRUCTIONS_MAX);
    results.row(row("instructions beyond payload", counted[&worst].1, "", target, &note));
    let steps = calls[&most(&|at| calls[&at].steps)].steps;
    results.row(row("steps", steps, "", Target::None, ""));
    let longest = most(&|at| calls[&at].us);
    let note = format!(
        "a {}: {:.0} instructions with payload; what the machine did besides is in it",
        calls[&longest].what, counted[&longest].0
    );
    results.row(row("time", calls[&longest].us, "µs", Target::None, &note));
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_function_called_is_not_its_own() {
        let dump = "fn=a\n0 5\ncfn=b\ncalls=1 0\n0 100\n0 2\n\nfn=b\n0 100\n";
        let found = super::instructions(dump);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [("a", 7), ("b", 100)]);
    }
}
