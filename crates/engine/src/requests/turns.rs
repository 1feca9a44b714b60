//! Turns: which of the writes that wait for room in the log takes some next, and after which pause.
//!
//! Each volume has a line. Of several each gets as many blocks as the others (start-time fair
//! queueing, Goyal et al. 1996). What was written goes in waves, each with one pause behind it.

use crate::event::{Time, VolumeId};
use crate::requests::ReqKey;
use std::collections::VecDeque;

/// The writes of a volume that wait, in order.
#[derive(Debug)]
struct Line {
    volume: VolumeId,
    waiting: VecDeque<ReqKey>,
    /// Blocks that they were given, since none of any volume waited.
    served: u64,
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
    lines: Vec<Line>,
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
    fn line(&self, volume: VolumeId) -> Option<&Line> {
        let at = self.lines.binary_search_by_key(&volume, |line| line.volume).ok()?;
        Some(&self.lines[at])
    }

    fn line_mut(&mut self, volume: VolumeId) -> &mut Line {
        let at = match self.lines.binary_search_by_key(&volume, |line| line.volume) {
            Ok(at) => at,
            Err(at) => {
                self.lines.insert(at, Line { volume, waiting: VecDeque::new(), served: 0 });
                at
            }
        };
        &mut self.lines[at]
    }

    /// A write waits: behind the others of its volume, or `first` of them.
    pub(crate) fn wait(&mut self, volume: VolumeId, write: ReqKey, first: bool) {
        let clock = self.clock;
        let line = self.line_mut(volume);
        if line.waiting.is_empty() {
            line.served = line.served.max(clock);
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
        self.waiting > 0 && self.first(volume).is_some()
    }

    /// The volumes whose writes wait, with what they were given so far.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = (u64, VolumeId)> {
        let waiting = self.lines.iter().filter(|line| !line.waiting.is_empty());
        waiting.map(|line| (line.served, line.volume))
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
        let line = self.line(volume).filter(|line| !line.waiting.is_empty())?;
        Some(line.served)
    }

    /// The first of a volume that waits.
    pub(crate) fn first(&self, volume: VolumeId) -> Option<ReqKey> {
        self.line(volume)?.waiting.front().copied()
    }

    /// The first of a volume waits no more: it took so many blocks.
    pub(crate) fn leave(&mut self, volume: VolumeId, blocks: u64) {
        let line = self.line_mut(volume);
        line.waiting.pop_front().expect("one of it waits");
        line.served += blocks;
        self.waiting -= 1;
    }

    /// A volume that had been given so much was served.
    pub(crate) fn served(&mut self, given: u64) {
        self.clock = self.clock.max(given);
    }

    /// What others get meanwhile is not owed to a volume.
    pub(crate) fn owes_nothing(&mut self, volume: VolumeId) {
        let clock = self.clock;
        let line = self.line_mut(volume);
        line.served = line.served.max(clock);
    }

    /// A volume is removed: nothing of it waits.
    pub(crate) fn forget(&mut self, volume: VolumeId) {
        assert!(!self.is_waiting(volume), "its requests have ended");
        self.lines.retain(|line| line.volume != volume);
    }

    /// A write took so many blocks. Those of its wave, if that has ended.
    pub(crate) fn took(&mut self, blocks: u64) -> Option<u64> {
        self.wave.blocks += blocks;
        self.wave.left = self.wave.left.saturating_sub(1);
        (self.wave.left == 0).then_some(self.wave.blocks)
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
            turns.wait(a, ReqKey::nth(write), false);
        }
        let serve = |turns: &mut Turns| {
            let (given, volume) = turns.volumes().min().unwrap();
            turns.leave(volume, 8);
            turns.served(given);
            volume
        };
        assert_eq!([serve(&mut turns), serve(&mut turns)], [a, a]);
        turns.wait(b, ReqKey::nth(9), false);
        assert_eq!((turns.len(), turns.first(b)), (3, Some(ReqKey::nth(9))));
        assert_eq!([serve(&mut turns), serve(&mut turns)], [b, a], "not b for ever");
        turns.wait(a, ReqKey::nth(10), true);
        assert_eq!(turns.first(a), Some(ReqKey::nth(10)));
        turns.forget(b);
    }

    #[test]
    fn a_wave_has_one_pause_which_only_becomes_shorter() {
        let mut turns = Turns::default();
        turns.wait(VolumeId(1), ReqKey::nth(0), false);
        turns.wait(VolumeId(1), ReqKey::nth(1), false);
        assert_eq!(turns.took(3), Some(3));
        turns.pause(100, 50, 64);
        assert_eq!((turns.pause_is_for(149), turns.pause_is_for(150)), (Some(3), None));
        assert_eq!((turns.took(2), turns.took(4)), (None, Some(6)));
        turns.shorten(20);
        turns.shorten(30);
        assert_eq!(turns.pause_until(), 120);
    }
}
