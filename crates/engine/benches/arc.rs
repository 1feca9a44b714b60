//! What the engine is compared with: an LRU in RAM before an ARC of whole blocks.
//!
//! N. Megiddo, D. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003.

use std::collections::BTreeMap;

/// Keys in the order in which they were used last.
#[derive(Default)]
struct Recent {
    by_key: BTreeMap<u64, u64>,
    by_time: BTreeMap<u64, u64>,
    clock: u64,
}

impl Recent {
    fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Puts a key at the end that was used last.
    fn put(&mut self, key: u64) {
        self.take(key);
        self.clock += 1;
        self.by_key.insert(key, self.clock);
        self.by_time.insert(self.clock, key);
    }

    /// Takes a key out. Whether it was there.
    fn take(&mut self, key: u64) -> bool {
        let time = self.by_key.remove(&key);
        time.is_some_and(|time| self.by_time.remove(&time).is_some())
    }

    /// Takes the key out that was not used for longest.
    fn pop(&mut self) -> Option<u64> {
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}

/// The two caches.
pub struct Arc {
    blocks: usize,
    /// How many of them should be of those that were used once.
    target: usize,
    once: Recent,
    often: Recent,
    /// What was there.
    once_ghosts: Recent,
    often_ghosts: Recent,
    ram: Recent,
    ram_blocks: usize,
}

impl Arc {
    /// Of so many blocks, behind so many of RAM.
    pub fn new(blocks: usize, ram_blocks: usize) -> Arc {
        Arc {
            blocks,
            target: 0,
            once: Recent::default(),
            often: Recent::default(),
            once_ghosts: Recent::default(),
            often_ghosts: Recent::default(),
            ram: Recent::default(),
            ram_blocks,
        }
    }

    /// Reads or writes a block. Whether it was there.
    pub fn access(&mut self, key: u64, write: bool) -> bool {
        let in_ram = self.ram.by_key.contains_key(&key);
        if self.ram_blocks > 0 {
            self.ram.put(key);
            if self.ram.len() > self.ram_blocks {
                self.ram.pop();
            }
        }
        // What RAM answers the cache behind it does not see.
        (in_ram && !write) || self.access_cache(key)
    }

    fn access_cache(&mut self, key: u64) -> bool {
        if self.once.take(key) || self.often.take(key) {
            self.often.put(key);
            return true;
        }
        let (b1, b2) = (self.once_ghosts.len(), self.often_ghosts.len());
        if self.once_ghosts.take(key) {
            self.target = (self.target + (b2 / b1).max(1)).min(self.blocks);
            self.replace(false);
            self.often.put(key);
            return false;
        }
        if self.often_ghosts.take(key) {
            self.target = self.target.saturating_sub((b1 / b2).max(1));
            self.replace(true);
            self.often.put(key);
            return false;
        }
        if self.once.len() + b1 == self.blocks {
            if self.once.len() < self.blocks {
                self.once_ghosts.pop();
                self.replace(false);
            } else {
                self.once.pop();
            }
        } else if self.once.len() + self.often.len() + b1 + b2 >= self.blocks {
            if self.once.len() + self.often.len() + b1 + b2 == 2 * self.blocks {
                self.often_ghosts.pop();
            }
            self.replace(false);
        }
        self.once.put(key);
        false
    }

    fn replace(&mut self, often_ghost: bool) {
        if self.once.len() + self.often.len() < self.blocks {
            return;
        }
        let once = self.once.len();
        if once > 0 && (once > self.target || (often_ghost && once == self.target)) {
            let key = self.once.pop().expect("there is one");
            self.once_ghosts.put(key);
        } else if let Some(key) = self.often.pop() {
            self.often_ghosts.put(key);
        }
    }
}
