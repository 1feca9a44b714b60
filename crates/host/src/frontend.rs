//! How clients reach a volume.

pub mod nbd;
