//! The log's write points: records being gathered and records under way.

use crate::buf::Buf;
use crate::event::Time;
use crate::index::{Key, Slot};
use crate::limits::{GATHER_NS_MAX, GATHER_SHARE, GATHER_WRITES_MIN, PACE_NS, RECORD_ENTRIES};
use crate::requests::ReqKey;
use crate::segment::SegmentId;
use forebay_format::record::{Entry, RecordClass};
use std::collections::VecDeque;

/// Where a block is appended: lifetimes differ, so segments of one kind are cheap to reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Dirty data, and everything that must be remembered in order.
    Dirty = 0,
    /// Read fills and written-through data.
    Fill = 1,
    /// Clean blocks that reclaim keeps.
    Reinsert = 2,
}

/// All write points.
pub const POINTS: [Point; 3] = [Point::Dirty, Point::Fill, Point::Reinsert];

impl Point {
    /// The class of its records.
    pub fn class(self) -> RecordClass {
        match self {
            Point::Dirty => RecordClass::Dirty,
            Point::Fill | Point::Reinsert => RecordClass::Clean,
        }
    }
}

/// A record being gathered.
#[derive(Debug)]
pub struct Gather {
    /// Where it will be written.
    pub segment: SegmentId,
    /// Block in the segment of its header.
    pub offset: u32,
    /// First payload slot.
    pub payload_slot: Slot,
    /// Header and payload; its length is the capacity until it is sent.
    pub buf: Buf,
    /// What it says.
    pub entries: Vec<Entry>,
    /// Payload blocks so far.
    pub payload: u32,
    /// Most payload blocks: what is left of the segment.
    pub payload_max: u32,
    /// Requests to acknowledge when it is on the device.
    pub waiters: Vec<ReqKey>,
    /// Reads of its blocks.
    pub readers: Vec<u64>,
    /// Some of its blocks replaced dirty ones.
    pub over_dirty: bool,
    /// When its first entry came.
    pub since: Time,
}

impl Gather {
    /// Whether `slot` is one of its payload.
    pub fn holds(&self, slot: Slot) -> bool {
        (self.payload_slot..self.payload_slot + self.payload).contains(&slot)
    }
}

/// A record under way.
#[derive(Debug)]
pub struct Sent {
    /// Position in the order of all records.
    pub seq: u64,
    /// Position among dirty-class records, or the last one before it.
    pub dseq: u64,
    /// Where it goes.
    pub segment: SegmentId,
    /// First payload slot.
    pub payload_slot: Slot,
    /// Payload blocks.
    pub payload: u32,
    /// When it was sent.
    pub since: Time,
    /// Device writes that have not ended.
    pub writes: u8,
    /// Copies that were written.
    pub copies: u8,
    /// Requests to acknowledge.
    pub waiters: Vec<ReqKey>,
    /// Some of its blocks replaced dirty ones.
    pub over_dirty: bool,
    /// Reads of its blocks, which the write's buffer serves when it comes back.
    pub readers: Vec<u64>,
    /// All device writes have ended.
    pub done: bool,
}

impl Sent {
    /// Whether `slot` is one of its payload.
    pub fn holds(&self, slot: Slot) -> bool {
        (self.payload_slot..self.payload_slot + self.payload).contains(&slot)
    }
}

/// How writers and the cache device behaved lately; from it follows how long a small record waits.
#[derive(Debug, Default)]
pub struct Pace {
    /// Mean time of a record on its way, in nanoseconds.
    record_ns: u64,
    /// Mean number of writes into the cache under way, over time, times `PACE_NS`.
    active: u64,
    /// How many have been under way since then.
    active_since: (u32, Time),
    stirred: bool,
}

impl Pace {
    /// A record took so long.
    pub fn record_took(&mut self, took: Time) {
        self.record_ns = self.record_ns - self.record_ns / 64 + took / 64;
    }

    /// Something has happened: the next look counts.
    pub fn stir(&mut self) {
        self.stirred = true;
    }

    /// So many writes are under way from now on. What follows from that changes only when something
    /// happens: else a record would become due at a moment that nobody knows before.
    pub fn look(&mut self, now: Time, active: u32) {
        let (before, since) = self.active_since;
        if !std::mem::take(&mut self.stirred) && active == before {
            return;
        }
        let passed = now.saturating_sub(since).min(PACE_NS);
        let fades = u128::from(self.active) * u128::from(passed) / u128::from(PACE_NS);
        self.active = self.active - fades as u64 + u64::from(before) * passed;
        self.active_since = (active, now);
    }

    /// Blocks with which a record need not wait for more, and how long a smaller one may wait: half
    /// the time that the device takes, where many writes are outstanding. A device that counts I/Os
    /// is then used for more than one write each, and one writer alone never waits.
    pub fn gathers(&self) -> (u32, Time) {
        let active = (self.active / PACE_NS) as u32;
        match active >= GATHER_WRITES_MIN {
            true => (active / GATHER_SHARE, (self.record_ns / 2).min(GATHER_NS_MAX)),
            false => (0, 0),
        }
    }
}

/// The write points of one shard.
#[derive(Debug, Default)]
pub struct Log {
    /// How fast writes come and records go.
    pub pace: Pace,
    /// Open segments, by point.
    pub open: [Option<SegmentId>; 3],
    /// Records being gathered, by point.
    pub gather: [Option<Gather>; 3],
    /// Dirty-class records under way, in order.
    pub sent_dirty: VecDeque<Sent>,
    /// Clean records under way.
    pub sent_clean: Vec<Sent>,
    /// Last sequence number given.
    pub seq: u64,
    /// Last dirty-class sequence number given.
    pub dseq: u64,
    /// Every dirty-class record up to here is on its devices.
    pub completed_dseq: u64,
    /// Every dirty-class record up to here survives power loss.
    pub durable_dseq: u64,
    /// Every record, of either class, up to here survives power loss.
    pub durable_seq: u64,
    /// Dirty-class records that are on their devices but not durable: number, segment, end in the
    /// segment.
    pub undurable: VecDeque<(u64, SegmentId, u32)>,
    /// Blocks that became clean by a record that is not durable yet.
    pub cleaned: VecDeque<(u64, Key)>,
    /// A dirty-class record could not be written: the log ends before it.
    pub broken: bool,
    /// Entries that found no room.
    pub backlog: VecDeque<Entry>,
    /// Buffers of entries and waiters to use again.
    pub spare_entries: Vec<Vec<Entry>>,
    /// Lists of waiting requests to use again.
    pub spare_waiters: Vec<Vec<ReqKey>>,
}

impl Log {
    /// The dirty-class number that the entries gathered now will have, or the last one given.
    pub fn dseq_gathered(&self) -> u64 {
        let gathered =
            self.gather[Point::Dirty as usize].as_ref().is_some_and(|g| !g.entries.is_empty());
        self.dseq + u64::from(gathered) + self.backlog.len().div_ceil(RECORD_ENTRIES) as u64
    }

    /// Every record up to here is on its devices, or lost with them.
    pub fn completed_seq(&self) -> u64 {
        let under_way = self.sent_dirty.iter().chain(&self.sent_clean).filter(|sent| !sent.done);
        under_way.map(|sent| sent.seq - 1).min().unwrap_or(self.seq)
    }

    /// The record under way with this number.
    pub fn sent(&mut self, seq: u64) -> Option<&mut Sent> {
        self.sent_dirty.iter_mut().chain(self.sent_clean.iter_mut()).find(|sent| sent.seq == seq)
    }

    /// Whether a dirty-class record is the oldest under way.
    pub(crate) fn is_oldest(&self, seq: u64) -> bool {
        self.sent_dirty.front().is_some_and(|sent| sent.seq == seq)
    }

    /// Whether a dirty-class record up to `seq` has not ended.
    pub(crate) fn is_under_way(&self, seq: u64) -> bool {
        self.sent_dirty.front().is_some_and(|sent| sent.seq <= seq)
    }

    /// The record under way that holds `slot` and is not on its device yet.
    pub fn sent_with(&mut self, slot: Slot) -> Option<&mut Sent> {
        let under_way = self.sent_dirty.iter_mut().chain(self.sent_clean.iter_mut());
        under_way.filter(|sent| !sent.done).find(|sent| sent.holds(slot))
    }

    /// Whether `slot`, in a segment with `inflight` records under way, is not on its device yet.
    pub fn sent_with_in(&mut self, inflight: u32, slot: Slot) -> bool {
        inflight > 0 && self.sent_with(slot).is_some()
    }

    /// Whether `slot` is of a dirty-class record that has not ended: nobody was told of it.
    pub fn is_untold(&self, slot: Slot) -> bool {
        self.sent_dirty.iter().any(|sent| sent.holds(slot))
    }

    /// The readers of the record that holds `slot`, if a request that wrote into it was not
    /// answered yet.
    pub fn readers_of_untold(&mut self, slot: Slot) -> Option<&mut Vec<u64>> {
        if let Some(gather) = &mut self.gather[Point::Dirty as usize]
            && gather.holds(slot)
        {
            return (!gather.waiters.is_empty()).then_some(&mut gather.readers);
        }
        let sent = self.sent_dirty.iter_mut().find(|sent| sent.holds(slot))?;
        (!sent.waiters.is_empty()).then_some(&mut sent.readers)
    }

    /// Whether a record that has not ended replaced dirty blocks: these are lost with it.
    pub fn replaces_dirty(&self) -> bool {
        let gather = &self.gather[Point::Dirty as usize];
        self.sent_dirty.iter().any(|sent| sent.over_dirty)
            || gather.as_ref().is_some_and(|gather| gather.over_dirty)
    }

    /// Frees memory that is only kept to be used again.
    pub fn trim(&mut self) {
        self.spare_entries.clear();
        self.spare_waiters.clear();
        self.cleaned.shrink_to_fit();
        self.undurable.shrink_to_fit();
        self.backlog.shrink_to_fit();
    }

    /// Records under way and gathered.
    pub fn busy(&self) -> bool {
        !self.sent_dirty.is_empty()
            || !self.sent_clean.is_empty()
            || self.gather.iter().flatten().any(|gather| !gather.entries.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes outstanding for a second, looked at now and then, while each record takes `took`.
    fn pace(active: u32, took: Time) -> Pace {
        let mut pace = Pace::default();
        for now in (0..1_000).map(|n| n * 1_000_000) {
            pace.stir();
            pace.look(now, active);
            pace.record_took(took);
        }
        pace
    }

    #[test]
    fn a_few_writers_never_wait_for_more() {
        assert_eq!(pace(1, 80_000).gathers(), (0, 0));
        assert_eq!(pace(GATHER_WRITES_MIN - 1, 80_000).gathers(), (0, 0));
    }

    #[test]
    fn many_writers_wait_for_a_share_of_each_other_half_as_long_as_the_device_takes() {
        let (enough, wait_ns) = pace(64, 80_000).gathers();
        assert!((14..=16).contains(&enough), "{enough}");
        assert!((35_000..=40_000).contains(&wait_ns), "{wait_ns}");
        assert_eq!(pace(64, 1_000_000_000).gathers().1, GATHER_NS_MAX, "but not for ever");
    }

    #[test]
    fn writers_that_leave_are_forgotten() {
        let mut pace = pace(64, 80_000);
        pace.look(1_000_000_000, 1);
        let before = pace.gathers();
        pace.look(3_000_000_000, 1);
        assert_eq!(pace.gathers(), before, "nothing has happened");
        pace.stir();
        pace.look(3_000_000_000, 1);
        assert_eq!(pace.gathers(), (0, 0));
    }
}
