//! Superblock copies and checkpoints that rot or cannot be read between two lives, and errors there
//! during one. Each exists twice: what a start needs is never spoilt in both places.

use super::World;
use crate::disk::{Fault, IoKind};
use forebay_format::layout::SUPERBLOCK_OFFSETS;
use forebay_format::superblock::{CHECKPOINT_NONE, SUPERBLOCK_SIZE, Superblock};
use forebay_format::{BLOCK_SIZE, SECTOR_SIZE, checkpoint};
use std::ops::Range;

/// Sectors of some bytes of a device.
pub(super) fn sectors(offset: u64, bytes: u64) -> Range<u64> {
    offset / SECTOR_SIZE as u64..(offset + bytes) / SECTOR_SIZE as u64
}

impl World {
    /// Before a start: something of what it reads first is spoilt.
    pub(super) fn spoil_metadata(&mut self, number: u64) {
        let faults = &self.params.faults;
        if number > self.params.lives || !self.wide_rng.chance(faults.metadata) {
            return;
        }
        let bad = faults.bad_device;
        let Some(superblock) = self.superblock_of(&self.caches[bad]) else { return };
        let several = self.caches.len() > 1;
        if several && !self.mirror_is_whole() {
            return;
        }
        // A power cut may still take the newest superblock: what it replaces is no spare.
        if !several && self.caches[bad].pending() > 0 {
            return;
        }
        let mut spoilt = match several {
            true => self.any_metadata(),
            false => self.spare_metadata(&superblock).into_iter().collect(),
        };
        if spoilt.is_empty() {
            return;
        }
        self.coverage.mark("superblocks or checkpoints spoilt");
        // A device whose superblocks are both gone is none of the pool's.
        let unreadable = several && self.wide_rng.coin();
        for range in &mut spoilt {
            if self.wide_rng.coin() {
                // One block of it.
                let blocks = (range.end - range.start) * SECTOR_SIZE as u64 / BLOCK_SIZE as u64;
                let first = range.start + 8 * self.wide_rng.below(blocks);
                *range = first..first + 8;
            }
            self.say(|_| format!("cache {bad} sectors {range:?} are spoilt"));
            self.caches[bad].rot(range.clone(), unreadable, &mut self.wide_rng);
        }
        if several {
            self.troubled.insert(bad);
        }
    }

    /// Of a device beside others: any of its copies, or all of them.
    fn any_metadata(&mut self) -> Vec<Range<u64>> {
        let share = self.wide_rng.pick(&[0.2, 0.5, 1.0]);
        let mut all = Vec::new();
        for (which, superblock) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
            all.push(sectors(superblock, SUPERBLOCK_SIZE as u64));
            let area = self.layout.checkpoint_area_bytes;
            all.push(sectors(self.layout.checkpoint_offset(which), area));
        }
        all.retain(|_| self.wide_rng.chance(share));
        all
    }

    /// Of a device alone: the older superblock, or one of two checkpoints that a start can use.
    fn spare_metadata(&mut self, newest: &Superblock) -> Option<Range<u64>> {
        let header = &newest.header;
        let older = usize::from(header.generation.get().is_multiple_of(2));
        if self.wide_rng.one_in(3) {
            return Some(sectors(SUPERBLOCK_OFFSETS[older], SUPERBLOCK_SIZE as u64));
        }
        if header.checkpoint_area == CHECKPOINT_NONE || header.previous_generation.get() == 0 {
            return None;
        }
        let generations = [header.checkpoint_generation.get(), header.previous_generation.get()];
        if generations.iter().any(|generation| self.spoilt_checkpoints.contains(generation)) {
            return None;
        }
        let area = usize::from(header.checkpoint_area);
        let previous = (1 - area, header.previous_blocks.get());
        // The next checkpoint may have been on its way over the one before.
        let spare = self.checkpoint_is_whole(newest, previous, generations[1]);
        let (which, blocks) = match self.params.faults.newest_checkpoint && spare {
            true => (area, header.checkpoint_blocks.get()),
            false => previous,
        };
        self.spoilt_checkpoints.insert(generations[usize::from(which != area)]);
        self.say(|_| format!("checkpoint in area {which} of {blocks} blocks"));
        let bytes = blocks * BLOCK_SIZE as u64;
        Some(sectors(self.layout.checkpoint_offset(which), bytes))
    }

    /// Whether a checkpoint of this generation is in this area, in so many blocks.
    fn checkpoint_is_whole(
        &self,
        superblock: &Superblock,
        (area, blocks): (usize, u64),
        generation: u64,
    ) -> bool {
        let uuid = superblock.header.pool_uuid;
        let pool = u64::from_le_bytes(uuid[..8].try_into().expect("eight bytes"));
        let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
        let offset = self.layout.checkpoint_offset(area);
        let from = sectors(offset, bytes.len() as u64);
        self.caches[self.params.faults.bad_device].peek(from.start, &mut bytes);
        let mut at = 0;
        while at < blocks as usize {
            match checkpoint::decode(&bytes[at * BLOCK_SIZE..], pool, generation, at as u64) {
                Ok((_, blocks)) => at += blocks,
                Err(_) => return false,
            }
        }
        true
    }

    /// A place of the bad device, one of several, that cannot be written or read in this life.
    pub(super) fn plan_metadata_errors(&mut self) {
        let share = self.params.faults.metadata_errors;
        if self.caches.len() < 2 || !self.wide_rng.chance(share) {
            return;
        }
        let all = self.any_metadata();
        let kind = self.wide_rng.pick(&[IoKind::Read, IoKind::Write]);
        for Range { start: first, end } in all {
            let (from, until, one_in) = (self.now, u64::MAX, 1);
            let fault = Fault { kind, first, end, from, until, one_in };
            self.caches[self.params.faults.bad_device].faults.push(fault);
            self.coverage.mark("errors planned in superblocks or checkpoints");
        }
    }
}
