//! One file on the kernel's FUSE: what a loop device makes a block device of.
//!
//! [`wire`] is the protocol and [`reply`] what is said about the file, as pure functions of bytes;
//! a port answers the kernel on the shard's thread.

mod connect;
mod port;
pub mod reply;
pub mod wire;

pub use connect::{Connection, DEVICE, connect, tell_size_changed};
pub use port::FuseSetup;
pub(crate) use port::{Answer, FusePort};

#[cfg(test)]
mod tests;
