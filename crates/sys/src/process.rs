//! The process itself.

use crate::check;
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
