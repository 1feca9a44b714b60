//! The directory of one run: raw output, commands, and a summary that is honest about what was
//! missed.

use crate::command::output;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a value should reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// For comparison only.
    None,
}

impl Target {
    fn reached(self, value: f64) -> &'static str {
        let reached = match self {
            Target::AtLeast(limit) => value >= limit,
            Target::AtMost(limit) => value <= limit,
            Target::None => return "",
        };
        if reached { "yes" } else { "**no**" }
    }

    fn text(self) -> String {
        match self {
            Target::AtLeast(limit) => format!("≥ {}", number(limit)),
            Target::AtMost(limit) => format!("≤ {}", number(limit)),
            Target::None => String::new(),
        }
    }
}

/// One line of the summary.
pub struct Row {
    /// What was measured.
    pub what: String,
    /// One value for each round.
    pub values: Vec<f64>,
    /// Their unit.
    pub unit: &'static str,
    /// What the median should reach.
    pub target: Target,
    /// What a reader must know to judge it.
    pub note: String,
}

impl Row {
    /// A line.
    pub fn new(
        what: &str,
        values: Vec<f64>,
        unit: &'static str,
        target: Target,
        note: &str,
    ) -> Row {
        Row { what: what.into(), values, unit, target, note: note.into() }
    }
}

/// The directory of one run, while it grows.
pub struct Results {
    directory: PathBuf,
    machine: String,
    sections: Vec<(String, Vec<Row>)>,
    commands: String,
    scrubbed: Vec<(String, &'static str)>,
}

impl Results {
    /// Makes `<parent>/<date>-<what>`; an earlier run of the same day and name is replaced.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(parent: &Path, what: &str) -> Result<Results> {
        let date = output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
        let directory = parent.join(format!("{}-{what}", date.trim()));
        if directory.exists() {
            std::fs::remove_dir_all(&directory)?;
        }
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("make directory {}", directory.display()))?;
        let machine = machine();
        std::fs::write(directory.join("machine.txt"), &machine)?;
        Ok(Results {
            directory,
            machine,
            sections: Vec::new(),
            commands: String::new(),
            scrubbed: Vec::new(),
        })
    }

    /// Where it lies.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts the rows of one bench.
    pub fn section(&mut self, name: &str) {
        self.sections.push((name.to_string(), Vec::new()));
    }

    /// From now on `path` is written as `name` in everything that is kept.
    pub fn scrub(&mut self, path: &Path, name: &'static str) {
        self.scrubbed.push((path.to_string_lossy().into_owned(), name));
    }

    fn scrubbed(&self, text: &str) -> String {
        let mut text = text.to_string();
        for (path, name) in &self.scrubbed {
            text = text.replace(path, name);
        }
        text
    }

    /// Keeps a command and its raw output.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn raw(&mut self, file: &str, words: &[String], raw: &str) -> Result<()> {
        let words = self.scrubbed(&words.join(" "));
        writeln!(self.commands, "{file}: {words}")?;
        std::fs::write(self.directory.join("commands.txt"), &self.commands)?;
        let path = self.directory.join(file);
        std::fs::write(&path, self.scrubbed(raw))
            .with_context(|| format!("write {}", path.display()))
    }

    /// As `raw`, where each line that begins with a brace is one JSON object. Returns these.
    ///
    /// # Errors
    /// If the file cannot be written, or such a line is no JSON.
    pub fn raw_json(&mut self, file: &str, words: &[String], raw: &str) -> Result<Vec<Value>> {
        self.raw(file, words, raw)?;
        let lines = raw.lines().filter(|line| line.starts_with('{'));
        lines
            .map(|line| serde_json::from_str(line).with_context(|| format!("read `{line}`")))
            .collect()
    }

    /// Adds a line to the summary.
    pub fn row(&mut self, row: Row) {
        eprintln!(
            "    {}: {} {} {}",
            row.what,
            number(super::median(&row.values)),
            row.unit,
            row.target.reached(super::median(&row.values))
        );
        self.sections.last_mut().expect("a section was started").1.push(row);
    }

    /// Writes `summary.md` with what there is.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_summary(&self) -> Result<()> {
        let mut text = String::from("# Summary\n\n```text\n");
        text.push_str(&self.machine);
        text.push_str(
            "```\n\nValues are medians of the rounds in brackets. Raw output lies beside this ",
        );
        text.push_str("file; `commands.txt` says which command wrote which.\n");
        for (name, rows) in &self.sections {
            writeln!(text, "\n## {name}\n")?;
            writeln!(text, "| what | measured | rounds | target | reached | note |")?;
            writeln!(text, "|---|---|---|---|---|---|")?;
            for row in rows {
                let median = super::median(&row.values);
                let rounds: Vec<String> = row.values.iter().map(|value| number(*value)).collect();
                writeln!(
                    text,
                    "| {} | {} {} | [{}] | {} | {} | {} |",
                    row.what,
                    number(median),
                    row.unit,
                    rounds.join(" "),
                    row.target.text(),
                    row.target.reached(median),
                    row.note
                )?;
            }
        }
        std::fs::write(self.directory.join("summary.md"), text).context("write summary.md")
    }
}

/// A number that people can read: three digits after the point for small ones, none for large ones.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => {
            let digits = format!("{value:.0}");
            let (sign, digits) = digits.strip_prefix('-').map_or(("", &digits[..]), |d| ("-", d));
            let mut grouped = String::from(sign);
            for (at, digit) in digits.chars().enumerate() {
                if at > 0 && (digits.len() - at).is_multiple_of(3) {
                    grouped.push(',');
                }
                grouped.push(digit);
            }
            grouped
        }
        middle if middle >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        0.0 => "0".into(),
        _ => format!("{value:.3}"),
    }
}

/// What the numbers depend on.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split(':').nth(1));
        value.unwrap_or("unknown").trim().to_string()
    };
    let first_line = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        text.ok().and_then(|text| text.lines().next().map(String::from)).unwrap_or("none".into())
    };
    let (cpu, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "processor: {} ({cores} cores)\nmemory:    {}\nkernel:    {}\nload:      {}\n\
         rustc:     {}\nfio:       {}\nnbdkit:    {}\ncommit:    {}\n",
        field(&cpu, "model name"),
        field(&memory, "MemTotal"),
        read("/proc/sys/kernel/osrelease").trim(),
        read("/proc/loadavg").trim(),
        first_line("rustc", "--version"),
        first_line("fio", "--version"),
        first_line("nbdkit", "--version"),
        commit(),
    )
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(crate::root()).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let head = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    match changed {
        Ok(changed) if changed.is_empty() => head,
        _ => format!("{head} with changes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(number(1234567.8), "1,234,568");
        assert_eq!(number(999.6), "1000");
        assert_eq!(number(-1000.0), "-1,000");
        assert_eq!(number(1.06349), "1.063");
        assert_eq!(number(0.0), "0");
    }

    #[test]
    fn a_missed_target_is_said() {
        assert_eq!(Target::AtLeast(1.5).reached(1.4), "**no**");
        assert_eq!(Target::AtMost(2.1).reached(2.1), "yes");
        assert_eq!(Target::None.reached(0.0), "");
    }
}
