//! A load that the host ends by a power cut, and the check after it.

use super::daemon::{Daemon, make_volume, wait_for_volume};
use super::nbd::Client;
use super::{Guest, load};
use anyhow::Result;
use std::path::Path;

/// Blocks that the load uses: 16 MiB.
const BLOCKS: u64 = 4096;
/// On the disk with the daemon's state.
const LEDGER: &str = "/mnt/state/ledger";

/// One life: check what the life before left, then write until the power is cut; or, in the last
/// life, end.
pub fn run(guest: &Guest) -> Result<()> {
    let (life, last) = (guest.number("life"), guest.number("last"));
    let daemon = Daemon::start_on(guest)?;
    if life == 0 {
        make_volume(guest, &["--mode", "writeback"])?;
    }
    wait_for_volume()?;
    let mut client = Client::connect(&daemon.nbd(), "data")?;
    load::verify(&mut client, BLOCKS, life, guest.number("flushed"), Path::new(LEDGER))?;
    if life == last {
        return Ok(());
    }
    load::write_for_ever(&mut client, BLOCKS, life)
}
