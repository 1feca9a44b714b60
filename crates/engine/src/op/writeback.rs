//! Writeback: slices of dirty blocks go home in LBA order, one FLUSH of the origin each, and only
//! then does a record say that they are clean (I9). A block is sent home only when its version is
//! durable on the cache device: else a crash could leave the origin newer than the log.
//!
//! A slice grows while it runs: what becomes dirty ahead of the sweep still joins it. Few long
//! sweeps cost a disk far less than many short ones, and its FLUSH empties its whole cache.
//!
//! Where clients keep the origin busy, a slice has it for itself: see `alone.rs`.

use crate::Mutant;
use crate::buf::Buf;
use crate::engine::Engine;
use crate::event::*;
use crate::index::{Key, Located};
use crate::limits::*;
use crate::op::Stage;
use crate::policy::writeback::{Situation, due, is_short};
use forebay_format::record::EntryKind;
use forebay_format::{BLOCK_SIZE, MASK_FULL};

/// Where a sweep stands that has come to the end of its volume.
pub(super) const SWEPT: u64 = u64::MAX;

/// One block of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub(crate) key: Key,
    pub(crate) located: Located,
    /// Life of the segment: the slot may be used again, for the same block, while it is sent home.
    pub(super) generation: u32,
    pub(crate) mask: u8,
}

/// Neighbours that are written with one write.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) items: Vec<Item>,
    pub(crate) buf: Buf,
    pub(crate) pending: u32,
    pub(crate) state: RunState,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    #[default]
    New,
    Reading,
    Writing,
    Written,
    Failed,
}

#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) volume: VolumeId,
    pub(crate) runs: Vec<Run>,
    pub(crate) next: usize,
    pub(crate) active: usize,
    /// Dirty blocks in all.
    blocks: usize,
    /// It may still grow.
    grows: bool,
    /// When it began.
    pub(super) since: Time,
    /// It is short, because clients use the origin, and their reads wait for its end.
    pub(super) alone: bool,
    /// FLUSHes of the origin that had failed when it began: one that fails meanwhile may forget
    /// what the slice has written so far.
    failures: u64,
    /// Origin writes that must be durable, once all runs have ended.
    flush: Option<u64>,
}

/// The writeback of one shard: one slice at a time.
#[derive(Debug)]
pub(crate) struct Writeback {
    pub(super) slice: Option<Slice>,
    abandoned: bool,
    turn: usize,
    /// Dirty blocks that were looked at so far.
    pub(super) looked: u64,
    /// Reads of the origin that wait for the end of the slice.
    pub(super) held: Vec<Effect>,
    /// No slice that keeps reads waiting begins before.
    pub(super) rests_until: Time,
    /// Since when more is dirty than the target.
    pub(super) over_since: Option<Time>,
    /// What a block of a slice took lately, FLUSH and all.
    block_ns: Time,
}

impl Default for Writeback {
    fn default() -> Writeback {
        Writeback {
            slice: None,
            abandoned: false,
            turn: 0,
            looked: 0,
            held: Vec::new(),
            rests_until: 0,
            over_since: None,
            block_ns: WRITEBACK_BLOCK_NS,
        }
    }
}

impl Writeback {
    /// A slice of so many blocks took so long.
    fn took(&mut self, blocks: usize, ns: Time) {
        let each = ns / blocks.max(1) as u64;
        self.block_ns = (3 * self.block_ns + each) / 4;
    }

    /// Blocks of a slice whose end somebody waits for.
    fn slice_blocks(&self) -> usize {
        let blocks = WRITEBACK_SLICE_NS / self.block_ns.max(1_000);
        (blocks as usize).max(WRITEBACK_SLICE_MIN)
    }

    /// Whether any of these blocks is being sent home.
    pub(crate) fn covers(&self, first: Key, last: Key) -> bool {
        let overlaps = |run: &Run| {
            let ends = (run.items.first(), run.items.last());
            matches!(ends, (Some(from), Some(to)) if from.key <= last && first <= to.key)
        };
        self.slice.as_ref().is_some_and(|slice| slice.runs.iter().any(overlaps))
    }

    /// The log can no longer say that anything is clean.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = self.slice.is_some();
    }

    /// See `Engine::progress`.
    pub(crate) fn progress(&self) -> u64 {
        let looked = self.looked.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        looked
            ^ self.slice.as_ref().map_or(0, |slice| {
                2 + ((slice.next as u64) << 8)
                    + ((slice.active as u64) << 32)
                    + u64::from(slice.flush.is_some()) * 4
            })
    }

    /// No slice that keeps reads waiting begins before.
    pub(crate) fn rests_until(&self) -> Time {
        self.rests_until
    }

    /// Since when more is dirty than the target.
    pub(crate) fn over_since(&self) -> Option<Time> {
        self.over_since
    }

    pub(crate) fn busy(&self) -> bool {
        self.slice.is_some()
    }

    pub(crate) fn describe(&self) -> String {
        match &self.slice {
            None => "idle".to_owned(),
            Some(slice) => format!(
                "{:?} next {} active {} flush {:?}",
                slice.volume, slice.next, slice.active, slice.flush
            ),
        }
    }
}

impl Engine {
    pub(crate) fn writeback_more(&mut self) {
        if self.writeback.slice.is_none() {
            self.slice_begin();
        }
        self.runs_start();
        self.slice_flush();
        self.slice_end();
        self.release_reads();
    }

    fn slice_begin(&mut self) {
        match self.dirty_share() > self.tuning.dirty_target {
            true if self.writeback.over_since.is_none() => {
                self.writeback.over_since = Some(self.now);
            }
            true => {}
            false => self.writeback.over_since = None,
        }
        let count = self.volumes.len();
        for step in 0..count {
            let at = (self.writeback.turn + step) % count;
            let Some(volume) = self.volumes[at].as_deref() else { continue };
            let id = volume.id;
            let rests = volume.quarantine.rests(self.now);
            if volume.dirty.is_empty() || volume.offline.is_some() || rests {
                continue;
            }
            let situation = self.situation(id);
            if !due(&situation, &self.tuning) {
                continue;
            }
            let alone = is_short(&situation, &self.tuning);
            if alone && self.now < self.writeback.rests_until {
                continue;
            }
            if self.vol(id).sweep == SWEPT {
                self.vol_mut(id).sweep = 0;
            }
            let most = match alone || self.room_is_wanted() {
                true => self.writeback.slice_blocks(),
                false => usize::MAX,
            };
            let items = self.select(id, most.min(self.tuning.writeback_slice_blocks));
            if items.is_empty() {
                continue;
            }
            self.writeback.turn = (at + 1) % count;
            let failures = self.vol(id).flush.failures;
            self.writeback.slice = Some(Slice {
                volume: id,
                failures,
                blocks: items.len(),
                runs: self.group(items),
                next: 0,
                active: 0,
                grows: true,
                since: self.now,
                alone,
                flush: None,
            });
            return;
        }
    }

    fn situation(&self, id: VolumeId) -> Situation {
        let volume = self.vol(id);
        Situation {
            dirty_share: self.dirty_share(),
            draining: volume.draining() || volume.urgent || !volume.mode.plan().write_dirty,
            reclaim_starves: self.reclaim.starves,
            over_target_ns: self.writeback.over_since.map_or(0, |since| self.now - since),
            crowded: self.room.free() * CROWDED_SHARE < self.segments.dirty_units(),
            origin_idle_ns: match volume.origin_reads {
                0 => self.now.saturating_sub(volume.origin_used),
                _ => 0,
            },
            write_idle_ns: self.now.saturating_sub(volume.written_at),
        }
    }

    /// Adds the next dirty blocks to the slice, up to the end of the volume. It ends early when
    /// somebody waits for its end, or for the room that clean blocks give.
    fn slice_grow(&mut self) {
        let Some(slice) = &self.writeback.slice else { return };
        if !slice.grows || slice.next < slice.runs.len() || slice.flush.is_some() {
            return;
        }
        let (id, blocks) = (slice.volume, slice.blocks);
        let most = match slice.alone || self.room_is_wanted() {
            true => self.writeback.slice_blocks(),
            false => usize::MAX,
        };
        let most = most.min(self.tuning.writeback_slice_blocks);
        let situation = self.situation(id);
        let ends = self.writeback.abandoned
            || !self.behind_writeback.is_empty()
            || !due(&situation, &self.tuning)
            || (!slice.alone && is_short(&situation, &self.tuning));
        let items = match ends {
            true => Vec::new(),
            false => self.select(id, most.saturating_sub(blocks)),
        };
        let (added, runs) = (items.len(), self.group(items));
        let slice = self.slice();
        slice.grows = added > 0;
        slice.blocks += added;
        slice.runs.extend(runs);
    }

    fn runs_start(&mut self) {
        let depth = self.tuning.writeback_depth.max(1);
        loop {
            self.slice_grow();
            self.slice_cut();
            let Some(slice) = &mut self.writeback.slice else { return };
            if slice.next >= slice.runs.len() || slice.active >= depth || self.writeback.abandoned {
                return;
            }
            let at = slice.next;
            slice.next += 1;
            let index = &self.index;
            if slice.runs[at].items.iter().any(|item| index.get(item.key) != Some(item.located)) {
                self.run_outdated(at);
                continue;
            }
            slice.active += 1;
            let run = &mut slice.runs[at];
            run.state = RunState::Reading;
            run.buf = self.pool.take(run.items.len() * BLOCK_SIZE);
            run.pending = 1;
            let items = run.items.clone();
            let mut from = 0;
            for n in 1..=items.len() {
                let next = items.get(n).is_some_and(|item| {
                    item.located.slot == items[n - 1].located.slot + 1
                        && self.segments.segment_of(item.located.slot)
                            == self.segments.segment_of(items[from].located.slot)
                });
                if !next {
                    self.home_read(
                        at,
                        items[from].key,
                        (n - from) as u32,
                        items[from].located.slot,
                        0,
                    );
                    from = n;
                }
            }
            self.run_read(at);
        }
    }

    /// The origin refuses what it is sent: the rest of the slice stays where it is for now.
    fn slice_cut(&mut self) {
        let Some(slice) = &self.writeback.slice else { return };
        if self.vol(slice.volume).quarantine.rests(self.now) {
            let slice = self.slice();
            slice.runs.truncate(slice.next);
            slice.grows = false;
        }
    }

    /// Blocks of a run that has not begun were written again: the others go home one by one.
    fn run_outdated(&mut self, at: usize) {
        let items = std::mem::take(&mut self.slice().runs[at].items);
        let now = items.into_iter().filter(|item| self.index.get(item.key) == Some(item.located));
        let runs: Vec<Run> = now.map(|item| Run { items: vec![item], ..Run::default() }).collect();
        self.slice().runs.extend(runs);
    }

    pub(crate) fn slice(&mut self) -> &mut Slice {
        self.writeback.slice.as_mut().expect("a slice is under way")
    }

    /// All runs have ended: one FLUSH of the origin for all of them.
    fn slice_flush(&mut self) {
        let abandoned = self.writeback.abandoned;
        let Some(slice) = &mut self.writeback.slice else { return };
        let more = slice.next < slice.runs.len() && !abandoned;
        if slice.active > 0 || more || slice.flush.is_some() {
            return;
        }
        let id = slice.volume;
        let flush = &self.vol(id).flush;
        let written = flush.written;
        self.slice().flush = Some(written);
        if !self.is(Mutant::CleanBeforeOriginFlush) {
            self.want_origin(id, written);
        }
    }

    /// The FLUSH has ended: the blocks are clean, if they are still the versions that were sent.
    fn slice_end(&mut self) {
        let Some(slice) = &self.writeback.slice else { return };
        let Some(written) = slice.flush else { return };
        let flush = &self.vol(slice.volume).flush;
        let failed = flush.failures != slice.failures;
        let flushed = flush.flushed >= written && !failed;
        let flushed = flushed || self.is(Mutant::CleanBeforeOriginFlush);
        if !flushed && !failed {
            return;
        }
        let slice = self.writeback.slice.take().expect("there is one");
        let took = self.now - slice.since;
        self.writeback.took(slice.blocks, took);
        if slice.alone {
            // Clients have the greater part of the time, but for half where somebody waits for
            // room.
            let rest = if self.room_is_wanted() { took } else { 3 * took };
            self.writeback.rests_until = self.now + rest;
        }
        let abandoned = std::mem::take(&mut self.writeback.abandoned) || self.dead;
        let now = self.now;
        let quarantine = &mut self.vol_mut(slice.volume).quarantine;
        if flushed && !abandoned {
            let took = slice.runs.iter().any(|run| run.state == RunState::Written);
            if took {
                quarantine.flushed();
            }
            for run in &slice.runs {
                if run.state == RunState::Written {
                    run.items.iter().for_each(|item| self.mark_clean(slice.volume, *item));
                }
            }
        } else if !abandoned {
            quarantine.flush_failed(now);
        }
        self.vol_mut(slice.volume).urgent = false;
        for name in std::mem::take(&mut self.behind_writeback) {
            self.begin(name);
        }
    }

    fn mark_clean(&mut self, id: VolumeId, item: Item) {
        let Some(now) = self.index.get(item.key) else { return };
        let as_sent = now == item.located && self.generation_of(now.slot) == item.generation;
        let same = as_sent || self.is(Mutant::CleanWithoutCompare);
        if !same || !self.dirty.get(now.slot as usize) {
            return;
        }
        let block = item.key - self.vol(id).base;
        let dseq = if item.mask == MASK_FULL {
            self.make_clean(item.key, now.slot);
            self.note(EntryKind::MarkClean, id, block, u64::from(now.slot))
        } else {
            // A part of a block is of no use once it is home.
            self.forget(item.key);
            self.note(EntryKind::Tombstone, id, block, 1)
        };
        self.log.cleaned.push_back((dseq, item.key));
        let volume = self.vol_mut(id);
        volume.quarantine.forget(block);
        volume.stats.writeback_blocks += 1;
    }

    /// Without a cache device the slice under way ends as soon as its I/O has.
    pub(crate) fn writeback_end_dead(&mut self) {
        if self.writeback.slice.as_ref().is_some_and(|slice| slice.active == 0) {
            self.writeback.slice = None;
            self.writeback.abandoned = false;
        }
        self.release_reads();
    }

    /// Requests that wait for writeback go on when there is none, too.
    pub(crate) fn resume_behind_writeback(&mut self) {
        if self.writeback.slice.is_some() {
            return;
        }
        for name in std::mem::take(&mut self.behind_writeback) {
            debug_assert_eq!(self.reqs.get(name).map(|req| req.stage), Some(Stage::Waiting));
            self.begin(name);
        }
    }
}

/// Stretches of set bits: first sector, and the one behind the last.
pub(crate) fn sector_runs(mask: u8) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < 8 && mask >> at & 1 == 0 {
            at += 1;
        }
        let from = at;
        while at < 8 && mask >> at & 1 == 1 {
            at += 1;
        }
        (from < at).then_some((from, at))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn sectors_of_a_mask_are_written_in_stretches() {
        let runs: Vec<_> = super::sector_runs(0b1011_0011).collect();
        assert_eq!(runs, [(0, 2), (4, 6), (7, 8)]);
        assert_eq!(super::sector_runs(0xff).collect::<Vec<_>>(), [(0, 8)]);
        assert_eq!(super::sector_runs(0).count(), 0);
    }
}
