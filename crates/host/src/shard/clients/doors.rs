//! Where clients come in: a socket is a door, and behind each there is room for so many who have
//! not said what they want.

use super::{Client, Clients, Migrant, hang_up};
use crate::driver::Driver;
use crate::frontend::nbd::{Session, Tls};
use crate::notice::{HostNotice, Notices};
use forebay_engine::Time;
use forebay_sys as sys;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait before accepting again when descriptors or memory are short, in nanoseconds.
const ACCEPT_RETRY_NS: Time = 100_000_000;
/// A TCP client that says nothing is asked after this time whether it is there, ...
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
/// ... so often, ...
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// ... and taken for gone when it did not answer so many times.
const KEEP_ALIVE_PROBES: u32 = 6;

/// A socket on which clients come.
pub(super) struct Listening {
    socket: OwnedFd,
    tls: Tls,
    /// Accept again at this time.
    pub(super) retry: Option<Time>,
    closing: bool,
}

impl Clients {
    /// Starts to accept on a socket.
    pub fn listen(&mut self, driver: &mut Driver, socket: OwnedFd, tls: Tls) -> io::Result<u32> {
        // A ring waits on blocking sockets only, epoll on others only.
        sys::socket::set_nonblocking(socket.as_raw_fd(), !driver.has_ring())?;
        let fd = socket.as_raw_fd();
        let key = self.listeners.insert(Listening { socket, tls, retry: None, closing: false });
        if let Err(e) = driver.watch(fd, key, true) {
            self.listeners.remove(key);
            return Err(e);
        }
        driver.accept(key, fd);
        Ok(key)
    }

    /// Ends the accept on a socket; it is closed when the driver lets go of it.
    pub fn unlisten(&mut self, driver: &mut Driver, key: u32) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        listener.closing = true;
        if listener.retry.is_some() {
            return self.close_listener(driver, key);
        }
        driver.cancel_accept(key);
    }

    fn close_listener(&mut self, driver: &mut Driver, key: u32) {
        driver.unwatch(key, true);
        self.listeners.remove(key);
    }

    /// An accept ended.
    pub fn accepted(
        &mut self,
        driver: &mut Driver,
        key: u32,
        result: Result<OwnedFd, i32>,
        now: Time,
        notices: &mut Notices,
    ) {
        let error = result.as_ref().err().copied().unwrap_or(0);
        let listener = self.listeners.get_mut(key).expect("a listener stays until its accept ends");
        if listener.closing || matches!(error, libc::EINVAL | libc::ECANCELED) {
            return self.close_listener(driver, key);
        }
        let (fd, tls) = (listener.socket.as_raw_fd(), listener.tls.clone());
        match error {
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS => {
                let e = io::Error::from_raw_os_error(error);
                notices.send(HostNotice::Text(format!("cannot accept an NBD client: {e}")));
                listener.retry = Some(now + ACCEPT_RETRY_NS);
            }
            _ => driver.accept(key, fd),
        }
        let Ok(socket) = result else { return };
        let mut input = Vec::new();
        if input.try_reserve_exact(self.server.limits.input_bytes).is_err() {
            // Who comes later may find some: this one ends here.
            let text = "cannot serve an NBD client: the system refuses memory";
            return notices.send(HostNotice::Text(text.to_owned()));
        }
        input.resize(self.server.limits.input_bytes, 0);
        let input = input.into_boxed_slice();
        self.make_room(key);
        let (idle, interval) = (KEEP_ALIVE_IDLE, KEEP_ALIVE_INTERVAL);
        sys::socket::set_no_delay(socket.as_raw_fd());
        sys::socket::set_keep_alive(socket.as_raw_fd(), idle, interval, KEEP_ALIVE_PROBES);
        let server = &self.server;
        let (exports, limits) = (Arc::clone(&server.exports), Arc::clone(&server.limits));
        let session = Session::new(exports, limits, Arc::clone(&server.budget), tls);
        let (unread, events) = (0..0, Vec::new());
        let migrant = Migrant { socket, session, input, unread, events };
        self.add(driver, migrant, Some(key), now, notices);
    }

    /// A handshake takes a moment, and who only holds his place keeps others out: of too many
    /// handshakes behind one door the oldest ends, for somebody new. Who comes in by another door
    /// does not feel it.
    fn make_room(&mut self, door: u32) {
        let is_waiting =
            |it: &Client| it.door == Some(door) && it.session.in_handshake() && !it.gone;
        let waiting = || self.clients.iter().filter(|(_, client)| is_waiting(client));
        if waiting().count() < self.server.handshakes_max {
            return;
        }
        let Some((oldest, _)) = waiting().min_by_key(|(_, client)| client.since) else { return };
        hang_up(self.clients.get_mut(oldest).expect("just seen"));
        self.touch(oldest);
    }

    /// Accepts again where descriptors or memory were short.
    pub(super) fn accept_again(&mut self, driver: &mut Driver, now: Time) {
        for key in self.listeners.keys() {
            let listener = self.listeners.get_mut(key).expect("one of the keys");
            if listener.retry.is_some_and(|at| at <= now) {
                listener.retry = None;
                driver.accept(key, listener.socket.as_raw_fd());
            }
        }
    }
}
