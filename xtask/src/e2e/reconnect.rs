//! QEMU's NBD client on a volume whose daemon is killed: with `reconnect-delay` it waits, and its
//! requests are done when the daemon is there again.

use super::crash::KILLS;
use crate::bench::daemon::{Daemon, Directory};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 64 * MIB;
/// How long QEMU waits for a daemon, in seconds.
const RECONNECT: u32 = 30;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// qemu-io on the volume, spoken to line by line.
struct QemuIo {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl QemuIo {
    fn start(socket: &Path) -> Result<QemuIo> {
        let disk = format!(
            "driver=nbd,server.type=unix,server.path={},export=disk,reconnect-delay={RECONNECT}",
            socket.display()
        );
        let mut command = Command::new("qemu-io");
        command.args(["--image-opts", &disk]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("start qemu-io")?;
        let input = child.stdin.take().context("its input")?;
        let output = child.stdout.take().context("its output")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(QemuIo { child, input, lines })
    }

    fn send(&mut self, command: &str) -> Result<()> {
        writeln!(self.input, "{command}")?;
        Ok(self.input.flush()?)
    }

    /// Waits for the line that tells how a read or a write ended.
    fn ended(&self, what: &str) -> Result<()> {
        loop {
            let line =
                self.lines.recv_timeout(PATIENCE).with_context(|| format!("{what}: none"))?;
            let bad = line.contains("failed") || line.contains("error");
            ensure!(!bad, "{what}: {line}");
            if line.contains("wrote ") || line.contains("read ") {
                return Ok(());
            }
        }
    }
}

impl Drop for QemuIo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes while the daemon is away, five times, and reads everything back.
///
/// # Errors
/// A request that failed, or data that is not there.
pub fn run() -> Result<()> {
    let directory = Directory::create(None, "e2e-reconnect")?;
    let origin = directory.file("origin", BYTES)?;
    let cache = directory.file("cache", 128 * MIB)?.display().to_string();
    let mut daemon = Daemon::start(&directory, &[])?;
    let (path, mode) = (origin.display().to_string(), "writeback");
    daemon.forebay(&[
        "cache", &path, "--with", &cache, "--mode", mode, "--name", "disk", "--yes", "--export",
        "nbd",
    ])?;
    let mut qemu = QemuIo::start(&daemon.nbd_socket())?;
    for round in 0..KILLS {
        let write =
            |part: u32| format!("write -P {} {}M 1M", 1 + 2 * round + part, 2 * round + part);
        qemu.send(&write(0))?;
        qemu.ended("a write before the kill")?;
        daemon.kill();
        qemu.send(&write(1))?;
        thread::sleep(Duration::from_millis(500));
        let early = qemu.lines.try_iter().any(|line| line.contains("wrote "));
        ensure!(!early, "a write was answered while nobody served");
        daemon.start_again()?;
        qemu.ended("a write while the daemon was away")?;
    }
    for part in 0..2 * KILLS {
        qemu.send(&format!("read -P {} {part}M 1M", 1 + part))?;
        qemu.ended("a read of what was written")?;
    }
    qemu.send("quit")?;
    ensure!(qemu.child.wait()?.success(), "qemu-io failed");
    drop(qemu);
    daemon.forebay(&["volume", "remove", "disk", "--yes"])?;
    daemon.stop()?;
    let bytes = fs::read(&origin)?;
    for (part, bytes) in bytes.chunks(MIB as usize).take(2 * KILLS as usize).enumerate() {
        let right = bytes.iter().all(|&byte| usize::from(byte) == 1 + part);
        ensure!(right, "MiB {part} of the origin is not what was written");
    }
    Ok(())
}
