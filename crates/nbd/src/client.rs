//! A client's side: how it opens an export, and one that waits for the reply to each request.

use crate::wire::{
    CLIENT_FIXED_NEWSTYLE, CLIENT_NO_ZEROES, Command, GREETING, Head, Header, OPTION_REPLY_BYTES,
    OptionReply, SIMPLE_REPLY_BYTES, SimpleReply, info, option, rep, u16_at, u64_at,
};
use std::io::{Error, ErrorKind, Read, Result, Write};

/// Bytes of the greeting that are the same for every server: the flags follow them.
const MAGIC_BYTES: usize = 16;
/// Longest reply to an option that is read, in bytes.
const REPLY_BYTES_MAX: u32 = 4096;
/// Bytes of the item that tells size and flags.
const EXPORT_BYTES: usize = 12;

/// What the server tells of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes.
    pub bytes: u64,
    /// Of [`crate::wire::flag`].
    pub flags: u16,
}

/// Opens the export `name` on a connection that has just been made. Requests with 32-bit length and
/// simple replies follow.
///
/// # Errors
/// [`ErrorKind::NotFound`] with the server's words where it refuses; [`ErrorKind::InvalidData`]
/// where it speaks something else; and what the connection says.
pub fn open(stream: &mut (impl Read + Write), name: &str) -> Result<Export> {
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting)?;
    if greeting[..MAGIC_BYTES] != GREETING[..MAGIC_BYTES] {
        return Err(bad("no NBD server, or one that is too old"));
    }
    let flags = u32::from(u16_at(&greeting, MAGIC_BYTES));
    let flags = flags & (CLIENT_FIXED_NEWSTYLE | CLIENT_NO_ZEROES);
    let len = name.len() as u32;
    let mut message = Head::new().u32(flags).bytes().to_vec();
    message.extend(Head::option(option::GO, len + 6).u32(len).bytes());
    message.extend(name.as_bytes());
    // No item of information is asked for: size and flags come always.
    message.extend(Head::new().u16(0).bytes());
    stream.write_all(&message)?;
    let mut export = None;
    loop {
        let mut head = [0; OPTION_REPLY_BYTES];
        stream.read_exact(&mut head)?;
        let reply = OptionReply::decode(&head).ok_or_else(|| bad("not a reply to an option"))?;
        if reply.len > REPLY_BYTES_MAX {
            return Err(bad("a reply to an option that is too long"));
        }
        let mut data = vec![0; reply.len as usize];
        stream.read_exact(&mut data)?;
        match reply.kind {
            rep::ACK => return export.ok_or_else(|| bad("an export without a size")),
            rep::INFO if data.len() == EXPORT_BYTES && u16_at(&data, 0) == info::EXPORT => {
                export = Some(Export { bytes: u64_at(&data, 2), flags: u16_at(&data, 10) });
            }
            rep::INFO => {}
            _ => {
                let text = String::from_utf8_lossy(&data);
                let text = format!("the server refuses the export {name:?}: {text}");
                return Err(Error::new(ErrorKind::NotFound, text));
            }
        }
    }
}

fn bad(text: &str) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}

/// A connection to one export whose user waits for each answer.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    /// What the server told.
    pub export: Export,
    /// Cookie of the last request.
    sent: u64,
}

impl<S: Read + Write> Connection<S> {
    /// Opens the export `name`.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(mut stream: S, name: &str) -> Result<Connection<S>> {
        let export = open(&mut stream, name)?;
        Ok(Connection { stream, export, sent: 0 })
    }

    /// Fills `data` with what is at `offset`.
    ///
    /// # Errors
    /// The server's number, or the connection's.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<()> {
        self.send(Command::Read, offset, data.len() as u64, &[])?;
        self.answer()?;
        self.stream.read_exact(data)
    }

    /// Writes `data` to `offset`.
    ///
    /// # Errors
    /// As [`Connection::read`].
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.send(Command::Write, offset, data.len() as u64, data)?;
        self.answer()
    }

    /// Says that nobody needs `len` bytes at `offset`.
    ///
    /// # Errors
    /// As [`Connection::read`].
    pub fn discard(&mut self, offset: u64, len: u64) -> Result<()> {
        self.send(Command::Trim, offset, len, &[])?;
        self.answer()
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// As [`Connection::read`].
    pub fn flush(&mut self) -> Result<()> {
        self.send(Command::Flush, 0, 0, &[])?;
        self.answer()
    }

    /// Sends a request without waiting for its reply. Returns its cookie.
    ///
    /// # Errors
    /// The connection's.
    pub fn send(&mut self, command: Command, offset: u64, len: u64, data: &[u8]) -> Result<u64> {
        self.sent += 1;
        let header = Header { flags: 0, command, cookie: self.sent, offset, len };
        let mut message = Head::request(&header).bytes().to_vec();
        message.extend(data);
        self.stream.write_all(&message)?;
        Ok(self.sent)
    }

    /// Takes the next reply, whose data, if it is to a read, comes next.
    ///
    /// # Errors
    /// The connection's, or that it is no reply.
    pub fn reply(&mut self) -> Result<SimpleReply> {
        let mut reply = [0; SIMPLE_REPLY_BYTES];
        self.stream.read_exact(&mut reply)?;
        SimpleReply::decode(&reply).ok_or_else(|| bad("not a simple reply"))
    }

    /// Takes the reply to the only request that waits for one.
    fn answer(&mut self) -> Result<()> {
        let reply = self.reply()?;
        match reply.error {
            _ if reply.cookie != self.sent => Err(bad("the answer is another request's")),
            0 => Ok(()),
            error => Err(Error::from_raw_os_error(error as i32)),
        }
    }

    /// The connection itself.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }
}
