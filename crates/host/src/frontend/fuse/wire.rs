//! The bytes of the kernel's FUSE protocol, as far as one file needs it. All numbers are in the
//! machine's own byte order: both ends are on one machine.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The protocol's major number. The kernel's must be the same.
pub const MAJOR: u32 = 7;
/// The newest minor number that this code knows.
pub const MINOR: u32 = 45;
/// The oldest minor number that has all that is needed: `FALLOCATE` and longer replies.
pub const MINOR_MIN: u32 = 23;
/// Bytes of a request's header.
pub const IN_HEADER_BYTES: usize = size_of::<InHeader>();
/// Bytes of a request's header and the arguments of a read or write.
pub const HEAD_BYTES: usize = IN_HEADER_BYTES + size_of::<IoIn>();
/// Bytes of a request's header and the longest arguments that are looked at.
pub const ARGS_BYTES_MAX: usize = IN_HEADER_BYTES + size_of::<SetattrIn>();

/// What a request is, by its number.
pub mod opcode {
    #![allow(missing_docs)]
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const ACCESS: u32 = 34;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
}

/// What both sides can do, told at the start.
pub mod flag {
    /// Several pages in one read.
    pub const ASYNC_READ: u64 = 1;
    /// Writes of more than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// Direct I/O need not wait for its predecessor.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Requests of more than 32 pages.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The upper half of the flags is there.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Requests that were read and not answered can be asked for again.
    pub const HAS_RESEND: u64 = 1 << 39;
    /// Requests may come through io_uring.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// The number of the notice that has unanswered requests sent again.
pub const NOTIFY_RESEND: i32 = 7;
/// The number of the notice that has attributes asked for again.
const NOTIFY_INVAL_INODE: i32 = 2;
/// Set in the name of a request that was sent before.
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// Attributes that [`SetattrIn::valid`] says are to be changed.
const SET_MODE: u32 = 1;
const SET_UID: u32 = 1 << 1;
const SET_GID: u32 = 1 << 2;
const SET_SIZE: u32 = 1 << 3;
/// Starts every request.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InHeader {
    /// Bytes of the request.
    pub len: u32,
    /// What is asked: [`opcode`].
    pub opcode: u32,
    /// The request's name.
    pub unique: u64,
    /// The file.
    pub node: u64,
    uid: u32,
    gid: u32,
    pid: u32,
    extensions: u16,
    padding: u16,
}

/// Starts every reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct OutHeader {
    /// Bytes of the reply.
    pub len: u32,
    /// Zero, or a negative error number; of a notice, its number.
    pub error: i32,
    /// The request's name; zero for a notice.
    pub unique: u64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct IoIn {
    handle: u64,
    offset: u64,
    size: u32,
    io_flags: u32,
    lock_owner: u64,
    open_flags: u32,
    padding: u32,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct FallocateIn {
    handle: u64,
    offset: u64,
    len: u64,
    mode: u32,
    padding: u32,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct SetattrIn {
    valid: u32,
    padding: u32,
    handle: u64,
    size: u64,
    rest: [u64; 8],
}

/// What the kernel can do.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct InitIn {
    major: u32,
    minor: u32,
    readahead_max: u32,
    flags: u32,
    flags_high: u32,
    unused: [u32; 11],
}

/// What is agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InitOut {
    major: u32,
    minor: u32,
    readahead_max: u32,
    flags: u32,
    background_max: u16,
    congestion: u16,
    write_bytes_max: u32,
    time_granularity: u32,
    pages_max: u16,
    map_alignment: u16,
    flags_high: u32,
    unused: [u32; 7],
}

const _: () = assert!(size_of::<InHeader>() == 40);
const _: () = assert!(size_of::<OutHeader>() == 16);
const _: () = assert!(HEAD_BYTES == 80);
const _: () = assert!(size_of::<FallocateIn>() == 32);
const _: () = assert!(size_of::<SetattrIn>() == 88);
const _: () = assert!(size_of::<InitIn>() == 64);
const _: () = assert!(size_of::<InitOut>() == 64);

/// What the kernel asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// The first words; the bytes are for [`negotiate`].
    Init,
    /// Find the file by its name.
    Lookup,
    /// The file's attributes.
    Getattr,
    /// Change attributes: whether to any but times, and the new size.
    Setattr {
        /// Mode or owner are to be changed.
        access: bool,
        /// The new size.
        size: Option<u64>,
    },
    /// Open the file.
    Open,
    /// Read `len` bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Write `len` bytes, which follow the head.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
        /// Answer only when durable: the file was opened with `O_SYNC` or `O_DSYNC`.
        sync: bool,
    },
    /// Make durable what was written.
    Fsync,
    /// Give space back or zero it.
    Fallocate {
        /// `FALLOC_FL_*`.
        mode: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Tell about the file system.
    Statfs,
    /// Something that has nothing to do and is answered with success.
    Nothing,
    /// Something that is not answered.
    Silent,
    /// Anything else.
    Unknown,
}

/// Why bytes are not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Not even a header: nobody to answer.
    NoHeader,
    /// A broken request with this name.
    Broken(u64),
}

/// Reads a request. `head` starts it and may be cut behind [`ARGS_BYTES_MAX`]; `len` is the length
/// of all that came.
///
/// # Errors
/// The bytes are no request.
pub fn parse(head: &[u8], len: usize) -> Result<(u64, Call), Fault> {
    let (header, args) = InHeader::read_from_prefix(head).map_err(|_| Fault::NoHeader)?;
    let unique = header.unique;
    if header.len as usize != len {
        return Err(Fault::Broken(unique));
    }
    let call = parse_call(&header, args, len).ok_or(Fault::Broken(unique))?;
    Ok((unique, call))
}

/// `None`: it is too short.
fn parse_call(header: &InHeader, args: &[u8], len: usize) -> Option<Call> {
    Some(match header.opcode {
        opcode::INIT => Call::Init,
        opcode::LOOKUP => Call::Lookup,
        opcode::GETATTR => Call::Getattr,
        opcode::SETATTR => {
            let (set, _) = SetattrIn::read_from_prefix(args).ok()?;
            let access = set.valid & (SET_MODE | SET_UID | SET_GID) != 0;
            Call::Setattr { access, size: (set.valid & SET_SIZE != 0).then_some(set.size) }
        }
        opcode::OPEN => Call::Open,
        opcode::READ => {
            let (read, _) = IoIn::read_from_prefix(args).ok()?;
            Call::Read { offset: read.offset, len: read.size }
        }
        opcode::WRITE => {
            let (write, _) = IoIn::read_from_prefix(args).ok()?;
            if len - HEAD_BYTES != write.size as usize {
                return None;
            }
            let sync = write.open_flags as i32 & (libc::O_SYNC | libc::O_DSYNC) != 0;
            Call::Write { offset: write.offset, len: write.size, sync }
        }
        opcode::FSYNC => Call::Fsync,
        opcode::FALLOCATE => {
            let (range, _) = FallocateIn::read_from_prefix(args).ok()?;
            Call::Fallocate { mode: range.mode, offset: range.offset, len: range.len }
        }
        opcode::STATFS => Call::Statfs,
        opcode::FLUSH | opcode::RELEASE | opcode::ACCESS | opcode::DESTROY => Call::Nothing,
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => Call::Silent,
        _ => Call::Unknown,
    })
}

/// What may be agreed on at the start, beside what every kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wishes {
    /// Bytes of the largest write.
    pub write_bytes_max: u32,
    /// Requests of background I/O under way at once.
    pub background_max: u16,
    /// Requests may come through io_uring.
    pub io_uring: bool,
}

/// What was agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The kernel's minor number.
    pub minor: u32,
    /// Flags of both sides, [`flag`].
    pub flags: u64,
    /// Bytes of the largest read or write.
    pub bytes_max: u32,
}

/// Why a kernel cannot be agreed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAgreement {
    /// Not an INIT request.
    #[error("the kernel's first FUSE request is not INIT")]
    NotInit,
    /// Another protocol.
    #[error("the kernel speaks FUSE {0}.{1}, and 7.{MINOR_MIN} is needed at least")]
    Version(u32, u32),
}

/// Answers the kernel's first request: the reply's body, and what it means. `request` is the whole
/// request.
///
/// # Errors
/// It is none, or of another protocol.
pub fn negotiate(request: &[u8], wishes: &Wishes) -> Result<(u64, InitOut, Agreed), NoAgreement> {
    let Ok((unique, Call::Init)) = parse(request, request.len()) else {
        return Err(NoAgreement::NotInit);
    };
    let mut init = InitIn::new_zeroed();
    // Older kernels say less.
    let args = &request[IN_HEADER_BYTES..];
    let said = args.len().min(size_of::<InitIn>());
    init.as_mut_bytes()[..said].copy_from_slice(&args[..said]);
    if init.major != MAJOR || init.minor < MINOR_MIN {
        return Err(NoAgreement::Version(init.major, init.minor));
    }
    let mut offered = u64::from(init.flags);
    if offered & flag::INIT_EXT != 0 {
        offered |= u64::from(init.flags_high) << 32;
    }
    let mut wanted = flag::ASYNC_READ
        | flag::BIG_WRITES
        | flag::ASYNC_DIO
        | flag::MAX_PAGES
        | flag::INIT_EXT
        | flag::HAS_RESEND;
    if wishes.io_uring {
        wanted |= flag::OVER_IO_URING;
    }
    let flags = offered & wanted;
    // Without the flag, a request has 32 pages.
    let bytes_max = if flags & flag::MAX_PAGES != 0 { wishes.write_bytes_max } else { 32 << 12 };
    let out = InitOut {
        major: MAJOR,
        minor: MINOR,
        readahead_max: init.readahead_max,
        flags: flags as u32,
        background_max: wishes.background_max,
        congestion: wishes.background_max / 4 * 3,
        write_bytes_max: bytes_max,
        time_granularity: 1,
        pages_max: (bytes_max >> 12) as u16,
        map_alignment: 0,
        flags_high: (flags >> 32) as u32,
        unused: [0; 7],
    };
    Ok((unique, out, Agreed { minor: init.minor, flags, bytes_max }))
}

/// The header of a reply with `len` bytes behind it. `error` is zero or a positive error number.
pub fn out_header(unique: u64, error: i32, len: usize) -> OutHeader {
    let len = if error == 0 { len } else { 0 };
    let len = u32::try_from(size_of::<OutHeader>() + len).expect("replies are short");
    OutHeader { len, error: -error, unique }
}

/// The header of the notice that an attribute has changed, with `len` bytes behind it.
pub fn changed_header(len: usize) -> OutHeader {
    let len = u32::try_from(size_of::<OutHeader>() + len).expect("notices are short");
    OutHeader { len, error: NOTIFY_INVAL_INODE, unique: 0 }
}

/// The notice that has unanswered requests sent again.
pub fn resend_notice() -> OutHeader {
    OutHeader { len: size_of::<OutHeader>() as u32, error: NOTIFY_RESEND, unique: 0 }
}
