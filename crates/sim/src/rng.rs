//! The only source of chance: xoshiro256** seeded through splitmix64. Same seed, same world, on
//! every machine and with every version of every library.

/// A generator of pseudo-random numbers.
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of splitmix64: a good mix of 64 bits.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut state = [0; 4];
        let mut value = seed;
        for word in &mut state {
            value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
            *word = mix(value);
        }
        Rng { state }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0);
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from `least` to `most`, both included.
    pub fn range(&mut self, least: u64, most: u64) -> u64 {
        assert!(least <= most);
        least + self.below(most - least + 1)
    }

    /// A number from `least` to `most`, small ones as likely as large ones by order of magnitude.
    pub fn log_range(&mut self, least: u64, most: u64) -> u64 {
        assert!(0 < least && least <= most);
        let bits = self.range(0, (most / least).ilog2().into());
        let low = least << bits;
        self.range(low, (2 * low - 1).min(most).max(low)).min(most)
    }

    /// True with probability `share`, 0 to 1.
    pub fn chance(&mut self, share: f64) -> bool {
        ((self.bits() >> 11) as f64) < share * (1_u64 << 53) as f64
    }

    /// True once in `count` times.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// True half of the time.
    pub fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// One of `items`, which is not empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// An index, in proportion to its weight. Not all weights are zero.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut point = self.below(weights.iter().sum());
        for (index, &weight) in weights.iter().enumerate() {
            if point < weight {
                return index;
            }
            point -= weight;
        }
        unreachable!("the point lies below the sum")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let (mut a, mut b, mut c) = (Rng::new(7), Rng::new(7), Rng::new(8));
        let numbers: Vec<u64> = (0..100).map(|_| a.bits()).collect();
        assert_eq!(numbers, (0..100).map(|_| b.bits()).collect::<Vec<_>>());
        assert_ne!(numbers, (0..100).map(|_| c.bits()).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_stay_in_range() {
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            assert!((3..=9).contains(&rng.range(3, 9)));
            assert!((3..=900).contains(&rng.log_range(3, 900)));
            assert_ne!(rng.weighted(&[1, 0, 5]), 1);
        }
        assert!(!rng.chance(0.0));
        assert!(rng.chance(1.0));
    }
}
