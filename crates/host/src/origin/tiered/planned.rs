//! Sets that can be made, checked before anything is written.

use super::{Member, Tiered, TieredError, Unused};
use forebay_format::tier::{EXTENT_SIZE, Superblock, TierLayout};
use forebay_sys as sys;
use forebay_tier::{CreateError, MAP_BYTES_PER_EXTENT, NewMember, NewSet, Tuning, create};

/// Blocks of the journal.
const JOURNAL_BLOCKS: u32 = 2048;
/// A map has room for so many times the bytes that a set begins with.
const GROWTH: u64 = 4;

/// A tier of a new set: its devices.
#[derive(Debug)]
pub struct NewTier {
    /// Its devices, with the share of each that may be used, in percent.
    pub members: Vec<(Member, u8)>,
}

/// What a new set is to be.
#[derive(Debug, Clone)]
pub struct NewTiered {
    /// Name of the volume.
    pub name: String,
    /// Bytes of the volume; all that the members have room for, if `None`.
    pub bytes: Option<u64>,
    /// It may be larger than its members together.
    pub overcommit: bool,
}

/// A set that can be made, and was not yet.
#[derive(Debug)]
pub struct Planned {
    members: Vec<Member>,
    shares: Vec<u8>,
    pub(super) superblocks: Vec<Superblock>,
}

impl Planned {
    /// Checks that a set can be made of these tiers, the fastest first. Nothing is written.
    ///
    /// # Errors
    /// Says what is wrong with the tiers or the size.
    pub fn of(spec: &NewTiered, tiers: Vec<NewTier>) -> Result<Planned, TieredError> {
        let (mut members, mut shares) = (Vec::new(), Vec::new());
        let mut news = Vec::new();
        for (tier, of) in (0..).zip(tiers) {
            for (member, share) in of.members {
                let bytes = share_of(member.bytes(), share);
                let is_volatile = member.is_volatile();
                news.push(NewMember { uuid: sys::random(), bytes, tier, is_volatile });
                members.push(member);
                shares.push(share);
            }
        }
        let all: u64 = news.iter().map(|it| it.bytes).sum();
        let asked = spec.bytes.unwrap_or(all).max(all);
        let most = u64::from(TierLayout::EXTENTS_MAX) * EXTENT_SIZE;
        let bytes_max = asked.saturating_mul(GROWTH).min(most).max(asked);
        let mut set = NewSet {
            name: spec.name.clone(),
            set: sys::random(),
            bytes: spec.bytes.unwrap_or(1 << 20),
            journal_blocks: JOURNAL_BLOCKS,
            bytes_max,
            overcommit: spec.overcommit,
            members: news,
        };
        let mut superblocks = create(&set).map_err(|error| refused(&error, &members))?;
        if spec.bytes.is_none() {
            let slots = superblocks[0].members().iter().map(|it| u64::from(it.slots.get()));
            set.bytes = slots.sum::<u64>() << 20;
            superblocks = create(&set).map_err(|error| refused(&error, &members))?;
        }
        Ok(Planned { members, shares, superblocks })
    }

    /// Bytes that the volume will have.
    pub fn bytes(&self) -> u64 {
        self.superblocks[0].block.bytes.get()
    }

    /// Memory that its map takes, in bytes.
    pub fn map_bytes(&self) -> u64 {
        self.bytes().div_ceil(EXTENT_SIZE) * MAP_BYTES_PER_EXTENT
    }

    /// Bytes for data on each of its devices, with its identity, in the order in which they were
    /// given.
    pub fn members(&self) -> impl Iterator<Item = (u64, [u8; 16])> {
        let members = self.superblocks[0].members().iter();
        members.map(|it| (u64::from(it.slots.get()) << 20, it.uuid))
    }

    /// Identity of the set.
    pub fn set(&self) -> [u8; 16] {
        self.superblocks[0].block.set
    }

    /// Whether the content will end with the machine.
    pub fn is_ephemeral(&self) -> bool {
        self.superblocks[0].is_ephemeral()
    }

    /// The devices of whose content nothing outlives the machine.
    pub fn volatile(&self) -> impl Iterator<Item = usize> {
        let members = self.members.iter().enumerate();
        members.filter(|(_, member)| member.is_volatile()).map(|(number, _)| number)
    }

    /// What of its devices is not used. It is to be given back when the set is made, not before.
    pub fn unused(&self) -> Vec<Unused> {
        let each = self.members.iter().zip(&self.shares);
        each.filter_map(|(member, &share)| member.unused(share)).collect()
    }

    /// Makes the set, and opens it, as [`Tiered::open`] does. What the devices held is lost.
    ///
    /// # Errors
    /// A device cannot be written.
    pub fn make(self, tuning: Tuning) -> Result<Tiered, TieredError> {
        let set = self.set();
        for (member, superblock) in self.members.iter().zip(&self.superblocks) {
            member.write_superblock(superblock)?;
        }
        Tiered::open(self.members, Some(set), tuning)
    }
}

fn refused(error: &CreateError, members: &[Member]) -> TieredError {
    TieredError::Create(match *error {
        CreateError::Members => "1 to 63 devices on 1 to 16 tiers are needed".to_owned(),
        CreateError::TooSmall { member, needed } => format!(
            "{} is too small for a tier of this volume: {needed} bytes are needed at least",
            members[member].path().display()
        ),
        CreateError::NoRoom(bytes) => {
            format!("the tiers hold {bytes} bytes together, which is less than the volume has")
        }
        CreateError::TooLarge(bytes) => {
            format!(
                "a volume over tiers has {} TiB at most, its room to grow included",
                bytes >> 40
            )
        }
        CreateError::Size => "the size must be a multiple of 512 bytes".to_owned(),
    })
}

/// So many percent of a device.
pub fn share_of(bytes: u64, percent: u8) -> u64 {
    (u128::from(bytes) * u128::from(percent.clamp(1, 100)) / 100) as u64
}
