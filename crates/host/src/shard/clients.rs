//! The shard's NBD clients: sockets, their sessions, and what is under way on them.

mod asking;
mod doors;
mod turns;

use super::server::NbdServer;
use crate::driver::Driver;
use crate::frontend::nbd::{BlockState, Parcel, Session, SessionEvent, Ticket};
use crate::notice::{HostNotice, Notices};
use doors::Listening;
use forebay_engine::{Buf, BufPool, IoError, Keyed, Time, VolumeId};
use forebay_sys as sys;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use turns::{Line, Turns};

/// Slices in one send.
const SLICES_MAX: usize = 256;
/// How often to look at time limits, in nanoseconds.
const SCAN_NS: Time = 1_000_000_000;
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
    /// What it asks and has not had its turn.
    line: Line,
    /// The listener that let it in, if it was one of this shard.
    door: Option<u32>,
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
}

/// All clients of a shard.
pub(super) struct Clients {
    clients: Keyed<Box<Client>>,
    listeners: Keyed<Listening>,
    server: Arc<NbdServer>,
    number: u32,
    bufs: BufPool,
    turns: Turns,
    /// Clients to look at before the next wait.
    touched: Vec<u32>,
    /// Clients whose session takes no input for now, perhaps with some that no longer are.
    paused: Vec<u32>,
    retry_at: Time,
    scan_at: Time,
}

impl Clients {
    pub fn new(server: Arc<NbdServer>, number: u32) -> Clients {
        Clients {
            clients: Keyed::default(),
            listeners: Keyed::default(),
            number,
            bufs: BufPool::new(server.unused_bytes_max).looking(sys::memory::is_there),
            server,
            turns: Turns::default(),
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

    /// Takes a client in that came through a door of this shard, or from another shard.
    pub fn add(
        &mut self,
        driver: &mut Driver,
        migrant: Migrant,
        door: Option<u32>,
        now: Time,
        notices: &mut Notices,
    ) {
        let Migrant { socket, session, input, unread, events } = migrant;
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
            line: Line::default(),
            door,
            since: now,
            moved: now,
        };
        let key = self.clients.insert(Box::new(client));
        self.touch(key);
        if let Err(e) = driver.watch(fd, key, false) {
            notices.send(HostNotice::Text(format!("cannot serve an NBD client: {e}")));
            self.clients.get_mut(key).expect("just added").gone = true;
        }
        self.wait(key, events);
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
    pub fn received(&mut self, key: u32, (result, input): (i32, Box<[u8]>)) {
        let client = self.clients.get_mut(key).expect("a client stays until its receive ends");
        client.receiving = false;
        client.input = input;
        match result {
            len if len > 0 => client.unread = 0..len as usize,
            again if matches!(-again, libc::EAGAIN | libc::EINTR) => {}
            _ => hang_up(client),
        }
        self.feed(key);
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
    fn feed(&mut self, key: u32) {
        let client = self.clients.get_mut(key).expect("known to the caller");
        if client.gone || client.moves_to.is_some() {
            return;
        }
        let mut asked = std::mem::take(&mut client.kept);
        let input = &client.input[client.unread.clone()];
        let taken = client.session.receive(input, &mut self.bufs, &mut asked);
        client.unread.start += taken;
        self.sort_out(key, &mut asked);
        self.clients.get_mut(key).expect("still there").kept = asked;
    }

    /// Has events wait for their turn, and keeps those of a client that moves to another pool. Leaves
    /// `asked` empty or with what is kept.
    fn sort_out(&mut self, key: u32, asked: &mut Vec<SessionEvent>) {
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
        self.wait(key, asked.drain(..));
    }

    /// The engine answered a client's request.
    pub fn complete(&mut self, key: u32, ticket: Ticket, result: Result<(), IoError>, buf: Buf) {
        let client = self.clients.get_mut(key).expect("a client stays until it is answered");
        let mut asked = std::mem::take(&mut client.kept);
        client.session.complete(ticket, result, buf, &mut self.bufs, &mut asked);
        self.pass_on(key, asked);
    }

    /// An answer led to more questions.
    fn pass_on(&mut self, key: u32, mut asked: Vec<SessionEvent>) {
        self.wait(key, asked.drain(..));
        self.clients.get_mut(key).expect("known to the caller").kept = asked;
        self.touch(key);
    }

    /// A client asks where blocks are.
    pub fn status(&mut self, key: u32, ticket: Ticket, lookup: impl FnMut(u64) -> BlockState) {
        let client = self.clients.get_mut(key).expect("a client stays until it is answered");
        let mut asked = std::mem::take(&mut client.kept);
        client.session.status(ticket, lookup, &mut self.bufs, &mut asked);
        self.pass_on(key, asked);
    }

    /// Looks at each client with which something happened: feeds a session that can take input again.
    pub fn feed_touched(&mut self) {
        for index in 0..self.touched.len() {
            let key = self.touched[index];
            let Some(client) = self.clients.get(key) else { continue };
            if !client.unread.is_empty() || client.session.paused() {
                self.feed(key);
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
                // The client stays until its requests have ended, which may take long.
                (client.input, client.unread) = (Box::default(), 0..0);
                end_session(client, &mut self.bufs);
                self.turns.forget(key);
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
                self.retry_soon(now);
                self.paused.push(key);
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
        let Client { socket, session, input, unread, kept: events, .. } = client;
        let migrant = Migrant { socket, session, input, unread, events };
        // If the pool stopped since the client looked, this ends the connection.
        self.server.forward(pool, super::mailbox::Message::Adopt(Box::new(migrant)));
    }

    /// When [`Clients::look_around`] is due.
    pub fn next_due(&self) -> Option<Time> {
        let waits = !self.paused.is_empty() || self.turns.are_resting();
        let retry = waits.then_some(self.retry_at);
        let scan = (!self.clients.is_empty()).then_some(self.scan_at);
        let accept = self.listeners.iter().filter_map(|(_, listener)| listener.retry).min();
        retry.into_iter().chain(scan).chain(accept).min()
    }

    /// Looks at what time has brought: paused sessions, clients that stall, accepts to try again.
    pub fn look_around(&mut self, driver: &mut Driver, now: Time) {
        if now >= self.retry_at {
            self.turns.rouse();
            for key in std::mem::take(&mut self.paused) {
                self.look_for_end(key);
                self.touch(key);
            }
        }
        self.accept_again(driver, now);
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

    /// Nothing is received from a paused client, so its end is looked for.
    fn look_for_end(&mut self, key: u32) {
        let Some(client) = self.clients.get_mut(key).filter(|it| !it.gone) else { return };
        if !client.receiving && sys::socket::has_hung_up(client.socket.as_raw_fd()) {
            hang_up(client);
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

/// The socket is at rest and gone. What the client asked and nobody has begun is not begun.
fn end_session(client: &mut Client, bufs: &mut BufPool) {
    client.told = true;
    client.session.disconnected(bufs);
    let mut none = Vec::new();
    for event in client.line.drain() {
        match event {
            SessionEvent::Submit { ticket, request } => {
                let result = Err(IoError::Shutdown);
                client.session.complete(ticket, result, request.buf, bufs, &mut none);
            }
            SessionEvent::Status { ticket, .. } => {
                let nothing = |_| forebay_engine::BlockStatus::NotCached;
                client.session.status(ticket, nothing, bufs, &mut none);
            }
            SessionEvent::Opened(_) => {}
        }
    }
    assert!(none.is_empty(), "nobody asks any more");
}

/// Sends what the session has, in one call.
fn start_send(driver: &mut Driver, key: u32, client: &mut Client, bufs: &mut BufPool, now: Time) {
    let parcel = client.session.output(SLICES_MAX, bufs);
    client.sending = true;
    client.moved = now;
    driver.send(key, client.socket.as_raw_fd(), parcel);
}
