//! What of a volume does not go home for now: single blocks that its origin refused, the whole
//! origin once it has refused one write after the other, and blocks that no copy can be read of.
//! Each is tried again after a pause that doubles. However much is dirty, little is kept here, and
//! asking costs the same.

use crate::event::Time;
use crate::limits::{
    QUARANTINE_BLOCKS_MAX, REFUSED_IN_ROW_MAX, WRITEBACK_RETRY_DOUBLINGS, WRITEBACK_RETRY_NS,
    WRITEBACK_WAITED_NS,
};
use std::collections::{BTreeMap, BTreeSet};

/// A pause that doubles as long as what follows it fails.
#[derive(Debug, Default, Clone, Copy)]
struct Pause {
    until: Time,
    last_ns: Time,
}

impl Pause {
    fn again(&mut self, now: Time) {
        let most = WRITEBACK_RETRY_NS << WRITEBACK_RETRY_DOUBLINGS;
        self.last_ns = (self.last_ns * 2).clamp(WRITEBACK_RETRY_NS, most);
        self.until = now + self.last_ns;
    }

    fn is_on(&self, now: Time) -> bool {
        now < self.until
    }
}

/// What of one volume does not go home for now.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    /// Blocks that the origin refused, while it took others.
    blocks: BTreeMap<u64, Pause>,
    /// When they are tried again.
    due: BTreeSet<(Time, u64)>,
    /// The whole origin.
    origin: Pause,
    /// Writes that it refused since it took one.
    refused: u32,
    /// Dirty blocks that could not be read from any copy.
    unreadable: BTreeSet<u64>,
    /// When they are tried again.
    reread: Pause,
    /// A sweep over all dirty blocks found none to send: when the next begins.
    idle_until: Time,
}

impl Quarantine {
    /// The origin refused a block. Whether this is the first that it refuses.
    pub(crate) fn refused(&mut self, block: u64, now: Time) -> bool {
        let first = !self.is_failing();
        self.refused += 1;
        if self.refused >= REFUSED_IN_ROW_MAX || self.blocks.len() >= QUARANTINE_BLOCKS_MAX {
            self.origin.again(now);
            return first;
        }
        let pause = self.blocks.entry(block).or_default();
        self.due.remove(&(pause.until, block));
        pause.again(now);
        self.due.insert((pause.until, block));
        first
    }

    /// The origin took a block.
    pub(crate) fn took(&mut self) {
        self.refused = 0;
    }

    /// The origin failed a FLUSH: what it took may be lost.
    pub(crate) fn flush_failed(&mut self, now: Time) {
        self.origin.again(now);
    }

    /// The origin made durable what it took.
    pub(crate) fn flushed(&mut self) {
        self.origin = Pause::default();
    }

    /// The origin is another instance of itself: what it refused before says nothing of it.
    pub(crate) fn end(&mut self) {
        self.blocks.clear();
        self.due.clear();
        self.refused = 0;
        self.origin = Pause::default();
        self.idle_until = 0;
    }

    /// Somebody waits for what goes home: the origin does not rest long, whatever it refused.
    pub(crate) fn is_waited_for(&mut self) {
        let Pause { until, last_ns } = self.origin;
        self.origin.until = until.min((until - last_ns) + last_ns.min(WRITEBACK_WAITED_NS));
        self.origin.last_ns = last_ns.min(WRITEBACK_WAITED_NS);
    }

    /// The block is home, or replaced: nothing is known of it any more.
    pub(crate) fn forget(&mut self, block: u64) {
        if let Some(pause) = self.blocks.remove(&block) {
            self.due.remove(&(pause.until, block));
        }
        self.unreadable.remove(&block);
    }

    /// No copy of the block can be read.
    pub(crate) fn cannot_read(&mut self, block: u64, now: Time) {
        self.unreadable.insert(block);
        if !self.reread.is_on(now) {
            self.reread.again(now);
        }
    }

    /// Dirty blocks that no copy can be read of.
    pub(crate) fn unreadable(&self) -> &BTreeSet<u64> {
        &self.unreadable
    }

    /// Of all dirty blocks none could be sent now.
    pub(crate) fn nothing_to_send(&mut self, now: Time) {
        self.idle_until = now + WRITEBACK_RETRY_NS;
    }

    /// Whether nothing of the volume is sent home now.
    pub(crate) fn rests(&self, now: Time) -> bool {
        self.origin.is_on(now) || now < self.idle_until
    }

    /// Whether the block is not sent home now.
    pub(crate) fn holds(&self, block: u64, now: Time) -> bool {
        self.origin.is_on(now)
            || self.blocks.get(&block).is_some_and(|pause| pause.is_on(now))
            || (self.reread.is_on(now) && self.unreadable.contains(&block))
    }

    /// Whether any of these blocks could not be written home a short while ago.
    pub(crate) fn holds_any(&self, first: u64, last: u64, now: Time) -> bool {
        let refused = self.blocks.range(first..=last).any(|(_, pause)| pause.is_on(now));
        let lost = self.unreadable.range(first..=last).next().is_some();
        self.origin.is_on(now) || refused || (lost && self.reread.is_on(now))
    }

    /// Whether the origin did not take all that it was sent lately.
    pub(crate) fn is_failing(&self) -> bool {
        self.origin.last_ns > 0 || !self.blocks.is_empty()
    }

    /// Whether the origin, as a whole, did not take what it was sent, and nothing since.
    pub(crate) fn refuses_all(&self) -> bool {
        self.origin.last_ns > 0
    }

    /// When something may be tried again that waits now.
    pub(crate) fn next_due(&self, now: Time) -> Option<Time> {
        let reread = (!self.unreadable.is_empty()).then_some(self.reread.until);
        let pauses = [Some(self.origin.until), Some(self.idle_until), reread];
        let block = self.due.range((now + 1, 0)..).next().map(|&(at, _)| at);
        pauses.into_iter().flatten().filter(|&at| at > now).chain(block).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_sector_keeps_only_its_own_block() {
        let mut quarantine = Quarantine::default();
        assert!(quarantine.refused(7, 0), "the first is told");
        assert!(!quarantine.refused(7, 1));
        assert!(quarantine.holds(7, 2) && !quarantine.holds(8, 2) && !quarantine.rests(2));
        assert_eq!(quarantine.next_due(2), Some(1 + 2 * WRITEBACK_RETRY_NS));
        quarantine.forget(7);
        assert!(!quarantine.is_failing());
        assert_eq!(quarantine.next_due(2), None);
    }

    #[test]
    fn an_origin_that_refuses_all_rests_as_a_whole_and_ever_longer() {
        let mut quarantine = Quarantine::default();
        let mut now = 0;
        let mut waits = Vec::new();
        for round in 0..10 {
            for block in 0..u64::from(REFUSED_IN_ROW_MAX) {
                quarantine.refused(1000 * round + block, now);
            }
            assert!(quarantine.rests(now) && quarantine.holds(1 << 40, now));
            let next = quarantine.next_due(now).expect("it is tried again");
            waits.push(next - now);
            now = quarantine.origin.until;
            assert!(!quarantine.rests(now));
        }
        let kept = quarantine.blocks.len();
        assert!(kept <= REFUSED_IN_ROW_MAX as usize, "{kept} blocks are kept");
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]), "{waits:?}");
        assert_eq!(quarantine.origin.last_ns, WRITEBACK_RETRY_NS << WRITEBACK_RETRY_DOUBLINGS);
        quarantine.took();
        quarantine.flushed();
        assert!(!quarantine.rests(now));
    }

    #[test]
    fn an_origin_that_somebody_waits_for_does_not_rest_long() {
        let mut quarantine = Quarantine::default();
        quarantine.is_waited_for();
        assert!(!quarantine.rests(0) && !quarantine.is_failing());
        let mut now = 0;
        for _ in 0..10 {
            quarantine.flush_failed(now);
            now = quarantine.origin.until;
        }
        quarantine.flush_failed(now);
        assert!(quarantine.rests(now + WRITEBACK_WAITED_NS));
        quarantine.is_waited_for();
        assert!(quarantine.rests(now) && !quarantine.rests(now + WRITEBACK_WAITED_NS));
    }

    #[test]
    fn lost_blocks_are_read_again_but_not_all_the_time() {
        let mut quarantine = Quarantine::default();
        (0..100).for_each(|block| quarantine.cannot_read(block, 0));
        assert!(quarantine.holds(5, 1) && !quarantine.holds(100, 1) && !quarantine.is_failing());
        assert_eq!(quarantine.next_due(1), Some(WRITEBACK_RETRY_NS));
        assert!(!quarantine.holds(5, WRITEBACK_RETRY_NS));
        assert_eq!(quarantine.unreadable().len(), 100);
    }
}
