//! System calls that the standard library lacks, and rings, behind functions that are safe to call.
//!
//! What is unsafe about them ends here. This crate decides nothing and knows nothing of volumes,
//! engines and protocols: who calls it says what is to be done. Memory that the kernel uses while a
//! call goes on by itself is *lent*: its owner gives it to the [`driver`] and gets it back when the
//! call has ended ([`driver::Loans`]).

pub mod clock;
pub mod driver;
mod epoll;
pub mod eventfd;
pub mod file;
pub mod loops;
pub mod memory;
pub mod mounts;
pub mod pass;
pub mod process;
pub mod shared;
pub mod socket;
pub mod ublk;
pub mod waker;

use std::ffi::{c_int, c_long};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Owns the descriptor that a system call has just returned.
fn own(result: c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(result).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for the caller, who gives it to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What a system call returned, as the kernel itself returns it: negative for an error.
fn errno_of(result: isize) -> i32 {
    match i32::try_from(result) {
        Ok(result) if result >= 0 => result,
        _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}

/// A part of what is to be written, as system calls take it.
fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
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
