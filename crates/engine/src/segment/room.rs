//! Room: which units of the log are free, which will be, and who may take them for what.
//!
//! The one owner of free space. Whoever wants to write names a [`Purpose`]; the table says what
//! each purpose must leave. What makes room (moves of dirty blocks, and entries that end things)
//! has the last of it, clients and fills stop before. `docs/room.md` has the picture, and why
//! something always moves.

use crate::ids::{Dseq, UnitId};
use crate::limits::{ENTRIES_PER_UNIT_SHARE, LEFT_BY_MOVES_MIN, MOVES_SHARE};
use crate::log::point::Point;
use crate::segment::free::{Discards, FreeUnits};
use crate::segment::{Older, Segments, Use};
use forebay_format::record::PAYLOAD_BLOCKS_MAX;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What room is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Entries that end something, say that something is durable, or free a unit.
    Note,
    /// Dirty blocks that reclaim moves.
    Move,
    /// Dirty blocks of clients, and entries that they cause: intents, ends of what they write over.
    Client,
    /// Clean blocks that are kept or admitted.
    Clean,
}

/// Blocks promised to somebody who will need them later; given back when dropped.
#[derive(Debug)]
#[must_use]
pub struct Reservation {
    left: u32,
    promised: Arc<AtomicU32>,
}

impl Reservation {
    /// A block was written.
    pub fn use_one(&mut self) {
        // What became dirty since it was made was not promised.
        if self.left > 0 {
            self.left -= 1;
            self.promised.fetch_sub(1, Relaxed);
        }
    }
}

impl Reservation {
    /// A planted bug gives a block back when it is written, and again when all of it is dropped.
    pub(crate) fn give_one(&mut self) {
        self.promised.fetch_sub(1, Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.promised.fetch_sub(self.left, Relaxed);
    }
}

/// Free units.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Units that may hold anything.
    pub(super) free: FreeUnits,
    /// Units without a partner in a pool of several devices: for clean data only.
    pub(super) free_clean: FreeUnits,
    /// Freed ones are given to their devices.
    pub(super) discards: Discards,
    /// Units in `Emptied`.
    emptied: Vec<UnitId>,
    /// Units left to entries, and to moves.
    for_notes: usize,
    for_moves: usize,
    /// Blocks promised to moves.
    promised: Arc<AtomicU32>,
}

impl Room {
    /// Nothing free yet. Only units that may hold dirty data count for those who write it.
    pub(super) fn new(dirty_units: usize) -> Room {
        Room {
            for_notes: 1 + dirty_units / ENTRIES_PER_UNIT_SHARE,
            for_moves: 1 + dirty_units / MOVES_SHARE,
            ..Room::default()
        }
    }
}

impl Segments {
    /// I6: units that a purpose leaves to others.
    pub(super) fn leaves(&self, purpose: Purpose) -> usize {
        match purpose {
            Purpose::Note => 0,
            Purpose::Move => self.room.for_notes,
            Purpose::Client => self.room.for_notes + self.room.for_moves.max(self.promised_units()),
            Purpose::Clean => self.leaves(Purpose::Client) + 1,
        }
    }

    fn promised_units(&self) -> usize {
        self.room.promised.load(Relaxed).div_ceil(self.blocks.max(1)) as usize
    }

    /// Units that clean data leaves: with fewer, room is short.
    pub fn leaves_to_clean(&self) -> usize {
        self.leaves(Purpose::Clean)
    }

    /// Units that clients leave.
    pub fn leaves_to_clients(&self) -> usize {
        self.leaves(Purpose::Client)
    }

    /// Blocks that a writer may count on.
    pub fn room_for_clients(&self) -> u64 {
        self.units_for(Purpose::Client) as u64 * u64::from(self.blocks)
    }

    /// Whether room is so short that what waits for a checkpoint should not have to wait long.
    pub fn room_is_short(&self) -> bool {
        self.room.free.len() <= self.leaves(Purpose::Clean) + 1
    }

    /// Units that a purpose could open now.
    pub fn units_for(&self, purpose: Purpose) -> usize {
        let all = self.room.free.len().saturating_sub(self.leaves(purpose));
        match purpose {
            Purpose::Clean => all + self.room.free_clean.len(),
            _ => all,
        }
    }

    /// Whether a purpose may still write to what is left of the unit that is open: that belongs to
    /// the reserve too.
    pub fn may_write(&self, purpose: Purpose) -> bool {
        match purpose {
            Purpose::Note => true,
            Purpose::Clean => {
                self.units_for(purpose) > 0 || self.room.free.len() >= self.leaves(purpose)
            }
            _ => self.room.free.len() >= self.leaves(purpose),
        }
    }

    /// As `may_write` for moves, with so many blocks left in the unit that is open. Of a unit that
    /// entries opened out of their reserve moves leave a quarter, or some blocks of a small one:
    /// what a victim gives is more than what it takes, and else a unit of entries could be the end.
    pub fn may_move(&self, left: u32) -> bool {
        self.may_write(Purpose::Move) || left > self.left_by_moves()
    }

    fn left_by_moves(&self) -> u32 {
        (self.blocks / 4).max(LEFT_BY_MOVES_MIN)
    }

    /// Promises room for so many dirty blocks to be moved.
    pub fn reserve(&self, blocks: u32) -> Reservation {
        self.room.promised.fetch_add(blocks, Relaxed);
        Reservation { left: blocks, promised: self.room.promised.clone() }
    }

    /// A planted bug counts the unit that became free last once more.
    pub(crate) fn count_twice(&mut self) {
        let again = self.room.free.iter().last();
        again.into_iter().for_each(|unit| self.room.free.push(unit));
    }

    /// A planted bug forgets to give a promise back.
    pub fn keep_promise(&self, kept: &mut Reservation) {
        std::mem::take(&mut kept.left);
    }

    /// Blocks that moves could append, beside those that are promised; `left` are in the open unit.
    pub fn room_for_moves(&self, left: u32) -> u32 {
        let records = (self.blocks - 1).div_ceil(PAYLOAD_BLOCKS_MAX as u32).max(1);
        let units = self.units_for(Purpose::Move) as u32 * (self.blocks - records);
        let all = match self.may_write(Purpose::Move) {
            true => left + units,
            false => left.saturating_sub(self.left_by_moves()),
        };
        all.saturating_sub(self.room.promised.load(Relaxed))
    }

    /// Units that are free for dirty data.
    pub fn free(&self) -> usize {
        self.room.free.len()
    }

    /// All units that are free.
    pub fn free_all(&self) -> usize {
        self.room.free.len() + self.room.free_clean.len()
    }

    /// Segments of the units that are free.
    pub fn segments_free(&self) -> u64 {
        let free = self.room.free.iter().chain(self.room.free_clean.iter());
        let all = free.chain(self.discarding());
        all.map(|unit| self.segments_of(unit).count() as u64).sum()
    }

    /// Units for dirty data that will be free when what is under way has ended.
    pub fn coming(&self) -> usize {
        let units = self.room.emptied.iter().copied().chain(self.discarding());
        units.filter(|&unit| self.may_hold_dirty(unit)).count()
    }

    /// Whether the units that hold clean data only are all in use, if there are any.
    pub fn lacks_clean(&self) -> bool {
        self.dirty_units() < self.units().len()
            && self.room.free_clean.len() == 0
            && self.room.emptied.iter().all(|&unit| self.may_hold_dirty(unit))
    }

    /// Units that are empty, and not free yet.
    pub fn emptied(&self) -> &[UnitId] {
        &self.room.emptied
    }

    /// Opens a free unit for a write point, if its purpose may take one. One whose segments all
    /// work before one that has lost its mirror.
    pub fn open_unit(&mut self, point: Point, purpose: Purpose) -> Option<UnitId> {
        let dirty_class = point == Point::Dirty;
        let of_clean = !dirty_class && self.room.free_clean.len() > 0;
        if !of_clean && self.room.free.len() <= self.leaves(purpose) {
            return None;
        }
        let list = if of_clean { &self.room.free_clean } else { &self.room.free };
        let at = match self.degraded() {
            true => list.iter().position(|unit| self.whole(unit)).unwrap_or(0),
            false => 0,
        };
        let list = if of_clean { &mut self.room.free_clean } else { &mut self.room.free };
        let unit = list.remove(at)?;
        self.begin(unit, dirty_class);
        Some(unit)
    }

    /// Whether there is a free unit whose segments all work.
    pub fn has_whole(&self, purpose: Purpose) -> bool {
        self.units_for(purpose) > 0 && self.room.free.iter().any(|unit| self.whole(unit))
    }

    /// Marks a unit as empty: it becomes free when nobody needs it, and `after_dseq` is durable or
    /// two checkpoints behind this generation are.
    pub fn empty(&mut self, unit: UnitId, after_dseq: Dseq, checkpoint: u64) {
        assert_eq!(self.unit(unit).live, 0, "I2");
        self.becomes(unit, Use::Emptied { after_dseq, checkpoint });
        self.room.emptied.push(unit);
    }

    /// Takes an empty unit into use again: the log goes on in it.
    pub fn reopen(&mut self, unit: UnitId) {
        self.room.emptied.retain(|&emptied| emptied != unit);
        self.becomes(unit, Use::Open);
    }

    /// A record that emptied units wait for and that is not durable, if there is one.
    pub fn undurable_emptied(&self, durable_dseq: Dseq) -> Option<Dseq> {
        let after = |unit: &UnitId| match self.unit(*unit).usage {
            Use::Emptied { after_dseq, .. } => after_dseq,
            _ => Dseq::NONE,
        };
        self.room.emptied.iter().map(after).filter(|&dseq| dseq > durable_dseq).min()
    }

    /// Whether only checkpoints can free some emptied unit: they must forget its records, or the
    /// entry that it is empty finds no room.
    pub fn needs_checkpoints(&self, durable_dseq: Dseq, older: Older, entries_wait: bool) -> bool {
        self.room.emptied.iter().map(|&unit| self.unit(unit)).any(|it| {
            let unsaid = entries_wait && !it.is_said_empty(durable_dseq, older);
            it.is_needed(older) || unsaid
        })
    }

    /// Frees the emptied units that nobody needs any more. I3: what says that a unit is empty is
    /// durable, no roll-forward needs its records, no read is under way. Returns how many became
    /// free for dirty data.
    pub fn release(&mut self, durable_dseq: Dseq, older: Older) -> usize {
        let mut freed = 0;
        let mut emptied = std::mem::take(&mut self.room.emptied);
        emptied.retain(|&unit| {
            let it = self.unit(unit);
            let busy = it.pins > 0 || it.inflight > 0;
            if !it.is_said_empty(durable_dseq, older) || it.is_needed(older) || busy {
                return true;
            }
            self.becomes(unit, Use::Free);
            freed += usize::from(self.usable(unit) && self.may_hold_dirty(unit));
            self.put_free(unit, false);
            false
        });
        self.room.emptied = emptied;
        freed
    }

    /// In words.
    pub fn describe_room(&self) -> String {
        format!(
            "free {} clean {} coming {} leaves {:?} promised {}",
            self.room.free.len(),
            self.room.free_clean.len(),
            self.room.emptied.len(),
            [Purpose::Move, Purpose::Client, Purpose::Clean].map(|purpose| self.leaves(purpose)),
            self.room.promised.load(Relaxed)
        )
    }

    /// A device failed: what is on it only cannot be opened any more.
    pub(super) fn lose_room(&mut self) {
        let mut room = std::mem::take(&mut self.room);
        for list in [&mut room.free, &mut room.free_clean] {
            list.retain(|unit| self.usable(unit));
        }
        self.room = room;
    }
}
