//! Rule E: an error needs a reason.

use super::client::{Kind, Waiting};
use super::io::{Area, Delivered};
use super::space::{EXTENT_SECTORS, extents_of, whole_blocks};
use super::{Check, Tiered};
use crate::disk::IoKind;
use crate::model::Violation;
use forebay_format::SECTORS_PER_BLOCK;
use forebay_format::io::IoError;
use forebay_tier::Command;
use std::ops::Range;

const PER_BLOCK: u64 = SECTORS_PER_BLOCK as u64;
/// A member that had no room may get nothing new for so long, nanoseconds.
const NO_ROOM_NS: u64 = 10_000_000_000;

impl Tiered {
    /// Whether a part of these sectors lives on a member that is not there.
    pub(super) fn is_away(&self, range: &Range<u64>) -> bool {
        extents_of(range).any(|extent| {
            let place = self.place_of(extent);
            place.is_some_and(|(member, _)| !self.life.is_here[member])
        })
    }

    /// Whether a part of these sectors lives on a member that was given up, or is just now: what is
    /// left of such an extent can only be told of so many.
    fn was_given_up(&self, range: &Range<u64>) -> bool {
        extents_of(range).any(|extent| {
            let place = self.place_of(extent);
            place.is_some_and(|(member, _)| {
                let is_it =
                    |it: &Command| matches!(it, Command::GiveUp(it) if usize::from(it.0) == member);
                let is_asked = self.commands.values().any(|asked| is_it(&asked.command));
                is_asked || !self.plan.members[member].is_in
            })
        })
    }

    pub(super) fn check_error(&mut self, asked: &Waiting, error: IoError) -> Check {
        self.coverage.mark("requests answered with an error");
        let justified = match error {
            IoError::NoSpace => self.is_full(asked),
            IoError::Io | IoError::Gone => self.io_error_is_justified(asked),
            IoError::Invalid | IoError::Unsupported | IoError::Shutdown => false,
        };
        if justified {
            return Ok(());
        }
        let text = format!("{asked:?} is answered with \"{error}\" without a reason");
        Err(Violation::new("E", text))
    }

    /// A write finds no room only where the slots that take extents are fewer than those that the
    /// volume may want, and all of them are in use, but for those of moves and for those that were
    /// given back since the last flush.
    fn is_full(&mut self, asked: &Waiting) -> bool {
        self.coverage.mark("writes without room");
        if !matches!(asked.kind, Kind::Write | Kind::Zero { .. }) {
            return false;
        }
        let extents = self.space.extents_max();
        let between = self.plan.parts.len() > 1;
        // A part of it may have looked for room while somebody was leaving who stays now.
        let was_less = self.life.stayed_at.is_some_and(|at| at >= asked.since);
        if self.slots_open(|_| true) < extents || between || was_less {
            return true;
        }
        // Whatever was written there: a device that has no room for its superblock has none.
        let refused: Vec<&Delivered> = self.life.errors.iter().filter(|it| it.no_room).collect();
        if refused.is_empty() {
            return false;
        }
        self.coverage.mark("writes that devices had no room for");
        // What cannot be read where there is no room, or written elsewhere, cannot leave.
        let is_other = |it: &Delivered| it.area == Area::Slots && !it.no_room;
        if self.life.errors.iter().any(is_other) {
            return true;
        }
        let refused = |it: usize| {
            let mut of = refused.iter().filter(|error| error.member == it);
            of.any(|error| error.at + NO_ROOM_NS > asked.since)
        };
        self.slots_open(|member| !refused(member)) < extents
    }

    /// Slots of these members, as far as they are there and take extents.
    pub(super) fn slots_open(&self, of: impl Fn(usize) -> bool) -> u64 {
        let members = self.plan.members.iter().enumerate();
        let open = members.filter(|(number, member)| {
            let is_open = member.is_in && self.life.is_here[*number];
            is_open && of(*number) && !self.may_leave(*number)
        });
        open.map(|(_, member)| member.slots).sum()
    }

    fn io_error_is_justified(&mut self, asked: &Waiting) -> bool {
        if asked.kind == Kind::Flush {
            let failed = |it: &Delivered| it.kind != IoKind::Read;
            let is_old = self.life.untold || asked.invoke < self.life.told;
            return is_old || self.life.errors.iter().any(failed) || self.is_map_lost();
        }
        if asked.away || self.is_away(&asked.range) {
            self.coverage.mark("requests to a missing member");
            return true;
        }
        if asked.writes() && self.is_map_lost() {
            return true;
        }
        if asked.writes() && self.was_given_up(&asked.range) {
            self.coverage.mark("writes to what was given up failed");
            return true;
        }
        let whole = whole_blocks(&asked.range);
        let end = whole.end.min(self.space.extents_max() * EXTENT_SECTORS);
        if self.checker.any_lost(0, whole.start..end, asked.invoke) {
            self.coverage.mark("requests to lost blocks failed");
            return true;
        }
        let blocks = whole.start / PER_BLOCK..whole.end / PER_BLOCK;
        let here = |error: &Delivered| match &error.blocks {
            None => true,
            Some(ranges) => ranges.iter().any(|it| it.start < blocks.end && blocks.start < it.end),
        };
        let met = |error: &Delivered| {
            error.stamp > asked.invoke && error.area == Area::Slots && here(error)
        };
        // It is where it counts, and waited for a second place: the first may have lost it.
        let forgot = |error: &Delivered| error.stamp > asked.invoke && error.kind == IoKind::Flush;
        self.life.errors.iter().any(|error| met(error) || (asked.writes() && forgot(error)))
    }
}
