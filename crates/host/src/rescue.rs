//! What only the cache holds of a volume: its dirty sectors, a part at a time, as an engine reads
//! them, which verifies each block and tries its second copy.
//!
//! The engine may be the one that serves the pool ([`crate::shard::ShardHandle::dirty`]), or one
//! that was opened for that alone, on devices that nobody uses ([`offline::Rescue`]).

pub mod offline;

use forebay_engine::{Buf, Engine, VolumeId};
use forebay_format::{BLOCK_SIZE, SECTOR_SIZE};
use std::ops::Range;

/// Blocks of a volume that one call looks at.
const LOOKED_AT_MAX: u64 = 16 << 10;
/// Dirty blocks of a part.
const FOUND_MAX: usize = 1024;
/// Most bytes that are read at once.
const SPAN_BYTES_MAX: u64 = 256 << 10;

/// Bytes of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// Why dirty sectors could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// No copy of them is good.
    Lost,
    /// Somebody who uses them waits for the origin.
    InUse,
    /// The engine does not serve the volume.
    NotServed,
}

/// Dirty blocks of a volume, in the order of their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Each with its dirty sectors, a bit each.
    pub blocks: Vec<(u64, u8)>,
    /// Where to look on.
    pub next: u64,
}

/// What was read of a volume.
#[derive(Debug, Default)]
pub struct Part {
    /// Bytes, by their offset.
    pub pieces: Vec<(u64, Buf)>,
    /// What could not be read.
    pub unread: Vec<(Span, Unread)>,
}

/// The dirty blocks among some of a volume: the first of them, if they are many. The work of one
/// call is bounded.
pub(crate) fn dirty(engine: &Engine, volume: VolumeId, blocks: Range<u64>) -> Dirty {
    let mut found = Vec::new();
    let end = blocks.end.min(blocks.start.saturating_add(LOOKED_AT_MAX));
    for block in blocks.start..end {
        if found.len() == FOUND_MAX {
            return Dirty { blocks: found, next: block };
        }
        match engine.dirty_sectors(volume, block) {
            0 => {}
            mask => found.push((block, mask)),
        }
    }
    Dirty { blocks: found, next: end }
}

/// Reads dirty blocks of a volume that has so many bytes. `read` has an answer for each span.
pub fn read(
    dirty: &Dirty,
    volume_bytes: u64,
    mut read: impl FnMut(&[Span]) -> Vec<Result<Buf, Unread>>,
) -> Part {
    let mut part = Part::default();
    let whole = spans(&dirty.blocks, volume_bytes, SPAN_BYTES_MAX);
    let mut again = Vec::new();
    for (span, answer) in whole.iter().zip(read(&whole)) {
        match answer {
            Ok(buf) => part.pieces.push((span.offset, buf)),
            Err(Unread::Lost) => again.push(*span),
            Err(why) => part.unread.push((*span, why)),
        }
    }
    // What is bad is mostly one block of many.
    let of_bad = |(block, _): &&(u64, u8)| {
        let at = block * BLOCK_SIZE as u64;
        again
            .iter()
            .any(|span| at < span.offset + span.bytes && at + BLOCK_SIZE as u64 > span.offset)
    };
    let blocks: Vec<(u64, u8)> = dirty.blocks.iter().filter(of_bad).copied().collect();
    let single: Vec<Span> =
        blocks.chunks(1).flat_map(|one| spans(one, volume_bytes, BLOCK_SIZE as u64)).collect();
    if single.is_empty() {
        return part;
    }
    for (span, answer) in single.iter().zip(read(&single)) {
        match answer {
            Ok(buf) => part.pieces.push((span.offset, buf)),
            Err(why) => part.unread.push((*span, why)),
        }
    }
    part.pieces.sort_by_key(|(offset, _)| *offset);
    part.unread.sort_by_key(|(span, _)| span.offset);
    part
}

/// What is dirty, in pieces that hang together, of up to `most` bytes.
fn spans(blocks: &[(u64, u8)], volume_bytes: u64, most: u64) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let sector = SECTOR_SIZE as u64;
    for &(block, mask) in blocks {
        for bit in (0..8).filter(|bit| mask >> bit & 1 == 1) {
            let offset = block * BLOCK_SIZE as u64 + bit * sector;
            if offset >= volume_bytes {
                continue; // The last block of a volume may end behind it.
            }
            match spans.last_mut() {
                Some(last) if last.offset + last.bytes == offset && last.bytes < most => {
                    last.bytes += sector;
                }
                _ => spans.push(Span { offset, bytes: sector }),
            }
        }
    }
    spans
}

#[cfg(test)]
mod tests;
