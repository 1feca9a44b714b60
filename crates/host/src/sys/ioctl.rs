//! Calls that make and end block devices. Each may block for as long as the kernel likes: they are
//! made under [`crate::limit::within`].

use super::check;
use std::ffi::{CStr, c_int, c_long};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSOPEN_CLOEXEC: u32 = 1;
const FSMOUNT_CLOEXEC: u32 = 1;

fn own(result: c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(result).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a file system of this kind with these options, mounted nowhere. It is gone when the
/// descriptor and all files that were opened through it are closed. An option without a value is a
/// flag.
pub fn mount_nowhere(kind: &CStr, options: &[(&CStr, Option<&CStr>)]) -> io::Result<OwnedFd> {
    // SAFETY: the name is a terminated string.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) };
    let context = own(context)?;
    let configure = |command: u32, key: *const libc::c_char, value: *const libc::c_char| {
        // SAFETY: key and value are null or terminated strings, as the command wants them.
        let done = unsafe {
            libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key, value, 0)
        };
        check(done as c_int).map(drop)
    };
    for (key, value) in options {
        match value {
            Some(value) => configure(FSCONFIG_SET_STRING, key.as_ptr(), value.as_ptr())?,
            None => configure(FSCONFIG_SET_FLAG, key.as_ptr(), std::ptr::null())?,
        }
    }
    configure(FSCONFIG_CMD_CREATE, std::ptr::null(), std::ptr::null())?;
    let attributes = libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: fsmount takes no pointers.
    let mount = unsafe {
        libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, attributes)
    };
    own(mount)
}

/// What the loop driver tells of a device, and is told.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LoopInfo {
    pub device: u64,
    pub inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    pub number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    pub flags: u32,
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

/// Waits until a descriptor has input. Whether it has.
pub fn wait_readable(fd: RawFd, limit: std::time::Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let ms = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the descriptor set is valid for the call.
    Ok(check(unsafe { libc::poll(&raw mut poll, 1, ms) })? > 0)
}

/// Whether the process runs as root.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
