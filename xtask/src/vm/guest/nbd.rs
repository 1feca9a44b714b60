//! The daemon in a stock kernel, over NBD.

use super::daemon::{Daemon, forebay, make_volume, wait_for_volume};
use super::load::{BLOCK, Blocks};
use super::{Guest, run_for};
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
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

/// As much of an NBD client as the load needs.
pub struct Client {
    stream: UnixStream,
    /// The export's size, in blocks.
    pub blocks: u64,
}

impl Client {
    /// Connects to an export.
    ///
    /// # Errors
    /// If there is no server or no export.
    pub fn connect(socket: &Path, export: &str) -> Result<Client> {
        let mut stream = UnixStream::connect(socket).context("connect to the daemon")?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut hello = [0; 18];
        stream.read_exact(&mut hello)?;
        // Fixed newstyle without zeroes, then EXPORT_NAME.
        let mut request = 3_u32.to_be_bytes().to_vec();
        request.extend(b"IHAVEOPT");
        request.extend([1, export.len() as u32].map(u32::to_be_bytes).concat());
        request.extend(export.as_bytes());
        stream.write_all(&request)?;
        let mut export = [0; 10];
        stream.read_exact(&mut export).context("no such export")?;
        let bytes = u64::from_be_bytes(export[..8].try_into().expect("eight bytes"));
        Ok(Client { stream, blocks: bytes / BLOCK as u64 })
    }

    fn send(&mut self, command: u16, cookie: u64, block: u64, len: usize) -> Result<()> {
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend([0, command].map(u16::to_be_bytes).concat());
        request.extend([cookie, block * BLOCK as u64].map(u64::to_be_bytes).concat());
        request.extend((len as u32).to_be_bytes());
        Ok(self.stream.write_all(&request)?)
    }

    fn reply(&mut self) -> Result<()> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).context("no answer")?;
        ensure!(reply[..4] == REPLY_MAGIC.to_be_bytes(), "not a simple reply");
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
        ensure!(error == 0, "the server answered with error {error}");
        Ok(())
    }
}

impl Blocks for Client {
    fn write(&mut self, blocks: &[(u64, Vec<u8>)]) -> Result<()> {
        for (cookie, (block, bytes)) in blocks.iter().enumerate() {
            self.send(WRITE, cookie as u64, *block, bytes.len())?;
            self.stream.write_all(bytes)?;
        }
        blocks.iter().try_for_each(|_| self.reply())
    }

    fn flush(&mut self) -> Result<()> {
        self.send(FLUSH, 0, 0, 0)?;
        self.reply()
    }

    fn read(&mut self, block: u64, count: u64) -> Result<Vec<u8>> {
        let len = count as usize * BLOCK;
        self.send(READ, 0, block, len)?;
        self.reply()?;
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
