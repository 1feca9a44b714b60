//! Sizes: lines of 100 columns, functions of 70 lines, files of 500 lines without tests; and how
//! entangled a crate is (`coupling.rs`).
//!
//! What was beyond a limit when the rule came is listed in `xtask/tidy-exceptions.txt`, one line
//! each: `KIND PATH NAME NUMBER`. The list may only shrink: a greater number fails, and so does a
//! line that is no longer needed.

use super::File;
use super::coupling::{CIRCLE_FILES_MAX, Excess, OPEN_FIELDS_MAX};
use super::syntax::is_test;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

const COLUMNS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 500;
const EXCEPTIONS: &str = "xtask/tidy-exceptions.txt";

/// What is beyond a limit: kind, path, name (of a function or struct, or `-`).
type Key = (String, String, String);

/// Checks all Rust files, and `excesses`, against the limits and the list.
///
/// # Errors
/// If the list cannot be read or written.
pub fn check(
    root: &Path,
    files: &[File],
    excesses: &[Excess],
    shrink: bool,
    found: &mut Vec<String>,
) -> Result<()> {
    let mut now = measure(files);
    let key = |e: &Excess| (e.kind.to_owned(), e.package.clone(), e.name.clone());
    now.extend(excesses.iter().map(|excess| (key(excess), excess.number)));
    let counted: BTreeMap<Key, &str> =
        excesses.iter().map(|excess| (key(excess), &excess.counted[..])).collect();
    let list = files.iter().find(|file| file.path == EXCEPTIONS);
    let mut listed = parse(list.map_or("", |list| &list.text))?;
    if shrink {
        listed.retain(|key, _| now.contains_key(key));
        for (key, number) in &mut listed {
            *number = (*number).min(now[key]);
        }
        std::fs::write(root.join(EXCEPTIONS), render(&listed)).context("write the exceptions")?;
    }
    compare(&now, &listed, &counted, found);
    Ok(())
}

fn compare(
    now: &BTreeMap<Key, usize>,
    listed: &BTreeMap<Key, usize>,
    counted: &BTreeMap<Key, &str>,
    found: &mut Vec<String>,
) {
    for (key, &number) in now {
        let limit = listed.get(key).copied().unwrap_or(0);
        if number > limit {
            let listed = if limit > 0 { format!(" ({limit} are listed)") } else { String::new() };
            let counted = counted.get(key).filter(|counted| !counted.is_empty());
            let counted = counted.map_or(String::new(), |counted| format!(": {counted}"));
            found.push(format!("{}{listed}{counted}", complaint(key, number)));
        }
    }
    for (kind, path, name) in listed.keys().filter(|key| !now.contains_key(*key)) {
        found.push(format!(
            "{EXCEPTIONS}: `{kind} {path} {name}` is no longer needed: cargo xtask tidy --shrink"
        ));
    }
}

fn complaint((kind, path, name): &Key, number: usize) -> String {
    match kind.as_str() {
        "columns" => format!("{path}: {number} lines beyond {COLUMNS_MAX} columns"),
        "function" => format!("{path}: {name} has {number} lines of at most {FUNCTION_LINES_MAX}"),
        "circle" => {
            format!("{path}: {number} files in a circle of imports of at most {CIRCLE_FILES_MAX}")
        }
        "fields" => {
            format!("{path}: {number} files name a field of an owner that another declares")
        }
        "open" => {
            format!("{path}: {name} has {number} open fields of at most {OPEN_FIELDS_MAX}")
        }
        _ => format!("{path} has {number} lines of at most {FILE_LINES_MAX} without tests"),
    }
}

fn parse(text: &str) -> Result<BTreeMap<Key, usize>> {
    let mut listed = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind, path, name, number] = words[..] else {
            anyhow::bail!("{EXCEPTIONS}: `{line}` is not `KIND PATH NAME NUMBER`");
        };
        let number = number.parse().with_context(|| format!("{EXCEPTIONS}: {line}"))?;
        listed.insert((kind.into(), path.into(), name.into()), number);
    }
    Ok(listed)
}

fn render(listed: &BTreeMap<Key, usize>) -> String {
    let mut text = String::from(
        "# What is beyond the limits of the house rules: KIND PATH NAME NUMBER. May only shrink.\n",
    );
    for ((kind, path, name), number) in listed {
        writeln!(text, "{kind} {path} {name} {number}").expect("a string takes all");
    }
    text
}

/// All that is beyond a limit, and by how much.
fn measure(files: &[File]) -> BTreeMap<Key, usize> {
    let mut measured = BTreeMap::new();
    let mut note = |kind: &str, path: &str, name: &str, number: usize| {
        let longest: &mut usize =
            measured.entry((kind.into(), path.into(), name.into())).or_default();
        *longest = number.max(*longest);
    };
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let wide = file.text.lines().filter(|line| line.chars().count() > COLUMNS_MAX).count();
        if wide > 0 {
            note("columns", &file.path, "-", wide);
        }
        if is_test(&file.path) {
            continue;
        }
        let code = without_tests(&file.text);
        if code.len() > FILE_LINES_MAX {
            note("file", &file.path, "-", code.len());
        }
        for (name, lines) in functions(&code) {
            if lines > FUNCTION_LINES_MAX {
                note("function", &file.path, name, lines);
            }
        }
    }
    measured
}

/// The lines of a file without its test module, which comes last.
fn without_tests(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod "))
        .unwrap_or(lines.len());
    lines[..tests].to_vec()
}

/// Name and length of each function. Relies on `cargo fmt`: a function ends at the first line that
/// is a closing brace as deep as its first line.
fn functions<'a>(lines: &[&'a str]) -> Vec<(&'a str, usize)> {
    let mut functions = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let end = lines[start..].iter().position(|line| {
            let depth = line.len() - line.trim_start().len();
            depth == indent && line.trim_end().ends_with(['}', ';'])
        });
        if let Some(end) = end {
            functions.push((name, end + 1));
        }
    }
    functions
}

/// The name of the function that starts on this line.
fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if rest.starts_with("//") {
        return None;
    }
    if let Some(after) = rest.strip_prefix("pub") {
        rest = after.strip_prefix('(').and_then(|r| r.split_once(')')).map_or(after, |r| r.1);
        rest = rest.trim_start();
    }
    loop {
        let word = rest.split(' ').next()?;
        if word == "fn" {
            let name = rest[2..].trim_start();
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_')?;
            return Some(&name[..end]);
        }
        if !["const", "async", "unsafe", "extern", "\"C\""].contains(&word) {
            return None;
        }
        rest = rest[word.len()..].trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: String) -> File {
        File { path: path.into(), text }
    }

    fn function(name: &str, lines: usize) -> String {
        format!(
            "    pub(crate) const fn {name}(\n    ) {{\n{}    }}\n",
            "        x();\n".repeat(lines - 3)
        )
    }

    #[test]
    fn functions_are_measured() {
        let text = format!("{}\n{}", function("short", 70), function("long", 71));
        let measured = measure(&[file("a/src/b.rs", text)]);
        let key = ("function".to_string(), "a/src/b.rs".to_string(), "long".to_string());
        assert_eq!(measured, BTreeMap::from([(key, 71)]));
    }

    #[test]
    fn tests_do_not_count_but_their_columns_do() {
        let long = function("long", 600);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert!(measure(&[file("a/src/b.rs", tests)]).is_empty());
        assert!(measure(&[file("a/tests/b.rs", long.clone())]).is_empty());
        assert_eq!(measure(&[file("a/src/b.rs", long)]).len(), 2);
        assert_eq!(measure(&[file("a/tests/b.rs", "x".repeat(101))]).len(), 1);
        assert_eq!(measure(&[file("a/tests/b.rs", "ü".repeat(100))]).len(), 0);
    }

    #[test]
    fn the_list_may_only_shrink() {
        let key: Key = ("file".into(), "a.rs".into(), "-".into());
        let found = |now: &[usize], listed: &[usize]| {
            let map = |numbers: &[usize]| numbers.iter().map(|n| (key.clone(), *n)).collect();
            let mut found = Vec::new();
            compare(&map(now), &map(listed), &BTreeMap::new(), &mut found);
            found.len()
        };
        assert_eq!(found(&[600], &[]), 1);
        assert_eq!(found(&[600], &[600]), 0);
        assert_eq!(found(&[601], &[600]), 1);
        assert_eq!(found(&[599], &[600]), 0);
        assert_eq!(found(&[], &[600]), 1);
        let listed = BTreeMap::from([(key, 600)]);
        assert_eq!(parse(&render(&listed)).unwrap(), listed);
        assert!(parse("file a.rs 600").is_err());
    }
}
