//! What was written, block by block: every block that the workload writes says which block and
//! which version it is, so that every read can be checked, also after a crash.

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Makes a block's words differ.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The versions of the working set's blocks.
pub struct Ledger {
    /// The newest version whose write was acknowledged; 0 for zeros.
    acknowledged: Vec<u32>,
    /// The newest version whose write was begun.
    begun: Vec<u32>,
    /// Blocks with a write under way.
    writing: Vec<bool>,
}

/// What a read of a block may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permitted {
    /// The oldest version that may be seen.
    pub oldest: u32,
}

impl Ledger {
    /// A ledger of `blocks` blocks of zeros.
    pub fn new(blocks: usize) -> Ledger {
        Ledger {
            acknowledged: vec![0; blocks],
            begun: vec![0; blocks],
            writing: vec![false; blocks],
        }
    }

    /// Begins a write of `block`: fills `data` with its next version. `None` when one is under way.
    pub fn begin_write(&mut self, block: usize, data: &mut [u8]) -> Option<u32> {
        if self.writing[block] {
            return None;
        }
        self.writing[block] = true;
        self.begun[block] += 1;
        fill(block, self.begun[block], data);
        Some(self.begun[block])
    }

    /// The write of `block` was acknowledged.
    pub fn end_write(&mut self, block: usize) {
        assert!(self.writing[block]);
        self.writing[block] = false;
        self.acknowledged[block] = self.begun[block];
    }

    /// What a read of `block` that begins now may return.
    pub fn begin_read(&self, block: usize) -> Permitted {
        Permitted { oldest: self.acknowledged[block] }
    }

    /// Whether `data` is what the read that began with `permitted` may return.
    pub fn is_right(&self, block: usize, permitted: Permitted, data: &[u8]) -> bool {
        let version = version_of(data);
        (permitted.oldest..=self.begun[block]).contains(&version) && matches(block, version, data)
    }

    /// After a crash: writes under way either happened or did not. Whatever `data` a block holds
    /// now counts from now on, if it is right. `false` when something acknowledged is missing.
    pub fn settle(&mut self, block: usize, data: &[u8]) -> bool {
        let right = self.is_right(block, self.begin_read(block), data);
        if right {
            self.writing[block] = false;
            self.acknowledged[block] = version_of(data);
            self.begun[block] = version_of(data);
        }
        right
    }

    /// Blocks that were ever written.
    pub fn written(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.begun.len()).filter(|&block| self.begun[block] > 0)
    }

    /// Blocks whose write was begun and never acknowledged.
    pub fn unsettled(&self) -> usize {
        self.writing.iter().filter(|&&writing| writing).count()
    }
}

fn word(block: usize, version: u32, index: usize) -> u64 {
    let mut seed = ((block as u64) << 32 | u64::from(version)).wrapping_mul(STEP);
    seed ^= seed >> 29;
    seed.wrapping_add(STEP.wrapping_mul(index as u64 + 1))
}

fn fill(block: usize, version: u32, data: &mut [u8]) {
    for (index, bytes) in data.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(block, version, index).to_le_bytes());
    }
    data[..4].copy_from_slice(&version.to_le_bytes());
}

fn version_of(data: &[u8]) -> u32 {
    u32::from_le_bytes(data[..4].try_into().expect("4 bytes"))
}

fn matches(block: usize, version: u32, data: &[u8]) -> bool {
    if version == 0 {
        return data == [0; BLOCK];
    }
    let mut words = data.chunks_exact(8).enumerate().skip(1);
    words.all(|(index, bytes)| bytes == word(block, version, index).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeros() -> Vec<u8> {
        vec![0; BLOCK]
    }

    #[test]
    fn reads_are_held_against_what_was_written() {
        let mut ledger = Ledger::new(8);
        let (mut old, mut new) = (zeros(), zeros());
        let before = ledger.begin_read(3);
        assert!(ledger.is_right(3, before, &zeros()));
        assert_eq!(ledger.begin_write(3, &mut old), Some(1));
        assert_eq!(ledger.begin_write(3, &mut new), None, "one write of a block at a time");
        assert!(ledger.is_right(3, before, &zeros()), "the write is under way");
        assert!(ledger.is_right(3, before, &old));
        ledger.end_write(3);
        let after = ledger.begin_read(3);
        assert!(!ledger.is_right(3, after, &zeros()), "acknowledged and lost");
        assert!(!ledger.is_right(2, ledger.begin_read(2), &old), "another block's data");
        assert_eq!(ledger.begin_write(3, &mut new), Some(2));
        ledger.end_write(3);
        assert!(ledger.is_right(3, after, &old) && ledger.is_right(3, after, &new));
        assert!(!ledger.is_right(3, ledger.begin_read(3), &old), "an older version");
        new[4000] ^= 1;
        assert!(!ledger.is_right(3, after, &new), "one bit");
    }

    #[test]
    fn a_crash_may_lose_what_was_not_acknowledged_and_nothing_else() {
        let mut ledger = Ledger::new(2);
        let (mut first, mut second) = (zeros(), zeros());
        ledger.begin_write(0, &mut first);
        ledger.end_write(0);
        ledger.begin_write(0, &mut second);
        assert_eq!(ledger.unsettled(), 1);
        assert!(!ledger.settle(0, &zeros()));
        assert!(ledger.settle(0, &first));
        assert_eq!(ledger.unsettled(), 0);
        assert!(!ledger.is_right(0, ledger.begin_read(0), &second), "it settled on the first");
        assert_eq!(ledger.written().collect::<Vec<_>>(), [0]);
    }
}
