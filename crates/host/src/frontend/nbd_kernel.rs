//! `/dev/nbdN` of the kernel over our own NBD server. The kernel gets connections that are
//! negotiated already; when they break, because the server died, it waits for others instead of
//! failing requests, and [`KernelNbd::mend`] brings them.

mod netlink;

use crate::device::is_held;
use crate::frontend::sector_bytes;
use crate::limit::within;
use forebay_nbd::client::{Export, open};
use forebay_nbd::wire::flag;
use forebay_sys as sys;
use netlink::{Attributes, Netlink, find};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FAMILY: &str = "nbd";
/// Commands of the driver.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
/// Their attributes.
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT: u16 = 8;
const BACKEND: u16 = 10;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// How the kernel finds requests whose answers died with their connection.
enum Resend {
    /// From Linux 5.10 on: a timer that looks at each request at this distance, in milliseconds.
    /// One whose connection was replaced is sent again, any other may take as long as it likes. Of
    /// a device with several connections it would break those of slow requests.
    Looks { every_ms: u32 },
    /// A connection whose answer takes so many seconds counts as broken, and what was sent there is
    /// sent again on another.
    Breaks { seconds: u64 },
}

impl Resend {
    fn of_this_kernel() -> Resend {
        Resend::of(sys::kernel_release())
    }

    fn of(release: (u32, u32)) -> Resend {
        match release {
            (5, 10..) | (6.., _) => Resend::Looks { every_ms: 1000 },
            _ => Resend::Breaks { seconds: 10 },
        }
    }

    fn connections(&self) -> usize {
        match self {
            Resend::Looks { .. } => 1,
            Resend::Breaks { .. } => 2,
        }
    }

    /// The driver's time limit for requests, in seconds; 0 for none.
    fn limit_seconds(&self) -> u64 {
        match self {
            Resend::Looks { .. } => 0,
            Resend::Breaks { seconds } => *seconds,
        }
    }
}

/// Seconds that requests wait when no connection is left.
const DEAD_SECONDS: u64 = 24 * 3600;
/// How long the kernel, and our own server, may take to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// A device that the kernel serves from our server.
#[derive(Debug)]
pub struct KernelNbd {
    /// `N` of `/dev/nbdN`.
    pub index: u32,
    /// What it is known by again.
    pub backend: String,
    /// Our hold on the connections that the kernel has, to see when they end.
    connections: Vec<UnixStream>,
}

/// Negotiates a connection to an export.
fn negotiate(server: &Path, export: &str) -> io::Result<(UnixStream, Export)> {
    let mut stream = UnixStream::connect(server)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let export = open(&mut stream, export).map_err(|e| {
        io::Error::new(e.kind(), format!("our NBD server does not offer {export}: {e}"))
    })?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok((stream, export))
}

/// Asks the driver, with a time limit.
fn ask(what: &'static str, command: u8, attributes: Attributes) -> io::Result<Vec<u8>> {
    within(LIMIT, what, move || match Netlink::open(FAMILY) {
        Ok(mut netlink) => netlink.ask(command, &attributes),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the kernel has no nbd driver; load it: modprobe nbd",
        )),
        Err(e) => Err(e),
    })
}

/// Whether the kernel has the driver.
///
/// # Errors
/// Says what to do about it.
pub fn is_available() -> io::Result<()> {
    within(LIMIT, "nbd", || Netlink::open(FAMILY).map(drop)).map_err(|e| {
        let hint = "load the driver: modprobe nbd";
        io::Error::new(e.kind(), format!("the kernel's nbd: {e}; {hint}"))
    })
}

fn sockets(streams: &[UnixStream]) -> Attributes {
    streams.iter().fold(Attributes::default(), |all, stream| {
        let fd = stream.as_raw_fd() as u32;
        all.nest(SOCKET_ITEM, &Attributes::default().add(SOCKET_FD, &fd.to_ne_bytes()))
    })
}

impl KernelNbd {
    /// Makes a device of an export of our server.
    ///
    /// # Errors
    /// No driver, no right, no export, or no free device.
    pub fn attach(
        server: &Path,
        export: &str,
        backend: &str,
        small_sectors: bool,
    ) -> io::Result<KernelNbd> {
        let resend = Resend::of_this_kernel();
        let mut streams = Vec::new();
        let (mut bytes, mut flags) = (0, 0);
        for _ in 0..resend.connections() {
            let (stream, told) = negotiate(server, export)?;
            (bytes, flags) = (told.bytes, told.flags);
            streams.push(stream);
        }
        if streams.len() > 1 && flags & flag::CAN_MULTI_CONN == 0 {
            return Err(io::Error::other("our NBD server offers only one connection"));
        }
        let block = sector_bytes(bytes, small_sectors);
        let number = |value: u64| value.to_ne_bytes();
        let attributes = Attributes::default()
            .add(SIZE_BYTES, &number(bytes))
            .add(BLOCK_BYTES, &number(block))
            .add(TIMEOUT, &number(resend.limit_seconds()))
            .add(SERVER_FLAGS, &number(flags.into()))
            .add(DEAD_CONNECTION_TIMEOUT, &number(DEAD_SECONDS))
            .add(BACKEND, &[backend.as_bytes(), &[0]].concat())
            .nest(SOCKETS, &sockets(&streams));
        let answer = ask("attach an NBD device", CONNECT, attributes)?;
        let index = find(&answer, INDEX).and_then(|index| <[u8; 4]>::try_from(index).ok());
        let index = index.ok_or_else(|| io::Error::other("the kernel names no device"))?;
        let index = u32::from_ne_bytes(index);
        let made = KernelNbd { index, backend: backend.to_owned(), connections: streams };
        if let Resend::Looks { every_ms } = resend
            && let Err(error) = made.look_every(every_ms)
        {
            // What was wrong first is what is told.
            let _ = made.detach();
            return Err(error);
        }
        Ok(made)
    }

    fn look_every(&self, every_ms: u32) -> io::Result<()> {
        let path = format!("/sys/block/nbd{}/queue/io_timeout", self.index);
        std::fs::write(&path, every_ms.to_string())
            .map_err(|e| io::Error::new(e.kind(), format!("write {path}: {e}")))
    }

    /// The device with this number, if the kernel serves it from a server with this name.
    pub fn find(index: u32, backend: &str) -> Option<KernelNbd> {
        let found = std::fs::read_to_string(format!("/sys/block/nbd{index}/backend")).ok()?;
        let ours = found.trim() == backend;
        let backend = backend.to_owned();
        ours.then(|| KernelNbd { index, backend, connections: Vec::new() })
    }

    /// Replaces connections that have ended. Returns how many.
    ///
    /// # Errors
    /// Our server does not offer the export, or the kernel has let go of the device.
    pub fn mend(&mut self, server: &Path, export: &str) -> io::Result<usize> {
        self.connections.retain(sys::socket::is_connected);
        let wanted = Resend::of_this_kernel().connections();
        let missing = wanted.saturating_sub(self.connections.len());
        for _ in 0..missing {
            let (stream, _) = negotiate(server, export)?;
            let attributes = self.named().nest(SOCKETS, &sockets(std::slice::from_ref(&stream)));
            ask("give an NBD device another connection", RECONFIGURE, attributes)?;
            self.connections.push(stream);
        }
        Ok(missing)
    }

    /// Changes the size, in bytes.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn resize(&self, bytes: u64) -> io::Result<()> {
        let attributes = self.named().add(SIZE_BYTES, &bytes.to_ne_bytes());
        ask("resize an NBD device", RECONFIGURE, attributes).map(drop)
    }

    fn named(&self) -> Attributes {
        Attributes::default()
            .add(INDEX, &self.index.to_ne_bytes())
            .add(BACKEND, &[self.backend.as_bytes(), &[0]].concat())
    }

    /// Ends the device: whoever uses it gets errors.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn detach(self) -> io::Result<()> {
        let attributes = Attributes::default().add(INDEX, &self.index.to_ne_bytes());
        ask("detach an NBD device", DISCONNECT, attributes).map(drop)
    }

    /// Whether somebody has it open alone, as a mount does.
    ///
    /// # Errors
    /// If the kernel does not tell who has the device open.
    pub fn is_in_use(&self) -> io::Result<bool> {
        is_held(&self.path())
    }

    /// Connections that the kernel has to our server.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// The block device.
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(format!("nbd{}", self.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_find_lost_requests_by_themselves_are_told_from_others() {
        for (release, connections) in
            [((6, 12), 1), ((5, 10), 1), ((7, 0), 1), ((5, 9), 2), ((4, 18), 2), ((0, 0), 2)]
        {
            assert_eq!(Resend::of(release).connections(), connections, "{release:?}");
        }
        assert_eq!(Resend::of((6, 1)).limit_seconds(), 0);
        assert_eq!(Resend::of((4, 18)).limit_seconds(), 10);
    }

    #[test]
    fn no_server_is_an_error() {
        let nowhere = std::env::temp_dir().join("forebay-no-such-socket");
        assert!(KernelNbd::attach(&nowhere, "data", "x", false).is_err());
        assert!(KernelNbd::find(u32::MAX, "x").is_none());
    }
}
