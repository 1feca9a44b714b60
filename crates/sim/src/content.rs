//! What is in a sector. Every write leaves its name in every sector that it writes, so a sector of
//! another place, another volume or another write, and a mix of two, are seen.
//!
//! ```text
//! 0..8    version (56 bits) and disk (8 bits)
//! 8..16   sector number, xor a magic number
//! 16..512 a stream that follows from the first 16 bytes
//! ```

use crate::rng::mix;
use forebay_format::SECTOR_SIZE;

const MAGIC: u64 = 0x5ec7_0a00_f0ae_ba11;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a sector holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// All bytes are zero.
    Zero,
    /// What write `version` put there.
    Data {
        /// The origin for which it was written.
        disk: usize,
        /// The sector for which it was written.
        sector: u64,
        /// The write. 0 is what the origin held at first.
        version: u64,
    },
    /// Nothing that a client ever wrote.
    Foreign,
}

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * index..8 * index + 8].try_into().expect("eight bytes"))
}

/// Writes the content of write `version` for `sector` of origin `disk` into one sector of bytes.
pub fn fill(out: &mut [u8], disk: usize, sector: u64, version: u64) {
    assert_eq!(out.len(), SECTOR_SIZE);
    assert!(version < 1 << 56);
    let first = version | (disk as u64) << 56;
    let second = sector ^ MAGIC;
    let mut value = mix(first ^ second.rotate_left(17));
    out[..8].copy_from_slice(&first.to_le_bytes());
    out[8..16].copy_from_slice(&second.to_le_bytes());
    for chunk in out[16..].chunks_exact_mut(8) {
        chunk.copy_from_slice(&value.to_le_bytes());
        value = value.wrapping_add(STEP);
    }
}

/// Says what one sector of bytes is.
pub fn parse(bytes: &[u8]) -> Content {
    assert_eq!(bytes.len(), SECTOR_SIZE);
    let (first, second) = (word(bytes, 0), word(bytes, 1));
    if first == 0 && second == 0 {
        let zero = bytes.iter().all(|&byte| byte == 0);
        return if zero { Content::Zero } else { Content::Foreign };
    }
    let mut value = mix(first ^ second.rotate_left(17));
    for chunk in bytes[16..].chunks_exact(8) {
        if chunk != value.to_le_bytes() {
            return Content::Foreign;
        }
        value = value.wrapping_add(STEP);
    }
    let disk = (first >> 56) as usize;
    Content::Data { disk, sector: second ^ MAGIC, version: first & ((1 << 56) - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_names_its_write() {
        let mut bytes = [0; SECTOR_SIZE];
        assert_eq!(parse(&bytes), Content::Zero);
        fill(&mut bytes, 2, 77, 1234);
        assert_eq!(parse(&bytes), Content::Data { disk: 2, sector: 77, version: 1234 });
        let mut other = [0; SECTOR_SIZE];
        fill(&mut other, 2, 77, 1235);
        for cut in [8, 16, 24, 256, 504] {
            let mut mixed = bytes;
            mixed[cut..].copy_from_slice(&other[cut..]);
            assert_eq!(parse(&mixed), Content::Foreign, "cut at {cut}");
        }
        for index in 0..SECTOR_SIZE {
            let mut rotten = bytes;
            rotten[index] ^= 1;
            assert_eq!(parse(&rotten), Content::Foreign, "byte {index}");
        }
    }
}
