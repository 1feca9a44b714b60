//! What the disks of a large world hold, in a few bytes a block: the content of clients follows
//! from its name.

use crate::rng::mix;
use forebay_format::BLOCK_SIZE;

/// First word of a client's block.
const MAGIC: u64 = 0x6c61_7267_6562_6c6b;

/// Which write a client's block is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    pub volume: u32,
    pub block: u32,
    pub version: u64,
}

/// Fills a block with what this write puts there.
pub fn fill(named: Named, out: &mut [u8]) {
    let place = u64::from(named.volume) << 32 | u64::from(named.block);
    let word = mix(place ^ mix(named.version));
    let head = [MAGIC, place, named.version, word];
    for (n, bytes) in out.chunks_exact_mut(8).enumerate() {
        let value = if n < head.len() { head[n] } else { word.wrapping_add(n as u64) };
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// Which write the block is of, if it is all of it.
pub fn parse(bytes: &[u8]) -> Option<Named> {
    let word = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().expect("8 bytes"));
    if word(0) != MAGIC {
        return None;
    }
    let place = word(1);
    let named = Named { volume: (place >> 32) as u32, block: place as u32, version: word(2) };
    let expected = mix(place ^ mix(named.version));
    let last = BLOCK_SIZE / 8 - 1;
    let whole = word(3) == expected && word(last) == expected.wrapping_add(last as u64);
    whole.then_some(named)
}

#[derive(Debug, Clone, Default)]
enum Cell {
    #[default]
    Zero,
    Named(Named),
    Bytes(Box<[u8]>),
}

/// The blocks of a disk.
#[derive(Debug)]
pub struct Store {
    cells: Vec<Cell>,
    /// Set for an origin: blocks that nobody wrote hold version 0 of this volume.
    origin: Option<u32>,
}

impl Store {
    /// A disk of so many blocks, of zeros or (an origin) of version 0.
    pub fn new(blocks: u64, origin: Option<u32>) -> Store {
        Store { cells: vec![Cell::Zero; blocks as usize], origin }
    }

    /// Blocks.
    pub fn blocks(&self) -> u64 {
        self.cells.len() as u64
    }

    /// Reads whole blocks.
    pub fn read(&self, first: u64, out: &mut [u8]) {
        for (n, bytes) in out.chunks_exact_mut(BLOCK_SIZE).enumerate() {
            let block = first + n as u64;
            match (&self.cells[block as usize], self.origin) {
                (Cell::Bytes(held), _) => bytes.copy_from_slice(held),
                (Cell::Named(named), _) => fill(*named, bytes),
                (Cell::Zero, None) => bytes.fill(0),
                (Cell::Zero, Some(volume)) => {
                    fill(Named { volume, block: block as u32, version: 0 }, bytes);
                }
            }
        }
    }

    /// Writes whole blocks.
    pub fn write(&mut self, first: u64, data: &[u8]) {
        for (n, bytes) in data.chunks_exact(BLOCK_SIZE).enumerate() {
            let cell = match parse(bytes) {
                Some(named) => Cell::Named(named),
                None => Cell::Bytes(bytes.into()),
            };
            self.cells[first as usize + n] = cell;
        }
    }
}
