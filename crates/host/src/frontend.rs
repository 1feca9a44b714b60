//! How clients reach a volume.

pub mod fuse;
pub mod nbd;
pub mod nbd_kernel;
pub(crate) mod port;
pub mod ublk;
pub mod vhost;
