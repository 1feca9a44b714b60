//! Which extent lives where, and which of its blocks are written: the one keeper of T1 (no two
//! extents in one place) and T2 (what a page says is confirmed).
//!
//! Sixteen bytes for each extent. What is partly written, lost, or changed since the last
//! confirmation is known beside it, and bounded.

use crate::event::MemberId;
use crate::heat::{Heat, Temperature};
use crate::journal::Beside;
use forebay_format::tier::{
    Blocks, Entry, EntryKind, MEMBERS_MAX, PAGE_ENTRIES, PLACE_NONE, Page, PageEntry, Place,
};
use std::collections::{BTreeMap, BTreeSet};

/// All that is durable of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// Where it lives.
    pub place: Option<Place>,
    /// Its written blocks. The others read as zeros.
    pub blocks: Blocks,
}

impl State {
    /// Nothing durable names a place where nothing is written: it is lent.
    fn durable(self) -> State {
        State { place: self.place.filter(|_| !self.blocks.is_empty()), ..self }
    }
}

#[derive(Debug, Clone, Copy)]
struct Extent {
    place: u32,
    pieces: u16,
    /// Its place is kept though nothing is written there.
    is_kept: bool,
    heat: Temperature,
    /// Seconds of the executor's clock when it came to where it is.
    since: u32,
}

/// What the map holds in memory for each extent of the volume, bytes.
pub const MAP_BYTES_PER_EXTENT: u64 = 16;

const _: () = assert!(size_of::<Extent>() as u64 == MAP_BYTES_PER_EXTENT);

impl Extent {
    const NONE: Extent =
        Extent { place: PLACE_NONE, pieces: 0, is_kept: false, heat: Temperature::COLD, since: 0 };
}

/// What an extent was when it was last confirmed, and has been since.
#[derive(Debug)]
struct Versions {
    confirmed: State,
    /// Blocks that were lost then.
    lost: Blocks,
    /// By the record that says it, with the blocks that are lost.
    later: Vec<(u64, State, Blocks)>,
}

/// The map.
#[derive(Debug)]
pub(crate) struct Map {
    extents: Vec<Extent>,
    fine: BTreeMap<u32, Blocks>,
    lost: BTreeMap<u32, Blocks>,
    /// Blocks of them all.
    lost_blocks: u64,
    unconfirmed: BTreeMap<u32, Versions>,
    /// The records behind which extents have unconfirmed versions.
    by_seq: BTreeSet<(u64, u32)>,
    dirty_pages: BTreeSet<u32>,
    heat: Heat,
    placed: u64,
    /// Extents that live on each member.
    lives: [u32; MEMBERS_MAX],
}

impl Map {
    /// One of so many extents, none of which lives anywhere.
    pub fn new(extents: u32) -> Map {
        Map {
            extents: vec![Extent::NONE; extents as usize],
            fine: BTreeMap::new(),
            lost: BTreeMap::new(),
            lost_blocks: 0,
            unconfirmed: BTreeMap::new(),
            by_seq: BTreeSet::new(),
            dirty_pages: BTreeSet::new(),
            heat: Heat::new(extents),
            placed: 0,
            lives: [0; MEMBERS_MAX],
        }
    }

    pub fn len(&self) -> u32 {
        self.extents.len() as u32
    }

    /// Extents that live somewhere.
    pub fn placed(&self) -> u64 {
        self.placed
    }

    /// Extents that live on a member.
    pub fn living_on(&self, member: MemberId) -> u32 {
        self.lives[usize::from(member.0)]
    }

    /// Extents of which blocks are lost, and those blocks.
    pub fn losses(&self) -> (u32, u64) {
        (self.lost.len() as u32, self.lost_blocks)
    }

    pub fn grow(&mut self, extents: u32) {
        assert!(extents as usize >= self.extents.len());
        self.extents.resize(extents as usize, Extent::NONE);
        self.heat.grow(extents);
    }

    pub fn place(&self, extent: u32) -> Option<Place> {
        Place::of_number(self.extents[extent as usize].place)
    }

    /// The written blocks of an extent.
    pub fn blocks(&self, extent: u32) -> Blocks {
        let whole = || Blocks::of_pieces(self.extents[extent as usize].pieces);
        self.fine.get(&extent).copied().unwrap_or_else(whole)
    }

    pub fn state(&self, extent: u32) -> State {
        State { place: self.place(extent), blocks: self.blocks(extent) }
    }

    /// Whether an extent lives nowhere, and nothing of it is lost.
    pub fn is_untouched(&self, extent: u32) -> bool {
        self.place(extent).is_none() && !self.lost.contains_key(&extent)
    }

    /// Blocks whose content is lost.
    pub fn lost(&self, extent: u32) -> Blocks {
        self.lost.get(&extent).copied().unwrap_or_default()
    }

    pub fn since(&self, extent: u32) -> u32 {
        self.extents[extent as usize].since
    }

    /// Extents that are partly written, or partly lost.
    pub fn fine(&self) -> usize {
        self.fine.len() + self.lost.len()
    }

    pub fn is_fine(&self, extent: u32) -> bool {
        self.fine.contains_key(&extent)
    }

    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// How much a start would have to say again.
    pub fn beside_pages(&self) -> Beside {
        Beside { unsaid: self.fine(), unconfirmed: self.unconfirmed() }
    }

    /// Gives an extent a place that nothing durable says yet: nothing is written there.
    pub fn lend(&mut self, extent: u32, place: Place, now_s: u32) {
        assert!(self.place(extent).is_none() && self.blocks(extent).is_empty());
        self.set_place(extent, Some(place));
        self.extents[extent as usize].since = now_s;
    }

    /// Takes it back.
    pub fn unlend(&mut self, extent: u32) -> Place {
        assert!(self.blocks(extent).is_empty());
        let place = self.place(extent).expect("it was lent one");
        self.set_place(extent, None);
        place
    }

    /// Keeps the place of an extent of which nothing is written.
    pub fn keep(&mut self, extent: u32) {
        self.extents[extent as usize].is_kept = true;
    }

    pub fn is_kept(&self, extent: u32) -> bool {
        self.extents[extent as usize].is_kept
    }

    fn set_place(&mut self, extent: u32, place: Option<Place>) {
        let own = &mut self.extents[extent as usize];
        if let Some(before) = Place::of_number(own.place) {
            self.placed -= 1;
            self.lives[usize::from(before.member())] -= 1;
        }
        own.place = place.map_or(PLACE_NONE, Place::number);
        own.is_kept &= place.is_some();
        if let Some(now) = place {
            self.placed += 1;
            self.lives[usize::from(now.member())] += 1;
        }
    }

    fn set(&mut self, extent: u32, state: State) {
        self.set_beside(extent, state, false);
    }

    /// The same, where the page may say that the journal has its blocks, and those are not known.
    fn set_beside(&mut self, extent: u32, state: State, is_said_fine: bool) {
        let own = &self.extents[extent as usize];
        let before = (own.place, own.pieces);
        self.set_place(extent, state.place);
        let own = &mut self.extents[extent as usize];
        own.pieces = state.blocks.pieces();
        let is_fine = !state.blocks.is_whole_pieces();
        let is_same = before == (own.place, own.pieces);
        let before = match is_fine {
            false => self.fine.remove(&extent),
            true => self.fine.insert(extent, state.blocks),
        };
        // A page does not tell which blocks of a piece are written.
        if !is_same || is_fine != (before.is_some() || is_said_fine) {
            self.dirty_pages.insert(extent / PAGE_ENTRIES);
        }
    }

    /// What the journal says of an extent from record `seq` on.
    pub fn change(&mut self, seq: u64, extent: u32, state: State, now_s: u32) {
        let before = self.state(extent);
        let lost = self.lost(extent);
        let first = Versions { confirmed: before.durable(), lost, later: Vec::new() };
        let versions = self.unconfirmed.entry(extent).or_insert(first);
        match versions.later.last_mut() {
            Some(last) if last.0 == seq => last.1 = state.durable(),
            _ => versions.later.push((seq, state.durable(), lost)),
        }
        self.by_seq.insert((seq, extent));
        if before.place != state.place {
            self.extents[extent as usize].since = now_s;
        }
        self.set(extent, state);
    }

    /// What a page says of an extent, of which nothing else is known yet: the page need not be
    /// written for it.
    pub fn restore_page_entry(&mut self, extent: u32, entry: &PageEntry) {
        debug_assert!(self.fine.is_empty() && self.unconfirmed.is_empty());
        if entry.place.get() == PLACE_NONE && entry.pieces.get() == 0 && entry.heat == 0 {
            return;
        }
        self.set_place(extent, Place::of_number(entry.place.get()));
        self.extents[extent as usize].pieces = entry.pieces.get();
        self.restore_heat(extent, entry.heat);
    }

    /// What the journal says of an extent, at a start: it is confirmed.
    pub fn restore(&mut self, extent: u32, state: State, is_said_fine: bool) {
        self.set_beside(extent, state, is_said_fine);
    }

    /// All that records up to `seq` say is durable.
    pub fn confirm(&mut self, seq: u64) {
        while let Some(&(first, extent)) = self.by_seq.first().filter(|it| it.0 <= seq) {
            self.by_seq.pop_first();
            let versions = self.unconfirmed.get_mut(&extent).expect("it has versions");
            let (said, state, lost) = versions.later.remove(0);
            assert_eq!(said, first);
            (versions.confirmed, versions.lost) = (state, lost);
            if versions.later.is_empty() {
                self.unconfirmed.remove(&extent);
            }
        }
    }

    /// What a start has learned of an extent that nobody has confirmed: record `seq` says it.
    pub fn restore_unconfirmed(&mut self, seq: u64, extent: u32, state: State) {
        self.change(seq, extent, state, 0);
    }

    /// The record that first changed an extent since it was confirmed.
    pub fn changed_by(&self, extent: u32) -> Option<u64> {
        self.unconfirmed.get(&extent).and_then(|it| it.later.last()).map(|it| it.0)
    }

    /// What is confirmed of an extent.
    pub fn confirmed(&self, extent: u32) -> State {
        let known = || self.state(extent).durable();
        self.unconfirmed.get(&extent).map_or_else(known, |it| it.confirmed)
    }

    /// Blocks of an extent that hold what is confirmed.
    pub fn sound(&self, extent: u32) -> Blocks {
        let lost = self.unconfirmed.get(&extent).map_or_else(|| self.lost(extent), |it| it.lost);
        self.confirmed(extent).blocks.without(lost)
    }

    /// Extents with unconfirmed versions.
    pub fn changing(&self) -> impl Iterator<Item = u32> {
        self.unconfirmed.keys().copied()
    }

    /// Says which blocks of an extent are lost.
    pub fn set_lost(&mut self, extent: u32, blocks: Blocks) {
        let versions = self.unconfirmed.get_mut(&extent);
        if let Some(last) = versions.and_then(|it| it.later.last_mut()) {
            last.2 = blocks;
        }
        let before = match blocks.is_empty() {
            true => self.lost.remove(&extent),
            false => self.lost.insert(extent, blocks),
        };
        self.lost_blocks -= u64::from(before.map_or(0, |it| it.count()));
        self.lost_blocks += u64::from(blocks.count());
    }

    /// What the journal must say again when records before are given up.
    pub fn beside(&self) -> Vec<Entry> {
        let state = |&extent: &u32| self.entry(extent);
        let lost = |(&extent, &blocks): (&u32, &Blocks)| lost_entry(extent, blocks);
        self.fine.keys().map(state).chain(self.lost.iter().map(lost)).collect()
    }

    /// And what it must say of extents that pages do not tell of as they are now.
    pub fn changed(&self) -> Vec<Entry> {
        let is_whole = |extent: &&u32| !self.fine.contains_key(extent);
        self.unconfirmed.keys().filter(is_whole).map(|&extent| self.entry(extent)).collect()
    }

    /// Pages tell of these extents as they were.
    pub fn changed_is_dirty(&mut self) {
        self.dirty_pages.extend(self.unconfirmed.keys().map(|extent| extent / PAGE_ENTRIES));
    }

    /// The entry that says what is known of an extent.
    pub fn entry(&self, extent: u32) -> Entry {
        let State { place, blocks } = self.state(extent).durable();
        let place = place.map_or(PLACE_NONE, Place::number);
        let heat = self.heat.level(&self.extents[extent as usize].heat, extent);
        Entry { kind: EntryKind::State, extent, place, heat, blocks }
    }

    /// How many pages changed since they were last taken.
    pub fn dirty_pages(&self) -> usize {
        self.dirty_pages.len()
    }

    /// Pages that changed since they were last taken.
    pub fn take_dirty_pages(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.dirty_pages)
    }

    /// A page as it is confirmed, up to record `seq`.
    pub fn page(&self, number: u32, seq: u64, unconfirmed_too: bool) -> Page {
        let first = number * PAGE_ENTRIES;
        let entry = |extent: u32| {
            let state = match unconfirmed_too {
                true => self.state(extent).durable(),
                false => self.confirmed(extent),
            };
            let own = &self.extents[extent as usize];
            let fine = u8::from(!state.blocks.is_whole_pieces()) * PageEntry::FINE;
            PageEntry {
                place: state.place.map_or(PLACE_NONE, Place::number).into(),
                pieces: state.blocks.pieces().into(),
                heat: self.heat.level(&own.heat, extent) | fine,
            }
        };
        let end = (first + PAGE_ENTRIES).min(self.len());
        Page { number, seq, entries: (first..end.max(first)).map(entry).collect() }
    }

    /// Counts accesses of an extent.
    pub fn touch(&mut self, extent: u32, accesses: f32) {
        self.heat.touch(&mut self.extents, extent, accesses);
    }

    /// How hot an extent is, in accesses of now.
    pub fn heat(&self, extent: u32) -> f32 {
        self.heat.now(&self.extents[extent as usize].heat, extent)
    }

    /// Sets how hot an extent is, in accesses of now.
    pub fn set_heat(&mut self, extent: u32, heat: f32) {
        self.heat.set(&mut self.extents, extent, heat);
    }

    /// A count is halved after so many accesses of the volume.
    pub fn set_half_life(&mut self, accesses: f64) {
        self.heat.set_half_life(accesses);
    }

    /// Restores how hot an extent was.
    pub fn restore_heat(&mut self, extent: u32, level: u8) {
        let heat = Heat::of_level(level);
        self.heat.set(&mut self.extents, extent, heat);
    }
}

impl crate::heat::Warm for Vec<Extent> {
    fn temperature(&mut self, index: usize) -> &mut Temperature {
        &mut self[index].heat
    }
}

/// The entry that says which blocks of an extent are lost.
pub(crate) fn lost_entry(extent: u32, blocks: Blocks) -> Entry {
    Entry { kind: EntryKind::Lost, extent, place: PLACE_NONE, heat: 0, blocks }
}
