//! Stripes of an origin. A RAID 5 or 6 that is given a whole stripe writes it with its parity; of a
//! part of one it has to read the rest, or the old of what is written, first.

use crate::limits::WRITEBACK_RUN_BLOCKS;

/// How long the stripes of an origin are, which begin where it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stripes {
    /// Blocks of one; 1 where there are none, or a write home could not hold one.
    blocks: u64,
}

impl Stripes {
    pub(super) fn of(blocks: u32) -> Stripes {
        let fits = (2..=WRITEBACK_RUN_BLOCKS as u64).contains(&u64::from(blocks));
        Stripes { blocks: if fits { blocks.into() } else { 1 } }
    }

    /// Whether these two blocks are neighbours in one stripe.
    pub(super) fn join(self, block: u64, next: u64) -> bool {
        next == block + 1 && !next.is_multiple_of(self.blocks)
    }

    /// Whether a write home should begin with this block, whatever lies before it: as many whole
    /// stripes as one can hold begin here.
    pub(super) fn part(self, block: u64) -> bool {
        let most = WRITEBACK_RUN_BLOCKS as u64 / self.blocks * self.blocks;
        self.blocks > 1 && block.is_multiple_of(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_write_can_hold_is_no_stripe() {
        for blocks in [0, 1, 257, u32::MAX] {
            let stripes = Stripes::of(blocks);
            assert!(!stripes.join(6, 7) && !stripes.part(0), "{blocks}");
        }
    }

    #[test]
    fn writes_begin_where_whole_stripes_do() {
        let stripes = Stripes::of(48);
        assert!(stripes.join(46, 47) && !stripes.join(47, 48) && !stripes.join(3, 5));
        let parts: Vec<u64> = (0..500).filter(|&block| stripes.part(block)).collect();
        assert_eq!(parts, [0, 240, 480]);
    }
}
