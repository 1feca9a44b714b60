//! The process itself.

use crate::check;
use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;

/// Marks the thread, and those that it starts, as ones that the kernel needs to write pages back.
const SET_IO_FLUSHER: libc::c_int = 57;

/// The user that this process runs as.
pub fn own_user() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Goes on as a process of its own: in a session of its own, not a child of whoever started it,
/// without its standard files. Returns in the new process only.
///
/// # Errors
/// The system refuses a process. The old one goes on then.
pub fn leave_parent() -> io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: the process has one thread, so the child may do what it likes.
    if check(unsafe { libc::fork() })? > 0 {
        // SAFETY: ends the old process without running what belongs to the new one.
        unsafe { libc::_exit(0) }
    }
    // SAFETY: these calls take no pointers; the standard files are given away on purpose.
    unsafe {
        libc::setsid();
        for fd in 0..3 {
            libc::dup2(null.as_raw_fd(), fd);
        }
        libc::chdir(c"/".as_ptr());
    }
    // Better this small process lives than its memory is free. Needs a right; without it, so be it.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    Ok(())
}

/// Whether the process runs as root.
pub fn is_root() -> bool {
    own_user() == 0
}

/// A file that reached its limit answers an error, and does not end the process.
pub fn survive_full_files() {
    // SAFETY: no handler is installed: the write that would raise the signal fails instead.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// As many files may be open as the process may have. Where that fails, it stays as it was.
pub fn open_most_files() {
    let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls take a limit that is valid for them.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) == 0 {
            files.rlim_cur = files.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
        }
    }
}

/// Tells the kernel that memory which it asks for on this thread, and on those that it starts, must
/// not come from writing pages to the devices that they serve. It takes CAP_SYS_RESOURCE.
pub fn io_flusher() -> io::Result<()> {
    let zero: libc::c_ulong = 0;
    // SAFETY: takes only numbers.
    check(unsafe { libc::prctl(SET_IO_FLUSHER, 1 as libc::c_ulong, zero, zero, zero) }).map(drop)
}

/// What [`forget_rights`] leaves: block devices, their control and mounts (`SYS_ADMIN`), files of
/// any owner, modules, who has a device open, locked memory, limits, NBD over TCP at any port.
pub const RIGHTS_KEPT: [(&str, u32); 8] = [
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_FOWNER", 3),
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_IPC_LOCK", 14),
    ("CAP_SYS_MODULE", 16),
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_SYS_RESOURCE", 24),
];

/// Version of `capset` with 64 capabilities, in two words each.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Gives up for good what no code of ours needs, for this process and those that it starts: all
/// capabilities but [`RIGHTS_KEPT`], and to get more by starting a program. To be called before
/// there are threads.
///
/// # Errors
/// The system refuses.
pub fn forget_rights() -> io::Result<()> {
    let kept = RIGHTS_KEPT.iter().fold(0, |kept, (_, number)| kept | 1_u64 << number);
    let zero: libc::c_ulong = 0;
    for number in (0..64).filter(|number| kept >> number & 1 == 0) {
        // It fails for numbers that the kernel does not have, and for users without any.
        // SAFETY: takes only numbers.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number as libc::c_ulong, zero, zero, zero) };
    }
    let header = [CAPABILITY_VERSION, 0];
    // Effective, permitted, inheritable; the low words first.
    let mut sets = [0_u32; 6];
    // SAFETY: the kernel reads two words and writes six.
    check(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) } as c_int)?;
    for (word, set) in sets.iter_mut().enumerate() {
        *set &= (kept >> (32 * (word / 3))) as u32;
    }
    // SAFETY: the kernel reads two words and six.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) } as c_int)?;
    let one: libc::c_ulong = 1;
    // SAFETY: takes only numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, one, zero, zero, zero) }).map(drop)
}
