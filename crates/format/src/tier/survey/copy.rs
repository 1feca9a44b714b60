//! What one holder has of the map, as it was read from it.

use crate::BLOCK_SIZE;
use crate::tier::{
    EXTENT_SIZE, Head, PAGE_ENTRIES, Page, RECORD_MAGIC, Record, Superblock, TierLayout, pages_of,
};
use std::collections::{BTreeMap, BTreeSet};

/// A holder's copy of the map. What is not handed in counts as bad.
#[derive(Debug)]
pub struct MapCopy {
    member: u8,
    set: u64,
    layout: TierLayout,
    extents: u32,
    heads: [Option<Head>; 2],
    records: BTreeMap<u64, Record>,
    /// Blocks of the journal that have the mark of a record and are none.
    damaged: BTreeSet<u32>,
    doubles: BTreeMap<u32, Page>,
    /// Pages that are valid in their place.
    pages: BTreeMap<u32, Page>,
}

impl MapCopy {
    /// That of the member with this superblock; nothing of it was read yet.
    pub fn new(superblock: &Superblock) -> MapCopy {
        let block = &superblock.block;
        let set = u64::from_le_bytes(block.set[..8].try_into().expect("eight bytes"));
        let extents = block.bytes.get().div_ceil(EXTENT_SIZE);
        MapCopy {
            member: block.member,
            set,
            layout: superblock.layout(),
            extents: u32::try_from(extents).expect("a superblock that was checked"),
            heads: [None; 2],
            records: BTreeMap::new(),
            damaged: BTreeSet::new(),
            doubles: BTreeMap::new(),
            pages: BTreeMap::new(),
        }
    }

    /// Takes in a copy of the head, 0 or 1. Whether it is valid.
    pub fn take_head(&mut self, copy: usize, block: &[u8]) -> bool {
        self.heads[copy] = Head::decode(self.set, block).ok();
        self.heads[copy].is_some()
    }

    /// Takes in blocks of the journal, from the `first` on.
    pub fn take_journal(&mut self, first: u32, bytes: &[u8]) {
        for (number, block) in (first..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            match Record::decode(self.set, block) {
                Ok(record) if record.seq % self.ring() != u64::from(number) => {}
                Ok(record) => drop(self.records.insert(record.seq, record)),
                Err(_) if block.starts_with(&RECORD_MAGIC) => drop(self.damaged.insert(number)),
                Err(_) => {}
            }
        }
    }

    /// Takes in the doubles.
    pub fn take_doubles(&mut self, bytes: &[u8]) {
        for block in bytes.chunks_exact(BLOCK_SIZE) {
            let Ok(page) = Page::decode(self.set, block) else { continue };
            let is_older = self.doubles.get(&page.number).is_some_and(|it| it.seq > page.seq);
            if !is_older {
                self.doubles.insert(page.number, page);
            }
        }
    }

    /// Takes in pages, from the `first` on.
    pub fn take_pages(&mut self, first: u32, bytes: &[u8]) {
        for (number, block) in (first..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            if let Ok(page) = Page::decode(self.set, block)
                && page.number == number
            {
                self.pages.insert(number, page);
            }
        }
    }

    /// The member that it is of.
    pub fn member(&self) -> u8 {
        self.member
    }

    /// Extents of the volume.
    pub fn extents(&self) -> u32 {
        self.extents
    }

    /// The head that counts.
    pub fn head(&self) -> Option<Head> {
        self.heads.into_iter().flatten().max()
    }

    /// Its records, by number, of whatever life.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// Blocks of the journal.
    pub(super) fn ring(&self) -> u64 {
        u64::from(self.layout.journal_blocks)
    }

    /// Its first record that counts.
    pub(super) fn tail(&self) -> u64 {
        self.head().map_or(1, |head| head.tail)
    }

    /// The last of its records without a gap; the one before the first if there is none.
    pub(super) fn last(&self) -> u64 {
        let Some(head) = self.head() else { return 0 };
        let has = |seq: &u64| self.records.get(seq).is_some_and(|it| it.epoch == head.epoch);
        (head.tail..).take_while(has).last().unwrap_or(head.tail - 1)
    }

    /// Whether a record that is damaged lies where this one belongs.
    pub(super) fn is_damaged(&self, seq: u64) -> bool {
        let block = seq % self.ring();
        self.damaged.contains(&(block as u32))
    }

    /// A page, from its place or else from the doubles.
    pub(super) fn page(&self, number: u32) -> Option<&Page> {
        let page = self.pages.get(&number).or_else(|| self.double(number));
        page.filter(|page| page.entries.len() == PAGE_ENTRIES as usize)
    }

    /// What the doubles have of a page that was being written, or was by the last checkpoint. An
    /// older one may not be what was written last, and the journal has not what came between.
    fn double(&self, number: u32) -> Option<&Page> {
        self.doubles.get(&number).filter(|page| page.seq + 1 >= self.tail())
    }

    /// How many pages are bad in their place, and of how many of those there is a double.
    pub(super) fn bad_pages(&self) -> (u32, u32) {
        let all = pages_of(self.extents);
        let here = self.pages.range(..all).count() as u32;
        let is_doubled =
            |number: &&u32| !self.pages.contains_key(number) && self.double(**number).is_some();
        let doubled = self.doubles.range(..all).map(|it| it.0).filter(is_doubled).count();
        (all - here, doubled as u32)
    }
}
