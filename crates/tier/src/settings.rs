//! What a set is opened with.

use crate::Mutant;
use forebay_format::io::Time;
use forebay_format::tier::Superblock;

/// What the executor knows of a set that it opens.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Nothing moves until [`Command::Resume`](crate::Command::Resume): pins may come first.
    pub is_paused: bool,
    /// The newest superblock of its members.
    pub superblock: Superblock,
    /// Each member of the superblock, by number.
    pub members: Vec<MemberSettings>,
    /// Identity of the running kernel.
    pub boot: [u8; 16],
    /// How it moves.
    pub tuning: Tuning,
    /// A bug, for a test that shows that it is noticed.
    pub mutant: Option<Mutant>,
}

/// What the executor knows of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberSettings {
    /// Whether it is there, and its superblock is not older than the others remember it.
    pub is_here: bool,
    /// Whether what it has written may be lost with the power until it is flushed.
    pub volatile_cache: bool,
    /// Whether it wants to know what is free.
    pub discards: bool,
    /// Blocks that are moved at a time, 1 to 64: few on what seeks quickly.
    pub piece_blocks: u32,
    /// Blocks of a stripe of a RAID array, which reads for its parity where it is written less; 0
    /// or 1 where there is none. What moves there comes in whole ones, if an extent holds them.
    pub stripe_blocks: u32,
}

/// How extents are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Placement {
    /// The fastest tier is filled, then the next; nothing moves but what must.
    Spill = 0,
    /// Hot extents move up, cold ones down, and room for new ones is kept free on top.
    Heat = 1,
}

/// Numbers of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// How extents are placed.
    pub placement: Placement,
    /// Bytes per second that moves copy, except those that keep the reserve.
    pub move_rate: u64,
    /// Bytes per second that moves copy which keep the reserve.
    pub reserve_rate: u64,
    /// Of the slots of each tier but the slowest so many per mille are kept free.
    pub reserve_per_mille: u32,
    /// Time between two plans.
    pub plan_every: Time,
    /// Accesses that a move costs about as much as; `None` for what the kinds of devices say.
    pub swap_cost: Option<u32>,
    /// Moves under way at a time.
    pub moves_max: usize,
    /// Extents that may be partly written.
    pub fine_max: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            placement: Placement::Heat,
            move_rate: 20_000_000,
            reserve_rate: 400_000_000,
            reserve_per_mille: 20,
            plan_every: 50_000_000,
            swap_cost: None,
            moves_max: 16,
            fine_max: 16_384,
        }
    }
}
