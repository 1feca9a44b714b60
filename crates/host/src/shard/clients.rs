//! The shard's NBD clients: sockets, their sessions, and what is under way on them.

use super::server::{NbdServer, Place};
use crate::driver::Driver;
use crate::frontend::nbd::{BlockState, Parcel, Session, SessionEvent, Ticket, Tls};
use crate::notice::{HostNotice, Notices};
use forebay_engine::{Buf, BufPool, IoError, Keyed, Time, VolumeId};
use forebay_sys as sys;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Room for what one receive brings, in bytes.
const INPUT_BYTES: usize = 256 << 10;
/// Slices in one send.
const SLICES_MAX: usize = 256;
/// Unused buffers that are kept, in bytes.
const BUFS_BYTES: usize = 64 << 20;
/// How often to look at time limits, in nanoseconds.
const SCAN_NS: Time = 1_000_000_000;
/// How long to wait before accepting again when descriptors or memory are short, in nanoseconds.
const ACCEPT_RETRY_NS: Time = 100_000_000;
const MS: Time = 1_000_000;

/// One client.
struct Client {
    socket: OwnedFd,
    session: Session,
    /// What the last receive brought. The driver has it while one is under way.
    input: Box<[u8]>,
    /// Bytes of `input` that the session has not taken.
    unread: std::ops::Range<usize>,
    receiving: bool,
    sending: bool,
    /// The socket is shut down: nothing more is read or written.
    gone: bool,
    /// `gone` was told to the session.
    told: bool,
    /// Waits in `touched`.
    touched: bool,
    /// Chose an export of this pool: moves there when the socket is at rest.
    moves_to: Option<u32>,
    /// Events for that pool.
    kept: Vec<SessionEvent>,
    place: Place,
    since: Time,
    /// When output last moved.
    moved: Time,
}

/// A client on its way to another shard.
pub(crate) struct Migrant {
    socket: OwnedFd,
    session: Session,
    input: Box<[u8]>,
    unread: std::ops::Range<usize>,
    events: Vec<SessionEvent>,
    place: Place,
}

struct Listening {
    socket: OwnedFd,
    tls: Tls,
    /// Accept again at this time.
    retry: Option<Time>,
    closing: bool,
}

/// All clients of a shard.
pub(super) struct Clients {
    clients: Keyed<Box<Client>>,
    listeners: Keyed<Listening>,
    server: Arc<NbdServer>,
    number: u32,
    bufs: BufPool,
    /// Clients to look at before the next wait.
    touched: Vec<u32>,
    /// Clients whose session takes no input for now, perhaps with some that no longer are.
    paused: Vec<u32>,
    retry_at: Time,
    scan_at: Time,
}

/// What sessions ask, with their client.
pub(super) type Events = Vec<(u32, SessionEvent)>;

impl Clients {
    pub fn new(server: Arc<NbdServer>, number: u32) -> Clients {
        Clients {
            clients: Keyed::default(),
            listeners: Keyed::default(),
            server,
            number,
            bufs: BufPool::new(BUFS_BYTES),
            touched: Vec::new(),
            paused: Vec::new(),
            retry_at: 0,
            scan_at: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Clients that chose this volume.
    pub fn count_on(&self, volume: VolumeId) -> usize {
        let on_it =
            |client: &Client| client.session.export().is_some_and(|export| export.volume == volume);
        self.clients.iter().filter(|(_, client)| on_it(client)).count()
    }

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
        let Some(place) = self.server.enter().or_else(|| self.make_room()) else {
            let text = "an NBD client was turned away: too many are connected".to_owned();
            return notices.send(HostNotice::Text(text));
        };
        sys::socket::set_no_delay(socket.as_raw_fd());
        let server = &self.server;
        let (exports, limits) = (Arc::clone(&server.exports), Arc::clone(&server.limits));
        let session = Session::new(exports, limits, Arc::clone(&server.budget), tls);
        let input = vec![0; INPUT_BYTES].into_boxed_slice();
        let (unread, events) = (0..0, Vec::new());
        let migrant = Migrant { socket, session, input, unread, events, place };
        self.add(driver, migrant, now, notices);
    }

    /// Who has been in the handshake longest makes room for somebody new: a handshake takes a
    /// moment, and who only holds his place keeps others out.
    fn make_room(&mut self) -> Option<Place> {
        let waiting = self.clients.iter().filter(|(_, it)| it.session.in_handshake() && !it.gone);
        let (key, _) = waiting.min_by_key(|(_, client)| client.since)?;
        hang_up(self.clients.get_mut(key).expect("just seen"));
        self.touch(key);
        Some(self.server.enter_anyway())
    }

    /// Takes a client in. Events that it brings are returned.
    pub fn add(
        &mut self,
        driver: &mut Driver,
        migrant: Migrant,
        now: Time,
        notices: &mut Notices,
    ) -> Events {
        let Migrant { socket, session, input, unread, events, place } = migrant;
        let fd = socket.as_raw_fd();
        let client = Client {
            socket,
            session,
            input,
            unread,
            receiving: false,
            sending: false,
            gone: false,
            told: false,
            touched: false,
            moves_to: None,
            kept: Vec::new(),
            place,
            since: now,
            moved: now,
        };
        let key = self.clients.insert(Box::new(client));
        self.touch(key);
        if let Err(e) = driver.watch(fd, key, false) {
            notices.send(HostNotice::Text(format!("cannot serve an NBD client: {e}")));
            self.clients.get_mut(key).expect("just added").gone = true;
        }
        events.into_iter().map(|event| (key, event)).collect()
    }

    /// Has this client looked at before the next wait.
    fn touch(&mut self, key: u32) {
        if let Some(client) = self.clients.get_mut(key)
            && !client.touched
        {
            client.touched = true;
            self.touched.push(key);
        }
    }

    /// A receive ended.
    pub fn received(&mut self, key: u32, (result, input): (i32, Box<[u8]>), events: &mut Events) {
        let client = self.clients.get_mut(key).expect("a client stays until its receive ends");
        client.receiving = false;
        client.input = input;
        match result {
            len if len > 0 => client.unread = 0..len as usize,
            again if matches!(-again, libc::EAGAIN | libc::EINTR) => {}
            _ => hang_up(client),
        }
        self.feed(key, events);
        self.touch(key);
    }

    /// A send ended.
    pub fn sent(&mut self, key: u32, (result, parcel): (i32, Parcel), now: Time) {
        let client = self.clients.get_mut(key).expect("a client stays until its send ends");
        client.sending = false;
        client.session.sent(parcel, result.max(0) as usize, &mut self.bufs);
        match result {
            len if len > 0 => client.moved = now,
            again if matches!(-again, libc::EAGAIN | libc::EINTR) => {}
            _ => hang_up(client),
        }
        self.touch(key);
    }

    /// Gives the session what it has not taken.
    fn feed(&mut self, key: u32, events: &mut Events) {
        let client = self.clients.get_mut(key).expect("known to the caller");
        if client.gone || client.moves_to.is_some() {
            return;
        }
        let mut asked = std::mem::take(&mut client.kept);
        let input = &client.input[client.unread.clone()];
        let taken = client.session.receive(input, &mut self.bufs, &mut asked);
        client.unread.start += taken;
        self.sort_out(key, &mut asked, events);
        self.clients.get_mut(key).expect("still there").kept = asked;
    }

    /// Passes events on, and keeps those of a client that moves to another pool. Leaves `asked` empty or
    /// with what is kept.
    fn sort_out(&mut self, key: u32, asked: &mut Vec<SessionEvent>, events: &mut Events) {
        let client = self.clients.get_mut(key).expect("known to the caller");
        let elsewhere = asked.iter().position(|event| match event {
            SessionEvent::Opened(export) => export.pool != self.number,
            _ => false,
        });
        if let Some(at) = elsewhere {
            let SessionEvent::Opened(export) = asked.remove(at) else { unreachable!("as above") };
            client.moves_to = Some(export.pool);
            assert_eq!(at, 0, "requests follow the choice of an export");
            return;
        }
        events.extend(asked.drain(..).map(|event| (key, event)));
    }

    /// The engine answered a client's request.
    pub fn complete(
        &mut self,
        key: u32,
        ticket: Ticket,
        result: Result<(), IoError>,
        buf: Buf,
        events: &mut Events,
    ) {
        let client = self.clients.get_mut(key).expect("a client stays until it is answered");
        let asked = &mut client.kept;
        client.session.complete(ticket, result, buf, &mut self.bufs, asked);
        events.extend(asked.drain(..).map(|event| (key, event)));
        self.touch(key);
    }

    /// A client asks where blocks are.
    pub fn status(&mut self, key: u32, ticket: Ticket, lookup: impl FnMut(u64) -> BlockState) {
        let client = self.clients.get_mut(key).expect("a client stays until it is answered");
        client.session.status(ticket, lookup, &mut self.bufs);
        self.touch(key);
    }

    /// Looks at each client with which something happened: feeds a session that can take input again.
    pub fn feed_touched(&mut self, events: &mut Events) {
        for index in 0..self.touched.len() {
            let key = self.touched[index];
            let Some(client) = self.clients.get(key) else { continue };
            if !client.unread.is_empty() || client.session.paused() {
                self.feed(key, events);
            }
        }
    }

    /// Starts receives and sends for each client with which something happened, and lets go of those that
    /// are through.
    pub fn arm_touched(&mut self, driver: &mut Driver, now: Time) {
        while let Some(key) = self.touched.pop() {
            let Some(client) = self.clients.get_mut(key) else { continue };
            client.touched = false;
            if self.arm(driver, key, now) {
                driver.unwatch(key, false);
                let client = self.clients.remove(key).expect("seen above");
                self.move_or_close(*client);
            }
        }
    }

    /// Starts what can be started. Returns whether the client can be let go of.
    fn arm(&mut self, driver: &mut Driver, key: u32, now: Time) -> bool {
        let client = self.clients.get_mut(key).expect("known to the caller");
        let fd = client.socket.as_raw_fd();
        let at_rest = !client.receiving && !client.sending;
        if client.gone {
            if at_rest && !client.told {
                client.told = true;
                client.session.disconnected(&mut self.bufs);
                // The client stays until its requests have ended, which may take long.
                (client.input, client.unread) = (Box::default(), 0..0);
            }
            return client.told && client.session.in_flight() == 0;
        }
        if client.moves_to.is_some() {
            return at_rest;
        }
        if !client.sending && client.session.has_output() {
            start_send(driver, key, client, &mut self.bufs, now);
        } else if !client.sending && client.session.wants_close() {
            hang_up(client);
            // The receive under way ends with the socket.
            return !client.receiving && self.arm(driver, key, now);
        }
        let paused = client.session.paused();
        if paused || !client.unread.is_empty() {
            if !self.paused.contains(&key) {
                self.paused.push(key);
                self.retry_at = now + self.server.limits.retry_ms * MS;
            }
        } else if !client.receiving {
            client.receiving = true;
            driver.receive(key, fd, std::mem::take(&mut client.input));
        }
        false
    }

    /// Lets go of a client: of its socket, unless it moves.
    fn move_or_close(&mut self, client: Client) {
        let Some(pool) = client.moves_to.filter(|_| !client.gone) else { return };
        let Client { socket, session, input, unread, kept: events, place, .. } = client;
        let migrant = Migrant { socket, session, input, unread, events, place };
        // If the pool stopped since the client looked, this ends the connection.
        self.server.forward(pool, super::mailbox::Message::Adopt(Box::new(migrant)));
    }

    /// When [`Clients::look_around`] is due.
    pub fn next_due(&self) -> Option<Time> {
        let retry = (!self.paused.is_empty()).then_some(self.retry_at);
        let scan = (!self.clients.is_empty()).then_some(self.scan_at);
        let accept = self.listeners.iter().filter_map(|(_, listener)| listener.retry).min();
        retry.into_iter().chain(scan).chain(accept).min()
    }

    /// Looks at what time has brought: paused sessions, clients that stall, accepts to try again.
    pub fn look_around(&mut self, driver: &mut Driver, now: Time) {
        if now >= self.retry_at {
            for key in std::mem::take(&mut self.paused) {
                self.touch(key);
            }
        }
        for key in self.listeners.keys() {
            let listener = self.listeners.get_mut(key).expect("one of the keys");
            if listener.retry.is_some_and(|at| at <= now) {
                listener.retry = None;
                driver.accept(key, listener.socket.as_raw_fd());
            }
        }
        if now < self.scan_at {
            return;
        }
        self.scan_at = now + SCAN_NS;
        let limits = Arc::clone(&self.server.limits);
        for key in self.clients.keys() {
            let client = self.clients.get_mut(key).expect("one of the keys");
            let (age, still) = (now - client.since, now - client.moved);
            let slow = client.session.in_handshake() && age > limits.handshake_ms * MS;
            let stalled = client.sending && still > limits.stalled_ms * MS;
            if (slow || stalled) && !client.gone {
                hang_up(client);
                self.touch(key);
            }
        }
    }

    /// Refuses what follows on these clients: of one volume, or on all.
    pub fn shut_down(&mut self, volume: Option<VolumeId>) {
        for key in self.clients.keys() {
            let client = self.clients.get_mut(key).expect("one of the keys");
            let export = client.session.export();
            let on_it = export.is_some_and(|export| Some(export.volume) == volume);
            if volume.is_none() || on_it {
                client.session.shutdown();
                self.touch(key);
            }
        }
    }

    /// Ends all listeners and cuts all clients off.
    pub fn cut_off(&mut self, driver: &mut Driver) {
        for key in self.listeners.keys() {
            self.unlisten(driver, key);
        }
        for key in self.clients.keys() {
            hang_up(self.clients.get_mut(key).expect("one of the keys"));
            self.touch(key);
        }
    }

    /// Whether no socket is left that the driver uses.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.listeners.is_empty()
    }

    /// Whether every client has got what it was owed.
    pub fn are_quiet(&mut self) -> bool {
        let owed = |client: &Client| client.session.in_flight() > 0 || client.session.has_output();
        self.clients.iter_mut().all(|(_, client)| client.gone || !owed(client))
    }
}

/// Ends both directions of a client's socket; what is under way on it ends.
fn hang_up(client: &mut Client) {
    client.gone = true;
    sys::socket::shutdown(client.socket.as_raw_fd());
}

/// Sends what the session has, in one call.
fn start_send(driver: &mut Driver, key: u32, client: &mut Client, bufs: &mut BufPool, now: Time) {
    let parcel = client.session.output(SLICES_MAX, bufs);
    client.sending = true;
    client.moved = now;
    driver.send(key, client.socket.as_raw_fd(), parcel);
}
