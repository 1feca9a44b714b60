//! The dirty blocks of a volume, and how far the sweep has come that looks for those to send home.

use crate::ids::Dseq;
use roaring::RoaringTreemap;

/// Where a sweep stands that has come to the end of its volume.
const SWEPT: u64 = u64::MAX;

/// The dirty blocks of one volume, by block number, in order. Compressed: two bytes a block where
/// few are set, one bit where many are (Lemire et al., "Roaring Bitmaps", 2016).
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    blocks: RoaringTreemap,
    len: u64,
    /// The last record that says of a block that it is home, or gone.
    said: Dseq,
    /// Where the sweep goes on.
    sweep: u64,
    /// Blocks that it has passed since it last found one to send.
    in_vain: u64,
    /// Some of these wait for the log.
    passed_undurable: bool,
    /// All do: none is looked for before more of the log is durable than this.
    undurable_at: Option<Dseq>,
}

/// What a look at the next dirty blocks came to.
#[derive(Debug)]
pub(crate) struct Look {
    /// Blocks that were looked at.
    pub(crate) looked: usize,
    /// The next one; `None` behind the last.
    pub(crate) next: Option<u64>,
    /// Some wait for the log.
    pub(crate) undurable: bool,
    /// Whether none can be sent.
    pub(crate) in_vain: bool,
}

impl Dirty {
    /// A block is dirty.
    pub(super) fn insert(&mut self, block: u64) {
        self.len += u64::from(self.blocks.insert(block));
    }

    /// These are, in order.
    pub(crate) fn insert_sorted(&mut self, blocks: impl Iterator<Item = u64>) {
        let mut last = None;
        let distinct = blocks.filter(|&block| last.replace(block) != Some(block));
        let new = RoaringTreemap::from_sorted_iter(distinct).expect("the caller sorted them");
        self.blocks |= new;
        self.len = self.blocks.len();
    }

    /// A block is not dirty any more.
    pub(super) fn remove(&mut self, block: u64) {
        self.len -= u64::from(self.blocks.remove(block));
    }

    /// None is.
    pub(super) fn clear(&mut self) {
        self.blocks = RoaringTreemap::default();
        self.len = 0;
    }

    /// How many are.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether none is.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Those from `from` on, in order.
    pub(crate) fn iter_from(&self, from: u64) -> impl Iterator<Item = u64> + '_ {
        let mut blocks = self.blocks.iter();
        blocks.advance_to(from);
        blocks
    }

    /// Whether any of `first..=last` is.
    pub(crate) fn any(&self, first: u64, last: u64) -> bool {
        self.iter_from(first).next().is_some_and(|block| block <= last)
    }

    /// This record says of some that they are home, or gone.
    pub(crate) fn ended_by(&mut self, dseq: Dseq) {
        self.said = dseq;
    }

    /// The last such record.
    pub(crate) fn said(&self) -> Dseq {
        self.said
    }

    /// A slice begins: a sweep that has come to the end of the volume begins anew.
    pub(crate) fn sweep_on(&mut self) {
        if self.sweep == SWEPT {
            self.sweep = 0;
        }
    }

    /// Whether the sweep has not passed anything.
    pub(crate) fn is_unswept(&self) -> bool {
        self.sweep == 0
    }

    /// Those that are ahead of the sweep.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = u64> + '_ {
        self.iter_from(self.sweep)
    }

    /// Whether all that could be sent waits for more of the log to be durable than this.
    pub(crate) fn waits_for_log(&self, durable: Dseq) -> bool {
        self.undurable_at == Some(durable)
    }

    /// The sweep has come so far while the log was durable up to `durable`. Whether it has passed
    /// all that is dirty, found none to send, and none that only waits for the log.
    pub(crate) fn swept(&mut self, look: &Look, durable: Dseq) -> bool {
        self.sweep = look.next.unwrap_or(SWEPT);
        self.in_vain += look.looked as u64;
        self.passed_undurable |= look.undurable;
        self.undurable_at = None;
        if look.in_vain && self.in_vain < self.len {
            return false;
        }
        self.in_vain = 0;
        // To look again at what waits for the log does not help.
        if std::mem::take(&mut self.passed_undurable) {
            self.undurable_at = look.in_vain.then_some(durable);
            return false;
        }
        look.in_vain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(looked: usize, next: Option<u64>) -> Look {
        Look { looked, next, undurable: false, in_vain: true }
    }

    #[test]
    fn a_sweep_ends_in_vain_when_it_has_passed_all_that_is_dirty() {
        let mut dirty = Dirty::default();
        dirty.insert_sorted([1, 2, 2, 7].into_iter());
        dirty.insert(7);
        assert_eq!((dirty.len(), dirty.any(3, 6), dirty.any(3, 7)), (3, false, true));
        assert!(!dirty.swept(&look(2, Some(7)), Dseq::NONE));
        assert_eq!(dirty.ahead().collect::<Vec<_>>(), [7]);
        assert!(dirty.swept(&look(1, None), Dseq::NONE), "it has seen all three");
        assert_eq!(dirty.ahead().count(), 0);
        dirty.sweep_on();
        assert_eq!(dirty.ahead().count(), 3);
    }

    #[test]
    fn what_waits_for_the_log_is_looked_at_again_when_more_is_durable() {
        let mut dirty = Dirty::default();
        dirty.insert(1);
        assert!(!dirty.swept(&Look { undurable: true, ..look(1, None) }, Dseq::NONE));
        assert!(dirty.waits_for_log(Dseq::NONE));
        assert!(!dirty.waits_for_log(Dseq::NONE.next()));
    }
}
