//! Sockets, and other descriptors that are waited on.

use crate::{check, errno_of, own};
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Receives once, without waiting: how many bytes, or a negative error number. Interrupted calls
/// are repeated.
pub(crate) fn receive(fd: RawFd, memory: &mut [u8]) -> i32 {
    loop {
        let (at, len) = (memory.as_mut_ptr().cast(), memory.len());
        // SAFETY: the memory is valid for the call.
        let got = unsafe { libc::recv(fd, at, len, libc::MSG_DONTWAIT) };
        match errno_of(got) {
            interrupted if interrupted == -libc::EINTR => {}
            result => return result,
        }
    }
}

/// Accepts a connection: the new one, or a positive error number.
pub(crate) fn accept(fd: RawFd) -> Result<OwnedFd, i32> {
    let none = std::ptr::null_mut();
    // SAFETY: no address is asked for.
    let accepted = unsafe { libc::accept4(fd, none, none.cast(), libc::SOCK_CLOEXEC) };
    own(accepted.into()).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
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

/// Has TCP ask an end that says nothing for `idle` whether it is there, each `interval`; after so
/// many `probes` without an answer the connection ends. On other sockets it does nothing.
pub fn set_keep_alive(fd: RawFd, idle: Duration, interval: Duration, probes: u32) {
    let tcp = libc::IPPROTO_TCP;
    let options = [
        (tcp, libc::TCP_KEEPIDLE, idle.as_secs() as c_int),
        (tcp, libc::TCP_KEEPINTVL, interval.as_secs() as c_int),
        (tcp, libc::TCP_KEEPCNT, probes as c_int),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    ];
    for (level, name, value) in options {
        let len = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the value is valid for the call and of the length that is given.
        unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) };
    }
}

/// Waits until a descriptor has input. Whether it has.
pub fn wait_readable(fd: RawFd, limit: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let ms = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the descriptor set is valid for the call.
    Ok(check(unsafe { libc::poll(&raw mut poll, 1, ms) })? > 0)
}

/// Whether both ends of a connection are there. Nothing is read from it.
pub fn is_connected(stream: &UnixStream) -> bool {
    !has_hung_up(stream.as_raw_fd())
}

/// Whether the other end of a connection will say no more than what has arrived. Nothing is read.
pub fn has_hung_up(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one entry, valid for the call, which does not wait.
    let found = unsafe { libc::poll(&raw mut poll, 1, 0) };
    found != 0
}

/// A socket to the kernel's generic netlink.
pub fn generic_netlink() -> io::Result<File> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: takes only numbers.
    let made = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_GENERIC) };
    Ok(File::from(own(made.into())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn an_ended_connection_is_seen_and_data_is_not_an_end() {
        let (own, mut other) = UnixStream::pair().unwrap();
        assert!(is_connected(&own));
        other.write_all(b"an answer").unwrap();
        assert!(is_connected(&own));
        drop(other);
        assert!(!is_connected(&own));
    }
}
