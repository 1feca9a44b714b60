//! Slice: the dirty blocks of a volume that are on their way home, and how long such slices take.

use crate::event::*;
use crate::ids::{Key, Slot, Written};
use crate::index::Located;
use crate::limits::*;
use crate::writeback::stripes::Stripes;
use forebay_format::io::Buf;
use std::collections::BTreeMap;

/// One block of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub(crate) key: Key,
    pub(crate) located: Located,
    /// Life of the segment: the slot may be used again, for the same block, while it is sent home.
    pub(super) generation: u32,
    pub(crate) mask: u8,
}

/// Neighbours that are written with one write.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) items: Vec<Item>,
    pub(crate) buf: Buf,
    pub(crate) pending: u32,
    pub(crate) state: RunState,
}

impl Run {
    /// A part of what is under way has ended. If all have: what comes then, or that it has failed.
    pub(super) fn part_ended(&mut self, then: RunState) -> Option<RunState> {
        self.pending -= 1;
        if self.pending > 0 {
            return None;
        }
        if self.state != RunState::Failed {
            self.state = then;
        }
        Some(self.state)
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    #[default]
    New,
    Reading,
    Writing,
    Written,
    Failed,
}

#[derive(Debug, Default)]
pub(crate) struct Slice {
    pub(crate) runs: Vec<Run>,
    pub(crate) next: usize,
    pub(crate) active: usize,
    /// Blocks of the runs that are active.
    pub(super) flight: usize,
    /// Dirty blocks of the runs that have begun.
    pub(super) begun: usize,
    /// Dirty blocks in all.
    pub(super) blocks: usize,
    /// Whether more dirty blocks may join the slice.
    pub(super) grows: bool,
    /// When it began.
    pub(super) since: Time,
    /// When it had the origin for itself: the reads that were under way had ended.
    pub(super) quiet_at: Option<Time>,
    /// When the origin last took something of it.
    pub(super) moved_at: Time,
    /// It is short, because clients use the origin, and their reads wait for its end.
    pub(super) alone: bool,
    /// Nothing becomes clean by it any more: the log cannot say so, or its origin was lost.
    pub(super) abandoned: bool,
    /// FLUSHes of the origin that had failed when it began: one that fails meanwhile may forget
    /// what the slice has written so far.
    pub(super) failures: u64,
    /// Origin writes that must be durable, once all runs have ended.
    pub(super) flush: Option<Written>,
    /// That FLUSH has ended: whether what the slice has written is durable. Its runs leave it.
    pub(super) flushed: Option<bool>,
    /// Blocks that reclaim has moved since the slice began: from where to where.
    pub(super) moved: BTreeMap<Key, [Place; 2]>,
}

/// A slot in one life of its unit.
pub(super) type Place = (Slot, u32);

/// The writeback of a volume: one slice at a time, whatever becomes of those of others.
#[derive(Debug)]
pub(crate) struct Home {
    pub(super) slice: Option<Slice>,
    /// A request waits for dirty blocks to go home.
    urgent: bool,
    /// Reads of the origin that wait for the end of the slice.
    pub(super) held: Vec<Effect>,
    /// No slice that keeps reads waiting begins before.
    pub(super) rests_until: Time,
    /// Blocks that were sent home so far, whatever became of them.
    sent: u64,
    /// What a block of a slice took lately, FLUSH and all.
    block_ns: Time,
    pub(super) stripes: Stripes,
    /// Commands that give up dirty blocks: while these are written to the origin, nobody may read
    /// there what they were before.
    drops: Vec<CommandId>,
}

impl Home {
    /// Of a volume whose origin has stripes of so many blocks, or none.
    pub(super) fn new(stripe_blocks: u32) -> Home {
        Home {
            slice: None,
            urgent: false,
            held: Vec::new(),
            rests_until: 0,
            sent: 0,
            block_ns: WRITEBACK_BLOCK_NS,
            stripes: Stripes::of(stripe_blocks),
            drops: Vec::new(),
        }
    }

    /// A slice of so many blocks took so long.
    pub(super) fn took(&mut self, blocks: usize, ns: Time) {
        let each = ns / blocks.max(1) as u64;
        self.block_ns = (3 * self.block_ns + each) / 4;
        self.sent += blocks as u64;
    }

    /// A request waits for the slice; whether it `needs` dirty blocks to go home.
    pub(super) fn hurry(&mut self, needs: bool) {
        self.urgent = needs;
    }

    /// Whether one does.
    pub(super) fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// The slice is over: who waited for one looks again.
    pub(super) fn over(&mut self) {
        self.slice = None;
        self.urgent = false;
    }

    /// Blocks that were sent home so far, whatever became of them.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Blocks of a slice whose end somebody waits for, and of all writes under way at once: a
    /// client's read waits behind them in the origin.
    pub(crate) fn slice_blocks(&self) -> usize {
        self.blocks_in(WRITEBACK_SLICE_NS).max(self.slice_least())
    }

    /// The least: a disk that seeks needs less for each of many, one whose provider allows few I/Os
    /// does not.
    pub(super) fn slice_least(&self) -> usize {
        self.blocks_in(2 * WRITEBACK_SLICE_NS).clamp(WRITEBACK_SLICE_LEAST, WRITEBACK_SLICE_MIN)
    }

    fn blocks_in(&self, time: Time) -> usize {
        (time / self.block_ns.max(1_000)) as usize
    }

    /// A command that gives dirty blocks up waits for the end of the slice.
    pub(super) fn drop_later(&mut self, command: CommandId) {
        self.drops.push(command);
    }

    /// Those that wait go on.
    pub(super) fn take_drops(&mut self) -> Vec<CommandId> {
        std::mem::take(&mut self.drops)
    }

    /// Whether any of these blocks is being sent home.
    pub(crate) fn covers(&self, first: Key, last: Key) -> bool {
        let overlaps = |run: &Run| {
            let ends = (run.items.first(), run.items.last());
            matches!(ends, (Some(from), Some(to)) if from.key <= last && first <= to.key)
        };
        self.slice.as_ref().is_some_and(|slice| slice.runs.iter().any(overlaps))
    }

    /// The log can no longer say that anything is clean.
    pub(super) fn abandon(&mut self) {
        if let Some(slice) = &mut self.slice {
            slice.abandoned = true;
        }
    }

    /// Whether nothing becomes clean any more by the slice that is under way.
    pub(super) fn is_abandoned(&self) -> bool {
        self.slice.as_ref().is_some_and(|slice| slice.abandoned)
    }

    /// Whether all runs of the slice have ended, and it waits for no FLUSH yet.
    pub(super) fn is_sent(&self) -> bool {
        self.slice.as_ref().is_some_and(|slice| {
            let more = slice.next < slice.runs.len() && !slice.abandoned;
            slice.active == 0 && !more && slice.flush.is_none()
        })
    }

    /// Whether what the slice has written is durable, and becomes clean.
    pub(super) fn is_flushed(&self) -> bool {
        self.slice.as_ref().is_some_and(|slice| slice.flushed == Some(true) && !slice.abandoned)
    }

    /// From where to where a block has been moved since the slice began.
    pub(super) fn moved(&self, key: Key) -> Option<[Place; 2]> {
        self.slice.as_ref()?.moved.get(&key).copied()
    }

    /// See `parts.rs`.
    pub(crate) fn progress(&self) -> u64 {
        self.slice.as_ref().map_or(0, |slice| {
            let flags = [true, slice.flush.is_some(), slice.flushed.is_some()];
            let counts = [slice.next, slice.active, slice.runs.len()];
            let flags = flags.into_iter().fold(0, |all, flag| all << 1 | u64::from(flag));
            counts.into_iter().fold(flags, |all, count| all << 20 ^ count as u64)
        })
    }

    /// No slice that keeps reads waiting begins before.
    pub(crate) fn rests_until(&self) -> Time {
        self.rests_until
    }

    /// A read of the origin has ended, and so many are under way or wait.
    pub(super) fn read_ended(&mut self, left: u32, now: Time) {
        if left as usize == self.held.len()
            && let Some(slice) = &mut self.slice
        {
            slice.quiet_at.get_or_insert(now);
        }
    }

    pub(crate) fn busy(&self) -> bool {
        self.slice.is_some()
    }

    /// When commands wait no longer for an origin that ends nothing.
    pub(crate) fn drops_until(&self) -> Option<Time> {
        self.hangs_from().filter(|_| !self.drops.is_empty())
    }

    /// From when on the origin counts as one that hangs, if no write of the slice ends before.
    pub(crate) fn hangs_from(&self) -> Option<Time> {
        let writes = self.slice.as_ref().filter(|slice| slice.flush.is_none());
        writes.map(|slice| slice.moved_at + ORIGIN_HANGS_NS)
    }

    /// Whether the slice has begun as much as one should whose end somebody waits for.
    pub(super) fn is_long(&self, now: Time) -> bool {
        self.slice.as_ref().is_some_and(|slice| {
            let late = now >= slice.quiet_at.unwrap_or(slice.since) + WRITEBACK_SLICE_NS;
            slice.begun >= if late { self.slice_least() } else { self.slice_blocks() }
        })
    }

    /// When the slice turns out to be slow, if it does not end before.
    pub(crate) fn slow_from(&self) -> Option<Time> {
        let slice = self.slice.as_ref().filter(|slice| slice.next < slice.runs.len())?;
        let few = (self.slice_least()..2 * WRITEBACK_SLICE_MIN).contains(&slice.begun);
        few.then(|| slice.quiet_at.unwrap_or(slice.since) + WRITEBACK_SLICE_NS)
    }

    /// Whether a slice has the origin for itself, and has had it for less than reads may wait.
    pub(super) fn holds_reads(&self, now: Time) -> bool {
        let alone = self.slice.as_ref().filter(|slice| slice.alone);
        alone.is_some_and(|slice| now < slice.since + HOLD_NS_MAX)
    }

    /// When reads wait no longer, whatever became of the slice.
    pub(crate) fn hold_until(&self) -> Option<Time> {
        let slice = self.slice.as_ref().filter(|_| !self.held.is_empty())?;
        Some(slice.since + HOLD_NS_MAX)
    }
}
