//! Block traces through the engine and through an ARC: `crates/engine/benches/traces.rs`.

use super::results::{Results, Row, Target};
use crate::command::{cargo_command, output};
use crate::root;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where an ARC misses less than this, a ratio to it says nothing.
const MISSES_LEAST: f64 = 0.01;

/// What is compared: the engine's number and that of ARC, by name, what it is called, and what the
/// mean and the worst should reach.
const COMPARED: [(&str, &str, &str, f64, f64); 2] = [
    ("misses", "arc_misses", "blocks read from the origin / those of ARC", 1.03, 1.3),
    ("origin_reads", "arc_origin_reads", "reads of the origin / those of ARC", 1.05, 1.3),
];

/// Runs the bench with each `*.bt` or `*.bt.zst` of a folder.
///
/// # Errors
/// If the folder is not there or holds none, `zstd` is missing, or the bench fails.
pub fn run(results: &mut Results, folder: &Path) -> Result<()> {
    let listed = std::fs::read_dir(folder)
        .with_context(|| format!("no folder {} with traces", folder.display()))?;
    let mut files: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let unpacked = root().join("target/tmp/traces");
    std::fs::create_dir_all(&unpacked)?;
    let mut traces = Vec::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(".zst").filter(|name| name.ends_with(".bt")) {
            let to = unpacked.join(name);
            let mut zstd = Command::new("zstd");
            output(zstd.args(["-dqf", "--long=27", "-o"]).args([&to, &file]))?;
            traces.push(to);
        } else if name.ends_with(".bt") {
            traces.push(file);
        }
    }
    ensure!(!traces.is_empty(), "no trace (*.bt.zst or *.bt) in {}", folder.display());
    results.scrub(folder, "$FOLDER");
    results.scrub(&unpacked, "$UNPACKED");
    let words = ["bench", "--quiet", "-p", "forebay-engine", "--bench", "traces", "--"];
    let raw = output(cargo_command(&words).args(&traces))?;
    let mut told: Vec<String> = std::iter::once("cargo").chain(words).map(String::from).collect();
    told.extend(traces.iter().map(|path| path.display().to_string()));
    let lines = results.raw_json("traces.jsonl", &told, &raw)?;
    for depth in [8, 1] {
        COMPARED.iter().for_each(|compared| compare(results, &lines, depth, compared));
    }
    Ok(())
}

/// The geometric mean of all traces and sizes, and the worst of them.
fn compare(
    results: &mut Results,
    lines: &[Value],
    depth: u64,
    &(ours, theirs, what, mean_max, worst_max): &(&str, &str, &str, f64, f64),
) {
    let number = |line: &Value, key: &str| line[key].as_f64().unwrap_or(f64::NAN);
    let counts = |line: &&Value| {
        line["depth"] == depth && number(line, "arc_misses") >= MISSES_LEAST * number(line, "reads")
    };
    let cells: Vec<(f64, String)> = lines
        .iter()
        .filter(counts)
        .map(|line| {
            let name = format!("{} at {} %", line["trace"], line["size_percent"]);
            (number(line, ours) / number(line, theirs), name)
        })
        .collect();
    let logarithms: f64 = cells.iter().map(|(ratio, _)| ratio.ln()).sum();
    let mean = (logarithms / cells.len() as f64).exp();
    let worst = cells.iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let (worst, name) = worst.map_or((f64::NAN, ""), |(ratio, name)| (*ratio, name));
    let target = |limit| if depth == 8 { Target::AtMost(limit) } else { Target::None };
    let note = format!("geometric mean of {} traces and sizes", cells.len());
    let row = |what: String, value, limit, note: &str| {
        Row::new(&what, vec![value], "", target(limit), note)
    };
    results.row(row(format!("{what}, depth {depth}"), mean, mean_max, &note));
    results.row(row(format!("the worst of them, depth {depth}"), worst, worst_max, name));
}
