//! Load: the chunks of a checkpoint become the index again, bucket by bucket.
//!
//! What follows the index in the checkpoint is read first, and the log behind it: then it is known
//! which entries count when the buckets come, and each is looked at once, while others are read.
//!
//! An index of the shape in which the checkpoint was written is copied. Where the shape or the
//! volumes' keys are others now, its entries are put in one by one.

use crate::event::VolumeId;
use crate::ids::{Key, Slot};
use crate::index::Shape;
use crate::limits::RECOVERY_READ_BLOCKS;
use crate::volume::volumes::Volumes;
use forebay_format::checkpoint::BlockItem;
use forebay_format::io::Buf;
use std::collections::BTreeMap;
use std::ops::Range;

mod decode;
mod place;

/// Keys of dirty blocks that are gathered before they are sorted into the volumes' sets.
const DIRTY_GATHERED_MAX: usize = 1 << 18;

/// A checkpoint being read.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Reads that have come, by their first block.
    arrived: BTreeMap<u64, Buf>,
    /// Blocks that are in order and not decoded.
    carry: Vec<u8>,
    /// Blocks that are decoded.
    decoded: u64,
    /// Blocks of the checkpoint up to which it is read now.
    end: u64,
    bad: bool,
    shape: Option<Shape>,
    /// Buckets that are in place.
    buckets: u32,
    /// The table is used as it is, and so much of it is counted: the volumes have the keys that
    /// they had.
    counted: Option<Box<Counted>>,
    /// Dirty bits of each bucket, of a table that is not.
    dirty: Vec<u8>,
    placed: Vec<BlockItem>,
    masks: BTreeMap<Slot, u8>,
    volumes: Vec<Keys>,
}

/// Where a volume's keys were when the checkpoint was written.
#[derive(Debug, Clone, Copy)]
struct Keys {
    first: Key,
    blocks: u64,
    volume: VolumeId,
}

impl Load {
    /// Blocks of the checkpoint are here, or (`empty`) cannot be read.
    pub(super) fn arrive(&mut self, from: u64, buf: Buf) {
        self.arrived.insert(from, buf);
    }

    /// Blocks that are here and wait for one before them, which is under way.
    pub(super) fn waiting(&self) -> u64 {
        match self.bad {
            true => 0,
            false => (self.arrived.len() * RECOVERY_READ_BLOCKS) as u64,
        }
    }

    /// These blocks of the checkpoint will come.
    pub(super) fn begin(&mut self, blocks: &Range<u64>) {
        (self.decoded, self.end) = (blocks.start, blocks.end);
    }

    /// Blocks of the checkpoint up to which it is read now.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Whether all that was asked for is decoded and good.
    fn whole(&self) -> bool {
        !self.bad && self.decoded == self.end
    }
}

/// Finds the volume of a key of a checkpoint.
#[derive(Debug)]
struct Finder {
    /// First key, the one behind the last, and which of the checkpoint's volumes it is; those only
    /// that still are.
    ranges: Vec<(Key, Key, usize)>,
    /// Where the last key was found.
    last: usize,
}

impl Finder {
    fn new(volumes: &Volumes, keys: &[Keys]) -> Finder {
        let range = |(at, keys): (usize, &Keys)| {
            let blocks = volumes.get(keys.volume)?.blocks().min(keys.blocks);
            Some((keys.first, keys.first + blocks, at))
        };
        Finder { ranges: keys.iter().enumerate().filter_map(range).collect(), last: 0 }
    }

    fn find(&mut self, key: Key) -> Option<(usize, u64)> {
        let within = |&(first, end, _): &(Key, Key, usize)| (first..end).contains(&key);
        if !self.ranges.get(self.last).is_some_and(within) {
            self.last = self.ranges.partition_point(|&(_, end, _)| end <= key);
        }
        let &(first, _, at) = self.ranges.get(self.last).filter(|range| within(range))?;
        Some((at, key - first))
    }
}

/// What is counted of a table that is used as it is.
#[derive(Debug)]
struct Counted {
    keys: Vec<Keys>,
    finder: Finder,
    /// Entries, by volume in `keys`.
    cached: Vec<u64>,
    /// Entries, by unit.
    live: Vec<u32>,
    /// Dirty blocks that are not in the sets of their volumes yet: the first so many.
    dirty: Vec<Key>,
    dirties: usize,
}

impl Counted {
    fn new(volumes: &Volumes, keys: Vec<Keys>, units: usize) -> Counted {
        Counted {
            finder: Finder::new(volumes, &keys),
            cached: vec![0; keys.len()],
            live: vec![0; units],
            keys,
            dirty: vec![Key::FIRST; DIRTY_GATHERED_MAX],
            dirties: 0,
        }
    }

    /// Moves gathered dirty blocks into the sets of their volumes.
    fn spread(&mut self, volumes: &mut Volumes) {
        let dirty = &mut self.dirty[..std::mem::take(&mut self.dirties)];
        // Sorted keys are sorted by volume, because each volume has one range of them.
        dirty.sort_unstable();
        let mut rest = &*dirty;
        while let Some(&first) = rest.first() {
            let (at, block) = self.finder.find(first).expect("found when it was gathered");
            let Keys { blocks, volume, .. } = self.keys[at];
            let end = first - block + blocks;
            let (of_volume, others) = rest.split_at(rest.partition_point(|&key| key < end));
            volumes.found_dirty(volume, of_volume.iter().map(|&key| key - (first - block)));
            rest = others;
        }
    }
}
