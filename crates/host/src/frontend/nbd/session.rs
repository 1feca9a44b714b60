//! One connection: the protocol, and TLS around it.

use super::core::{Closing, Core, Policy};
use super::fault::NO_MEMORY;
use super::output::{Output, Parcel};
use super::status::BlockState;
use super::{Budget, Export, ExportTable, Limits, Tls, TlsConfig};
use forebay_engine::{Buf, BufPool, IoError, Request, VolumeId};
use rustls::ServerConnection;
use std::io::{BufRead, Write};
use std::sync::Arc;

/// Encrypted bytes that may wait to be sent. What is behind them waits unencrypted, and charged.
const WIRE_BYTES_MAX: usize = 256 << 10;

/// Slices of plain output that are encrypted at a time.
const ENCRYPT_SLICES: usize = 64;

/// Names one part of a request that the loop carries out. Unique in its session among those not
/// answered, but for parts of one request without data: they differ in nothing that matters when
/// they end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What a session asks of its loop.
#[derive(Debug)]
pub enum SessionEvent {
    /// The client has chosen an export; requests for it follow. Comes once at most, before them.
    Opened(Arc<Export>),
    /// Give this request to the engine and its reply to [`Session::complete`].
    Submit {
        /// To name it in the answer.
        ticket: Ticket,
        /// The request, aligned, within the export, of at most [`Limits::part_bytes_max`] bytes
        /// ([`Limits::zeroes_bytes_max`] where it zeroes or discards) and within one such stripe of
        /// the volume. A read comes without its buffer: whoever carries it out takes one.
        request: Request,
    },
    /// Look up [`forebay_engine::Engine::block_status`] of a few blocks and call
    /// [`Session::status`].
    Status {
        /// To name it in the answer.
        ticket: Ticket,
        /// The volume.
        volume: VolumeId,
        /// The first block.
        block: u64,
        /// Blocks, at most [`Limits::status_slice_blocks`].
        count: u64,
    },
}

/// The server's side of one NBD connection. See the [module](super) for how to drive it.
pub struct Session {
    core: Core,
    tls: Option<TlsConfig>,
    secure: Option<Secure>,
}

/// A connection that uses TLS.
struct Secure {
    connection: ServerConnection,
    /// What goes on the wire.
    wire: Output,
    scratch: Vec<u8>,
    /// TLS broke down, or was closed.
    ended: bool,
    said_goodbye: bool,
}

impl Session {
    /// A session for a client that has just connected. Its greeting waits in the output. `budget`
    /// must have room for two of the largest payloads and four parts.
    pub fn new(
        exports: Arc<ExportTable>,
        limits: Arc<Limits>,
        budget: Arc<Budget>,
        tls: Tls,
    ) -> Session {
        let (policy, tls) = match tls {
            Tls::Off => (Policy::Off, None),
            Tls::On(config) => (Policy::On, Some(config)),
            Tls::Require(config) => (Policy::Require, Some(config)),
        };
        Session { core: Core::new(exports, limits, budget, policy), tls, secure: None }
    }

    /// Takes bytes that arrived, and returns how many: all of them, or fewer when it is paused.
    /// Buffers for payloads come from `bufs`; events are appended.
    pub fn receive(
        &mut self,
        input: &[u8],
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) -> usize {
        let mut taken = 0;
        if self.secure.is_none() {
            taken = self.core.parse(input, bufs, events);
            if !self.core.start_tls {
                return taken;
            }
            // Whatever follows is TLS, even if it came in the same packet: an attacker who adds
            // options in the open has them refused as broken TLS.
            self.core.start_tls = false;
            self.core.secure = true;
            let plain = std::mem::take(&mut self.core.out);
            let config = self.tls.as_ref().expect("TLS starts only where it is configured");
            self.secure = Secure::new(config, plain);
            if self.secure.is_none() {
                self.core.hang_up();
                return input.len();
            }
        }
        if let Some(secure) = &mut self.secure {
            taken += secure.receive(&mut self.core, &input[taken..], bufs, events);
        }
        taken
    }

    /// Whether input should be left in the socket for now: too much is under way for this client or
    /// for all.
    pub fn paused(&self) -> bool {
        self.core.blocked
    }

    /// Answers a [`SessionEvent::Submit`]: how the engine ended it, with the request's buffer. May
    /// append events: the next parts of a long request.
    pub fn complete(
        &mut self,
        ticket: Ticket,
        result: Result<(), IoError>,
        buf: Buf,
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) {
        self.core.complete(ticket, result, buf, bufs, events);
    }

    /// Answers a [`SessionEvent::Submit`] for whose data the system has no memory: as
    /// [`Session::complete`].
    pub fn refuse(&mut self, ticket: Ticket, bufs: &mut BufPool, events: &mut Vec<SessionEvent>) {
        self.core.end(ticket, Err(NO_MEMORY), Buf::empty(), bufs, events);
    }

    /// Answers a [`SessionEvent::Status`]. `lookup` is called for the blocks of the event in
    /// ascending order, perhaps not for all. May append events: the next blocks.
    pub fn status<S: Into<BlockState>>(
        &mut self,
        ticket: Ticket,
        lookup: impl FnMut(u64) -> S,
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) {
        self.core.status(ticket, lookup, bufs, events);
    }

    /// What to send, in at most `chunks_max` slices. It comes back by [`Session::sent`] before
    /// there is more; the session goes on meanwhile.
    pub fn output(&mut self, chunks_max: usize, bufs: &mut BufPool) -> Parcel {
        match &mut self.secure {
            None => self.core.out.take(chunks_max),
            Some(secure) => {
                secure.encrypt(&mut self.core, bufs);
                secure.wire.take(chunks_max)
            }
        }
    }

    /// Whether there is something to send.
    pub fn has_output(&self) -> bool {
        match &self.secure {
            None => self.core.out.len() > 0,
            Some(secure) => {
                secure.wire.len() > 0
                    || secure.connection.wants_write()
                    || !secure.ended && (self.core.out.len() > 0 || secure.owes_goodbye(&self.core))
            }
        }
    }

    /// `len` bytes of the output were sent.
    pub fn sent(&mut self, parcel: Parcel, len: usize, bufs: &mut BufPool) {
        match &mut self.secure {
            None => self.core.sent(parcel, len, bufs),
            Some(secure) => {
                let charges = secure.wire.sent(parcel, len, bufs);
                assert_eq!(charges, 0);
            }
        }
    }

    /// Whether the loop should close the connection: all is answered and sent, or nothing more can
    /// be.
    pub fn wants_close(&self) -> bool {
        let ends = match self.core.closing {
            Closing::Hard => true,
            Closing::Finish => self.core.in_flight == 0,
            Closing::No => self.core.stopping && self.core.in_flight == 0,
        };
        ends && !self.has_output()
    }

    /// The client went away, and no send is under way. Events that were not carried out yet may be
    /// answered without that, by any error. What runs ends without an answer.
    pub fn disconnected(&mut self, bufs: &mut BufPool) {
        self.core.disconnected(bufs);
        self.secure = None;
    }

    /// The server stops, or the export goes away: what runs is finished, what follows is refused.
    pub fn shutdown(&mut self) {
        self.core.stopping = true;
    }

    /// Tickets not answered. The session must live until it is zero.
    pub fn in_flight(&self) -> usize {
        self.core.in_flight
    }

    /// Whether the client has not chosen an export yet: [`Limits::handshake_ms`] applies.
    pub fn in_handshake(&self) -> bool {
        self.core.export.is_none()
    }

    /// The export that the client chose.
    pub fn export(&self) -> Option<&Arc<Export>> {
        self.core.export.as_ref()
    }
}

impl Secure {
    /// `plain` is what was queued before TLS: the agreement to start it.
    fn new(config: &TlsConfig, plain: Output) -> Option<Secure> {
        let connection = ServerConnection::new(Arc::clone(&config.0)).ok()?;
        Some(Secure {
            connection,
            wire: plain,
            scratch: Vec::new(),
            ended: false,
            said_goodbye: false,
        })
    }

    fn receive(
        &mut self,
        core: &mut Core,
        input: &[u8],
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) -> usize {
        let mut rest = input;
        while !self.ended {
            // Plain bytes that are there come first: they may block, and then nothing more is
            // decrypted.
            self.parse(core, bufs, events);
            if core.blocked || rest.is_empty() {
                return input.len() - rest.len();
            }
            let read = self.connection.read_tls(&mut rest);
            if read.is_err() || self.connection.process_new_packets().is_err() {
                // The alert that explains it is still sent.
                self.ended = true;
                core.hang_up();
            }
        }
        input.len()
    }

    fn parse(&mut self, core: &mut Core, bufs: &mut BufPool, events: &mut Vec<SessionEvent>) {
        let mut reader = self.connection.reader();
        loop {
            let plain = match reader.fill_buf() {
                Ok([]) => {
                    // The client said goodbye.
                    self.ended = true;
                    return core.hang_up();
                }
                Ok(plain) => plain,
                // Nothing there. What was blocked may go on all the same.
                Err(_) => {
                    core.parse(&[], bufs, events);
                    return;
                }
            };
            let taken = core.parse(plain, bufs, events);
            reader.consume(taken);
            if core.blocked {
                return;
            }
        }
    }

    fn owes_goodbye(&self, core: &Core) -> bool {
        let ends = match core.closing {
            Closing::Hard => true,
            Closing::Finish => core.in_flight == 0,
            Closing::No => core.stopping && core.in_flight == 0,
        };
        ends && core.out.len() == 0 && !self.said_goodbye
    }

    /// Moves output from the protocol to the wire.
    fn encrypt(&mut self, core: &mut Core, bufs: &mut BufPool) {
        self.flush();
        while self.wire.len() < WIRE_BYTES_MAX
            && core.out.len() > 0
            && !self.connection.is_handshaking()
            && !self.ended
        {
            let mut written = 0;
            let parcel = core.out.take(ENCRYPT_SLICES);
            for slice in parcel.slices() {
                // rustls takes what its buffer has room for.
                let Ok(count) = self.connection.writer().write(slice) else {
                    self.ended = true;
                    break;
                };
                written += count;
                if count < slice.len() {
                    break;
                }
            }
            core.sent(parcel, written, bufs);
            self.flush();
        }
        if !self.ended && self.owes_goodbye(core) {
            self.said_goodbye = true;
            self.connection.send_close_notify();
            self.flush();
        }
    }

    fn flush(&mut self) {
        while self.connection.wants_write() {
            self.scratch.clear();
            if self.connection.write_tls(&mut self.scratch).is_err() {
                self.ended = true;
                return;
            }
            self.wire.head(&self.scratch);
        }
    }
}
