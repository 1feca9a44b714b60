//! Forebay's engine: which block is where, what a request may see, what reaches which disk in which
//! order.
//!
//! A deterministic function of its events. It owns no device, clock, thread, lock or random source:
//! see `ARCHITECTURE.md` for the picture and `docs/invariants.md` for I1 to I15.
#![forbid(unsafe_code)]

pub mod buf;
mod check;
mod due;
pub mod engine;
pub mod event;
mod fetches;
mod index;
mod intents;
mod limits;
mod log;
mod map;
pub mod mode;
mod mutant;
mod op;
mod overlap;
mod policy;
mod pressure;
mod quarantine;
mod ram;
mod requests;
mod room;
mod segment;
pub mod settings;
mod slab;
pub mod stats;
mod turns;
mod volume;
mod volumes;
mod work;

pub use buf::{Buf, BufPool};
pub use engine::{Engine, State, VolumeView};
pub use event::{
    Command, CommandId, CommandReply, Completion, DeviceId, Effect, Event, IoError, Notice, OpId,
    Request, RequestId, RequestKind, Target, Time, VolumeId, VolumeSpec,
};
pub use limits::{LOST_SEGMENTS, ORIGIN_HANGS_NS, STALL_NS_MAX};
pub use mode::{Mode, Plan};
pub use mutant::Mutant;
pub use op::absent::ABSENT_HOLD;
pub use op::command::{FLUSH_FAILED, POOL_IS_FULL};
pub use settings::{DeviceSettings, Distrust, OriginSettings, Presence, Settings, Tuning};
pub use slab::Keyed;

/// Whether a block is in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockStatus {
    /// Only the origin has it.
    NotCached,
    /// Cached, equal to the origin.
    Clean,
    /// Cached, newer than the origin.
    Dirty,
}
