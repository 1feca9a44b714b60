//! epoll.

use crate::{check, own};
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// An epoll instance.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Events taken by one wait.
    const EVENTS_MAX: usize = 256;

    /// A new one.
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: epoll_create1 takes no pointers.
        let made = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        Ok(Epoll(own(made.into())?))
    }

    /// Watches a descriptor: for input and output, each change once (`edge`), or for input as long
    /// as there is some. `name` comes back from [`Epoll::wait`].
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
        // SAFETY: the descriptor set and the time are valid for the call. An error or a signal only
        // ends the wait early.
        unsafe { libc::ppoll(&raw mut poll, 1, time, std::ptr::null()) };
    }
}
