//! A start: reads the map from the members that hold it, replays the journal, and begins a new
//! life.
//!
//! Heads first, then the journals of all holders; a record that one of them has counts. Pages come
//! from the holder that knows most; one that is bad there is taken from its doubles, or else from
//! another holder, if the journal still has all from the tail of that one on. Whether two extents
//! claim a place is seen when all is replayed.

mod elder;
mod want;

use crate::Mutant;
use crate::event::{MemberId, OpenError};
use crate::io::{Purpose, UnderWay};
use crate::limits::PAGES_PER_READ;
use crate::map::{Map, State};
use crate::start::{self, is_doubtful};
use crate::tiers::{Phase, Tiers};
use forebay_format::BLOCK_SIZE;
use forebay_format::io::{Buf, Completion};
use forebay_format::tier::{
    Blocks, DOUBLES_MAX, EntryKind, HEAD_OFFSETS, Head, PAGE_ENTRIES, Page, PageEntry, Place,
    Record, pages_of,
};
use std::collections::{BTreeMap, BTreeSet};
use want::Want;

/// Blocks of the journal that one read brings.
const JOURNAL_BLOCKS: u32 = 256;

#[derive(Debug, Default)]
pub(crate) struct Source {
    pub member: u8,
    /// The last life in which it was there, as the superblocks say: a head of an earlier one is
    /// not its last.
    epoch: u64,
    pub heads: [Option<Head>; 2],
    records: BTreeMap<u64, Record>,
    /// Blocks of its journal that could not be read.
    unreadable: BTreeSet<u32>,
    doubles: Vec<Page>,
}

impl Source {
    pub fn head(&self) -> Option<Head> {
        self.heads.iter().flatten().filter(|head| head.epoch >= self.epoch).max().copied()
    }

    /// The last record of those without a gap from the tail on.
    fn last(&self, head: Head) -> u64 {
        let has = |seq: &u64| self.records.get(seq).is_some_and(|it| it.epoch == head.epoch);
        (head.tail..).take_while(has).last().unwrap_or(head.tail - 1)
    }
}

/// What a start knows so far.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    wants: BTreeMap<u64, Want>,
    next: u64,
    pub sources: Vec<Source>,
    /// Sources that can be used, the one that knows most first.
    pub order: Vec<usize>,
    pub head: Option<Head>,
    /// Records that count, by number.
    records: BTreeMap<u64, Record>,
    pub last: u64,
    /// The last of them that was confirmed. What those behind it tell of was not flushed then: the
    /// machine has not gone down since, so it is there, and was flushed as the start began.
    pub confirmed: u64,
    /// Number of the first record of the new life: behind all that there are. What they say is
    /// needed until the head says that they do not count any more.
    pub first_new: u64,
    /// Pages that were read, each with the first record to replay over it, and those that were bad
    /// in the sources tried so far.
    pages: BTreeMap<u32, (Page, u64)>,
    bad: BTreeSet<u32>,
    trying: usize,
    /// The journal has all records from the tail of that source on.
    has_rest: bool,
    /// Pages that have to be written anew: they were not where they should be.
    pub mended: BTreeSet<u32>,
    pub cut: bool,
    /// An orderly stop was the last that happened.
    is_closed: bool,
    /// A flush failed of which no client has heard, or somebody may have had more of a killed life
    /// and does not say.
    pub doubt: bool,
    /// Members of which a flush failed as it began.
    pub failed: BTreeSet<u8>,
}

impl Tiers {
    /// Begins to read the map: of members that keep what they had, but for those of which a flush
    /// failed.
    pub(crate) fn begin_recovery(&mut self, boot: [u8; 16], failed: BTreeSet<u8>) {
        let superblock = self.set.superblock();
        let before = superblock.block.boot;
        let is_other_boot = before != boot && before != start::doubted(boot);
        let is_fresh = superblock.is_fresh() || (superblock.is_ephemeral() && is_other_boot);
        let holders: Vec<u8> = superblock.holders().collect();
        // A flush that failed, now or at a start that did not end, may have lost what no record
        // that is not confirmed can be believed about.
        let (cut, doubt) = (is_other_boot || !failed.is_empty(), is_doubtful(before, boot));
        let doubt = !is_fresh && (doubt || !failed.is_empty());
        let is_closed = superblock.is_closed();
        let mut recovery = Recovery { cut, doubt, failed, is_closed, ..Recovery::default() };
        for number in 0..self.set.len() {
            self.space.add_member(self.set.member(MemberId(number as u8)).slots);
        }
        if is_fresh {
            self.set.superblock_mut().set_fresh(true);
            return self.begin_life(recovery);
        }
        for member in holders {
            if self.set.is_here(MemberId(member)) {
                let epoch = superblock.members()[usize::from(member)].epoch.get();
                recovery.sources.push(Source { member, epoch, ..Source::default() });
            }
        }
        let count = recovery.sources.len();
        self.phase = Phase::Reading(Box::new(recovery));
        for source in 0..count {
            for copy in 0..HEAD_OFFSETS.len() {
                self.want(Want::Head(source, copy), 1);
            }
        }
        if count == 0 {
            self.open_failed(OpenError::NoMap);
        }
    }

    fn recovery(&mut self) -> &mut Recovery {
        match &mut self.phase {
            Phase::Reading(recovery) => recovery,
            _ => unreachable!("the map is being read"),
        }
    }

    fn want(&mut self, want: Want, blocks: u32) {
        let offset = want.offset(&self.set.layout());
        let recovery = self.recovery();
        recovery.next += 1;
        let step = recovery.next;
        recovery.wants.insert(step, want);
        let member = MemberId(recovery.sources[want.source()].member);
        let buf = Buf::zeroed(blocks as usize * BLOCK_SIZE);
        self.io.read(UnderWay::meta(member, Purpose::Recovery(step)), offset, buf);
    }

    /// A read of a start has ended.
    pub(crate) fn recovery_done(&mut self, step: u64, done: Completion) {
        let set = self.set.id();
        let ring = u64::from(self.set.layout().journal_blocks);
        let recovery = self.recovery();
        let want = recovery.wants.remove(&step).expect("it was wanted");
        let count = (done.buf.len() / BLOCK_SIZE) as u32;
        if done.result.is_err() && count > 1 {
            // What else is there is not lost with a block that cannot be read.
            return (0..count).for_each(|more| self.want(want.at(more), 1));
        }
        let recovery = self.recovery();
        let blocks = match done.result {
            Ok(()) => done.buf.bytes(),
            // What cannot be read is as good as bad.
            Err(_) => &[],
        };
        let blocks = blocks.chunks_exact(BLOCK_SIZE);
        match want {
            Want::Head(source, copy) => {
                let head = blocks.filter_map(|block| Head::decode(set, block).ok()).next();
                recovery.sources[source].heads[copy] = head;
            }
            Want::Journal(source, first) => {
                let records = (first..).zip(blocks).filter_map(|(number, block)| {
                    let record = Record::decode(set, block).ok()?;
                    let is_in_its_place = record.seq % ring == u64::from(number);
                    is_in_its_place.then_some((record.seq, record))
                });
                recovery.sources[source].records.extend(records);
                if done.result.is_err() {
                    recovery.sources[source].unreadable.insert(first);
                }
            }
            Want::Doubles(source, _) => {
                let pages = blocks.filter_map(|block| Page::decode(set, block).ok());
                recovery.sources[source].doubles.extend(pages);
            }
            Want::Pages(_, first) => {
                let end = first + count;
                let mut blocks = blocks;
                for number in first..end {
                    let page = blocks.next().and_then(|block| Page::decode(set, block).ok());
                    let page = page.filter(|page| page.number == number);
                    recovery.take_page(number, page);
                }
            }
        }
        if self.recovery().wants.is_empty() {
            self.read_on(want);
        }
    }

    /// All that was wanted is there: what next.
    fn read_on(&mut self, last: Want) {
        match last {
            Want::Head(..) => self.read_journals(),
            Want::Journal(..) => match self.choose() {
                Ok(order) => {
                    self.recovery().order.clone_from(&order);
                    for source in order {
                        self.want(Want::Doubles(source, 0), DOUBLES_MAX as u32);
                    }
                }
                Err(error) => self.open_failed(error),
            },
            Want::Doubles(..) => {
                let pages = (0..pages_of(self.map.len())).collect();
                self.read_pages(pages);
            }
            Want::Pages(..) => {
                self.recovery().trying += 1;
                let bad = std::mem::take(&mut self.recovery().bad);
                match self.recovery().trying < self.recovery().order.len() {
                    _ if bad.is_empty() => self.rebuild(),
                    true => self.read_pages(bad),
                    false => {
                        let first = bad.first().copied().unwrap_or(0);
                        self.open_failed(OpenError::BadPage(first * PAGE_ENTRIES));
                    }
                }
            }
        }
    }

    fn read_journals(&mut self) {
        let blocks = self.set.layout().journal_blocks;
        let is_readable = |it: &Source| it.head().is_some();
        let sources: Vec<usize> = (0..self.recovery().sources.len())
            .filter(|&source| is_readable(&self.recovery().sources[source]))
            .collect();
        for &source in &sources {
            let mut first = 0;
            while first < blocks {
                let count = JOURNAL_BLOCKS.min(blocks - first);
                self.want(Want::Journal(source, first), count);
                first += count;
            }
        }
        if sources.is_empty() {
            self.open_failed(OpenError::NoMap);
        }
    }

    /// Which sources can be used, the one that knows most first; and which records count.
    fn choose(&mut self) -> Result<Vec<usize>, OpenError> {
        let ignores_epoch = self.is(Mutant::EpochIgnored);
        let believes_all = self.is(Mutant::UnconfirmedCounts);
        let is_silent = self.is(Mutant::UnheardIsSilent);
        let superblock = self.set.superblock();
        let is_ephemeral = superblock.is_ephemeral();
        let used = superblock.members().iter().filter(|it| it.is_used());
        let opened = used.map(|it| it.epoch.get()).max().unwrap_or(0);
        let ring = u64::from(self.set.layout().journal_blocks);
        let holders = superblock.holders().count();
        let recovery = self.recovery();
        let heads = recovery.sources.iter().filter_map(Source::head);
        let epoch = heads.max().ok_or(OpenError::NoMap)?.epoch;
        let mut order: Vec<usize> = (0..recovery.sources.len())
            .filter(|&it| recovery.sources[it].head().is_some_and(|head| head.epoch == epoch))
            .collect();
        for source in &order {
            for (seq, record) in &recovery.sources[*source].records {
                if record.epoch == epoch || ignores_epoch {
                    recovery.records.insert(*seq, record.clone());
                }
            }
        }
        let key = |it: &usize| {
            let source = &recovery.sources[*it];
            source.head().map(|head| (source.last(head), head.tail))
        };
        order.sort_by_key(|it| (std::cmp::Reverse(key(it)), *it));
        let head = recovery.sources[order[0]].head().ok_or(OpenError::NoMap)?;
        let has = |seq: &u64| recovery.records.contains_key(seq);
        recovery.last = (head.tail..).take_while(has).last().unwrap_or(head.tail - 1);
        let said = recovery.records.range(..=recovery.last).map(|(_, it)| it.confirmed).max();
        recovery.confirmed = recovery.last.min(said.unwrap_or(0).max(head.tail - 1));
        // A change counts when the first holder has it, and it may have been the only one.
        let next = ((recovery.last + 1) % ring) as u32;
        let is_hidden = |it: &usize| recovery.sources[*it].unreadable.contains(&next);
        let heard = recovery.sources.iter().filter(|it| it.head().is_some()).count();
        let is_unheard = heard < holders || order.iter().any(is_hidden);
        recovery.doubt |= is_unheard && !recovery.is_closed && !recovery.cut && !is_silent;
        if recovery.cut && !believes_all {
            recovery.last = recovery.confirmed;
        } else if is_ephemeral {
            // Nobody confirms anything, and no power loss takes anything back.
            recovery.confirmed = recovery.last;
        }
        // What a record calls durable must be there.
        let promised = recovery.records.values().map(|it| it.durable).max().unwrap_or(0);
        let seen = recovery.records.last_key_value().map_or(0, |it| *it.0);
        // A ring has no room for records of numbers further ahead: the tail is not the last one.
        if promised > recovery.last || seen.max(recovery.last) + 1 >= head.tail + ring {
            return Err(OpenError::BadJournal(recovery.last + 1));
        }
        recovery.first_new = seen.max(recovery.last) + 1;
        recovery.head = Some(head);
        order.extend(recovery.elders(opened));
        Ok(order)
    }

    fn read_pages(&mut self, pages: BTreeSet<u32>) {
        let recovery = self.recovery();
        let source = recovery.order[recovery.trying];
        let tail = recovery.sources[source].head().map_or(0, |head| head.tail);
        let has = |seq: u64| recovery.records.contains_key(&seq);
        let is_elder = recovery.is_elder(source);
        recovery.has_rest =
            is_elder || tail <= recovery.last + 1 && (tail..=recovery.last).all(has);
        let pages: Vec<u32> = pages.into_iter().collect();
        for run in pages.chunk_by(|one, other| one + 1 == *other) {
            for some in run.chunks(PAGES_PER_READ as usize) {
                self.want(Want::Pages(source, some[0]), some.len() as u32);
            }
        }
    }

    /// All is read: the map as it was.
    fn rebuild(&mut self) {
        let Phase::Reading(mut recovery) = std::mem::replace(&mut self.phase, Phase::Beginning)
        else {
            unreachable!("the map is being read")
        };
        let mut fine = BTreeSet::new();
        let (last, confirmed) = (recovery.last, recovery.confirmed);
        // Of each page, the first record to replay over it.
        let mut firsts = vec![0; pages_of(self.map.len()) as usize];
        for (number, (page, first)) in std::mem::take(&mut recovery.pages) {
            firsts[number as usize] = first;
            for (extent, entry) in (number * PAGE_ENTRIES..self.map.len()).zip(&page.entries) {
                restore_entry(&mut self.map, extent, entry, &mut fine);
            }
        }
        // What a page knows is told again by some of these. The last that tells of an extent has
        // all that is known of it, and what pages cannot say is only there.
        for record in recovery.records.range(..=last).map(|(_, record)| record) {
            replay(&mut self.map, record, confirmed, &firsts, &mut fine);
        }
        for extent in fine {
            // The journal should know which blocks of it are written. Those of whole pieces are.
            let lost = Blocks::ALL.without(self.map.blocks(extent));
            self.map.set_lost(extent, lost);
        }
        for extent in 0..self.map.len() {
            let Some(place) = self.map.place(extent) else { continue };
            if !self.space.claim(place) {
                let other = (0..extent).find(|&it| self.map.place(it) == Some(place));
                return self.open_failed(match other {
                    Some(other) => OpenError::TwoInOnePlace(other, extent),
                    None => OpenError::NoSuchPlace(extent),
                });
            }
        }
        self.claim_what_was_left();
        self.begin_life(*recovery);
    }

    /// Where extents lived that have moved since, or are gone, they may be again after a power cut,
    /// until that is confirmed.
    fn claim_what_was_left(&mut self) {
        for extent in self.map.changing().collect::<Vec<u32>>() {
            let before = self.map.confirmed(extent).place;
            let left = before.filter(|&place| self.map.place(extent) != Some(place));
            let seq = self.map.changed_by(extent);
            if let (Some(place), Some(seq)) = (left, seq)
                && self.space.claim(place)
            {
                self.space.retire(place, seq, 0);
            }
        }
    }
}

impl Recovery {
    /// A page in its place, or what the doubles have of it: the head beside it vouches for the one,
    /// the other must not be older. From its tail on the journal has to have all.
    fn take_page(&mut self, number: u32, page: Option<Page>) {
        let source = &self.sources[self.order[self.trying]];
        let tail = source.head().map_or(0, |head| head.tail);
        if page.is_none() || self.trying > 0 {
            self.mended.insert(number);
        }
        let of_it = |it: &&Page| it.number == number && it.seq + 1 >= tail;
        let double = || source.doubles.iter().filter(of_it).max_by_key(|it| it.seq).cloned();
        match page.or_else(double) {
            Some(page) if self.has_rest => {
                self.pages.insert(number, (page, tail));
            }
            _ => {
                self.bad.insert(number);
            }
        }
    }
}

pub(crate) fn all_pages(extents_max: u32) -> BTreeSet<u32> {
    (0..pages_of(extents_max)).collect()
}

fn restore_entry(map: &mut Map, extent: u32, entry: &PageEntry, fine: &mut BTreeSet<u32>) {
    map.restore_page_entry(extent, entry);
    if entry.heat & PageEntry::FINE != 0 {
        fine.insert(extent);
    }
}

/// What a record says of extents whose pages need it.
fn replay(
    map: &mut Map,
    record: &Record,
    confirmed: u64,
    firsts: &[u64],
    fine: &mut BTreeSet<u32>,
) {
    for entry in &record.entries {
        let first = firsts.get((entry.extent / PAGE_ENTRIES) as usize);
        if first.is_none_or(|&first| record.seq < first) || entry.extent >= map.len() {
            continue;
        }
        match entry.kind {
            EntryKind::State => {
                let is_said_fine = fine.remove(&entry.extent);
                let place = Place::of_number(entry.place);
                let state = State { place, blocks: entry.blocks };
                match record.seq > confirmed {
                    true => map.restore_unconfirmed(record.seq, entry.extent, state),
                    false => map.restore(entry.extent, state, is_said_fine),
                }
                map.restore_heat(entry.extent, entry.heat);
            }
            EntryKind::Lost => map.set_lost(entry.extent, entry.blocks),
        }
    }
}
