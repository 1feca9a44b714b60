//! As much of an NBD server as QEMU needs for a virtio disk.

use super::{Disk, Medium};
use anyhow::{Context, Result, ensure};
use forebay_nbd::wire::{
    Command, Errno, GREETING, Head, Header, OPTION_HEADER_BYTES, OptionHeader, REQUEST_BYTES, flag,
    info, option, rep,
};
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

/// What the disk can do.
const EXPORT_FLAGS: u16 = flag::HAS_FLAGS | flag::SEND_FLUSH;
/// More in one request is a broken client.
const LENGTH_MAX: usize = 64 << 20;

/// Serves one connection until it ends.
pub fn serve(stream: UnixStream, disk: &Disk) -> Result<()> {
    let mut output = stream.try_clone()?;
    let mut input = BufReader::with_capacity(1 << 20, stream);
    output.write_all(GREETING)?;
    // The client's flags say nothing that matters here.
    input.read_exact(&mut [0; 4])?;
    if !negotiate(&mut input, &mut output, disk)? {
        return Ok(());
    }
    while request(&mut input, &mut output, disk)? {}
    Ok(())
}

/// Returns whether requests follow.
fn negotiate(input: &mut impl Read, output: &mut impl Write, disk: &Disk) -> Result<bool> {
    loop {
        let mut head = [0; OPTION_HEADER_BYTES];
        input.read_exact(&mut head)?;
        let OptionHeader { option, len } = OptionHeader::decode(&head).context("not an option")?;
        ensure!(len <= 1 << 16, "an option of {len} bytes");
        input.read_exact(&mut vec![0; len as usize])?;
        let mut reply = |kind: u32, data: &[u8]| {
            let mut bytes = Head::option_reply(option, kind, data.len() as u32).bytes().to_vec();
            bytes.extend(data);
            output.write_all(&bytes)
        };
        match option {
            option::INFO | option::GO => {
                let item = Head::new().u16(info::EXPORT).u64(disk.bytes()).u16(EXPORT_FLAGS);
                reply(rep::INFO, item.bytes())?;
                reply(rep::ACK, &[])?;
                if option == option::GO {
                    return Ok(true);
                }
            }
            option::ABORT => {
                reply(rep::ACK, &[])?;
                return Ok(false);
            }
            _ => reply(rep::ERR_UNSUP, &[])?,
        }
    }
}

/// Carries out one request. Returns whether more may follow.
fn request(input: &mut impl Read, output: &mut impl Write, disk: &Disk) -> Result<bool> {
    let mut head = [0; REQUEST_BYTES];
    input.read_exact(&mut head)?;
    let header = Header::decode(&head, false).context("not a request")?;
    let (offset, len) = (usize::try_from(header.offset)?, usize::try_from(header.len)?);
    let fits = len <= LENGTH_MAX && (offset as u64).saturating_add(len as u64) <= disk.bytes();
    let mut reply = |error: u32, data: &[u8]| {
        let mut bytes = Head::simple_reply(error, header.cookie).bytes().to_vec();
        bytes.extend(data);
        output.write_all(&bytes)
    };
    match header.command {
        Command::Read if fits => {
            let read = disk.with(|medium| medium.current[offset..offset + len].to_vec());
            let Some(data) = read else { return Ok(stay_silent(disk)) };
            reply(0, &data)?;
        }
        Command::Write => {
            ensure!(fits, "a write past the end");
            let mut data = vec![0; len];
            input.read_exact(&mut data)?;
            if disk.with(|medium| medium.write(offset, data)).is_none() {
                return Ok(stay_silent(disk));
            }
            reply(0, &[])?;
        }
        Command::Flush => {
            if disk.with(Medium::flush).is_none() {
                return Ok(stay_silent(disk));
            }
            reply(0, &[])?;
        }
        Command::Disconnect => return Ok(false),
        _ => reply(Errno::Invalid as u32, &[])?,
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
