//! How clients reach a volume.

pub mod fuse;
pub mod nbd;
pub(crate) mod port;
pub mod vhost;
