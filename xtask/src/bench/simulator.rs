//! How fast the simulator is.

use super::results::{Results, Row, Target};
use crate::command::{output, release_binary};
use anyhow::{Context, Result};
use std::process::Command;

const SEEDS: &str = "0..20000";

/// Runs the seeds of one CI run on one core.
///
/// # Errors
/// If a seed fails.
pub fn run(results: &mut Results) -> Result<()> {
    let binary = release_binary("forebay-sim")?;
    let words = ["forebay-sim", "--swarm", "--jobs", "1", "--seeds", SEEDS];
    let raw = output(Command::new(binary).args(&words[1..]))?;
    results.raw("simulator.txt", &words.map(String::from), &raw)?;
    let seeds = rate(&raw, "seeds").context("the simulator names no rate of seeds")?;
    let crashes = rate(&raw, "crashes").context("the simulator names no rate of crashes")?;
    let row = |what: &str, value, unit, target| Row {
        what: what.into(),
        values: vec![value],
        unit,
        target,
        note: format!("one core, swarm seeds {SEEDS}, no failure"),
    };
    results.row(row("seeds", seeds, "/s", Target::None));
    results.row(row("crash and recovery", crashes, "/s", Target::AtLeast(300.0)));
    Ok(())
}

/// The number before `/s` on the line that starts with `name`.
fn rate(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.trim_start().starts_with(name))?;
    let before = line.split("/s").next()?;
    let digits: String = before
        .chars()
        .rev()
        .skip_while(|c| c.is_whitespace())
        .take_while(|c| c.is_ascii_digit() || *c == '.' || *c == ',')
        .filter(|c| *c != ',')
        .collect();
    digits.chars().rev().collect::<String>().parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_rate_is_found() {
        let text = "seeds 20000 (1,234.5/s)\ncrashes 50000, 3000 /s\n";
        assert_eq!(super::rate(text, "seeds"), Some(1234.5));
        assert_eq!(super::rate(text, "crashes"), Some(3000.0));
        assert_eq!(super::rate(text, "reads"), None);
    }
}
