//! Descriptors of `eventfd(2)` that another process has too. That one can fill a counter, empty it,
//! and clear `O_NONBLOCK`, which belongs to both, at any moment: no call here waits all the same.

use crate::{check, file, own, socket};
use std::cell::OnceCell;
use std::ffi::{c_long, c_ulong};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::ptr;

/// What the kernel calls such a descriptor.
const NAME: &str = "anon_inode:[eventfd]";

/// A non-blocking one.
pub fn new() -> io::Result<File> {
    // SAFETY: eventfd takes no pointers.
    let made = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    Ok(File::from(own(made.into())?))
}

/// Whether a file is one.
pub fn is_one(file: &File) -> bool {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(path).is_ok_and(|name| name.as_os_str() == NAME)
}

/// Sets the counter of one to zero, if it is not.
pub fn clear(eventfd: &File) {
    let mut count = [0_u8; 8];
    let part = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    let (fd, one, nowhere): (_, c_long, c_long) = (c_long::from(eventfd.as_raw_fd()), 1, -1);
    let now = c_long::from(libc::RWF_NOWAIT);
    // SAFETY: the memory of the one part is valid for the call.
    let read = unsafe {
        libc::syscall(libc::SYS_preadv2, fd, &raw const part, one, nowhere, nowhere, now)
    };
    let error = (read < 0).then(|| io::Error::last_os_error().raw_os_error()).flatten();
    if matches!(error, Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)) {
        // Before Linux 5.8.
        let _ = socket::set_nonblocking(eventfd.as_raw_fd(), true);
        let _ = { eventfd }.read(&mut count);
    }
}

/// Adds one to the counter of one, unless it is full.
pub fn tell(eventfd: &File) {
    thread_local!(static TELLER: OnceCell<Option<Teller>> = const { OnceCell::new() });
    let told = TELLER.with(|teller| {
        let teller = teller.get_or_init(|| Teller::new().ok());
        teller.as_ref().is_some_and(|teller| teller.tell(eventfd).is_ok())
    });
    if !told {
        // A kernel without asynchronous I/O, or one that has none left.
        let _ = socket::set_nonblocking(eventfd.as_raw_fd(), true);
        let _ = { eventfd }.write(&1_u64.to_ne_bytes());
    }
}

/// Ends of I/O that are not fetched yet.
const ENDS_MAX: usize = 128;

/// Has the kernel tell of the end of an I/O that does nothing. A write to an eventfd may wait, and
/// nothing that its owner says beforehand is sure to hold; the kernel itself never waits.
struct Teller {
    context: c_ulong,
    /// It is empty, and nothing is read from it.
    nothing: File,
}

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Control {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

const _: () = assert!(size_of::<Control>() == 64);
/// The end is told to `eventfd`.
const TELLS: u32 = 1;

/// `struct io_event`.
type End = [u64; 4];

impl Teller {
    fn new() -> io::Result<Teller> {
        let nothing = file::memory_file(0)?;
        let mut context: c_ulong = 0;
        // SAFETY: the kernel writes the context's name to the pointer, which is valid for the call.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, ENDS_MAX, &raw mut context) };
        check(made as i32)?;
        Ok(Teller { context, nothing })
    }

    fn tell(&self, eventfd: &File) -> io::Result<()> {
        // Opcode 0 reads: no bytes, to nowhere.
        let fd = |file: &File| file.as_raw_fd().cast_unsigned();
        let control = Control {
            fd: fd(&self.nothing),
            flags: TELLS,
            eventfd: fd(eventfd),
            ..Control::default()
        };
        let controls = [&raw const control];
        // SAFETY: one control block, valid for the call; the I/O has no memory, and ends in it.
        let submit = || unsafe {
            libc::syscall(libc::SYS_io_submit, self.context, 1 as c_long, controls.as_ptr())
        };
        let mut started = submit();
        if started < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN) {
            self.fetch();
            started = submit();
        }
        check(started as i32).map(drop)
    }

    /// Fetches the ends that nobody asks for.
    fn fetch(&self) {
        let mut ends: [End; ENDS_MAX] = [[0; 4]; ENDS_MAX];
        let time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (least, most) = (0 as c_long, ENDS_MAX as c_long);
        let to: *mut End = ends.as_mut_ptr();
        // SAFETY: there is room for that many, and the time is valid for the call.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                least,
                most,
                to,
                ptr::from_ref(&time),
            )
        };
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        // SAFETY: takes a number. Nothing is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn count(eventfd: &File) -> u64 {
        let mut count = [0; 8];
        match { eventfd }.read_exact(&mut count) {
            Ok(()) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    #[test]
    fn each_call_is_counted() {
        let eventfd = new().unwrap();
        for _ in 0..3 * ENDS_MAX {
            tell(&eventfd);
        }
        assert_eq!(count(&eventfd), 3 * ENDS_MAX as u64);
        assert!(Teller::new().unwrap().tell(&File::open("/dev/null").unwrap()).is_err());
        tell(&eventfd);
        clear(&eventfd);
        assert_eq!(count(&eventfd), 0);
    }

    #[test]
    fn nobody_waits_for_a_counter_although_the_other_side_wants_it_so() {
        let eventfd = new().unwrap();
        let theirs = eventfd.try_clone().unwrap();
        socket::set_nonblocking(theirs.as_raw_fd(), false).unwrap();
        let (done, wait) = channel();
        std::thread::spawn(move || {
            clear(&eventfd);
            { &eventfd }.write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
            tell(&eventfd);
            done.send(()).unwrap();
        });
        wait.recv_timeout(Duration::from_secs(10)).expect("it waits");
        assert!(count(&theirs) >= u64::MAX - 1);
    }

    #[test]
    fn other_descriptors_are_none() {
        assert!(is_one(&new().unwrap()));
        for path in ["/dev/zero", "/dev/null", "/"] {
            assert!(!is_one(&File::open(path).unwrap()), "{path}");
        }
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_one(&File::from(std::os::fd::OwnedFd::from(socket))));
        assert!(!is_one(&file::memory_file(4096).unwrap()));
    }
}
