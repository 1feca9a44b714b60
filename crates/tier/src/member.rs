//! One member: what it can do, what of it is not flushed, and how far its superblock is.

use crate::settings::MemberSettings;
use forebay_format::tier::MemberEntry;

/// What was written to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// Of the map.
    Map,
    /// Of an extent that lives elsewhere.
    Copy,
    /// Of an extent that lives there.
    Data,
}

/// A member.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub settings: MemberSettings,
    pub tier: u8,
    pub slots: u32,
    /// Something was written since it was last flushed.
    is_dirty: bool,
    /// Data among it, and among what it was asked to keep last: not the map alone, which is
    /// believed only where it is whole.
    has_data: bool,
    asked_data: bool,
    /// And of extents that live there, which are nowhere else.
    has_own: bool,
    asked_own: bool,
    /// It failed to keep data that it was asked to, and has not been asked with success since.
    owes: bool,
    /// It has been asked since that.
    is_asked: bool,
    /// I/O of clients under way.
    pub clients: u32,
    /// It takes part when all superblocks say so.
    pub joins: bool,
    /// The generation of each copy of its superblock, as far as it is durable; 0 if it is not.
    copies: [u64; 2],
    /// Which of them is written next: never the only valid one.
    turn: usize,
    /// It has a superblock of this life.
    is_told: bool,
}

impl Member {
    pub fn new(settings: MemberSettings, entry: &MemberEntry, joins: bool) -> Member {
        Member {
            settings,
            tier: entry.tier,
            slots: entry.slots.get(),
            is_dirty: false,
            has_data: false,
            asked_data: false,
            has_own: false,
            asked_own: false,
            owes: false,
            is_asked: false,
            clients: 0,
            joins,
            copies: [0; 2],
            turn: 0,
            is_told: joins,
        }
    }

    /// A write has ended.
    pub fn written(&mut self, what: Written) {
        self.is_dirty = true;
        self.has_data |= what != Written::Map;
        self.has_own |= what == Written::Data;
    }

    /// Whether it has data of extents that live there, and has not kept them.
    pub fn has_own(&self) -> bool {
        self.has_own || self.asked_own || self.owes
    }

    /// It does not answer: what it was asked to keep it is asked again.
    pub fn ask_again(&mut self) {
        self.is_dirty = true;
        self.is_asked = false;
        self.has_data |= std::mem::take(&mut self.asked_data);
        self.has_own |= std::mem::take(&mut self.asked_own);
    }

    /// It failed to keep what it was asked to.
    pub fn not_kept(&mut self) {
        self.owes |= self.has_data || self.asked_data;
        self.is_asked = false;
    }

    /// It has kept what it was asked to.
    pub fn kept(&mut self) {
        if std::mem::take(&mut self.is_asked) {
            (self.owes, self.asked_data, self.asked_own) = (false, false, false);
        }
    }

    /// It is to be flushed, if it has to be: whether it was written to. What is written from now on
    /// is for the next flush.
    pub fn take_dirty(&mut self, is_used: bool, owing_too: bool) -> Option<bool> {
        let is_dirty = std::mem::take(&mut self.is_dirty);
        let is_able = is_used && self.settings.volatile_cache && self.settings.is_here;
        if !is_able || !(is_dirty || (self.owes && owing_too)) {
            return None;
        }
        self.is_asked = true;
        self.asked_data |= std::mem::take(&mut self.has_data);
        self.asked_own |= std::mem::take(&mut self.has_own);
        Some(is_dirty)
    }

    /// The generation of each copy of its superblock that is valid: the newer one stays.
    pub fn set_copies(&mut self, generations: [Option<u64>; 2]) {
        let [one, other] = generations;
        self.copies = generations.map(Option::unwrap_or_default);
        self.turn = usize::from(one >= other);
    }

    /// It has a superblock of this generation, durably: the next one goes to the other copy.
    pub fn has_superblock(&mut self, generation: u64) {
        self.copies[self.turn] = generation;
        (self.turn, self.is_told) = (1 - self.turn, true);
    }

    /// The generation that both copies of its superblock have at least.
    pub fn least_generation(&self) -> u64 {
        self.copies[0].min(self.copies[1])
    }

    /// Which copy of its superblock is written next.
    pub fn turn(&self) -> usize {
        self.turn
    }

    /// Whether it has a superblock of this life.
    pub fn is_told(&self) -> bool {
        self.is_told
    }
}
