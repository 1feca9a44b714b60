//! Which requests may be under way together. I10: overlapping requests reach cache and origin in
//! one order.
//!
//! A read never waits for a cache write: it took its places from the index when it began, and
//! either value is legal for it. A write that begins while a read is under way tells the read not
//! to fill the cache with what it brings (I7). Only a write to the origin excludes reads, before it
//! and behind it: the origin may show the new data to one read and the old data to the next, most
//! of all if the write fails.
//!
//! Clients may have thousands of requests under way. Each stands in the lists of the stretches that
//! it touches, and one that waits is looked at again only when the one that it was found to wait
//! for is done.

use crate::ids::Key;
use crate::requests::ReqKey;
use std::collections::BTreeSet;

/// Blocks of a stretch.
const STRETCH_BLOCKS: u64 = 64;
/// Lists of stretches; a list has every so many-th.
const LISTS: usize = 256;
/// What touches more stretches stands in a list of its own, that all look at.
const STRETCHES_MAX: u64 = 8;

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

fn conflict(new: Access, old: Access) -> bool {
    use Access::*;
    match (new, old) {
        (Read, OriginWrite) | (OriginWrite, Read) => true,
        (Read, _) | (_, Read) => false,
        (CacheWrite | OriginWrite, CacheWrite | OriginWrite) => true,
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    req: ReqKey,
    first: Key,
    last: Key,
    access: Access,
    /// Its number in the order of arrival.
    order: u64,
    holds: bool,
    /// The first that waits for this one, and the next that waits for the same as this one.
    followers: Option<u32>,
    next: Option<u32>,
}

/// The requests under way and those that wait for them. They conflict both ways or not at all, so
/// whoever arrived later and conflicts with one that waits, waits too.
#[derive(Debug)]
pub struct Overlap {
    /// By the request's place among all.
    entries: Vec<Option<Entry>>,
    /// By stretch.
    lists: Box<[Vec<u32>]>,
    wide: Vec<u32>,
    arrived: u64,
    /// Of those that wait: whom they waited for is done. By their order of arrival.
    again: BTreeSet<(u64, u32)>,
    /// Requests held or waiting that write at the origin: without any, no read is ever held up.
    origin_writes: usize,
}

impl Default for Overlap {
    fn default() -> Overlap {
        Overlap {
            entries: Vec::new(),
            lists: vec![Vec::new(); LISTS].into(),
            wide: Vec::new(),
            arrived: 0,
            again: BTreeSet::new(),
            origin_writes: 0,
        }
    }
}

/// The lists of these blocks; `None` where they are too many.
fn lists_of(first: Key, last: Key) -> Option<impl Iterator<Item = usize>> {
    let [from, to] = [first, last].map(|key| (key - Key::FIRST) / STRETCH_BLOCKS);
    (to - from < STRETCHES_MAX).then(|| (from..=to).map(|at| at as usize % LISTS))
}

impl Overlap {
    /// Lets `req` begin on blocks `first..=last`, or makes it wait behind what it overlaps.
    pub fn acquire(&mut self, req: ReqKey, first: Key, last: Key, access: Access) -> bool {
        self.origin_writes += usize::from(access == Access::OriginWrite);
        self.arrived += 1;
        let order = self.arrived;
        let new =
            Entry { req, first, last, access, order, holds: false, followers: None, next: None };
        let before = self.before(&new);
        let at = req.place();
        if self.entries.len() <= at as usize {
            self.entries.resize(at as usize + 1, None);
        }
        assert!(self.entries[at as usize].is_none(), "a request acquires its blocks once");
        self.entries[at as usize] = Some(Entry { holds: before.is_none(), ..new });
        match lists_of(first, last) {
            Some(lists) => lists.for_each(|list| self.lists[list].push(at)),
            None => self.wide.push(at),
        }
        if let Some(before) = before {
            self.follow(before, at);
        }
        before.is_none()
    }

    fn entry(&self, at: u32) -> &Entry {
        self.entries[at as usize].as_ref().expect("it is listed")
    }

    fn entry_mut(&mut self, at: u32) -> &mut Entry {
        self.entries[at as usize].as_mut().expect("it is listed")
    }

    fn follow(&mut self, before: u32, at: u32) {
        let next = self.entry_mut(before).followers.replace(at);
        self.entry_mut(at).next = next;
    }

    /// One that it has to wait for.
    fn before(&self, new: &Entry) -> Option<u32> {
        if new.access == Access::Read && self.origin_writes == 0 {
            return None;
        }
        let clash = |&at: &u32| {
            let old = self.entry(at);
            old.first <= new.last
                && new.first <= old.last
                && conflict(new.access, old.access)
                && old.order < new.order
        };
        match lists_of(new.first, new.last) {
            Some(mut lists) => lists
                .find_map(|list| self.lists[list].iter().copied().find(clash))
                .or_else(|| self.wide.iter().copied().find(clash)),
            None => {
                let listed = |at: &u32| self.entries[*at as usize].is_some();
                (0..self.entries.len() as u32).filter(listed).find(clash)
            }
        }
    }

    /// `req` is done with its blocks.
    pub fn release(&mut self, req: ReqKey) {
        let at = req.place();
        let done = self.entries[at as usize].take().expect("it was acquired");
        assert!(done.req == req && done.holds, "it was acquired");
        self.origin_writes -= usize::from(done.access == Access::OriginWrite);
        let forget = |list: &mut Vec<u32>| {
            let place = list.iter().position(|&one| one == at).expect("it is listed");
            list.swap_remove(place);
        };
        match lists_of(done.first, done.last) {
            Some(lists) => lists.for_each(|list| forget(&mut self.lists[list])),
            None => forget(&mut self.wide),
        }
        let mut follower = done.followers;
        while let Some(at) = follower {
            let one = self.entry_mut(at);
            follower = one.next.take();
            let order = one.order;
            self.again.insert((order, at));
        }
    }

    /// A waiting request that may begin now; it holds its blocks from here on.
    pub fn next_ready(&mut self) -> Option<ReqKey> {
        while let Some((_, at)) = self.again.pop_first() {
            match self.before(self.entry(at)) {
                Some(before) => self.follow(before, at),
                None => {
                    let ready = self.entry_mut(at);
                    ready.holds = true;
                    return Some(ready.req);
                }
            }
        }
        None
    }

    /// Calls `each` for every read under way that overlaps `first..=last`, once or more often.
    pub fn reads(&self, first: Key, last: Key, mut each: impl FnMut(ReqKey)) {
        let mut look = |entry: &Entry| {
            if entry.access == Access::Read
                && entry.holds
                && entry.first <= last
                && first <= entry.last
            {
                each(entry.req);
            }
        };
        match lists_of(first, last) {
            Some(lists) => {
                let near = lists.flat_map(|list| &self.lists[list]).chain(&self.wide);
                near.for_each(|&at| look(self.entry(at)));
            }
            None => self.entries.iter().flatten().for_each(look),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u64) -> Key {
        Key::FIRST + block
    }

    /// What the above must do, said in the plainest way.
    #[derive(Default)]
    struct Plain {
        held: Vec<(u64, u64, u64, Access)>,
        waiting: Vec<(u64, u64, u64, Access)>,
    }

    impl Plain {
        fn is_free(
            &self,
            (_, first, last, access): (u64, u64, u64, Access),
            before: usize,
        ) -> bool {
            let mut others = self.held.iter().chain(&self.waiting[..before]);
            others
                .all(|&(_, from, to, other)| to < first || last < from || !conflict(access, other))
        }

        fn ready(&mut self) -> Option<u64> {
            let waiting = 0..self.waiting.len();
            let at = waiting.into_iter().find(|&at| self.is_free(self.waiting[at], at))?;
            let one = self.waiting.remove(at);
            self.held.push(one);
            Some(one.0)
        }
    }

    #[test]
    fn turns_are_those_of_the_plain_rule() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for space in [40, 700, 40_000] {
            let (mut overlap, mut plain) = (Overlap::default(), Plain::default());
            let mut free: Vec<u64> = (0..300).collect();
            for _ in 0..20_000 {
                if random(2) == 0 && !free.is_empty() {
                    let name = free.swap_remove(random(free.len() as u64) as usize);
                    let first = random(space);
                    let last = first + [random(3), random(200), random(2000)][random(3) as usize];
                    let access = [Access::Read, Access::CacheWrite, Access::OriginWrite];
                    let access = access[random(3) as usize];
                    let one = (name, first, last, access);
                    let begins = plain.is_free(one, plain.waiting.len());
                    if begins { &mut plain.held } else { &mut plain.waiting }.push(one);
                    let req = ReqKey::nth(name);
                    assert_eq!(overlap.acquire(req, key(first), key(last), access), begins);
                } else if !plain.held.is_empty() {
                    let at = random(plain.held.len() as u64) as usize;
                    let (name, ..) = plain.held.swap_remove(at);
                    overlap.release(ReqKey::nth(name));
                    free.push(name);
                }
                if random(3) == 0 {
                    loop {
                        let ready = plain.ready();
                        assert_eq!(overlap.next_ready(), ready.map(ReqKey::nth));
                        if ready.is_none() {
                            break;
                        }
                    }
                }
                let (first, last) = (random(space), random(3000));
                let mut reads = BTreeSet::new();
                overlap.reads(key(first), key(first + last), |req| {
                    reads.insert(req);
                });
                let held = plain.held.iter().filter(|&&(_, from, to, access)| {
                    access == Access::Read && from <= first + last && first <= to
                });
                assert_eq!(reads, held.map(|one| ReqKey::nth(one.0)).collect());
            }
        }
    }

    /// Eight clients with a thousand small writes each: each that ends asks who is next.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
    fn thousands_of_writes_cost_each_other_little() {
        let (mut overlap, begin) = (Overlap::default(), std::time::Instant::now());
        let mut state = 7_u64;
        let mut block = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            key((state >> 33) % 65_536)
        };
        let mut held = std::collections::VecDeque::new();
        let mut start = |overlap: &mut Overlap, req, held: &mut std::collections::VecDeque<_>| {
            let block = block();
            if overlap.acquire(req, block, block, Access::CacheWrite) {
                held.push_back(req);
            }
        };
        for number in 0..8192 {
            start(&mut overlap, ReqKey::nth(number), &mut held);
        }
        for _ in 0..50_000 {
            let done = held.pop_front().expect("one of them holds its block");
            overlap.release(done);
            held.extend(std::iter::from_fn(|| overlap.next_ready()));
            start(&mut overlap, done, &mut held);
        }
        assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}
