//! The guest's disk is a volume of a daemon of the host, over vhost-user.

use super::ublk::{MOUNT, check, end_writer, make_file_system, start_writer};
use super::{Guest, run as run_program, say};
use crate::vm::qemu::SERVED;
use anyhow::{Result, ensure};
use std::fs;
use std::time::Duration;

/// How often the daemon is killed under a writer.
const ROUNDS: usize = 2;

/// ext4 on the disk; the host kills the daemon under a writer and starts another; no error, no
/// lost write, a clean file system.
///
/// # Errors
/// What failed.
pub fn run(guest: &Guest) -> Result<()> {
    let device = guest.disk(SERVED)?;
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let queue = |file: &str| fs::read_to_string(format!("/sys/block/{name}/queue/{file}"));
    ensure!(queue("write_cache")?.trim() == "write back", "the kernel must send FLUSH");
    ensure!(queue("write_zeroes_max_bytes")?.trim() != "0", "the kernel must send zeroes");
    make_file_system(&device)?;
    for _ in 0..ROUNDS {
        let writer = start_writer()?;
        std::thread::sleep(Duration::from_secs(2));
        say("replace", SERVED);
        end_writer(writer)?;
    }
    run_program("fstrim", &["-v", MOUNT])?;
    run_program("umount", &[MOUNT])?;
    check(&device)?;
    run_program("blkdiscard", &["-z", "-o", "0", "-l", "1048576", &device.display().to_string()])?;
    ensure!(fs::read(&device)?[..1 << 20].iter().all(|byte| *byte == 0), "zeroes are zeroes");
    Ok(())
}
