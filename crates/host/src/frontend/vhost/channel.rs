//! The channel by which the daemon speaks first: it tells the other side that the disk's
//! configuration, which holds its size, is another one.
//!
//! The `vhost` crate takes the channel from the message that brings it, and cannot send this: so
//! the message is looked at before the crate receives it.

use forebay_sys as sys;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use vhost::vhost_user::message::{BackendReq, FrontendReq};

/// A message's head: what it is, flags and the length of what follows, 32 bits each in the order
/// of this machine.
const HEAD_BYTES: usize = 12;
/// The message that brings the channel.
const BRINGS_CHANNEL: u32 = FrontendReq::SET_BACKEND_REQ_FD as u32;
/// "The configuration is another one", in this version of the protocol, with nothing behind.
const CONFIG_CHANGE: [u32; 3] = [BackendReq::CONFIG_CHANGE_MSG as u32, 1, 0];

/// Where the other side listens.
pub struct Channel(UnixStream);

impl Channel {
    /// Waits for the next message of a connection, and leaves it there. Returns the channel if the
    /// message brings one.
    pub fn of_next(connection: RawFd) -> Option<Channel> {
        let mut head = [0; HEAD_BYTES];
        // What is wrong with a connection shows when the message is received.
        let (count, file) = sys::pass::look_at(connection, &mut head).ok()?;
        let (what, _) = head.split_first_chunk().expect("a head is longer");
        if count < HEAD_BYTES || u32::from_ne_bytes(*what) != BRINGS_CHANNEL {
            return None;
        }
        // One that is no socket is refused when the message is received.
        file.and_then(Channel::of)
    }

    /// One end of a pair of sockets, in which nothing is hidden: the other end of the connection
    /// itself, here or in a message that nobody reads, would keep that open when the guest has long
    /// gone, and everybody else out.
    fn of(file: OwnedFd) -> Option<Channel> {
        let socket = UnixStream::from(file);
        if !socket.peer_addr().ok()?.is_unnamed() {
            return None;
        }
        socket.shutdown(Shutdown::Read).ok()?;
        sys::pass::drain(socket.as_raw_fd());
        Some(Channel(socket))
    }

    /// Has the other side read the configuration. No answer is waited for: it first asks for the
    /// configuration, which whoever calls this has to answer.
    ///
    /// # Errors
    /// Nobody listens, or nobody has for hundreds of messages.
    pub fn tell(&self) -> io::Result<()> {
        let bytes = CONFIG_CHANGE.map(u32::to_ne_bytes).concat();
        sys::pass::send_now(self.0.as_raw_fd(), &bytes)
    }
}
