//! Open files handed from process to process.

use crate::{check, part};
use std::ffi::c_int;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Room for one descriptor as control data, aligned as it must be.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// A message header without address, data and control data.
pub(crate) fn empty_message() -> libc::msghdr {
    // SAFETY: all zeros is a valid `msghdr`: integers and null pointers.
    unsafe { std::mem::zeroed() }
}

/// Sends bytes with at most one descriptor.
pub fn send_with(socket: RawFd, bytes: &[u8], fd: Option<RawFd>) -> io::Result<()> {
    send(socket, bytes, fd, 0)
}

/// Sends bytes if the socket has room for all of them. Whoever else has the socket cannot make this
/// wait.
pub fn send_now(socket: RawFd, bytes: &[u8]) -> io::Result<()> {
    send(socket, bytes, None, libc::MSG_DONTWAIT)
}

fn send(socket: RawFd, bytes: &[u8], fd: Option<RawFd>, flags: c_int) -> io::Result<()> {
    let mut control = Control([0; 64]);
    let mut part = part(bytes);
    let mut message = empty_message();
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(fd) = fd {
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: pure arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<c_int>() as u32) } as _;
        // SAFETY: the control data has room for one header and one descriptor.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(fd);
        }
    }
    // SAFETY: the message and all that it points to are valid for the call.
    let sent = unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL | flags) };
    match usize::try_from(sent) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(io::Error::from(io::ErrorKind::WriteZero)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives exactly `bytes`, and a descriptor if one comes with them. Says how many bytes came:
/// fewer only at the end of the stream.
pub fn receive_with(socket: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    receive(socket, bytes, libc::MSG_WAITALL)
}

/// As [`receive_with`], of what stays to be received: a descriptor is one more for the same file.
/// Waits for some bytes, not for all.
pub fn look_at(socket: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    receive(socket, bytes, libc::MSG_PEEK)
}

/// Throws away what waits in a socket that is shut down for reading, open files too.
pub fn drain(socket: RawFd) {
    let mut bytes = [0; 4096];
    while receive(socket, &mut bytes, libc::MSG_DONTWAIT).is_ok_and(|(count, _)| count > 0) {}
}

fn receive(socket: RawFd, bytes: &mut [u8], flags: c_int) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = empty_message();
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message and all that it points to are valid for the call.
    let count = unsafe { libc::recvmsg(socket, &raw mut message, flags) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let mut passed = None;
    // SAFETY: the kernel filled in the control data and its length; each descriptor in it is new
    // and belongs to nobody else.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..bytes / size_of::<c_int>() {
                    passed = Some(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok((count, passed))
}

/// The user at the other end of a unix socket.
pub fn peer_user(socket: RawFd) -> io::Result<u32> {
    peer(socket).map(|peer| peer.uid)
}

/// The process at the other end of a unix socket, or the one that began to listen there.
pub fn peer_process(socket: RawFd) -> io::Result<u32> {
    peer(socket).map(|peer| peer.pid.unsigned_abs())
}

fn peer(socket: RawFd) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the structure and its length are valid for the call.
    let result =
        unsafe { libc::getsockopt(socket, level, name, (&raw mut peer).cast(), &raw mut len) };
    check(result).map(|_| peer)
}

/// Takes over a descriptor that was passed at the start of the process.
pub fn take_inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl takes no pointers here; a descriptor that is not open is an error.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and whoever started the process gave it to us to keep.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
