//! A look at the map of a set that nobody opens: what its holders have, whether that fits together,
//! and where each extent lives. It follows what a start does, and changes nothing.
//!
//! Who looks reads the parts of each holder into a [`MapCopy`] and hands in all of them. What is
//! held meanwhile is what was read and is valid, and eight bytes for each extent that lives
//! somewhere.

mod copy;

pub use copy::MapCopy;

use super::{
    Blocks, EXTENT_SIZE, Entry, EntryKind, MEMBERS_MAX, PAGE_ENTRIES, Page, PageEntry, Place,
    Superblock, member_state,
};
use std::collections::BTreeMap;

/// Most problems that are told one by one.
const PROBLEMS_MAX: usize = 32;

/// Something that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// No holder has a head that is valid.
    NoMap,
    /// A page is bad in all copies: that of the extents from this one on.
    BadPage(u32),
    /// A record that a later one calls durable is on no holder.
    BadJournal(u64),
    /// Two extents live in one place.
    TwoInOnePlace(u32, u32, Place),
    /// An extent lives where no member has a slot.
    NoSuchPlace(u32, Place),
    /// Two holders say different things of an extent, and the journal does not tell.
    HoldersDiffer(u32, u8, u8),
}

/// What a superblock is to the newest one of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// That of a member that can be used.
    Fits,
    /// That of a member of another set.
    OtherSet,
    /// That of nobody whom the set knows (any more).
    Unknown,
    /// That of a member as it was in an earlier life than the last in which it was there.
    Old,
}

/// What a member with the superblock `own` is to the set.
pub fn standing(newest: &Superblock, own: &Superblock) -> Standing {
    let entry = newest.members().get(usize::from(own.block.member));
    let known = entry.filter(|entry| entry.is_used() && entry.uuid == own.uuid());
    match known {
        _ if own.block.set != newest.block.set => Standing::OtherSet,
        None => Standing::Unknown,
        Some(entry) if own.block.epoch.get() < entry.epoch.get() => Standing::Old,
        Some(_) => Standing::Fits,
    }
}

/// The records that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Their life.
    pub epoch: u64,
    /// The first; there is none if it is behind `last`.
    pub tail: u64,
    /// The last before the first gap.
    pub last: u64,
    /// What those up to this one say is durable: after a power loss the others do not count.
    pub confirmed: u64,
    /// The block of the next record holds one that is damaged.
    pub is_torn: bool,
    /// Records of that life behind the gap.
    pub behind: u64,
}

/// What of a holder's copy can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The holder.
    pub member: u8,
    /// It counts: its head is of the newest life.
    pub is_used: bool,
    /// Its last record without a gap.
    pub last: u64,
    /// Pages that are bad in their place.
    pub bad_pages: u32,
    /// Of those, pages of which there is a double.
    pub doubled: u32,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Survey {
    /// The records that count, if there is a map.
    pub span: Option<Span>,
    /// Each copy that was handed in.
    pub sources: Vec<Source>,
    /// Extents of each member.
    pub lives: BTreeMap<u8, u32>,
    /// Extents that are partly written.
    pub partly: u32,
    /// Extents that are lost in part.
    pub lost_extents: u32,
    /// Blocks of those that are lost.
    pub lost_blocks: u64,
    /// Extents of which the last that is known is not confirmed.
    pub unconfirmed: u32,
    /// What does not fit: the first of it.
    pub problems: Vec<Problem>,
    /// How much does not fit.
    pub problem_count: u64,
}

/// What is known of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Known {
    place: Option<Place>,
    blocks: Blocks,
    lost: Blocks,
}

/// What records say, by extent and then number.
type Said<'a> = Vec<(u32, u64, &'a Entry)>;

impl Survey {
    /// Looks at what these holders have, which are of the set with this superblock.
    pub fn of(superblock: &Superblock, copies: &[MapCopy]) -> Survey {
        let mut survey = Survey::default();
        let epoch = copies.iter().filter_map(MapCopy::head).map(|head| head.epoch).max();
        survey.sources = copies.iter().map(|it| source(it, epoch)).collect();
        let Some(epoch) = epoch else {
            survey.found(Problem::NoMap);
            return survey;
        };
        let used = |it: &&MapCopy| it.head().is_some_and(|head| head.epoch == epoch);
        let mut used: Vec<&MapCopy> = copies.iter().filter(used).collect();
        // The one that knows most comes first, as at a start.
        used.sort_by_key(|it| std::cmp::Reverse((it.last(), it.head())));
        let (said, rest) = survey.read_journal(&used, epoch);
        // Pages count where the journal has all that was said since.
        used.retain(|it| (rest..=survey.span.map_or(0, |span| span.last) + 1).contains(&it.tail()));
        survey.read_pages(superblock, &used, &said);
        survey
    }

    fn found(&mut self, problem: Problem) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    /// What the records that count say, and the first of those from which on none is missing.
    fn read_journal<'a>(&mut self, used: &[&'a MapCopy], epoch: u64) -> (Said<'a>, u64) {
        let mut records = BTreeMap::new();
        for copy in used {
            let own = copy.records().filter(|record| record.epoch == epoch);
            records.extend(own.map(|record| (record.seq, record)));
        }
        let tail = used[0].head().map_or(1, |head| head.tail);
        let has = |seq: &u64| records.contains_key(seq);
        let last = (tail..).take_while(has).last().unwrap_or(tail - 1);
        let said = records.range(..=last).map(|(_, it)| it.confirmed).max();
        let confirmed = last.min(said.unwrap_or(0).max(tail - 1));
        let promised = records.values().map(|it| it.durable).max().unwrap_or(0);
        let seen = records.last_key_value().map_or(0, |it| *it.0);
        if promised > last || seen.max(last) + 1 >= tail + used[0].ring() {
            self.found(Problem::BadJournal(last + 1));
        }
        self.span = Some(Span {
            epoch,
            tail,
            last,
            confirmed,
            is_torn: used.iter().any(|it| it.is_damaged(last + 1)),
            behind: records.range(last + 1..).count() as u64,
        });
        let rest = (1..=last).rev().take_while(has).last().unwrap_or(last + 1);
        let counts = records.range(..=last);
        let mut said: Said = counts
            .flat_map(|(seq, record)| record.entries.iter().map(|it| (it.extent, *seq, it)))
            .collect();
        said.sort_by_key(|it| (it.0, it.1));
        (said, rest)
    }

    /// Where all extents live, page by page.
    fn read_pages(&mut self, superblock: &Superblock, used: &[&MapCopy], said: &Said) {
        let mut owners = Vec::new();
        let confirmed = self.span.map_or(0, |span| span.confirmed);
        let extents = superblock.block.bytes.get().div_ceil(EXTENT_SIZE) as u32;
        for number in 0..super::pages_of(extents) {
            let from = number * PAGE_ENTRIES;
            let end = (from + PAGE_ENTRIES).min(extents);
            let pages: Vec<(u8, u64, &Page)> = used
                .iter()
                .filter_map(|&it| Some((it.member(), it.tail(), it.page(number)?)))
                .collect();
            let Some(((member, tail, page), others)) = pages.split_first() else {
                self.found(Problem::BadPage(from));
                continue;
            };
            for extent in from..end {
                let own = of_extent(said, extent);
                let at = (extent - from) as usize;
                let known = known(&page.entries[at], own, *tail);
                let differs = others.iter().find(|(_, tail, page)| {
                    let other = page.entries[at];
                    !(other == page.entries[at] && own.is_empty())
                        && self::known(&other, own, *tail) != known
                });
                if let Some((other, ..)) = differs {
                    self.found(Problem::HoldersDiffer(extent, *member, *other));
                }
                let is_new = own.last().is_some_and(|it| it.1 > confirmed);
                self.unconfirmed += u32::from(is_new);
                self.count(superblock, extent, &known, &mut owners);
            }
        }
        owners.sort_unstable();
        for two in owners.windows(2).filter(|two| two[0].0 == two[1].0) {
            self.found(Problem::TwoInOnePlace(two[0].1, two[1].1, two[0].0));
        }
    }

    fn count(
        &mut self,
        superblock: &Superblock,
        extent: u32,
        known: &Known,
        owners: &mut Vec<(Place, u32)>,
    ) {
        let lost = known.lost.count();
        self.lost_extents += u32::from(lost > 0);
        self.lost_blocks += u64::from(lost);
        let Some(place) = known.place else { return };
        self.partly += u32::from(!known.blocks.is_whole_pieces());
        *self.lives.entry(place.member()).or_default() += 1;
        owners.push((place, extent));
        let member = superblock.members().get(usize::from(place.member()));
        let is_there = |it: &super::MemberEntry| {
            it.state != member_state::NONE && place.slot() < it.slots.get()
        };
        if !member.is_some_and(is_there) {
            self.found(Problem::NoSuchPlace(extent, place));
        }
    }
}

fn source(copy: &MapCopy, epoch: Option<u64>) -> Source {
    assert!(usize::from(copy.member()) < MEMBERS_MAX);
    let (bad_pages, doubled) = copy.bad_pages();
    let is_used = copy.head().is_some_and(|head| Some(head.epoch) == epoch);
    Source { member: copy.member(), is_used, last: copy.last(), bad_pages, doubled }
}

/// What records say of one extent.
fn of_extent<'a, 'b>(said: &'b Said<'a>, extent: u32) -> &'b [(u32, u64, &'a Entry)] {
    let from = said.partition_point(|it| it.0 < extent);
    let rest = &said[from..];
    &rest[..rest.partition_point(|it| it.0 == extent)]
}

/// What a page and the records from `tail` on say of an extent.
fn known(entry: &PageEntry, said: &[(u32, u64, &Entry)], tail: u64) -> Known {
    let (place, blocks) = (Place::of_number(entry.place.get()), entry.pieces.get());
    let mut known = Known { place, blocks: Blocks::of_pieces(blocks), lost: Blocks::NONE };
    let mut is_fine = entry.is_fine();
    for (_, _, entry) in said.iter().filter(|it| it.1 >= tail) {
        match entry.kind {
            EntryKind::State => {
                is_fine = false;
                (known.place, known.blocks) = (Place::of_number(entry.place), entry.blocks);
            }
            EntryKind::Lost => known.lost = entry.blocks,
        }
    }
    if is_fine {
        // The journal should know which blocks of it are written, and does not.
        known.lost = Blocks::ALL.without(known.blocks);
    }
    known
}

#[cfg(test)]
mod tests;
