//! The machine: one event in, its owners asked, effects out.

use crate::barrier::Barrier;
use crate::change::Change;
use crate::checkpoint::Checkpoint;
use crate::event::{CommandId, Effect, Event, MemberId, OpenError};
use crate::health::Health;
use crate::io::{Io, Purpose, UnderWay};
use crate::journal::Journal;
use crate::map::Map;
use crate::member::Written;
use crate::moves::Moves;
use crate::pins::Pins;
use crate::plan::Planner;
use crate::recovery::Recovery;
use crate::requests::Requests;
use crate::set::Set;
use crate::settings::{Settings, Tuning};
use crate::space::Space;
use crate::start::Settling;
use crate::traffic::Counters;
use crate::{Mutant, event};
use forebay_format::io::{Completion, IoError, OpId, Time};
use forebay_format::tier::{ENTRIES_MAX, EXTENT_SIZE, TierLayout};
use std::collections::BTreeSet;

/// Rounds of one call.
const ROUNDS_MAX: u32 = 64;

/// How far the life of the machine is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Members are flushed, and their superblocks read.
    Settling(Box<Settling>),
    /// The map is being read.
    Reading(Box<Recovery>),
    /// It is known; superblocks come to name a new life. Nothing else is written before.
    Naming,
    /// The map is written in that life.
    Beginning,
    /// I/O is served.
    Open,
    /// What is known is being written.
    Stopping(CommandId),
    /// It is over, in order or because it could not be opened.
    Over(Option<OpenError>),
}

/// What an orderly stop has still to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftToStop {
    /// A last checkpoint.
    Map,
    /// So many superblocks, and one that says that it is closed.
    Superblocks(usize),
    /// Nothing.
    Rest,
}

/// What a start has found out.
#[derive(Debug, Clone)]
pub(crate) struct Opening {
    /// Pages to write though they did not change.
    pub pages: BTreeSet<u32>,
    /// Records that were replayed.
    pub records: u64,
    /// What was not confirmed was dropped.
    pub cut: bool,
    /// Who holds the map from now on.
    pub holders: [u8; 2],
}

/// Numbers as a set with this layout can follow them.
pub(crate) fn bounded(tuning: Tuning, layout: &TierLayout) -> Tuning {
    // What pages cannot say is said again by each checkpoint: an eighth of the journal.
    let most = layout.journal_blocks as usize / 8 * ENTRIES_MAX;
    Tuning { fine_max: tuning.fine_max.min(most), ..tuning }
}

/// A tiered origin.
#[derive(Debug)]
pub struct Tiers {
    pub(crate) io: Io,
    pub(crate) set: Set,
    pub(crate) map: Map,
    pub(crate) space: Space,
    pub(crate) journal: Journal,
    pub(crate) barrier: Barrier,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) requests: Requests,
    pub(crate) moves: Moves,
    pub(crate) planner: Planner,
    pub(crate) pins: Pins,
    pub(crate) traffic: Counters,
    pub(crate) health: Health,
    pub(crate) phase: Phase,
    pub(crate) tuning: Tuning,
    /// The running kernel.
    pub(crate) boot: [u8; 16],
    /// What the start has found out.
    pub(crate) opening: Option<Opening>,
    /// Who waits for which members to be empty.
    pub(crate) evacuation: Option<(CommandId, Vec<MemberId>)>,
    /// Who joins or leaves.
    pub(crate) change: Option<Change>,
    pub(crate) left_to_stop: LeftToStop,
    /// Rounds that the last call could still have made.
    rounds_left: u32,
    mutant: Option<Mutant>,
}

impl Tiers {
    /// Opens a set: reads its map, and begins a new life.
    pub fn open(settings: Settings, now: Time, out: &mut Vec<Effect>) -> Tiers {
        let set = Set::new(&settings);
        let extents = set.superblock().block.bytes.get().div_ceil(EXTENT_SIZE);
        let layout = set.layout();
        let tuning = bounded(settings.tuning, &layout);
        let mut tiers = Tiers {
            io: Io::new(now),
            journal: Journal::new((set.id(), 0), layout, (1, 0), &[], tuning.fine_max),
            map: Map::new(extents as u32),
            space: Space::default(),
            barrier: Barrier::new(0),
            checkpoint: Checkpoint::default(),
            requests: Requests::default(),
            moves: Moves::new(now, tuning),
            planner: Planner::new(now),
            pins: Pins::default(),
            traffic: Counters::default(),
            health: Health::default(),
            phase: Phase::Beginning,
            tuning,
            boot: settings.boot,
            opening: None,
            evacuation: None,
            change: None,
            left_to_stop: LeftToStop::Map,
            rounds_left: ROUNDS_MAX,
            mutant: settings.mutant,
            set,
        };
        tiers.moves.set_paused(settings.is_paused);
        tiers.begin_start(settings.boot);
        tiers.io.take_effects(out);
        tiers
    }

    /// How old the newest superblock of its members is
    /// ([`Superblock::age`](forebay_format::tier::Superblock::age)).
    pub fn age(&self) -> (u64, u64, u64) {
        self.set.superblock().age()
    }

    /// Whether this bug is switched on.
    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        cfg!(feature = "mutants") && self.mutant == Some(mutant)
    }

    /// Takes one event in. [`Tiers::settle`] follows each batch of them.
    pub fn handle(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        self.io.set_now(now);
        match event {
            Event::Submit(id, io) => self.submit(id, io),
            Event::Done(op, completion) => self.done(op, completion),
            Event::Command(id, command) => self.command(id, command),
            Event::Tick => {}
        }
        self.io.take_effects(out);
    }

    /// Does what has become possible.
    pub fn settle(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.io.set_now(now);
        self.write_superblocks();
        self.rounds_left = ROUNDS_MAX;
        let mut before = u64::MAX;
        while self.io.stirred() != before && self.rounds_left > 0 {
            before = self.io.stirred();
            self.rounds_left -= 1;
            self.round();
        }
        self.io.take_effects(out);
    }

    /// Asks each owner once.
    fn round(&mut self) {
        if self.goes_on() {
            self.step_hangs();
            self.make_parts();
            self.serve_waiting();
            self.step_plan();
            self.step_moves();
            self.step_evacuation();
            self.serve_waiting();
            self.step_holders();
            // Before the next checkpoint begins: who joins may want one of its own.
            self.step_change();
            self.step_checkpoint();
            self.step_barrier();
            let Tiers { journal, io, .. } = self;
            journal.send(io);
            self.drop_failed_holders();
            self.step_stop();
            self.step_doubt();
            self.write_superblocks();
        }
    }

    /// Whether the life has begun and is not over.
    fn goes_on(&self) -> bool {
        matches!(self.phase, Phase::Beginning | Phase::Open | Phase::Stopping(_))
    }

    /// When a tick is due at the latest.
    pub fn deadline(&self) -> Option<Time> {
        if !self.goes_on() {
            return None;
        }
        let now = self.io.now();
        let making = (self.requests.is_making() || self.rounds_left == 0).then_some(now);
        let plan = self.plan_due();
        [making, self.barrier.due(), plan, self.journal.due(), self.io.look_due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn done(&mut self, op: OpId, completion: Completion) {
        let what = self.io.ended(op);
        self.account(&what, completion.result);
        match what.purpose {
            Purpose::Part(part) => self.part_done(part, what.place, completion),
            Purpose::Piece(extent, number) => self.piece_done(extent, number, what, completion),
            Purpose::Records(index, seq) => {
                match completion.result {
                    Ok(()) => self.journal.written(index, seq),
                    Err(_) => self.holder_failed(index),
                }
                self.io.give(completion.buf);
            }
            Purpose::Barrier(member) => {
                let is_ok = completion.result.is_ok();
                if is_ok {
                    self.set.kept(member);
                }
                self.barrier.flushed(member, is_ok);
            }
            Purpose::Checkpoint(index) => self.checkpoint_done(index, completion),
            Purpose::Superblock(member) => self.superblock_done(member, completion),
            Purpose::Settle(member, copy) => self.settled(member, copy, completion),
            Purpose::Recovery(step) => self.recovery_done(step, completion),
            Purpose::Trim(place) => self.space.trimmed(place),
            Purpose::Wipe | Purpose::GivenUp => self.io.give(completion.buf),
        }
    }

    /// What each end of an I/O means, whatever it was for.
    fn account(&mut self, what: &UnderWay, result: Result<(), IoError>) {
        let is_ok = result.is_ok();
        match result {
            Ok(()) => self.traffic.ended(what, self.io.now()),
            // A hint that is not taken is no failure.
            Err(_) if matches!(what.purpose, Purpose::Trim(_) | Purpose::Wipe) => {}
            Err(error) => self.health.failed(what, error, self.io.now()),
        }
        let is_ours = !matches!(what.purpose, Purpose::Wipe | Purpose::Settle(..));
        if what.is_flush && !is_ok && is_ours {
            self.flush_failed(what.member);
        }
        if what.is_write && is_ok {
            let written = self.what_was_written(what);
            self.set.written(what.member, written);
        }
        if let Some(place) = what.place {
            self.space.release(place, self.barrier.confirmed());
            if what.is_client {
                self.set.client_ends(what.member);
            }
        }
    }

    fn what_was_written(&mut self, what: &UnderWay) -> Written {
        match (what.purpose, what.place) {
            (_, None) => Written::Map,
            (Purpose::Part(part), Some(place)) => {
                let extent = self.requests.part(part).extent;
                let lives_there = self.map.place(extent).is_none_or(|it| it == place);
                if lives_there { Written::Data } else { Written::Copy }
            }
            _ => Written::Copy,
        }
    }

    /// Seconds, for what is told to people.
    pub(crate) fn now_s(&self) -> u32 {
        u32::try_from(self.io.now() / 1_000_000_000).unwrap_or(u32::MAX)
    }

    /// Whether I/O is served.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        matches!(self.phase, Phase::Over(None))
    }

    /// Extents of the volume.
    pub fn extents(&self) -> u32 {
        self.map.len()
    }

    /// Where an extent lives: the member, and its slot there.
    pub fn place_of(&self, extent: u32) -> Option<(MemberId, u32)> {
        let place = self.map.place(extent)?;
        Some((MemberId(place.member()), place.slot()))
    }

    /// Whether a member is there and is used.
    pub fn is_here(&self, member: MemberId) -> bool {
        self.set.is_here(member)
    }

    /// Moves under way.
    pub fn moving(&self) -> usize {
        self.moves.len()
    }

    /// Bytes that moves have copied.
    pub fn moved_bytes(&self) -> u64 {
        self.moves.moved_bytes()
    }

    /// When an extent came to where it is, in seconds of the executor's clock.
    pub fn since(&self, extent: u32) -> u32 {
        self.map.since(extent)
    }

    /// How hot an extent is, in accesses of now.
    pub fn heat_of(&self, extent: u32) -> f32 {
        self.map.heat(extent)
    }

    /// Free slots of a member.
    pub fn free_slots(&self, member: MemberId) -> u32 {
        self.space.free(member)
    }

    pub(crate) fn notice(&mut self, notice: event::Notice) {
        self.io.notice(notice);
    }
}
