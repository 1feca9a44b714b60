//! epoll: sockets are tried at once and again when they are ready.

use super::lent::Sending;
use super::{Arrival, Loan, Loans, PORT_KEYS, Parts};
use crate::epoll::Epoll;
use crate::errno_of;
use crate::socket;
use crate::waker::Waker;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// What waits on one socket.
struct Watched<L: Loans> {
    fd: RawFd,
    receive: Option<Box<[u8]>>,
    send: Box<Sending<L::Message>>,
    accept: bool,
}

const LISTENER: u64 = 1 << 32;
const WAKE: u64 = 2 << 32;
/// A port's descriptor: its key is in the 24 bits below, its tag in the lower 32.
const PORT: u64 = 1 << 56;

fn port(key: u32, tag: u32) -> u64 {
    assert!(key < PORT_KEYS);
    PORT | u64::from(key) << 32 | u64::from(tag)
}

/// What waits, and on what.
pub struct Poll<L: Loans> {
    epoll: Epoll,
    waker: Waker,
    watched: BTreeMap<u64, Watched<L>>,
    /// Descriptors of ports that are waited on, by name.
    polled: BTreeMap<u64, RawFd>,
    /// What ports are told before the next wait.
    told: Vec<Arrival<L>>,
    /// Sockets to try before waiting.
    fresh: Vec<u64>,
    /// Listeners whose accept ends without a client.
    cancelled: Vec<u32>,
    ready: Vec<u64>,
}

impl<L: Loans> Poll<L> {
    pub fn new(waker: &Waker) -> io::Result<Poll<L>> {
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
        let name = Self::name(key, listener);
        self.epoll.add(fd, name, true)?;
        let watched = Watched { fd, receive: None, send: Sending::new(), accept: false };
        let before = self.watched.insert(name, watched);
        assert!(before.is_none());
        Ok(())
    }

    pub fn unwatch(&mut self, key: u32, listener: bool) {
        if let Some(watched) = self.watched.remove(&Self::name(key, listener)) {
            assert!(watched.receive.is_none() && !watched.send.is_lent() && !watched.accept);
            self.epoll.remove(watched.fd);
        }
    }

    fn start(&mut self, key: u32, listener: bool) -> &mut Watched<L> {
        let name = Self::name(key, listener);
        self.fresh.push(name);
        self.watched.get_mut(&name).expect("a socket that is watched")
    }

    pub fn receive(&mut self, key: u32, input: Box<[u8]>) {
        let before = self.start(key, false).receive.replace(input);
        assert!(before.is_none(), "one receive at a time on each connection");
    }

    pub fn send(&mut self, key: u32, message: L::Message) {
        self.start(key, false).send.lend(message);
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
                self.told.push(Arrival::Port(key, tag, -error, Loan::Nothing));
            }
        }
    }

    pub fn cancel_port(&mut self, key: u32, tag: u32) {
        if let Some(fd) = self.polled.remove(&port(key, tag)) {
            self.epoll.remove(fd);
            self.told.push(Arrival::Port(key, tag, -libc::ECANCELED, Loan::Nothing));
        }
    }

    /// Ends the wait on a port's descriptor and tells the port.
    fn port_ready(&mut self, name: u64, out: &mut Vec<Arrival<L>>) {
        if let Some(fd) = self.polled.remove(&name) {
            self.epoll.remove(fd);
            let key = (name >> 32) as u32 & (PORT_KEYS - 1);
            let ready = libc::POLLIN.into();
            out.push(Arrival::Port(key, name as u32, ready, Loan::Nothing));
        }
    }

    pub fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Arrival<L>>) -> io::Result<()> {
        let before = out.len();
        out.append(&mut self.told);
        for key in std::mem::take(&mut self.cancelled) {
            if let Some(watched) = self.watched.get_mut(&Self::name(key, true))
                && std::mem::take(&mut watched.accept)
            {
                out.push(Arrival::Accepted(key, Err(libc::ECANCELED)));
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
    fn attempt(&mut self, name: u64, out: &mut Vec<Arrival<L>>) {
        let Some(watched) = self.watched.get_mut(&name) else { return };
        let key = name as u32;
        let would_block = -libc::EAGAIN;
        if let Some(mut input) = watched.receive.take() {
            let result = socket::receive(watched.fd, &mut input);
            if result == would_block {
                watched.receive = Some(input);
            } else {
                out.push(Arrival::Received(key, result, input));
            }
        }
        if watched.send.is_lent() {
            let result = send(watched.fd, &watched.send);
            if result != would_block {
                let message = watched.send.take().expect("looked at above");
                out.push(Arrival::Sent(key, result, message));
            }
        }
        if watched.accept {
            let result = socket::accept(watched.fd);
            if result.as_ref().err() != Some(&libc::EAGAIN) {
                watched.accept = false;
                out.push(Arrival::Accepted(key, result));
            }
        }
    }
}

/// Sends once, without waiting: how many bytes, or a negative error number. Interrupted calls are
/// repeated.
fn send<M: Parts>(fd: RawFd, message: &Sending<M>) -> i32 {
    loop {
        let (header, flags) = (message.header(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: the message and what names its parts are in their box.
        let sent = unsafe { libc::sendmsg(fd, header, flags) };
        match errno_of(sent) {
            interrupted if interrupted == -libc::EINTR => {}
            result => return result,
        }
    }
}
