//! The documents: their lengths, the form of the changelog, and that links lead somewhere.

use super::File;

/// Documents that must exist, and their greatest length in lines.
const DOCUMENTS: [(&str, usize); 10] = [
    ("README.md", 120),
    ("ARCHITECTURE.md", 250),
    ("CHANGELOG.md", usize::MAX),
    ("CONTRIBUTING.md", 120),
    ("LICENSE-MIT", usize::MAX),
    ("LICENSE-APACHE", usize::MAX),
    ("docs/format.md", usize::MAX),
    ("docs/invariants.md", usize::MAX),
    ("docs/modes.md", 120),
    ("docs/testing.md", usize::MAX),
];
/// What these say was so when it was written.
const HISTORY: [&str; 3] = ["CHANGELOG.md", "bench/results/", "docs/decisions/"];
/// What a path in a document begins with that must lead somewhere.
const TREES: [&str; 5] = ["bench/", "crates/", "docs/", "packaging/", "xtask/"];
/// Where the planted bugs are.
const BUGS: [&str; 2] = ["crates/engine/src/mutant.rs", "crates/tier/src/mutant.rs"];
/// What Keep a Changelog allows below a version.
const CHANGES: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

/// Checks the documents among `files`.
pub fn check(files: &[File], found: &mut Vec<String>) {
    for (path, limit) in DOCUMENTS {
        let Some(file) = files.iter().find(|file| file.path == path) else {
            found.push(format!("{path} is missing"));
            continue;
        };
        let count = file.text.lines().count();
        if count > limit {
            found.push(format!("{path} has {count} lines, at most {limit} are read by anyone"));
        }
        match path {
            "CHANGELOG.md" => check_changelog(&file.text, found),
            "docs/invariants.md" => {
                check_invariants(&file.text, files, found);
                check_bugs(&file.text, files, found);
            }
            _ => {}
        }
    }
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        check_links(file, files, found);
        if !HISTORY.iter().any(|past| file.path.starts_with(past)) {
            check_names(file, files, found);
        }
    }
}

/// The form of <https://keepachangelog.com/en/1.1.0/>.
fn check_changelog(text: &str, found: &mut Vec<String>) {
    if text.lines().next() != Some("# Changelog") {
        found.push("CHANGELOG.md must start with `# Changelog`".into());
    }
    let mut versions = 0;
    for (number, line) in text.lines().enumerate() {
        let problem = if let Some(version) = line.strip_prefix("## ") {
            versions += 1;
            !is_version(version)
        } else if let Some(change) = line.strip_prefix("### ") {
            versions == 0 || !CHANGES.contains(&change)
        } else {
            false
        };
        if problem {
            let number = number + 1;
            found.push(format!("CHANGELOG.md:{number}: `{line}` is not Keep a Changelog's form"));
        }
    }
    if versions == 0 {
        found.push("CHANGELOG.md has no version".into());
    }
}

/// Each invariant, `## I3: …`, says which file keeps it, and that file names it.
fn check_invariants(text: &str, files: &[File], found: &mut Vec<String>) {
    for section in text.split("\n## I").skip(1) {
        let number: String = section.chars().take_while(char::is_ascii_digit).collect();
        let name = format!("I{number}");
        let names =
            |text: &str| text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == name);
        let path = section.split("\nKept by `").nth(1).and_then(|rest| rest.split('`').next());
        match path.map(|path| (path, files.iter().find(|file| file.path == path))) {
            None => found.push(format!("docs/invariants.md: {name} has no line `Kept by`")),
            Some((path, None)) => {
                found.push(format!(
                    "docs/invariants.md: {name} is kept by {path}, which is missing"
                ));
            }
            Some((path, Some(file))) if !names(&file.text) => {
                found.push(format!("docs/invariants.md: {path} keeps {name} and does not name it"));
            }
            Some(_) => {}
        }
    }
}

/// Each bug that breaks an invariant, ``Bugs: `A`, `B`.``, is one that can be planted.
fn check_bugs(text: &str, files: &[File], found: &mut Vec<String>) {
    let lists = || files.iter().filter(|file| BUGS.contains(&file.path.as_str()));
    let is_in =
        |list: &str, bug: &str| list.lines().any(|line| line.trim().strip_suffix(',') == Some(bug));
    let planted = |bug: &str| lists().any(|file| is_in(&file.text, bug));
    for named in text.split("Bugs:").skip(1).chain(text.split("Bug:").skip(1)) {
        let named = named.split('.').next().unwrap_or_default();
        for bug in named.split('`').skip(1).step_by(2).filter(|bug| !planted(bug)) {
            found.push(format!("docs/invariants.md: {bug} is no bug of {}", BUGS.join(" or ")));
        }
    }
}

/// Files, and directories of results, that a document names in backticks.
fn check_names(document: &File, files: &[File], found: &mut Vec<String>) {
    let exists = |path: &str| {
        let below = format!("{}/", path.trim_end_matches('/'));
        files.iter().any(|file| file.path == path || file.path.starts_with(&below))
    };
    let mut in_code = false;
    for line in document.text.lines() {
        in_code ^= line.starts_with("```");
        for name in line.split('`').skip(1).step_by(2).filter(|_| !in_code) {
            let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
            let is_path = TREES.iter().any(|tree| name.starts_with(tree));
            let missing = match is_path {
                true => is_plain && !exists(name),
                false => is_dated(name) && !exists(&format!("bench/results/{name}")),
            };
            if missing {
                found.push(format!("{}: there is no `{name}`", document.path));
            }
        }
    }
}

/// `2026-01-31-name`: a directory of results.
fn is_dated(name: &str) -> bool {
    let shape = name.get(..11).unwrap_or_default().bytes();
    let is_date = shape.map(|byte| if byte.is_ascii_digit() { b'0' } else { byte });
    is_date.eq(*b"0000-00-00-") && !name.contains(' ')
}

/// `[Unreleased]` or `[1.2.3] - 2026-01-31`.
fn is_version(text: &str) -> bool {
    if text == "[Unreleased]" {
        return true;
    }
    let Some((version, date)) = text.split_once(" - ") else { return false };
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let Some(version) = version.strip_prefix('[').and_then(|v| v.strip_suffix(']')) else {
        return false;
    };
    let date: Vec<&str> = date.split('-').collect();
    version.split('.').count() == 3
        && version.split('.').all(number)
        && date.iter().map(|part| part.len()).eq([4, 2, 2])
        && date.iter().all(|part| number(part))
}

/// Each relative link of a document must name a file or directory of the tree.
fn check_links(file: &File, files: &[File], found: &mut Vec<String>) {
    let directory = file.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    for target in file.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        let target = target.split('#').next().unwrap_or_default();
        if target.is_empty() || target.contains("://") || target.contains(' ') {
            continue;
        }
        let path = resolve(directory, target);
        let exists = files
            .iter()
            .any(|file| file.path == path || file.path.starts_with(&format!("{path}/")));
        if !exists {
            found.push(format!("{}: the link to {target} leads nowhere", file.path));
        }
    }
}

fn resolve(directory: &str, target: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_the_changelog_is_checked() {
        let found = |text: &str| {
            let mut found = Vec::new();
            check_changelog(text, &mut found);
            found.len()
        };
        assert_eq!(found("# Changelog\n\n## [Unreleased]\n\n### Added\n"), 0);
        assert_eq!(found("# Changelog\n\n## [0.1.0] - 2026-11-21\n"), 0);
        assert_eq!(found("# Changelog\n\n## 0.1.0\n"), 1);
        assert_eq!(found("# Changelog\n\n## [Unreleased]\n\n### News\n"), 1);
        assert_eq!(found("# History\n"), 2);
    }

    #[test]
    fn an_invariant_names_the_file_that_keeps_it_and_is_named_there() {
        let files = [File { path: "a.rs".into(), text: "// I1: so it is. I12.".into() }];
        let found = |section: &str| {
            let mut found = Vec::new();
            check_invariants(&format!("# Invariants\n\n## I{section}"), &files, &mut found);
            found.len()
        };
        assert_eq!(found("1: so\n\nKept by `a.rs`.\n"), 0);
        assert_eq!(found("12: so\n\nKept by `a.rs`.\n\n## I2: no\n\nKept by `a.rs`.\n"), 1);
        assert_eq!(found("1: so\n\nKept by `b.rs`.\n"), 1);
        assert_eq!(found("1: so\n\nIt is.\n"), 1);
    }

    #[test]
    fn a_bug_that_an_invariant_names_can_be_planted() {
        let files =
            [File { path: BUGS[0].into(), text: "    StaleFill,\n    TornAccepted,\n".into() }];
        let found = |text: &str| {
            let mut found = Vec::new();
            check_bugs(text, &files, &mut found);
            found.len()
        };
        assert_eq!(found("so. Bugs:\n`StaleFill`, `TornAccepted`. See `Nothing`."), 0);
        assert_eq!(found("so. Bug: `Stale`."), 1);
        assert_eq!(found("Bugs: `StaleFill`, `PauseDoubles`, `Torn`."), 2);
    }

    #[test]
    fn files_and_results_that_a_document_names_exist() {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let found = |text: &str| {
            let files = [file("crates/a/b.rs", ""), file("bench/results/2026-01-31-c/x", "")];
            let mut found = Vec::new();
            check_names(&file("docs/d.md", text), &files, &mut found);
            found.len()
        };
        assert_eq!(found("`crates/a/b.rs`, `crates/a/`, `bench/results/2026-01-31-c`"), 0);
        assert_eq!(found("`2026-01-31-c`, `crates/a/{b,c}.rs`, `b.rs`, `cargo xtask x`"), 0);
        assert_eq!(found("```\n`crates/a/gone.rs`\n```\n"), 0);
        assert_eq!(found("so: `crates/a/gone.rs`"), 1);
        assert_eq!(found("`2026-01-31-gone`\n`docs/gone.md`"), 2);
    }

    #[test]
    fn links_are_followed() {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let files = [
            file("docs/a.md", "[b](b.md) [c](../crates/c) [d](https://d) [e](e.md#there)"),
            file("docs/b.md", ""),
            file("crates/c/lib.rs", ""),
        ];
        let mut found = Vec::new();
        check_links(&files[0], &files, &mut found);
        assert_eq!(found, ["docs/a.md: the link to e.md leads nowhere"]);
    }
}
