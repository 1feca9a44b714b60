//! Forebay's system calls: devices, origins, rings and front ends.
//!
//! The only crate with `unsafe`. It carries out the effects of [`forebay_engine::Engine`] on real devices
//! and turns what clients ask into its events. [`shard::ShardHandle`] is the way in.

pub mod device;
mod driver;
mod executor;
pub mod fingerprint;
pub mod frontend;
pub mod hold;
pub mod limit;
pub mod loop_device;
pub mod notice;
pub mod origin;
pub mod pool;
pub mod process;
pub mod rest;
pub mod shard;
mod slab;
mod sys;
mod waker;

pub use driver::Backend;
pub use executor::{note_distrust, read_distrust};
pub use sys::ioctl::is_root;
