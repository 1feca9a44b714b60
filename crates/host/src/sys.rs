//! Thin wrappers of the system calls that the standard library lacks. What is unsafe about them ends here.

pub mod ioctl;
pub mod pass;

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

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

const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// What kind of file system a file lies on.
fn file_system(file: &File) -> Option<i64> {
    // SAFETY: all zeros is a valid `statfs`: it consists of integers.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for the call.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) };
    (result == 0).then_some(stat.f_type)
}

/// Whether a file lies in memory: on tmpfs or ramfs.
pub fn is_in_memory(file: &File) -> bool {
    file_system(file).is_some_and(|kind| kind == libc::TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// Whether a file lies on a file system of which it is known that only the kernel and a disk stand
/// behind it, and that it begins I/O without waiting where it is asked to. FUSE and NFS are none,
/// nor what may lie on one.
pub fn is_local(file: &File) -> bool {
    const XFS_MAGIC: i64 = 0x5846_5342;
    const BCACHEFS_MAGIC: i64 = 0xca45_1a4e;
    let known = [
        libc::EXT4_SUPER_MAGIC,
        XFS_MAGIC,
        libc::BTRFS_SUPER_MAGIC,
        libc::F2FS_SUPER_MAGIC,
        BCACHEFS_MAGIC,
        libc::TMPFS_MAGIC,
        RAMFS_MAGIC,
    ];
    file_system(file).is_some_and(|kind| known.contains(&kind))
}

/// A file of `bytes` zeros that lies in memory and is gone when it is closed.
pub fn memory_file(bytes: u64) -> io::Result<File> {
    // SAFETY: the name is a terminated string.
    let raw = check(unsafe { libc::memfd_create(c"forebay".as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: the descriptor is new, open, and nobody else's.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
    file.set_len(bytes)?;
    Ok(file)
}

/// Where the first byte that may be not zero lies at or behind `offset`; `None` if there is none.
pub fn seek_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(file, offset, libc::SEEK_DATA) {
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        found => found.map(Some),
    }
}

/// Where the first hole lies at or behind `offset`; the end of the file counts as one.
pub fn seek_hole(file: &File, offset: u64) -> io::Result<u64> {
    seek(file, offset, libc::SEEK_HOLE)
}

fn seek(file: &File, offset: u64, whence: c_int) -> io::Result<u64> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: lseek takes no pointers, and `file` keeps the descriptor open.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
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

/// A non-blocking `eventfd`.
pub fn eventfd() -> io::Result<File> {
    // SAFETY: eventfd takes no pointers; the new descriptor is owned by nobody else.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    Ok(own(fd))
}

fn own(fd: c_int) -> File {
    // SAFETY: the callers have just got `fd` from the kernel and give it to nobody else.
    File::from(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn errno_of(result: isize) -> i32 {
    match i32::try_from(result) {
        Ok(result) if result >= 0 => result,
        _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Receives at most `len` bytes: how many, or a negative error number. Interrupted calls are repeated.
///
/// # Safety
/// `memory` is valid for writes of `len` bytes.
pub unsafe fn receive(fd: RawFd, memory: *mut u8, len: u32) -> i32 {
    loop {
        // SAFETY: as the caller promises.
        let got = unsafe { libc::recv(fd, memory.cast(), len as usize, libc::MSG_DONTWAIT) };
        match errno_of(got) {
            interrupted if interrupted == -libc::EINTR => {}
            result => return result,
        }
    }
}

/// Sends a message: how many bytes, or a negative error number. Interrupted calls are repeated.
///
/// # Safety
/// `message` and all that it points to is valid.
pub unsafe fn send(fd: RawFd, message: *const libc::msghdr) -> i32 {
    loop {
        // SAFETY: as the caller promises.
        let sent = unsafe { libc::sendmsg(fd, message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        match errno_of(sent) {
            interrupted if interrupted == -libc::EINTR => {}
            result => return result,
        }
    }
}

/// Accepts a connection: its descriptor or a negative error number.
pub fn accept(fd: RawFd) -> i32 {
    let none = std::ptr::null_mut();
    // SAFETY: no address is asked for.
    let accepted = unsafe { libc::accept4(fd, none, none.cast(), libc::SOCK_CLOEXEC) };
    errno_of(accepted as isize)
}

/// Ends both directions of a socket: what waits on it ends.
pub fn shutdown(fd: RawFd) {
    // SAFETY: shutdown takes no pointers; on a closed or foreign descriptor it only fails.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Sets whether calls on a descriptor wait.
pub fn set_nonblocking(fd: RawFd, nonblocking: bool) -> io::Result<()> {
    let mut on = c_int::from(nonblocking);
    // SAFETY: FIONBIO reads one int from the pointer, which is valid for the call.
    check(unsafe { libc::ioctl(fd, libc::FIONBIO, &raw mut on) }).map(drop)
}

/// Has TCP send small packets at once. On other sockets it does nothing.
pub fn set_no_delay(fd: RawFd) {
    let on: c_int = 1;
    let (level, name, len) = (libc::IPPROTO_TCP, libc::TCP_NODELAY, size_of::<c_int>());
    // SAFETY: the value is valid for the call and of the length that is given.
    unsafe { libc::setsockopt(fd, level, name, (&raw const on).cast(), len as libc::socklen_t) };
}

/// A message header without address, data and control data.
pub fn empty_message() -> libc::msghdr {
    // SAFETY: all zeros is a valid `msghdr`: integers and null pointers.
    unsafe { std::mem::zeroed() }
}

/// An epoll instance.
#[derive(Debug)]
pub struct Epoll(File);

impl Epoll {
    /// Events taken by one wait.
    const EVENTS_MAX: usize = 256;

    /// A new one.
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: epoll_create1 takes no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Epoll(own(fd)))
    }

    /// Watches a descriptor: for input and output, each change once (`edge`), or for input as long as there
    /// is some. `name` comes back from [`Epoll::wait`].
    pub fn add(&self, fd: RawFd, name: u64, edge: bool) -> io::Result<()> {
        let events =
            if edge { libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET } else { libc::EPOLLIN };
        let mut event = libc::epoll_event { events: events as u32, u64: name };
        let (epoll, add) = (self.0.as_raw_fd(), libc::EPOLL_CTL_ADD);
        // SAFETY: the event is valid for the call.
        check(unsafe { libc::epoll_ctl(epoll, add, fd, &raw mut event) }).map(drop)
    }

    /// Watches a descriptor no longer.
    pub fn remove(&self, fd: RawFd) {
        let (epoll, del) = (self.0.as_raw_fd(), libc::EPOLL_CTL_DEL);
        // SAFETY: no event is needed to remove.
        unsafe { libc::epoll_ctl(epoll, del, fd, std::ptr::null_mut()) };
    }

    /// Waits and appends the names of what is ready.
    pub fn wait(&self, timeout: Option<Duration>, out: &mut Vec<u64>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; Epoll::EVENTS_MAX];
        let (epoll, room) = (self.0.as_raw_fd(), events.len() as c_int);
        if timeout != Some(Duration::ZERO) {
            self.wait_precisely(timeout);
        }
        // SAFETY: there is room for that many events.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), room, 0) };
        match check(count) {
            Ok(count) => out.extend(events[..count as usize].iter().map(|event| event.u64)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }
    /// epoll itself counts in milliseconds; a disk model does not.
    fn wait_precisely(&self, timeout: Option<Duration>) {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().min(1 << 30) as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the descriptor set and the time are valid for the call. An error or a signal only ends
        // the wait early.
        unsafe { libc::ppoll(&raw mut poll, 1, time, std::ptr::null()) };
    }
}

/// Reads once into several buffers, in order. Interrupted calls are not repeated.
pub fn read_parts<const N: usize>(fd: RawFd, parts: [&mut [u8]; N]) -> io::Result<usize> {
    let parts =
        parts.map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
    // SAFETY: the slices are valid for writes during the call.
    let count = unsafe { libc::readv(fd, parts.as_ptr(), N as c_int) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Writes several buffers with one call. Interrupted calls are not repeated.
pub fn write_parts<const N: usize>(fd: RawFd, parts: [&[u8]; N]) -> io::Result<usize> {
    let parts = parts.map(part);
    // SAFETY: the slices are valid for reads during the call.
    let count = unsafe { libc::writev(fd, parts.as_ptr(), N as c_int) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// A part of what is to be written, as system calls take it.
pub fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Major and minor number of the running Linux; zeros if it does not tell.
pub fn kernel_release() -> (u32, u32) {
    release_of(&std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default())
}

fn release_of(text: &str) -> (u32, u32) {
    let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>();
    let mut numbers = text.split('.').map(|part| digits(part).parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_numbers_with_something_behind() {
        for (text, release) in [
            ("6.12.107+deb13-cloud-amd64", (6, 12)),
            ("4.18.0-513.el8.x86_64", (4, 18)),
            ("7.3-rc1\n", (7, 3)),
            ("", (0, 0)),
            ("unknown", (0, 0)),
        ] {
            assert_eq!(release_of(text), release, "{text}");
        }
        assert!(kernel_release() > (4, 0));
    }
}
