//! Client data on cache devices, by what it says of itself.

use super::damage::PER_BLOCK;
use crate::content::{self, Content};
use crate::disk::Disk;
use forebay_format::SECTOR_SIZE;
use std::ops::Range;

/// Client data in one sector of a cache device.
pub(super) type Copied = (usize, u64, u64);

/// What the bytes of a sector are, if they are client data.
pub(super) fn client_data(bytes: &[u8]) -> Option<Copied> {
    match content::parse(bytes) {
        Content::Data { disk, sector, version } => Some((disk, sector, version)),
        _ => None,
    }
}

/// Client data in these sectors.
pub(super) fn copies(disk: &Disk, sectors: Range<u64>) -> Vec<Copied> {
    let mut bytes = [0; SECTOR_SIZE];
    let mut found = Vec::new();
    for sector in sectors.filter(|&sector| disk.written(sector)) {
        disk.peek(sector, &mut bytes);
        found.extend(client_data(&bytes));
    }
    found
}

/// Copies in blocks of which each sector is of the same block: one that a power cut tore is none.
pub(super) fn copies_in_blocks(disk: &Disk, sectors: Range<u64>) -> Vec<Copied> {
    let mut all = Vec::new();
    for first in sectors.step_by(PER_BLOCK as usize) {
        let found = copies(disk, first..(first + PER_BLOCK).min(disk.sectors()));
        let block = |&(disk, sector, _): &Copied| (disk, sector / PER_BLOCK);
        if found.windows(2).all(|two| block(&two[0]) == block(&two[1])) {
            all.extend(found);
        }
    }
    all
}
