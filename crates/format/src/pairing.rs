//! Which segments of a pool's devices are partners: a table that follows from the superblock alone.
//!
//! Segments are numbered over all devices: 0 and 1 are partners on two devices, so are 2 and 3, and
//! so on. What is left of a larger device when no other has a segment to pair with has numbers
//! behind them, and no partner; so has every segment of a pool of one device. Two partners are used
//! and freed together: as a mirror of dirty data, or each half with clean data of its own.

use crate::superblock::Header;

/// Segments and their partners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pairing {
    /// By segment: its device, and which of the device's segments it is.
    places: Vec<(u8, u32)>,
    pairs: u32,
}

impl Pairing {
    /// The pairing of a pool whose devices have so many segments each. Pairs as many as can be:
    /// always one of the two devices with most left (a matching is largest when no device keeps
    /// more than the others together).
    pub fn new(counts: &[u32]) -> Pairing {
        let total: u32 = counts.iter().sum();
        let mut places = Vec::with_capacity(total as usize);
        let mut taken = vec![0_u32; counts.len()];
        loop {
            let left = |device: usize| counts[device] - taken[device];
            let mut order: Vec<usize> = (0..counts.len()).filter(|&it| left(it) > 0).collect();
            // Of equal ones the first: the table is the same on every machine.
            order.sort_by_key(|&device| std::cmp::Reverse(left(device)));
            let [first, second, ..] = order[..] else { break };
            for device in [first, second] {
                places.push((device as u8, taken[device]));
                taken[device] += 1;
            }
        }
        let pairs = places.len() as u32 / 2;
        for (device, &count) in counts.iter().enumerate() {
            places.extend((taken[device]..count).map(|index| (device as u8, index)));
        }
        Pairing { places, pairs }
    }

    /// The pairing of the pool of this superblock.
    pub fn of(header: &Header) -> Pairing {
        let count = usize::from(header.device_count.get());
        let counts = header.devices[..count].iter().map(|device| device.segment_count.get());
        Pairing::new(&counts.collect::<Vec<_>>())
    }

    /// Segments of the pool.
    pub fn segments(&self) -> u32 {
        self.places.len() as u32
    }

    /// Pairs: segments below twice as many have a partner.
    pub fn pairs(&self) -> u32 {
        self.pairs
    }

    /// The device of a segment, and which of the device's segments it is.
    pub fn place(&self, segment: u32) -> (u8, u32) {
        self.places[segment as usize]
    }

    /// The partner of a segment.
    pub fn partner(&self, segment: u32) -> Option<u32> {
        (segment < 2 * self.pairs).then_some(segment ^ 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(counts: &[u32]) -> u32 {
        let pairing = Pairing::new(counts);
        assert_eq!(pairing.segments(), counts.iter().sum::<u32>());
        let mut seen = std::collections::BTreeSet::new();
        for segment in 0..pairing.segments() {
            let (device, index) = pairing.place(segment);
            assert!(index < counts[usize::from(device)]);
            assert!(seen.insert((device, index)), "a segment has two numbers");
            if let Some(partner) = pairing.partner(segment) {
                assert_eq!(pairing.partner(partner), Some(segment));
                assert_ne!(pairing.place(partner).0, device, "partners are on two devices");
            }
        }
        pairing.pairs()
    }

    #[test]
    fn as_many_are_paired_as_can_be() {
        assert_eq!(pairs(&[10]), 0);
        assert_eq!(pairs(&[10, 10]), 10);
        assert_eq!(pairs(&[10, 20]), 10);
        assert_eq!(pairs(&[10, 10, 10]), 15);
        assert_eq!(pairs(&[8, 16, 800]), 24);
        assert_eq!(pairs(&[9, 9, 9]), 13);
        assert_eq!(pairs(&[8, 9, 17, 30]), 32);
    }

    #[test]
    fn partners_are_spread_over_the_devices() {
        let pairing = Pairing::new(&[100, 100, 100]);
        let mut met = std::collections::BTreeMap::new();
        for pair in 0..pairing.pairs() {
            let [a, b] = [2 * pair, 2 * pair + 1].map(|segment| pairing.place(segment).0);
            *met.entry((a.min(b), a.max(b))).or_insert(0) += 1;
        }
        assert_eq!(met.values().copied().collect::<Vec<u32>>(), [50, 50, 50]);
    }
}
