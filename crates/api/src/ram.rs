//! How much memory a pool takes, before it is made.

use serde::{Deserialize, Serialize};

/// Bytes of the index for each slot of the pool, table slack included.
pub const INDEX_BYTES_PER_SLOT: u64 = 10;
/// Slots for each byte of the ghost (what missed lately: half as many entries as slots, a byte
/// each).
pub const GHOST_SLOTS_PER_BYTE: u64 = 2;
/// Least RAM tier that is worth having, in bytes.
pub const TIER_BYTES_MIN: u64 = 4 << 20;
/// Largest RAM tier that a pool takes unasked, in bytes.
pub const TIER_BYTES_DEFAULT_MAX: u64 = 1 << 30;

/// Memory that one pool needs, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RamNeed {
    /// The index.
    pub index_bytes: u64,
    /// The ghost.
    pub ghost_bytes: u64,
    /// The RAM tier.
    pub tier_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

impl RamNeed {
    /// The memory of a pool of `slots` blocks with a RAM tier of `tier_bytes`.
    pub fn new(slots: u64, tier_bytes: u64) -> RamNeed {
        let index_bytes = slots * INDEX_BYTES_PER_SLOT;
        let ghost_bytes = slots / GHOST_SLOTS_PER_BYTE;
        let total_bytes = index_bytes + ghost_bytes + tier_bytes;
        RamNeed { index_bytes, ghost_bytes, tier_bytes, total_bytes }
    }

    /// The memory of a pool that was given no `--ram`: a RAM tier of 1/64 of the pool, within
    /// limits.
    pub fn suggested(slots: u64) -> RamNeed {
        RamNeed::new(slots, (slots * 4096 / 64).clamp(TIER_BYTES_MIN, TIER_BYTES_DEFAULT_MAX))
    }

    /// The memory of a pool that may take `cap_bytes` in all: what index and ghost leave goes to
    /// the RAM tier. `Err` holds the least cap that would do.
    pub fn within(slots: u64, cap_bytes: u64) -> Result<RamNeed, u64> {
        let fixed = RamNeed::new(slots, 0).total_bytes;
        match cap_bytes.checked_sub(fixed) {
            Some(tier) if tier >= TIER_BYTES_MIN => Ok(RamNeed::new(slots, tier)),
            _ => Err(fixed + TIER_BYTES_MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tebibyte_of_cache_needs_less_than_three_gibibytes_of_index_and_ghost() {
        let need = RamNeed::suggested((1 << 40) / 4096);
        assert_eq!(need.index_bytes + need.ghost_bytes, (2 << 30) + (5 << 27));
        assert_eq!(need.tier_bytes, 1 << 30);
        assert_eq!(need.total_bytes, (3 << 30) + (5 << 27));
    }

    #[test]
    fn a_cap_leaves_the_rest_to_the_tier_or_says_what_would_do() {
        let slots = 1 << 20;
        let need = RamNeed::within(slots, 32 << 20).unwrap();
        assert_eq!(need.total_bytes, 32 << 20);
        assert_eq!(need.tier_bytes, 43 << 19);
        let least = RamNeed::within(slots, 12 << 20).unwrap_err();
        assert_eq!(least, 29 << 19);
        assert!(RamNeed::within(slots, least).is_ok());
    }
}
