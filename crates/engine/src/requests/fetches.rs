//! Which blocks are being read from origins: a read that needs one of them joins the read that is
//! under way.

use crate::ids::Key;
use crate::requests::ReqKey;
use std::collections::BTreeMap;

/// A read that takes some blocks of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// The request.
    pub req: ReqKey,
    /// First block.
    pub key: Key,
    /// Blocks.
    pub blocks: u64,
}

#[derive(Debug)]
struct Fetch {
    /// The block behind the last.
    end: Key,
    /// The request whose read it is.
    req: ReqKey,
    joined: Vec<Joined>,
}

/// The reads of origins that others may join, by first block. A read that a write has overtaken
/// brings old data for all that come after it, and is none of them any more (I7).
#[derive(Debug, Default)]
pub struct Fetches {
    open: BTreeMap<Key, Fetch>,
    /// Those that nobody may join any more, with their readers, by request and first block.
    closed: BTreeMap<(ReqKey, Key), Vec<Joined>>,
}

impl Fetches {
    /// Blocks from `key` on that one read brings, of the next `blocks`, if one does.
    pub fn joins(&self, key: Key, blocks: u64) -> Option<u64> {
        let (_, fetch) = self.open.range(..=key).next_back()?;
        let there = (fetch.end.max(key) - key).min(blocks);
        (there > 0).then_some(there)
    }

    /// Blocks from `key` on, of the next `blocks`, that no read brings.
    pub fn lacks(&self, key: Key, blocks: u64) -> u64 {
        let next = self.open.range(key..key + blocks).next();
        next.map_or(blocks, |(&first, _)| first - key)
    }

    /// A request reads so many blocks, none of which another one brings.
    pub fn begin(&mut self, req: ReqKey, key: Key, blocks: u64) {
        let fetch = Fetch { end: key + blocks, req, joined: Vec::new() };
        assert!(self.open.insert(key, fetch).is_none(), "it would have been joined");
    }

    /// A request takes blocks that `joins` has found.
    pub fn join(&mut self, joined: Joined) {
        let (_, fetch) = self.open.range_mut(..=joined.key).next_back().expect("found before");
        assert!(joined.key + joined.blocks <= fetch.end);
        fetch.joined.push(joined);
    }

    /// A write overtakes the reads of these blocks: nobody joins them any more.
    pub fn overtake(&mut self, first: Key, last: Key) {
        while let Some((&key, fetch)) = self.open.range(..=last).next_back() {
            if fetch.end <= first {
                return;
            }
            let fetch = self.open.remove(&key).expect("just seen");
            if !fetch.joined.is_empty() {
                self.closed.insert((fetch.req, key), fetch.joined);
            }
        }
    }

    /// A read of a request has ended. Those that have joined it.
    pub fn end(&mut self, req: ReqKey, key: Key) -> Vec<Joined> {
        if self.open.get(&key).is_some_and(|fetch| fetch.req == req) {
            return self.open.remove(&key).expect("just seen").joined;
        }
        self.closed.remove(&(req, key)).unwrap_or_default()
    }

    /// Whether no read of an origin is under way.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        Key::of(number)
    }

    #[test]
    fn a_read_takes_what_others_bring_and_reads_the_rest() {
        let mut fetches = Fetches::default();
        fetches.begin(ReqKey::nth(1), key(10), 4);
        fetches.begin(ReqKey::nth(2), key(20), 2);
        assert_eq!(fetches.joins(key(8), 10), None);
        assert_eq!(fetches.lacks(key(8), 10), 2);
        assert_eq!(fetches.joins(key(12), 10), Some(2));
        assert_eq!(fetches.lacks(key(14), 10), 6);
        let joined = Joined { req: ReqKey::nth(7), key: key(12), blocks: 2 };
        fetches.join(joined);
        assert_eq!(fetches.end(ReqKey::nth(1), key(10)), [joined]);
        assert_eq!(fetches.joins(key(12), 1), None);
        assert_eq!((fetches.end(ReqKey::nth(2), key(20)), fetches.is_empty()), (Vec::new(), true));
    }

    #[test]
    fn nobody_joins_a_read_that_a_write_has_overtaken() {
        let mut fetches = Fetches::default();
        fetches.begin(ReqKey::nth(1), key(10), 4);
        fetches.begin(ReqKey::nth(2), key(14), 4);
        let joined = Joined { req: ReqKey::nth(7), key: key(11), blocks: 1 };
        fetches.join(joined);
        fetches.overtake(key(13), key(14));
        assert_eq!((fetches.joins(key(10), 1), fetches.joins(key(17), 1)), (None, None));
        fetches.begin(ReqKey::nth(3), key(10), 4);
        assert_eq!(fetches.end(ReqKey::nth(1), key(10)), [joined], "it has what it waits for");
        assert_eq!(fetches.joins(key(10), 4), Some(4));
        fetches.overtake(key(14), key(20));
        assert_eq!(fetches.joins(key(10), 4), Some(4), "others stay");
        assert_eq!(
            (fetches.end(ReqKey::nth(2), key(14)), fetches.end(ReqKey::nth(3), key(10))),
            (vec![], vec![])
        );
        assert!(fetches.is_empty());
    }
}
