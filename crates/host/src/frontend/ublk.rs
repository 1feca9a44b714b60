//! ublk: block devices of the kernel whose requests come through io_uring. `/dev/ublkbN` is used by
//! everyone, `/dev/ublkcN` by us alone.
//!
//! A device is made, started, stopped and taken over through the control device;
//! its requests go through the ring of the shard of its pool, as a port (`port.rs`). A device
//! outlives its server: the kernel keeps requests until the next one has taken it over, and sends
//! those again that the dead one had.

mod device;
mod port;

pub use device::{UblkDevice, UblkSetup, Wanted, is_available};
pub(crate) use port::UblkPort;
