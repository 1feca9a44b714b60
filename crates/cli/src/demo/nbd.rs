//! A small NBD client: one connection, simple replies, any number of requests under way.

use forebay_host::origin::spindle::Buf;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::device::{Ended, Kind};

const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
const REPLY_MAGIC: u64 = 0x0003_E889_0455_65A9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const ANSWER_MAGIC: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const FLAG_SEND_CACHE: u16 = 1 << 10;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Room for answers; more than the longest of them.
const INPUT_BYTES: usize = 1 << 20;
/// Longest text of a server's refusal that is read.
const TEXT_BYTES_MAX: usize = 4096;

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

fn number<const N: usize>(stream: &mut UnixStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
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
        if &number::<8>(&mut stream)? != b"NBDMAGIC" {
            return Err(bad("no NBD server"));
        }
        if u64::from_be_bytes(number(&mut stream)?) != OPTION_MAGIC {
            return Err(bad("an NBD server that is too old"));
        }
        let flags = u16::from_be_bytes(number(&mut stream)?) & 3;
        stream.write_all(&u32::from(flags).to_be_bytes())?;
        let (bytes, flags) = open_export(&mut stream, name)?;
        Ok(Client {
            stream,
            bytes,
            caches: flags & FLAG_SEND_CACHE != 0,
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
        let command: u16 = match kind {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Prefetch => 5,
        };
        assert!(len + 16 <= INPUT_BYTES);
        self.output.extend(REQUEST_MAGIC.to_be_bytes());
        self.output.extend([0, 0]);
        self.output.extend(command.to_be_bytes());
        self.output.extend((cookie as u64).to_be_bytes());
        self.output.extend(offset.to_be_bytes());
        self.output.extend((len as u32).to_be_bytes());
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
        let Some((head, rest)) = self.input[self.start..self.end].split_first_chunk::<16>() else {
            return Ok(None);
        };
        let [magic, error, cookie_high, cookie] =
            [0, 4, 8, 12].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().expect("4")));
        if magic != ANSWER_MAGIC || cookie_high != 0 {
            return Err(bad("an answer that is none"));
        }
        let slot = self.slots.get_mut(cookie as usize);
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

/// Negotiates one export; answers with its size and flags.
fn open_export(stream: &mut UnixStream, name: &str) -> Result<(u64, u16)> {
    let mut option = Vec::new();
    option.extend(OPTION_MAGIC.to_be_bytes());
    option.extend(OPTION_GO.to_be_bytes());
    option.extend((name.len() as u32 + 6).to_be_bytes());
    option.extend((name.len() as u32).to_be_bytes());
    option.extend(name.as_bytes());
    option.extend([0, 0]);
    stream.write_all(&option)?;
    let mut export = None;
    loop {
        if u64::from_be_bytes(number(stream)?) != REPLY_MAGIC {
            return Err(bad("an option reply that is none"));
        }
        let [_option, kind, len] = [0; 3].map(|_| number::<4>(stream));
        let (kind, len) = (u32::from_be_bytes(kind?), u32::from_be_bytes(len?) as usize);
        if len > TEXT_BYTES_MAX {
            return Err(bad("an option reply that is too long"));
        }
        let mut data = vec![0; len];
        stream.read_exact(&mut data)?;
        match kind {
            REPLY_ACK => return export.ok_or_else(|| bad("an export without a size")),
            REPLY_INFO if len == 12 && data[..2] == INFO_EXPORT.to_be_bytes() => {
                let bytes = u64::from_be_bytes(data[2..10].try_into().expect("8 bytes"));
                export = Some((bytes, u16::from_be_bytes([data[10], data[11]])));
            }
            REPLY_INFO => {}
            _ => {
                let text = String::from_utf8_lossy(&data).into_owned();
                return Err(bad(format!("the server refuses the export {name:?}: {text}")));
            }
        }
    }
}
