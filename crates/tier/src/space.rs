//! Which places are free: the owner of T3 (a place is given away only when the map durably says
//! that nobody lives there, nobody reads or writes it any more, and its device has been told).

use crate::event::MemberId;
use forebay_format::tier::Place;
use std::collections::{BTreeMap, BTreeSet};

/// Free slots of one member: a bit each, with sums above, so that finding one takes few steps
/// however many there are.
#[derive(Debug)]
struct Slots {
    /// `levels[0]` has a bit for each slot; a bit of the next says that a word below is not zero.
    levels: Vec<Vec<u64>>,
    count: u32,
    /// Where the next search begins: neighbours go to neighbours.
    cursor: u32,
}

impl Slots {
    fn new(slots: u32) -> Slots {
        let mut levels = Vec::new();
        let mut words = slots as usize;
        while {
            words = words.div_ceil(64).max(1);
            levels.push(vec![0; words]);
            words > 1
        } {}
        let mut free = Slots { levels, count: 0, cursor: 0 };
        (0..slots).for_each(|slot| free.put(slot));
        free
    }

    fn has(&self, slot: u32) -> bool {
        self.levels[0][slot as usize / 64] >> (slot % 64) & 1 == 1
    }

    fn put(&mut self, slot: u32) {
        assert!(!self.has(slot), "a slot is freed twice");
        self.count += 1;
        let mut index = slot as usize;
        for level in &mut self.levels {
            level[index / 64] |= 1 << (index % 64);
            index /= 64;
        }
    }

    fn take(&mut self, slot: u32) {
        assert!(self.has(slot), "a slot that is not free is taken");
        self.count -= 1;
        let mut index = slot as usize;
        for level in &mut self.levels {
            level[index / 64] &= !(1 << (index % 64));
            if level[index / 64] != 0 {
                break;
            }
            index /= 64;
        }
    }

    /// The first free slot at or behind `from`.
    fn next(&self, from: u32) -> Option<u32> {
        let (mut height, mut index) = (0, from as usize);
        // Up, until something is there at or behind; then down to its first.
        loop {
            let level = self.levels.get(height)?;
            let word = index / 64;
            let bits = level.get(word).map_or(0, |bits| bits >> (index % 64) << (index % 64));
            if bits != 0 {
                index = word * 64 + bits.trailing_zeros() as usize;
                break;
            }
            (height, index) = (height + 1, word + 1);
        }
        for level in self.levels[..height].iter().rev() {
            index = index * 64 + level[index].trailing_zeros() as usize;
        }
        Some(index as u32)
    }

    fn pop(&mut self) -> Option<u32> {
        let slot = self.next(self.cursor).or_else(|| self.next(0))?;
        self.take(slot);
        self.cursor = slot + 1;
        Some(slot)
    }
}

/// A place that nobody lives in any more, and that is not free yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// Until records up to this one are confirmed.
    Said(u64),
    /// Until its device has been told.
    Trimming,
}

/// The owner of free places.
#[derive(Debug, Default)]
pub(crate) struct Space {
    free: Vec<Slots>,
    leaving: BTreeMap<Place, Leaving>,
    /// In the order in which they are confirmed.
    by_seq: BTreeSet<(u64, Place)>,
    /// I/O under way on each place.
    users: BTreeMap<Place, u32>,
    /// Confirmed, and not used any more: to be told to the device.
    ready: Vec<Place>,
}

impl Space {
    pub fn add_member(&mut self, slots: u32) {
        self.free.push(Slots::new(slots));
    }

    /// A member of so many slots has this number, of which nothing is in use.
    pub fn set_member(&mut self, member: MemberId, slots: u32) {
        let number = usize::from(member.0);
        let is_other = |place: &Place| place.member() != member.0;
        self.leaving.retain(|place, _| is_other(place));
        self.by_seq.retain(|(_, place)| is_other(place));
        self.ready.retain(is_other);
        match self.free.get_mut(number) {
            Some(own) => *own = Slots::new(slots),
            None => self.free.push(Slots::new(slots)),
        }
        assert!(number < self.free.len(), "numbers are given in order");
    }

    pub fn free(&self, member: MemberId) -> u32 {
        self.free[usize::from(member.0)].count
    }

    /// Takes a free place.
    pub fn take(&mut self, member: MemberId) -> Option<Place> {
        Some(Place::new(member.0, self.free[usize::from(member.0)].pop()?))
    }

    /// Takes this place for an extent that a start has found there; whether it was free.
    pub fn claim(&mut self, place: Place) -> bool {
        let Some(slots) = self.free.get_mut(usize::from(place.member())) else { return false };
        let is_free =
            (place.slot() as usize) < slots.levels[0].len() * 64 && slots.has(place.slot());
        if is_free {
            slots.take(place.slot());
        }
        is_free
    }

    /// Nobody lives there from record `seq` on.
    pub fn retire(&mut self, place: Place, seq: u64, confirmed: u64) {
        let before = self.leaving.insert(place, Leaving::Said(seq));
        assert!(before.is_none(), "a place is left twice");
        self.by_seq.insert((seq, place));
        self.confirm(confirmed);
    }

    /// Records up to this one are confirmed.
    pub fn confirm(&mut self, seq: u64) {
        let mut kept = Vec::new();
        while let Some(&(said, place)) = self.by_seq.first().filter(|it| it.0 <= seq) {
            self.by_seq.pop_first();
            match self.users.contains_key(&place) {
                true => kept.push((said, place)),
                false => {
                    self.leaving.insert(place, Leaving::Trimming);
                    self.ready.push(place);
                }
            }
        }
        self.by_seq.extend(kept);
    }

    /// What can be told to the devices.
    pub fn take_ready(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.ready)
    }

    /// The device knows: the place is free.
    pub fn trimmed(&mut self, place: Place) {
        let before = self.leaving.remove(&place);
        assert_eq!(before, Some(Leaving::Trimming));
        assert!(!self.users.contains_key(&place));
        self.free[usize::from(place.member())].put(place.slot());
    }

    /// I/O begins there.
    pub fn hold(&mut self, place: Place) {
        *self.users.entry(place).or_default() += 1;
    }

    /// I/O has ended there.
    pub fn release(&mut self, place: Place, confirmed: u64) {
        let users = self.users.get_mut(&place).expect("it was held");
        *users -= 1;
        if *users == 0 {
            self.users.remove(&place);
            if self.leaving.contains_key(&place) {
                self.confirm(confirmed);
            }
        }
    }

    /// Whether places will become free without anybody's doing.
    pub fn is_freeing(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The first record that has to be confirmed for a place to become free.
    pub fn waits_for(&self) -> Option<u64> {
        self.by_seq.first().map(|it| it.0)
    }

    /// Whether a place is free, or will be.
    pub fn is_out_of_use(&self, place: Place) -> bool {
        self.free[usize::from(place.member())].has(place.slot())
            || self.leaving.contains_key(&place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_slots_are_found_in_order_however_many() {
        let mut slots = Slots::new(70_000);
        assert_eq!((slots.levels.len(), slots.count), (3, 70_000));
        for expected in 0..70_000 {
            assert_eq!(slots.pop(), Some(expected));
        }
        assert_eq!(slots.pop(), None);
        slots.put(69_999);
        slots.put(5);
        assert_eq!(slots.next(6), Some(69_999));
        assert_eq!((slots.pop(), slots.pop(), slots.pop()), (Some(5), Some(69_999), None));
    }

    #[test]
    fn a_place_is_free_when_it_is_confirmed_unused_and_told() {
        let mut space = Space::default();
        space.add_member(1);
        let place = space.take(MemberId(0)).unwrap();
        space.hold(place);
        space.retire(place, 7, 6);
        space.confirm(7);
        assert!(space.take_ready().is_empty());
        space.release(place, 7);
        assert_eq!(space.take_ready(), [place]);
        assert_eq!(space.free(MemberId(0)), 0);
        space.trimmed(place);
        assert_eq!(space.free(MemberId(0)), 1);
    }
}
