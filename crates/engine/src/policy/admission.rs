//! What enters the cache. Read misses at their second miss: on real traces that halves the flash
//! writes at ARC's hit ratio (a list of what missed once; everything until the cache has been full
//! once).

use crate::ids::Key;
use zerocopy::FromZeros;

/// Extents of a set.
const WAYS: usize = 4;
/// Blocks of an extent.
const EXTENT_BLOCKS: u64 = 16;
/// Blocks of the cache for each extent that is remembered.
const BLOCKS_PER_EXTENT: usize = 8;

/// Neighbours, some of which have missed once.
#[derive(Debug, Clone, Copy, FromZeros)]
struct Extent {
    /// Of its number; 0 for none.
    fingerprint: u16,
    /// Which of its blocks have.
    missed: u16,
}

/// The ghost: extents with blocks that missed once, in small sets, of which the one goes that was
/// not looked at for longest. Half a byte for each block of the cache. What a request reads is
/// remembered and forgotten together, so that no holes are left that would split later reads of the
/// origin.
#[derive(Debug)]
pub struct Admission {
    sets: Vec<[Extent; WAYS]>,
    set_count: usize,
    /// The cache has been full once: from now on the second miss counts.
    full_once: bool,
}

impl Admission {
    /// A ghost for a cache of `slots` blocks. Memory is taken when the cache has been full once.
    pub fn new(slots: u32) -> Admission {
        Admission {
            sets: Vec::new(),
            set_count: (slots as usize / BLOCKS_PER_EXTENT / WAYS).max(1),
            full_once: false,
        }
    }

    /// What clients read had to go.
    pub fn was_full(&mut self) {
        self.full_once = true;
    }

    /// Whether a block that missed may enter now; remembers it if not.
    pub fn admit_miss(&mut self, key: Key) -> bool {
        if !self.full_once {
            return true;
        }
        if self.sets.is_empty() {
            let zeroed = <[Extent; WAYS]>::new_vec_zeroed(self.set_count);
            self.sets = zeroed.expect("memory for the ghost");
        }
        let (number, block) = (key.raw() / EXTENT_BLOCKS, 1 << (key.raw() % EXTENT_BLOCKS));
        let hash = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let fingerprint = ((hash >> 16) as u16).max(1);
        let set = &mut self.sets[(hash >> 32) as usize % self.set_count];
        if let Some(at) = set.iter().position(|extent| extent.fingerprint == fingerprint) {
            set[..=at].rotate_right(1);
            let second = set[0].missed & block != 0;
            set[0].missed ^= block;
            return second;
        }
        set.rotate_right(1);
        set[0] = Extent { fingerprint, missed: block };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_miss_is_admitted_once_the_cache_has_been_full() {
        let mut admission = Admission::new(1024);
        assert!(admission.admit_miss(Key::of(7)), "everything is admitted at first");
        admission.was_full();
        assert!(!admission.admit_miss(Key::of(7)));
        assert!(admission.admit_miss(Key::of(7)));
        assert!(!admission.admit_miss(Key::of(7)), "admitted blocks leave the ghost");
    }

    #[test]
    fn the_ghost_forgets_what_is_older_than_as_many_extents_as_it_has() {
        let mut admission = Admission::new(8192);
        admission.was_full();
        assert!(!admission.admit_miss(Key::of(1)));
        let admitted =
            (100..4100).filter(|n| admission.admit_miss(Key::of(n * EXTENT_BLOCKS))).count();
        assert!(admitted < 4, "{admitted} first misses were taken for second ones");
        assert!(!admission.admit_miss(Key::of(1)));
    }

    #[test]
    fn neighbours_are_remembered_together() {
        let mut admission = Admission::new(1024);
        admission.was_full();
        // Four times what single blocks it could remember: a scan that is read twice.
        let blocks = 1024 / BLOCKS_PER_EXTENT as u64 * EXTENT_BLOCKS / 4;
        assert!((0..blocks).all(|key| !admission.admit_miss(Key::of(key))));
        let mut again =
            (0..blocks).map(|key| admission.admit_miss(Key::of(key))).collect::<Vec<_>>();
        again.dedup();
        assert!(again.len() <= 8, "it has holes: {again:?}");
        assert!(again.contains(&true));
    }
}
