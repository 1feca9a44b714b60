//! As much of an NBD client as it takes to read and write, without the start-up time of a program.

use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const OPTION_EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const FIXED_NEWSTYLE_NO_ZEROES: u32 = 3;
const READ: u32 = 0;
const WRITE: u32 = 1;

/// A connection to one export, with one request at a time.
pub struct Connection {
    stream: UnixStream,
    handle: u64,
}

impl Connection {
    /// Connects; no answer may take longer than `limit`.
    ///
    /// # Errors
    /// If there is no server, or no export.
    pub fn open(socket: &Path, export: &str, limit: Duration) -> Result<Connection> {
        let mut stream = UnixStream::connect(socket).context("connect")?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        let mut hello = [0; 18];
        stream.read_exact(&mut hello)?;
        ensure!(&hello[..8] == b"NBDMAGIC" && &hello[8..16] == OPTION_MAGIC, "not an NBD server");
        stream.write_all(&FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes())?;
        stream.write_all(OPTION_MAGIC)?;
        stream.write_all(&OPTION_EXPORT_NAME.to_be_bytes())?;
        stream.write_all(&(export.len() as u32).to_be_bytes())?;
        stream.write_all(export.as_bytes())?;
        let mut size_and_flags = [0; 10];
        stream.read_exact(&mut size_and_flags).context("no such export yet")?;
        Ok(Connection { stream, handle: 0 })
    }

    /// Fills `data` with what is at `offset`.
    ///
    /// # Errors
    /// If the answer is an error, or there is none in time.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<()> {
        self.request(READ, offset, data.len(), &[])?;
        self.stream.read_exact(data).context("the data")
    }

    /// Writes `data` to `offset`.
    ///
    /// # Errors
    /// If the answer is an error, or there is none in time.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.request(WRITE, offset, data.len(), data)
    }

    /// Sends one, and waits for the head of its answer.
    fn request(&mut self, kind: u32, offset: u64, bytes: usize, data: &[u8]) -> Result<()> {
        self.handle += 1;
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(REQUEST_MAGIC.to_be_bytes());
        // Flags of 16 bits, none of them set, and the kind.
        request.extend(kind.to_be_bytes());
        request.extend(self.handle.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend((bytes as u32).to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).context("no answer")?;
        ensure!(reply[..4] == REPLY_MAGIC.to_be_bytes(), "not a simple reply");
        let error = u32::from_be_bytes(reply[4..8].try_into()?);
        ensure!(error == 0, "the answer is error {error}");
        ensure!(reply[8..] == self.handle.to_be_bytes(), "the answer is another request's");
        Ok(())
    }
}

/// Connects to `export` and reads its first 4 KiB.
///
/// # Errors
/// If there is no server, no export, or no data.
pub fn read_first_block(socket: &Path, export: &str) -> Result<Vec<u8>> {
    let mut data = vec![0; 4096];
    Connection::open(socket, export, Duration::from_secs(120))?.read(0, &mut data)?;
    Ok(data)
}
