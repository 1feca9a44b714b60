//! The protocol's numbers and fixed structures, as in the NBD project's `doc/proto.md`. All big
//! endian.

/// The server's first 18 bytes: two magics, then fixed newstyle and no-zeroes.
pub const GREETING: &[u8; 18] = b"NBDMAGICIHAVEOPT\x00\x03";
/// Starts each option of the client.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Starts each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Bytes of a reply to an option without its data.
pub const OPTION_REPLY_BYTES: usize = 20;
/// Bytes of an option without its data.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Starts a request with 32-bit length.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Bytes of a request with 32-bit length.
pub const REQUEST_BYTES: usize = 28;
/// Starts a request with 64-bit length.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Bytes of a request with 64-bit length.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of a simple reply without data.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Starts a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Starts an extended reply chunk.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// The client knows replies to options.
pub const CLIENT_FIXED_NEWSTYLE: u32 = 1;
/// The client does not want the 124 zero bytes.
pub const CLIENT_NO_ZEROES: u32 = 2;

/// Option numbers.
pub mod option {
    /// Open an export, without a word on why not.
    pub const EXPORT_NAME: u32 = 1;
    /// End the connection.
    pub const ABORT: u32 = 2;
    /// Name the exports.
    pub const LIST: u32 = 3;
    /// Speak TLS from here on.
    pub const STARTTLS: u32 = 5;
    /// Tell of an export.
    pub const INFO: u32 = 6;
    /// Open an export.
    pub const GO: u32 = 7;
    /// Reply in chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name what can be told of blocks.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose what is told of blocks.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Lengths have 64 bits.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub mod rep {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// An item of information.
    pub const INFO: u32 = 3;
    /// Something that can be told of blocks.
    pub const META_CONTEXT: u32 = 4;
    /// The server does not know the option.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The server may not.
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    /// The option is malformed, or makes no sense here.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// TLS comes first.
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The server stops.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    /// Extended headers come first.
    pub const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Items of information about an export.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// The name.
    pub const NAME: u16 = 1;
    /// What people are told of it.
    pub const DESCRIPTION: u16 = 2;
    /// The smallest, best and largest requests.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What the server says it can do with an export.
pub mod flag {
    /// The flags say something.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Requests may ask to be durable.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is understood.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Reads may ask for one chunk.
    pub const SEND_DF: u16 = 1 << 7;
    /// What one connection flushed is durable for all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is understood.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// WRITE_ZEROES may ask to be fast or refused.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    /// BLOCK_STATUS may name contexts.
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Flags of a request.
pub mod cmd_flag {
    /// Durable when it is answered.
    pub const FUA: u16 = 1;
    /// Zeroed space is not given back.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The reply is one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fast, or refused.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// The length is that of the payload.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types of reply chunks.
pub mod chunk {
    /// Flag: the last chunk of a reply.
    pub const DONE: u16 = 1;
    /// Nothing more to say.
    pub const NONE: u16 = 0;
    /// Data, and where it lies.
    pub const OFFSET_DATA: u16 = 1;
    /// States of blocks, with 32-bit lengths.
    pub const BLOCK_STATUS: u16 = 5;
    /// States of blocks, with 64-bit lengths.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// An error.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// An error, and where it is.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// What a request asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Data of the export.
    Read,
    /// To put data there.
    Write,
    /// The end of the connection.
    Disconnect,
    /// That what was written be durable.
    Flush,
    /// A hint that the range is not needed.
    Trim,
    /// A hint that the range will be read.
    Cache,
    /// Zeros.
    WriteZeroes,
    /// What can be told of blocks.
    BlockStatus,
    /// Something that the protocol does not know.
    Unknown(u16),
}

impl Command {
    fn from_raw(raw: u16) -> Command {
        match raw {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Unknown(other),
        }
    }

    fn raw(self) -> u16 {
        match self {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disconnect => 2,
            Command::Flush => 3,
            Command::Trim => 4,
            Command::Cache => 5,
            Command::WriteZeroes => 6,
            Command::BlockStatus => 7,
            Command::Unknown(other) => other,
        }
    }
}

/// The fixed part of a request.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// Of [`cmd_flag`].
    pub flags: u16,
    /// What is asked.
    pub command: Command,
    /// Comes back with the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Header {
    /// Reads a request, `None` when the magic is wrong: client and server have lost each other.
    pub fn decode(bytes: &[u8], extended: bool) -> Option<Header> {
        let magic = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        if u32_at(bytes, 0) != magic {
            return None;
        }
        Some(Header {
            flags: u16_at(bytes, 4),
            command: Command::from_raw(u16_at(bytes, 6)),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            len: if extended { u64_at(bytes, 24) } else { u64::from(u32_at(bytes, 24)) },
        })
    }
}

/// The errors that the protocol knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// It may not be done.
    Perm = 1,
    /// The device failed.
    Io = 5,
    /// The server has no memory for it now.
    NoMemory = 12,
    /// The request makes no sense.
    Invalid = 22,
    /// No space is left.
    NoSpace = 28,
    /// The reply would be too long.
    Overflow = 75,
    /// It cannot be done.
    NotSupported = 95,
    /// The server stops.
    Shutdown = 108,
}

/// The fixed part of an option of the client.
#[derive(Debug, Clone, Copy)]
pub struct OptionHeader {
    /// Of [`option`].
    pub option: u32,
    /// Bytes that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Reads an option, `None` when the magic is wrong.
    pub fn decode(bytes: &[u8]) -> Option<OptionHeader> {
        let ours = u64_at(bytes, 0) == OPTION_MAGIC;
        ours.then(|| OptionHeader { option: u32_at(bytes, 8), len: u32_at(bytes, 12) })
    }
}

/// The fixed part of a reply to an option.
#[derive(Debug, Clone, Copy)]
pub struct OptionReply {
    /// The option that it answers.
    pub option: u32,
    /// Of [`rep`].
    pub kind: u32,
    /// Bytes that follow.
    pub len: u32,
}

impl OptionReply {
    /// Reads a reply to an option, `None` when the magic is wrong.
    pub fn decode(bytes: &[u8; OPTION_REPLY_BYTES]) -> Option<OptionReply> {
        let word = |at| u32_at(bytes, at);
        let ours = u64_at(bytes, 0) == OPTION_REPLY_MAGIC;
        ours.then(|| OptionReply { option: word(8), kind: word(12), len: word(16) })
    }
}

/// A simple reply, without the data of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimpleReply {
    /// Zero, or the number of an error.
    pub error: u32,
    /// That of the request.
    pub cookie: u64,
}

impl SimpleReply {
    /// Reads a reply, `None` when the magic is wrong: client and server have lost each other.
    pub fn decode(bytes: &[u8; SIMPLE_REPLY_BYTES]) -> Option<SimpleReply> {
        let ours = u32_at(bytes, 0) == SIMPLE_REPLY_MAGIC;
        ours.then(|| SimpleReply { error: u32_at(bytes, 4), cookie: u64_at(bytes, 8) })
    }
}

/// Two bytes at `at`.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Four bytes at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

/// Eight bytes at `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

/// A header under construction: at most 64 bytes, on the stack.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    bytes: [u8; 64],
    len: usize,
}

impl Default for Head {
    fn default() -> Head {
        Head { bytes: [0; 64], len: 0 }
    }
}

impl Head {
    /// An empty one.
    pub fn new() -> Head {
        Head::default()
    }

    /// An option of the client with `len` bytes of data.
    pub fn option(option: u32, len: u32) -> Head {
        Head::new().u64(OPTION_MAGIC).u32(option).u32(len)
    }

    /// A reply to an option with `len` bytes of data.
    pub fn option_reply(option: u32, kind: u32, len: u32) -> Head {
        Head::new().u64(OPTION_REPLY_MAGIC).u32(option).u32(kind).u32(len)
    }

    /// A request with 32-bit length.
    pub fn request(header: &Header) -> Head {
        let len = u32::try_from(header.len).expect("longer requests need extended headers");
        let head = Head::new().u32(REQUEST_MAGIC).u16(header.flags).u16(header.command.raw());
        head.u64(header.cookie).u64(header.offset).u32(len)
    }

    /// A simple reply.
    pub fn simple_reply(error: u32, cookie: u64) -> Head {
        Head::new().u32(SIMPLE_REPLY_MAGIC).u32(error).u64(cookie)
    }

    fn put(mut self, bytes: &[u8]) -> Head {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    /// Adds two bytes.
    pub fn u16(self, value: u16) -> Head {
        self.put(&value.to_be_bytes())
    }

    /// Adds four bytes.
    pub fn u32(self, value: u32) -> Head {
        self.put(&value.to_be_bytes())
    }

    /// Adds eight bytes.
    pub fn u64(self, value: u64) -> Head {
        self.put(&value.to_be_bytes())
    }

    /// The header.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Taken from the protocol's document, not from the constants above.
    const REQUEST: [u8; REQUEST_BYTES] = [
        0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0x10, 0, 0,
        0, 2, 0,
    ];

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let (flags, command) = (cmd_flag::FUA, Command::Write);
        let header = Header { flags, command, cookie: 9, offset: 4096, len: 512 };
        assert_eq!(Head::request(&header).bytes(), REQUEST);
        let read = Header::decode(&REQUEST, false).unwrap();
        assert_eq!((read.flags, read.command, read.cookie), (flags, command, 9));
        assert_eq!((read.offset, read.len), (4096, 512));
        assert!(Header::decode(&REQUEST, true).is_none());
        for raw in 0..10 {
            assert_eq!(Command::from_raw(raw).raw(), raw);
        }
    }

    #[test]
    fn a_reply_begins_with_its_magic() {
        let bytes = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(Head::simple_reply(Errno::Io as u32, 9).bytes(), bytes);
        assert_eq!(SimpleReply::decode(&bytes), Some(SimpleReply { error: 5, cookie: 9 }));
        assert_eq!(SimpleReply::decode(&[0; SIMPLE_REPLY_BYTES]), None);
    }
}
