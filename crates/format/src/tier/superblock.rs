//! The superblock of a member: who belongs to the tiered origin, who holds its map, and in which
//! life it is.
//!
//! Two copies, written in turn. It protects against: a member of another set (uuids), one that was
//! away or is an older copy (generation, epoch), a torn write (checksum, two copies), what an
//! earlier life wrote into the journal (epoch), a reboot while writes were not flushed (boot), and
//! features of a newer version.

use super::{EXTENT_SIZE, SLOTS_MAX, TierLayout};
use crate::name::{NAME_BYTES_MAX, RawName};
use crate::{BLOCK_SIZE, FormatError, checksum_without};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "FbTier01" as bytes on the device.
pub const MAGIC: [u8; 8] = *b"FbTier01";
/// Version of the format of tiers that this build writes.
pub const VERSION: u32 = 1;
/// Most members of a tiered origin, over all tiers.
pub const MEMBERS_MAX: usize = 63;
/// Most tiers.
pub const TIERS_MAX: u8 = 16;
/// No member, in [`SuperblockBlock::holders`].
pub const UNHELD: u8 = 0xff;
/// Incompatible features that this build understands.
pub const INCOMPAT_KNOWN: u64 = 0;
const CRC_FIELD: usize = 12;
const WHAT: &str = "superblock of a tier";

/// What a member is to its set: values of [`MemberEntry::state`].
pub mod member_state {
    /// Nobody, or not any more: its number is not used again while extents may name it.
    pub const NONE: u8 = 0;
    /// It takes part.
    pub const IN: u8 = 1;
    /// It is being emptied: it takes no new extents.
    pub const LEAVING: u8 = 2;
}

/// One member, as all of them remember it.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct MemberEntry {
    /// Identity, random.
    pub uuid: [u8; 16],
    /// Slots.
    pub slots: U32,
    /// The tier that it belongs to; 0 is the fastest.
    pub tier: u8,
    /// One of [`member_state`].
    pub state: u8,
    /// Bit 0: its content does not outlive the machine (RAM).
    pub flags: u8,
    /// Zero.
    pub reserved: u8,
    /// The last life in which it was there.
    pub epoch: U64,
    /// Both copies of its superblock have this generation at least: one that has less is older than
    /// what was written there.
    pub generation: U64,
    /// Zero.
    pub reserved_tail: [u8; 8],
}

impl MemberEntry {
    /// Bit of `flags`: RAM.
    pub const VOLATILE: u8 = 1;

    /// Whether its content goes with the power.
    pub fn is_volatile(&self) -> bool {
        self.flags & MemberEntry::VOLATILE != 0
    }

    /// Whether somebody is there.
    pub fn is_used(&self) -> bool {
        self.state != member_state::NONE
    }
}

/// A superblock as it lies on a member.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct SuperblockBlock {
    /// "FbTier01".
    pub magic: [u8; 8],
    /// Version of the format of tiers.
    pub version: U32,
    /// CRC-32C of the block, this field as zero.
    pub crc: U32,
    /// Features that an older version must refuse.
    pub features_incompat: U64,
    /// Features that an older version may ignore.
    pub features_compat: U64,
    /// Identity of the tiered origin, random.
    pub set: [u8; 16],
    /// Name of its volume, padded with zeros.
    pub name: [u8; NAME_BYTES_MAX],
    /// Grows by one with each write of a superblock.
    pub generation: U64,
    /// Life: grows by one each time that the set is opened, before anything else is written.
    pub epoch: U64,
    /// The running kernel in which this life began: after another one, what was not flushed may be
    /// gone.
    pub boot: [u8; 16],
    /// Bytes of the volume.
    pub bytes: U64,
    /// Blocks of the journal.
    pub journal_blocks: U32,
    /// Extents that the map has room for.
    pub extents_max: U32,
    /// Which member this is.
    pub member: u8,
    /// Entries of `members` that may be in use.
    pub member_count: u8,
    /// Members that hold the map, or [`UNHELD`].
    pub holders: [u8; 2],
    /// Bit 0: ephemeral. Bit 1: never opened yet, so there is no map.
    pub flags: u8,
    /// How extents are placed.
    pub placement: u8,
    /// Zero.
    pub reserved: [u8; 10],
    /// All members.
    pub members: [MemberEntry; MEMBERS_MAX],
    /// `generation` if an orderly stop wrote this superblock, after all else.
    pub closed: U64,
    /// Zero.
    pub reserved_tail: [u8; 888],
}

const _: () = assert!(size_of::<SuperblockBlock>() == BLOCK_SIZE);
const _: () = assert!(std::mem::offset_of!(SuperblockBlock, crc) == CRC_FIELD);

/// Bit of [`SuperblockBlock::flags`]: the volume is ephemeral.
const EPHEMERAL: u8 = 1;
/// Bit of [`SuperblockBlock::flags`]: the set was made and has no map yet.
const FRESH: u8 = 2;

/// A superblock in memory.
#[derive(Debug, Clone)]
pub struct Superblock {
    /// As it lies on the member.
    pub block: SuperblockBlock,
}

impl Superblock {
    /// One of zeros, to fill in.
    pub fn empty() -> Superblock {
        let mut block = SuperblockBlock::new_zeroed();
        block.holders = [UNHELD; 2];
        Superblock { block }
    }

    /// Encodes one copy.
    pub fn encode(&self, out: &mut [u8]) {
        let mut block = self.block;
        block.magic = MAGIC;
        block.version = U32::new(VERSION);
        block.crc = U32::new(0);
        block.crc = U32::new(checksum_without(block.as_bytes(), CRC_FIELD));
        out.copy_from_slice(block.as_bytes());
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// Says whether the bytes are not ours, damaged, too new or impossible.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, FormatError> {
        let block = SuperblockBlock::read_from_bytes(bytes).expect("one block");
        if block.magic != MAGIC {
            return Err(FormatError::NotOurs { what: WHAT });
        }
        if checksum_without(bytes, CRC_FIELD) != block.crc.get() {
            return Err(FormatError::Damaged { what: WHAT });
        }
        let version = block.version.get();
        if version != VERSION {
            return Err(FormatError::TooNewVersion { what: WHAT, version });
        }
        let missing = block.features_incompat.get() & !INCOMPAT_KNOWN;
        if missing != 0 {
            return Err(FormatError::TooNew { what: WHAT, missing });
        }
        let superblock = Superblock { block };
        superblock.check()?;
        let name = RawName(block.name);
        name.checked().ok_or(FormatError::BadName { what: WHAT, name })?;
        Ok(superblock)
    }

    /// The first value that makes no sense.
    fn check(&self) -> Result<(), FormatError> {
        let block = &self.block;
        let invalid = |field| Err(FormatError::Invalid { what: WHAT, field });
        let count = usize::from(block.member_count);
        if !(1..=MEMBERS_MAX).contains(&count) || usize::from(block.member) >= count {
            return invalid("member_count");
        }
        if !block.members[usize::from(block.member)].is_used() {
            return invalid("member");
        }
        let is_bad = |member: &MemberEntry| {
            member.slots.get() > SLOTS_MAX
                || member.tier >= TIERS_MAX
                || member.state > member_state::LEAVING
        };
        let (members, rest) = block.members.split_at(count);
        if members.iter().any(is_bad) || rest.iter().any(MemberEntry::is_used) {
            return invalid("members");
        }
        let is_held = |&holder: &u8| {
            holder == UNHELD || members.get(usize::from(holder)).is_some_and(MemberEntry::is_used)
        };
        if !block.holders.iter().all(is_held) || block.holders == [UNHELD; 2] {
            return invalid("holders");
        }
        let least = TierLayout::journal_blocks_min(block.extents_max.get());
        if !(least..=TierLayout::JOURNAL_BLOCKS_MAX).contains(&block.journal_blocks.get()) {
            return invalid("journal_blocks");
        }
        let bytes = block.bytes.get();
        let extents = bytes.div_ceil(EXTENT_SIZE);
        let room = u64::from(block.extents_max.get());
        if bytes == 0
            || !bytes.is_multiple_of(512)
            || extents > room
            || room > u64::from(TierLayout::EXTENTS_MAX)
        {
            return invalid("bytes");
        }
        // Before numbers overflow: nobody opens a set so often.
        if block.epoch.get() > u64::MAX / 2 || block.generation.get() > u64::MAX / 2 {
            return invalid("epoch");
        }
        Ok(())
    }

    /// Where things lie on each member.
    pub fn layout(&self) -> TierLayout {
        TierLayout {
            journal_blocks: self.block.journal_blocks.get(),
            extents_max: self.block.extents_max.get(),
        }
    }

    /// The members that there are or were, by number.
    pub fn members(&self) -> &[MemberEntry] {
        &self.block.members[..usize::from(self.block.member_count)]
    }

    /// Identity of the member that it is of.
    pub fn uuid(&self) -> [u8; 16] {
        self.block.members[usize::from(self.block.member)].uuid
    }

    /// The members that hold the map.
    pub fn holders(&self) -> impl Iterator<Item = u8> {
        self.block.holders.into_iter().filter(|&holder| holder != UNHELD)
    }

    /// The newer valid copy of a member's two.
    ///
    /// # Errors
    /// The first copy's error if neither is valid.
    pub fn newest_of(copies: [&[u8]; 2]) -> Result<Superblock, FormatError> {
        match copies.map(Superblock::decode) {
            [Ok(a), Ok(b)] if b.block.generation.get() > a.block.generation.get() => Ok(b),
            [Ok(a), _] => Ok(a),
            [Err(_), Ok(b)] => Ok(b),
            [Err(error), Err(_)] => Err(error),
        }
    }

    /// The last life that was opened to its end; the one that it is of may only have begun.
    fn opened(&self) -> u64 {
        let members = self.members().iter().filter(|it| it.is_used());
        members.map(|it| it.epoch.get()).max().unwrap_or(0)
    }

    /// Of superblocks of one set the one with the greatest age is the newest. A life that was only
    /// begun, by some of the members, is not newer than one that others opened later, whatever its
    /// number: nothing was changed in it.
    pub fn age(&self) -> (u64, u64, u64) {
        (self.opened(), self.block.epoch.get(), self.block.generation.get())
    }

    /// Whether the set was made and never opened to its end: there is no map yet.
    pub fn is_fresh(&self) -> bool {
        self.block.flags & FRESH != 0
    }

    /// Says whether there is no map yet.
    pub fn set_fresh(&mut self, is_fresh: bool) {
        self.block.flags = (self.block.flags & !FRESH) | (u8::from(is_fresh) * FRESH);
    }

    /// Whether an orderly stop was the last that happened to the set: all holders have all of the
    /// map, and nothing waits to be confirmed.
    pub fn is_closed(&self) -> bool {
        let closed = self.block.closed.get();
        closed != 0 && closed == self.block.generation.get()
    }

    /// Gives it another generation: it stays closed if it is.
    pub fn set_generation(&mut self, generation: u64) {
        if self.is_closed() {
            self.block.closed = generation.into();
        }
        self.block.generation = generation.into();
    }

    /// Whether the volume does not outlive the machine.
    pub fn is_ephemeral(&self) -> bool {
        self.block.flags & EPHEMERAL != 0
    }

    /// Says whether the volume outlives the machine.
    pub fn set_ephemeral(&mut self, is_ephemeral: bool) {
        self.block.flags = (self.block.flags & !EPHEMERAL) | (u8::from(is_ephemeral) * EPHEMERAL);
    }
}
