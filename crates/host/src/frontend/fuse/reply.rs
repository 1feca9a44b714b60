//! What is answered about the file, byte for byte.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The only file. (The directory that it is in has number 1.)
const FILE: u64 = 2;
/// Seconds for which the kernel may trust the attributes: ten years. It asks again when it is told
/// to ([`SizeChanged`]). Where it asks now and then, whoever lists the loop devices of the machine
/// (`losetup`, `mount -o loop`) hangs as long as nobody serves this one.
const ATTR_SECONDS: u64 = 10 * 365 * 24 * 60 * 60;
/// Open replies: no page cache between, and writes need no lock of the file.
pub const OPEN_FLAGS: u32 = 1 | 1 << 6;

/// What a file is.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Attr {
    node: u64,
    size: u64,
    sectors: u64,
    times: [u64; 3],
    nanoseconds: [u32; 3],
    mode: u32,
    links: u32,
    uid: u32,
    gid: u32,
    device: u32,
    block_bytes: u32,
    flags: u32,
}

/// A file's attributes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct AttrOut {
    valid_seconds: u64,
    valid_nanoseconds: u32,
    padding: u32,
    attr: Attr,
}

/// What is behind a name.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct EntryOut {
    node: u64,
    generation: u64,
    name_valid_seconds: u64,
    attr_valid_seconds: u64,
    name_valid_nanoseconds: u32,
    attr_valid_nanoseconds: u32,
    attr: Attr,
}

/// An open file.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct OpenOut {
    handle: u64,
    flags: u32,
    backing: i32,
}

/// Bytes that were written.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct WriteOut {
    size: u32,
    padding: u32,
}

/// The file system around the file.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct StatfsOut {
    blocks: u64,
    free: u64,
    available: u64,
    files: u64,
    files_free: u64,
    block_bytes: u32,
    name_bytes: u32,
    fragment_bytes: u32,
    padding: u32,
    spare: [u32; 6],
}

/// What has the kernel ask for the attributes again.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SizeChanged {
    node: u64,
    /// Negative: there are no pages to forget.
    offset: i64,
    len: i64,
}

const _: () = assert!(size_of::<SizeChanged>() == 24);
const _: () = assert!(size_of::<AttrOut>() == 104);
const _: () = assert!(size_of::<EntryOut>() == 128);
const _: () = assert!(size_of::<StatfsOut>() == 80);

/// The attributes of the file, of `bytes`.
pub fn attr(bytes: u64) -> AttrOut {
    let (valid_seconds, attr) = (ATTR_SECONDS, attributes(bytes));
    AttrOut { valid_seconds, valid_nanoseconds: 0, padding: 0, attr }
}

/// The size of the file is another one now.
pub fn size_changed() -> SizeChanged {
    SizeChanged { node: FILE, offset: -1, len: 0 }
}

/// The file, of `bytes`, is what is behind a name.
pub fn entry(bytes: u64) -> EntryOut {
    let mut entry = EntryOut::new_zeroed();
    entry.node = FILE;
    entry.attr_valid_seconds = ATTR_SECONDS;
    entry.attr = attributes(bytes);
    entry
}

fn attributes(bytes: u64) -> Attr {
    let mut attr = Attr::new_zeroed();
    attr.node = FILE;
    attr.size = bytes;
    attr.sectors = bytes / 512;
    attr.mode = libc::S_IFREG | 0o600;
    attr.links = 1;
    attr.block_bytes = 4096;
    attr
}

/// A directory that only its owner may look into.
pub const ROOT_MODE: u32 = libc::S_IFDIR | 0o700;

/// The file is open.
pub fn open() -> OpenOut {
    OpenOut { handle: 0, flags: OPEN_FLAGS, backing: 0 }
}

/// `size` bytes are written.
pub fn write(size: u32) -> WriteOut {
    WriteOut { size, padding: 0 }
}

/// A file system that is full with one file of `bytes`.
pub fn statfs(bytes: u64) -> StatfsOut {
    let mut stat = StatfsOut::new_zeroed();
    stat.blocks = bytes.div_ceil(4096);
    stat.files = 1;
    stat.block_bytes = 4096;
    stat.fragment_bytes = 4096;
    stat.name_bytes = 255;
    stat
}
