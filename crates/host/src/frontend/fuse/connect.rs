//! A new FUSE connection: one file on a file system that is mounted nowhere, so that no path, no
//! mount namespace and no administrator can get in its way, and nothing has to be unmounted: it
//! ends when the loop device lets go of the file.
//!
//! The file has a name of its own all the same, in a directory: the kernel shows `/NAME` as what is
//! behind a loop device, and programs compare that. mkfs.btrfs takes two loop devices with the same
//! path behind them for one.

use super::reply;
use super::wire::{self, Agreed, Wishes};
use crate::limit::within;
use crate::loop_device::label;
use forebay_sys as sys;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;
use zerocopy::IntoBytes;

/// How long the kernel may take for each step.
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes of the largest read and write.
const IO_BYTES_MAX: u32 = 1 << 20;
/// Requests of a loop device under way at once. The kernel's own default is 12.
const BACKGROUND_MAX: u16 = 512;
/// The device behind which the kernel's side is.
pub const DEVICE: &str = "/dev/fuse";

/// A connection that nobody serves yet.
#[derive(Debug)]
pub struct Connection {
    /// The open `/dev/fuse`.
    pub device: OwnedFd,
    /// What was agreed on.
    pub agreed: Agreed,
    mount: OwnedFd,
}

/// Makes a connection and agrees with the kernel on what both can do.
///
/// # Errors
/// The kernel has no FUSE, it is too old, or this process may not. Says what to do.
pub fn connect() -> io::Result<Connection> {
    within(LIMIT, "make a file on FUSE", || {
        let device = File::options().read(true).write(true).open(DEVICE)?;
        let number = |number: i64| CString::new(number.to_string()).expect("digits");
        let fd = number(device.as_raw_fd().into());
        let mode = CString::new(format!("{:o}", reply::ROOT_MODE)).expect("digits");
        let user = number(sys::process::own_user().into());
        let options = [
            (c"source", Some(c"forebay")),
            (c"fd", Some(fd.as_c_str())),
            (c"rootmode", Some(mode.as_c_str())),
            (c"user_id", Some(user.as_c_str())),
            (c"group_id", Some(c"0")),
        ];
        let mount = sys::mounts::mount_nowhere(c"fuse", &options)?;
        let agreed = shake_hands(&device)?;
        Ok(Connection { device: device.into(), agreed, mount })
    })
}

/// Answers the kernel's first request.
fn shake_hands(device: &File) -> io::Result<Agreed> {
    if !sys::socket::wait_readable(device.as_raw_fd(), LIMIT)? {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    // The kernel wants room for the largest request even when it sends a short one.
    let mut request = vec![0; wire::HEAD_BYTES + IO_BYTES_MAX as usize];
    let len = sys::file::read_parts(device.as_raw_fd(), [&mut request[..]])?;
    let wishes =
        Wishes { write_bytes_max: IO_BYTES_MAX, background_max: BACKGROUND_MAX, io_uring: false };
    let (unique, reply, agreed) =
        wire::negotiate(&request[..len], &wishes).map_err(io::Error::other)?;
    let header = wire::out_header(unique, 0, reply.as_bytes().len());
    sys::file::write_parts(device.as_raw_fd(), [header.as_bytes(), reply.as_bytes()])?;
    Ok(agreed)
}

/// Tells the kernel, at a connection that somebody serves, that the file has another size: it asks
/// when it wants to know it next.
///
/// # Errors
/// The connection has ended.
pub fn tell_size_changed(device: BorrowedFd) -> io::Result<()> {
    let notice = reply::size_changed();
    let header = wire::changed_header(notice.as_bytes().len());
    sys::file::write_parts(device.as_raw_fd(), [header.as_bytes(), notice.as_bytes()]).map(drop)
}

impl Connection {
    /// Opens the file, for direct I/O. Somebody has to serve the connection already. `name` tells
    /// people whose it is.
    ///
    /// # Errors
    /// The kernel refuses, or nobody serves.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        // Two daemons may have volumes of the same name.
        let name = format!("{}.{}", label(name), std::process::id());
        let path = format!("/proc/self/fd/{}/{name}", self.mount.as_raw_fd());
        within(LIMIT, "open the file on FUSE", move || {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(path)?;
            // Before Linux 6.17, a loop device takes the size that the kernel remembers: it has to
            // have asked once.
            file.metadata()?;
            Ok(file)
        })
    }
}
