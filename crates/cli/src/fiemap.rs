//! Where the content of a file lies on the volume that its file system is on.

use crate::show::unexpected;
use forebay_api::request::Named;
use forebay_api::{ApiError, Body, Client, Request};
use forebay_sys::file::{Extent, extents};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const SECTOR: u64 = 512;

/// Byte ranges of a volume, as offset and length, in which a file lies.
///
/// # Errors
/// The file is on another device, or its file system does not tell.
pub fn ranges(client: &Client, volume: &str, file: &str) -> Result<Vec<(u64, u64)>, ApiError> {
    let failed = |what: &str, error: std::io::Error| ApiError::failed(format!("{what}: {error}"));
    let opened = File::open(file).map_err(|error| failed(&format!("open {file}"), error))?;
    let metadata = opened.metadata().map_err(|error| failed(&format!("look at {file}"), error))?;
    let first = first_byte(client, volume, file, metadata.dev())?;
    let found = extents(&opened)
        .map_err(|error| failed(&format!("{file}: its file system does not tell where"), error))?;
    let told: Vec<(u64, u64)> = found
        .iter()
        .filter(|it| it.is_placed)
        .map(|Extent { physical, len, .. }| (first + physical, *len))
        .collect();
    match told.is_empty() {
        true => Err(ApiError::failed(format!("{file} has no blocks of its own on the volume"))),
        false => Ok(told),
    }
}

/// The byte of a volume with which the device of this number begins: the volume's own, or that of
/// one of its partitions.
fn first_byte(client: &Client, volume: &str, file: &str, device: u64) -> Result<u64, ApiError> {
    let body = client.ask(&Request::VolumeShow(Named { name: volume.to_string() }))?;
    let Body::Volumes { volumes } = &body else { return Err(unexpected(&body)) };
    let export = volumes.first().and_then(|volume| volume.export.clone()).unwrap_or_default();
    let own = fs::metadata(&export).map_or(0, |metadata| metadata.rdev());
    if own != 0 && own == device {
        return Ok(0);
    }
    let number = |of: u64| format!("{}:{}", libc_major(of), libc_minor(of));
    let dir = PathBuf::from("/sys/dev/block").join(number(device));
    let whole = fs::canonicalize(&dir).ok().and_then(|dir| Some(dir.parent()?.join("dev")));
    let is_part = |file: &Path| fs::read_to_string(file).is_ok_and(|it| it.trim() == number(own));
    if own != 0 && whole.is_some_and(|file| is_part(&file)) {
        let start = fs::read_to_string(dir.join("start")).ok();
        if let Some(sectors) = start.and_then(|it| it.trim().parse::<u64>().ok()) {
            return Ok(sectors * SECTOR);
        }
    }
    Err(ApiError::usage(format!(
        "{file} is on no file system of the block device of volume {volume} ({}); give sectors \
         instead",
        if export.is_empty() { "it has none" } else { &export }
    )))
}

/// The major number of a device, as glibc packs it.
fn libc_major(device: u64) -> u64 {
    (device >> 8) & 0xfff | (device >> 32) & !0xfff
}

/// The minor number of a device, as glibc packs it.
fn libc_minor(device: u64) -> u64 {
    device & 0xff | (device >> 12) & !0xff & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_taken_apart_as_the_kernel_prints_them() {
        assert_eq!((libc_major(0x0803), libc_minor(0x0803)), (8, 3));
        let many = (7 << 8) | 0x12 | (0x345 << 20);
        assert_eq!((libc_major(many), libc_minor(many)), (7, 0x34512));
    }
}
