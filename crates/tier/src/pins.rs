//! Which extents have a tier of their own. Nothing of it is on the devices: whoever wants it says
//! it again after each start.

/// Most ranges.
const RANGES_MAX: usize = 4096;

/// Extents from `first` up to `end`, not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pin {
    first: u32,
    end: u32,
    tier: u8,
}

/// The owner of pins: ranges in order, none of which touches another.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    ranges: Vec<Pin>,
}

impl Pins {
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The tier of an extent.
    pub fn of(&self, extent: u32) -> Option<u8> {
        let at = self.ranges.partition_point(|pin| pin.end <= extent);
        self.ranges.get(at).filter(|pin| pin.first <= extent).map(|pin| pin.tier)
    }

    /// Gives extents a tier, or none. Whether anything changed; `None` if there are too many
    /// ranges.
    pub fn set(&mut self, first: u32, end: u32, tier: Option<u8>) -> Option<bool> {
        let from = self.ranges.partition_point(|pin| pin.end < first);
        let to = self.ranges.partition_point(|pin| pin.first <= end);
        let mut now: Vec<Pin> = Vec::new();
        let mut put = |pin: Pin| match now.last_mut() {
            _ if pin.first >= pin.end => {}
            Some(last) if last.end == pin.first && last.tier == pin.tier => last.end = pin.end,
            _ => now.push(pin),
        };
        let touched = &self.ranges[from..to];
        touched.iter().for_each(|&pin| put(Pin { end: pin.end.min(first), ..pin }));
        tier.into_iter().for_each(|tier| put(Pin { first, end, tier }));
        touched.iter().for_each(|&pin| put(Pin { first: pin.first.max(end), ..pin }));
        if now == touched {
            return Some(false);
        }
        if self.ranges.len() - touched.len() + now.len() > RANGES_MAX {
            return None;
        }
        self.ranges.splice(from..to, now);
        Some(true)
    }

    /// The numbers of tiers from this one on have grown by one.
    pub fn grow(&mut self, from: u8) {
        self.ranges.iter_mut().for_each(|pin| pin.tier += u8::from(pin.tier >= from));
    }

    /// The numbers of tiers have become these; what was pinned to one that is gone is not pinned.
    pub fn renumber(&mut self, numbers: impl Fn(u8) -> Option<u8>) {
        self.ranges.retain_mut(|pin| match numbers(pin.tier) {
            Some(tier) => {
                pin.tier = tier;
                true
            }
            None => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_what_each_extent_was_given_last() {
        let mut pins = Pins::default();
        let mut model = [None; 40];
        let mut random = 12345_u32;
        let mut next = |most: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % most
        };
        for _ in 0..2000 {
            let (first, tier) = (next(40), next(4) as u8);
            let end = (first + 1 + next(8)).min(40);
            let tier = (tier < 3).then_some(tier);
            let before = model;
            model[first as usize..end as usize].fill(tier);
            assert_eq!(pins.set(first, end, tier), Some(before != model));
            assert!((0..40).all(|it| pins.of(it) == model[it as usize]));
            let gaps = pins.ranges.windows(2).all(|it| {
                it[0].end < it[1].first || (it[0].end == it[1].first && it[0].tier != it[1].tier)
            });
            assert!(gaps, "{pins:?}");
        }
    }

    #[test]
    fn there_are_not_more_ranges_than_the_limit() {
        let mut pins = Pins::default();
        for range in 0..RANGES_MAX as u32 {
            assert_eq!(pins.set(2 * range, 2 * range + 1, Some(0)), Some(true));
        }
        assert_eq!(pins.set(100_000, 100_001, Some(0)), None);
        assert_eq!(pins.set(0, 100_001, None), Some(true));
        assert!(pins.is_empty());
    }
}
