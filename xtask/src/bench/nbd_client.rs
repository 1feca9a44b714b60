//! As much of an NBD client as it takes to read one block, without the start-up time of a program.

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

/// Connects to `export` and reads its first 4 KiB.
///
/// # Errors
/// If there is no server, no export, or no data.
pub fn read_first_block(socket: &Path, export: &str) -> Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket).context("connect")?;
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
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
    let mut request = Vec::new();
    request.extend(REQUEST_MAGIC.to_be_bytes());
    request.extend([0; 4]);
    request.extend(7_u64.to_be_bytes());
    request.extend(0_u64.to_be_bytes());
    request.extend(4096_u32.to_be_bytes());
    stream.write_all(&request)?;
    let mut reply = [0; 16];
    stream.read_exact(&mut reply)?;
    ensure!(reply[..4] == REPLY_MAGIC.to_be_bytes(), "not a simple reply");
    ensure!(reply[4..8] == [0; 4], "the read failed");
    let mut data = vec![0; 4096];
    stream.read_exact(&mut data)?;
    Ok(data)
}
