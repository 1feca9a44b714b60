//! The guest's disk is a volume of a daemon of the host, over vhost-user.

use super::ublk::{MOUNT, check, end_writer, make_file_system, start_writer};
use super::{Guest, run as run_program, say, wait_until};
use crate::vm::qemu::SERVED;
use crate::vm::served::GROWTH_BYTES;
use anyhow::{Result, ensure};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// How often the daemon is killed under a writer.
const ROUNDS: usize = 2;

/// How long the guest may take to see another size.
const LIMIT: Duration = Duration::from_secs(60);

/// ext4 on the disk; the host kills the daemon under a writer and starts another, and makes the
/// disk larger; no error, no lost write, a clean file system.
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
    grow(&device, &name)?;
    run_program("fstrim", &["-v", MOUNT])?;
    run_program("umount", &[MOUNT])?;
    check(&device)?;
    run_program("blkdiscard", &["-z", "-o", "0", "-l", "1048576", &device.display().to_string()])?;
    ensure!(fs::read(&device)?[..1 << 20].iter().all(|byte| *byte == 0), "zeroes are zeroes");
    Ok(())
}

/// The host makes the disk larger under a writer: the kernel sees it, and what is new can be used.
fn grow(device: &Path, name: &str) -> Result<()> {
    let size = || -> Result<u64> {
        let sectors = fs::read_to_string(format!("/sys/block/{name}/size"))?;
        Ok(sectors.trim().parse::<u64>()? * 512)
    };
    let wanted = size()? + GROWTH_BYTES;
    let writer = start_writer()?;
    std::thread::sleep(Duration::from_secs(1));
    say("grow", SERVED);
    wait_until("the disk is larger", LIMIT, || Ok(size()? == wanted))?;
    end_writer(writer)?;
    let file = fs::File::options().read(true).write(true).open(device)?;
    let (block, mut found) = ([0x5a; 4096], [0; 4096]);
    file.write_all_at(&block, wanted - block.len() as u64)?;
    file.sync_all()?;
    run_program("blockdev", &["--flushbufs", &device.display().to_string()])?;
    file.read_exact_at(&mut found, wanted - block.len() as u64)?;
    ensure!(found == block, "what is new holds what was written");
    Ok(())
}
