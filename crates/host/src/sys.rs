//! Thin wrappers of the system calls that the standard library lacks. What is unsafe about them ends here.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const BLKSSZGET: libc::c_ulong = 0x1268;
const BLKDISCARD: libc::c_ulong = 0x1277;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes the whole-file `flock` lock without waiting.
///
/// # Errors
/// `WouldBlock` if another open file description holds it.
pub fn lock_exclusive(file: &File) -> io::Result<()> {
    // SAFETY: flock takes no pointers, and `file` keeps the descriptor open.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).map(drop)
}

/// The logical block size of a block device, in bytes.
pub fn logical_block_bytes(file: &File) -> io::Result<u32> {
    let mut bytes: c_int = 0;
    // SAFETY: BLKSSZGET writes one int to the pointer, which is valid for the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET as _, &raw mut bytes) })?;
    u32::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Tells a block device that a range of bytes is no longer needed.
pub fn block_discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: BLKDISCARD reads two u64 from the pointer, which is valid for the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) }).map(drop)
}

/// `fallocate(2)` with a mode of `libc::FALLOC_FL_*`.
pub fn fallocate(file: &File, mode: c_int, offset: u64, len: u64) -> io::Result<()> {
    let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    // SAFETY: fallocate takes no pointers, and `file` keeps the descriptor open.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) }).map(drop)
}

/// The alignment in bytes that direct I/O on this file needs, if the kernel tells (6.1 and later).
pub fn direct_io_align(file: &File) -> Option<u32> {
    // SAFETY: all zeros is a valid `statx`: it consists of integers.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the path is a terminated string and `stat` is valid for the call.
    let result = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, &raw mut stat) };
    let told = result == 0 && stat.stx_mask & libc::STATX_DIOALIGN != 0;
    (told && stat.stx_dio_offset_align > 0).then_some(stat.stx_dio_offset_align)
}

/// Where the first byte that may be not zero lies at or behind `offset`; `None` if there is none.
pub fn seek_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: lseek takes no pointers, and `file` keeps the descriptor open.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, libc::SEEK_DATA) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            e => Err(e),
        },
    }
}

/// Random bytes of the kernel.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0_u8; N];
    assert!(N <= 256, "up to 256 bytes are never interrupted");
    // SAFETY: the pointer is valid for N bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    assert_eq!(got, N as isize, "getrandom is there on every supported kernel");
    bytes
}
