//! The protocol behind the transport: plain bytes in, plain bytes out.

use super::handshake::Negotiated;
use super::output::{Output, Parcel};
use super::slots::{BLOCK_BYTES, Slots, buf_bytes};
use super::{Budget, Export, ExportTable, Limits, SessionEvent};
use forebay_engine::{Buf, BufPool};
use forebay_nbd::wire::{self, Head};
use std::collections::VecDeque;
use std::sync::Arc;

/// What the input is about to bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client's flags.
    ClientFlags,
    /// The fixed part of an option.
    OptionHeader,
    /// The data of an option.
    OptionData { option: u32, len: usize },
    /// The data of an option that is too long, to be thrown away.
    OptionSkip { option: u32, left: u64 },
    /// The fixed part of a request.
    Header,
    /// Nothing until the budget has room for the request in this slot.
    Admit { slot: u32 },
    /// The data of a write.
    Payload { slot: u32 },
    /// Data of a request that has failed already.
    Skip { slot: u32, left: u64 },
    /// The data of a block-status request.
    StatusPayload { slot: u32, len: usize },
    /// Nothing: whatever comes is thrown away.
    Ended,
}

/// Whether the parser can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Go,
    Wait,
}

/// How the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// The connection goes on.
    No,
    /// After the requests under way are answered.
    Finish,
    /// After what is queued is sent: the client broke the protocol.
    Hard,
}

/// What TLS the settings ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    Off,
    On,
    Require,
}

/// The protocol's state.
pub(super) struct Core {
    pub(super) exports: Arc<ExportTable>,
    pub(super) limits: Arc<Limits>,
    pub(super) budget: Arc<Budget>,
    pub(super) policy: Policy,
    /// Whether TLS is on.
    pub(super) secure: bool,
    /// The client has been told to start TLS: what follows is not for us.
    pub(super) start_tls: bool,
    pub(super) phase: Phase,
    /// The first bytes of an item of fixed size.
    gathered: Vec<u8>,
    pub(super) options: usize,
    pub(super) negotiated: Negotiated,
    pub(super) export: Option<Arc<Export>>,
    pub(super) slots: Slots,
    /// Requests without data that have more to ask, by turns.
    pub(super) going: VecDeque<u32>,
    /// Bytes of such requests that are asked and not answered.
    pub(super) dataless: u64,
    /// The part of a write that arrives, and how much of it has.
    pub(super) incoming: Buf,
    pub(super) filled: usize,
    pub(super) out: Output,
    /// Tickets not answered.
    pub(super) in_flight: usize,
    /// Bytes taken from the budget.
    charged: u64,
    pub(super) blocked: bool,
    pub(super) closing: Closing,
    pub(super) stopping: bool,
    /// The client went away: answers are thrown away.
    pub(super) gone: bool,
}

impl Core {
    pub(super) fn new(
        exports: Arc<ExportTable>,
        limits: Arc<Limits>,
        budget: Arc<Budget>,
        policy: Policy,
    ) -> Core {
        assert!(limits.part_bytes_max.is_multiple_of(4096));
        assert!(limits.payload_bytes_max / limits.part_bytes_max < 1 << 15);
        assert!(limits.part_bytes_max / BLOCK_BYTES < 1 << 16);
        assert!(limits.zeroes_bytes_max.is_multiple_of(4096));
        assert!(limits.zeroes_bytes_max / BLOCK_BYTES < 1 << 16);
        assert!(limits.payload_bytes_max <= u64::from(u32::MAX));
        assert!(limits.requests_max < 1 << 16);
        // Else a request could wait for ever.
        assert!(budget.bytes_max() >= 2 * limits.payload_bytes_max + 4 * limits.part_bytes_max);
        let mut out = Output::default();
        out.head(wire::GREETING);
        Core {
            exports,
            limits,
            budget,
            policy,
            secure: false,
            start_tls: false,
            phase: Phase::ClientFlags,
            gathered: Vec::new(),
            options: 0,
            negotiated: Negotiated::default(),
            export: None,
            slots: Slots::default(),
            going: VecDeque::new(),
            dataless: 0,
            incoming: Buf::empty(),
            filled: 0,
            out,
            in_flight: 0,
            charged: 0,
            blocked: false,
            closing: Closing::No,
            stopping: false,
            gone: false,
        }
    }

    /// Takes input until it is used up, the session is blocked, or TLS starts. Returns the bytes
    /// taken.
    pub(super) fn parse(
        &mut self,
        input: &[u8],
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) -> usize {
        let mut rest = input;
        self.blocked = false;
        while !self.start_tls && self.step(&mut rest, bufs, events) == Step::Go {}
        input.len() - rest.len()
    }

    fn step(
        &mut self,
        rest: &mut &[u8],
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) -> Step {
        match self.phase {
            Phase::ClientFlags => self.item(rest, 4, |core, item| core.client_flags(item)),
            Phase::OptionHeader if self.is_full() => self.block(),
            Phase::OptionHeader => {
                let len = wire::OPTION_HEADER_BYTES;
                self.item(rest, len, |core, item| core.option_header(item))
            }
            Phase::OptionData { option, len } => {
                self.item(rest, len, |core, item| core.option(option, item, events))
            }
            Phase::OptionSkip { option, left } => {
                let left = skip(rest, left);
                self.phase = Phase::OptionSkip { option, left };
                if left > 0 {
                    return Step::Wait;
                }
                self.option_too_long(option);
                Step::Go
            }
            Phase::Header if self.is_full() => self.block(),
            Phase::Header => {
                let extended = self.negotiated.extended;
                let len = if extended { wire::EXTENDED_REQUEST_BYTES } else { wire::REQUEST_BYTES };
                self.item(rest, len, |core, item| core.request(item, bufs, events))
            }
            Phase::Admit { slot } => self.admit_waiting(slot, bufs, events),
            Phase::Payload { slot } => self.payload(slot, rest, bufs, events),
            Phase::Skip { slot, left } => {
                let left = skip(rest, left);
                self.phase = Phase::Skip { slot, left };
                if left > 0 {
                    return Step::Wait;
                }
                self.phase = Phase::Header;
                self.finish_if_done(slot, bufs);
                Step::Go
            }
            Phase::StatusPayload { slot, len } => {
                self.item(rest, len, |core, item| core.status_payload(slot, item))
            }
            Phase::Ended => {
                *rest = &[];
                Step::Wait
            }
        }
    }

    /// Hands the next `len` bytes of the input to `take`, once they are all there.
    fn item(&mut self, rest: &mut &[u8], len: usize, take: impl FnOnce(&mut Core, &[u8])) -> Step {
        if self.gathered.is_empty() && rest.len() >= len {
            let (item, after) = rest.split_at(len);
            *rest = after;
            take(self, item);
            return Step::Go;
        }
        if self.gathered.try_reserve_exact(len - self.gathered.len()).is_err() {
            return self.block();
        }
        let (more, after) = rest.split_at(rest.len().min(len - self.gathered.len()));
        self.gathered.extend_from_slice(more);
        *rest = after;
        if self.gathered.len() < len {
            return Step::Wait;
        }
        let mut item = std::mem::take(&mut self.gathered);
        take(self, &item);
        if item.capacity() <= wire::EXTENDED_REQUEST_BYTES {
            item.clear();
            self.gathered = item;
        }
        Step::Go
    }

    /// Whether answers must leave before more questions are taken.
    fn is_full(&self) -> bool {
        self.slots.used() >= self.limits.requests_max
            || self.out.heads_len() > self.limits.output_bytes_max
    }

    pub(super) fn block(&mut self) -> Step {
        self.blocked = true;
        Step::Wait
    }

    /// Charges memory to this connection and to the server, if both have room.
    pub(super) fn admit(&mut self, bytes: u64) -> bool {
        let alone = self.charged == 0;
        let fits = alone || self.charged + bytes <= self.limits.in_flight_bytes_max;
        if !fits {
            return false;
        }
        let share = &self.export.as_ref().expect("requests follow the choice of an export").share;
        if !self.budget.take(share, bytes) {
            // A little at a time keeps a connection moving while others hold the budget.
            let least = self.limits.least_bytes_max.max(buf_bytes(self.limits.part_bytes_max));
            if !alone || bytes > least {
                return false;
            }
            self.budget.take_anyway(share, bytes);
        }
        self.charged += bytes;
        true
    }

    /// Whether something of this connection is under way, or not sent, beside what was just
    /// charged: its end frees memory.
    pub(super) fn holds_more_than(&self, bytes: u64) -> bool {
        self.charged > bytes
    }

    /// Gives back what [`Core::admit`] charged.
    pub(super) fn release(&mut self, bytes: u64) {
        assert!(self.charged >= bytes);
        self.charged -= bytes;
        if let Some(export) = &self.export {
            self.budget.give(&export.share, bytes);
        }
    }

    /// `len` bytes of the output left.
    pub(super) fn sent(&mut self, parcel: Parcel, len: usize, bufs: &mut BufPool) {
        let charges = self.out.sent(parcel, len, bufs);
        self.release(charges);
    }

    /// Ends the connection: the client broke a rule that leaves no other answer.
    pub(super) fn hang_up(&mut self) {
        self.phase = Phase::Ended;
        self.closing = Closing::Hard;
    }

    /// The client went away.
    pub(super) fn disconnected(&mut self, bufs: &mut BufPool) {
        self.gone = true;
        self.closing = Closing::Hard;
        let charges = self.out.clear(bufs);
        self.release(charges);
        // What was not asked yet never is.
        self.going.clear();
        self.drop_incoming(bufs);
        self.phase = Phase::Ended;
    }

    /// Gives back the part of a write that has not arrived as a whole.
    pub(super) fn drop_incoming(&mut self, bufs: &mut BufPool) {
        let buf = std::mem::take(&mut self.incoming);
        self.filled = 0;
        if !buf.is_empty() {
            self.release(buf_bytes(buf.len() as u64));
            bufs.give(buf);
        }
    }

    /// Queues one reply to an option.
    pub(super) fn option_reply(&mut self, option: u32, reply: u32, head: &Head, text: &[&[u8]]) {
        let len = head.bytes().len() + text.iter().map(|t| t.len()).sum::<usize>();
        self.out.head(Head::option_reply(option, reply, len as u32).bytes());
        self.out.head(head.bytes());
        for text in text {
            self.out.head(text);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(export) = &self.export {
            self.budget.give(&export.share, self.charged);
            self.budget.unchoose(&export.share);
        }
    }
}

/// Throws away input. Returns what is still to come.
fn skip(rest: &mut &[u8], left: u64) -> u64 {
    let count = left.min(rest.len() as u64);
    *rest = &rest[count as usize..];
    left - count
}
