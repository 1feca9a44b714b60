//! Bits by the number of what they stand for.

/// One bit for each of a fixed number of things.
#[derive(Debug, Default)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// `count` bits, all clear.
    pub fn new(count: usize) -> Bits {
        Bits(vec![0; count.div_ceil(64)])
    }

    /// Whether bit `index` is set.
    pub fn get(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    /// Sets or clears bit `index`.
    pub fn set(&mut self, index: usize, on: bool) {
        let bit = 1 << (index % 64);
        if on {
            self.0[index / 64] |= bit;
        } else {
            self.0[index / 64] &= !bit;
        }
    }

    /// Sets bit `index` if `on` is 1, without a branch.
    pub fn or(&mut self, index: usize, on: u8) {
        self.0[index / 64] |= u64::from(on) << (index % 64);
    }

    /// Bits set from `from` to before `to`.
    pub fn ones(&self, from: usize, to: usize) -> u32 {
        let words = from.div_ceil(64)..(to / 64).max(from.div_ceil(64));
        let whole: u32 = self.0[words.clone()].iter().map(|word| word.count_ones()).sum();
        let edges = (from..to.min(words.start * 64)).chain((words.end * 64).max(from)..to);
        whole + edges.map(|index| u32::from(self.get(index))).sum::<u32>()
    }

    /// Bytes taken.
    pub fn bytes(&self) -> u64 {
        (self.0.len() * 8) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_are_counted_in_any_range() {
        let mut bits = Bits::new(300);
        let set: Vec<usize> = (0..300).filter(|n| n % 3 == 0 || n % 7 == 2).collect();
        set.iter().for_each(|&n| bits.or(n, 1));
        bits.or(1, 0);
        for from in 0..300 {
            for to in from..=300 {
                let wanted = set.iter().filter(|&&n| (from..to).contains(&n)).count();
                assert_eq!(bits.ones(from, to) as usize, wanted, "{from}..{to}");
            }
        }
    }
}
