//! Forebay's system calls: devices, origins, rings and front ends.
//!
//! The only crate with `unsafe`. It carries out the effects of [`forebay_engine::Engine`] on real devices
//! and turns what clients ask into its events.

pub mod device;
pub mod frontend;
pub mod origin;
pub mod pool;
mod sys;
