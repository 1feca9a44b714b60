//! The protocol's numbers and fixed structures, as in the NBD project's `doc/proto.md`. All big
//! endian.

use forebay_engine::IoError;

/// The server's first 18 bytes: two magics, then fixed newstyle and no-zeroes.
pub(super) const GREETING: &[u8; 18] = b"NBDMAGICIHAVEOPT\x00\x03";
/// Starts each option of the client.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Starts each reply to an option.
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Bytes of an option without its data.
pub(super) const OPTION_HEADER_BYTES: usize = 16;
/// Starts a request with 32-bit length.
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Bytes of a request with 32-bit length.
pub(super) const REQUEST_BYTES: usize = 28;
/// Starts a request with 64-bit length.
pub(super) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Bytes of a request with 64-bit length.
pub(super) const EXTENDED_REQUEST_BYTES: usize = 32;
/// Starts a simple reply.
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts a structured reply chunk.
pub(super) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Starts an extended reply chunk.
pub(super) const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// The client knows replies to options.
pub(super) const CLIENT_FIXED_NEWSTYLE: u32 = 1;
/// The client does not want the 124 zero bytes.
pub(super) const CLIENT_NO_ZEROES: u32 = 2;

/// Option numbers.
pub(super) mod option {
    pub(in super::super) const EXPORT_NAME: u32 = 1;
    pub(in super::super) const ABORT: u32 = 2;
    pub(in super::super) const LIST: u32 = 3;
    pub(in super::super) const STARTTLS: u32 = 5;
    pub(in super::super) const INFO: u32 = 6;
    pub(in super::super) const GO: u32 = 7;
    pub(in super::super) const STRUCTURED_REPLY: u32 = 8;
    pub(in super::super) const LIST_META_CONTEXT: u32 = 9;
    pub(in super::super) const SET_META_CONTEXT: u32 = 10;
    pub(in super::super) const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub(super) mod rep {
    pub(in super::super) const ACK: u32 = 1;
    pub(in super::super) const SERVER: u32 = 2;
    pub(in super::super) const INFO: u32 = 3;
    pub(in super::super) const META_CONTEXT: u32 = 4;
    pub(in super::super) const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub(in super::super) const ERR_POLICY: u32 = (1 << 31) + 2;
    pub(in super::super) const ERR_INVALID: u32 = (1 << 31) + 3;
    pub(in super::super) const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub(in super::super) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub(in super::super) const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    pub(in super::super) const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    pub(in super::super) const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Items of information about an export.
pub(super) mod info {
    pub(in super::super) const EXPORT: u16 = 0;
    pub(in super::super) const NAME: u16 = 1;
    pub(in super::super) const DESCRIPTION: u16 = 2;
    pub(in super::super) const BLOCK_SIZE: u16 = 3;
}

/// What the server says it can do with an export.
pub(super) mod flag {
    pub(in super::super) const HAS_FLAGS: u16 = 1;
    pub(in super::super) const READ_ONLY: u16 = 1 << 1;
    pub(in super::super) const SEND_FLUSH: u16 = 1 << 2;
    pub(in super::super) const SEND_FUA: u16 = 1 << 3;
    pub(in super::super) const SEND_TRIM: u16 = 1 << 5;
    pub(in super::super) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(in super::super) const SEND_DF: u16 = 1 << 7;
    pub(in super::super) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(in super::super) const SEND_CACHE: u16 = 1 << 10;
    pub(in super::super) const SEND_FAST_ZERO: u16 = 1 << 11;
    pub(in super::super) const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Flags of a request.
pub(super) mod cmd_flag {
    pub(in super::super) const FUA: u16 = 1;
    pub(in super::super) const NO_HOLE: u16 = 1 << 1;
    pub(in super::super) const DF: u16 = 1 << 2;
    pub(in super::super) const REQ_ONE: u16 = 1 << 3;
    pub(in super::super) const FAST_ZERO: u16 = 1 << 4;
    pub(in super::super) const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types of reply chunks.
pub(super) mod chunk {
    /// Flag: the last chunk of a reply.
    pub(in super::super) const DONE: u16 = 1;
    pub(in super::super) const NONE: u16 = 0;
    pub(in super::super) const OFFSET_DATA: u16 = 1;
    pub(in super::super) const BLOCK_STATUS: u16 = 5;
    pub(in super::super) const BLOCK_STATUS_EXT: u16 = 6;
    pub(in super::super) const ERROR: u16 = (1 << 15) + 1;
    pub(in super::super) const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// What a request asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
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
}

/// The fixed part of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) flags: u16,
    pub(super) command: Command,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Header {
    /// Reads a request, `None` when the magic is wrong: client and server have lost each other.
    pub(super) fn decode(bytes: &[u8], extended: bool) -> Option<Header> {
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
pub(super) enum Errno {
    Perm = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    Overflow = 75,
    NotSupported = 95,
    Shutdown = 108,
}

/// An error with the text that structured replies carry.
pub(super) type Fault = (Errno, &'static str);

/// What the client is told of an error of the engine.
pub(super) fn fault_of(error: IoError) -> Fault {
    match error {
        IoError::Io => (Errno::Io, "the device failed"),
        IoError::Invalid => (Errno::Invalid, "the engine refused the range"),
        IoError::NoSpace => (Errno::NoSpace, "no space is left"),
        IoError::Unsupported => (Errno::NotSupported, "the origin cannot do this"),
        IoError::Gone => (Errno::Io, "the volume is not served; see forebay status"),
        IoError::Shutdown => (Errno::Shutdown, "the server stops"),
    }
}

/// Two bytes at `at`.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Four bytes at `at`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

/// Eight bytes at `at`.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

/// A header under construction: at most 64 bytes, on the stack.
pub(super) struct Head {
    bytes: [u8; 64],
    len: usize,
}

impl Head {
    pub(super) fn new() -> Head {
        Head { bytes: [0; 64], len: 0 }
    }

    fn put(mut self, bytes: &[u8]) -> Head {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    pub(super) fn u16(self, value: u16) -> Head {
        self.put(&value.to_be_bytes())
    }

    pub(super) fn u32(self, value: u32) -> Head {
        self.put(&value.to_be_bytes())
    }

    pub(super) fn u64(self, value: u64) -> Head {
        self.put(&value.to_be_bytes())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
