//! Mounts. Each call may block for as long as the kernel likes: who makes it has a time limit.

use crate::{check, own};
use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSOPEN_CLOEXEC: u32 = 1;
const FSMOUNT_CLOEXEC: u32 = 1;

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

/// Gives this process mounts of its own.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: takes no memory; only this process has other mounts afterwards.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).map(drop)
}

/// Has all mounts of this process follow those that they came from, which do not follow them.
pub fn follow() -> io::Result<()> {
    let (none, flags) = (std::ptr::null(), libc::MS_REC | libc::MS_SLAVE);
    // SAFETY: the path is a string that ends; the other words may be null for this change.
    check(unsafe { libc::mount(none, c"/".as_ptr(), none, flags, none.cast()) }).map(drop)
}
