//! The NBD handshake: whatever a client sends, in whatever pieces.
//!
//! The answers are the protocol's, each to an option that was asked; they are the same however the
//! input is cut; an export is opened once at most; nothing is held afterwards.

use crate::input::Input;
use crate::nbd::Rig;
use forebay_nbd::wire::{self, OptionReply, rep};

/// Bytes that one option may be answered with.
const ANSWER_BYTES_MAX: usize = 4096;

/// Turns the input into what the client sends: options with and without sense, or anything.
fn client(input: &mut Input) -> Vec<u8> {
    let mut bytes = Vec::new();
    match input.byte() & 3 {
        0 => bytes.extend(input.bytes(4)),
        flags => bytes.extend(u32::from(flags).to_be_bytes()),
    }
    while !input.is_empty() {
        let choice = input.byte();
        let option = match choice & 15 {
            15 => input.long(),
            14 => {
                bytes.extend(input.bytes(usize::from(choice >> 4)));
                continue;
            }
            option => u32::from(option),
        };
        let mut data = Vec::new();
        if choice & 16 != 0 {
            let name: &[u8] = match input.byte() & 3 {
                0 => b"",
                1 => b"disk",
                2 => b"locked",
                _ => b"none",
            };
            data.extend((name.len() as u32).to_be_bytes());
            data.extend(name);
        }
        if choice & 32 != 0 {
            let query: &[u8] = match input.byte() & 3 {
                0 => b"base:allocation",
                1 => b"forebay:",
                _ => b"forebay:cache",
            };
            data.extend(1_u32.to_be_bytes());
            data.extend((query.len() as u32).to_be_bytes());
            data.extend(query);
        }
        if choice & 64 != 0 {
            let len = input.byte();
            data.extend(input.bytes(usize::from(len)));
        }
        let len = if choice & 128 == 0 { data.len() as u32 } else { u32::from(input.word()) };
        bytes.extend(wire::OPTION_MAGIC.to_be_bytes());
        bytes.extend(option.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(data);
    }
    bytes
}

/// Sends pieces as long as the handshake goes on, and reads all answers. What they were, and which
/// export was opened.
fn talk<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Option<String>, bool) {
    let mut rig = Rig::new();
    rig.read(usize::MAX);
    for piece in pieces {
        if rig.opened.is_some() {
            break;
        }
        rig.send(piece);
        rig.read(usize::MAX);
    }
    let result = (rig.output.clone(), rig.opened.clone(), rig.session.wants_close());
    rig.leave();
    result
}

/// The answers are those that the protocol has.
fn check(output: &[u8], opened: bool) {
    let mut rest = output.strip_prefix(wire::GREETING).expect("it greets");
    while let Some((head, behind)) = rest.split_first_chunk() {
        let Some(reply) = OptionReply::decode(head) else { break };
        let len = reply.len as usize;
        assert!(len <= ANSWER_BYTES_MAX && len <= behind.len(), "{reply:?}");
        let errors = 1 << 31;
        let known = matches!(reply.kind, rep::ACK..=rep::META_CONTEXT) || reply.kind > errors;
        assert!(known, "{reply:?}");
        rest = &behind[len..];
    }
    // Only the answer to NBD_OPT_EXPORT_NAME has no head.
    assert!(rest.is_empty() || opened && matches!(rest.len(), 10 | 134), "{rest:02x?}");
}

/// The target.
pub fn run(bytes: &[u8]) {
    let input = &mut Input(bytes);
    let step = 1 + usize::from(input.byte() % 41);
    let sent = client(input);
    let one_by_one = talk(sent.chunks(1));
    check(&one_by_one.0, one_by_one.1.is_some());
    assert_eq!(talk(sent.chunks(step)).1, one_by_one.1);
    // Behind the choice of an export come requests, which another target sends: there the whole
    // would answer more.
    let whole = talk(std::iter::once(&sent[..]));
    assert_eq!(whole.1, one_by_one.1);
    if one_by_one.1.is_none() {
        assert_eq!(whole, one_by_one);
        assert_eq!(talk(sent.chunks(step)), one_by_one);
    }
}
