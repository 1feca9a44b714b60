//! What a start reads.

use forebay_format::BLOCK_SIZE;
use forebay_format::tier::{DOUBLES_OFFSET, HEAD_OFFSETS, JOURNAL_OFFSET, TierLayout};

/// What a read of a start brings.
#[derive(Debug, Clone, Copy)]
pub(super) enum Want {
    /// A copy of the head of holder `.0`.
    Head(usize, usize),
    /// Blocks of the journal of holder `.0`, from `.1` on.
    Journal(usize, u32),
    /// Doubles of holder `.0`, from `.1` on.
    Doubles(usize, u32),
    /// Pages of holder `.0`, from `.1` on.
    Pages(usize, u32),
}

impl Want {
    pub fn source(self) -> usize {
        let (Want::Head(source, _)
        | Want::Journal(source, _)
        | Want::Doubles(source, _)
        | Want::Pages(source, _)) = self;
        source
    }

    pub fn offset(self, layout: &TierLayout) -> u64 {
        let blocks = |from: u64, first: u32| from + u64::from(first) * BLOCK_SIZE as u64;
        match self {
            Want::Head(_, copy) => HEAD_OFFSETS[copy],
            Want::Journal(_, first) => blocks(JOURNAL_OFFSET, first),
            Want::Doubles(_, first) => blocks(DOUBLES_OFFSET, first),
            Want::Pages(_, first) => layout.page_offset(first),
        }
    }

    /// The same, of one block further on.
    pub fn at(self, more: u32) -> Want {
        match self {
            Want::Head(..) => self,
            Want::Journal(source, first) => Want::Journal(source, first + more),
            Want::Doubles(source, first) => Want::Doubles(source, first + more),
            Want::Pages(source, first) => Want::Pages(source, first + more),
        }
    }
}
