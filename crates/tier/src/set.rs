//! The members: who is there, what each can do, what of it is not flushed, and the superblock that
//! says who belongs to the set.

use crate::event::{CommandId, MemberId};
use crate::settings::{MemberSettings, Settings};
use forebay_format::io::Buf;
use forebay_format::tier::{Superblock, TierLayout, member_state};
use forebay_format::{BLOCK_SIZE, tier};
use std::collections::BTreeSet;

/// A member.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub settings: MemberSettings,
    pub tier: u8,
    pub slots: u32,
    /// Something was written since it was last flushed.
    is_dirty: bool,
    /// I/O of clients under way.
    clients: u32,
}

/// What is waited for by who changed the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// The new life is known; the map can be written.
    Life,
    /// The set is open.
    Opened,
    /// Nobody waits: a holder is no holder any more, a tier is being emptied.
    Nobody,
    /// A command is done when it is known.
    Command(CommandId),
    /// The set is closed.
    Stopped(CommandId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writing {
    Idle,
    Blocks,
    Flushes,
}

/// The owner of members and superblock.
#[derive(Debug)]
pub(crate) struct Set {
    superblock: Superblock,
    members: Vec<Member>,
    tiers: Vec<u8>,
    writing: Writing,
    under_way: BTreeSet<MemberId>,
    failed: BTreeSet<MemberId>,
    /// Asked for since the last write began, and what the one under way is for.
    asked: Vec<After>,
    serving: Vec<After>,
}

impl Set {
    pub fn new(settings: &Settings) -> Set {
        let superblock = settings.superblock.clone();
        assert_eq!(settings.members.len(), superblock.members().len());
        let member = |(entry, &settings): (&tier::MemberEntry, &MemberSettings)| Member {
            settings: MemberSettings { is_here: settings.is_here && entry.is_used(), ..settings },
            tier: entry.tier,
            slots: entry.slots.get(),
            is_dirty: false,
            clients: 0,
        };
        let entries = superblock.members().iter().zip(&settings.members);
        let members: Vec<Member> = entries.map(member).collect();
        let here = members.iter().filter(|it| it.settings.is_here);
        let tiers: BTreeSet<u8> = here.map(|it| it.tier).collect();
        let tiers = tiers.into_iter().collect();
        Set {
            superblock,
            members,
            tiers,
            writing: Writing::Idle,
            under_way: BTreeSet::new(),
            failed: BTreeSet::new(),
            asked: Vec::new(),
            serving: Vec::new(),
        }
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

    /// Members that are there.
    pub fn here(&self) -> impl Iterator<Item = MemberId> {
        let all = self.members.iter().enumerate().filter(|(_, it)| it.settings.is_here);
        all.map(|(number, _)| MemberId(number as u8))
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
    pub fn written(&mut self, member: MemberId) {
        self.members[usize::from(member.0)].is_dirty = true;
    }

    /// Members that have to be flushed; what is written from now on is for the next flush.
    pub fn take_dirty(&mut self) -> Vec<MemberId> {
        let mut dirty = Vec::new();
        for (number, it) in self.members.iter_mut().enumerate() {
            let is_dirty = std::mem::take(&mut it.is_dirty);
            if is_dirty && it.settings.volatile_cache && it.settings.is_here {
                dirty.push(MemberId(number as u8));
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

    /// Whether a superblock should be written now; if so it is begun.
    pub fn begin_write(&mut self) -> bool {
        if self.asked.is_empty() || self.writing != Writing::Idle {
            return false;
        }
        self.serving = std::mem::take(&mut self.asked);
        self.writing = Writing::Blocks;
        self.failed.clear();
        let block = &mut self.superblock.block;
        block.generation = (block.generation.get() + 1).into();
        true
    }

    /// The copy of a member, and where it goes.
    pub fn encode(&self, member: MemberId, mut buf: Buf) -> (u64, Buf) {
        let mut own = self.superblock.clone();
        own.block.member = member.0;
        buf.set_len(BLOCK_SIZE);
        own.encode(buf.bytes_mut());
        (tier::SUPERBLOCK_OFFSETS[(own.block.generation.get() % 2) as usize], buf)
    }

    pub fn writing(&mut self, member: MemberId) {
        self.under_way.insert(member);
    }

    /// A step of writing it has ended on a member. `Some` when that was the last one: whether
    /// flushes follow.
    pub fn wrote(&mut self, member: MemberId, is_ok: bool) -> Option<bool> {
        assert!(self.under_way.remove(&member));
        if !is_ok {
            self.failed.insert(member);
        }
        if !self.under_way.is_empty() {
            return None;
        }
        if self.writing == Writing::Blocks {
            self.writing = Writing::Flushes;
            return Some(true);
        }
        Some(false)
    }

    /// Members that have what was written so far.
    pub fn well(&self) -> Vec<MemberId> {
        self.here().filter(|member| !self.failed.contains(member)).collect()
    }

    /// It is written: what is due, and who does not have it.
    pub fn end_write(&mut self) -> (Vec<After>, BTreeSet<MemberId>) {
        self.writing = Writing::Idle;
        (std::mem::take(&mut self.serving), std::mem::take(&mut self.failed))
    }

    pub fn is_writing(&self) -> bool {
        self.writing != Writing::Idle || !self.asked.is_empty()
    }
}
