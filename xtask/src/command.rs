//! Running other programs: echoed, from the root of the workspace, with an error that names them.

use crate::root;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

/// Cargo, the one that runs this task.
pub fn cargo_command(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    // What `cargo xtask` was told of itself: build scripts that look at it would run again, and
    // everything above them be built again, each time that somebody builds by hand in between.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs cargo with its output going to ours.
///
/// # Errors
/// If it cannot be started or fails.
pub fn cargo(arguments: &[&str]) -> Result<()> {
    run(&mut cargo_command(arguments))
}

/// Runs a command with its output going to ours.
///
/// # Errors
/// If it cannot be started or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let words = echo(command);
    let status = command.status().with_context(|| format!("start `{words}`"))?;
    ensure!(status.success(), "`{words}` failed: {status}");
    Ok(())
}

/// Runs a command, shows its output, and returns both streams' lines.
///
/// # Errors
/// If it cannot be started or fails.
pub fn run_and_read(command: &mut Command) -> Result<Vec<String>> {
    let words = echo(command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start `{words}`"))?;
    let stdout = child.stdout.take().expect("piped");
    let stderr = child.stderr.take().expect("piped");
    let errors = thread::spawn(move || lines(stderr, true));
    let mut read = lines(stdout, false);
    read.extend(errors.join().expect("a reader of lines does not panic"));
    let status = child.wait()?;
    ensure!(status.success(), "`{words}` failed: {status}");
    Ok(read)
}

/// Runs a command and returns what it printed on standard output.
///
/// # Errors
/// If it cannot be started or fails.
pub fn output(command: &mut Command) -> Result<String> {
    let words = words(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("start `{words}`; is it installed?"))?;
    ensure!(output.status.success(), "`{words}` failed: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program can be started and answers `--version`.
pub fn exists(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Where cargo puts a release binary.
///
/// # Errors
/// If cargo cannot tell, or the binary was not built.
pub fn release_binary(name: &str) -> Result<PathBuf> {
    let metadata = output(&mut cargo_command(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let target =
        metadata["target_directory"].as_str().context("cargo names no target directory")?;
    let path = PathBuf::from(target).join("release").join(name);
    ensure!(path.exists(), "{} is missing: run `cargo build --release`", path.display());
    Ok(path)
}

fn words(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(name).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn echo(command: &Command) -> String {
    let words = words(command);
    eprintln!("==> {words}");
    words
}

fn lines(stream: impl Read, to_stderr: bool) -> Vec<String> {
    let mut read = Vec::new();
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        if to_stderr {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
        read.push(line);
    }
    read
}
