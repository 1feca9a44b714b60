//! The log's write points: records being gathered, records under way, and the FLUSHes that make
//! them durable. What is durable is complete, and what is complete was given a number before (I5);
//! a number is given once. Without a cache device the log is dead, and stays so.

use crate::due::Due;
use crate::event::{OpId, Time};
use crate::ids::{Dseq, Key, SegmentId, Seq, Slot};
use crate::limits::{
    FILL_AGE_MAX_NS, FILLS_UNDER_WAY_MAX, GATHER_NS_MAX, GATHER_SHARE, GATHER_WRITES_MIN, PACE_NS,
    RECORD_ENTRIES,
};
use crate::requests::ReqKey;
use crate::window::{SMALL_BYTES_MAX, Window};
use forebay_format::BLOCK_SIZE;
use forebay_format::io::Buf;
use forebay_format::record::{Entry, EntryKind};
use forebay_format::stats::PoolStats;
use std::collections::VecDeque;
use std::ops::Range;

mod failure;
mod flush;
mod place;
pub mod point;
mod readers;
mod record;

use flush::CacheFlush;
pub(crate) use flush::FlushFor;
pub use point::{POINTS, Point};

/// A record being gathered.
#[derive(Debug)]
struct Gather {
    /// Where it will be written.
    segment: SegmentId,
    /// Block in the segment of its header.
    offset: u32,
    /// First payload slot.
    payload_slot: Slot,
    /// Header and payload; its length is the capacity until it is sent.
    buf: Buf,
    /// What it says.
    entries: Vec<Entry>,
    /// Payload blocks so far.
    payload: u32,
    /// Most payload blocks: what is left of the segment.
    payload_max: u32,
    /// Requests to acknowledge when it is on the device.
    waiters: Vec<ReqKey>,
    /// Reads of its blocks.
    readers: Vec<OpId>,
    /// Some of its blocks replaced dirty ones.
    over_dirty: bool,
    /// When its first entry came; of one under way, when it was sent.
    since: Time,
}

impl Gather {
    /// Bytes of what is written for it.
    fn bytes(&self) -> u64 {
        (1 + u64::from(self.payload)) * BLOCK_SIZE as u64
    }

    /// Whether `slot` is one of its payload.
    pub fn holds(&self, slot: Slot) -> bool {
        (self.payload_slot..self.payload_slot.behind(self.payload)).contains(&slot)
    }
}

/// A record under way.
#[derive(Debug)]
struct Sent {
    /// Position in the order of all records.
    seq: Seq,
    /// Position among dirty-class records, or the last one before it.
    dseq: Dseq,
    /// What was gathered, since it was sent. The buffer is with the device, and serves the readers
    /// when it comes back.
    record: Gather,
    /// Device writes that have not ended.
    writes: u8,
    /// Copies that were written.
    copies: u8,
}

/// How writers and the cache device behaved lately; from it follows how long a small record waits.
#[derive(Debug, Default)]
struct Pace {
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
    pace: Pace,
    /// How much of large records is under way best.
    window: Window,
    /// Open segments, by point.
    open: [Option<SegmentId>; 3],
    /// Records being gathered, by point.
    gather: [Option<Gather>; 3],
    /// Dirty-class records under way, in order.
    sent_dirty: VecDeque<Sent>,
    /// Clean records under way.
    sent_clean: Vec<Sent>,
    /// Last sequence number given.
    seq: Seq,
    /// Last dirty-class sequence number given.
    dseq: Dseq,
    /// Every dirty-class record up to here is on its devices.
    completed_dseq: Dseq,
    /// Every dirty-class record up to here survives power loss.
    durable_dseq: Dseq,
    /// Every record, of either class, up to here survives power loss.
    durable_seq: Seq,
    /// Dirty-class records that are on their devices but not durable: number, segment, end in the
    /// segment.
    undurable: VecDeque<(Dseq, SegmentId, u32)>,
    /// Blocks that became clean by a record that is not durable yet.
    cleaned: VecDeque<(Dseq, Key)>,
    /// A dirty-class record could not be written: the log ends before it.
    broken: bool,
    /// No cache device works: volumes go on without.
    dead: bool,
    flushes: CacheFlush,
    /// Entries that found no room.
    backlog: VecDeque<Entry>,
    /// Blocks that were appended, by point, bytes written once more for a mirror, records.
    appended: [u64; 3],
    mirrored: u64,
    records: u64,
    /// Buffers of entries and waiters to use again.
    spare_entries: Vec<Vec<Entry>>,
    /// Lists of waiting requests to use again.
    spare_waiters: Vec<Vec<ReqKey>>,
}

impl Log {
    /// The dirty-class number that the entries gathered now will have, or the last one given.
    pub fn dseq_gathered(&self) -> Dseq {
        let gathered =
            self.gather[Point::Dirty as usize].as_ref().is_some_and(|g| !g.entries.is_empty());
        let waiting = self.backlog.len().div_ceil(RECORD_ENTRIES) as u64;
        self.dseq.behind(u64::from(gathered) + waiting)
    }

    /// Last sequence number given.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Last dirty-class sequence number given.
    pub fn dseq(&self) -> Dseq {
        self.dseq
    }

    /// Every dirty-class record up to here is on its devices.
    pub fn completed_dseq(&self) -> Dseq {
        self.completed_dseq
    }

    /// Every dirty-class record up to here survives power loss.
    pub fn durable_dseq(&self) -> Dseq {
        self.durable_dseq
    }

    /// A start: a new life begins behind these.
    pub fn begin(&mut self, seq: Seq, dseq: Dseq) {
        (self.seq, self.dseq) = (seq, dseq);
        (self.completed_dseq, self.durable_dseq) = (dseq, dseq);
    }

    /// A start: dirty data goes on in this segment.
    pub fn reopen(&mut self, segment: SegmentId) {
        self.open[Point::Dirty as usize] = Some(segment);
    }

    /// The open segment of a write point.
    fn open_at(&self, point: Point) -> Option<SegmentId> {
        self.open[point as usize]
    }

    /// What a write point gathers goes to this segment from now on.
    fn opens(&mut self, point: Point, segment: SegmentId) {
        self.open[point as usize] = Some(segment);
    }

    /// Nothing more goes to the open segment of a write point: which one that was.
    fn closes(&mut self, point: Point) -> Option<SegmentId> {
        self.open[point as usize].take()
    }

    /// The record being gathered at a write point.
    fn gathering(&self, point: Point) -> Option<&Gather> {
        self.gather[point as usize].as_ref()
    }

    /// A record is gathered at a write point from now on.
    fn gathers(&mut self, point: Point, gather: Gather) {
        self.gather[point as usize] = Some(gather);
    }

    /// The record being gathered at a write point, which it is no more.
    fn take_gathered(&mut self, point: Point) -> Option<Gather> {
        self.gather[point as usize].take()
    }

    /// Empty lists of entries and of waiting requests.
    fn spare_lists(&mut self) -> (Vec<Entry>, Vec<ReqKey>) {
        let entries = self.spare_entries.pop().unwrap_or_default();
        (entries, self.spare_waiters.pop().unwrap_or_default())
    }

    /// The block in `slot` does not count in the clean record that gathers it, if one does.
    fn void(&mut self, slot: Slot) {
        let gathers = self.gather[1..].iter_mut().flatten();
        for gather in gathers.filter(|gather| gather.holds(slot)) {
            gather.entries[slot.since(gather.payload_slot) as usize].kind = EntryKind::Void as u8;
        }
    }

    /// No cache device works any more.
    fn dies(&mut self) {
        self.dead = true;
    }

    /// Entries that found no room never will.
    fn drop_backlog(&mut self) {
        self.backlog.clear();
    }

    /// Whether a large write of so many blocks may be appended now: else small ones would wait for
    /// all records that it fills.
    pub fn admits(&mut self, blocks: u64) -> bool {
        self.window.admits(blocks * BLOCK_SIZE as u64)
    }

    /// A dirty-class record of so many bytes is sent.
    fn sends(&mut self, bytes: u64) {
        if bytes > SMALL_BYTES_MAX {
            self.window.begin(bytes);
        }
    }

    /// One has ended that was sent then.
    fn arrives(&mut self, now: Time, sent: Time, bytes: u64) {
        if bytes > SMALL_BYTES_MAX {
            self.window.end(now, sent, bytes);
        }
    }

    /// Whether a dirty-class record could not be written: the log ends before it.
    fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether no cache device works: volumes go on without.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Whether entries have found no room.
    pub fn entries_wait(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Something has happened: see [`Pace::stir`].
    pub fn stir(&mut self) {
        self.pace.stir();
    }

    /// Dirty blocks became clean, or ended, by this record.
    pub fn ends(&mut self, dseq: Dseq, keys: impl Iterator<Item = Key>) {
        self.cleaned.extend(keys.map(|key| (dseq, key)));
    }

    /// Those of which the word is not durable: of the oldest record first.
    pub fn ended(&self) -> impl DoubleEndedIterator<Item = (Dseq, Key)> {
        self.cleaned.iter().copied()
    }

    /// The words about these do not count any more.
    pub fn unsay(&mut self, keys: Range<Key>) {
        self.cleaned.retain(|(_, key)| !keys.contains(key));
    }

    /// A write waits for the record that its newest block is in. Whether it did not before.
    pub fn join(&mut self, write: ReqKey) -> bool {
        let gather = self.gather[Point::Dirty as usize].as_mut().expect("just appended to");
        let joins = gather.waiters.last() != Some(&write);
        gather.waiters.extend(joins.then_some(write));
        joins
    }

    /// A planted bug: a write waits for its records no more.
    pub fn leave(&mut self, write: ReqKey) {
        let gathers = self.gather.iter_mut().flatten().map(|gather| &mut gather.waiters);
        for waiters in
            gathers.chain(self.sent_dirty.iter_mut().map(|sent| &mut sent.record.waiters))
        {
            waiters.retain(|&waiter| waiter != write);
        }
    }

    /// The block in `slot`, if its record is still being gathered.
    pub fn gathered(&self, slot: Slot) -> Option<&[u8]> {
        let gather = self.gather.iter().flatten().find(|gather| gather.holds(slot))?;
        let at = (1 + slot.since(gather.payload_slot)) as usize * BLOCK_SIZE;
        Some(&gather.buf.bytes()[at..at + BLOCK_SIZE])
    }

    /// Whether as many clean records are under way as may keep hits waiting.
    pub fn fills_are_enough(&self) -> bool {
        self.sent_clean.len() >= FILLS_UNDER_WAY_MAX
    }

    /// Whether all clean records up to this one have ended.
    pub fn fills_ended(&self, seq: Seq) -> bool {
        self.sent_clean.iter().all(|sent| sent.seq > seq)
    }

    /// FLUSHes under way, in words.
    pub fn describe_flushes(&self) -> String {
        format!("{:?}", self.flushes)
    }

    /// Fills in what was counted.
    pub fn count(&self, stats: &mut PoolStats) {
        let [dirty, fill, reinsert] = self.appended.map(|blocks| blocks * BLOCK_SIZE as u64);
        let written = &mut stats.written_bytes;
        (written.dirty, written.fill, written.reinsert) = (dirty, fill, reinsert);
        (written.header, written.mirror) = (self.records * BLOCK_SIZE as u64, self.mirrored);
        (stats.records, stats.cache_flushes) = (self.records, self.flushes.sent);
    }

    /// See `parts.rs`.
    pub(crate) fn progress(&self) -> [u64; 4] {
        let dseqs = [self.dseq_gathered(), self.completed_dseq, self.durable_dseq];
        let [gathered, completed, durable] = dseqs.map(Dseq::raw);
        [self.seq.raw(), gathered, completed, durable]
    }

    /// When records that are gathered are sent at the latest.
    pub(crate) fn due(&self, due: &mut Due) {
        let [dirty, clean @ ..] = &self.gather;
        let dirty = dirty.iter().filter(|gather| gather.payload > 0);
        due.at(dirty.map(|gather| gather.since + self.pace.gathers().1));
        let clean = clean.iter().flatten().filter(|gather| !gather.entries.is_empty());
        due.at(clean.map(|gather| gather.since + FILL_AGE_MAX_NS));
    }

    /// Every record up to here is on its devices, or lost with them.
    pub fn completed_seq(&self) -> Seq {
        let under_way =
            self.sent_dirty.iter().chain(&self.sent_clean).filter(|sent| sent.writes > 0);
        under_way.map(|sent| sent.seq.before()).min().unwrap_or(self.seq)
    }

    /// The record under way with this number.
    fn sent(&mut self, seq: Seq) -> Option<&mut Sent> {
        self.sent_dirty.iter_mut().chain(self.sent_clean.iter_mut()).find(|sent| sent.seq == seq)
    }

    /// Whether a dirty-class record is the oldest under way.
    pub(crate) fn is_oldest(&self, seq: Seq) -> bool {
        self.sent_dirty.front().is_some_and(|sent| sent.seq == seq)
    }

    /// Whether a record under way is of the dirty class.
    fn is_dirty(&self, seq: Seq) -> bool {
        self.sent_dirty.binary_search_by_key(&seq, |sent| sent.seq).is_ok()
    }

    /// Whether a dirty-class record up to `seq` has not ended.
    pub(crate) fn is_under_way(&self, seq: Seq) -> bool {
        self.sent_dirty.front().is_some_and(|sent| sent.seq <= seq)
    }

    /// The record under way that holds `slot` and is not on its device yet.
    fn sent_with(&mut self, slot: Slot) -> Option<&mut Sent> {
        let under_way = self.sent_dirty.iter_mut().chain(self.sent_clean.iter_mut());
        under_way.filter(|sent| sent.writes > 0).find(|sent| sent.record.holds(slot))
    }

    /// Whether `slot`, in a segment with `inflight` records under way, is not on its device yet.
    pub fn sent_with_in(&mut self, inflight: u32, slot: Slot) -> bool {
        inflight > 0 && self.sent_with(slot).is_some()
    }

    /// Whether `slot` is of a dirty-class record that has not ended: nobody was told of it.
    pub fn is_untold(&self, slot: Slot) -> bool {
        self.sent_dirty.iter().any(|sent| sent.record.holds(slot))
    }

    /// The readers of the record that holds `slot`, if a request that wrote into it was not
    /// answered yet.
    fn readers_of_untold(&mut self, slot: Slot) -> Option<&mut Vec<OpId>> {
        if let Some(gather) = &mut self.gather[Point::Dirty as usize]
            && gather.holds(slot)
        {
            return (!gather.waiters.is_empty()).then_some(&mut gather.readers);
        }
        let sent = self.sent_dirty.iter_mut().find(|sent| sent.record.holds(slot))?;
        (!sent.record.waiters.is_empty()).then_some(&mut sent.record.readers)
    }

    /// Whether a record that has not ended replaced dirty blocks: these are lost with it.
    pub fn replaces_dirty(&self) -> bool {
        let gather = &self.gather[Point::Dirty as usize];
        self.sent_dirty.iter().any(|sent| sent.record.over_dirty)
            || gather.as_ref().is_some_and(|gather| gather.over_dirty)
    }

    /// Blocks written so far.
    pub fn written(&self) -> u64 {
        self.appended.iter().sum::<u64>() + self.records
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
