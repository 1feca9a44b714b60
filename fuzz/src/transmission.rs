//! NBD requests behind a handshake of each kind, among answers of the engine in any order and a
//! client that reads as it likes.
//!
//! Each request has one final answer, with its cookie, and what comes before it is the protocol's;
//! data of a read is that of its place; what is held stays within its bounds, and is given back
//! when the client leaves.

use crate::input::Input;
use crate::nbd::{DISK_BYTES, Rig};
use forebay_engine::IoError;
use forebay_nbd::wire::{self, chunk, option, u16_at, u32_at, u64_at};
use std::collections::BTreeMap;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;

/// How the replies look.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    Simple,
    Structured,
    Extended,
}

/// A request that was sent whole: what it was, where, how long.
struct Sent {
    command: u16,
    offset: u64,
    len: u64,
    /// Bytes of data that came.
    got: u64,
}

struct Client {
    rig: Rig,
    style: Style,
    sent: BTreeMap<u64, Sent>,
    cookie: u64,
    /// Nothing more is sent that the server would answer.
    ended: bool,
}

fn ask(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::Head::option(option, data.len() as u32).bytes().to_vec();
    bytes.extend(data);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// A client that is through the handshake.
fn connected(choice: u8) -> Client {
    let style = [Style::Simple, Style::Structured, Style::Extended][usize::from(choice % 3)];
    let name = if choice & 16 == 0 { "disk" } else { "locked" };
    let mut rig = Rig::new();
    rig.send(&3_u32.to_be_bytes());
    match style {
        Style::Simple => {}
        Style::Structured => rig.send(&ask(option::STRUCTURED_REPLY, &[])),
        Style::Extended => rig.send(&ask(option::EXTENDED_HEADERS, &[])),
    }
    if style != Style::Simple && choice & 32 != 0 {
        let queries = [text("base:allocation"), text("forebay:cache")].concat();
        let data = [text(name), 2_u32.to_be_bytes().to_vec(), queries].concat();
        rig.send(&ask(option::SET_META_CONTEXT, &data));
    }
    rig.send(&ask(option::GO, &[text(name), vec![0, 0]].concat()));
    rig.read(usize::MAX);
    rig.output.clear();
    assert!(!rig.session.in_handshake());
    Client { rig, style, sent: BTreeMap::new(), cookie: 0, ended: false }
}

impl Client {
    fn request(&mut self, input: &mut Input) {
        let choice = input.byte();
        let command = if choice & 15 == 15 { input.word() } else { u16::from(choice & 7) };
        let flags = if choice & 16 != 0 { u16::from(input.byte()) } else { 0 };
        let (offset, len) = match choice & 32 {
            0 => (512 * input.below(2100) as u64, 512 * input.below(300) as u64),
            _ => (u64::from(input.long()) << input.below(40), u64::from(input.long())),
        };
        self.cookie += 1;
        let head = wire::Head::new();
        let extended = self.style == Style::Extended;
        let magic = if extended { wire::EXTENDED_REQUEST_MAGIC } else { wire::REQUEST_MAGIC };
        let head = head.u32(magic).u16(flags).u16(command).u64(self.cookie).u64(offset);
        let head = if extended { head.u64(len) } else { head.u32(len as u32) };
        let mut bytes = head.bytes().to_vec();
        // With extended headers a flag says whether data follows. A write without it is one, too.
        let flagged = extended && flags & wire::cmd_flag::PAYLOAD_LEN != 0;
        let follows = command == WRITE || flagged;
        if follows && len > 256 << 10 {
            // More than anybody sends here: the server waits for it, or hangs up.
            self.ended = true;
        } else if follows {
            bytes.resize(bytes.len() + len as usize, choice);
        }
        if command == DISCONNECT {
            self.ended = true;
        } else if !(follows && self.ended) {
            self.sent.insert(self.cookie, Sent { command, offset, len, got: 0 });
        }
        self.send(input, &bytes);
    }

    /// In one piece or in several.
    fn send(&mut self, input: &mut Input, bytes: &[u8]) {
        let step = match input.byte() {
            step @ 1..=64 => usize::from(step),
            _ => usize::MAX,
        };
        let (head, data) = bytes.split_at(bytes.len().min(64));
        head.chunks(step).for_each(|piece| self.rig.send(piece));
        data.chunks(step.saturating_mul(512)).for_each(|piece| self.rig.send(piece));
    }

    /// Takes the replies that are there whole.
    fn replies(&mut self) {
        let output = std::mem::take(&mut self.rig.output);
        let mut rest = &output[..];
        loop {
            // Where chunks are agreed on, what has no data may be answered without.
            let simple = rest.starts_with(&wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
            assert!(!simple || self.style != Style::Extended);
            let simple = simple || self.style == Style::Simple;
            let taken = if simple { self.simple(rest) } else { self.chunk(rest) };
            let Some(taken) = taken else { break };
            rest = &rest[taken..];
        }
        self.rig.output = rest.to_vec();
    }

    fn simple(&mut self, bytes: &[u8]) -> Option<usize> {
        let head = bytes.first_chunk()?;
        let reply = wire::SimpleReply::decode(head).expect("a simple reply");
        let sent = self.sent.get(&reply.cookie).expect("it answers a request, once");
        assert!(self.style == Style::Simple || sent.command != READ, "a read is a chunk");
        let has_data = sent.command == READ && reply.error == 0;
        let len = wire::SIMPLE_REPLY_BYTES + if has_data { sent.len as usize } else { 0 };
        let reply_bytes = bytes.get(..len)?;
        let sent = self.sent.remove(&reply.cookie).expect("seen above");
        check_data(sent.offset, &reply_bytes[wire::SIMPLE_REPLY_BYTES..]);
        Some(len)
    }

    fn chunk(&mut self, bytes: &[u8]) -> Option<usize> {
        let extended = self.style == Style::Extended;
        let (magic, head) = match extended {
            true => (wire::EXTENDED_REPLY_MAGIC, 32),
            false => (wire::STRUCTURED_REPLY_MAGIC, 20),
        };
        if bytes.len() < head {
            return None;
        }
        assert_eq!(u32_at(bytes, 0), magic);
        let (flags, kind, cookie) = (u16_at(bytes, 4), u16_at(bytes, 6), u64_at(bytes, 8));
        let len = match extended {
            true => u64_at(bytes, 24) as usize,
            false => u32_at(bytes, 16) as usize,
        };
        assert!(len <= 1 << 20, "{len} bytes in a chunk");
        let data = bytes.get(head..head + len)?;
        let sent = self.sent.get_mut(&cookie).expect("it answers a request, once");
        let done = flags & chunk::DONE != 0;
        match kind {
            chunk::NONE => assert!(done && data.is_empty()),
            chunk::OFFSET_DATA => {
                let at = u64_at(data, 0);
                assert_eq!(sent.command, READ);
                let end = at + data.len() as u64 - 8;
                assert!(sent.offset <= at && end <= sent.offset + sent.len);
                sent.got += data.len() as u64 - 8;
                check_data(at, &data[8..]);
            }
            chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT => {
                assert_eq!(sent.command, 7);
                assert!(data.len() > 4);
            }
            chunk::ERROR | chunk::ERROR_OFFSET => {
                assert_ne!(u32_at(data, 0), 0, "an error has a number");
                // A read that failed somewhere need not be complete.
                sent.got = sent.len;
            }
            other => panic!("a chunk of kind {other}"),
        }
        if done {
            let sent = self.sent.remove(&cookie).expect("seen above");
            assert!(sent.command != READ || sent.got >= sent.len, "a read without all its data");
        }
        Some(head + len)
    }
}

/// Data of a read is that of its place.
fn check_data(offset: u64, data: &[u8]) {
    assert!(offset + data.len() as u64 <= DISK_BYTES || data.is_empty());
    for (block, at) in data.chunks(512).zip(offset / 512..) {
        assert!(block.iter().all(|&byte| byte == at as u8), "the data of sector {at}");
    }
}

const ENDS: [Result<(), IoError>; 4] =
    [Ok(()), Err(IoError::Io), Err(IoError::NoSpace), Err(IoError::Unsupported)];

/// The target.
pub fn run(bytes: &[u8]) {
    let input = &mut Input(bytes);
    let mut client = connected(input.byte());
    let mut raw = false;
    while !input.is_empty() {
        match input.byte() {
            0..=119 if !client.ended => client.request(input),
            0..=179 => {
                let (at, end) = (input.below(16), ENDS[usize::from(input.byte() >> 4) & 3]);
                let end = if input.byte() < 192 { Ok(()) } else { end };
                client.rig.answer(at, end);
            }
            180..=229 => {
                let len = usize::from(input.byte()) << 8;
                client.rig.read(len);
                client.replies();
                client.rig.go_on();
            }
            230..=244 => {
                (0..32).for_each(|_| client.rig.answer(0, Ok(())));
                client.rig.go_on();
            }
            245..=248 if !client.ended => client.rig.session.shutdown(),
            // It leaves as things are.
            249..=251 => return client.rig.leave(),
            _ => {
                // Whatever follows: the server may take it for anything.
                let len = usize::from(input.byte());
                client.rig.send(input.bytes(len));
                (raw, client.ended) = (true, true);
                break;
            }
        }
    }
    if raw {
        client.rig.finish();
    } else {
        client.rig.finish();
        client.replies();
        let hung_up = client.rig.session.wants_close();
        assert!(client.rig.output.is_empty(), "not whole: {:02x?}", client.rig.output);
        let open: Vec<_> = client.sent.keys().collect();
        assert!(hung_up || open.is_empty(), "{open:?} are not answered");
    }
    client.rig.leave();
}
