//! The two checkpoints that a superblock names.

use crate::ids::{Dseq, Seq};
use forebay_format::superblock::{CHECKPOINT_NONE, Header};
use zerocopy::little_endian::U64;

/// A checkpoint that may be used.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    /// Where it is read: it is on several devices.
    pub(crate) device: u8,
    pub(crate) area: usize,
    pub(crate) generation: u64,
    pub(crate) blocks: u64,
    pub(crate) index_blocks: u64,
    pub(crate) seq: Seq,
    pub(crate) dseq: Dseq,
    pub(crate) epoch: u64,
}

impl Source {
    /// The newest.
    pub(crate) fn newest(header: &Header) -> Option<Source> {
        (header.checkpoint_area != CHECKPOINT_NONE).then(|| Source {
            device: 0,
            area: usize::from(header.checkpoint_area),
            generation: header.checkpoint_generation.get(),
            blocks: header.checkpoint_blocks.get(),
            index_blocks: header.checkpoint_index_blocks.get(),
            seq: Seq::of(header.checkpoint_seq.get()),
            dseq: Dseq::of(header.checkpoint_dseq.get()),
            epoch: header.checkpoint_epoch.get(),
        })
    }

    /// The one before.
    pub(crate) fn previous(header: &Header) -> Option<Source> {
        let newest = Source::newest(header)?;
        (header.previous_generation.get() > 0).then(|| Source {
            device: 0,
            area: 1 - newest.area,
            generation: header.previous_generation.get(),
            blocks: header.previous_blocks.get(),
            index_blocks: header.previous_index_blocks.get(),
            seq: Seq::of(header.previous_seq.get()),
            dseq: Dseq::of(header.previous_dseq.get()),
            epoch: header.previous_epoch.get(),
        })
    }

    /// Makes it the newest, of this life of the log. The newest so far stays as its replacement, or
    /// that which the start fell back to.
    pub(super) fn name(self, header: &mut Header, base: Option<Source>) {
        if let Some(before) = base.or_else(|| Source::newest(header)) {
            // The log behind a checkpoint is of two lives at most. Behind one that a start fell
            // back to it would be of three, and that is no replacement.
            let counts = before.epoch == header.checkpoint_epoch.get();
            header.previous_generation = U64::new(if counts { before.generation } else { 0 });
            header.previous_blocks = U64::new(before.blocks);
            header.previous_seq = U64::new(before.seq.raw());
            header.previous_dseq = U64::new(before.dseq.raw());
            header.previous_epoch = U64::new(before.epoch);
            header.previous_index_blocks = U64::new(before.index_blocks);
        }
        header.checkpoint_area = self.area as u8;
        header.checkpoint_generation = U64::new(self.generation);
        header.checkpoint_blocks = U64::new(self.blocks);
        header.checkpoint_seq = U64::new(self.seq.raw());
        header.checkpoint_dseq = U64::new(self.dseq.raw());
        header.checkpoint_index_blocks = U64::new(self.index_blocks);
        let epoch = header.epoch;
        header.checkpoint_epoch = epoch;
    }
}
