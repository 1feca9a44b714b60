//! `cargo xtask planted`: bugs put back into host, daemon, front ends and format, one at a time, in
//! a copy of the checkout; for each some test must fail. What the engine could do wrong is in the
//! mutation proof (`crates/sim/tests/mutants.rs`), which needs no compiler.

mod bugs;

use crate::command::{cargo_command, output, run};
use crate::root;
use anyhow::{Context, Result, bail, ensure};
use bugs::BUGS;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Exit codes of nextest.
const TESTS_FAILED: i32 = 100;
const NO_TESTS: i32 = 4;
/// How it calls tests that failed, at the beginning of a line.
const FAILED: [&str; 6] = ["FAIL", "TIMEOUT", "ABORT", "SIGABRT", "SIGSEGV", "SIGBUS"];

/// A bug: a place that is found by its text, which stands there once, and what is put there.
struct Bug {
    name: &'static str,
    what: &'static str,
    file: &'static str,
    find: &'static str,
    put: &'static str,
    /// What is built, and which of its tests run (nextest's filter).
    build: &'static [&'static str],
    tests: &'static str,
}

impl Bug {
    /// Its file with the bug in it.
    fn planted(&self, text: &str) -> Result<String> {
        let (name, file, find) = (self.name, self.file, self.find);
        match text.matches(find).count() {
            1 => Ok(text.replacen(find, self.put, 1)),
            count => bail!("{name}: {file} has this {count} times, and should once: {find:?}"),
        }
    }
}

/// How tests ended.
enum End {
    Passed,
    /// These failed.
    Failed(Vec<String>),
    /// None ran: it does not build, or the filter names none.
    NotRun(&'static str),
}

impl End {
    /// Without the tests that fail in any case.
    fn without(self, unsound: &[String]) -> End {
        let End::Failed(mut tests) = self else { return self };
        tests.retain(|test| !unsound.contains(test));
        if tests.is_empty() { End::Passed } else { End::Failed(tests) }
    }
}

/// A copy of the checkout.
struct Checkout {
    tree: PathBuf,
    target: PathBuf,
}

impl Checkout {
    /// As ours is now, but for files that git does not know.
    fn copy() -> Result<Checkout> {
        let place = root().join("target/planted");
        let copy = Checkout { tree: place.join("checkout"), target: place.join("target") };
        fs::create_dir_all(&place).with_context(|| format!("create {}", place.display()))?;
        // A commit of what is not committed, which is no part of any branch.
        let changed = output(git(root()).args(["stash", "create"]))?;
        let commit = if changed.trim().is_empty() { "HEAD" } else { changed.trim() };
        let commit = output(git(root()).args(["rev-parse", commit]))?;
        if !copy.tree.exists() {
            run(git(root()).args(["worktree", "prune"]))?;
            let add = ["worktree", "add", "--detach", "--no-checkout"];
            run(git(root()).args(add).arg(&copy.tree))?;
        }
        run(git(&copy.tree).args(["checkout", "--quiet", "--force", "--detach", commit.trim()]))?;
        Ok(copy)
    }

    fn test(&self, build: &[&str], tests: &str) -> Result<End> {
        let mut nextest = cargo_command(&["nextest", "run", "--no-fail-fast", "--color", "never"]);
        nextest.args(["--status-level", "fail", "--failure-output", "never", "--target-dir"]);
        nextest.arg(&self.target).args(["-E", tests]).args(build).current_dir(&self.tree);
        let output = nextest.output().context("start cargo nextest; is it installed?")?;
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => Ok(End::Passed),
            Some(TESTS_FAILED) => Ok(End::Failed(failed(&said))),
            Some(NO_TESTS) => Ok(End::NotRun("no test has such a name")),
            _ => {
                eprintln!("{said}");
                Ok(End::NotRun("it does not build"))
            }
        }
    }

    /// Tests with a bug in place, which is gone afterwards.
    fn test_with(&self, bug: &Bug) -> Result<End> {
        let file = self.tree.join(bug.file);
        let text = read(&file)?;
        write(&file, &bug.planted(&text)?)?;
        let end = self.test(bug.build, bug.tests);
        write(&file, &text)?;
        end
    }
}

/// Puts the bugs back, or those that are named.
///
/// # Errors
/// One is not caught, does not build, or has no place any more.
pub fn run_bugs(names: &[String]) -> Result<()> {
    let unknown = names.iter().find(|name| BUGS.iter().all(|bug| bug.name != name.as_str()));
    if let Some(unknown) = unknown {
        bail!("no bug {unknown:?}; xtask/src/planted/bugs.rs has them");
    }
    let is_wanted = |bug: &&Bug| names.is_empty() || names.iter().any(|name| name == bug.name);
    let bugs: Vec<&Bug> = BUGS.iter().filter(is_wanted).collect();
    let copy = Checkout::copy()?;
    for bug in &bugs {
        bug.planted(&read(&copy.tree.join(bug.file))?)?;
    }
    let mut builds: Vec<&[&str]> = bugs.iter().map(|bug| bug.build).collect();
    builds.dedup();
    let mut unsound = Vec::new();
    for build in builds {
        eprintln!("==> the tests without a bug: {}", build.join(" "));
        let tests: Vec<&str> =
            bugs.iter().filter(|bug| bug.build == build).map(|bug| bug.tests).collect();
        match copy.test(build, &tests.join(" | "))? {
            End::Passed => {}
            End::Failed(tests) => unsound.extend(tests),
            End::NotRun(why) => bail!("without a bug: {why}"),
        }
    }
    unsound.iter().for_each(|test| println!("{test} fails without a bug, and proves nothing"));
    let mut alive = Vec::new();
    for bug in bugs {
        eprintln!("==> {}: {}", bug.name, bug.what);
        let begin = Instant::now();
        let end = copy.test_with(bug)?.without(&unsound);
        println!("{}", row(bug, &end, begin.elapsed().as_secs()));
        if !matches!(end, End::Failed(_)) {
            alive.push(bug.name);
        }
    }
    ensure!(alive.is_empty(), "not caught: {}", alive.join(", "));
    Ok(())
}

fn row(bug: &Bug, end: &End, seconds: u64) -> String {
    let by = match end {
        End::Passed => "NOT CAUGHT".to_owned(),
        End::NotRun(why) => why.to_uppercase(),
        End::Failed(tests) => match &tests[..] {
            [first, more @ ..] if !more.is_empty() => format!("`{first}` and {} more", more.len()),
            tests => format!("`{}`", tests.concat()),
        },
    };
    format!("| {} | {} | {by} | {seconds} s |", bug.name, bug.what)
}

/// The names of tests that failed, each once, without the modules that they are in.
fn failed(said: &str) -> Vec<String> {
    let lines = said.lines().map(str::trim_start);
    let lines = lines.filter(|line| FAILED.iter().any(|word| line.starts_with(word)));
    let names = lines.filter_map(|line| line.rsplit([' ', ':']).next());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

fn git(tree: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(tree);
    git
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bug_finds_its_place() {
        for bug in BUGS {
            let text = fs::read_to_string(root().join(bug.file)).unwrap();
            assert_ne!(bug.planted(&text).unwrap(), text, "{}", bug.name);
        }
    }
}
