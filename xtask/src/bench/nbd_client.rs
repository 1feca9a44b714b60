//! NBD connections with a time limit, without the start-up time of a program.

use anyhow::{Context, Result};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connection to one export, with one request at a time.
pub type Connection = forebay_nbd::client::Connection<UnixStream>;

/// Connects; no answer may take longer than `limit`.
///
/// # Errors
/// If there is no server, or no export.
pub fn connect(socket: &Path, export: &str, limit: Duration) -> Result<Connection> {
    let stream = UnixStream::connect(socket).context("connect")?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    Connection::open(stream, export).context("no such export yet")
}

/// Connects to `export` and reads its first 4 KiB.
///
/// # Errors
/// If there is no server, no export, or no data.
pub fn read_first_block(socket: &Path, export: &str) -> Result<Vec<u8>> {
    let mut data = vec![0; 4096];
    connect(socket, export, Duration::from_secs(120))?.read(0, &mut data)?;
    Ok(data)
}
