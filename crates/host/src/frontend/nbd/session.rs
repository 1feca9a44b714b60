//! One connection.

use super::output::Output;
use super::{Budget, Export, ExportTable, Limits, Tls};
use forebay_engine::{BlockStatus, Buf, BufPool, IoError, Request, VolumeId};
use std::sync::Arc;

/// Names one part of a request that the loop carries out. Unique in its session among those not answered.
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
        /// The request, aligned, within the export, of at most [`Limits::part_bytes_max`] bytes.
        request: Request,
    },
    /// Look up [`forebay_engine::Engine::block_status`] of blocks and call [`Session::status`].
    Status {
        /// To name it in the answer.
        ticket: Ticket,
        /// The volume.
        volume: VolumeId,
        /// The first block.
        block: u64,
        /// Blocks, at most [`Limits::status_blocks_max`].
        count: u64,
    },
}

/// The server's side of one NBD connection. See the [module](super) for how to drive it.
pub struct Session {
    exports: Arc<ExportTable>,
    limits: Arc<Limits>,
    budget: Arc<Budget>,
    tls: Tls,
    output: Output,
    closing: bool,
}

impl Session {
    /// A session for a client that has just connected. Its greeting waits in the output.
    pub fn new(
        exports: Arc<ExportTable>,
        limits: Arc<Limits>,
        budget: Arc<Budget>,
        tls: Tls,
    ) -> Session {
        let mut output = Output::default();
        output.head(b"NBDMAGICIHAVEOPT\x00\x03");
        Session { exports, limits, budget, tls, output, closing: false }
    }

    /// Takes bytes that arrived, and returns how many: all of them, or fewer when it is paused. Buffers for
    /// payloads come from `bufs`; events are appended.
    pub fn receive(
        &mut self,
        input: &[u8],
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) -> usize {
        let _ = (bufs, events);
        input.len()
    }

    /// Whether input should be left in the socket for now: too much is under way for this client or for all.
    pub fn paused(&self) -> bool {
        false
    }

    /// Answers a [`SessionEvent::Submit`]: how the engine ended it, with the request's buffer. May append
    /// events: the next parts of a long request.
    pub fn complete(
        &mut self,
        ticket: Ticket,
        result: Result<(), IoError>,
        buf: Buf,
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) {
        let _ = (ticket, result, events);
        bufs.give(buf);
    }

    /// Answers a [`SessionEvent::Status`]. `lookup` is called for the blocks of the event in ascending order,
    /// perhaps not for all.
    pub fn status(&mut self, ticket: Ticket, lookup: impl FnMut(u64) -> BlockStatus) {
        let _ = (ticket, lookup);
    }

    /// At most `chunks_max` slices to send, in order. They stay where they are, unchanged, until
    /// [`Session::sent`] has counted their bytes, whatever else is called meanwhile, except dropping the
    /// session or [`Session::disconnected`].
    pub fn output(&mut self, chunks_max: usize) -> impl Iterator<Item = &[u8]> {
        self.output.slices(chunks_max)
    }

    /// Whether there is something to send.
    pub fn has_output(&self) -> bool {
        self.output.len() > 0
    }

    /// `len` bytes of the output were sent.
    pub fn sent(&mut self, len: usize, bufs: &mut BufPool) {
        self.budget.give(self.output.sent(len, bufs));
    }

    /// Whether the loop should close the connection: all is answered and sent, or nothing more can be.
    pub fn wants_close(&self) -> bool {
        self.closing
    }

    /// The client went away, and no send is under way. What it asked and was not answered runs on without
    /// an answer.
    pub fn disconnected(&mut self, bufs: &mut BufPool) {
        self.closing = true;
        self.budget.give(self.output.clear(bufs));
    }

    /// The server stops, or the export goes away: what runs is finished, what follows is refused.
    pub fn shutdown(&mut self) {
        self.closing = true;
    }

    /// Tickets not answered. The session must live until it is zero.
    pub fn in_flight(&self) -> usize {
        0
    }

    /// Whether the client has not chosen an export yet: [`Limits::handshake_ms`] applies.
    pub fn in_handshake(&self) -> bool {
        let _ = (&self.exports, &self.limits, &self.tls);
        true
    }

    /// The export that the client chose.
    pub fn export(&self) -> Option<&Arc<Export>> {
        None
    }
}
