//! The driver of ublk: its control device, and the character device of each of its block devices.

pub mod control;
mod node;
pub mod uapi;

pub use control::Known;
pub use node::{Descriptors, IoCommand, Node};
