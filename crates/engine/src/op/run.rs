//! Blocks that are being read, from consecutive slots of the cache or from an origin, and for whom.

use crate::event::VolumeId;
use crate::ids::{Key, Slot};
use crate::index::Located;
use crate::requests::ReqKey;
use forebay_format::io::Buf;

/// Who reads.
#[derive(Debug, Clone, Copy)]
pub enum Reader {
    /// A read. It is `direct` when the buffer is the request's own.
    Request { req: ReqKey, direct: bool },
    /// A write, what its first (0) or last (1) block is so far.
    Merge { req: ReqKey, side: usize },
    /// Reclaim, to move a block.
    Move,
    /// A run of a slice, to send its blocks home.
    Home { volume: VolumeId, run: usize },
}

/// Blocks being read from consecutive slots.
#[derive(Debug)]
pub struct CacheRun {
    /// Who reads them.
    pub by: Reader,
    /// First block.
    pub key: Key,
    /// First slot.
    pub slot: Slot,
    /// Valid sectors of the block (for a reader who asks; a run of several has only whole ones).
    pub mask: u8,
    /// Checksum of the first block.
    pub crc: u32,
    /// Checksums of the others.
    pub crcs: Vec<u32>,
    /// Tries that failed.
    pub tries: u8,
}

/// A block that cannot be read from where it was.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lost {
    /// It is still there, and bad.
    Bad { dirty: bool },
    /// The newest version is elsewhere by now.
    Moved(Located),
    /// It is in the cache no more.
    Gone,
}

impl CacheRun {
    /// One block.
    pub(crate) fn one(by: Reader, key: Key, located: Located, mask: u8) -> CacheRun {
        let Located { slot, crc } = located;
        CacheRun { by, key, slot, mask, crc, crcs: Vec::new(), tries: 0 }
    }

    /// Blocks.
    pub(crate) fn blocks(&self) -> u64 {
        1 + self.crcs.len() as u64
    }

    /// Where block `n` was.
    pub(crate) fn located(&self, n: usize) -> Located {
        let crc = if n == 0 { self.crc } else { self.crcs[n - 1] };
        Located { slot: self.slot.behind(n as u32), crc }
    }

    /// Block `n` alone, at its next try.
    pub(super) fn again(&self, n: usize) -> CacheRun {
        let by = match self.by {
            Reader::Request { req, .. } => Reader::Request { req, direct: false },
            other => other,
        };
        let one = CacheRun::one(by, self.key + n as u64, self.located(n), self.mask);
        CacheRun { tries: self.tries + 1, ..one }
    }
}

/// Blocks being read from the origin.
#[derive(Debug)]
pub struct OriginRun {
    /// The request.
    pub req: ReqKey,
    /// First block.
    pub key: Key,
    /// Blocks.
    pub blocks: u64,
    /// The buffer is the request's own.
    pub direct: bool,
    /// Cached sectors that are newer than what the origin has of the (single) block.
    pub overlay: Option<(u8, Buf)>,
}
