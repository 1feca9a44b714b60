//! What recovery has found in the segments, and what it decided of that.

use crate::ids::{Dseq, SegmentId, Seq, UnitId};
use forebay_format::checksum;
use forebay_format::record::{Entry, RecordClass, RecordHeader};
use std::collections::BTreeMap;

/// A record found in a segment.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) header: RecordHeader,
    pub(super) entries: Vec<Entry>,
    /// Entries whose payload does not match its checksum.
    pub(super) bad: Vec<usize>,
    /// Whether its payload was looked at.
    pub(super) verified: bool,
    /// Whether the copy in its segment, and the one in the second segment, is there and whole.
    pub(super) whole: [bool; 2],
}

impl Found {
    pub(super) fn seq(&self) -> Seq {
        Seq::of(self.header.seq.get())
    }

    pub(super) fn dseq(&self) -> Dseq {
        Dseq::of(self.header.dseq.get())
    }

    pub(super) fn epoch(&self) -> u64 {
        self.header.epoch.get()
    }

    pub(super) fn segment(&self) -> SegmentId {
        SegmentId::of(self.header.segment.get())
    }

    pub(super) fn is_dirty_class(&self) -> bool {
        self.header.class == RecordClass::Dirty as u8
    }
}

/// What the log says, as far as the state depends on all of it.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The greatest generation of each unit that the log calls empty.
    pub(super) freed: BTreeMap<UnitId, u64>,
    /// Units whose entries in the checkpoint do not count.
    pub(super) gone: Vec<bool>,
}

/// What the records of one life of a segment have in common, and how far they go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    generation: u32,
    epoch: u64,
    seq: Seq,
}

impl Life {
    /// That of a record.
    pub(super) fn of(header: &RecordHeader) -> Life {
        let generation = header.segment_generation.get();
        Life { generation, epoch: header.epoch.get(), seq: Seq::of(header.seq.get()) }
    }

    /// Whether a record may belong to the same life as the one before it.
    pub(super) fn goes_on(self, old: Life) -> bool {
        self.generation == old.generation && self.epoch >= old.epoch && self.seq > old.seq
    }
}

/// The records of a segment as far as their headers were read.
#[derive(Debug, Default)]
pub(super) struct Chain {
    pub(super) records: Vec<Found>,
    pub(super) life: Option<Life>,
}

/// What recovery decided.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// Last dirty-class record that counts.
    pub(super) dseq_end: Dseq,
    /// Records that count.
    pub(super) records: u64,
    /// A device lacks durable records that another one has. It may be an older copy: no clean block
    /// is believed.
    pub(super) half: bool,
    /// The unit in which the log ends had room left: it went on nowhere else.
    pub(super) ends_here: bool,
}

/// Entries whose payload block is not what their checksum says, or is not there. `blocks` are those
/// of the record, in order; `None` cannot be read.
pub(super) fn bad_payload<'a>(
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
