//! Forebay's tiers: which extent lives on which device, and when it moves.
//!
//! A tiered origin is an address translation below the cache. This crate is the machine that
//! translates, as deterministic as the engine: it owns no device, clock, thread, lock or random
//! source. Whoever runs it, the *executor*, tells it what happened ([`Event`]) and carries out what
//! it wants ([`Effect`]).
//!
//! What must hold is numbered T1 to T10 in `docs/invariants.md`.
#![forbid(unsafe_code)]

mod assemble;
mod barrier;
mod budget;
mod change;
mod check;
mod checkpoint;
mod command;
mod cut;
pub mod event;
mod flush;
mod gone;
mod hang;
mod health;
mod heat;
mod holders;
mod io;
mod journal;
mod limits;
mod lost;
mod map;
mod member;
mod moves;
mod mutant;
mod part;
mod pins;
mod places;
mod plan;
mod recovery;
mod refuge;
mod requests;
mod set;
mod settings;
mod space;
mod start;
mod superblocks;
mod tiers;
mod traffic;
mod view;
mod waiting;
mod worth;

pub use assemble::{Assembled, CreateError, NewMember, NewSet, assemble, create};
pub use event::{
    Addition, At, Command, CommandId, CommandReply, Effect, Event, Io, IoId, MemberId, Notice,
    OpenError, Refusal,
};
pub use health::Errors;
pub use map::MAP_BYTES_PER_EXTENT;
pub use mutant::Mutant;
pub use settings::{MemberSettings, Placement, Settings, Tuning};
pub use tiers::Tiers;
pub use traffic::Traffic;
pub use view::{Evacuation, Explained, MemberState, MemberView, NotHigher, Pending, View};
