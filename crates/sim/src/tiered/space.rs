//! The part of a volume that clients use, numbered without gaps: a map of several pages is large,
//! but the oracle need only know what clients may touch of it.

use forebay_format::tier::EXTENT_SIZE;
use forebay_format::{SECTOR_SIZE, SECTORS_PER_BLOCK};
use std::ops::Range;

/// Sectors of an extent.
pub const EXTENT_SECTORS: u64 = EXTENT_SIZE / SECTOR_SIZE as u64;
const PER_BLOCK: u64 = SECTORS_PER_BLOCK as u64;

/// Parts of the volume, one behind the other.
#[derive(Debug, Clone)]
pub struct Space {
    /// First extent here, first extent of the volume, extents.
    parts: Vec<(u64, u64, u64)>,
}

impl Space {
    /// These parts of a volume (first extent, extents); the last reaches to the end of the largest
    /// volume.
    pub fn new(parts: &[(u64, u64)], bytes_max: u64) -> Space {
        let mut space = Space { parts: Vec::new() };
        let mut at = 0;
        for (index, &(first, mut count)) in parts.iter().enumerate() {
            if index + 1 == parts.len() {
                count = bytes_max.div_ceil(EXTENT_SIZE) - first;
            }
            space.parts.push((at, first, count));
            at += count;
        }
        space
    }

    /// Sectors of all parts of a volume of so many bytes.
    pub fn sectors(&self, bytes: u64) -> u64 {
        let &(at, first, _) = self.parts.last().expect("at least one part");
        at * EXTENT_SECTORS + bytes / SECTOR_SIZE as u64 - first * EXTENT_SECTORS
    }

    /// Extents of all parts of the largest volume.
    pub fn extents_max(&self) -> u64 {
        let &(at, _, count) = self.parts.last().expect("at least one part");
        at + count
    }

    /// The extent of the volume that has this number here.
    pub fn extent_of(&self, extent: u64) -> u32 {
        let part = self.parts.iter().rfind(|part| part.0 <= extent).expect("an extent of a part");
        (part.1 + extent - part.0) as u32
    }

    /// The sector of the volume.
    pub fn volume_sector(&self, sector: u64) -> u64 {
        let extent = u64::from(self.extent_of(sector / EXTENT_SECTORS));
        extent * EXTENT_SECTORS + sector % EXTENT_SECTORS
    }

    /// The sector behind the last of the part in which this one lies.
    pub fn end_of_part(&self, sector: u64) -> u64 {
        let next = self.parts.iter().map(|part| part.0 * EXTENT_SECTORS).find(|&at| at > sector);
        next.unwrap_or(self.extents_max() * EXTENT_SECTORS)
    }
}

/// The sectors of all blocks that these sectors touch.
pub fn whole_blocks(range: &Range<u64>) -> Range<u64> {
    range.start / PER_BLOCK * PER_BLOCK..range.end.next_multiple_of(PER_BLOCK)
}

/// The extents that these sectors touch.
pub fn extents_of(range: &Range<u64>) -> Range<u64> {
    range.start / EXTENT_SECTORS..range.end.div_ceil(EXTENT_SECTORS)
}
