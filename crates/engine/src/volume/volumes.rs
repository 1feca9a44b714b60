//! The volumes of a pool, by number and by key.

use crate::event::VolumeId;
use crate::ids::Key;
use crate::volume::Volume;
use std::cell::Cell;
use std::collections::BTreeMap;

mod told;

/// The volumes. Each has a range of keys of its own (I14). However many a pool has had, only those
/// that it has count here. They are there for all to look at; what happens to one it is told here.
#[derive(Debug, Default)]
pub struct Volumes {
    /// Their numbers, in order.
    numbers: Vec<VolumeId>,
    /// They themselves, in that order.
    volumes: Vec<Box<Volume>>,
    /// First keys, in order, and whose they are in the order of numbers.
    bases: Vec<(Key, usize)>,
    /// Which of them was asked for last, by number and by key: mostly it is the next, too, and a
    /// request need not search for its volume again and again.
    last: Cell<usize>,
    last_base: Cell<usize>,
}

impl Volumes {
    #[inline]
    fn find(&self, id: VolumeId) -> Option<usize> {
        if self.numbers.get(self.last.get()) != Some(&id) {
            self.last.set(self.numbers.binary_search(&id).ok()?);
        }
        Some(self.last.get())
    }

    /// The volume of a number.
    #[inline]
    pub fn get(&self, id: VolumeId) -> Option<&Volume> {
        Some(self.nth(self.find(id)?))
    }

    fn find_key(&self, key: Key) -> Option<usize> {
        let owns = |&&(base, at): &&(Key, usize)| base <= key && key < self.nth(at).keys().1;
        if let Some(&(_, at)) = self.bases.get(self.last_base.get()).filter(owns) {
            return Some(at);
        }
        let behind = self.bases.partition_point(|&(base, _)| base <= key);
        self.last_base.set(behind.checked_sub(1)?);
        let &(_, at) = self.bases.get(self.last_base.get()).filter(owns)?;
        Some(at)
    }

    /// The volume of a key.
    pub fn of(&self, key: Key) -> Option<&Volume> {
        Some(self.nth(self.find_key(key)?))
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.iter().map(|volume| &**volume)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.volumes.len()
    }

    /// The volume that is `at` in the order of numbers.
    pub fn nth(&self, at: usize) -> &Volume {
        &self.volumes[at]
    }

    /// Adds a volume.
    pub fn insert(&mut self, volume: Volume) {
        let at = self.numbers.binary_search(&volume.id()).expect_err("a number is used once");
        self.numbers.insert(at, volume.id());
        self.volumes.insert(at, Box::new(volume));
        self.keys_changed();
    }

    /// Takes a volume out.
    pub fn remove(&mut self, id: VolumeId) {
        let at = self.find(id).expect("the caller looked");
        self.numbers.remove(at);
        self.volumes.remove(at);
        self.keys_changed();
    }

    /// Gives all of them other keys.
    pub fn rebase(&mut self, bases: &BTreeMap<VolumeId, Key>) {
        self.volumes.iter_mut().for_each(|volume| volume.rebase(bases[&volume.id()]));
        self.keys_changed();
    }

    fn keys_changed(&mut self) {
        let mut bases: Vec<_> = self.iter().map(|volume| volume.base()).zip(0..).collect();
        bases.sort_unstable();
        self.bases = bases;
    }
}

/// Blocks that are left behind each volume for it to grow, at least: a tebibyte.
const GROWTH_BLOCKS_MIN: u64 = 1 << 28;

/// The first stretch of the keys below `keys_max` that has room for `blocks`, where others are
/// taken; if there is one, with room for all of them to grow.
pub(crate) fn base_among(taken: &mut [(Key, Key)], blocks: u64, keys_max: Key) -> Option<Key> {
    taken.sort_unstable();
    let ample = |blocks: u64| (4 * blocks).max(GROWTH_BLOCKS_MIN);
    let fit = |wanted: u64, room: &dyn Fn(u64) -> u64| {
        let mut base = Key::FIRST;
        for &(from, to) in taken.iter() {
            if base + wanted <= from {
                break;
            }
            base = base.max(from + room(to - from));
        }
        (base + wanted <= keys_max).then_some(base)
    };
    fit(ample(blocks), &ample).or_else(|| fit(blocks, &|blocks| blocks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::VolumeSpec;
    use forebay_format::mode::Mode;

    fn volume(number: u32, base: u64, blocks: u64) -> Volume {
        let spec = VolumeSpec {
            name: String::new(),
            origin: String::new(),
            uuid: [0; 16],
            fingerprint: [0; 32],
            bytes: blocks * 4096,
            mode: Mode::WriteBack,
            volatile_cache: true,
            exact_flushes: false,
            stripe_blocks: 0,
        };
        Volume::new(VolumeId(number), spec, Key::of(base))
    }

    #[test]
    fn a_key_is_of_the_volume_in_whose_range_it_lies() {
        let mut volumes = Volumes::default();
        let of = |volumes: &Volumes, key| volumes.of(Key::of(key)).map(|volume| volume.id().0);
        assert_eq!(of(&volumes, 0), None);
        volumes.insert(volume(2, 10, 5));
        volumes.insert(volume(1, 20, 5));
        assert_eq!(
            [9, 10, 14, 15, 20, 25].map(|key| of(&volumes, key)),
            [None, Some(2), Some(2), None, Some(1), None]
        );
        let bases = [(VolumeId(1), Key::of(0)), (VolumeId(2), Key::of(5))];
        volumes.rebase(&BTreeMap::from(bases));
        assert_eq!([4, 5, 20].map(|key| of(&volumes, key)), [Some(1), Some(2), None]);
        volumes.insert(volume(9, 40, 5));
        assert_eq!([40, 4].map(|key| of(&volumes, key)), [Some(9), Some(1)]);
        assert!(volumes.get(VolumeId(9)).is_some() && volumes.get(VolumeId(0)).is_none());
        volumes.remove(VolumeId(9));
        volumes.remove(VolumeId(1));
        assert_eq!([4, 5].map(|key| of(&volumes, key)), [None, Some(2)]);
        assert_eq!(volumes.iter().count(), 1);
    }

    #[test]
    fn volumes_have_room_to_grow_as_long_as_there_is_some() {
        const TIB: u64 = GROWTH_BLOCKS_MIN;
        let base = |taken: &[(u64, u64)], blocks, keys_max| {
            let keys = |&(from, to): &(u64, u64)| (Key::of(from), Key::of(to));
            let mut taken: Vec<_> = taken.iter().map(keys).collect();
            base_among(&mut taken, blocks, Key::of(keys_max)).map(Key::raw)
        };
        assert_eq!(base(&[], 100, 256 * TIB), Some(0));
        assert_eq!(base(&[(0, 100)], 100, 256 * TIB), Some(TIB));
        assert_eq!(base(&[(TIB, TIB + 100)], 100, 256 * TIB), Some(0));
        assert_eq!(base(&[(0, 2 * TIB)], TIB, 256 * TIB), Some(8 * TIB));
        // Where that is too much, as near as can be.
        assert_eq!(base(&[(0, 100)], 50, 1000), Some(100));
        assert_eq!(base(&[(10, 100), (150, 200)], 50, 1000), Some(100));
        assert_eq!(base(&[(0, 100)], 901, 1000), None);
    }
}
