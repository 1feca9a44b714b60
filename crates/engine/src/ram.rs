//! The RAM tier: whole blocks, replaced by CLOCK (second chance). It serves the short-term reuse
//! that the admission to the cache device refuses. Holds nothing that is not also elsewhere.

use crate::ids::{Key, Slot};
use crate::index::{Bits, Index, Located};
use crate::policy::admission::Admission;
use forebay_format::BLOCK_SIZE;
use forebay_format::io::Buf;
use std::ops::Range;

/// The tier.
pub struct Ram {
    index: Index,
    keys: Vec<Key>,
    data: Vec<Buf>,
    referenced: Bits,
    hand: usize,
    blocks_max: usize,
    free: Vec<Slot>,
    /// Blocks of the cache device that were read lately, about as many as there is room for.
    ghost: Admission,
}

impl Ram {
    /// A tier of `bytes`. Memory is taken as it fills.
    pub fn new(bytes: u64) -> Ram {
        let blocks_max = (bytes / BLOCK_SIZE as u64).min(1 << 31) as usize;
        Ram {
            index: Index::new(blocks_max as u32, blocks_max as u32),
            keys: Vec::new(),
            data: Vec::new(),
            referenced: Bits::new(blocks_max),
            hand: 0,
            blocks_max,
            free: Vec::new(),
            ghost: Admission::new((2 * blocks_max) as u32),
        }
    }

    /// Keys must be less than this (or the tier be of no size).
    pub fn keys_max(&self) -> Key {
        if self.blocks_max == 0 { Key::MAX } else { self.index.keys_max() }
    }

    /// Blocks held.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Blocks that fit.
    pub fn blocks_max(&self) -> usize {
        self.blocks_max
    }

    /// The block, if it is here.
    pub fn get(&mut self, key: Key) -> Option<&[u8]> {
        if self.blocks_max == 0 {
            return None;
        }
        let at = self.index.get(key)?.slot.at();
        self.referenced.set(at, true);
        Some(self.data[at].bytes())
    }

    /// Puts a block in that was read from the cache device, where it costs little to read it once
    /// more. So when the tier is full it comes in at the second read of late: blocks that are read
    /// too seldom to be found here again cost no copy, and push none out that are.
    pub fn insert_hit(&mut self, key: Key, block: &[u8]) {
        if self.blocks_max > 0 && self.ghost.admit_miss(key) {
            self.insert(key, block);
        }
    }

    /// Puts a block in.
    pub fn insert(&mut self, key: Key, block: &[u8]) {
        if self.blocks_max == 0 {
            return;
        }
        debug_assert_eq!(block.len(), BLOCK_SIZE);
        let at = match self.index.get(key) {
            Some(located) => located.slot.at(),
            None => {
                let at = self.room();
                self.keys[at] = key;
                self.index.insert(key, Located { slot: Slot::of(at as u32), crc: 0 });
                self.referenced.set(at, false);
                at
            }
        };
        self.data[at].bytes_mut().copy_from_slice(block);
    }

    fn room(&mut self) -> usize {
        if let Some(slot) = self.free.pop() {
            return slot.at();
        }
        if self.data.len() < self.blocks_max {
            self.data.push(Buf::zeroed(BLOCK_SIZE));
            self.keys.push(Key::FIRST);
            return self.data.len() - 1;
        }
        self.ghost.was_full();
        loop {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.blocks_max;
            if !self.referenced.get(at) {
                self.index.remove(self.keys[at]).expect("every place is in use");
                return at;
            }
            self.referenced.set(at, false);
        }
    }

    /// Takes blocks out of some places: of part `of.start..of.end` of `parts` of the tier. How many
    /// places that are.
    pub fn remove_some(&mut self, keys: &Range<Key>, of: Range<usize>, parts: usize) -> usize {
        let place = |part: usize| (part * self.blocks_max / parts).min(self.keys.len());
        let places = place(of.start)..place(of.end);
        for at in places.clone() {
            let key = self.keys[at];
            if keys.contains(&key) {
                self.remove(key);
            }
        }
        places.len()
    }

    /// Takes a block out: it was changed elsewhere.
    pub fn remove(&mut self, key: Key) {
        if self.blocks_max > 0
            && let Some(located) = self.index.remove(key)
        {
            self.free.push(located.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads these keys from a cache device, through a tier of 64 blocks. How many were in RAM.
    fn hits(ram: &mut Ram, keys: impl Iterator<Item = u64>) -> usize {
        let block = [7; BLOCK_SIZE];
        let mut read = |key| {
            let key = Key::of(key);
            let hit = ram.get(key).is_some();
            if !hit {
                ram.insert_hit(key, &block);
            }
            hit
        };
        keys.filter(|&key| read(key)).count()
    }

    #[test]
    fn a_sweep_of_the_cache_device_pushes_nothing_out() {
        let mut ram = Ram::new(64 * BLOCK_SIZE as u64);
        assert_eq!(hits(&mut ram, 0..64), 0, "there is room: all come in");
        assert_eq!(hits(&mut ram, 0..64), 64);
        assert_eq!(hits(&mut ram, 1000..3000), 0);
        let left = hits(&mut ram, 0..64);
        assert!(left > 48, "of 64 blocks in use {left} are left after a sweep");
        let again = hits(&mut ram, (0..40).chain(5000..5040).chain(5000..5040).chain(5000..5040));
        assert!(again > 40, "what is read again soon comes in: {again}");
    }
}
