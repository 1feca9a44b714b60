//! Select: which dirty blocks a writeback slice takes next, in LBA order.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::VolumeId;
use crate::ids::Slot;
use crate::limits::*;
use crate::volume::Look;
use crate::writeback::slice::{Item, Run};
use forebay_format::MASK_FULL;

impl Engine {
    /// The next dirty blocks of a volume in LBA order, from where the last ones ended; a few of
    /// them, and at most `most`, but for the rest of a stripe. None may be found although there are
    /// some: the search has looked at enough for once, or has come to the end of the volume.
    pub(crate) fn select(&mut self, id: VolumeId, most: usize) -> Vec<Item> {
        let undurable_too = self.is(Mutant::WritebackUndurable);
        let (now, durable) = (self.io.now(), self.log.durable_dseq());
        let volume = self.vol(id);
        let (base, stripes) = (volume.base(), self.writeback.home(id).stripes);
        let mut items = Vec::new();
        if volume.dirty().waits_for_log(durable) {
            return items;
        }
        let mut undurable = false;
        let (mut looked, mut next) = (0, None);
        let is_tried = most <= WRITEBACK_PROBE_BLOCKS;
        let has_rest = |items: &[Item], block| {
            let last = items.last().map(|item: &Item| item.key - base);
            !is_tried && last.is_some_and(|last| stripes.join(last, block))
        };
        for block in volume.dirty().ahead() {
            let is_enough = items.len() >= most.min(WRITEBACK_SELECT_BLOCKS);
            if (is_enough && !has_rest(&items, block)) || looked == WRITEBACK_LOOK_BLOCKS {
                next = Some(block);
                break;
            }
            looked += 1;
            let key = base + block;
            let waits = volume.quarantine().holds(block, now);
            if waits || self.reqs.is_zeroing(key) {
                continue;
            }
            let located = self.map.get(key).expect("dirty blocks are in the index");
            if !self.is_durable(located.slot) && !undurable_too {
                undurable = true;
                continue;
            }
            let generation = self.generation_of(located.slot);
            let mask = self.map.mask(located.slot);
            items.push(Item { key, located, generation, mask });
        }
        self.io.did(looked);
        let goes_on = looked > 0 || !volume.dirty().is_unswept();
        let look = Look { looked, next, undurable, in_vain: items.is_empty() };
        self.volumes.swept(id, &look, durable, now);
        if undurable {
            let dseq = self.log.dseq_gathered();
            self.want_durable(dseq);
        }
        if goes_on {
            self.writeback.looks();
        }
        items
    }

    pub(crate) fn generation_of(&self, slot: Slot) -> u32 {
        self.segments.unit_at(slot).generation
    }

    /// Neighbours become one write. No clean block is written along to bridge a gap: a power cut
    /// may spoil it at the origin, and no later slice would mend it (seed 15920/brief).
    pub(crate) fn group(&self, id: VolumeId, items: Vec<Item>) -> Vec<Run> {
        let (base, stripes) = (self.vol(id).base(), self.writeback.home(id).stripes);
        let mut runs: Vec<Run> = Vec::new();
        for item in items {
            let joins = |run: &&mut Run| {
                let last = run.items.last().expect("runs have items");
                let whole = item.mask == MASK_FULL && last.mask == MASK_FULL;
                let goes_on = item.key == last.key + 1 && !stripes.part(item.key - base);
                whole && goes_on && run.items.len() < WRITEBACK_RUN_BLOCKS
            };
            match runs.last_mut().filter(joins) {
                Some(run) => run.items.push(item),
                None => runs.push(Run { items: vec![item], ..Run::default() }),
            }
        }
        runs
    }
}
