//! Cuts a request into parts.

use crate::part::{BLOCK, covered, touched_by};
use crate::requests::{Kind, Part, Request, What};
use crate::tiers::Tiers;
use forebay_format::tier::{Blocks, EXTENT_SIZE};

/// Extents that one call passes by because nothing of them was ever written.
pub(crate) const UNWRITTEN_PER_CALL: u32 = 65_536;

impl Tiers {
    /// Passes by whole extents that are to be cleared and of which nothing is written, or lost:
    /// they are no parts, as there may be millions of them. `left` says how many may still be.
    pub(crate) fn skip_unwritten(&mut self, number: u64, left: &mut u32) {
        let request = self.requests.request(number);
        if !matches!(request.kind, Kind::Zero { .. } | Kind::Discard) {
            return;
        }
        let first = request.offset + request.made;
        let end = request.offset + request.len;
        let mut at = first;
        while *left > 0 && at.is_multiple_of(EXTENT_SIZE) && end - at >= EXTENT_SIZE {
            if !self.map.is_untouched((at / EXTENT_SIZE) as u32) {
                break;
            }
            at += EXTENT_SIZE;
            *left -= 1;
        }
        self.requests.request(number).made += at - first;
    }
}

impl Request {
    /// The next part, up to the end of its extent, or to where whole blocks begin or end.
    pub(crate) fn next_part(&mut self, number: u64) -> Part {
        let first = self.offset + self.made;
        let extent = first / EXTENT_SIZE;
        let mut end = ((extent + 1) * EXTENT_SIZE).min(self.offset + self.len);
        let what = match self.kind {
            Kind::Read => What::Read,
            Kind::Write => What::Write,
            Kind::Flush => unreachable!("a flush has no parts"),
            Kind::Zero { .. } | Kind::Discard => {
                let is_edge = !first.is_multiple_of(BLOCK) || end - first < BLOCK;
                end = if is_edge {
                    end.min((first / BLOCK + 1) * BLOCK)
                } else {
                    end / BLOCK * BLOCK
                };
                match self.kind {
                    Kind::Zero { .. } if is_edge => What::WriteZeros,
                    Kind::Zero { unmap } => What::Zero { unmap },
                    _ => What::Discard,
                }
            }
        };
        self.made += end - first;
        let range = first - extent * EXTENT_SIZE..end - extent * EXTENT_SIZE;
        // A part of a block is not discarded.
        let blocks = if what == What::Discard { covered(&range) } else { touched_by(&range) };
        let at = (first - self.offset) as usize;
        Part {
            request: number,
            what,
            extent: extent as u32,
            range,
            at,
            blocks,
            valid: Blocks::NONE,
            legs: 0,
            error: None,
            place: None,
            is_there: false,
            mirror: None,
            mirror_error: None,
            is_promised: false,
            is_first: false,
            has_buf: false,
            refused: 0,
        }
    }
}
