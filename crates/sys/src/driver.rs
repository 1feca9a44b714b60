//! A thread's only wait: device I/O, sockets, other threads' wakes and time, through io_uring where
//! it is allowed, else through epoll, which leaves device I/O to its user.
//!
//! Memory that the kernel uses meanwhile is [lent](Loans): it comes back with the [`Arrival`] that
//! says how the call ended. What never comes back stays with the driver, and is never freed.

mod fixed;
mod lent;
mod poll;
mod ring;
#[cfg(test)]
mod tests;

use crate::waker::Waker;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use poll::Poll;
pub use ring::Ring;

/// What owns the memory that a driver is lent.
///
/// # Safety
/// The memory of a buffer stays where it is when the buffer is moved, and nobody uses it meanwhile
/// who does not have the buffer. `bytes_mut` is its beginning, of at least `capacity` bytes in all.
/// The mark that [`Loans::mark`] shows is dropped with the memory, and never goes to another.
pub unsafe trait Loans: 'static {
    /// A buffer of device I/O.
    type Buf: 'static;
    /// What a connection sends in one call.
    type Message: Parts;
    /// What a port writes in one call.
    type Answer: Parts;

    /// The bytes in use.
    fn bytes(buf: &Self::Buf) -> &[u8];
    /// The bytes in use.
    fn bytes_mut(buf: &mut Self::Buf) -> &mut [u8];
    /// Bytes that it could hold.
    fn capacity(buf: &Self::Buf) -> usize;
    /// Where the driver notes what it knows of the memory.
    fn mark(buf: &mut Self::Buf) -> &mut Option<Arc<u32>>;
}

/// What is sent or written by one call, and lies in several places.
pub trait Parts: 'static {
    /// Names them in order.
    fn each_part<'a>(&'a self, add: impl FnMut(&'a [u8]));
}

/// What a port lent.
pub enum Loan<L: Loans> {
    /// Nothing.
    Nothing,
    /// A buffer that the kernel may have filled.
    Buf(L::Buf),
    /// What was written.
    Answer(L::Answer),
}

/// How I/O is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// io_uring, or threads where it is not allowed or `FOREBAY_NO_IO_URING=1` is set.
    #[default]
    Auto,
    /// Threads and epoll.
    Threads,
}

/// What ended, and what was lent for it. Results are as system calls in the kernel return them:
/// bytes, or a negative error number.
pub enum Arrival<L: Loans> {
    /// A device I/O of this slot. A flush lends nothing.
    Io(u32, i32, Option<L::Buf>),
    /// A receive of this connection.
    Received(u32, i32, Box<[u8]>),
    /// A send of this connection.
    Sent(u32, i32, L::Message),
    /// An accept of this listener: a connection, or a positive error number.
    Accepted(u32, Result<OwnedFd, i32>),
    /// What a port started under this tag. A poll's result is the events that are there.
    Port(u32, u32, i32, Loan<L>),
    /// Another thread called the waker.
    Woken,
}

/// How long [`Driver::rest`] waits at once.
const REST_STEP: Duration = Duration::from_secs(1);

/// Keys of ports are below this: they travel with a tag in one number through the kernel.
pub const PORT_KEYS: u32 = 1 << 24;

/// The two ways.
pub enum Driver<L: Loans> {
    /// With a ring.
    Ring(Box<Ring<L>>),
    /// With epoll.
    Poll(Poll<L>),
}

impl<L: Loans> Driver<L> {
    /// Makes a driver for the calling thread, and says why it is not a ring if it should have been.
    ///
    /// # Errors
    /// The system refuses epoll too.
    pub fn new(backend: Backend, waker: &Waker) -> io::Result<(Driver<L>, Option<String>)> {
        let forbidden = std::env::var_os("FOREBAY_NO_IO_URING").is_some_and(|value| value == "1");
        if backend == Backend::Threads || forbidden {
            return Ok((Driver::Poll(Poll::new(waker)?), None));
        }
        match Ring::new(waker) {
            Ok(ring) => Ok((Driver::Ring(Box::new(ring)), None)),
            Err(e) => {
                let notice = format!("io_uring is not available ({e}); using threads instead");
                Ok((Driver::Poll(Poll::new(waker)?), Some(notice)))
            }
        }
    }

    /// Whether device I/O can be given to the driver.
    pub fn has_ring(&self) -> bool {
        matches!(self, Driver::Ring(_))
    }

    /// Has the kernel use up to so many threads of its own, so that I/O that cannot be started at
    /// once waits for nothing but its own device.
    pub fn allow_threads(&mut self, count: usize) {
        if let Driver::Ring(ring) = self {
            ring.allow_threads(count);
        }
    }

    /// Tells of a socket before it is used, which then stays open until [`Driver::unwatch`]. `key`
    /// names a connection, or a listener.
    pub fn watch(&mut self, fd: RawFd, key: u32, listener: bool) -> io::Result<()> {
        match self {
            Driver::Ring(_) => Ok(()),
            Driver::Poll(poll) => poll.watch(fd, key, listener),
        }
    }

    /// Forgets a socket. Nothing is under way on it.
    pub fn unwatch(&mut self, key: u32, listener: bool) {
        if let Driver::Poll(poll) = self {
            poll.unwatch(key, listener);
        }
    }

    /// Starts to receive into `input`. The socket stays open until the [`Arrival::Received`] of
    /// `key`.
    pub fn receive(&mut self, key: u32, fd: RawFd, input: Box<[u8]>) {
        match self {
            Driver::Ring(ring) => ring.receive(key, fd, input),
            Driver::Poll(poll) => poll.receive(key, input),
        }
    }

    /// Starts to send `message`. The socket stays open until the [`Arrival::Sent`] of `key`.
    pub fn send(&mut self, key: u32, fd: RawFd, message: L::Message) {
        match self {
            Driver::Ring(ring) => ring.send(key, fd, message),
            Driver::Poll(poll) => poll.send(key, message),
        }
    }

    /// Starts to accept a connection. The listener stays open until the [`Arrival::Accepted`] of
    /// `key`.
    pub fn accept(&mut self, key: u32, fd: RawFd) {
        match self {
            Driver::Ring(ring) => ring.accept(key, fd),
            Driver::Poll(poll) => poll.accept(key),
        }
    }

    /// Ends an accept under way; its [`Arrival::Accepted`] comes.
    pub fn cancel_accept(&mut self, key: u32) {
        match self {
            Driver::Ring(ring) => ring.cancel_accept(key),
            Driver::Poll(poll) => poll.cancel_accept(key),
        }
    }

    /// Waits once until a port's descriptor has input, or is at its end; it stays open until the
    /// [`Arrival::Port`] of `key` and `tag`. The kernel refuses a descriptor that cannot be waited
    /// on by the arrival's result.
    pub fn poll_port(&mut self, key: u32, tag: u32, fd: RawFd) {
        match self {
            Driver::Ring(ring) => ring.poll_port(key, tag, fd),
            Driver::Poll(poll) => poll.poll_port(key, tag, fd),
        }
    }

    /// Ends the wait that a port started under this tag; its [`Arrival::Port`] comes in any case.
    pub fn cancel_port(&mut self, key: u32, tag: u32) {
        match self {
            Driver::Ring(ring) => ring.cancel_port(key, tag),
            Driver::Poll(poll) => poll.cancel_port(key, tag),
        }
    }

    /// The ring, for what only a ring can do.
    pub fn ring(&mut self) -> Option<&mut Ring<L>> {
        match self {
            Driver::Ring(ring) => Some(ring),
            Driver::Poll(_) => None,
        }
    }

    /// Starts what was asked, and says whether something has ended that [`Driver::wait`] would
    /// tell. Cheap, and may miss what epoll would tell.
    pub fn look(&mut self) -> bool {
        match self {
            Driver::Ring(ring) => ring.look(),
            Driver::Poll(_) => false,
        }
    }

    /// Starts what was asked and waits until something ends, but at most for `timeout` (`None`: for
    /// ever).
    ///
    /// # Errors
    /// The system refuses to wait at all.
    pub fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Arrival<L>>) -> io::Result<()> {
        match self {
            Driver::Ring(ring) => ring.wait(timeout, out),
            Driver::Poll(poll) => poll.wait(timeout, out),
        }
    }

    /// Waits until no device I/O is under way, however long that takes, and tells nobody how it
    /// ended: for a thread that has nobody left to tell. What it uses stays open until then.
    ///
    /// # Errors
    /// The system refuses to wait at all.
    pub fn rest(&mut self) -> io::Result<()> {
        let Driver::Ring(ring) = self else { return Ok(()) };
        let mut unread = Vec::new();
        // What sockets that were shut down were lent comes back now.
        ring.wait(Some(Duration::ZERO), &mut unread)?;
        while ring.ios() > 0 {
            ring.wait(Some(REST_STEP), &mut unread)?;
            unread.clear();
        }
        Ok(())
    }
}
