//! A small NBD client: one connection, simple replies, any number of requests under way.

use super::device::{Ended, Kind};
use forebay_host::origin::spindle::Buf;
use forebay_nbd::client::{Export, open};
use forebay_nbd::wire::{Command, Head, Header, SIMPLE_REPLY_BYTES, SimpleReply, flag};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Room for answers; more than the longest of them.
const INPUT_BYTES: usize = 1 << 20;

/// A connection to one export.
pub struct Client {
    stream: UnixStream,
    /// Size of the export in bytes.
    pub bytes: u64,
    /// Whether the export takes CACHE (prefetch).
    pub caches: bool,
    output: Vec<u8>,
    /// What came and was not taken apart yet is `input[start..end]`.
    input: Box<[u8]>,
    start: usize,
    end: usize,
    /// What is under way, by cookie.
    slots: Vec<Option<(Kind, Buf)>>,
    under_way: usize,
}

fn bad(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, text.into())
}

impl Client {
    /// Connects to the server at `socket` and opens the export `name`.
    ///
    /// # Errors
    /// When nobody listens, the export is unknown, or the server speaks something else.
    pub fn connect(socket: &Path, name: &str) -> Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let Export { bytes, flags } = open(&mut stream, name)?;
        Ok(Client {
            stream,
            bytes,
            caches: flags & flag::SEND_CACHE != 0,
            output: Vec::new(),
            input: vec![0; INPUT_BYTES].into(),
            start: 0,
            end: 0,
            slots: Vec::new(),
            under_way: 0,
        })
    }

    /// Queues one request; [`Client::wait`] sends it. `cookie` is free again when its end was seen.
    pub fn submit(&mut self, cookie: usize, kind: Kind, offset: u64, len: usize, buf: Buf) {
        let command = match kind {
            Kind::Read => Command::Read,
            Kind::Write => Command::Write,
            Kind::Prefetch => Command::Cache,
        };
        assert!(len + SIMPLE_REPLY_BYTES <= INPUT_BYTES);
        let (cookie_raw, len) = (cookie as u64, len as u64);
        let header = Header { flags: 0, command, cookie: cookie_raw, offset, len };
        self.output.extend(Head::request(&header).bytes());
        if kind == Kind::Write {
            self.output.extend(buf.bytes());
        }
        if self.slots.len() <= cookie {
            self.slots.resize_with(cookie + 1, || None);
        }
        assert!(self.slots[cookie].is_none());
        self.slots[cookie] = Some((kind, buf));
        self.under_way += 1;
    }

    /// Sends what is queued and waits until at least one request has ended.
    ///
    /// # Errors
    /// When the connection breaks; then nothing under way will end.
    pub fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<()> {
        self.stream.write_all(&self.output)?;
        self.output.clear();
        let before = ended.len();
        while ended.len() == before && self.under_way > 0 {
            self.receive()?;
            while let Some(end) = self.next_answer()? {
                ended.push(end);
            }
        }
        Ok(())
    }

    /// Reads what has come, at least one byte.
    fn receive(&mut self) -> Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.input.len() {
            self.input.copy_within(self.start.., 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let got = self.stream.read(&mut self.input[self.end..])?;
        self.end += got;
        match got {
            0 => Err(Error::new(ErrorKind::UnexpectedEof, "the server hung up")),
            _ => Ok(()),
        }
    }

    /// Takes one whole answer out of the input.
    fn next_answer(&mut self) -> Result<Option<Ended>> {
        let input = &self.input[self.start..self.end];
        let Some((head, rest)) = input.split_first_chunk::<SIMPLE_REPLY_BYTES>() else {
            return Ok(None);
        };
        let Some(SimpleReply { error, cookie }) = SimpleReply::decode(head) else {
            return Err(bad("an answer that is none"));
        };
        let slot = usize::try_from(cookie).ok().and_then(|cookie| self.slots.get_mut(cookie));
        let Some(slot) = slot.filter(|slot| slot.is_some()) else {
            return Err(bad("an answer to nothing that was asked"));
        };
        let (kind, buf) = slot.as_mut().expect("checked above");
        let mut taken = head.len();
        if *kind == Kind::Read && error == 0 {
            let Some(data) = rest.get(..buf.len()) else { return Ok(None) };
            buf.bytes_mut().copy_from_slice(data);
            taken += data.len();
        }
        let (kind, buf) = slot.take().expect("checked above");
        self.start += taken;
        self.under_way -= 1;
        Ok(Some(Ended { cookie: cookie as usize, kind, error: error as i32, buf }))
    }
}
