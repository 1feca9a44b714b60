//! The members: who is there, what each can do, what of it is not flushed, and the superblock that
//! says who belongs to the set.

use crate::event::{CommandId, MemberId};
use crate::member::{Member, Written};
use crate::settings::{MemberSettings, Settings};
use forebay_format::io::Buf;
use forebay_format::tier::{
    MEMBERS_MAX, MemberEntry, Superblock, TIERS_MAX, TierLayout, member_state,
};
use forebay_format::{BLOCK_SIZE, tier};
use std::collections::BTreeSet;

/// What superblocks will say of a member that joins, once its own does.
#[derive(Debug)]
struct Joining {
    member: MemberId,
    entry: MemberEntry,
    /// The numbers of tiers from this one on grow by one.
    grown: Option<u8>,
}

/// What is waited for by who changed the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// The new life is known; the map can be written.
    Life,
    /// The set is open.
    Opened,
    /// Nobody waits: a holder is no holder any more, members are being emptied.
    Nobody,
    /// A command is done when it is known.
    Command(CommandId),
    /// Who joins or leaves by this command goes on.
    Change(CommandId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writing {
    Idle,
    /// Who joins gets its own, and then is asked to keep it.
    Own,
    OwnFlush,
    Blocks,
    Flushes,
}

/// What has to be done next for superblocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// These get theirs.
    Write(Vec<MemberId>),
    /// These have to keep what they got.
    Flush(Vec<MemberId>),
    /// All is done.
    End,
}

/// The owner of members and superblock.
#[derive(Debug)]
pub(crate) struct Set {
    superblock: Superblock,
    members: Vec<Member>,
    tiers: Vec<u8>,
    writing: Writing,
    under_way: u32,
    joining: Option<Joining>,
    /// Tiers whose numbers have grown, for who has not heard of it yet.
    grown: Option<u8>,
    failed: BTreeSet<MemberId>,
    /// Asked for since the last write began, and what the one under way is for.
    asked: Vec<After>,
    serving: Vec<After>,
}

impl Set {
    pub fn new(settings: &Settings) -> Set {
        let superblock = settings.superblock.clone();
        assert_eq!(settings.members.len(), superblock.members().len());
        let member = |(entry, &settings): (&MemberEntry, &MemberSettings)| {
            let is_here = settings.is_here && entry.is_used();
            Member::new(MemberSettings { is_here, ..settings }, entry, false)
        };
        let entries = superblock.members().iter().zip(&settings.members);
        let members: Vec<Member> = entries.map(member).collect();
        let mut set = Set {
            superblock,
            members,
            tiers: Vec::new(),
            writing: Writing::Idle,
            under_way: 0,
            joining: None,
            grown: None,
            failed: BTreeSet::new(),
            asked: Vec::new(),
            serving: Vec::new(),
        };
        set.find_tiers();
        set
    }

    fn find_tiers(&mut self) {
        let tiers: BTreeSet<u8> = self.here().map(|it| self.member(it).tier).collect();
        self.tiers = tiers.into_iter().collect();
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Changes what the next superblock says.
    pub fn superblock_mut(&mut self) -> &mut Superblock {
        &mut self.superblock
    }

    pub fn layout(&self) -> TierLayout {
        self.superblock.layout()
    }

    /// First half of the set's uuid, which is in everything of it.
    pub fn id(&self) -> u64 {
        u64::from_le_bytes(self.superblock.block.set[..8].try_into().expect("eight bytes"))
    }

    pub fn member(&self, member: MemberId) -> &Member {
        &self.members[usize::from(member.0)]
    }

    pub fn is_here(&self, member: MemberId) -> bool {
        self.members.get(usize::from(member.0)).is_some_and(|it| it.settings.is_here)
    }

    fn numbers(&self) -> impl Iterator<Item = MemberId> + use<> {
        (0..self.members.len()).map(|number| MemberId(number as u8))
    }

    /// Members that are there and take part.
    pub fn here(&self) -> impl Iterator<Item = MemberId> {
        self.named().filter(|&it| !self.member(it).joins)
    }

    /// Members that are there and that the superblock names.
    fn named(&self) -> impl Iterator<Item = MemberId> {
        self.numbers().filter(|&it| self.member(it).settings.is_here && self.is_used(it))
    }

    /// Whether anybody has this number.
    pub fn is_used(&self, member: MemberId) -> bool {
        self.superblock.block.members[usize::from(member.0)].is_used()
    }

    /// Members of a tier, whether they are there or not.
    pub fn of_tier(&self, tier: u8) -> Vec<MemberId> {
        self.numbers().filter(|&it| self.is_used(it) && self.member(it).tier == tier).collect()
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Members of a tier that are there and take extents.
    pub fn taking(&self, tier: u8) -> impl Iterator<Item = MemberId> {
        self.here()
            .filter(move |&member| self.member(member).tier == tier && !self.is_leaving(member))
    }

    /// The tiers of members that are there, fastest first.
    pub fn tiers(&self) -> &[u8] {
        &self.tiers
    }

    /// One of [`member_state`].
    pub fn state(&self, member: MemberId) -> u8 {
        self.superblock.block.members[usize::from(member.0)].state
    }

    pub fn is_volatile(&self, member: MemberId) -> bool {
        self.superblock.block.members[usize::from(member.0)].is_volatile()
    }

    pub fn is_leaving(&self, member: MemberId) -> bool {
        self.state(member) == member_state::LEAVING
    }

    pub fn set_state(&mut self, member: MemberId, state: u8) {
        self.superblock.block.members[usize::from(member.0)].state = state;
    }

    /// A write to a member has ended.
    pub fn written(&mut self, member: MemberId, what: Written) {
        self.members[usize::from(member.0)].written(what);
    }

    /// A member does not answer: what it was asked to keep it is asked again.
    pub fn ask_again(&mut self, member: MemberId) {
        self.members[usize::from(member.0)].ask_again();
    }

    /// Whether a member has data of extents that live there, and has not kept them.
    pub fn has_own(&self, member: MemberId) -> bool {
        self.member(member).has_own()
    }

    /// A member failed to keep what it was asked to: nothing is said of it. If there were data
    /// among that, clients hear of it until it has kept them.
    pub fn not_kept(&mut self, member: MemberId) {
        self.members[usize::from(member.0)].not_kept();
    }

    /// A member has kept what it was asked to.
    pub fn kept(&mut self, member: MemberId) {
        self.members[usize::from(member.0)].kept();
    }

    /// Members that have to be flushed, and whether they were written to; what is written from now
    /// on is for the next flush. With those that owe something from before, if that is asked for,
    /// and without some.
    pub fn take_dirty(
        &mut self,
        owing_too: bool,
        without: &BTreeSet<MemberId>,
    ) -> Vec<(MemberId, bool)> {
        let mut dirty = Vec::new();
        for (number, it) in self.members.iter_mut().enumerate() {
            if without.contains(&MemberId(number as u8)) {
                continue;
            }
            let is_used = self.superblock.block.members[number].is_used();
            if let Some(is_dirty) = it.take_dirty(is_used, owing_too) {
                dirty.push((MemberId(number as u8), is_dirty));
            }
        }
        dirty
    }

    pub fn client_begins(&mut self, member: MemberId) {
        self.members[usize::from(member.0)].clients += 1;
    }

    pub fn client_ends(&mut self, member: MemberId) {
        self.members[usize::from(member.0)].clients -= 1;
    }

    /// Whether no client's I/O is under way there.
    pub fn is_idle(&self, member: MemberId) -> bool {
        self.member(member).clients == 0
    }

    /// The superblock has changed: `after` is due when it is known.
    pub fn ask(&mut self, after: After) {
        self.asked.push(after);
    }

    /// Whether a superblock should be written now; if so it is begun, by these.
    pub fn begin_write(&mut self) -> Option<Vec<MemberId>> {
        if self.asked.is_empty() || self.writing != Writing::Idle {
            return None;
        }
        self.serving = std::mem::take(&mut self.asked);
        self.failed.clear();
        self.next_generation();
        let is_used = |it: u8| self.superblock.block.members[usize::from(it)].is_used();
        let are_members = self.superblock.holders().all(is_used);
        assert!(are_members, "a superblock that names others as holders could not be read");
        for (own, entry) in self.members.iter().zip(&mut self.superblock.block.members) {
            entry.generation = entry.generation.get().max(own.least_generation()).into();
        }
        if let Some(joining) = &self.joining {
            self.writing = Writing::Own;
            return Some(vec![joining.member]);
        }
        self.writing = Writing::Blocks;
        Some(self.named().collect())
    }

    /// The next superblock is the last one of an orderly stop.
    pub fn close(&mut self) {
        let next = self.superblock.block.generation.get() + 1;
        self.superblock.block.closed = next.into();
    }

    fn next_generation(&mut self) {
        let block = &mut self.superblock.block;
        block.generation = (block.generation.get() + 1).into();
    }

    /// The copy of a member, and where it goes. Who joins has it in both places, lest what was
    /// there before is taken for it.
    pub fn encode(&self, member: MemberId, mut buf: Buf) -> (Vec<u64>, Buf) {
        let mut own = self.superblock.clone();
        if let Some(joining) = self.joining.as_ref().filter(|_| self.writing == Writing::Own) {
            joining.say(&mut own);
        }
        own.block.member = member.0;
        buf.set_len(BLOCK_SIZE);
        own.encode(buf.bytes_mut());
        let offsets = match self.writing {
            Writing::Own => tier::SUPERBLOCK_OFFSETS.to_vec(),
            _ => vec![tier::SUPERBLOCK_OFFSETS[self.member(member).turn()]],
        };
        (offsets, buf)
    }

    pub fn writing(&mut self) {
        self.under_way += 1;
    }

    /// A step of writing it has ended on a member: what is next, if that was the last one.
    pub fn wrote(&mut self, member: MemberId, is_ok: bool) -> Option<Next> {
        self.under_way -= 1;
        if !is_ok {
            self.failed.insert(member);
        }
        if self.under_way > 0 {
            return None;
        }
        Some(self.go_on())
    }

    /// The next step of writing it.
    pub fn go_on(&mut self) -> Next {
        match self.writing {
            Writing::Own if self.failed.is_empty() => {
                self.writing = Writing::OwnFlush;
                let own = self.joining.iter().map(|it| it.member);
                Next::Flush(own.collect())
            }
            Writing::Own | Writing::OwnFlush => {
                self.take_in();
                self.writing = Writing::Blocks;
                Next::Write(self.named().collect())
            }
            Writing::Blocks => {
                self.writing = Writing::Flushes;
                Next::Flush(self.well())
            }
            Writing::Flushes | Writing::Idle => Next::End,
        }
    }

    /// Members that have what was written so far.
    pub fn well(&self) -> Vec<MemberId> {
        self.named().filter(|member| !self.failed.contains(member)).collect()
    }

    /// A member is to join, which is nobody's number: it gets its superblock first.
    pub fn join(
        &mut self,
        member: MemberId,
        settings: MemberSettings,
        entry: MemberEntry,
        grown: Option<u8>,
    ) {
        assert!(self.joining.is_none() && !self.is_used(member));
        let settings = MemberSettings { is_here: true, ..settings };
        let new = Member::new(settings, &entry, true);
        let number = usize::from(member.0);
        match self.members.get_mut(number) {
            Some(own) => *own = new,
            None => self.members.push(new),
        }
        self.joining = Some(Joining { member, entry, grown });
    }

    /// Who joins has its superblock, or not: then it does not join.
    pub fn take_in(&mut self) {
        let Some(joining) = self.joining.take() else { return };
        // Its own may say what the others will not.
        self.next_generation();
        if !self.failed.is_empty() {
            self.failed.clear();
            self.members[usize::from(joining.member.0)].settings.is_here = false;
            return;
        }
        joining.say(&mut self.superblock);
        for (own, entry) in self.members.iter_mut().zip(&self.superblock.block.members) {
            own.tier = entry.tier;
        }
        self.grown = joining.grown;
        self.find_tiers();
    }

    /// Has the numbers of tiers follow each other, as the next superblock says it. What each number
    /// has become, if any has changed; `None` for those that no member has.
    pub fn close_up(&mut self) -> Option<[Option<u8>; TIERS_MAX as usize]> {
        let entries = &mut self.superblock.block.members;
        let used = entries.iter().filter(|it| it.is_used());
        let tiers: BTreeSet<u8> = used.map(|it| it.tier).collect();
        let mut numbers = [None; TIERS_MAX as usize];
        for (new, &old) in (0..).zip(&tiers) {
            numbers[usize::from(old)] = Some(new);
        }
        if (0..).zip(&tiers).all(|(new, &old)| new == old) {
            return None;
        }
        for (own, entry) in self.members.iter_mut().zip(entries) {
            if let (true, Some(new)) = (entry.is_used(), numbers[usize::from(entry.tier)]) {
                (own.tier, entry.tier) = (new, new);
            }
        }
        self.find_tiers();
        Some(numbers)
    }

    /// From which tier on numbers have grown since this was asked.
    pub fn take_grown(&mut self) -> Option<u8> {
        self.grown.take()
    }

    /// All superblocks name a member: it takes part.
    pub fn joined(&mut self, member: MemberId) {
        self.members[usize::from(member.0)].joins = false;
        self.find_tiers();
    }

    /// No superblock names a member any more, and no I/O of it comes.
    pub fn leave(&mut self, member: MemberId) {
        self.members[usize::from(member.0)].settings.is_here = false;
        self.find_tiers();
    }

    /// The first number that nobody has, of those that were somebody's if they fit.
    pub fn next_number(&self, fits: impl Fn(MemberId) -> bool) -> Option<MemberId> {
        let count = self.superblock.block.member_count;
        let mut left = (0..count).map(MemberId).filter(|&it| !self.is_used(it));
        let new = Some(MemberId(count)).filter(|_| usize::from(count) < MEMBERS_MAX);
        left.find(|&it| fits(it)).or(new)
    }

    /// Says who holds the map.
    pub fn set_holders(&mut self, holders: &[MemberId]) {
        let holder = |at: usize| holders.get(at).map_or(tier::UNHELD, |it| it.0);
        self.superblock.block.holders = std::array::from_fn(holder);
    }

    /// The generation of each copy of a member's superblock that is valid: the newer one stays.
    pub fn set_copies(&mut self, member: MemberId, generations: [Option<u64>; 2]) {
        self.members[usize::from(member.0)].set_copies(generations);
    }

    /// Members that are there and have a superblock of this life.
    pub fn told(&self) -> impl Iterator<Item = MemberId> {
        self.named().filter(|&it| self.member(it).is_told())
    }

    /// It is written: what is due, and who does not have it. The next one goes to the other copy of
    /// who has it.
    pub fn end_write(&mut self) -> (Vec<After>, BTreeSet<MemberId>) {
        self.writing = Writing::Idle;
        let generation = self.superblock.block.generation.get();
        for member in self.well() {
            self.members[usize::from(member.0)].has_superblock(generation);
        }
        (std::mem::take(&mut self.serving), std::mem::take(&mut self.failed))
    }

    pub fn is_writing(&self) -> bool {
        self.writing != Writing::Idle || !self.asked.is_empty()
    }
}

impl Joining {
    fn say(&self, superblock: &mut Superblock) {
        let block = &mut superblock.block;
        for entry in &mut block.members {
            entry.tier +=
                u8::from(self.grown.is_some_and(|from| entry.is_used() && entry.tier >= from));
        }
        block.members[usize::from(self.member.0)] = self.entry;
        block.member_count = block.member_count.max(self.member.0 + 1);
    }
}
