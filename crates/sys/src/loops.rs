//! Loop devices. Each call may block for as long as the kernel likes: who makes it has a time
//! limit.

use crate::check;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// What the loop driver tells of a device, and is told.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LoopInfo {
    /// The device on which the file behind it lies.
    pub device: u64,
    /// Which file that is.
    pub inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    /// `N` of `/dev/loopN`.
    pub number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    /// Of [`LOOP_AUTOCLEAR`] and the like.
    pub flags: u32,
    /// What the file is called, for people.
    pub file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_bytes: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);
const _: () = assert!(size_of::<LoopConfig>() == 304);

const LOOP_CLR_FD: u32 = 0x4c01;
const LOOP_SET_STATUS64: u32 = 0x4c04;
const LOOP_GET_STATUS64: u32 = 0x4c05;
const LOOP_SET_CAPACITY: u32 = 0x4c07;
const LOOP_CONFIGURE: u32 = 0x4c0a;
const LOOP_CTL_GET_FREE: u32 = 0x4c82;

/// The loop device ends when its last user closes it.
pub const LOOP_AUTOCLEAR: u32 = 4;
/// The loop device reads and writes its file without the page cache.
pub const LOOP_DIRECT_IO: u32 = 16;

impl LoopInfo {
    /// All zeros.
    pub fn empty() -> LoopInfo {
        // SAFETY: all zeros is valid: it consists of integers.
        unsafe { std::mem::zeroed() }
    }
}

/// The number of a free loop device.
pub fn loop_free(control: &File) -> io::Result<u32> {
    // SAFETY: the call takes no pointer.
    let number = check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) })?;
    Ok(number as u32)
}

/// Puts a file behind a free loop device.
pub fn loop_configure(
    device: &File,
    file: &File,
    block_bytes: u32,
    info: LoopInfo,
) -> io::Result<()> {
    let fd = file.as_raw_fd() as u32;
    let config = LoopConfig { fd, block_bytes, info, reserved: [0; 8] };
    // SAFETY: the kernel reads the structure, which is valid for the call.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) })
        .map(drop)
}

/// What is behind a loop device. `ENXIO`: nothing.
pub fn loop_status(device: &File) -> io::Result<LoopInfo> {
    let mut info = LoopInfo::empty();
    // SAFETY: the kernel fills the structure, which is valid for the call.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, &raw mut info) })?;
    Ok(info)
}

/// Changes flags of a loop device.
pub fn loop_set_status(device: &File, info: &LoopInfo) -> io::Result<()> {
    let info: *const LoopInfo = info;
    // SAFETY: the kernel reads the structure, which is valid for the call.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_STATUS64 as _, info) }).map(drop)
}

/// Takes the file from behind a loop device, now or when its last user closes it.
pub fn loop_clear(device: &File) -> io::Result<()> {
    // SAFETY: the call takes no pointer.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD as _, 0) }).map(drop)
}

/// Has a loop device look how large its file is.
pub fn loop_set_capacity(device: &File) -> io::Result<()> {
    // SAFETY: the call takes no pointer.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY as _, 0) }).map(drop)
}
