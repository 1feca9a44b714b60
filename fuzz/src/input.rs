//! Bytes taken apart into choices. What is not there reads as zero, so that every input means
//! something and a prefix of one means the same as far as it goes.

/// What is left of an input.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// Two bytes.
    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Four bytes.
    pub fn long(&mut self) -> u32 {
        u32::from(self.word()) | u32::from(self.word()) << 16
    }

    /// A number below `limit`, which is at most 65,536.
    pub fn below(&mut self, limit: usize) -> usize {
        let raw = if limit <= 256 { u16::from(self.byte()) } else { self.word() };
        usize::from(raw) % limit
    }

    /// Up to `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// splitmix64: the same on every machine.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }

    /// Changes an input a little: bytes, lengths, pieces of itself and of another.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>, other: &[u8], bytes_max: usize) {
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len() + 1);
            match self.below(8) {
                0 => bytes.insert(at, self.number() as u8),
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 => bytes.truncate(at),
                3 => {
                    let from = self.below(other.len() + 1);
                    let piece = &other[from..(from + self.below(32)).min(other.len())];
                    bytes.splice(at..at, piece.iter().copied());
                }
                4 => {
                    let end = (at + self.below(32)).min(bytes.len());
                    let piece = bytes[at..end].to_vec();
                    bytes.extend(piece);
                }
                5 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                6 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                _ if at < bytes.len() => bytes[at] = self.number() as u8,
                _ => bytes.push(self.number() as u8),
            }
        }
        bytes.truncate(bytes_max);
    }
}
