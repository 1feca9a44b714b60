//! The shard's only wait: device I/O, sockets, other threads' wakes and time, through io_uring
//! where it is allowed, else through epoll (device I/O then runs on [worker
//! threads](crate::executor)).

mod fixed;
mod poll;
mod ring;

use crate::device::Device;
use crate::waker::Waker;
use forebay_engine::Buf;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use poll::Poll;
pub(crate) use ring::Ring;

/// How I/O is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// io_uring, or threads where it is not allowed or `FOREBAY_NO_IO_URING=1` is set.
    #[default]
    Auto,
    /// Threads and epoll.
    Threads,
}

/// What ended. Results are as system calls in the kernel return them: bytes or a descriptor, or a
/// negative error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A device I/O of this slot.
    Io(u32, i32),
    /// A receive of this connection.
    Received(u32, i32),
    /// A send of this connection.
    Sent(u32, i32),
    /// An accept of this listener.
    Accepted(u32, i32),
    /// What a port started under this tag. A poll's result is the events that are there.
    Port(u32, u32, i32),
    /// Another thread called the waker.
    Woken,
}

/// Keys of ports are below this: they travel with a tag in one number through the kernel.
pub(crate) const PORT_KEYS: u32 = 1 << 24;

/// The two ways.
pub(crate) enum Driver {
    Ring(Box<Ring>),
    Poll(Poll),
}

impl Driver {
    /// Makes a driver for the calling thread, and says why it is not a ring if it should have been.
    ///
    /// # Errors
    /// The system refuses epoll too.
    pub fn new(backend: Backend, waker: &Waker) -> io::Result<(Driver, Option<String>)> {
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

    /// Starts to read from `offset` of a device into a buffer, all but its first so many bytes.
    ///
    /// # Safety
    /// The buffer stays, nobody uses it, and the device stays open, until the [`Arrival::Io`] of
    /// `slot`. The driver is a ring.
    pub unsafe fn read(&mut self, slot: u32, file: &Device, offset: u64, buf: (&mut Buf, usize)) {
        let Driver::Ring(ring) = self else { unreachable!("asked before") };
        // SAFETY: as the caller promises.
        unsafe { ring.read(slot, file, offset, buf) }
    }

    /// Starts to write a buffer, all but its first so many bytes, to `offset` of a device.
    ///
    /// # Safety
    /// The buffer stays, unchanged, and the device stays open, until the [`Arrival::Io`] of `slot`.
    /// The driver is a ring.
    pub unsafe fn write(&mut self, slot: u32, file: &Device, offset: u64, buf: (&mut Buf, usize)) {
        let Driver::Ring(ring) = self else { unreachable!("asked before") };
        // SAFETY: as the caller promises.
        unsafe { ring.write(slot, file, offset, buf) }
    }

    /// Starts to flush a device, which must stay open until the [`Arrival::Io`] of `slot`.
    pub fn flush(&mut self, slot: u32, file: &Device) {
        let Driver::Ring(ring) = self else { unreachable!("asked before") };
        ring.flush(slot, file);
    }

    /// Tells of a socket before it is used. `key` names a connection, or a listener.
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

    /// Starts to receive at most `len` bytes.
    ///
    /// # Safety
    /// `memory` is valid for writes of `len` bytes, nobody uses it, and the socket stays open,
    /// until the [`Arrival::Received`] of `key`.
    pub unsafe fn receive(&mut self, key: u32, fd: RawFd, memory: *mut u8, len: u32) {
        match self {
            // SAFETY: as the caller promises.
            Driver::Ring(ring) => unsafe { ring.receive(key, fd, memory, len) },
            Driver::Poll(poll) => poll.receive(key, memory, len),
        }
    }

    /// Starts to send what `message` points to.
    ///
    /// # Safety
    /// `message` and all that it points to is valid and unchanged, and the socket stays open, until
    /// the [`Arrival::Sent`] of `key`.
    pub unsafe fn send(&mut self, key: u32, fd: RawFd, message: *const libc::msghdr) {
        match self {
            // SAFETY: as the caller promises.
            Driver::Ring(ring) => unsafe { ring.send(key, fd, message) },
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
        assert!(key < PORT_KEYS);
        match self {
            Driver::Ring(ring) => ring.poll_port(key, tag, fd),
            Driver::Poll(poll) => poll.poll_port(key, tag, fd),
        }
    }

    /// Ends what a port started under this tag, if it can be ended; its [`Arrival::Port`] comes in
    /// any case.
    pub fn cancel_port(&mut self, key: u32, tag: u32) {
        match self {
            Driver::Ring(ring) => ring.cancel_port(key, tag),
            Driver::Poll(poll) => poll.cancel_port(key, tag),
        }
    }

    /// The ring, for what only a ring can do for a port.
    pub fn ring(&mut self) -> Option<&mut Ring> {
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
    pub fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Arrival>) -> io::Result<()> {
        match self {
            Driver::Ring(ring) => ring.wait(timeout, out),
            Driver::Poll(poll) => poll.wait(timeout, out),
        }
    }
}
