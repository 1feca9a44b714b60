//! Files and block devices: opened for direct I/O, locked against a second user, and described.

pub mod content;
mod sysfs;

pub use content::{Content, identify};

use forebay_format::BLOCK_SIZE;
use forebay_sys as sys;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use sysfs::Holder;

/// The mode of `fallocate` that gives space back.
pub(crate) const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// How long to wait for what a dead process left to be cleared away.
const DEAD_HOLDER_WAIT: Duration = Duration::from_secs(10);
/// How long to wait for what a ring of this process left.
const OWN_HOLDER_WAIT: Duration = Duration::from_millis(500);
/// How often to look.
const HOLDER_POLL: Duration = Duration::from_millis(20);

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Another process has it, or the system does.
    #[error("{path} is {by}; stop that first")]
    InUse {
        /// The device.
        path: PathBuf,
        /// Who has it, as in "in use by another process (pid 12)".
        by: String,
    },
    /// It is neither a file nor a block device.
    #[error("{path} is a {what}; give a file or a block device")]
    WrongType {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The system refused.
    #[error("cannot {action} {path}: {source}")]
    System {
        /// The path.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl DeviceError {
    pub(crate) fn system(path: &Path, action: &'static str, source: io::Error) -> DeviceError {
        DeviceError::System { path: path.to_owned(), action, source }
    }
}

/// What the system tells of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Size in bytes.
    pub bytes: u64,
    /// Direct I/O must be aligned to this many bytes; smaller I/O goes through the page cache.
    pub logical_block_bytes: u32,
    /// A block device, not a file.
    pub is_block: bool,
    /// Acknowledged writes may be lost at a power failure until a flush. Always so for a file.
    pub volatile_cache: bool,
    /// A disk that turns.
    pub rotational: bool,
    /// Blocks of a stripe, where the device says that it is best written in such pieces, as RAID
    /// arrays do; else 0.
    pub stripe_blocks: u32,
    /// Can give space back.
    pub discard: bool,
    /// Whether I/O goes around the page cache.
    pub direct: bool,
    /// The file lies in memory (tmpfs): its I/O never waits for a disk.
    pub in_memory: bool,
    /// Another program or machine may stand behind the file, as with FUSE or NFS: whatever is done
    /// with it, even to begin an I/O or to close it, may wait for that one, for ever.
    pub may_wait: bool,
    /// World-wide name or serial number.
    pub serial: Option<String>,
    /// Model.
    pub model: Option<String>,
}

/// How a device is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read and written by us alone.
    Exclusive,
    /// Only looked at, whoever else uses it.
    ReadOnly,
    /// Only looked at, while nobody else uses it.
    ReadAlone,
}

/// An open file or block device. Dropping it gives the lock back.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
    /// There until it is dropped.
    file: Option<File>,
    /// For I/O that is not aligned to the logical block size, and where direct I/O is refused.
    buffered: Option<File>,
    info: DeviceInfo,
    /// What the path led to.
    instance: Instance,
    notice: Option<String>,
    /// Bytes that it was once seen to have, if these were too few.
    cut_to: AtomicU64,
}

/// Nobody has cut it.
const UNCUT: u64 = u64::MAX;

/// Which file or block device this is, as long as it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instance {
    File { file_system: u64, inode: u64 },
    Block { device: u64, number: Option<u64> },
}

impl Instance {
    fn of(metadata: &Metadata) -> Instance {
        match metadata.file_type().is_block_device() {
            true => Instance::Block {
                device: metadata.rdev(),
                number: sysfs::instance(metadata.rdev()),
            },
            false => Instance::File { file_system: metadata.dev(), inode: metadata.ino() },
        }
    }
}

impl Device {
    /// Opens a file or a block device.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] says who has it.
    pub fn open(path: &Path, access: Access) -> Result<Device, DeviceError> {
        // A process that was killed is gone before the kernel has ended the I/O of its rings and let go
        // of its files. Who starts a daemon again at once must not be told that the dead one has them.
        // Of a ring of ours that has ended, a worker of the kernel may hold a file a moment longer.
        let start = Instant::now();
        if let Some(other) = sysfs::loop_on(path).filter(|_| access != Access::ReadOnly) {
            return Err(in_use(path, format!("in use by {other} (losetup -d {other})")));
        }
        loop {
            let result = Device::open_now(path, access);
            if !matches!(result, Err(DeviceError::InUse { .. })) {
                return result;
            }
            let wait = match sysfs::holder(path) {
                Holder::Gone => DEAD_HOLDER_WAIT,
                Holder::Ours => OWN_HOLDER_WAIT,
                Holder::Living => return result,
            };
            if start.elapsed() >= wait {
                return result;
            }
            std::thread::sleep(HOLDER_POLL);
        }
    }

    fn open_now(path: &Path, access: Access) -> Result<Device, DeviceError> {
        let system = |action| move |e| DeviceError::system(path, action, e);
        let found = sys::file::find(path).map_err(system("find"))?;
        Device::open_found(path, &found, access)
    }

    /// Opens what a path was found to lead to; it may lead elsewhere by now.
    fn open_found(path: &Path, found: &File, access: Access) -> Result<Device, DeviceError> {
        let system = |action| move |e| DeviceError::system(path, action, e);
        let metadata = found.metadata().map_err(system("find"))?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let what = if kind.is_dir() { "directory" } else { "special file" };
            return Err(DeviceError::WrongType { path: path.to_owned(), what });
        }
        let is_block = kind.is_block_device();
        let exclusive = access != Access::ReadOnly;
        let excl = if is_block && exclusive { libc::O_EXCL } else { 0 };
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Exclusive);
        let open = |flags| sys::file::reopen(found, options.clone().custom_flags(flags));
        let (mut file, direct) = match open(excl | libc::O_DIRECT) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (open(excl), false),
            opened => (opened, true),
        };
        if file.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY)) {
            return Err(in_use(path, sysfs::block_user(&metadata)));
        }
        if exclusive && !is_block {
            file = file.and_then(|file| match sys::file::lock_exclusive(&file) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(e),
                // A file system without locks: nothing to be told, and nothing lost but the check.
                _ => Ok(file),
            });
        }
        let file = match file {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(in_use(path, sysfs::lock_user(&metadata)));
            }
            other => other.map_err(system("open"))?,
        };
        let info = describe(&file, &metadata, direct).map_err(system("size"))?;
        let needs_buffered = direct && info.logical_block_bytes > 512;
        // Without O_EXCL: that claim is held by the first descriptor.
        let buffered = needs_buffered.then(|| open(0)).transpose().map_err(system("open"))?;
        let notice = (!direct).then(|| {
            format!("{}: direct I/O is refused here; going through the page cache", path.display())
        });
        let instance = Instance::of(&metadata);
        let (path, file, cut_to) = (path.to_owned(), Some(file), AtomicU64::new(UNCUT));
        Ok(Device { path, file, buffered, info, instance, notice, cut_to })
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the system tells of it.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Something that an administrator should know about how it was opened.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// The descriptor for flushes, zeroing, discards and for I/O aligned to the logical block size.
    pub fn file(&self) -> &File {
        self.file.as_ref().expect("it is open until it is dropped")
    }

    /// Tells the device that the whole blocks of a range are no longer needed. What is read there
    /// afterwards is anything.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let align = u64::from(self.info.logical_block_bytes);
        let (start, end) = (offset.next_multiple_of(align), (offset + len) / align * align);
        if start >= end {
            return Ok(());
        }
        match self.info.is_block {
            true => sys::file::block_discard(self.file(), start, end - start),
            false => sys::file::fallocate(self.file(), PUNCH, start, end - start),
        }
    }

    /// Whether acknowledged writes can be lost until a flush: in the device's cache, or in the page cache.
    pub fn needs_flush(&self) -> bool {
        self.info.volatile_cache || !self.info.direct || self.buffered.is_some()
    }

    /// Size in bytes as it is now: it may have grown since it was opened.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn bytes_now(&self) -> io::Result<u64> {
        self.file().seek(SeekFrom::End(0))
    }

    /// Looks whether somebody has cut the file below us. Whether this is news. What it held then is
    /// not known any more, however large the next write makes it: a hole reads as zeros.
    pub fn look_for_cut(&self) -> bool {
        // Where others stand behind a file even this may wait.
        if self.info.is_block || self.info.may_wait || self.cut_to().is_some() {
            return false;
        }
        let now = self.file().metadata().map(|it| it.len());
        let now = now.ok().filter(|&now| now < self.info.bytes);
        now.inspect(|&now| self.cut_to.store(now, Ordering::Relaxed)).is_some()
    }

    /// Bytes that it had when it was seen to be cut.
    pub fn cut_to(&self) -> Option<u64> {
        Some(self.cut_to.load(Ordering::Relaxed)).filter(|&bytes| bytes != UNCUT)
    }

    /// Whether it is gone for good: it cannot be read, and its path leads nowhere or to another
    /// one; or it was cut, and has fewer than `least` bytes. One that only fails, or that somebody
    /// has deleted, is not. May wait as long as I/O may.
    pub fn is_gone(&self, least: u64) -> bool {
        if self.bytes_now().is_ok_and(|bytes| bytes < least) {
            return true;
        }
        let mut block =
            forebay_engine::Buf::zeroed(BLOCK_SIZE.max(self.info.logical_block_bytes as usize));
        // Nothing can be read where nothing is any more, either.
        if self.file().read_at(block.bytes_mut(), 0).is_ok_and(|bytes| bytes > 0) {
            return false;
        }
        let now = std::fs::metadata(&self.path);
        now.map_or(true, |metadata| Instance::of(&metadata) != self.instance)
    }

    /// The descriptor for an I/O of `len` bytes at `offset`.
    pub fn file_for(&self, offset: u64, len: u64) -> &File {
        let align = u64::from(self.info.logical_block_bytes);
        match &self.buffered {
            Some(buffered) if !offset.is_multiple_of(align) || !len.is_multiple_of(align) => {
                buffered
            }
            _ => self.file(),
        }
    }
}

impl Drop for Device {
    /// Closing asks whoever stands behind the file, too: whoever lets go of it does not wait for
    /// the answer.
    fn drop(&mut self) {
        let files = (self.file.take(), self.buffered.take());
        if self.info.may_wait {
            // Without a thread they are closed here: better than never.
            let close = std::thread::Builder::new().name("forebay-close".to_owned());
            let _ = close.spawn(move || drop(files));
        }
    }
}

fn in_use(path: &Path, by: String) -> DeviceError {
    DeviceError::InUse { path: path.to_owned(), by }
}

/// How long opening a block device may take: one that nobody serves may never answer.
const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// Whether somebody has a block device open alone, as a mount does, or LVM. One that is not there
/// is held by nobody.
///
/// # Errors
/// If the kernel does not tell who has the device open.
pub fn is_held(path: &Path) -> io::Result<bool> {
    let own = path.to_path_buf();
    let flags = libc::O_EXCL | libc::O_NONBLOCK;
    let opened =
        crate::limit::within(OPEN_LIMIT, "open the block device", move || match OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(own)
        {
            Ok(_) => Ok(false),
            Err(e) => match e.raw_os_error() {
                Some(libc::EBUSY) => Ok(true),
                Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => Ok(false),
                _ => Err(e),
            },
        });
    opened.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

fn describe(mut file: &File, metadata: &std::fs::Metadata, direct: bool) -> io::Result<DeviceInfo> {
    let bytes = file.seek(SeekFrom::End(0))?;
    if !metadata.file_type().is_block_device() {
        let align = if direct { sys::file::direct_io_align(file).unwrap_or(512) } else { 512 };
        return Ok(DeviceInfo {
            bytes,
            logical_block_bytes: align.max(512),
            is_block: false,
            volatile_cache: true,
            rotational: sysfs::queue(metadata.dev()).rotational,
            stripe_blocks: 0,
            discard: true,
            direct,
            in_memory: sys::file::is_in_memory(file),
            may_wait: !sys::file::is_local(file),
            serial: None,
            model: None,
        });
    }
    let queue = sysfs::queue(metadata.rdev());
    Ok(DeviceInfo {
        bytes,
        logical_block_bytes: sys::file::logical_block_bytes(file)?.max(512),
        is_block: true,
        volatile_cache: queue.volatile_cache,
        rotational: queue.rotational,
        stripe_blocks: queue.stripe_blocks,
        discard: queue.discard,
        direct,
        in_memory: false,
        may_wait: false,
        serial: queue.serial,
        model: queue.model,
    })
}

/// Makes a file of `bytes` for a cache or an origin and reserves its space, so that the file system cannot
/// run full under it later. Where space cannot be reserved, the file is sparse.
///
/// # Errors
/// The file exists, or there is not enough space.
pub fn create_file(path: &Path, bytes: u64) -> Result<(), DeviceError> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| DeviceError::system(path, "create", e))?;
    let reserved = sys::file::fallocate(&file, 0, 0, bytes);
    let made = match reserved {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => file.set_len(bytes),
        other => other,
    };
    made.and_then(|()| file.sync_all()).map_err(|e| {
        let _ = std::fs::remove_file(path);
        DeviceError::system(path, "reserve space for", e)
    })
}

#[cfg(test)]
mod tests;
