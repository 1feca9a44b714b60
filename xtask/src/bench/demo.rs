//! The demo, as a user runs it, with what it printed and its page.

use super::results::{Results, Row, Target};
use crate::command::{output, release_binary};
use anyhow::{Context, Result};
use serde_json::Value;
use std::process::Command;
use std::time::Instant;

/// Runs it once.
///
/// # Errors
/// If it fails: also when something was lost.
pub fn run(results: &mut Results) -> Result<()> {
    let directory = results.directory().to_path_buf();
    results.scrub(&directory, "$RESULTS");
    let page = directory.join("demo.html");
    let page = page.to_str().context("a path of text")?;
    let words = ["forebay", "demo", "--html", page, "-o", "json"];
    let start = Instant::now();
    let raw = output(Command::new(release_binary("forebay")?).args(&words[1..]))?;
    let seconds = start.elapsed().as_secs_f64();
    results.raw("demo.json", &words.map(String::from), &raw)?;
    let demo: Value = serde_json::from_str(&raw)?;
    for line in demo["rows"].as_array().context("the demo prints no rows")? {
        add_line(results, line)?;
    }
    let verdicts = demo["verdicts"].as_array().context("the demo prints no verdicts")?;
    for verdict in verdicts {
        let good = f64::from(u8::from(verdict["good"] == true));
        let text = verdict["text"].as_str().unwrap_or_default();
        results.row(row("holds".into(), good, "", Target::AtLeast(1.0), text));
    }
    let note = "from start to end, release build";
    results.row(row("the whole demo".into(), seconds, "s", Target::AtMost(120.0), note));
    Ok(())
}

fn add_line(results: &mut Results, line: &Value) -> Result<()> {
    let name = line["name"].as_str().context("a row has a name")?;
    let number = |key: &str| line[key].as_f64().unwrap_or(f64::NAN);
    let (p50, p99) = (number("p50_ms"), number("p99_ms"));
    let hits = |key: &str| {
        let share = line[key].as_f64();
        share.map_or(String::new(), |share| format!(", hits {:.1} %", share * 100.0))
    };
    let note = format!(
        "{:.0} IOPS, median {p50:.2} ms, 99 % within {p99:.2} ms{}",
        number("iops"),
        hits("hits")
    );
    let target = if name == "warm, writeback" { Target::AtLeast(40.0) } else { Target::None };
    let what = format!("{name}: 75/25 4 KiB, depth 64, over the bare disk");
    results.row(row(what, number("factor"), "×", target, &note));
    let (rate, hits) = (number("sequential_megabytes"), hits("sequential_hits"));
    let note = format!("{rate:.0} MB/s{hits}");
    let what = format!("{name}: sequential, over the bare disk");
    results.row(row(what, number("sequential_factor"), "×", Target::None, &note));
    Ok(())
}

fn row(what: String, value: f64, unit: &'static str, target: Target, note: &str) -> Row {
    Row { what, values: vec![value], unit, target, note: note.into() }
}
