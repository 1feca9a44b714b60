//! Records: gathering entries and blocks, sending them, and what happens when they are on the
//! device.
//!
//! Group commit: while as many dirty-class records are under way as the tuning allows, what comes
//! gathers in the next one. Writes are acknowledged in the order of the log, so that what recovery
//! finds up to the first gap contains everything acknowledged.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Dseq, Key, SegmentId, Seq, Slot};
use crate::index::Located;
use crate::limits::*;
use crate::log::{Gather, Point, Sent};
use crate::op::Op;
use crate::requests::ReqKey;
use crate::segment::Purpose;
use forebay_format::io::Buf;
use forebay_format::record::{Entry, EntryKind, RecordHeader};
use forebay_format::{BLOCK_SIZE, checksum};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

impl Engine {
    /// Gathers an entry without payload. Returns the dirty-class number that its record will have.
    pub(crate) fn note(&mut self, kind: EntryKind, volume: VolumeId, block: u64, aux: u64) -> Dseq {
        self.note_entry(Entry::plain(kind, volume.0, block, aux))
    }

    fn note_entry(&mut self, entry: Entry) -> Dseq {
        if self.log.backlog.is_empty() && self.room_at(Point::Dirty, Purpose::Note, false) {
            let now = self.io.now();
            let gather = self.log.gather[Point::Dirty as usize].as_mut().expect("there is room");
            if gather.entries.is_empty() {
                gather.since = now;
            }
            gather.entries.push(entry);
        } else {
            self.log.backlog.push_back(entry);
        }
        self.log.dseq_gathered()
    }

    /// Gathers entries that found no room before.
    pub(crate) fn note_backlog(&mut self) {
        while !self.log.backlog.is_empty() && self.room_at(Point::Dirty, Purpose::Note, false) {
            let entry = self.log.backlog.pop_front().expect("not empty");
            let gather = self.log.gather[Point::Dirty as usize].as_mut().expect("there is room");
            gather.entries.push(entry);
        }
    }

    /// Appends a block at a write point and points the index at it. `None`: no room now.
    ///
    /// `block` is one whole block; sectors outside `mask` are of no meaning.
    pub(crate) fn append(
        &mut self,
        point: Point,
        key: Key,
        block: &[u8],
        kind: EntryKind,
        mask: u8,
        purpose: Purpose,
    ) -> Option<Slot> {
        debug_assert_eq!(block.len(), BLOCK_SIZE);
        if !self.log.backlog.is_empty() && point == Point::Dirty {
            return None;
        }
        if !self.room_at(point, purpose, true) {
            return None;
        }
        let now = self.io.now();
        let (volume, base) =
            self.volume_of(key).map(|v| (v.id(), v.base())).expect("keys are of volumes");
        let gather = self.log.gather[point as usize].as_mut().expect("there is room");
        if gather.entries.is_empty() {
            gather.since = now;
        }
        let place = (1 + gather.payload as usize) * BLOCK_SIZE;
        gather.buf.bytes_mut()[place..place + BLOCK_SIZE].copy_from_slice(block);
        let crc = checksum(block);
        let mut entry = Entry::plain(kind, volume.0, key - base, 0);
        entry.crc = U32::new(crc);
        entry.mask = mask;
        gather.entries.push(entry);
        let slot = gather.payload_slot.behind(gather.payload);
        gather.payload += 1;
        self.log.appended[point as usize] += 1;
        let before = self.install(key, Located { slot, crc }, kind == EntryKind::Dirty, mask);
        if let Some(gather) = &mut self.log.gather[point as usize] {
            gather.over_dirty |= before;
        }
        Some(slot)
    }

    /// Sends the record gathered at a write point, if there is anything in it. Whether it is gone.
    pub(crate) fn send(&mut self, point: Point) -> bool {
        let empty = self.log.gather[point as usize].as_ref().is_none_or(|g| g.entries.is_empty());
        if empty {
            if let Some(gather) = self.log.gather[point as usize].take() {
                self.reuse(gather.buf, gather.entries, gather.waiters);
            }
            return true;
        }
        let mut gather = self.log.gather[point as usize].take().expect("not empty");
        self.log.seq = self.log.seq.next();
        if point == Point::Dirty {
            self.log.dseq = self.log.dseq.next();
        }
        let (seq, dseq) = (self.log.seq, self.log.dseq);
        let header = self.header(point, &gather);
        forebay_format::record::encode(
            &header,
            &gather.entries,
            &mut gather.buf.bytes_mut()[..BLOCK_SIZE],
        );
        let blocks = 1 + gather.payload;
        gather.buf.set_len(blocks as usize * BLOCK_SIZE);
        let mut copies = self.segments.copies(gather.segment);
        let first = copies.find(|&copy| self.segments.healthy(copy)).unwrap_or(gather.segment);
        let second = copies.find(|&copy| self.segments.healthy(copy));
        let writes = 1 + u8::from(second.is_some());
        let unit = self.segments.unit_of(gather.segment);
        self.segments.sent(unit, seq, gather.offset + blocks, u32::from(writes));
        if let Some(second) = second {
            let mut copy = self.io.take(gather.buf.len());
            copy.bytes_mut().copy_from_slice(gather.buf.bytes());
            self.log.mirrored += copy.len() as u64;
            self.write_copy(seq, second, gather.offset, copy, 0);
        }
        self.log.records += 1;
        let (offset, buf) = (gather.offset, std::mem::take(&mut gather.buf));
        gather.since = self.io.now();
        gather.entries.clear();
        self.log.spare_entries.push(std::mem::take(&mut gather.entries));
        let sent = Sent { seq, dseq, record: gather, writes, copies: 0 };
        match point {
            Point::Dirty => {
                self.log.sends(sent.record.bytes());
                self.log.sent_dirty.push_back(sent);
            }
            _ => self.log.sent_clean.push(sent),
        }
        self.write_copy(seq, first, offset, buf, 0);
        true
    }

    fn header(&self, point: Point, gather: &Gather) -> RecordHeader {
        let mut header = RecordHeader::new_zeroed();
        let unit = self.segments.unit(self.segments.unit_of(gather.segment));
        header.class = point.class() as u8;
        header.pool = U64::new(self.pool.id());
        header.epoch = U64::new(self.pool.epoch());
        header.seq = U64::new(self.log.seq.raw());
        header.dseq = U64::new(self.log.dseq.raw());
        header.durable_dseq = U64::new(self.log.durable_dseq.raw());
        header.durable_seq = U64::new(self.log.durable_seq.raw());
        header.segment = U32::new(gather.segment.raw());
        header.segment_generation = U32::new(unit.generation);
        header.offset = U32::new(gather.offset);
        header
    }

    /// `offset` is the block in the segment.
    fn write_copy(&mut self, seq: Seq, segment: SegmentId, offset: u32, buf: Buf, tries: u8) {
        let (device, offset) = self.segments.locate(self.segments.slot(segment, offset));
        self.io.write(Op::Record { seq, segment, tries }, Target::Cache(device), offset, buf);
    }

    fn reuse(&mut self, buf: Buf, mut entries: Vec<Entry>, mut waiters: Vec<ReqKey>) {
        self.io.give(buf);
        entries.clear();
        waiters.clear();
        self.log.spare_entries.push(entries);
        self.log.spare_waiters.push(waiters);
    }

    /// One copy of a record is written, or failed.
    pub(crate) fn record_done(&mut self, seq: Seq, segment: SegmentId, tries: u8, end: Completion) {
        let Completion { result, buf } = end;
        if result.is_err() && !self.log.is_dead() && self.segments.healthy(segment) {
            if tries + 1 < CACHE_WRITE_TRIES {
                let sent = self.log.sent(seq).expect("under way");
                let offset = sent.record.offset;
                return self.write_copy(seq, segment, offset, buf, tries + 1);
            }
            let device = self.segments.device_of(segment);
            self.device_failed(device, "a write failed");
        }
        self.segments.copy_ended(self.segments.unit_of(segment));
        let device = self.segments.device_of(segment);
        let counts = self.segments.counts(device) || self.is(Mutant::StrangerCounts);
        let sent = self.log.sent(seq).expect("under way");
        sent.writes -= 1;
        sent.copies += u8::from(result.is_ok() && counts);
        let copied = sent.copies > 0 && sent.writes > 0;
        if copied && self.is(Mutant::AckAfterOneCopy) && self.log.is_oldest(seq) {
            let sent = self.log.sent(seq).expect("under way");
            for req in std::mem::take(&mut sent.record.waiters) {
                self.part_done(req);
            }
        }
        let sent = self.log.sent(seq).expect("under way");
        if sent.writes == 0 {
            let (now, since, bytes) = (self.io.now(), sent.record.since, sent.record.bytes());
            self.log.pace.record_took(now - since);
            if self.log.is_dirty(seq) {
                self.log.arrives(now, since, bytes);
            }
            self.serve_readers(seq, &buf);
            self.complete_clean(seq);
            self.complete_dirty();
        }
        self.io.give(buf);
    }

    /// A device is let go: what it has of records under way does not count any more.
    pub(crate) fn copies_leave(&mut self, device: DeviceId) {
        let here = |segment: SegmentId| self.segments.device_of(segment) == device;
        let under_way = self.io.ops().filter_map(|op| match op {
            Op::Record { seq, segment, .. } if here(*segment) => Some(*seq),
            _ => None,
        });
        let under_way: Vec<Seq> = under_way.collect();
        for sent in self.log.sent_dirty.iter_mut().filter(|sent| sent.writes > 0) {
            let unit = self.segments.unit_of(sent.record.segment);
            let written = !under_way.contains(&sent.seq);
            if written && self.segments.segments_of(unit).any(here) {
                sent.copies = sent.copies.saturating_sub(1);
            }
        }
    }

    fn complete_clean(&mut self, seq: Seq) {
        if let Some(at) = self.log.sent_clean.iter().position(|sent| sent.seq == seq) {
            let sent = self.log.sent_clean.swap_remove(at);
            self.reuse(Buf::empty(), Vec::new(), sent.record.waiters);
            self.readers_again(sent.record.readers);
        }
    }

    /// I5: acknowledges dirty-class records in the order of the log.
    fn complete_dirty(&mut self) {
        if self.is(Mutant::AckOutOfOrder) {
            let done: Vec<Vec<ReqKey>> = self
                .log
                .sent_dirty
                .iter_mut()
                .filter(|sent| sent.writes == 0)
                .map(|sent| std::mem::take(&mut sent.record.waiters))
                .collect();
            done.into_iter().flatten().for_each(|req| self.part_done(req));
        }
        let (mut broke, mut readers) = (false, Vec::new());
        while self.log.sent_dirty.front().is_some_and(|sent| sent.writes == 0) {
            let Sent { dseq, mut record, copies, .. } =
                self.log.sent_dirty.pop_front().expect("there is one");
            // Behind a record that was lost, none will be found by recovery.
            let failed = copies == 0 || self.log.broken;
            if failed && !self.log.broken {
                self.log.broken = true;
                broke = true;
            }
            if !failed {
                let end = record.offset + 1 + record.payload;
                self.log.completed_dseq = dseq;
                self.log.undurable.push_back((dseq, record.segment, end));
            }
            for req in record.waiters.drain(..) {
                if failed {
                    self.reqs.fail(req, IoError::Io);
                }
                self.part_done(req);
            }
            self.log.spare_waiters.push(record.waiters);
            readers.append(&mut record.readers);
        }
        if broke && !self.log.is_dead() {
            // Other devices work, but no recovery would get past the gap.
            self.io.notify(Notice::LogBroken);
            self.die();
        }
        self.readers_again(readers);
        // A device that failed while it seemed to work still loses what it was not flushed for.
        if !self.volatile() && !self.log.is_dead() {
            self.log.durable_seq = self.log.completed_seq();
            self.set_durable(self.log.completed_dseq);
        }
    }

    /// Whether any working cache device has a volatile cache.
    pub(crate) fn volatile(&self) -> bool {
        self.segments.devices().iter().any(|device| device.healthy && device.volatile_cache)
    }

    /// Every dirty-class record up to `dseq` survives power loss now.
    pub(crate) fn set_durable(&mut self, dseq: Dseq) {
        if dseq <= self.log.durable_dseq {
            return;
        }
        self.log.durable_dseq = dseq;
        while let Some(&(number, segment, end)) = self.log.undurable.front() {
            if number > dseq {
                break;
            }
            self.log.undurable.pop_front();
            self.segments.durable(self.segments.unit_of(segment), end);
        }
        // Of hundreds of thousands, one by one would take milliseconds.
        let said = self.log.cleaned.partition_point(|&(number, _)| number <= dseq);
        self.log.cleaned.drain(..said);
    }

    /// Sends the gathered records that are due.
    pub(crate) fn send_gathered(&mut self) {
        let active = self.volumes.iter().map(|v| v.traffic().cache_writes()).sum();
        self.log.pace.look(self.io.now(), active);
        self.note_backlog();
        while self.log.sent_dirty.len() < self.tuning().records_in_flight_max
            && self.log.gather[Point::Dirty as usize]
                .as_ref()
                .is_some_and(|g| !g.entries.is_empty())
            && self.worth_a_block()
        {
            self.send(Point::Dirty);
            self.note_backlog();
        }
        for point in [Point::Fill, Point::Reinsert] {
            let due = self.log.gather[point as usize].as_ref().is_some_and(|g| {
                !g.entries.is_empty()
                    && (g.payload >= g.payload_max || self.io.now() - g.since >= FILL_AGE_MAX_NS)
            });
            if due {
                self.send(point);
            }
        }
    }

    /// Whether the record gathered for dirty data is to be sent now. Where clients have no room
    /// left, or many blocks end in slices, entries without data gather until a record is full or
    /// somebody waits for them: what makes room needs room. For the same reason blocks that reclaim
    /// moves gather: each in a record of its own would take as much room as it gave. With many
    /// writes outstanding a small record waits for more of them, a very short time: some devices
    /// count I/Os.
    fn worth_a_block(&self) -> bool {
        let gather = self.log.gather[Point::Dirty as usize].as_ref().expect("the caller looked");
        let most = self.log.wanted_durable().max(self.pool.checkpoint_wants());
        let wanted = most > Some(self.log.dseq);
        let awaited = || {
            wanted
                || self.segments.undurable_emptied(self.log.dseq).is_some()
                || self.reqs.want_more_than(self.log.dseq)
        };
        if gather.payload > 0 && gather.waiters.is_empty() && self.reclaim.is_moving() {
            return awaited();
        }
        if gather.payload > 0 {
            let (enough, wait_ns) = self.log.pace.gathers();
            return gather.payload >= enough
                || self.io.now() - gather.since >= wait_ns
                || wanted
                || !self.is_serving();
        }
        (self.segments.may_write(Purpose::Client) && !self.ends.are_due())
            || gather.entries.len() >= RECORD_ENTRIES
            || awaited()
            || !self.is_serving()
    }
}
