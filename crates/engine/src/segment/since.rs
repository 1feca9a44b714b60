//! From when on a device holds what it should.

use crate::ids::Seq;
use forebay_format::superblock::JoinedEntry;

/// When a device came that took the place of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since {
    /// Life of the log.
    pub epoch: u64,
    /// Records up to this one are not on it.
    pub seq: Seq,
    /// Nor are checkpoints up to this generation.
    pub checkpoint: u64,
}

impl Since {
    /// As a superblock has it.
    pub fn of(entry: JoinedEntry) -> Since {
        let JoinedEntry { epoch, seq, checkpoint } = entry;
        Since { epoch: epoch.get(), seq: Seq::of(seq.get()), checkpoint: checkpoint.get() }
    }

    /// For a superblock.
    pub fn entry(self) -> JoinedEntry {
        let Since { epoch, seq, checkpoint } = self;
        let [epoch, seq, checkpoint] = [epoch, seq.raw(), checkpoint].map(Into::into);
        JoinedEntry { epoch, seq, checkpoint }
    }
}
