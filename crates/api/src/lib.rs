//! What the daemon and its clients say to each other: requests, replies, configuration, metrics,
//! and the small client that carries them.
//!
//! One [`Request`] and one [`Reply`] serve the command line, the HTTP interface and every other
//! client. Replies are idempotent: a request says what should be true afterwards, and the answer
//! tells whether anything had to change. Sizes are bytes, ratios 0 to 1, durations seconds unless a
//! name says otherwise.
#![forbid(unsafe_code)]

pub mod cause;
pub mod client;
pub mod config;
pub mod error;
pub mod fstab;
pub mod hint;
mod lines;
pub mod metrics;
pub mod ram;
pub mod reply;
pub mod request;
pub mod rescue;
pub mod size;
pub mod socket;
pub mod stats;
pub mod tiers;
pub mod told;

pub use cause::Cause;
pub use client::Client;
pub use error::{ApiError, ErrorKind, Hold};
pub use forebay_format::mode::Mode;
pub use hint::Hint;
pub use lines::{Causes, Hints, Lines, Tellings};
pub use ram::RamNeed;
pub use reply::{Body, Done, Outcome, Reply};
pub use request::Request;
pub use rescue::{RescueAbout, RescuePart};
pub use size::Size;
pub use told::Told;

/// Version of the JSON that this crate writes; grows when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;
