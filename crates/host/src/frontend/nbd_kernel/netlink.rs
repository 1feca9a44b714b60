//! Generic netlink, as much as it takes to speak to one driver of the kernel.

use forebay_sys::socket::generic_netlink;
use std::fs::File;
use std::io::{self, Read, Write};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most bytes of an answer.
const ANSWER_BYTES: usize = 16 << 10;
/// The message types of netlink itself.
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
/// The family that knows the others, its command, and the attributes of that.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// An attribute that holds attributes.
pub const NESTED: u16 = 0x8000;

/// `struct nlmsghdr` and `struct genlmsghdr`.
#[derive(Debug, Clone, Copy, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    len: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    command: u8,
    version: u8,
    reserved: u16,
}
const HEADER_BYTES: usize = size_of::<Header>();
const _: () = assert!(HEADER_BYTES == 20);
/// Where an answer's attributes, or the number of an error, begin.
const MESSAGE_BYTES: usize = 16;

/// Attributes that are being written.
#[derive(Debug, Default, Clone)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// Adds an attribute.
    pub fn add(mut self, kind: u16, value: &[u8]) -> Attributes {
        let len = u16::try_from(4 + value.len()).expect("attributes are small");
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Adds an attribute that holds others.
    pub fn nest(self, kind: u16, inner: &Attributes) -> Attributes {
        self.add(kind | NESTED, &inner.0)
    }
}

/// The value of the attribute of this kind.
pub fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    while let [a, b, c, d, ..] = *attributes {
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let value = attributes.get(4..len)?;
        if u16::from_ne_bytes([c, d]) & !NESTED == kind {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
}

/// A socket to one family.
#[derive(Debug)]
pub struct Netlink {
    socket: File,
    family: u16,
    sequence: u32,
}

impl Netlink {
    /// Finds the family of this name.
    ///
    /// # Errors
    /// `ENOENT`: the kernel has none, because its driver is not loaded.
    pub fn open(family: &str) -> io::Result<Netlink> {
        let socket = generic_netlink()?;
        let mut netlink = Netlink { socket, family: CONTROLLER, sequence: 0 };
        let name = [family.as_bytes(), &[0]].concat();
        let answer = netlink.ask(GET_FAMILY, &Attributes::default().add(FAMILY_NAME, &name))?;
        let number = find(&answer, FAMILY_ID).and_then(|id| <[u8; 2]>::try_from(id).ok());
        netlink.family = u16::from_ne_bytes(number.ok_or_else(broken)?);
        Ok(netlink)
    }

    /// Sends a command and returns the attributes of the answer, if there was one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ask(&mut self, command: u8, attributes: &Attributes) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        let header = Header {
            len: (HEADER_BYTES + attributes.0.len()) as u32,
            kind: self.family,
            flags: REQUEST | ACKNOWLEDGE,
            sequence: self.sequence,
            port: 0,
            command,
            version: 1,
            reserved: 0,
        };
        self.socket.write_all(&[header.as_bytes(), &attributes.0].concat())?;
        let mut found = Vec::new();
        let mut bytes = vec![0; ANSWER_BYTES];
        loop {
            let count = self.socket.read(&mut bytes)?;
            let mut rest = &bytes[..count];
            while !rest.is_empty() {
                let message = message(rest).ok_or_else(broken)?;
                match message.kind {
                    ERROR => {
                        let code = message.body.get(..4).ok_or_else(broken)?;
                        let code = i32::from_ne_bytes(code.try_into().expect("four bytes"));
                        // Zero is the acknowledgement, which comes last.
                        return match code {
                            0 => Ok(found),
                            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                        };
                    }
                    _ => found = message.body.get(4..).ok_or_else(broken)?.to_vec(),
                }
                rest = message.rest;
            }
        }
    }
}

/// One message of several.
struct Message<'a> {
    kind: u16,
    body: &'a [u8],
    rest: &'a [u8],
}

fn message(bytes: &[u8]) -> Option<Message<'_>> {
    let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(MESSAGE_BYTES..len)?;
    let rest = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some(Message { kind, body, rest })
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer cannot be understood")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_again() {
        let inner = Attributes::default().add(1, &7_u32.to_ne_bytes());
        let all = Attributes::default().add(5, b"abc").nest(6, &inner).add(7, &[1; 8]);
        assert_eq!(all.0.len(), 8 + 12 + 12);
        assert_eq!(find(&all.0, 5), Some(&b"abc"[..]));
        assert_eq!(find(find(&all.0, 6).unwrap(), 1), Some(&7_u32.to_ne_bytes()[..]));
        assert_eq!(find(&all.0, 8), None);
        assert_eq!(find(&[9, 0, 1, 0, 5], 1), None, "cut short");
        assert_eq!(find(&[0, 0, 1, 0, 5, 5, 5, 5], 1), None, "of no length");
    }

    #[test]
    fn a_family_that_is_not_there_is_an_error() {
        let error = Netlink::open("no-such-family").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");
    }

    #[test]
    fn the_controller_knows_itself() {
        assert_eq!(Netlink::open("nlctrl").unwrap().family, CONTROLLER);
    }
}
