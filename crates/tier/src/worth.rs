//! What a move has to gain to be worth it, in accesses: as many as would take that much longer
//! where the extent is.
//!
//! Devices are told apart by their kind alone, which is known without measuring; why that is
//! enough: `docs/decisions/2026-11-28-what-a-move-costs.md`.

use crate::event::MemberId;
use crate::tiers::Tiers;

/// How long I/O takes on a device of a kind, in µs: a small one anywhere, and a MiB in one go.
#[derive(Debug, Clone, Copy)]
struct Times {
    access_us: f32,
    mib_us: f32,
}

const MEMORY: Times = Times { access_us: 1.0, mib_us: 350.0 };
const FLASH: Times = Times { access_us: 100.0, mib_us: 2100.0 };
const DISK: Times = Times { access_us: 8500.0, mib_us: 8000.0 };

/// Below the least extents of like heat would change places for ever; beyond the most nothing was
/// measured.
const COST: std::ops::RangeInclusive<f32> = 4.0..=32.0;

impl Times {
    fn slower(self, other: Times) -> Times {
        Times {
            access_us: self.access_us.max(other.access_us),
            mib_us: self.mib_us.max(other.mib_us),
        }
    }

    /// Accesses for which two extents of a MiB change places between `self` and what is slower:
    /// each is read here and written there.
    fn swap_cost(self, slow: Times) -> f32 {
        let gain_us = (slow.access_us - self.access_us).max(1.0);
        (2.0 * (self.mib_us + slow.mib_us) / gain_us).clamp(*COST.start(), *COST.end())
    }
}

/// How hot one has to be to take the place of another that is so hot, where that costs so much.
pub(crate) fn least_to_swap(cost: f32, least: f32) -> f32 {
    least * 1.5 + cost
}

impl Tiers {
    /// How hot one has to be, in accesses, to be worth a move up from `slow` to `fast`.
    pub(crate) fn swap_cost(&self, (fast, slow): (u8, u8)) -> f32 {
        match self.tuning.swap_cost {
            Some(cost) => cost as f32,
            None => self.times_of(fast).swap_cost(self.times_of(slow)),
        }
    }

    fn times_of(&self, tier: u8) -> Times {
        let times = self.set.of_tier(tier).into_iter().map(|member| self.times_of_member(member));
        times.reduce(Times::slower).unwrap_or(FLASH)
    }

    fn times_of_member(&self, member: MemberId) -> Times {
        match () {
            () if self.set.is_volatile(member) => MEMORY,
            () if self.seeks(member) => DISK,
            () => FLASH,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_costs_as_many_accesses_as_the_kinds_of_devices_say() {
        assert_eq!(MEMORY.swap_cost(FLASH), 32.0);
        assert_eq!(FLASH.swap_cost(DISK), 4.0);
        assert_eq!(MEMORY.swap_cost(DISK), 4.0);
        // Which of two of a kind is quicker nobody knows, and it is not by much.
        assert_eq!(FLASH.swap_cost(FLASH), 32.0);
        assert_eq!(DISK.swap_cost(FLASH), 32.0);
        assert_eq!(MEMORY.slower(DISK).swap_cost(DISK), 32.0);
    }
}
