//! Which sectors the content of a disk was made for: a partition table counts in them, and a file
//! system with smaller ones than the disk's cannot be mounted.

use super::read_range;
use crate::device::Device;
use std::fs::File;
use std::io;

/// Bytes at the start that tell.
const HEAD_BYTES: u64 = 8192;
/// Sectors that are not small.
const LARGE: u32 = 4096;

/// Whether a disk made over this one has to have sectors of 512 bytes: this one has, being a block
/// device, or what is in this file was made for them.
///
/// # Errors
/// If the device or file cannot be read.
pub fn has_small_sectors(device: &Device) -> io::Result<bool> {
    let info = device.info();
    if info.is_block {
        return Ok(info.logical_block_bytes < LARGE);
    }
    let head = read_range(&File::open(device.path())?, 0, info.bytes.min(HEAD_BYTES))?;
    Ok(was_made_for_small(&head))
}

fn was_made_for_small(head: &[u8]) -> bool {
    let at = |offset: usize, bytes: &[u8]| head.get(offset..offset + bytes.len()) == Some(bytes);
    let short = |offset: usize| head.get(offset..offset + 2).map(|b| [b[0], b[1]]);
    if at(4096, b"EFI PART") {
        return false;
    }
    let xfs =
        at(0, b"XFSB") && short(102).is_some_and(|b| u32::from(u16::from_be_bytes(b)) < LARGE);
    // Its blocks have 1024 bytes, shifted by this.
    let ext = at(1080, &[0x53, 0xef]) && head.get(1048).is_some_and(|&shift| shift < 2);
    // A partition table, or a boot sector that says how long it is.
    let boot = at(510, &[0x55, 0xaa]) && short(11).map(u16::from_le_bytes) != Some(LARGE as u16);
    at(512, b"EFI PART") || xfs || ext || boot
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(marks: &[(usize, &[u8])]) -> Vec<u8> {
        let mut head = vec![0; HEAD_BYTES as usize];
        for (offset, bytes) in marks {
            head[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        head
    }

    #[test]
    fn what_counts_in_small_sectors_is_known() {
        let small: [&[(usize, &[u8])]; 5] = [
            &[(510, &[0x55, 0xaa]), (512, b"EFI PART")],
            &[(510, &[0x55, 0xaa])],
            &[(510, &[0x55, 0xaa]), (11, &[0, 2])],
            &[(0, b"XFSB"), (102, &[2, 0])],
            &[(1048, &[0]), (1080, &[0x53, 0xef])],
        ];
        for marks in small {
            assert!(was_made_for_small(&head(marks)), "{marks:?}");
        }
    }

    #[test]
    fn what_fits_large_sectors_gets_them() {
        let large: [&[(usize, &[u8])]; 5] = [
            &[],
            &[(510, &[0x55, 0xaa]), (4096, b"EFI PART")],
            &[(510, &[0x55, 0xaa]), (11, &[0, 16])],
            &[(0, b"XFSB"), (102, &[16, 0])],
            &[(1048, &[2]), (1080, &[0x53, 0xef])],
        ];
        for marks in large {
            assert!(!was_made_for_small(&head(marks)), "{marks:?}");
        }
        assert!(!was_made_for_small(&[]));
    }
}
