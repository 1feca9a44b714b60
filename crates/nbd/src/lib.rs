//! The NBD protocol: its numbers, its fixed structures, and how a client opens an export. Our
//! server, the demo, the benchmarks and the tests speak it from here.
#![forbid(unsafe_code)]

pub mod client;
pub mod wire;
