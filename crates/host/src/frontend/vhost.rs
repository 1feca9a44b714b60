//! vhost-user-blk: a KVM guest's virtio disk, served without the kernel of the host and without a
//! copy through a socket: the guest's memory is mapped here.
//!
//! Each virtqueue is a port on the volume's shard (`queue.rs`): kicks arrive on the shard's ring,
//! and requests run where they arrive. The protocol (`device.rs`) is spoken on a thread of its own
//! for each connection; it hands queues to the shard and takes them back. What a queue has taken
//! and not answered is written down in memory that the other side keeps (`inflight.rs`), so that a
//! daemon that was killed loses no request. Others can write any number into the rings and into
//! that memory: both have one door (`rings.rs`), where it is checked (`head.rs`).

mod bare;
mod channel;
mod device;
mod head;
mod inflight;
mod memory;
mod queue;
mod request;
mod rings;
mod segment;
mod server;

#[doc(hidden)]
pub use bare::{BareQueue, BareSetup};
pub use queue::QueueSetup;
pub use server::{VhostServer, VhostVolume};

pub(crate) use queue::QueuePort;

#[cfg(test)]
pub(crate) use {head::Head, inflight::Region};
