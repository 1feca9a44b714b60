//! Words that do not belong into a tree that is delivered, and `unsafe` without a reason.

use super::File;

/// Marks of unfinished work. Written apart, so that this file does not find itself.
const UNFINISHED: [&str; 5] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:"), "unimplemented!", "todo!"];
/// Directories of one machine, not of the project.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), "/tmp/target-"];
/// Where `unsafe` may be: the crate of system calls, and the module that lends it memory.
const UNSAFE: [&str; 2] = ["crates/sys/", "crates/host/src/driver.rs"];
/// What lifts the ban on it.
const LIFTS: [&str; 2] = ["allow(unsafe_code", "expect(unsafe_code"];
/// The list of bad words itself.
const SELF: &str = "xtask/src/tidy/source.rs";

/// Checks every text file.
pub fn check(files: &[File], found: &mut Vec<String>) {
    for file in files.iter().filter(|file| file.path != SELF && file.path != "Cargo.lock") {
        for (number, line) in file.text.lines().enumerate() {
            for problem in problems(line) {
                found.push(format!("{}:{}: {problem}", file.path, number + 1));
            }
        }
        if file.path.ends_with(".rs") {
            check_safety(file, found);
            check_lifts(file, found);
        }
    }
}

fn problems(line: &str) -> impl Iterator<Item = String> {
    let unfinished = UNFINISHED
        .iter()
        .filter(|word| line.contains(**word))
        .map(|word| format!("`{word}`: do it, delete it, or open an issue"));
    let machine = MACHINE_PATHS
        .iter()
        .filter(|path| line.contains(**path))
        .map(|path| format!("`{path}…` is a path of one machine"));
    unfinished.chain(machine)
}

/// The ban on `unsafe` is lifted nowhere else.
fn check_lifts(file: &File, found: &mut Vec<String>) {
    let may = UNSAFE.iter().any(|place| file.path.starts_with(place));
    if !may && LIFTS.iter().any(|lift| file.text.contains(lift)) {
        found.push(format!("{}: `unsafe` belongs into crates/sys", file.path));
    }
}

/// Each `unsafe` block or implementation needs a SAFETY comment right above it.
fn check_safety(file: &File, found: &mut Vec<String>) {
    let lines: Vec<&str> = file.text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        if !code.contains("unsafe {") && !code.contains("unsafe impl") {
            continue;
        }
        let reason =
            lines[number.saturating_sub(8)..=number].iter().any(|line| line.contains("SAFETY:"));
        if !reason {
            let path = &file.path;
            found.push(format!("{path}:{}: `unsafe` without a SAFETY comment", number + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_work_and_machine_paths_are_found() {
        assert_eq!(problems(concat!("// TO", "DO: later")).count(), 1);
        assert_eq!(problems(concat!("see /ro", "ot/.cargo")).count(), 1);
        assert_eq!(problems("a plain line about todos").count(), 0);
    }

    #[test]
    fn unsafe_needs_a_reason() {
        let found = |text: &str| {
            let file = File { path: "crates/host/src/x.rs".into(), text: text.into() };
            let mut found = Vec::new();
            check_safety(&file, &mut found);
            found.len()
        };
        assert_eq!(found("let x = unsafe { f() };\n"), 1);
        assert_eq!(found("// SAFETY: f has no conditions.\nlet x = unsafe { f() };\n"), 0);
    }

    #[test]
    fn the_ban_on_unsafe_is_lifted_in_one_place() {
        let found = |path: &str| {
            let file = File { path: path.into(), text: format!("#![{})]\n", LIFTS[1]) };
            let mut found = Vec::new();
            check_lifts(&file, &mut found);
            found.len()
        };
        assert_eq!(found("crates/host/src/driver.rs"), 0);
        assert_eq!(found("crates/host/src/shard.rs"), 1);
        assert_eq!(found("crates/engine/src/buf.rs"), 1);
    }
}
