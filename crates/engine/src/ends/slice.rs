//! One slice after the other of what is to end, and what follows the last.

use crate::Mutant;
use crate::ends::What;
use crate::engine::Engine;
use crate::event::{CommandId, CommandReply, VolumeId};
use crate::ids::Key;
use crate::index::Located;
use crate::limits::{ENDS_LOOK_BLOCKS, LOOKED_UP_STEPS, SEEN_BUCKET_STEPS};
use crate::requests::ReqKey;
use forebay_format::record::EntryKind;

impl Engine {
    /// The clean blocks of a request's range end before the origin is zeroed.
    pub(crate) fn end_clean(&mut self, name: ReqKey) {
        let req = self.reqs.get(name);
        let few = req.last - req.first < self.map.len() as u64;
        let what =
            if few { What::CleanByKey(name, req.first) } else { What::CleanByBucket(name, 0) };
        self.end(what);
    }

    /// The dirty blocks of a request's range end: the origin durably holds the zeros that replace
    /// them.
    pub(crate) fn end_zeroed(&mut self, name: ReqKey) {
        let first = self.reqs.get(name).first;
        self.end(What::Zeroed(name, first));
    }

    /// Dirty blocks of a volume are given up, once none of them is on its way home.
    pub(crate) fn force_drop(&mut self, id: CommandId, volume: VolumeId) {
        if self.volume(volume).is_none() {
            return self.refuse(id, "there is no such volume");
        }
        // What is cached of it is not served any more: nobody may write beside what is given up.
        self.volumes.service_ends(volume);
        if self.drops_wait(volume) {
            return self.writeback.drop_later(volume, id);
        }
        let v = self.vol(volume);
        if self.log.is_dead() && !v.dirty().is_empty() {
            return self.distrust_dirty(volume, id);
        }
        let none = match v.service().is_on() {
            true => v.quarantine().unreadable().is_empty(),
            false => v.dirty().is_empty(),
        };
        match none {
            true => self.answer(id, CommandReply::Unchanged),
            false => self.end_given_up(volume, id),
        }
    }

    /// Whether dirty blocks cannot be given up yet: some are on their way home, or may be written.
    fn drops_wait(&self, id: VolumeId) -> bool {
        self.writeback.home(id).busy() || self.vol(id).has_late_requests()
    }

    /// Commands that wait for a slice's end to give up dirty blocks go on, or fail where the origin
    /// hangs.
    pub(crate) fn drops_more(&mut self) {
        for at in 0..self.volumes.count() {
            let id = self.volumes.nth(at).id();
            let until = self.writeback.home(id).drops_until();
            let hangs = until.is_some_and(|at| at <= self.io.now());
            if self.drops_wait(id) && !hangs {
                continue;
            }
            for command in self.writeback.take_drops(id) {
                match hangs {
                    true => self.refuse(
                        command,
                        "its origin does not end what was sent there, and may still change: \
                         nothing is given up. Try again when it answers",
                    ),
                    false => self.force_drop(command, id),
                }
            }
        }
    }

    /// Dirty blocks of a volume are given up: all if it is not served, else those that cannot be
    /// read.
    pub(crate) fn end_given_up(&mut self, id: VolumeId, command: CommandId) {
        let what = match self.vol(id).service().is_on() {
            true => What::Unreadable(id, command),
            false => {
                let (base, end) = self.vol(id).keys();
                self.mark_range(id, base, end - 1);
                What::GivenUp(id, command)
            }
        };
        self.end(what);
    }

    /// Dirty blocks of a volume are given up, and that is noted elsewhere than in the log.
    pub(crate) fn end_on_dead(&mut self, id: VolumeId, command: CommandId) {
        self.end(What::OnDead(id, command));
    }

    /// What is short ends at once, unless others are before it.
    fn end(&mut self, what: What) {
        self.ends.due.push(what);
        if self.ends.due.len() == 1 {
            self.track_moves();
            self.ends_more();
        }
    }

    /// Ends a slice of the first that is due, and all the others that are short.
    pub(crate) fn ends_more(&mut self) {
        while self.ends_slice() && !self.io.is_enough() {}
    }

    /// Whether it was the last slice of one, and others are due.
    fn ends_slice(&mut self) -> bool {
        let Some(&what) = self.ends.due.first() else { return false };
        let next = match what {
            What::CleanByKey(name, from) => self.ends_by_key(name, from),
            What::CleanByBucket(name, from) => self.ends_by_bucket(name, from),
            What::Stretches(name, from) => self.ends_stretches(name, from),
            What::Zeroed(name, from) => self.ends_zeroed(name, from),
            What::GivenUp(id, _) | What::OnDead(id, _) => self.ends_given_up(id, what),
            What::Unreadable(id, _) => self.ends_unreadable(id).then_some(what),
        };
        self.ends.slices += 1;
        if let Some(next) = next {
            self.ends.due[0] = next;
            self.track_moves();
            return false;
        }
        self.ends.due.remove(0);
        self.track_moves();
        match what {
            What::CleanByKey(name, _) | What::CleanByBucket(name, _) | What::Stretches(name, _) => {
                self.zero_ready(name);
            }
            What::Zeroed(name, _) => self.zero_end(name),
            What::GivenUp(_, command) | What::Unreadable(_, command) | What::OnDead(_, command) => {
                self.answer(command, CommandReply::Changed);
            }
        }
        true
    }

    /// What follows when the clean blocks of a range are gone.
    fn stretches_of(&self, name: ReqKey) -> Option<What> {
        let said = self.log.is_dead() || self.is(Mutant::ZeroCleanUnlogged);
        (!said).then(|| What::Stretches(name, self.reqs.get(name).first))
    }

    fn ends_by_key(&mut self, name: ReqKey, from: Key) -> Option<What> {
        let last = self.reqs.get(name).last;
        let to = last.min(from + ENDS_LOOK_BLOCKS - 1);
        self.io.did((to - from) as usize * LOOKED_UP_STEPS);
        let keeps_ram = self.is(Mutant::ZeroKeepsRam);
        let mut next = to + 1;
        let mut ended = 0;
        for key in from.to(to) {
            if ended == self.ends_max() {
                next = key;
                break;
            }
            if !keeps_ram {
                self.map.ram_drop(key);
            }
            ended += usize::from(self.forget_if_clean(key));
        }
        if next <= last { Some(What::CleanByKey(name, next)) } else { self.stretches_of(name) }
    }

    fn ends_by_bucket(&mut self, name: ReqKey, from: usize) -> Option<What> {
        let req = self.reqs.get(name);
        let range = req.first..=req.last;
        let most = (from + self.tuning().scan_buckets).min(self.map.bucket_count());
        let (to, keys) = self.gather_keys(from, most, |key, located| {
            range.contains(&key) && !self.map.is_dirty(located.slot)
        });
        self.io.did((to - from) * SEEN_BUCKET_STEPS);
        if !self.is(Mutant::ZeroKeepsRam) {
            self.ram_ends(&(*range.start()..*range.end() + 1), from..to);
        }
        for key in keys {
            self.forget(key);
        }
        // What moved in the index before this slice may be where the scan was already.
        self.moves_seen();
        let more = to < self.map.bucket_count();
        if more { Some(What::CleanByBucket(name, to)) } else { self.stretches_of(name) }
    }

    /// Entries that moved in the index while the buckets are looked through.
    pub(crate) fn ends_saw(&mut self, moved: &[(Key, Located)]) {
        let Some(&What::CleanByBucket(name, _)) = self.ends.due.first() else { return };
        let req = self.reqs.get(name);
        let range = req.first..=req.last;
        for (key, _) in moved.iter().filter(|(key, _)| range.contains(key)) {
            self.forget_if_clean(*key);
        }
    }

    /// Whether a block was there and clean.
    fn forget_if_clean(&mut self, key: Key) -> bool {
        self.map.has_clean(key) && self.forget(key).is_some()
    }

    /// One entry for each stretch without dirty blocks.
    fn ends_stretches(&mut self, name: ReqKey, from: Key) -> Option<What> {
        let req = self.reqs.get(name);
        let (id, last) = (req.volume, req.last);
        let base = self.vol(id).base();
        let (mut from, last) = (from - base, last - base);
        let dirty = self.dirty_of(id, from, last);
        let all = dirty.len() <= self.ends_max();
        self.io.did(dirty.len());
        for end in dirty.into_iter().take(self.ends_max()).chain(all.then_some(last + 1)) {
            if end > from {
                self.note(EntryKind::Tombstone, id, from, end - from);
            }
            from = end + 1;
        }
        (!all && from <= last).then_some(What::Stretches(name, base + from))
    }

    /// The first dirty blocks of a range of a volume: of one more than end in a slice.
    fn dirty_of(&self, id: VolumeId, from: u64, to: u64) -> Vec<u64> {
        let most = self.ends_max() + 1;
        let blocks = self.vol(id).dirty().iter_from(from).take_while(|&block| block <= to);
        // To collect them would ask a set of all dirty blocks how many there are.
        let mut first = Vec::with_capacity(most);
        first.extend(blocks.take(most));
        first
    }

    /// Forgets the first dirty blocks of a range, with one entry for all of them; nobody asks for
    /// room. Where the others begin.
    fn end_dirty(&mut self, id: VolumeId, from: u64, to: u64, said: bool) -> Option<u64> {
        let mut dirty = self.dirty_of(id, from, to);
        let next = (dirty.len() > self.ends_max()).then(|| dirty.pop().expect("there is one more"));
        let base = self.vol(id).base();
        for &block in &dirty {
            self.map.ram_drop(base + block);
            self.forget(base + block);
        }
        if let Some(&from) = dirty.first().filter(|_| !said) {
            let end = next.unwrap_or(to + 1);
            let dseq = self.note(EntryKind::Tombstone, id, from, end - from);
            self.log.ends(dseq, dirty.iter().map(|&block| base + block));
            self.volumes.ended_by(id, dseq);
        }
        next
    }

    fn ends_zeroed(&mut self, name: ReqKey, from: Key) -> Option<What> {
        let req = self.reqs.get(name);
        if req.error.is_some() || self.log.is_dead() {
            return None;
        }
        let (id, last) = (req.volume, req.last);
        let base = self.vol(id).base();
        let unlogged = self.is(Mutant::ZeroDirtyUnlogged);
        let next = self.end_dirty(id, from - base, last - base, unlogged)?;
        Some(What::Zeroed(name, base + next))
    }

    fn ends_given_up(&mut self, id: VolumeId, what: What) -> Option<What> {
        let volume = self.volume(id)?;
        let last = volume.blocks() - 1;
        match what {
            // It may end clean blocks too.
            What::GivenUp(..) if !volume.service().is_on() && !self.log.is_dead() => {
                self.end_dirty(id, 0, last, false)?;
            }
            What::OnDead(..) => {
                self.end_dirty(id, 0, last, true)?;
            }
            _ => return None,
        }
        Some(what)
    }

    /// Whether there are more.
    fn ends_unreadable(&mut self, id: VolumeId) -> bool {
        let Some(volume) = self.volume(id).filter(|_| !self.log.is_dead()) else { return false };
        let lost = volume.quarantine().unreadable().iter().copied();
        let blocks: Vec<u64> = lost.take(self.ends_max()).collect();
        let base = volume.base();
        for &block in &blocks {
            self.map.ram_drop(base + block);
            self.forget(base + block);
            self.volumes.block_given_up(id, block);
        }
        for run in blocks.chunk_by(|a, b| a + 1 == *b) {
            self.note(EntryKind::Tombstone, id, run[0], run.len() as u64);
            // It may have been sent home, and not be durable there.
            self.mark_range(id, base + run[0], base + run[run.len() - 1]);
        }
        blocks.len() == self.ends_max()
    }
}
