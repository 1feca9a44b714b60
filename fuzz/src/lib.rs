//! Fuzz targets: what others may send us, as functions of bytes. Each target turns its input into
//! what its owner would be told, and asserts what must hold whatever that is.
//!
//! The same functions run in two ways: over the corpus of `fuzz/corpus` and seeded mutations of it
//! in the tests of every run (`tests/corpus.rs`), and guided by coverage (`cargo xtask fuzz`).
#![forbid(unsafe_code)]

mod config;
mod control;
mod disks;
mod events;
mod formats;
mod guest;
mod handshake;
mod image;
mod input;
mod members;
mod model;
mod nbd;
mod tiers;
mod transmission;

pub use input::Random;

/// A target.
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// Takes any bytes. It panics where something does not hold.
    pub run: fn(&[u8]),
    /// Longer inputs find nothing more.
    pub bytes_max: usize,
    /// Mutations that the tests of each run try: some seconds of them.
    pub mutations: u64,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "formats", run: formats::run, bytes_max: 4096, mutations: 10_000 },
    Target { name: "image", run: image::run, bytes_max: 512, mutations: 250 },
    Target { name: "tiers", run: tiers::run, bytes_max: 512, mutations: 250 },
    Target { name: "handshake", run: handshake::run, bytes_max: 2048, mutations: 20_000 },
    Target { name: "transmission", run: transmission::run, bytes_max: 1024, mutations: 20_000 },
    Target { name: "guest", run: guest::run, bytes_max: 1024, mutations: 600 },
    Target { name: "config", run: config::run, bytes_max: 2048, mutations: 20_000 },
    Target { name: "control", run: control::run, bytes_max: 2048, mutations: 40_000 },
    Target { name: "events", run: events::run, bytes_max: 1024, mutations: 500 },
];

/// The target of this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
