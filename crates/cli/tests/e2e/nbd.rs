//! A client of NBD, as small as a test needs: one request at a time, simple replies.

use forebay_nbd::client::Connection;
use forebay_nbd::wire::Command;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A connection to one export.
pub struct Nbd {
    connection: Connection<UnixStream>,
    /// Size in bytes, as the server tells.
    pub bytes: u64,
}

/// The number of an error of the server; all ones for one of the connection.
fn number(error: io::Error) -> u32 {
    error.raw_os_error().map_or(u32::MAX, |number| number as u32)
}

impl Nbd {
    /// Connects to the export `name`. `None` if the server does not have it.
    pub fn connect(socket: &Path, name: &str) -> Option<Nbd> {
        let stream = UnixStream::connect(socket).expect("connect to the NBD socket");
        match Connection::open(stream, name) {
            Ok(connection) => Some(Nbd { bytes: connection.export.bytes, connection }),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => panic!("open {name}: {e}"),
        }
    }

    /// Connects to the export `name`, if that is possible at this moment.
    pub fn attempt(socket: &Path, name: &str) -> Option<Nbd> {
        let connection = Connection::open(UnixStream::connect(socket).ok()?, name).ok()?;
        Some(Nbd { bytes: connection.export.bytes, connection })
    }

    /// Reads `len` bytes.
    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        let mut data = vec![0; len as usize];
        self.connection.read(offset, &mut data).map_err(number)?;
        Ok(data)
    }

    /// Writes `data`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.connection.write(offset, data).map_err(number)
    }

    /// Says that nobody needs what is there.
    pub fn discard(&mut self, offset: u64, len: u32) -> Result<(), u32> {
        self.connection.discard(offset, len.into()).map_err(number)
    }

    /// Makes durable what was written.
    pub fn flush(&mut self) -> Result<(), u32> {
        self.connection.flush().map_err(number)
    }

    /// Reads everything.
    pub fn read_all(&mut self) -> Vec<u8> {
        const CHUNK: u64 = 1 << 20;
        let mut all = Vec::new();
        while (all.len() as u64) < self.bytes {
            let at = all.len() as u64;
            let len = CHUNK.min(self.bytes - at) as u32;
            all.extend(self.read(at, len).expect("read"));
        }
        all
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        let _ = self.connection.send(Command::Disconnect, 0, 0, &[]);
    }
}
