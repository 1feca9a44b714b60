//! Survey: recovery finds the records in the segments.

use crate::Mutant;
use crate::buf::Buf;
use crate::engine::Engine;
use crate::event::*;
use crate::limits::RECOVERY_READ_BLOCKS;
use crate::op::open::{RecoverRead, Step};
use crate::op::replay::Found;
use crate::segment::SegmentId;
use forebay_format::record::{self, EntryKind, RecordHeader};
use forebay_format::{BLOCK_SIZE, FormatError, checkpoint, checksum};
use std::collections::{BTreeMap, BTreeSet};

impl Engine {
    pub(crate) fn recover_heads(&mut self) {
        let healthy: Vec<SegmentId> = (0..self.segments.table.len() as u32)
            .filter(|&segment| self.segments.healthy(segment))
            .collect();
        let opening = self.open_mut();
        opening.step = Step::Heads;
        opening.reads =
            healthy.into_iter().map(|segment| (RecoverRead::Head(segment), 0)).collect();
        self.recover_reads();
    }

    pub(crate) fn head_seen(&mut self, segment: SegmentId, result: Result<(), IoError>, buf: Buf) {
        if result.is_err() {
            self.open_mut().suspects.insert(segment);
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
            && (header.segment.get() == segment || header.twin.get() == segment)
    }

    /// Reads whole the segments that may hold records behind the checkpoint.
    pub(crate) fn recover_segments(&mut self) {
        let blocks = self.segments.blocks;
        let opening = self.opening.as_mut().expect("recovery is under way");
        opening.step = Step::Segments;
        let from = opening.source.map_or(0, |source| source.seq);
        let mut wanted = BTreeSet::new();
        for (&segment, head) in &opening.heads {
            let item = opening.segments.get(&segment);
            let newer =
                head.seq.get() > from || item.is_some_and(|item| item.last_seq.get() > from);
            let twin = item.is_some_and(|item| item.flags.get() & checkpoint::SEGMENT_TWIN != 0);
            let open = item.is_some_and(|item| item.flags.get() & checkpoint::SEGMENT_OPEN != 0);
            if newer || open || twin {
                wanted.insert(segment);
            }
        }
        wanted.extend(opening.suspects.iter().copied());
        let step = RECOVERY_READ_BLOCKS as u32;
        opening.reads = wanted
            .into_iter()
            .flat_map(|segment| {
                (0..blocks.div_ceil(step))
                    .map(move |n| (RecoverRead::Segment(segment, n * step), 0))
            })
            .collect();
        self.recover_reads();
    }

    pub(crate) fn segment_piece(&mut self, segment: SegmentId, from: u32, buf: Buf) {
        let count = self.segments.blocks.div_ceil(RECOVERY_READ_BLOCKS as u32) as usize;
        let pieces = self.open_mut().pieces.entry(segment).or_default();
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
        let reads = (from..from + blocks).map(|at| (RecoverRead::Block(segment, at), 0));
        opening.reads.extend(reads);
    }

    /// One block of a piece is here; one that cannot be read stays zero, which no checksum matches.
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
        self.pool.give(buf);
        if whole {
            let (piece, _) = self.open_mut().split.remove(&(segment, from)).expect("just there");
            self.segment_piece(segment, from, piece);
        }
    }

    /// Finds the records of a segment. A block that is no record is stepped over: it may be a damaged header
    /// in front of good ones.
    fn segment_parse(&mut self, segment: SegmentId, pieces: &BTreeMap<u32, Buf>) {
        let step = RECOVERY_READ_BLOCKS as u32;
        let block = |at: u32| -> Option<&[u8]> {
            let piece = pieces.get(&(at / step * step))?;
            let from = (at % step) as usize * BLOCK_SIZE;
            piece.bytes().get(from..from + BLOCK_SIZE)
        };
        let mut life: Option<(u32, u64, u64)> = None;
        let mut at = 0;
        while at < self.segments.blocks {
            let decoded = block(at).and_then(|bytes| record::decode(bytes).ok());
            let good = decoded.filter(|(header, entries)| {
                let payload = u32::from(header.payload_blocks.get());
                self.is_ours(header, segment)
                    && header.offset.get() == at
                    && at + 1 + payload <= self.segments.blocks
                    && entries.iter().all(|entry| self.entry_makes_sense(entry))
            });
            let Some((header, entries)) = good else {
                at += 1;
                continue;
            };
            let generation = match header.segment.get() == segment {
                true => header.segment_generation.get(),
                false => header.twin_generation.get(),
            };
            // A newer life of the segment starts over at its beginning; what is older is left over. It may even
            // have the same generation, when its first record was lost in a crash.
            let (epoch, seq) = (header.epoch.get(), header.seq.get());
            if life.is_some_and(|(g, e, s)| generation != g || epoch < e || seq <= s) {
                at += 1;
                continue;
            }
            life = Some((generation, epoch, seq));
            let mut bad = Vec::new();
            let mut payload = at + 1;
            for (n, entry) in entries.iter().enumerate().filter(|(_, e)| e.kind().has_payload()) {
                let fits = block(payload).is_some_and(|bytes| checksum(bytes) == entry.crc.get());
                if !fits && !self.is(Mutant::TornAccepted) {
                    bad.push(n);
                }
                payload += 1;
            }
            at = payload;
            let own = header.segment.get() == segment;
            let whole = [own && bad.is_empty(), !own && bad.is_empty()];
            self.open_mut().records.push(Found { header, entries, bad, whole });
        }
    }

    fn entry_makes_sense(&self, entry: &record::Entry) -> bool {
        match entry.kind() {
            EntryKind::SegmentFree => entry.block.get() < self.segments.table.len() as u64,
            EntryKind::MarkClean => entry.aux.get() < u64::from(self.segments.slots()),
            EntryKind::Dirty | EntryKind::Clean => entry.mask != 0,
            _ => true,
        }
    }
}
