//! fio, and what it measured.

use super::results::Results;
use crate::command::output;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// What one fio run measured.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Reads a second.
    pub read_iops: f64,
    /// Writes a second.
    pub write_iops: f64,
}

impl Measured {
    /// Reads and writes a second.
    pub fn iops(&self) -> f64 {
        self.read_iops + self.write_iops
    }
}

/// The arguments that make fio speak to an NBD export.
pub fn nbd_target(socket: &Path, export: &str) -> Vec<String> {
    let uri = format!("--uri=nbd+unix:///{export}?socket={}", socket.display());
    vec!["--ioengine=nbd".into(), uri]
}

/// The arguments that make fio use a block device.
pub fn device_target(path: &Path) -> Vec<String> {
    let filename = format!("--filename={}", path.display());
    vec!["--ioengine=io_uring".into(), "--direct=1".into(), filename]
}

/// Runs fio with these arguments on `target`, below `prefix` (a program that starts it, or
/// nothing), and keeps its report as `<name>.json`.
///
/// # Errors
/// If fio is missing, fails, or reports an error.
pub fn run(
    results: &mut Results,
    name: &str,
    prefix: &[String],
    target: &[String],
    arguments: &str,
) -> Result<Measured> {
    let mut words: Vec<String> = prefix.to_vec();
    words.extend(["fio", "--name=bench", "--output-format=json"].map(String::from));
    words.extend_from_slice(target);
    words.extend(arguments.split_whitespace().map(String::from));
    let raw = output(Command::new(&words[0]).args(&words[1..]))?;
    results.raw(&format!("{name}.json"), &words, &raw)?;
    let json = raw.find('{').map_or("", |start| &raw[start..]);
    let report: Value = serde_json::from_str(json).context("fio's report is not JSON")?;
    measured(&report)
}

fn measured(report: &Value) -> Result<Measured> {
    let job = report["jobs"].get(0).context("fio reports no job")?;
    anyhow::ensure!(job["error"] == 0, "fio reports error {}", job["error"]);
    let number = |side: &str, key: &str| job[side][key].as_f64().unwrap_or(0.0);
    Ok(Measured { read_iops: number("read", "iops"), write_iops: number("write", "iops") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let report = serde_json::json!({"jobs": [{"error": 0,
            "read": {"iops": 75.5}, "write": {"iops": 25.0}}]});
        let measured = measured(&report).unwrap();
        assert_eq!(measured.iops(), 100.5);
        assert!(super::measured(&serde_json::json!({"jobs": [{"error": 5}]})).is_err());
    }
}
