//! A new set, and finding the members of one again.

use forebay_format::name::NAME_BYTES_MAX;
use forebay_format::tier::{
    EXTENT_SIZE, MEMBERS_MAX, MemberEntry, Superblock, TIERS_MAX, TierLayout, UNHELD, member_state,
};

/// A member of a new set.
#[derive(Debug, Clone)]
pub struct NewMember {
    /// Identity, random.
    pub uuid: [u8; 16],
    /// Bytes that may be used.
    pub bytes: u64,
    /// The tier that it belongs to; 0 is the fastest.
    pub tier: u8,
    /// Its content does not outlive the machine.
    pub is_volatile: bool,
}

/// A new tiered origin.
#[derive(Debug, Clone)]
pub struct NewSet {
    /// Name of the volume.
    pub name: String,
    /// Identity, random.
    pub set: [u8; 16],
    /// Bytes of the volume.
    pub bytes: u64,
    /// Blocks of the journal.
    pub journal_blocks: u32,
    /// Bytes that the volume may grow to.
    pub bytes_max: u64,
    /// The volume may be larger than its members together.
    pub overcommit: bool,
    /// Its members, at most 63.
    pub members: Vec<NewMember>,
}

/// Why a set cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateError {
    /// No members, or too many, or too many tiers.
    Members,
    /// This member is too small for the map and one extent.
    TooSmall {
        /// Which member.
        member: usize,
        /// Bytes that it needs at least.
        needed: u64,
    },
    /// The members hold so many bytes, which is less than the volume has.
    NoRoom(u64),
    /// The size of the volume is zero or no multiple of 512.
    Size,
    /// The map has room for so many bytes at most.
    TooLarge(u64),
}

/// The superblocks of a new set, one for each member: to be written at both
/// [`SUPERBLOCK_OFFSETS`](forebay_format::tier::SUPERBLOCK_OFFSETS), durably, before it is opened.
///
/// # Errors
/// Says what is wrong with it.
pub fn create(spec: &NewSet) -> Result<Vec<Superblock>, CreateError> {
    let count = spec.members.len();
    if !(1..=MEMBERS_MAX).contains(&count) || spec.members.iter().any(|it| it.tier >= TIERS_MAX) {
        return Err(CreateError::Members);
    }
    if spec.bytes == 0 || !spec.bytes.is_multiple_of(512) {
        return Err(CreateError::Size);
    }
    let extents_max = spec.bytes_max.max(spec.bytes).div_ceil(EXTENT_SIZE);
    if extents_max > TierLayout::EXTENTS_MAX.into() {
        return Err(CreateError::TooLarge(u64::from(TierLayout::EXTENTS_MAX) * EXTENT_SIZE));
    }
    let extents_max = extents_max as u32;
    let layout = TierLayout { journal_blocks: spec.journal_blocks, extents_max };
    assert!(spec.journal_blocks >= TierLayout::journal_blocks_min(extents_max));
    let mut superblock = Superblock::empty();
    let block = &mut superblock.block;
    let name = spec.name.as_bytes();
    assert!(name.len() <= NAME_BYTES_MAX);
    block.name[..name.len()].copy_from_slice(name);
    block.set = spec.set;
    block.bytes = spec.bytes.into();
    block.journal_blocks = spec.journal_blocks.into();
    block.extents_max = extents_max.into();
    block.member_count = count as u8;
    let mut slots_all = 0;
    for (number, member) in spec.members.iter().enumerate() {
        let slots = layout.slots(member.bytes);
        if slots == 0 {
            let needed = layout.slots_offset() + EXTENT_SIZE;
            return Err(CreateError::TooSmall { member: number, needed });
        }
        slots_all += u64::from(slots);
        let entry = &mut block.members[number];
        entry.uuid = member.uuid;
        entry.slots = slots.into();
        entry.tier = member.tier;
        entry.state = member_state::IN;
        entry.flags = u8::from(member.is_volatile) * MemberEntry::VOLATILE;
    }
    if slots_all * EXTENT_SIZE < spec.bytes && !spec.overcommit {
        return Err(CreateError::NoRoom(slots_all * EXTENT_SIZE));
    }
    superblock.block.holders = holders(superblock.members(), |_| true);
    superblock.set_ephemeral(spec.members.iter().any(|member| member.is_volatile));
    superblock.set_fresh(true);
    Ok((0..count as u8)
        .map(|member| {
            let mut own = superblock.clone();
            own.block.member = member;
            own
        })
        .collect())
}

/// Who should hold the map: of an ephemeral set its RAM, of another the fastest members of two
/// tiers, else two of one.
pub(crate) fn holders(members: &[MemberEntry], is_here: impl Fn(u8) -> bool) -> [u8; 2] {
    let is_ephemeral = members.iter().any(|it| it.is_used() && it.is_volatile());
    let fits = |number: &u8| {
        let member = &members[usize::from(*number)];
        member.is_used() && member.is_volatile() == is_ephemeral && is_here(*number)
    };
    let mut able: Vec<u8> = (0..members.len() as u8).filter(fits).collect();
    // Those that are to leave only if there are not enough others.
    let is_leaving = |number: u8| members[usize::from(number)].state != member_state::IN;
    able.sort_by_key(|&it| (is_leaving(it), members[usize::from(it)].tier, it));
    let Some(&first) = able.first() else { return [UNHELD; 2] };
    if is_ephemeral {
        return [first, UNHELD];
    }
    let tier = |number: u8| members[usize::from(number)].tier;
    let is_elsewhere =
        |it: &&u8| tier(**it) != tier(first) && is_leaving(**it) == is_leaving(first);
    let second = able.iter().find(is_elsewhere).or(able.get(1));
    [first, second.copied().unwrap_or(UNHELD)]
}

/// The members of a set that were found.
#[derive(Debug, Clone)]
pub struct Assembled {
    /// The newest superblock.
    pub superblock: Superblock,
    /// For each member, by number, which of those that were found it is; `None` if it is missing,
    /// or older than the others remember it.
    pub found: Vec<Option<usize>>,
}

/// Finds out who is who among members of one set, each with its newest superblock. `None` if there
/// are none.
pub fn assemble(found: &[Superblock]) -> Option<Assembled> {
    let mut newest = found.iter().max_by_key(|it| it.age())?.clone();
    // The next life and the next superblock have numbers that nobody has seen.
    let set = newest.block.set;
    for block in found.iter().map(|it| &it.block).filter(|it| it.set == set) {
        newest.block.epoch = block.epoch.get().max(newest.block.epoch.get()).into();
        newest.set_generation(block.generation.get().max(newest.block.generation.get()));
    }
    let place_of = |number: usize, entry: &MemberEntry| {
        found.iter().position(|it| {
            usize::from(it.block.member) == number
                && entry.is_used()
                && it.block.members[number].uuid == entry.uuid
                && it.block.set == newest.block.set
                && it.block.epoch.get() >= entry.epoch.get()
                && it.block.generation.get() >= entry.generation.get()
        })
    };
    let places = newest.members().iter().enumerate();
    let places = places.map(|(number, entry)| place_of(number, entry)).collect();
    Some(Assembled { superblock: newest, found: places })
}
