//! A load that the host ends by a power cut, and the check after it.

use super::daemon::{Daemon, make_volume, wait_for_volume};
use super::load::{BLOCK, Blocks};
use super::nbd::Client;
use super::{Guest, load, run as run_program, wait_until};
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Blocks that the load uses: 16 MiB.
const BLOCKS: u64 = 4096;
/// On the disk with the daemon's state.
const LEDGER: &str = "/mnt/state/ledger";
/// The link to the volume's device.
const LINK: &str = "/mnt/state/forebay/dev/data";
/// Past the page cache.
const O_DIRECT: i32 = 0x4000;

/// One life over NBD: check what the life before left, then write until the power is cut; or, in
/// the last life, end.
///
/// # Errors
/// What failed.
pub fn run(guest: &Guest) -> Result<()> {
    let daemon = serve(guest, "nbd")?;
    live(guest, &mut Client::connect(&daemon.nbd(), "data")?, || Ok(()))
}

/// The same over a block device of ublk.
///
/// # Errors
/// What failed.
pub fn run_ublk(guest: &Guest) -> Result<()> {
    let _daemon = serve(guest, "ublk")?;
    // A link of the life before may lead to nothing for a moment.
    wait_until("the device is there", Duration::from_secs(20), || Ok(Path::new(LINK).exists()))?;
    live(guest, &mut Device::open(Path::new(LINK))?, || Ok(()))
}

fn serve(guest: &Guest, export: &str) -> Result<Daemon> {
    let daemon = Daemon::start_on(guest)?;
    if guest.number("life") == 0 {
        make_volume(guest, &["--mode", "writeback", "--export", export])?;
    }
    wait_for_volume()?;
    Ok(daemon)
}

/// Checks what the life before left, then writes until the power is cut; the last life ends when it
/// has checked. `check` is called beside, when there is something in the volume.
///
/// # Errors
/// What failed.
pub fn live(
    guest: &Guest,
    target: &mut impl Blocks,
    check: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (life, last) = (guest.number("life"), guest.number("last"));
    load::verify(target, BLOCKS, life, guest.number("flushed"), Path::new(LEDGER))?;
    if life > 0 {
        check()?;
    }
    if life == last {
        run_program("sync", &[])?;
        return Ok(());
    }
    load::write_for_ever(target, BLOCKS, life)
}

/// A block device, past the page cache.
pub struct Device {
    file: File,
    room: Vec<u8>,
}

impl Device {
    /// Opens it.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> Result<Device> {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(O_DIRECT);
        let file = options.open(path).with_context(|| format!("open {}", path.display()))?;
        Ok(Device { file, room: Vec::new() })
    }

    /// Some bytes that begin where direct I/O wants them to.
    fn aligned(&mut self, len: usize) -> (&File, &mut [u8]) {
        self.room.resize(len + BLOCK, 0);
        let start = self.room.as_ptr().align_offset(BLOCK);
        (&self.file, &mut self.room[start..start + len])
    }
}

impl Blocks for Device {
    fn write(&mut self, blocks: &[(u64, Vec<u8>)]) -> Result<()> {
        for (block, bytes) in blocks {
            let (file, room) = self.aligned(bytes.len());
            room.copy_from_slice(bytes);
            file.write_all_at(room, block * BLOCK as u64)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.file.sync_data()?)
    }

    fn read(&mut self, block: u64, count: u64) -> Result<Vec<u8>> {
        let (file, room) = self.aligned(count as usize * BLOCK);
        file.read_exact_at(room, block * BLOCK as u64)?;
        Ok(room.to_vec())
    }
}
