//! Forebay's engine: which block is where, what a request may see, what reaches which disk in which
//! order.
//!
//! The engine decides and never acts. It is a deterministic function of its events and owns no
//! device, clock, thread, lock or random source. Whoever runs it, the *executor*, tells it what
//! happened ([`Event`]) and carries out what it wants ([`Effect`]), round after round. This is a
//! whole one, with devices that are memory; `crates/host` is the one for real devices, `crates/sim`
//! one whose disks tear, rot and die.
//!
//! ```
//! use forebay_engine::*;
//! # use forebay_format::superblock::{PoolSpec, new_pool};
//!
//! struct Executor {
//!     engine: Engine,
//!     cache: Vec<u8>,
//!     origin: Vec<u8>,
//!     /// What has happened, and the engine has not been told yet.
//!     happened: Vec<Event>,
//!     now: Time,
//! }
//!
//! impl Executor {
//!     /// Tells the engine what happened and does what it wants, until it answers.
//!     fn ask(&mut self, event: Event) -> Effect {
//!         self.happened.push(event);
//!         loop {
//!             let mut effects = Vec::new();
//!             for event in self.happened.drain(..) {
//!                 self.engine.handle(self.now, event, &mut effects);
//!             }
//!             // What a batch of events has gathered is sent together: the group commit.
//!             self.engine.settle(self.now, &mut effects);
//!             let is_answer =
//!                 |e: &Effect| matches!(e, Effect::Reply { .. } | Effect::CommandDone { .. });
//!             let answer = effects.iter().position(is_answer).map(|at| effects.remove(at));
//!             self.carry_out(effects);
//!             if let Some(answer) = answer {
//!                 return answer;
//!             }
//!             if self.happened.is_empty() {
//!                 // No I/O is under way: time passes until the engine has something to do.
//!                 self.now = self.engine.deadline().expect("whoever asks gets an answer");
//!             }
//!         }
//!     }
//!
//!     /// Here each I/O ends at once. Its buffer is lent: it goes back with the news of the end.
//!     fn carry_out(&mut self, effects: Vec<Effect>) {
//!         for effect in effects {
//!             let (op, buf) = match effect {
//!                 Effect::Read { op, target, offset, mut buf } => {
//!                     let len = buf.len();
//!                     buf.bytes_mut().copy_from_slice(self.bytes(target, offset, len));
//!                     (op, buf)
//!                 }
//!                 Effect::Write { op, target, offset, buf } => {
//!                     self.bytes(target, offset, buf.len()).copy_from_slice(buf.bytes());
//!                     (op, buf)
//!                 }
//!                 Effect::Flush { op, .. } => (op, Buf::empty()), // Memory has nothing to flush.
//!                 Effect::Notice(_) => continue, // For the log of an administrator.
//!                 other => unreachable!("nothing is zeroed here, and no device fails: {other:?}"),
//!             };
//!             self.happened.push(Event::Done(op, Completion { result: Ok(()), buf }));
//!         }
//!     }
//!
//!     fn bytes(&mut self, target: Target, offset: u64, len: usize) -> &mut [u8] {
//!         let device = match target {
//!             Target::Cache(_) => &mut self.cache,
//!             Target::Origin(_) => &mut self.origin,
//!         };
//!         &mut device[offset as usize..][..len]
//!     }
//! }
//!
//! # const MIB: usize = 1 << 20;
//! # fn settings() -> Settings {
//! #     let bytes = 32 * MIB as u64;
//! #     let devices = vec![(bytes, [1; 16])];
//! #     let pool = PoolSpec { name: "fast".into(), uuid: [2; 16], devices, segment_blocks: None };
//! #     Settings {
//! #         superblock: new_pool(&pool).expect("the device is large enough").remove(0),
//! #         devices: vec![DeviceSettings {
//! #             bytes,
//! #             volatile_cache: false,
//! #             discards: false,
//! #             presence: Presence::InStep,
//! #         }],
//! #         origins: Vec::new(), // Those of the volumes that the superblock has: none yet.
//! #         distrust: Distrust::default(),
//! #         witness: Witness::Seen(0),
//! #         ram_bytes: 0,
//! #         #[cfg(feature = "mutants")]
//! #         mutant: None,
//! #         tuning: Tuning::default(),
//! #     }
//! # }
//! # fn volume_spec() -> VolumeSpec {
//! #     VolumeSpec {
//! #         name: "data".into(),
//! #         origin: "ram:1M".into(),
//! #         bytes: MIB as u64,
//! #         uuid: [3; 16],
//! #         fingerprint: [4; 32],
//! #         mode: Mode::WriteBack,
//! #         volatile_cache: false,
//! #         exact_flushes: false,
//! #         stripe_blocks: 0,
//! #     }
//! # }
//! // A new pool on 32 MiB of cache, which knows no volume yet. Opening it begins with reads.
//! let mut reads = Vec::new();
//! let engine = Engine::open(settings(), 0, &mut reads);
//! let (cache, origin) = (vec![0; 32 * MIB], vec![0; MIB]);
//! let mut executor = Executor { engine, cache, origin, happened: Vec::new(), now: 0 };
//! executor.carry_out(reads);
//!
//! // A write-back volume in front of the origin.
//! let add = Command::AddVolume(Box::new(volume_spec()));
//! let Effect::CommandDone { reply: CommandReply::Added(volume), .. } =
//!     executor.ask(Event::Command(CommandId(1), add))
//! else {
//!     panic!("the volume is not added")
//! };
//! let request = |kind, buf: Buf| {
//!     let request = Request { volume, kind, offset: 0, len: buf.len() as u64, fua: false, buf };
//!     Event::Submit(RequestId(1), request)
//! };
//!
//! // A write is answered as soon as the log has it: its block is dirty, the origin as it was.
//! executor.ask(request(RequestKind::Write, Buf::copy_of(&[7; 4096])));
//! assert_eq!(executor.engine.block_status(volume, 0), BlockStatus::Dirty);
//! assert_eq!(executor.origin[0], 0);
//!
//! let answer = executor.ask(request(RequestKind::Read, Buf::zeroed(4096)));
//! let Effect::Reply { result: Ok(()), buf, .. } = answer else { panic!("{answer:?}") };
//! assert_eq!(buf.bytes(), [7; 4096]);
//! let answer = executor.ask(request(RequestKind::Flush, Buf::empty()));
//! assert!(matches!(answer, Effect::Reply { result: Ok(()), .. }));
//!
//! // A drain is answered when all dirty blocks are home.
//! executor.ask(Event::Command(CommandId(2), Command::Drain(volume)));
//! assert_eq!(executor.origin[..4096], [7; 4096]);
//! let answer = executor.ask(Event::Command(CommandId(3), Command::Shutdown));
//! assert!(matches!(answer, Effect::CommandDone { reply: CommandReply::Changed, .. }));
//! ```
//!
//! Each answer names its request, and each end its I/O: many are under way at once, and end in any
//! order. [`event`] has all the words between engine and executor, `ARCHITECTURE.md` the picture,
//! and `docs/invariants.md` what must always hold, I1 to I15, with the file that keeps each.
#![forbid(unsafe_code)]

mod check;
mod due;
mod ends;
pub mod engine;
pub mod event;
mod ids;
mod index;
mod io;
mod limits;
mod log;
mod map;
mod mutant;
mod op;
mod open_error;
mod parts;
mod policy;
mod pool;
mod quarantine;
mod ram;
mod reclaim;
mod recovery;
mod requests;
mod segment;
pub mod settings;
mod slab;
mod volume;
mod window;
mod writeback;

pub use engine::{BlockStatus, Engine, State, VolumeView};
pub use event::{
    Command, CommandId, CommandReply, Completion, DeviceId, Effect, Event, IoError, NewDevice,
    Notice, OpId, Request, RequestId, RequestKind, Target, Time, VolumeId, VolumeSpec,
};
pub use forebay_format::io::{Buf, BufPool};
pub use forebay_format::mode::{Mode, Plan};
pub use forebay_format::stats;
pub use limits::{LOST_SEGMENTS, ORIGIN_HANGS_NS, STALL_NS_MAX};
pub use mutant::Mutant;
pub use op::command::{FLUSH_FAILED, POOL_IS_FULL};
pub use open_error::{OpenError, WhyClosed};
pub use settings::{DeviceSettings, Distrust, OriginSettings, Presence, Settings, Tuning, Witness};
pub use slab::Keyed;
pub use window::{SMALL_BYTES_MAX, Window};
