//! The daemon in a stock kernel, over NBD.

use super::daemon::{Daemon, forebay, make_volume, wait_for_volume};
use super::load::{BLOCK, Blocks};
use super::{Guest, run_for};
use anyhow::{Context, Result, ensure};
use forebay_nbd::client::Connection;
use forebay_nbd::wire::Command;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Blocks in one read of the comparison.
const READ_BLOCKS: u64 = 256;

/// fio writes and verifies; the daemon is killed and started again; fio verifies once more; detach;
/// the origin holds the same bytes as the volume did.
pub fn run(guest: &Guest) -> Result<()> {
    let mut daemon = Daemon::start_on(guest)?;
    make_volume(guest, &["--mode", "writeback"])?;
    let uri = format!("--uri=nbd+unix:///data?socket={}", daemon.nbd().display());
    fio(&[&uri, "--rw=randwrite", "--do_verify=1"])?;
    daemon.kill()?;
    daemon = Daemon::start()?;
    wait_for_volume()?;
    fio(&[&uri, "--rw=randread", "--verify_only"])?;
    let mut client = Client::connect(&daemon.nbd(), "data")?;
    let blocks = client.blocks;
    let mut through = Vec::new();
    for block in (0..blocks).step_by(READ_BLOCKS as usize) {
        through.extend(client.read(block, READ_BLOCKS.min(blocks - block))?);
    }
    drop(client);
    forebay(&["volume", "detach", "data", "--yes"])?;
    let origin = std::fs::read(guest.disk("origin")?)?;
    ensure!(origin.len() == through.len(), "{} and {} bytes", origin.len(), through.len());
    let differ = origin.chunks(BLOCK).zip(through.chunks(BLOCK)).filter(|(a, b)| a != b).count();
    ensure!(differ == 0, "{differ} blocks of the origin differ from what the volume held");
    ensure!(through.iter().any(|byte| *byte != 0), "nothing was written");
    Ok(())
}

fn fio(more: &[&str]) -> Result<()> {
    let common = [
        "--name=verify",
        "--ioengine=nbd",
        "--bs=4k",
        "--iodepth=16",
        "--size=8M",
        "--verify=crc32c",
        "--verify_state_save=0",
        "--randseed=7",
    ];
    run_for("fio", &[&common, more].concat(), Duration::from_secs(120)).map(drop)
}

/// An NBD client of the load.
pub struct Client {
    connection: Connection<UnixStream>,
    /// The export's size, in blocks.
    pub blocks: u64,
}

impl Client {
    /// Connects to an export.
    ///
    /// # Errors
    /// If there is no server or no export.
    pub fn connect(socket: &Path, export: &str) -> Result<Client> {
        let stream = UnixStream::connect(socket).context("connect to the daemon")?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let connection = Connection::open(stream, export).context("no such export")?;
        let blocks = connection.export.bytes / BLOCK as u64;
        Ok(Client { connection, blocks })
    }
}

impl Blocks for Client {
    fn write(&mut self, blocks: &[(u64, Vec<u8>)]) -> Result<()> {
        for (block, bytes) in blocks {
            let offset = block * BLOCK as u64;
            self.connection.send(Command::Write, offset, bytes.len() as u64, bytes)?;
        }
        blocks.iter().try_for_each(|_| {
            let error = self.connection.reply().context("no answer")?.error;
            ensure!(error == 0, "the server answered with error {error}");
            Ok(())
        })
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.connection.flush()?)
    }

    fn read(&mut self, block: u64, count: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count as usize * BLOCK];
        self.connection.read(block * BLOCK as u64, &mut bytes)?;
        Ok(bytes)
    }
}
