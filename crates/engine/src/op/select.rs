//! Select: which dirty blocks a writeback slice takes next, in LBA order: where reclaim finds
//! nothing to empty, those that it needs first.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::VolumeId;
use crate::index::Slot;
use crate::limits::*;
use crate::op::slice::{Item, Run};
use crate::op::writeback::SWEPT;
use crate::segment::Use;
use forebay_format::MASK_FULL;

/// What a search for dirty blocks has found.
struct Search {
    items: Vec<Item>,
    /// Blocks that it looked at.
    looked: usize,
    /// Some cannot go before the log is durable.
    undurable: bool,
    /// Where the next goes on.
    sweep: u64,
}

impl Engine {
    /// The next dirty blocks of a volume in LBA order, from where the last ones ended; a few of
    /// them, and at most `most`. None may be found although there are some: the search has looked
    /// at enough for once, or has come to the end of the volume.
    pub(crate) fn select(&mut self, id: VolumeId, most: usize) -> Vec<Item> {
        let mut found = self.search(id, most, self.writeback.first);
        let in_vain = found.looked;
        if found.items.is_empty() && self.writeback.first.is_some() {
            // What goes first is far away, or of another volume.
            found = self.search(id, most, None);
            self.work.did(in_vain);
        }
        let Search { items, looked, undurable, sweep } = found;
        self.work.did(looked);
        let now = self.now;
        let volume = self.vol_mut(id);
        // To go on looking helps, but not to look again at what waits for the log.
        let goes_on = !undurable && (looked > 0 || volume.sweep > 0);
        volume.sweep = sweep;
        volume.looked_in_vain += looked as u64;
        if !items.is_empty() || undurable {
            volume.looked_in_vain = 0;
        } else if volume.looked_in_vain >= volume.dirty.len() {
            volume.looked_in_vain = 0;
            volume.quarantine.nothing_to_send(now);
        }
        if undurable {
            let dseq = self.log.dseq_gathered();
            self.want_durable(dseq);
        }
        self.writeback.looked += u64::from(goes_on);
        items
    }

    /// Looks for them; those of units with more dirty blocks than `first` are passed over.
    fn search(&self, id: VolumeId, most: usize, first: Option<u32>) -> Search {
        let undurable_too = self.is(Mutant::WritebackUndurable);
        let volume = self.vol(id);
        let base = volume.base;
        let mut found = Search { items: Vec::new(), looked: 0, undurable: false, sweep: SWEPT };
        for block in volume.dirty.iter_from(volume.sweep) {
            let enough = found.items.len() >= most.min(WRITEBACK_SELECT_BLOCKS);
            if enough || found.looked == WRITEBACK_LOOK_BLOCKS {
                found.sweep = block;
                break;
            }
            found.looked += 1;
            let key = base + block;
            let waits = volume.quarantine.holds(block, self.now);
            if waits || self.zeroing.iter().any(|&(first, last, _)| (first..=last).contains(&key)) {
                continue;
            }
            let located = self.index.get(key).expect("dirty blocks are in the index");
            let unit = self.segments.unit_at(located.slot);
            if first.is_some_and(|most| unit.usage != Use::Sealed || unit.dirty > most) {
                continue;
            }
            if !self.is_durable(located.slot) && !undurable_too {
                found.undurable = true;
                continue;
            }
            let generation = self.generation_of(located.slot);
            found.items.push(Item { key, located, generation, mask: self.mask(located.slot) });
        }
        found
    }

    /// Where no unit can be emptied because of its dirty blocks, those go home first that are in
    /// the units with the fewest, an eighth of all. In LBA order alone all units would become clean
    /// at the same time: late.
    pub(super) fn choose_first(&mut self) {
        if !self.reclaim.starves && !self.pauses_are_near() {
            self.writeback.first = None;
            return;
        }
        let units = self.segments.units();
        self.work.did(units.len() / UNITS_PER_STEP);
        let mut counts = vec![0; self.segments.blocks() as usize + 1];
        let sealed = units.iter().filter(|unit| unit.usage == Use::Sealed && unit.dirty > 0);
        sealed.for_each(|unit| counts[unit.dirty as usize] += 1);
        let enough = counts.iter().sum::<usize>() / FIRST_HOME_SHARE;
        let mut seen = 0;
        let first = counts.iter().position(|count| {
            seen += count;
            seen > enough
        });
        self.writeback.first = first.map(|dirty| dirty as u32);
    }

    pub(crate) fn generation_of(&self, slot: Slot) -> u32 {
        self.segments.unit_at(slot).generation
    }

    /// Neighbours become one write. No clean block is written along to bridge a gap: a power cut
    /// may spoil it at the origin, and no later slice would mend it (seed 15920/brief).
    pub(crate) fn group(&self, items: Vec<Item>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for item in items {
            let joins = |run: &&mut Run| {
                let last = run.items.last().expect("runs have items");
                let whole = item.mask == MASK_FULL && last.mask == MASK_FULL;
                whole && item.key == last.key + 1 && run.items.len() < WRITEBACK_RUN_BLOCKS
            };
            match runs.last_mut().filter(joins) {
                Some(run) => run.items.push(item),
                None => runs.push(Run { items: vec![item], ..Run::default() }),
            }
        }
        runs
    }
}
