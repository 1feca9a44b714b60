//! Files and block devices.

use crate::{check, own, part};
use std::ffi::{c_int, c_uint};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const BLKSSZGET: libc::c_ulong = 0x1268;
const BLKDISCARD: libc::c_ulong = 0x1277;

/// Takes the whole-file `flock` lock without waiting.
///
/// # Errors
/// `WouldBlock` if another open file description holds it.
pub fn lock_exclusive(file: &File) -> io::Result<()> {
    // SAFETY: flock takes no pointers, and `file` keeps the descriptor open.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).map(drop)
}

/// The logical block size of a block device, in bytes.
pub fn logical_block_bytes(file: &File) -> io::Result<u32> {
    let mut bytes: c_int = 0;
    // SAFETY: BLKSSZGET writes one int to the pointer, which is valid for the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET as _, &raw mut bytes) })?;
    u32::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Tells a block device that a range of bytes is no longer needed.
pub fn block_discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: BLKDISCARD reads two u64 from the pointer, which is valid for the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) }).map(drop)
}

/// `fallocate(2)` with a mode of `libc::FALLOC_FL_*`.
pub fn fallocate(file: &File, mode: c_int, offset: u64, len: u64) -> io::Result<()> {
    let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    // SAFETY: fallocate takes no pointers, and `file` keeps the descriptor open.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) }).map(drop)
}

const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
/// Write out what is only in memory first.
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 1;
/// Unknown, not placed yet, encoded, not aligned, or inside of metadata: no place of its own.
const FIEMAP_EXTENT_ELSEWHERE: u32 = 0x2 | 0x4 | 0x8 | 0x100 | 0x200;
/// Extents of one call.
const FIEMAP_EXTENTS: usize = 128;

/// As `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    len: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// As `struct fiemap`, with room for extents.
#[repr(C)]
struct RawFiemap {
    start: u64,
    len: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; FIEMAP_EXTENTS],
}

/// A piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub logical: u64,
    /// First byte on the device of the file system.
    pub physical: u64,
    /// Bytes.
    pub len: u64,
    /// Whether it has a place of its own there.
    pub is_placed: bool,
}

/// Where the content of a file lies on the device of its file system (FIEMAP).
///
/// # Errors
/// The file system does not tell.
pub fn extents(file: &File) -> io::Result<Vec<Extent>> {
    let mut found: Vec<Extent> = Vec::new();
    loop {
        let mut map = RawFiemap {
            start: found.last().map_or(0, |it| it.logical + it.len),
            len: u64::MAX,
            flags: FIEMAP_FLAG_SYNC,
            mapped: 0,
            count: FIEMAP_EXTENTS as u32,
            reserved: 0,
            extents: [RawExtent::default(); FIEMAP_EXTENTS],
        };
        map.len -= map.start;
        // SAFETY: FIEMAP reads and writes a `struct fiemap` with `count` extents behind it, which
        // `map` is, and is valid for the call.
        check(unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut map) })?;
        let mapped = (map.mapped as usize).min(FIEMAP_EXTENTS);
        let told = &map.extents[..mapped];
        found.extend(told.iter().map(|it| Extent {
            logical: it.logical,
            physical: it.physical,
            len: it.len,
            is_placed: it.flags & FIEMAP_EXTENT_ELSEWHERE == 0,
        }));
        if told.last().is_none_or(|it| it.flags & FIEMAP_EXTENT_LAST != 0 || it.len == 0) {
            return Ok(found);
        }
    }
}

/// The alignment in bytes that direct I/O on this file needs, if the kernel tells (6.1 and later).
pub fn direct_io_align(file: &File) -> Option<u32> {
    // SAFETY: all zeros is a valid `statx`: it consists of integers.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the path is a terminated string and `stat` is valid for the call.
    let result = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, &raw mut stat) };
    let told = result == 0 && stat.stx_mask & libc::STATX_DIOALIGN != 0;
    (told && stat.stx_dio_offset_align > 0).then_some(stat.stx_dio_offset_align)
}

const RAMFS_MAGIC: i64 = 0x8584_58f6;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// What is known of the file system that a file lies on.
fn file_system_of(file: &File) -> Option<libc::statfs> {
    // SAFETY: all zeros is a valid `statfs`: it consists of integers.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for the call.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) };
    (result == 0).then_some(stat)
}

/// What kind of file system a file lies on.
fn file_system(file: &File) -> Option<i64> {
    file_system_of(file).map(|stat| stat.f_type)
}

/// Whether a file lies in memory that can be shared: on tmpfs, or in large pages.
pub(crate) fn is_memory(file: &File) -> bool {
    file_system(file).is_some_and(|kind| kind == libc::TMPFS_MAGIC || kind == HUGETLBFS_MAGIC)
}

/// The size of the pages that a file in memory consists of, where they are large ones.
pub(crate) fn large_page_bytes(file: &File) -> Option<usize> {
    let stat = file_system_of(file).filter(|stat| stat.f_type == HUGETLBFS_MAGIC)?;
    usize::try_from(stat.f_bsize).ok().filter(|bytes| bytes.is_power_of_two())
}

/// Whether a file lies in memory: on tmpfs or ramfs.
pub fn is_in_memory(file: &File) -> bool {
    file_system(file).is_some_and(|kind| kind == libc::TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// Whether a file lies on a file system of which it is known that only the kernel and a disk stand
/// behind it, and that it begins I/O without waiting where it is asked to. FUSE and NFS are none,
/// nor what may lie on one.
pub fn is_local(file: &File) -> bool {
    const XFS_MAGIC: i64 = 0x5846_5342;
    const BCACHEFS_MAGIC: i64 = 0xca45_1a4e;
    let known = [
        libc::EXT4_SUPER_MAGIC,
        XFS_MAGIC,
        libc::BTRFS_SUPER_MAGIC,
        libc::F2FS_SUPER_MAGIC,
        BCACHEFS_MAGIC,
        libc::TMPFS_MAGIC,
        RAMFS_MAGIC,
    ];
    file_system(file).is_some_and(|kind| known.contains(&kind))
}

/// A file of `bytes` zeros that lies in memory and is gone when it is closed.
pub fn memory_file(bytes: u64) -> io::Result<File> {
    memory_file_with(bytes, 0)
}

/// As [`memory_file`], and nobody who gets it can give it another length.
pub fn sealed_memory_file(bytes: u64) -> io::Result<File> {
    let file = memory_file_with(bytes, libc::MFD_ALLOW_SEALING)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: fcntl takes no pointers here, and `file` keeps the descriptor open.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

fn memory_file_with(bytes: u64, flags: c_uint) -> io::Result<File> {
    // SAFETY: the name is a terminated string.
    let made = unsafe { libc::memfd_create(c"forebay".as_ptr(), libc::MFD_CLOEXEC | flags) };
    let file = File::from(own(made.into())?);
    file.set_len(bytes)?;
    Ok(file)
}

/// Where the first byte that may be not zero lies at or behind `offset`; `None` if there is none.
pub fn seek_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(file, offset, libc::SEEK_DATA) {
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        found => found.map(Some),
    }
}

/// Where the first hole lies at or behind `offset`; the end of the file counts as one.
pub fn seek_hole(file: &File, offset: u64) -> io::Result<u64> {
    seek(file, offset, libc::SEEK_HOLE)
}

fn seek(file: &File, offset: u64, whence: c_int) -> io::Result<u64> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: lseek takes no pointers, and `file` keeps the descriptor open.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}

/// Reads once into several buffers, in order. Interrupted calls are not repeated.
pub fn read_parts<const N: usize>(fd: RawFd, parts: [&mut [u8]; N]) -> io::Result<usize> {
    let parts =
        parts.map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
    // SAFETY: the slices are valid for writes during the call.
    let count = unsafe { libc::readv(fd, parts.as_ptr(), N as c_int) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Writes several buffers with one call. Interrupted calls are not repeated.
pub fn write_parts<const N: usize>(fd: RawFd, parts: [&[u8]; N]) -> io::Result<usize> {
    let parts = parts.map(part);
    // SAFETY: the slices are valid for reads during the call.
    let count = unsafe { libc::writev(fd, parts.as_ptr(), N as c_int) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Opens a file that is read as a whole: settings, keys, notes. What is none (a FIFO, a device, a
/// directory) is refused, and nothing waits for whoever is behind it.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("this is no regular file; give one")),
    }
}

/// Reads all of a plain file, which has at most so many bytes.
pub fn read_plain(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_up_to(&open_plain(path)?, bytes_max)
}

/// Reads all of an open file, which has at most so many bytes.
pub fn read_up_to(file: &File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::other(format!("it has more than {bytes_max} bytes"))),
        false => Ok(bytes),
    }
}

/// Opens a file or a block device to look at it. Nothing waits for what is neither.
pub fn open_to_look(path: &Path) -> io::Result<File> {
    let found = find(path)?;
    let kind = found.metadata()?.file_type();
    match kind.is_file() || kind.is_block_device() {
        true => reopen(&found, File::options().read(true)),
        false => Err(io::Error::other("this is neither a file nor a block device; give one")),
    }
}

/// What a path leads to, without opening it: what is asked of it is what [`reopen`] opens, wherever
/// the path leads by then.
pub fn find(path: &Path) -> io::Result<File> {
    // The kernel ignores the mode, and the standard library wants one.
    File::options().read(true).custom_flags(libc::O_PATH).open(path)
}

/// Opens what [`find`] found.
pub fn reopen(found: &File, options: &OpenOptions) -> io::Result<File> {
    options.open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Opens a file for writing that nobody but its owner may read or lock, whatever the umask is and
/// whatever its mode was. Makes it where it is not there; what it holds stays.
pub fn create_private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("this is no regular file; move it away"));
    }
    if metadata.mode() & 0o7777 != 0o600 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Puts a file with these bytes in the place of the one that was there, which nobody but its owner
/// may read. After this returns it survives a power cut; a crash leaves the old or the new one.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    let written = (|| {
        let mut file = create_private(beside)?;
        file.set_len(0)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(beside, path)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        // What was written of it takes room.
        let _ = fs::remove_file(beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plain_file_is_refused_at_once() {
        let dir = tempfile::TempDir::new().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for path in [&fifo, Path::new("/dev/zero"), dir.path()] {
            let error = read_plain(path, 100).unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{error}");
        }
        assert!(create_private(&fifo).is_err());
        let file = dir.path().join("file");
        std::fs::write(&file, [7; 100]).unwrap();
        assert_eq!(read_plain(&file, 100).unwrap(), [7; 100]);
        let error = read_plain(&file, 99).unwrap_err().to_string();
        assert!(error.contains("more than 99 bytes"), "{error}");
    }

    #[test]
    fn what_a_crash_left_beside_a_file_becomes_no_part_of_it() {
        let dir = tempfile::TempDir::new().unwrap();
        let (path, beside) = (dir.path().join("file"), dir.path().join("file.new"));
        std::fs::write(&beside, [7; 100]).unwrap();
        replace_private(&path, b"whole").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert!(!beside.exists());
    }

    #[test]
    fn a_private_file_is_its_owners_alone_whoever_made_it() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "kept").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let file = create_private(&path).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(create_private(&link).is_err(), "a link leads elsewhere");
    }
}
