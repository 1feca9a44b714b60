//! Survey: recovery finds the records in the segments.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{SegmentId, Seq, Slot};
use crate::limits::RECOVERY_READ_BLOCKS;
use crate::open_error::OpenError;
use crate::recovery::found::{Chain, Found, Life, bad_payload};
use crate::recovery::io::RecoverRead;
use crate::recovery::{Opening, Step};
use crate::segment::Segments;
use forebay_format::io::Buf;
use forebay_format::record::{self, Entry, EntryKind, RecordClass, RecordHeader};
use forebay_format::{BLOCK_SIZE, FormatError, checkpoint};
use std::collections::BTreeMap;

impl Opening {
    pub(super) fn recover_heads(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        let (healthy, away): (Vec<SegmentId>, Vec<SegmentId>) =
            engine.segments.segment_ids().partition(|&segment| engine.segments.healthy(segment));
        self.step = Step::Heads;
        self.unreadable.extend(away.into_iter().map(|segment| (segment, 0)));
        self.reads = healthy.into_iter().map(RecoverRead::Head).collect();
        self.recover_reads(engine)
    }

    pub(super) fn head_seen(&mut self, engine: &mut Engine, segment: SegmentId, end: Completion) {
        let Completion { result, buf } = end;
        if result.is_err() {
            match self.is_deaf(engine.segments.device_of(segment)) {
                true => self.unreadable.insert((segment, 0)),
                false => self.suspects.insert(segment),
            };
            return engine.io.give(buf);
        }
        match record::decode(buf.bytes()) {
            Ok((header, _)) if engine.is_ours(&header, segment) => {
                self.heads.insert(segment, header);
            }
            Err(FormatError::Damaged { .. } | FormatError::Invalid { .. }) => {
                self.suspects.insert(segment);
            }
            // A new pool has zeros here: anything else may have been a record.
            Err(FormatError::NotOurs { .. }) if *buf.bytes() != [0; BLOCK_SIZE] => {
                self.suspects.insert(segment);
            }
            _ => {}
        }
        engine.io.give(buf);
    }

    /// Goes through the segments that may hold records behind the checkpoint, from header to
    /// header.
    pub(super) fn recover_segments(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        let segments = &engine.segments;
        self.step = Step::Segments;
        let from = self.source.map_or(Seq::default(), |source| source.seq);
        let wanted = |&(&segment, head): &(&SegmentId, &RecordHeader)| {
            let item = self.segments.get(&segments.unit_of(segment));
            Seq::of(head.seq.get()) > from
                || item.is_some_and(|item| {
                    Seq::of(item.last_seq.get()) > from
                        || item.flags.get() & checkpoint::SEGMENT_OPEN != 0
                })
        };
        let chains: Vec<SegmentId> =
            self.heads.iter().filter(wanted).map(|(&segment, _)| segment).collect();
        let suspects = std::mem::take(&mut self.suspects);
        let suspects = suspects.into_iter().filter(|&it| self.was_written(segments, it));
        let suspects: Vec<SegmentId> = suspects.collect();
        for segment in chains {
            self.reads.push_back(RecoverRead::Header(segment, 0));
        }
        for segment in suspects {
            self.segment_whole(engine, segment);
        }
        self.recover_reads(engine)
    }

    /// Whether a segment of a device that came later was used since: else anything may be there.
    fn was_written(&self, segments: &Segments, segment: SegmentId) -> bool {
        let item = self.segments.get(&segments.unit_of(segment));
        let known = item.map(|item| Seq::of(item.last_seq.get()));
        let partner = segments.partner(segment).and_then(|it| self.heads.get(&it));
        let known = known.max(partner.map(|head| Seq::of(head.seq.get()))).unwrap_or_default();
        segments.should_hold(segment, known)
    }

    /// Reads a segment whole: it is damaged, or the log ended in it.
    fn segment_whole(&mut self, engine: &mut Engine, segment: SegmentId) {
        let step = RECOVERY_READ_BLOCKS as u32;
        let pieces = engine.segments.blocks().div_ceil(step);
        let reads = (0..pieces).map(|n| RecoverRead::Segment(segment, n * step));
        self.reads.extend(reads);
    }

    /// A record's header is here, or what is in its place.
    pub(super) fn header_seen(
        &mut self,
        engine: &mut Engine,
        segment: SegmentId,
        at: u32,
        end: Completion,
    ) {
        let Completion { result, buf } = end;
        let chain = self.chains.remove(&segment).unwrap_or_default();
        let found =
            result.ok().and_then(|()| engine.record_at(segment, at, buf.bytes(), chain.life));
        engine.io.give(buf);
        let Some((header, entries, life)) = found else {
            if at + 1 == engine.segments.blocks() {
                // A segment is left when no payload fits any more; the last block is seldom used.
                return self.records.extend(chain.records);
            }
            return self.segment_whole(engine, segment);
        };
        let next = at + 1 + u32::from(header.payload_blocks.get());
        let own = header.segment.get() == segment.raw();
        let verified = header.payload_blocks.get() == 0;
        let mut records = chain.records;
        records.push(Found { header, entries, bad: Vec::new(), verified, whole: [own, !own] });
        if next >= engine.segments.blocks() {
            return self.records.extend(records);
        }
        self.chains.insert(segment, Chain { records, life: Some(life) });
        self.reads.push_back(RecoverRead::Header(segment, next));
    }

    /// Looks at the payload of the records of which nothing says that it was durable.
    pub(super) fn recover_payloads(&mut self, engine: &mut Engine) -> Result<(), OpenError> {
        self.step = Step::Payloads;
        // Each life of the log speaks for its own records: of those before it some may have been
        // lost.
        let mut durable: BTreeMap<u64, Seq> = BTreeMap::new();
        let headers = self.records.iter().map(|found| &found.header);
        for header in headers.chain(self.heads.values()) {
            let known = durable.entry(header.epoch.get()).or_default();
            *known = Seq::of(header.durable_seq.get()).max(*known);
        }
        let unsure = |found: &Found| {
            let known = durable.get(&found.header.epoch.get()).copied().unwrap_or_default();
            !found.verified && found.seq() > known
        };
        let reads: Vec<_> = (0..)
            .zip(&self.records)
            .filter(|(_, found)| unsure(found))
            .map(|(number, _)| RecoverRead::Payload(number))
            .collect();
        self.reads.extend(reads);
        self.recover_reads(engine)
    }

    /// Where the payload of a record found lies: first slot and blocks.
    pub(super) fn payload_of(&self, engine: &Engine, number: u32) -> (Slot, u64) {
        let found = &self.records[number as usize];
        let header = &found.header;
        let own = found.segment();
        let partner = engine.segments.partner(own).unwrap_or(own);
        let segment = if found.whole[0] { own } else { partner };
        let slot = engine.segments.slot(segment, header.offset.get() + 1);
        (slot, u64::from(header.payload_blocks.get()))
    }

    pub(super) fn payload_seen(&mut self, engine: &mut Engine, number: u32, end: Completion) {
        let Completion { result, buf } = end;
        let torn_accepted = engine.is(Mutant::TornAccepted);
        if result.is_err() {
            let segment = engine.segments.segment_of(self.payload_of(engine, number).0);
            self.unreadable.insert((segment, 0));
        }
        let found = &mut self.records[number as usize];
        found.verified = true;
        let there = if result.is_ok() { buf.bytes() } else { &[] };
        if !torn_accepted {
            found.bad = bad_payload(&found.entries, there.chunks_exact(BLOCK_SIZE).map(Some));
        }
        if !found.bad.is_empty() {
            found.whole = [false; 2];
        }
        engine.io.give(buf);
    }

    /// Blocks of a segment are here, or (empty) will never be.
    pub(super) fn segment_piece(
        &mut self,
        engine: &mut Engine,
        segment: SegmentId,
        from: u32,
        buf: Buf,
    ) {
        let count = engine.segments.blocks().div_ceil(RECOVERY_READ_BLOCKS as u32) as usize;
        if buf.is_empty() {
            self.unreadable.insert((segment, from));
        }
        let pieces = self.pieces.entry(segment).or_default();
        pieces.insert(from, buf);
        if pieces.len() < count {
            return;
        }
        let pieces = self.pieces.remove(&segment).expect("just there");
        self.segment_parse(engine, segment, &pieces);
        pieces.into_values().for_each(|buf| engine.io.give(buf));
    }

    /// A read of several blocks failed: one bad sector must not hide the records beside it.
    pub(super) fn segment_split(&mut self, segment: SegmentId, from: u32, mut buf: Buf) {
        buf.bytes_mut().fill(0);
        let blocks = (buf.len() / BLOCK_SIZE) as u32;
        self.split.insert((segment, from), (buf, blocks));
        let reads = (from..from + blocks).map(|at| RecoverRead::Block(segment, at));
        self.reads.extend(reads);
    }

    /// One block of a piece is here. One that cannot be read is remembered: its record may have
    /// held zeros there, as it stays in the piece.
    pub(super) fn segment_block(
        &mut self,
        engine: &mut Engine,
        segment: SegmentId,
        at: u32,
        end: Completion,
    ) {
        let Completion { result, buf } = end;
        let step = RECOVERY_READ_BLOCKS as u32;
        let from = at / step * step;
        let entry = self.split.get_mut(&(segment, from)).expect("it was split");
        if result.is_ok() {
            let place = (at - from) as usize * BLOCK_SIZE;
            entry.0.bytes_mut()[place..place + BLOCK_SIZE].copy_from_slice(buf.bytes());
        }
        entry.1 -= 1;
        let whole = entry.1 == 0;
        if result.is_err() {
            self.unreadable.insert((segment, at));
        }
        engine.io.give(buf);
        if whole {
            let (piece, _) = self.split.remove(&(segment, from)).expect("just there");
            self.segment_piece(engine, segment, from, piece);
        }
    }

    /// Finds the records of a segment. A block that is no record is stepped over: it may be a
    /// damaged header in front of good ones.
    fn segment_parse(
        &mut self,
        engine: &mut Engine,
        segment: SegmentId,
        pieces: &BTreeMap<u32, Buf>,
    ) {
        let step = RECOVERY_READ_BLOCKS as u32;
        let unreadable = std::mem::take(&mut self.unreadable);
        let block = |at: u32| -> Option<&[u8]> {
            let readable = !unreadable.contains(&(segment, at));
            let piece = pieces.get(&(at / step * step)).filter(|_| readable)?;
            let from = (at % step) as usize * BLOCK_SIZE;
            piece.bytes().get(from..from + BLOCK_SIZE)
        };
        let mut life = None;
        let mut at = 0;
        while at < engine.segments.blocks() {
            let found = block(at).and_then(|bytes| engine.record_at(segment, at, bytes, life));
            let Some((header, entries, now)) = found else {
                at += 1;
                continue;
            };
            life = Some(now);
            let next = at + 1 + u32::from(header.payload_blocks.get());
            let bad = match engine.is(Mutant::TornAccepted) {
                true => Vec::new(),
                false => bad_payload(&entries, (at + 1..next).map(block)),
            };
            at = next;
            let own = header.segment.get() == segment.raw();
            let whole = [own && bad.is_empty(), !own && bad.is_empty()];
            self.records.push(Found { header, entries, bad, verified: true, whole });
        }
        self.unreadable = unreadable;
    }
}

impl Engine {
    fn is_ours(&self, header: &RecordHeader, segment: SegmentId) -> bool {
        let own = SegmentId::of(header.segment.get());
        header.pool.get() == self.pool.id()
            && header.epoch.get() <= self.pool.epoch()
            && (self.segments.may_hold(segment, header) || self.is(Mutant::FormerBelieved))
            && (own == segment
                || (header.class == RecordClass::Dirty as u8
                    && self.segments.partner(own) == Some(segment)))
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
        let life = Life::of(&header);
        let goes_on = before.is_none_or(|old| life.goes_on(old));
        (fits && goes_on).then_some((header, entries, life))
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
