//! Address: a block of a volume, in eight bytes.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bits of the block number; those of the volume's number lie above.
const BLOCK_BITS: u32 = 40;
/// Greatest number of a volume. Numbers are never used twice, so that no record of a volume that
/// was removed can be taken for one of another: with one new volume a minute they last 30 years.
pub const VOLUME_ID_MAX: u32 = (1 << (64 - BLOCK_BITS)) - 1;
/// Blocks that a volume can have.
pub(crate) const BLOCKS_MAX: u64 = 1 << BLOCK_BITS;

/// A block of a volume, or what else a structure says belongs to one.
#[repr(transparent)]
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct Address(U64);

impl Address {
    /// Block `block`, below 2^40, of volume `volume`, up to [`VOLUME_ID_MAX`].
    pub fn new(volume: u32, block: u64) -> Address {
        assert!(volume <= VOLUME_ID_MAX && block < BLOCKS_MAX, "{volume} {block}");
        Address(U64::new(u64::from(volume) << BLOCK_BITS | block))
    }

    /// The volume.
    pub fn volume(self) -> u32 {
        (self.0.get() >> BLOCK_BITS) as u32
    }

    /// The block.
    pub fn block(self) -> u64 {
        self.0.get() & (BLOCKS_MAX - 1)
    }
}
