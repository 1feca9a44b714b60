//! Turns: which of the writes that wait for room in the log takes some next, and after which pause.
//!
//! Each volume has a line of small writes and one of large ones. Of several volumes each gets as
//! many blocks as the others, and so do the two lines of one (start-time fair queueing, Goyal et
//! al. 1996): who writes little does not wait for what others have under way. What was written goes
//! in waves, each with one pause behind it.

use crate::event::{Time, VolumeId};
use crate::limits::{SMALL_WRITE_BLOCKS_MAX, WAVE_BLOCKS_MAX};
use crate::requests::ReqKey;
use std::collections::VecDeque;

/// Writes that wait, in order.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<ReqKey>,
    /// Blocks that they were given, since none of this volume waited.
    served: u64,
}

/// The writes of a volume that wait.
#[derive(Debug)]
struct Lines {
    volume: VolumeId,
    /// Small ones, and large ones.
    lines: [Line; 2],
    /// Blocks that the line which was served last had been given.
    clock: u64,
    /// Blocks that they were given, since none of any volume waited.
    served: u64,
}

impl Lines {
    fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.waiting.is_empty())
    }

    /// The line whose turn it is: a large write may be `held` back.
    fn turn(&self, held: bool) -> Option<usize> {
        let lines = if held { &self.lines[..1] } else { &self.lines[..] };
        let waiting = (0..lines.len()).filter(|&at| !lines[at].waiting.is_empty());
        waiting.min_by_key(|&at| lines[at].served)
    }
}

/// Which line a write of so many blocks is in.
fn line_of(blocks: u64) -> usize {
    usize::from(blocks > SMALL_WRITE_BLOCKS_MAX)
}

/// Writes that share a pause.
#[derive(Debug, Default)]
struct Wave {
    /// Writes that may still go on before the next pause.
    left: usize,
    /// Blocks that they took.
    blocks: u64,
    /// Blocks of the wave before, which the pause is for, and when it ended.
    before: u64,
    since: Time,
}

/// The writes that wait, of all volumes.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// By volume.
    lines: Vec<Lines>,
    waiting: usize,
    /// Blocks that the volume which was served last had been given.
    clock: u64,
    /// Nobody goes on before.
    pause_until: Time,
    wave: Wave,
    /// To use again: see [`Turns::line_up`].
    list: Vec<(u64, VolumeId)>,
}

impl Turns {
    fn lines(&self, volume: VolumeId) -> Option<&Lines> {
        let at = self.lines.binary_search_by_key(&volume, |line| line.volume).ok()?;
        Some(&self.lines[at])
    }

    fn lines_mut(&mut self, volume: VolumeId) -> &mut Lines {
        let at = match self.lines.binary_search_by_key(&volume, |line| line.volume) {
            Ok(at) => at,
            Err(at) => {
                let lines = <[Line; 2]>::default();
                self.lines.insert(at, Lines { volume, lines, clock: 0, served: 0 });
                at
            }
        };
        &mut self.lines[at]
    }

    /// A write of so many blocks waits: behind others like it of its volume, or `first` of them.
    pub(crate) fn wait(&mut self, volume: VolumeId, (write, blocks): (ReqKey, u64), first: bool) {
        let clock = self.clock;
        let lines = self.lines_mut(volume);
        if lines.is_empty() {
            lines.served = lines.served.max(clock);
        }
        let line = &mut lines.lines[line_of(blocks)];
        if line.waiting.is_empty() {
            line.served = line.served.max(lines.clock);
        }
        match first {
            true => line.waiting.push_front(write),
            false => line.waiting.push_back(write),
        }
        self.waiting += 1;
    }

    /// Writes that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// Whether any of a volume does.
    pub(crate) fn is_waiting(&self, volume: VolumeId) -> bool {
        self.waiting > 0 && self.lines(volume).is_some_and(|lines| !lines.is_empty())
    }

    /// The volumes whose writes wait, with what they were given so far.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = (u64, VolumeId)> {
        let waiting = self.lines.iter().filter(|lines| !lines.is_empty());
        waiting.map(|lines| (lines.served, lines.volume))
    }

    /// As [`Turns::volumes`], in a list, which is to be given back when they had their turns.
    pub(crate) fn line_up(&mut self) -> Vec<(u64, VolumeId)> {
        let mut list = std::mem::take(&mut self.list);
        list.extend(self.volumes());
        list
    }

    /// See [`Turns::line_up`].
    pub(crate) fn went(&mut self, mut list: Vec<(u64, VolumeId)>) {
        list.clear();
        self.list = list;
    }

    /// What a volume was given so far whose writes wait.
    pub(crate) fn given(&self, volume: VolumeId) -> Option<u64> {
        let lines = self.lines(volume).filter(|lines| !lines.is_empty())?;
        Some(lines.served)
    }

    /// The write of a volume whose turn it is. Large ones may be `held` back.
    pub(crate) fn first(&self, volume: VolumeId, held: bool) -> Option<ReqKey> {
        let lines = self.lines(volume)?;
        lines.lines[lines.turn(held)?].waiting.front().copied()
    }

    /// The first large write of a volume.
    pub(crate) fn first_large(&self, volume: VolumeId) -> Option<ReqKey> {
        self.lines(volume)?.lines[1].waiting.front().copied()
    }

    /// The first of each line of a volume.
    pub(crate) fn firsts(&self, volume: VolumeId) -> impl Iterator<Item = ReqKey> {
        let lines = self.lines(volume).into_iter().flat_map(|lines| &lines.lines);
        lines.filter_map(|line| line.waiting.front().copied())
    }

    /// A write of `blocks` blocks waits no more, the first of its line: it took `taken` of them.
    pub(crate) fn leave(&mut self, volume: VolumeId, blocks: u64, taken: u64) {
        let lines = self.lines_mut(volume);
        let line = &mut lines.lines[line_of(blocks)];
        line.waiting.pop_front().expect("one of it waits");
        lines.clock = lines.clock.max(line.served);
        line.served += taken;
        lines.served += taken;
        self.waiting -= 1;
    }

    /// A volume that had been given so much was served.
    pub(crate) fn served(&mut self, given: u64) {
        self.clock = self.clock.max(given);
    }

    /// What others get meanwhile is not owed to a volume.
    pub(crate) fn owes_nothing(&mut self, volume: VolumeId) {
        let clock = self.clock;
        let lines = self.lines_mut(volume);
        lines.served = lines.served.max(clock);
    }

    /// A volume is removed: nothing of it waits.
    pub(crate) fn forget(&mut self, volume: VolumeId) {
        assert!(!self.is_waiting(volume), "its requests have ended");
        self.lines.retain(|lines| lines.volume != volume);
    }

    /// A write took so many blocks. Those of its wave, if that has ended.
    pub(crate) fn took(&mut self, blocks: u64) -> Option<u64> {
        self.wave.blocks += blocks;
        self.wave.left = self.wave.left.saturating_sub(1);
        let is_over = self.wave.left == 0 || self.wave.blocks >= WAVE_BLOCKS_MAX;
        is_over.then_some(self.wave.blocks)
    }

    /// A pause, and behind it the next wave, of `most` writes at most.
    pub(crate) fn pause(&mut self, now: Time, ns: Time, most: usize) {
        self.pause_until = now + ns;
        let left = self.waiting.clamp(1, most);
        self.wave = Wave { left, blocks: 0, before: self.wave.blocks, since: now };
    }

    /// The blocks that the pause under way is for.
    pub(crate) fn pause_is_for(&self, now: Time) -> Option<u64> {
        (now < self.pause_until).then_some(self.wave.before)
    }

    /// The pause was to be this long: it ends earlier, if that is shorter.
    pub(crate) fn shorten(&mut self, ns: Time) {
        self.pause_until = self.pause_until.min(self.wave.since + ns);
    }

    /// When the pause ends.
    pub(crate) fn pause_until(&self) -> Time {
        self.pause_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_volume_gets_as_much_as_the_others_and_nothing_for_the_time_it_did_not_wait() {
        let (a, b) = (VolumeId(1), VolumeId(2));
        let mut turns = Turns::default();
        for write in 0..4 {
            turns.wait(a, (ReqKey::nth(write), 8), false);
        }
        let serve = |turns: &mut Turns| {
            let (given, volume) = turns.volumes().min().unwrap();
            turns.leave(volume, 8, 8);
            turns.served(given);
            volume
        };
        assert_eq!([serve(&mut turns), serve(&mut turns)], [a, a]);
        turns.wait(b, (ReqKey::nth(9), 8), false);
        assert_eq!((turns.len(), turns.first(b, false)), (3, Some(ReqKey::nth(9))));
        assert_eq!([serve(&mut turns), serve(&mut turns)], [b, a], "not b for ever");
        turns.wait(a, (ReqKey::nth(10), 8), true);
        assert_eq!(turns.first(a, false), Some(ReqKey::nth(10)));
        turns.forget(b);
    }

    /// Serves a volume, and says whether that was a large write.
    fn serve(turns: &mut Turns, volume: VolumeId, held: bool, large: ReqKey) -> Option<bool> {
        let first = turns.first(volume, held)?;
        let blocks = if first == large { 256 } else { 1 };
        turns.leave(volume, blocks, blocks);
        Some(first == large)
    }

    #[test]
    fn a_small_write_passes_large_ones_however_many_wait() {
        let (volume, large, small) = (VolumeId(1), ReqKey::nth(0), ReqKey::nth(1));
        let mut turns = Turns::default();
        (0..128).for_each(|_| turns.wait(volume, (large, 256), false));
        assert_eq!(serve(&mut turns, volume, false, large), Some(true));
        for _ in 0..100 {
            turns.wait(volume, (small, 1), false);
            assert_eq!(serve(&mut turns, volume, false, large), Some(false));
            assert_eq!(serve(&mut turns, volume, false, large), Some(true));
        }
        assert_eq!((turns.len(), turns.firsts(volume).count()), (27, 1));
        assert_eq!(turns.first_large(volume), Some(large));
    }

    #[test]
    fn small_writes_without_end_leave_large_ones_as_many_blocks() {
        let (volume, large, small) = (VolumeId(1), ReqKey::nth(0), ReqKey::nth(1));
        let mut turns = Turns::default();
        (0..10).for_each(|_| turns.wait(volume, (large, 256), false));
        (0..10_000).for_each(|_| turns.wait(volume, (small, 1), false));
        let served = (0..2570).filter(|_| serve(&mut turns, volume, false, large) == Some(true));
        assert_eq!(served.count(), 10);
    }

    #[test]
    fn large_writes_that_are_held_back_hold_no_small_ones_back() {
        let (volume, large, small) = (VolumeId(1), ReqKey::nth(0), ReqKey::nth(1));
        let mut turns = Turns::default();
        (0..10).for_each(|_| turns.wait(volume, (large, 256), false));
        assert_eq!(turns.first(volume, true), None);
        (0..1000).for_each(|_| turns.wait(volume, (small, 1), false));
        for _ in 0..1000 {
            assert_eq!(serve(&mut turns, volume, true, large), Some(false));
        }
        assert_eq!(serve(&mut turns, volume, false, large), Some(true));
    }

    #[test]
    fn a_wave_of_large_writes_is_over_when_it_has_taken_enough() {
        let mut turns = Turns::default();
        (0..32).for_each(|n| turns.wait(VolumeId(1), (ReqKey::nth(n), 256), false));
        turns.pause(0, 0, 32);
        assert_eq!(turns.took(WAVE_BLOCKS_MAX - 1), None);
        assert_eq!(turns.took(1), Some(WAVE_BLOCKS_MAX));
    }

    #[test]
    fn a_wave_has_one_pause_which_only_becomes_shorter() {
        let mut turns = Turns::default();
        turns.wait(VolumeId(1), (ReqKey::nth(0), 1), false);
        turns.wait(VolumeId(1), (ReqKey::nth(1), 1), false);
        assert_eq!(turns.took(3), Some(3));
        turns.pause(100, 50, 64);
        assert_eq!((turns.pause_is_for(149), turns.pause_is_for(150)), (Some(3), None));
        assert_eq!((turns.took(2), turns.took(4)), (None, Some(6)));
        turns.shorten(20);
        turns.shorten(30);
        assert_eq!(turns.pause_until(), 120);
    }
}
