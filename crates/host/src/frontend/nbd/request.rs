//! Requests: which are refused, how the others reach the engine, and how its answers come back.

use super::core::{Closing, Core, Phase, Step};
use super::fault::{Fault, NO_MEMORY, fault_of};
use super::slots::{BLOCK_BYTES, Slot, buf_bytes, part_range, part_ranges, read_bytes};
use super::{Export, SessionEvent, Ticket};
use forebay_engine::{Buf, BufPool, IoError, Request, RequestKind};
use forebay_nbd::wire::{Command, Errno, Header, cmd_flag, u64_at};
use std::sync::atomic::Ordering;

const READ_ONLY: Fault = (Errno::Perm, "the export is read-only");
const BAD_FLAGS: Fault = (Errno::Invalid, "the command does not take these flags");
const NO_PAYLOAD: Fault = (Errno::Invalid, "the command does not take a payload");
const UNKNOWN: Fault = (Errno::Invalid, "this server does not know the command");
const UNALIGNED: Fault = (Errno::Invalid, "offset and length must be multiples of 512");
const PAST_END: Fault = (Errno::Invalid, "the range ends behind the end of the export");
const WRITE_PAST_END: Fault = (Errno::NoSpace, "the range ends behind the end of the export");
const TOO_LONG: Fault = (Errno::Invalid, "the request is longer than the maximum payload");
const READ_TOO_LONG: Fault = (Errno::Overflow, "the request is longer than the maximum payload");
const FLUSH_RANGE: Fault = (Errno::Invalid, "a flush has neither offset nor length");
const SLOW_ZERO: Fault = (Errno::NotSupported, "zeroing would not be faster than writing");
const NO_CONTEXT: Fault = (Errno::Invalid, "no metadata context was negotiated");
const EMPTY_STATUS: Fault = (Errno::Invalid, "block status of no bytes");
const STOPPING: Fault = (Errno::Shutdown, "the server stops");

/// Flags that a command takes besides FUA, which all take.
fn flags_of(command: Command, structured: bool) -> u16 {
    cmd_flag::FUA
        | match command {
            Command::Read if structured => cmd_flag::DF,
            Command::WriteZeroes => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
            Command::BlockStatus => cmd_flag::REQ_ONE,
            _ => 0,
        }
}

impl Core {
    /// The fixed part of a request.
    pub(super) fn request(
        &mut self,
        item: &[u8],
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) {
        let Some(header) = Header::decode(item, self.negotiated.extended) else {
            return self.hang_up();
        };
        if header.command == Command::Disconnect {
            self.phase = Phase::Ended;
            self.closing = Closing::Finish;
            return;
        }
        let is_write = header.command == Command::Write;
        let has_flag = self.negotiated.extended && header.flags & cmd_flag::PAYLOAD_LEN != 0;
        // A write without the flag breaks the rules, but what it means is clear.
        let payload = if is_write || has_flag { header.len } else { 0 };
        if self.negotiated.extended && payload > self.limits.payload_bytes_max {
            return self.hang_up();
        }
        let status = header.command == Command::BlockStatus && has_flag;
        let fault = if status {
            self.check_status_payload(&header)
        } else if has_flag && !is_write {
            Some(NO_PAYLOAD)
        } else {
            self.check(&header)
        };
        let slot = self.slots.insert(header);
        if let Some(fault) = fault {
            self.slots.get(slot).fault = Some((fault, header.offset));
            self.phase = Phase::Skip { slot, left: payload };
            return;
        }
        match header.command {
            Command::Write if header.len > 0 => self.phase = Phase::Payload { slot },
            Command::Read => {
                self.phase = Phase::Admit { slot };
            }
            Command::BlockStatus if status => {
                self.phase = Phase::StatusPayload { slot, len: payload as usize };
            }
            Command::BlockStatus => {
                let contexts = self.negotiated.contexts;
                self.slots.get(slot).contexts = contexts;
                self.phase = Phase::Admit { slot };
            }
            Command::Flush => {
                self.submit(slot, 0, (RequestKind::Flush, 0, 0, Buf::empty()), events);
            }
            _ => self.begin(slot, bufs, events),
        }
    }

    /// What is wrong with a request, by the rules of the specification.
    fn check(&self, header: &Header) -> Option<Fault> {
        let export = self.export.as_ref().expect("requests follow the choice of an export");
        let command = header.command;
        if let Command::Unknown(_) = command {
            return Some(UNKNOWN);
        }
        let mut flags = header.flags;
        if self.negotiated.extended && command == Command::Write {
            flags &= !cmd_flag::PAYLOAD_LEN;
        }
        if flags & !flags_of(command, self.negotiated.structured) != 0 {
            return Some(BAD_FLAGS);
        }
        if self.stopping {
            return Some(STOPPING);
        }
        if command == Command::Flush {
            return (header.offset != 0 || header.len != 0).then_some(FLUSH_RANGE);
        }
        let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        if changes && export.read_only {
            return Some(READ_ONLY);
        }
        if let Some(fault) = self.check_range(export, header) {
            return Some(fault);
        }
        match command {
            Command::WriteZeroes
                if flags & cmd_flag::FAST_ZERO != 0
                    && !export.fast_zero.load(Ordering::Relaxed) =>
            {
                Some(SLOW_ZERO)
            }
            Command::BlockStatus if self.negotiated.contexts.is_empty() => Some(NO_CONTEXT),
            Command::BlockStatus if header.len == 0 => Some(EMPTY_STATUS),
            _ => None,
        }
    }

    fn check_range(&self, export: &Export, header: &Header) -> Option<Fault> {
        let too_long = header.len > self.limits.payload_bytes_max;
        match header.command {
            // Without chunks the error does not exist.
            Command::Read if too_long && self.negotiated.structured => return Some(READ_TOO_LONG),
            Command::Read | Command::Write if too_long => return Some(TOO_LONG),
            _ => {}
        }
        let within =
            header.offset.checked_add(header.len).is_some_and(|end| end <= export.bytes.get());
        if !within {
            let writes = matches!(header.command, Command::Write | Command::WriteZeroes);
            return Some(if writes { WRITE_PAST_END } else { PAST_END });
        }
        let aligned = header.offset.is_multiple_of(512) && header.len.is_multiple_of(512);
        (!aligned).then_some(UNALIGNED)
    }

    fn check_status_payload(&self, header: &Header) -> Option<Fault> {
        if self.negotiated.contexts.is_empty() {
            return Some(NO_CONTEXT);
        }
        // The effect length, and at most as many contexts as there are.
        let fits = header.len > 8 && header.len <= 64 && header.len.is_multiple_of(4);
        (!fits).then_some(NO_PAYLOAD)
    }

    /// The data of a block-status request: the length of the range, and the contexts wanted.
    pub(super) fn status_payload(&mut self, slot: u32, item: &[u8]) {
        let mut header = self.slots.get(slot).header;
        header.len = u64_at(item, 0);
        header.flags &= !cmd_flag::PAYLOAD_LEN;
        let chosen = self.negotiated.contexts.chosen(&item[8..]);
        let fault = match chosen {
            None => Some(NO_CONTEXT),
            Some(_) => self.check(&header),
        };
        let request = self.slots.get(slot);
        request.header = header;
        request.contexts = chosen.unwrap_or_default();
        match fault {
            Some(fault) => {
                request.fault = Some((fault, header.offset));
                self.phase = Phase::Skip { slot, left: 0 };
            }
            None => self.phase = Phase::Admit { slot },
        }
    }

    /// Starts the request that waits for the budget, if it can.
    pub(super) fn admit_waiting(
        &mut self,
        slot: u32,
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) -> Step {
        let header = self.slots.get(slot).header;
        let part_bytes = self.limits.part_bytes_max;
        let charge = match header.command {
            Command::Read => read_bytes(&header, part_bytes),
            _ => self.status_charge(slot),
        };
        if !self.admit(charge) {
            return self.block();
        }
        self.phase = Phase::Header;
        if header.command == Command::BlockStatus {
            self.begin_status(slot, bufs, events);
            return Step::Go;
        }
        for (part, (offset, len)) in part_ranges(&header, part_bytes).enumerate() {
            self.slots.get(slot).parts.push(Buf::empty());
            let read = (RequestKind::Read, offset, len, Buf::empty());
            self.submit(slot, part as u64, read, events);
        }
        self.finish_if_done(slot, bufs);
        Step::Go
    }

    /// Takes data of a write. A part goes to the engine as soon as it is whole.
    pub(super) fn payload(
        &mut self,
        slot: u32,
        rest: &mut &[u8],
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) -> Step {
        let part_bytes = self.limits.part_bytes_max;
        while !rest.is_empty() {
            let Slot { header, next_part, fault, .. } = *self.slots.get(slot);
            let part = part_range(header.offset, header.len, next_part, part_bytes);
            let Some((offset, len)) = part else { break };
            if self.incoming.is_empty() {
                if fault.is_some() {
                    let left = header.offset + header.len - offset;
                    self.phase = Phase::Skip { slot, left };
                    return Step::Go;
                }
                if !self.admit(buf_bytes(len)) {
                    return self.block();
                }
                let waits = self.holds_more_than(buf_bytes(len));
                let buf = take(bufs, len as usize, waits);
                let Some(buf) = buf else {
                    self.release(buf_bytes(len));
                    if waits {
                        return self.block();
                    }
                    self.slots.get(slot).fault = Some((NO_MEMORY, offset));
                    continue;
                };
                self.incoming = buf;
            }
            let room = &mut self.incoming.bytes_mut()[self.filled..];
            let (now, later) = rest.split_at(room.len().min(rest.len()));
            room[..now.len()].copy_from_slice(now);
            *rest = later;
            self.filled += now.len();
            if self.filled as u64 == len {
                self.filled = 0;
                let buf = std::mem::take(&mut self.incoming);
                self.slots.get(slot).next_part += 1;
                self.submit(slot, next_part, (RequestKind::Write, offset, len, buf), events);
            }
        }
        let Slot { header, next_part, .. } = *self.slots.get(slot);
        if part_range(header.offset, header.len, next_part, part_bytes).is_some() {
            return Step::Wait;
        }
        self.phase = Phase::Header;
        self.finish_if_done(slot, bufs);
        Step::Go
    }

    /// Begins a request without data.
    pub(super) fn begin(&mut self, slot: u32, bufs: &mut BufPool, events: &mut Vec<SessionEvent>) {
        self.goes_on(slot);
        self.go_on(bufs, events);
    }

    /// A request without data has more to ask.
    pub(super) fn goes_on(&mut self, slot: u32) {
        self.slots.get(slot).going = true;
        self.going.push_back(slot);
    }

    /// Asks for more of the requests without data, one part of each by turns, as much as may be
    /// asked at once.
    pub(super) fn go_on(&mut self, bufs: &mut BufPool, events: &mut Vec<SessionEvent>) {
        while self.dataless < self.limits.dataless_bytes_max {
            let Some(slot) = self.going.pop_front() else { return };
            self.slots.get(slot).going = false;
            if self.slots.get(slot).header.command == Command::BlockStatus {
                self.ask_status(slot, bufs, events);
            } else if self.ask_part(slot, events) {
                self.goes_on(slot);
            } else {
                self.finish_if_done(slot, bufs);
            }
        }
    }

    /// Asks for the next part of a request without data. Whether there was one.
    fn ask_part(&mut self, slot: u32, events: &mut Vec<SessionEvent>) -> bool {
        let Slot { header, next_part, fault, .. } = *self.slots.get(slot);
        let kind = match header.command {
            Command::Trim => RequestKind::Discard,
            Command::Cache => RequestKind::Prefetch,
            _ => RequestKind::WriteZeroes { unmap: header.flags & cmd_flag::NO_HOLE == 0 },
        };
        let part_bytes = match kind {
            RequestKind::Prefetch => self.limits.part_bytes_max,
            _ => self.limits.zeroes_bytes_max,
        };
        let part = part_range(header.offset, header.len, next_part, part_bytes);
        let Some((offset, len)) = part.filter(|_| fault.is_none()) else { return false };
        let blocks = len.div_ceil(BLOCK_BYTES);
        // It is a hint: where there is no memory for it, that is all of it.
        if kind == RequestKind::Prefetch && !self.admit(blocks * BLOCK_BYTES) {
            return false;
        }
        self.slots.get(slot).next_part += 1;
        self.dataless += dataless_bytes(header.command, blocks);
        self.submit(slot, blocks, (kind, offset, len, Buf::empty()), events);
        true
    }

    fn submit(
        &mut self,
        slot: u32,
        part: u64,
        (kind, offset, len, buf): (RequestKind, u64, u64, Buf),
        events: &mut Vec<SessionEvent>,
    ) {
        let ticket = self.slots.ticket(slot, part);
        let volume = self.export.as_ref().expect("a request has an export").volume;
        let request = self.slots.get(slot);
        let writes =
            !matches!(kind, RequestKind::Read | RequestKind::Flush | RequestKind::Prefetch);
        let fua = writes && request.header.flags & cmd_flag::FUA != 0;
        request.waiting += 1;
        self.in_flight += 1;
        let request = Request { volume, kind, offset, len, fua, buf };
        events.push(SessionEvent::Submit { ticket, request });
    }

    /// The engine's answer to one part.
    pub(super) fn complete(
        &mut self,
        ticket: Ticket,
        result: Result<(), IoError>,
        buf: Buf,
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) {
        self.end(ticket, result.map_err(fault_of), buf, bufs, events);
    }

    /// The end of one part.
    pub(super) fn end(
        &mut self,
        ticket: Ticket,
        result: Result<(), Fault>,
        buf: Buf,
        bufs: &mut BufPool,
        events: &mut Vec<SessionEvent>,
    ) {
        let (slot, part) = self.slots.find(ticket);
        self.in_flight -= 1;
        let request = self.slots.get(slot);
        request.waiting -= 1;
        if self.gone {
            return bufs.give(buf);
        }
        let header = request.header;
        let (offset, len) = match header.command {
            Command::Read | Command::Write => {
                let part_bytes = self.limits.part_bytes_max;
                let range = part_range(header.offset, header.len, part, part_bytes);
                range.expect("a part that was asked for")
            }
            _ => (header.offset, part * BLOCK_BYTES),
        };
        if let Err(fault) = result
            && request.fault.is_none()
        {
            request.fault = Some((fault, offset));
        }
        match header.command {
            Command::Read => {
                if result.is_ok() {
                    assert_eq!(buf.len() as u64, len);
                }
                request.parts[part as usize] = buf;
            }
            Command::Write => {
                bufs.give(buf);
                self.release(buf_bytes(len));
            }
            command => {
                bufs.give(buf);
                self.dataless -= dataless_bytes(command, part);
                if command == Command::Cache {
                    self.release(len);
                }
            }
        }
        self.finish_if_done(slot, bufs);
        self.go_on(bufs, events);
    }

    /// Answers a request when no part of it is missing.
    pub(super) fn finish_if_done(&mut self, slot: u32, bufs: &mut BufPool) {
        let arriving = matches!(self.phase,
            Phase::Payload { slot: s } | Phase::Skip { slot: s, .. } if s == slot);
        let Slot { waiting, going, .. } = *self.slots.get(slot);
        if arriving || waiting > 0 || going {
            return;
        }
        self.reply(slot, bufs);
        self.slots.remove(slot);
    }
}

/// A buffer for a client. One that `waits` has more under way, whose end frees some.
fn take(bufs: &mut BufPool, len: usize, waits: bool) -> Option<Buf> {
    if waits { bufs.try_take(len) } else { bufs.take_spared(len) }
}

/// What a part of so many blocks counts among what is asked at once: see
/// [`Limits::dataless_bytes_max`](super::Limits::dataless_bytes_max).
fn dataless_bytes(command: Command, blocks: u64) -> u64 {
    match command {
        Command::Cache => blocks * BLOCK_BYTES,
        _ => blocks * BLOCK_BYTES / 4,
    }
}
