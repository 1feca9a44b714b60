//! Survey: recovery finds the records in the segments.

use crate::Mutant;
use crate::buf::Buf;
use crate::engine::Engine;
use crate::event::*;
use crate::index::Slot;
use crate::limits::RECOVERY_READ_BLOCKS;
use crate::op::fetch::RecoverRead;
use crate::op::open::Step;
use crate::op::replay::Found;
use crate::segment::SegmentId;
use forebay_format::record::{self, Entry, EntryKind, RecordClass, RecordHeader};
use forebay_format::{BLOCK_SIZE, FormatError, checkpoint, checksum};
use std::collections::BTreeMap;

/// What the records of one life of a segment have in common, and how far they go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Life {
    generation: u32,
    epoch: u64,
    seq: u64,
}

/// The records of a segment as far as their headers were read.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    records: Vec<Found>,
    life: Option<Life>,
}

impl Engine {
    pub(crate) fn recover_heads(&mut self) {
        let (healthy, away): (Vec<SegmentId>, Vec<SegmentId>) =
            (0..self.segments.count()).partition(|&segment| self.segments.healthy(segment));
        let opening = self.open_mut();
        opening.step = Step::Heads;
        opening.unreadable.extend(away.into_iter().map(|segment| (segment, 0)));
        opening.reads = healthy.into_iter().map(RecoverRead::Head).collect();
        self.recover_reads();
    }

    pub(crate) fn head_seen(&mut self, segment: SegmentId, result: Result<(), IoError>, buf: Buf) {
        if result.is_err() {
            match self.is_deaf(self.segments.device_of(segment)) {
                true => self.open_mut().unreadable.insert((segment, 0)),
                false => self.open_mut().suspects.insert(segment),
            };
            return self.pool.give(buf);
        }
        match record::decode(buf.bytes()) {
            Ok((header, _)) if self.is_ours(&header, segment) => {
                self.open_mut().heads.insert(segment, header);
            }
            Err(FormatError::Damaged { .. } | FormatError::Invalid { .. }) => {
                self.open_mut().suspects.insert(segment);
            }
            // A new pool has zeros here: anything else may have been a record.
            Err(FormatError::NotOurs { .. }) if buf.bytes().iter().any(|&byte| byte != 0) => {
                self.open_mut().suspects.insert(segment);
            }
            _ => {}
        }
        self.pool.give(buf);
    }

    fn is_ours(&self, header: &RecordHeader, segment: SegmentId) -> bool {
        header.pool.get() == self.sb.pool()
            && header.epoch.get() <= self.sb.epoch()
            && (header.segment.get() == segment
                || (header.class == RecordClass::Dirty as u8
                    && self.segments.partner(header.segment.get()) == Some(segment)))
    }

    /// Goes through the segments that may hold records behind the checkpoint, from header to
    /// header.
    pub(crate) fn recover_segments(&mut self) {
        let segments = &self.segments;
        let opening = self.opening.as_mut().expect("recovery is under way");
        opening.step = Step::Segments;
        let from = opening.source.map_or(0, |source| source.seq);
        let wanted = |&(&segment, head): &(&SegmentId, &RecordHeader)| {
            let item = opening.segments.get(&segments.unit_of(segment));
            head.seq.get() > from
                || item.is_some_and(|item| {
                    item.last_seq.get() > from || item.flags.get() & checkpoint::SEGMENT_OPEN != 0
                })
        };
        let chains: Vec<SegmentId> =
            opening.heads.iter().filter(wanted).map(|(&segment, _)| segment).collect();
        let suspects = std::mem::take(&mut opening.suspects);
        for segment in chains {
            self.open_mut().reads.push_back(RecoverRead::Header(segment, 0));
        }
        for segment in suspects {
            self.segment_whole(segment);
        }
        self.recover_reads();
    }

    /// Reads a segment whole: it is damaged, or the log ended in it.
    fn segment_whole(&mut self, segment: SegmentId) {
        let step = RECOVERY_READ_BLOCKS as u32;
        let pieces = self.segments.blocks().div_ceil(step);
        let reads = (0..pieces).map(|n| RecoverRead::Segment(segment, n * step));
        self.open_mut().reads.extend(reads);
    }

    /// A record's header is here, or what is in its place.
    pub(crate) fn header_seen(
        &mut self,
        segment: SegmentId,
        at: u32,
        result: Result<(), IoError>,
        buf: Buf,
    ) {
        let chain = self.open_mut().chains.remove(&segment).unwrap_or_default();
        let found = result.ok().and_then(|()| self.record_at(segment, at, buf.bytes(), chain.life));
        self.pool.give(buf);
        let Some((header, entries, life)) = found else {
            if at + 1 == self.segments.blocks() {
                // A segment is left when no payload fits any more; the last block is seldom used.
                return self.open_mut().records.extend(chain.records);
            }
            return self.segment_whole(segment);
        };
        let next = at + 1 + u32::from(header.payload_blocks.get());
        let own = header.segment.get() == segment;
        let verified = header.payload_blocks.get() == 0;
        let mut records = chain.records;
        records.push(Found { header, entries, bad: Vec::new(), verified, whole: [own, !own] });
        if next >= self.segments.blocks() {
            return self.open_mut().records.extend(records);
        }
        self.open_mut().chains.insert(segment, Chain { records, life: Some(life) });
        self.open_mut().reads.push_back(RecoverRead::Header(segment, next));
    }

    /// The record at a block of a segment, if there is one and it belongs to the same life of the
    /// segment as those before it. A newer life starts over at the beginning of the segment; what
    /// is older is left over. It may even have the same generation, when its first record was lost
    /// in a crash.
    fn record_at(
        &self,
        segment: SegmentId,
        at: u32,
        bytes: &[u8],
        before: Option<Life>,
    ) -> Option<(RecordHeader, Vec<Entry>, Life)> {
        let (header, entries) = record::decode(bytes).ok()?;
        let payload = u32::from(header.payload_blocks.get());
        let fits = self.is_ours(&header, segment)
            && header.offset.get() == at
            && at + 1 + payload <= self.segments.blocks()
            && entries.iter().all(|entry| self.entry_makes_sense(entry));
        let generation = header.segment_generation.get();
        let life = Life { generation, epoch: header.epoch.get(), seq: header.seq.get() };
        let goes_on = before.is_none_or(|old| {
            life.generation == old.generation && life.epoch >= old.epoch && life.seq > old.seq
        });
        (fits && goes_on).then_some((header, entries, life))
    }

    /// Looks at the payload of the records of which nothing says that it was durable.
    pub(crate) fn recover_payloads(&mut self) {
        let opening = self.opening.as_mut().expect("recovery is under way");
        opening.step = Step::Payloads;
        // Each life of the log speaks for its own records: of those before it some may have been
        // lost.
        let mut durable: BTreeMap<u64, u64> = BTreeMap::new();
        let headers = opening.records.iter().map(|found| &found.header);
        for header in headers.chain(opening.heads.values()) {
            let known = durable.entry(header.epoch.get()).or_default();
            *known = header.durable_seq.get().max(*known);
        }
        let unsure = |found: &Found| {
            let known = durable.get(&found.header.epoch.get()).copied().unwrap_or(0);
            !found.verified && found.header.seq.get() > known
        };
        let reads: Vec<_> = (0..)
            .zip(&opening.records)
            .filter(|(_, found)| unsure(found))
            .map(|(number, _)| RecoverRead::Payload(number))
            .collect();
        opening.reads.extend(reads);
        self.recover_reads();
    }

    /// Where the payload of a record found lies: first slot and blocks.
    pub(crate) fn payload_of(&self, number: u32) -> (Slot, u64) {
        let opening = self.opening.as_ref().expect("recovery is under way");
        let found = &opening.records[number as usize];
        let header = &found.header;
        let own = header.segment.get();
        let partner = self.segments.partner(own).unwrap_or(own);
        let segment = if found.whole[0] { own } else { partner };
        let slot = self.segments.slot(segment, header.offset.get() + 1);
        (slot, u64::from(header.payload_blocks.get()))
    }

    pub(crate) fn payload_seen(&mut self, number: u32, result: Result<(), IoError>, buf: Buf) {
        let torn_accepted = self.is(Mutant::TornAccepted);
        if result.is_err() {
            let segment = self.segments.segment_of(self.payload_of(number).0);
            self.open_mut().unreadable.insert((segment, 0));
        }
        let found = &mut self.open_mut().records[number as usize];
        found.verified = true;
        let there = if result.is_ok() { buf.bytes() } else { &[] };
        if !torn_accepted {
            found.bad = bad_payload(&found.entries, there.chunks_exact(BLOCK_SIZE).map(Some));
        }
        if !found.bad.is_empty() {
            found.whole = [false; 2];
        }
        self.pool.give(buf);
    }

    /// Blocks of a segment are here, or (empty) will never be.
    pub(crate) fn segment_piece(&mut self, segment: SegmentId, from: u32, buf: Buf) {
        let count = self.segments.blocks().div_ceil(RECOVERY_READ_BLOCKS as u32) as usize;
        let opening = self.open_mut();
        if buf.is_empty() {
            opening.unreadable.insert((segment, from));
        }
        let pieces = opening.pieces.entry(segment).or_default();
        pieces.insert(from, buf);
        if pieces.len() < count {
            return;
        }
        let pieces = self.open_mut().pieces.remove(&segment).expect("just there");
        self.segment_parse(segment, &pieces);
        pieces.into_values().for_each(|buf| self.pool.give(buf));
    }

    /// A read of several blocks failed: one bad sector must not hide the records beside it.
    pub(crate) fn segment_split(&mut self, segment: SegmentId, from: u32, mut buf: Buf) {
        buf.bytes_mut().fill(0);
        let blocks = (buf.len() / BLOCK_SIZE) as u32;
        let opening = self.open_mut();
        opening.split.insert((segment, from), (buf, blocks));
        let reads = (from..from + blocks).map(|at| RecoverRead::Block(segment, at));
        opening.reads.extend(reads);
    }

    /// One block of a piece is here. One that cannot be read is remembered: its record may have
    /// held zeros there, as it stays in the piece.
    pub(crate) fn segment_block(
        &mut self,
        segment: SegmentId,
        at: u32,
        result: Result<(), IoError>,
        buf: Buf,
    ) {
        let step = RECOVERY_READ_BLOCKS as u32;
        let from = at / step * step;
        let entry = self.open_mut().split.get_mut(&(segment, from)).expect("it was split");
        if result.is_ok() {
            let place = (at - from) as usize * BLOCK_SIZE;
            entry.0.bytes_mut()[place..place + BLOCK_SIZE].copy_from_slice(buf.bytes());
        }
        entry.1 -= 1;
        let whole = entry.1 == 0;
        if result.is_err() {
            self.open_mut().unreadable.insert((segment, at));
        }
        self.pool.give(buf);
        if whole {
            let (piece, _) = self.open_mut().split.remove(&(segment, from)).expect("just there");
            self.segment_piece(segment, from, piece);
        }
    }

    /// Finds the records of a segment. A block that is no record is stepped over: it may be a
    /// damaged header in front of good ones.
    fn segment_parse(&mut self, segment: SegmentId, pieces: &BTreeMap<u32, Buf>) {
        let step = RECOVERY_READ_BLOCKS as u32;
        let unreadable = std::mem::take(&mut self.open_mut().unreadable);
        let block = |at: u32| -> Option<&[u8]> {
            let readable = !unreadable.contains(&(segment, at));
            let piece = pieces.get(&(at / step * step)).filter(|_| readable)?;
            let from = (at % step) as usize * BLOCK_SIZE;
            piece.bytes().get(from..from + BLOCK_SIZE)
        };
        let mut life = None;
        let mut at = 0;
        while at < self.segments.blocks() {
            let found = block(at).and_then(|bytes| self.record_at(segment, at, bytes, life));
            let Some((header, entries, now)) = found else {
                at += 1;
                continue;
            };
            life = Some(now);
            let next = at + 1 + u32::from(header.payload_blocks.get());
            let bad = match self.is(Mutant::TornAccepted) {
                true => Vec::new(),
                false => bad_payload(&entries, (at + 1..next).map(block)),
            };
            at = next;
            let own = header.segment.get() == segment;
            let whole = [own && bad.is_empty(), !own && bad.is_empty()];
            self.open_mut().records.push(Found { header, entries, bad, verified: true, whole });
        }
        self.open_mut().unreadable = unreadable;
    }

    fn entry_makes_sense(&self, entry: &Entry) -> bool {
        match entry.kind() {
            EntryKind::SegmentFree => entry.address.block() < u64::from(self.segments.count()),
            EntryKind::MarkClean => entry.aux.get() < u64::from(self.segments.slots()),
            EntryKind::Dirty | EntryKind::Clean => entry.mask != 0,
            _ => true,
        }
    }
}

/// Entries whose payload block is not what their checksum says, or is not there. `blocks` are those
/// of the record, in order; `None` cannot be read.
pub(crate) fn bad_payload<'a>(
    entries: &[Entry],
    mut blocks: impl Iterator<Item = Option<&'a [u8]>>,
) -> Vec<usize> {
    let with_payload = entries.iter().enumerate().filter(|(_, entry)| entry.kind().has_payload());
    with_payload
        .filter(|(_, entry)| {
            blocks.next().flatten().is_none_or(|block| checksum(block) != entry.crc.get())
        })
        .map(|(n, _)| n)
        .collect()
}
