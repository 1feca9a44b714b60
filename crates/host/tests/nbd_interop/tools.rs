//! Programs that are not ours.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The program, or `None` with a word on stderr when it is not installed. With
/// `FOREBAY_REQUIRE_TOOLS` set, a missing program fails the test.
pub fn tool(program: &str, package: &str) -> Option<Command> {
    let found = match program.starts_with('/') {
        true => Path::new(program).exists(),
        false => std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).exists())),
    };
    if found {
        return Some(Command::new(program));
    }
    let why = format!("{program} is not installed (Debian package {package})");
    assert!(std::env::var_os("FOREBAY_REQUIRE_TOOLS").is_none(), "{why}");
    eprintln!("skipped: {why}");
    None
}

/// A Python that has libnbd's module.
pub fn nbd_python() -> Option<Command> {
    let mut python = tool("/usr/bin/python3", "python3")?;
    let has_module = Command::new("/usr/bin/python3")
        .args(["-c", "import nbd"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if has_module {
        python.env_remove("PYTHONHOME");
        return Some(python);
    }
    assert!(std::env::var_os("FOREBAY_REQUIRE_TOOLS").is_none(), "python3-libnbd is missing");
    eprintln!("skipped: the system's Python has no nbd module (Debian package python3-libnbd)");
    None
}

/// Runs a program that must succeed. Returns what it printed.
pub fn run(command: &mut Command) -> String {
    let output = outcome(command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}\n{errors}", output.status);
    text
}

/// Runs a program.
pub fn outcome(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
