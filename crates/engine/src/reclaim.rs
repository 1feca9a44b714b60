//! Reclaim: empties units for reuse. What is kept is moved first; only then does an entry say that
//! the unit is empty, and only when that is durable is the unit used again (I3).
//!
//! What a victim holds is read from its own records: their headers name the blocks, and where many
//! are to be moved the same read brings them. Only where a header cannot be read the index is
//! searched, in slices.

use self::pressure::Pressure;
use crate::event::Time;
use crate::ids::{Dseq, Key, SegmentId, UnitId};
use crate::index::Located;
use crate::policy::eviction::Choice;
use crate::segment::Reservation;
use std::collections::VecDeque;

mod discard;
mod empty;
mod halves;
mod pressure;
mod victim;

#[derive(Debug)]
struct Victim {
    unit: UnitId,
    choice: Choice,
    /// Segments whose records were not read yet, the one being read first, and where that goes on.
    segments: VecDeque<SegmentId>,
    at: u32,
    /// A read is under way.
    reading: bool,
    /// Room for the dirty blocks that it holds.
    room: Reservation,
    /// Blocks of it that are read one by one to be moved.
    moves: usize,
    /// Blocks that go with it: they may be read until the log says that it is empty, so that no
    /// word is missing on what becomes of them before.
    drops: Vec<(Key, Located)>,
    /// The record that says that it is empty: they leave the index from then on, in slices.
    said: Option<Dseq>,
    /// Some of its dirty blocks cannot be read.
    lost: bool,
}

impl Victim {
    fn is_read(&self) -> bool {
        !self.reading && self.segments.is_empty() && self.moves == 0
    }
}

/// The reclaim of one shard.
#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    victims: Vec<Victim>,
    /// Next bucket of the index to look at, for victims with blocks that no header names.
    scan: Option<usize>,
    /// Blocks to move that are read one by one.
    moves: VecDeque<(Key, Located)>,
    moving: usize,
    /// Reads of victims that have ended, and blocks moved.
    steps: u64,
    /// Nothing can be emptied because of dirty blocks.
    starves: bool,
    /// Blocks read lately that clients had read into the cache, and that they had written.
    hits: [u64; 2],
    /// Units that it emptied without moving all that was in them, and others.
    emptied: [u64; 2],
    /// How fast room comes back.
    pressure: Pressure,
    /// The unit that is emptied because it lost a copy, and since when.
    half: Option<(UnitId, Time)>,
    /// The next such one is not before.
    half_next: Time,
}

impl Reclaim {
    /// A unit that lost a copy is emptied from now on.
    fn half_begins(&mut self, unit: UnitId, now: Time) {
        self.half = Some((unit, now));
    }

    /// One that is: since when.
    fn half_under_way(&self) -> Option<(UnitId, Time)> {
        self.half
    }

    /// It is over, and a rest begins.
    fn half_ends(&mut self, next: Time) {
        (self.half, self.half_next) = (None, next);
    }

    /// When the next may be emptied.
    fn next_half(&self) -> Time {
        self.half_next
    }

    /// Whether no unit is being emptied.
    fn is_idle(&self) -> bool {
        self.victims.is_empty()
    }

    /// Blocks were read from a unit.
    pub(crate) fn read(&mut self, written: bool, blocks: u64) {
        self.hits[usize::from(written)] += blocks;
    }

    /// Units that it emptied without moving all that was in them, and others.
    pub(crate) fn emptied(&self) -> [u64; 2] {
        self.emptied
    }

    /// See [`Pressure::pause_ns`].
    pub(crate) fn pause_ns(&self, blocks: u64, left: u64, comfort: u64) -> Time {
        self.pressure.pause_ns(blocks, left, comfort)
    }

    /// Whether nothing can be emptied because of dirty blocks.
    pub(crate) fn starves(&self) -> bool {
        self.starves
    }

    /// Blocks are on their way to a record.
    pub(crate) fn is_moving(&self) -> bool {
        self.moving > 0 || self.victims.iter().any(|victim| victim.reading)
    }

    /// Whether the log says of a unit that it is empty, and some of its blocks are in the index.
    pub(crate) fn is_dropping(&self) -> bool {
        self.victims.iter().any(|victim| victim.said.is_some())
    }

    pub(crate) fn describe(&self) -> String {
        let victims: Vec<_> =
            self.victims.iter().map(|it| (it.unit, it.at, it.reading, it.moves)).collect();
        format!(
            "reclaim {victims:?} scan {:?} moves {} starves {}",
            self.scan, self.moving, self.starves
        )
    }

    fn progress(&self) -> [u64; 2] {
        let scan = self.scan.map_or(0, |at| at as u64 + 1);
        let reading = self.victims.iter().filter(|victim| victim.reading).count();
        [
            self.victims.len() as u64 + ((reading as u64) << 8) + (scan << 16),
            (self.moves.len() + (self.moving << 32)) as u64
                + self.steps.rotate_right(16)
                + u64::from(self.starves) * 7,
        ]
    }
}
