//! epoll: sockets are tried at once and again when they are ready.

use super::{Arrival, PORT_KEYS};
use crate::sys::{self, Epoll};
use crate::waker::Waker;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// What waits on one socket.
struct Watched {
    fd: RawFd,
    receive: Option<(*mut u8, u32)>,
    send: Option<*const libc::msghdr>,
    accept: bool,
}

const LISTENER: u64 = 1 << 32;
const WAKE: u64 = 2 << 32;
/// A port's descriptor: its key is in the 24 bits below, its tag in the lower 32.
const PORT: u64 = 1 << 56;

fn port(key: u32, tag: u32) -> u64 {
    PORT | u64::from(key) << 32 | u64::from(tag)
}

pub(crate) struct Poll {
    epoll: Epoll,
    waker: Waker,
    watched: BTreeMap<u64, Watched>,
    /// Descriptors of ports that are waited on, by name.
    polled: BTreeMap<u64, RawFd>,
    /// What ports are told before the next wait.
    told: Vec<Arrival>,
    /// Sockets to try before waiting.
    fresh: Vec<u64>,
    /// Listeners whose accept ends without a client.
    cancelled: Vec<u32>,
    ready: Vec<u64>,
}

impl Poll {
    pub fn new(waker: &Waker) -> io::Result<Poll> {
        let epoll = Epoll::new()?;
        epoll.add(waker.fd(), WAKE, false)?;
        let (fresh, cancelled, ready) = (Vec::new(), Vec::new(), Vec::new());
        let (watched, polled, told) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let waker = waker.clone();
        Ok(Poll { epoll, waker, watched, polled, told, fresh, cancelled, ready })
    }

    fn name(key: u32, listener: bool) -> u64 {
        u64::from(key) | if listener { LISTENER } else { 0 }
    }

    pub fn watch(&mut self, fd: RawFd, key: u32, listener: bool) -> io::Result<()> {
        let name = Poll::name(key, listener);
        self.epoll.add(fd, name, true)?;
        let watched = Watched { fd, receive: None, send: None, accept: false };
        let before = self.watched.insert(name, watched);
        assert!(before.is_none());
        Ok(())
    }

    pub fn unwatch(&mut self, key: u32, listener: bool) {
        if let Some(watched) = self.watched.remove(&Poll::name(key, listener)) {
            assert!(watched.receive.is_none() && watched.send.is_none() && !watched.accept);
            self.epoll.remove(watched.fd);
        }
    }

    fn start(&mut self, key: u32, listener: bool) -> &mut Watched {
        let name = Poll::name(key, listener);
        self.fresh.push(name);
        self.watched.get_mut(&name).expect("a socket that is watched")
    }

    pub fn receive(&mut self, key: u32, memory: *mut u8, len: u32) {
        self.start(key, false).receive = Some((memory, len));
    }

    pub fn send(&mut self, key: u32, message: *const libc::msghdr) {
        self.start(key, false).send = Some(message);
    }

    pub fn accept(&mut self, key: u32) {
        self.start(key, true).accept = true;
    }

    pub fn cancel_accept(&mut self, key: u32) {
        self.cancelled.push(key);
    }

    pub fn poll_port(&mut self, key: u32, tag: u32, fd: RawFd) {
        let name = port(key, tag);
        match self.epoll.add(fd, name, false) {
            Ok(()) => {
                let before = self.polled.insert(name, fd);
                assert!(before.is_none(), "one poll at a time under one tag");
            }
            Err(e) => {
                let error = e.raw_os_error().unwrap_or(libc::EIO);
                self.told.push(Arrival::Port(key, tag, -error));
            }
        }
    }

    pub fn cancel_port(&mut self, key: u32, tag: u32) {
        if let Some(fd) = self.polled.remove(&port(key, tag)) {
            self.epoll.remove(fd);
            self.told.push(Arrival::Port(key, tag, -libc::ECANCELED));
        }
    }

    /// Ends the wait on a port's descriptor and tells the port.
    fn port_ready(&mut self, name: u64, out: &mut Vec<Arrival>) {
        if let Some(fd) = self.polled.remove(&name) {
            self.epoll.remove(fd);
            let key = (name >> 32) as u32 & (PORT_KEYS - 1);
            out.push(Arrival::Port(key, name as u32, libc::POLLIN.into()));
        }
    }

    pub fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Arrival>) -> io::Result<()> {
        let before = out.len();
        out.append(&mut self.told);
        for key in std::mem::take(&mut self.cancelled) {
            if let Some(watched) = self.watched.get_mut(&Poll::name(key, true))
                && std::mem::take(&mut watched.accept)
            {
                out.push(Arrival::Accepted(key, -libc::ECANCELED));
            }
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        for name in fresh.drain(..) {
            self.attempt(name, out);
        }
        self.fresh = fresh;
        let timeout = if out.len() > before { Some(Duration::ZERO) } else { timeout };
        let mut ready = std::mem::take(&mut self.ready);
        self.epoll.wait(timeout, &mut ready)?;
        for name in ready.drain(..) {
            if name == WAKE {
                self.waker.clear();
                out.push(Arrival::Woken);
            } else if name & PORT != 0 {
                self.port_ready(name, out);
            } else {
                self.attempt(name, out);
            }
        }
        self.ready = ready;
        Ok(())
    }

    /// Tries what waits on a socket. What would block waits on.
    fn attempt(&mut self, name: u64, out: &mut Vec<Arrival>) {
        let Some(watched) = self.watched.get_mut(&name) else { return };
        let key = name as u32;
        let would_block = -libc::EAGAIN;
        if let Some((memory, len)) = watched.receive {
            // SAFETY: `Driver::receive` promises that the memory is valid until the arrival below.
            let result = unsafe { sys::receive(watched.fd, memory, len) };
            if result != would_block {
                watched.receive = None;
                out.push(Arrival::Received(key, result));
            }
        }
        if let Some(message) = watched.send {
            // SAFETY: `Driver::send` promises that the message is valid until the arrival below.
            let result = unsafe { sys::send(watched.fd, message) };
            if result != would_block {
                watched.send = None;
                out.push(Arrival::Sent(key, result));
            }
        }
        if watched.accept {
            let result = sys::accept(watched.fd);
            if result != would_block {
                watched.accept = false;
                out.push(Arrival::Accepted(key, result));
            }
        }
    }
}
