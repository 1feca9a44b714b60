//! Which requests may be under way together. I10: overlapping requests reach cache and origin in
//! one order.
//!
//! A read never waits for a cache write: it took its places from the index when it began, and
//! either value is legal for it. A write that begins while a read is under way tells the read not
//! to fill the cache with what it brings (I7). Only a write to the origin excludes reads, before it
//! and behind it: the origin may show the new data to one read and the old data to the next, most
//! of all if the write fails.

use crate::ids::Key;
use crate::requests::ReqKey;

/// What a request does to its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads them.
    Read,
    /// Writes them into the cache.
    CacheWrite,
    /// Writes them at the origin.
    OriginWrite,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    first: Key,
    last: Key,
    access: Access,
    req: ReqKey,
}

/// The requests under way and those that wait for them.
#[derive(Debug, Default)]
pub struct Overlap {
    held: Vec<Held>,
    waiting: Vec<Held>,
    /// Requests held or waiting that write at the origin: without any, no read is ever held up.
    origin_writes: usize,
}

fn conflict(new: Access, old: Access) -> bool {
    use Access::*;
    match (new, old) {
        (Read, OriginWrite) => true,
        (Read, _) => false,
        (CacheWrite, Read) => false,
        (CacheWrite | OriginWrite, _) => true,
    }
}

impl Overlap {
    /// Lets `req` begin on blocks `first..=last`, or makes it wait behind what it overlaps.
    pub fn acquire(&mut self, req: ReqKey, first: Key, last: Key, access: Access) -> bool {
        let new = Held { first, last, access, req };
        self.origin_writes += usize::from(access == Access::OriginWrite);
        if self.blocked(&new, self.waiting.len()) {
            self.waiting.push(new);
            return false;
        }
        self.held.push(new);
        true
    }

    fn blocked(&self, new: &Held, waiting_before: usize) -> bool {
        if new.access == Access::Read && self.origin_writes == 0 {
            return false;
        }
        let clash = |old: &Held| {
            old.first <= new.last && new.first <= old.last && conflict(new.access, old.access)
        };
        self.held.iter().any(clash) || self.waiting[..waiting_before].iter().any(clash)
    }

    /// `req` is done with its blocks.
    pub fn release(&mut self, req: ReqKey) {
        let at = self.held.iter().position(|held| held.req == req).expect("it was acquired");
        let held = self.held.swap_remove(at);
        self.origin_writes -= usize::from(held.access == Access::OriginWrite);
    }

    /// A waiting request that may begin now; it holds its blocks from here on.
    pub fn next_ready(&mut self) -> Option<ReqKey> {
        let at = (0..self.waiting.len()).find(|&at| !self.blocked(&self.waiting[at], at))?;
        let ready = self.waiting.remove(at);
        self.held.push(ready);
        Some(ready.req)
    }

    /// Calls `each` for every read under way that overlaps `first..=last`.
    pub fn reads(&self, first: Key, last: Key, mut each: impl FnMut(ReqKey)) {
        for held in &self.held {
            if held.access == Access::Read && held.first <= last && first <= held.last {
                each(held.req);
            }
        }
    }
}
