//! A volume as a machine's disk, without a machine: QEMU's own driver of vhost-user-blk does to
//! the socket what a guest's kernel and QEMU together would.

use super::packages::Packages;
use crate::bench::daemon::{Daemon, Directory};
use crate::command::output;
use anyhow::{Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
const ORIGIN_BYTES: u64 = 64 * MIB;
/// What the origin is full of before.
const OLD: u8 = 0xa5;

/// A program of QEMU's with the driver, ready for what comes before the disk.
pub fn program(packages: &Packages, name: &str) -> Command {
    let mut command = packages.program(&format!("usr/bin/{name}"));
    command.env("QEMU_MODULE_DIR", packages.tools.join("usr/lib/x86_64-linux-gnu/qemu"));
    command
}

/// The disk behind a socket, as QEMU's programs want it.
pub fn disk(socket: &Path) -> [String; 2] {
    let path = socket.display();
    let driver = format!("driver=virtio-blk-vhost-user,path={path},cache.direct=on");
    ["--image-opts".to_string(), driver]
}

/// Runs commands of qemu-io on a disk.
fn io(packages: &Packages, socket: &Path, commands: &[&str]) -> Result<()> {
    let mut qemu_io = program(packages, "qemu-io");
    for command in commands {
        qemu_io.args(["-c", command]);
    }
    let said = output(qemu_io.args(disk(socket)))?;
    // It ends well also when a pattern is not what was found.
    let wrong = said.contains("failed") || said.contains("error");
    ensure!(!wrong, "qemu-io {commands:?}: {said}");
    Ok(())
}

/// Writes, zeroes, discards and reads through QEMU's driver, kills the daemon between, and looks at
/// the origin in the end.
///
/// # Errors
/// If anything is not as it was written.
pub fn run(packages: &Packages, programs: [PathBuf; 2]) -> Result<()> {
    let directory = Directory::create(None, "machine-disk")?;
    let origin = directory.file("origin", 0)?;
    fs::write(&origin, vec![OLD; ORIGIN_BYTES as usize])?;
    let cache = directory.file("cache", 128 * MIB)?;
    let (origin, cache) = (origin.display().to_string(), cache.display().to_string());
    let mut daemon = Daemon::start_built(&directory, &[], programs)?;
    let socket = daemon.state().join("vhost/disk.sock");
    let new = ["cache", &origin, "--with", &cache, "--name", "disk", "--mode", "writeback"];
    daemon.forebay(&[&new[..], &["--yes", "--export", "vhost-user"]].concat())?;
    io(
        packages,
        &socket,
        &[
            "read -P 0xa5 0 8M",
            "write -P 0x11 0 4M",
            "write -P 0x22 4194816 1536",
            "write -f -P 0x33 8M 64k",
            "aio_write -P 0x44 16M 1M",
            "aio_write -P 0x55 17M 1M",
            "aio_flush",
            "write -z 20M 1M",
            "discard 24M 1M",
            "flush",
        ],
    )?;
    let look = [
        "read -P 0x11 0 4M",
        "read -P 0xa5 4M 512",
        "read -P 0x22 4194816 1536",
        "read -P 0xa5 4196352 4096",
        "read -P 0x33 8M 64k",
        "read -P 0x44 16M 1M",
        "read -P 0x55 17M 1M",
        "read -P 0 20M 1M",
        "read -P 0xa5 32M 32M",
    ];
    io(packages, &socket, &look)?;
    daemon.kill();
    daemon.start_again()?;
    daemon.wait_until_says("vhost-user:")?;
    io(packages, &socket, &look)?;
    daemon.forebay(&["volume", "detach", "disk"])?;
    ensure!(!socket.exists(), "a detached volume has no socket");
    daemon.stop()?;
    let bytes = fs::read(&origin)?;
    let all = |from: u64, to: u64, value: u8| {
        bytes[from as usize..to as usize].iter().all(|&byte| byte == value)
    };
    ensure!(all(0, 4 * MIB, 0x11), "what was written is at the origin");
    ensure!(all(4_194_816, 4_196_352, 0x22), "what was written in part of a block is there");
    ensure!(all(4_196_352, 8 * MIB, OLD), "what was not written is untouched");
    ensure!(all(16 * MIB, 17 * MIB, 0x44) && all(20 * MIB, 21 * MIB, 0), "and the rest");
    Ok(())
}
