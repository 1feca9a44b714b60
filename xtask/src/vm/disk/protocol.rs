//! As much of an NBD server as QEMU needs for a virtio disk.

use super::{Disk, Medium};
use anyhow::{Result, ensure};
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// Fixed newstyle, no zeroes after EXPORT_NAME.
const HANDSHAKE_FLAGS: u16 = 3;
const OPTION_ABORT: u32 = 2;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = (1 << 31) + 1;
/// Has flags, takes FLUSH.
const EXPORT_FLAGS: u16 = 1 | 4;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const EINVAL: u32 = 22;
/// More in one request is a broken client.
const LENGTH_MAX: usize = 64 << 20;

/// Serves one connection until it ends.
pub fn serve(stream: UnixStream, disk: &Disk) -> Result<()> {
    let mut output = stream.try_clone()?;
    let mut input = BufReader::with_capacity(1 << 20, stream);
    output.write_all(b"NBDMAGICIHAVEOPT")?;
    output.write_all(&HANDSHAKE_FLAGS.to_be_bytes())?;
    read_u32(&mut input)?;
    if !negotiate(&mut input, &mut output, disk)? {
        return Ok(());
    }
    while request(&mut input, &mut output, disk)? {}
    Ok(())
}

/// Returns whether requests follow.
fn negotiate(input: &mut impl Read, output: &mut impl Write, disk: &Disk) -> Result<bool> {
    loop {
        ensure!(read_u64(input)? == OPTION_MAGIC, "not an option");
        let option = read_u32(input)?;
        let len = read_u32(input)? as usize;
        ensure!(len <= 1 << 16, "an option of {len} bytes");
        input.read_exact(&mut vec![0; len])?;
        let mut reply = |kind: u32, data: &[u8]| {
            let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
            bytes.extend([option, kind, data.len() as u32].map(u32::to_be_bytes).concat());
            bytes.extend(data);
            output.write_all(&bytes)
        };
        match option {
            OPTION_INFO | OPTION_GO => {
                // Information 0: the export's size and flags.
                let mut info = 0_u16.to_be_bytes().to_vec();
                info.extend(disk.bytes().to_be_bytes());
                info.extend(EXPORT_FLAGS.to_be_bytes());
                reply(REPLY_INFO, &info)?;
                reply(REPLY_ACK, &[])?;
                if option == OPTION_GO {
                    return Ok(true);
                }
            }
            OPTION_ABORT => {
                reply(REPLY_ACK, &[])?;
                return Ok(false);
            }
            _ => reply(REPLY_UNSUPPORTED, &[])?,
        }
    }
}

/// Carries out one request. Returns whether more may follow.
fn request(input: &mut impl Read, output: &mut impl Write, disk: &Disk) -> Result<bool> {
    ensure!(read_u32(input)? == REQUEST_MAGIC, "not a request");
    let command = read_u32(input)? as u16;
    let mut cookie = [0; 8];
    input.read_exact(&mut cookie)?;
    let offset = usize::try_from(read_u64(input)?)?;
    let len = read_u32(input)? as usize;
    let fits = len <= LENGTH_MAX && (offset as u64).saturating_add(len as u64) <= disk.bytes();
    let mut reply = |error: u32, data: &[u8]| {
        let mut bytes = [REPLY_MAGIC, error].map(u32::to_be_bytes).concat();
        bytes.extend(cookie);
        bytes.extend(data);
        output.write_all(&bytes)
    };
    match command {
        READ if fits => {
            let read = disk.with(|medium| medium.current[offset..offset + len].to_vec());
            let Some(data) = read else { return Ok(stay_silent(disk)) };
            reply(0, &data)?;
        }
        WRITE => {
            ensure!(fits, "a write past the end");
            let mut data = vec![0; len];
            input.read_exact(&mut data)?;
            if disk.with(|medium| medium.write(offset, data)).is_none() {
                return Ok(stay_silent(disk));
            }
            reply(0, &[])?;
        }
        FLUSH => {
            if disk.with(Medium::flush).is_none() {
                return Ok(stay_silent(disk));
            }
            reply(0, &[])?;
        }
        DISCONNECT => return Ok(false),
        _ => reply(EINVAL, &[])?,
    }
    Ok(true)
}

/// A disk without power neither answers nor refuses. The guest is about to be killed; the
/// connection ends when the disk is on again.
fn stay_silent(disk: &Disk) -> bool {
    while disk.with(|_| ()).is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    false
}

fn read_u32(input: &mut impl Read) -> Result<u32> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn read_u64(input: &mut impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    input.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}
