//! What a front end that is a kernel's block device uses of its shard: the ring or epoll that the
//! shard waits on, buffers, and the way to the engine. Such a front end is a *port*: it has a key
//! in its shard, and what it starts there carries a tag of its own.
//!
//! A port gives the engine requests under tags ([`PortLink::submit`]) and gets each answered once.
//! What it starts on the driver arrives under the tag that it was started with. The two kinds of
//! tags have nothing to do with each other.

use crate::driver::{Driver, Ring};
use crate::notice::{HostNotice, Notices};
use forebay_engine::{Buf, BufPool, IoError, Request};
use std::os::fd::RawFd;

/// A request of a port: its key, its tag, the request.
pub(crate) type PortRequest = (u32, u32, Request);

/// What a port may use while it handles something.
pub(crate) struct PortLink<'a> {
    /// The port's key.
    pub key: u32,
    pub driver: &'a mut Driver,
    /// Buffers for data.
    pub bufs: &'a mut BufPool,
    pub requests: &'a mut Vec<PortRequest>,
    pub notices: &'a mut Notices,
}

impl PortLink<'_> {
    /// Gives the engine a request. Its answer comes under `tag`, which is free until then.
    pub fn submit(&mut self, tag: u32, request: Request) {
        self.requests.push((self.key, tag, request));
    }

    /// As [`Driver::poll_port`].
    pub fn poll(&mut self, tag: u32, fd: RawFd) {
        self.driver.poll_port(self.key, tag, fd);
    }

    /// As [`Driver::cancel_port`].
    pub fn cancel(&mut self, tag: u32) {
        self.driver.cancel_port(self.key, tag);
    }

    /// The ring with the port's key, where there is one.
    pub fn ring(&mut self) -> Option<(&mut Ring, u32)> {
        self.driver.ring().map(|ring| (ring, self.key))
    }

    /// Tells the administrator.
    pub fn tell(&mut self, text: String) {
        self.notices.send(HostNotice::Text(text));
    }
}

/// The engine's answer to a request.
#[derive(Debug)]
pub(crate) struct PortAnswer {
    pub result: Result<(), IoError>,
    /// The request's buffer, filled for a read that succeeded.
    pub buf: Buf,
}

/// The number by which the kernel's interfaces know an error.
pub(crate) fn errno(error: IoError) -> i32 {
    match error {
        IoError::Io => libc::EIO,
        IoError::Invalid => libc::EINVAL,
        IoError::NoSpace => libc::ENOSPC,
        IoError::Unsupported => libc::EOPNOTSUPP,
        IoError::Gone => libc::ENODEV,
        IoError::Shutdown => libc::ESHUTDOWN,
    }
}
