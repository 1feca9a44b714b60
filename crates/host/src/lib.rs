//! Forebay at work: devices, origins, shards and front ends.
//!
//! It carries out the effects of [`forebay_engine::Engine`] on real devices
//! and turns what clients ask into its events. [`shard::ShardHandle`] is the way in.
#![deny(unsafe_code)]

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
pub mod rescue;
pub mod rest;
pub mod shard;
pub mod witness;

pub use executor::{note_distrust, read_distrust};
pub use forebay_sys::clock;
pub use forebay_sys::driver::Backend;
pub use forebay_sys::file;
pub use forebay_sys::memory::LazyZeros;
pub use forebay_sys::process::is_root;
