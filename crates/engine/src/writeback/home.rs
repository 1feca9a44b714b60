//! One run of a writeback slice: read from the cache, verified, written to the origin, then clean.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::{Key, Slot};
use crate::op::Op;
use crate::op::run::{CacheRun, Lost, Reader};
use crate::writeback::sector_runs;
use crate::writeback::slice::{Item, Place, RunState};
use forebay_format::record::EntryKind;
use forebay_format::{BLOCK_SIZE, MASK_FULL};

impl Engine {
    /// Reads these blocks of a run, which lie in consecutive slots.
    pub(super) fn home_read(&mut self, volume: VolumeId, at: usize, items: &[Item]) {
        self.run_waits(volume, at);
        let Item { key, located, mask, .. } = items[0];
        let run = CacheRun::one(Reader::Home { volume, run: at }, key, located, mask);
        let crcs = items[1..].iter().map(|item| item.located.crc).collect();
        let buf = self.io.take(items.len() * BLOCK_SIZE);
        self.read_cached(CacheRun { crcs, ..run }, buf);
    }

    /// Blocks of a run, from `key` on, are here, but for the bad ones.
    pub(crate) fn home_take(
        &mut self,
        volume: VolumeId,
        at: usize,
        key: Key,
        blocks: &[u8],
        bad: &[usize],
    ) {
        self.writeback.run_takes(volume, at, key, blocks, bad);
    }

    /// A block of a run cannot be read. Whether it is read elsewhere.
    pub(crate) fn home_lost(&mut self, id: VolumeId, at: usize, key: Key, lost: Lost) -> bool {
        self.writeback.run_fails(id, at);
        let (now, uncounted) = (self.io.now(), self.is(Mutant::LostUncounted));
        if matches!(lost, Lost::Bad { dirty: true }) && !uncounted {
            self.volumes.block_unreadable(key, now);
        }
        false
    }

    /// Whether any of these blocks could not be written home a short while ago.
    pub(crate) fn rests(&self, first: Key, last: Key) -> bool {
        let volume = self.volume_of(first).expect("keys are of volumes");
        volume.quarantine().holds_any(first - volume.base(), last - volume.base(), self.io.now())
    }

    /// A run waits for one more read.
    pub(crate) fn run_waits(&mut self, volume: VolumeId, at: usize) {
        self.writeback.run_waits(volume, at);
    }

    /// A read of a run has ended; when all have, it is written.
    pub(crate) fn run_read(&mut self, volume: VolumeId, at: usize) {
        match self.writeback.part_read(volume, at) {
            None => return,
            Some(RunState::Failed) => return self.run_end(volume, at),
            Some(_) => {}
        }
        let Item { key: first, mask, .. } = self.writeback.items(volume, at)[0];
        let offset = (first - self.vol(volume).base()) * BLOCK_SIZE as u64;
        let left = self.vol(volume).bytes() - offset;
        let buf = self.writeback.run_content(volume, at);
        self.volumes.run_sent(volume);
        if mask == MASK_FULL {
            self.run_waits(volume, at);
            let mut buf = buf;
            let left = if self.is(Mutant::EndUncut) { u64::MAX } else { left };
            buf.set_len((buf.len() as u64).min(left) as usize);
            self.io.write(Op::HomeWrite { volume, run: at }, Target::Origin(volume), offset, buf);
            return;
        }
        let forgets = usize::from(self.is(Mutant::StretchForgotten));
        let most = (sector_runs(mask).count() - forgets).max(1);
        for (from, to) in sector_runs(mask).take(most) {
            self.run_waits(volume, at);
            let mut part = self.io.take((to - from) * 512);
            part.bytes_mut().copy_from_slice(&buf.bytes()[from * 512..to * 512]);
            let offset = offset + from as u64 * 512;
            self.io.write(Op::HomeWrite { volume, run: at }, Target::Origin(volume), offset, part);
        }
        self.io.give(buf);
    }

    pub(crate) fn home_write_done(&mut self, volume: VolumeId, at: usize, end: Completion) {
        let Completion { result, buf } = end;
        self.io.give(buf);
        self.origin_written(volume, false);
        let now = self.io.now();
        match self.writeback.part_written(volume, at, result.is_ok(), now) {
            None => return,
            Some(RunState::Failed) => self.home_failed(volume, at),
            Some(_) => self.volumes.run_taken(volume),
        }
        self.run_end(volume, at);
    }

    /// The origin refused a run: it stays dirty. Long runs are tried again block by block, so that
    /// one bad sector keeps only its own block from going home.
    fn home_failed(&mut self, volume: VolumeId, at: usize) {
        let items = self.writeback.items(volume, at).to_vec();
        if items.len() == 1 && self.writeback.home(volume).is_abandoned() {
            return;
        }
        if items.len() == 1 {
            let block = items[0].key - self.vol(volume).base();
            return self.block_refused(volume, block);
        }
        self.writeback.sends_alone(volume, items.into_iter());
    }

    /// The origin refused a block that is dirty, or becomes so.
    pub(crate) fn block_refused(&mut self, volume: VolumeId, block: u64) {
        let now = self.io.now();
        if self.volumes.block_refused(volume, block, now) {
            self.io.notify(Notice::WritebackFailed { volume, block });
        }
    }

    fn run_end(&mut self, volume: VolumeId, at: usize) {
        let buf = self.writeback.run_ends(volume, at);
        self.io.give(buf);
    }

    /// A dirty block is in another place: what was sent home of it is still what it is. Else
    /// reclaim, which moves most where least goes home, would keep all of it dirty.
    pub(crate) fn slice_follows(&mut self, key: Key, from: Slot, to: Slot) {
        let [from, to] = [from, to].map(|slot| (slot, self.generation_of(slot)));
        let Some(id) = self.volume_of(key).map(|volume| volume.id()) else { return };
        self.writeback.block_moved(id, key, from, to);
    }

    pub(super) fn mark_clean(&mut self, id: VolumeId, item: Item, moved: Option<[Place; 2]>) {
        let Some(now) = self.map.get(item.key) else { return };
        let place = (now.slot, self.generation_of(now.slot));
        let sent = (item.located.slot, item.generation);
        let as_sent = place == sent || moved == Some([sent, place]);
        let same = as_sent || self.is(Mutant::CleanWithoutCompare);
        if !same || !self.map.is_dirty(now.slot) {
            return;
        }
        let block = item.key - self.vol(id).base();
        let dseq = if item.mask == MASK_FULL {
            self.make_clean(item.key, now.slot);
            self.note(EntryKind::MarkClean, id, block, u64::from(now.slot.raw()))
        } else {
            // A part of a block is of no use once it is home.
            self.forget(item.key);
            self.note(EntryKind::Tombstone, id, block, 1)
        };
        self.log.ends(dseq, std::iter::once(item.key));
        self.volumes.block_home(id, block, dseq);
    }

    /// Without a cache device the slice under way ends as soon as its I/O has.
    pub(crate) fn writeback_end_dead(&mut self) {
        let most = self.ends_max();
        for at in 0..self.volumes.count() {
            let id = self.volumes.nth(at).id();
            self.writeback.slice_dies(id, most);
            self.release_reads(id);
        }
    }
}
