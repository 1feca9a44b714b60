//! Whether background work has more to do now, and when it will have again.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::Time;
use crate::limits::{FILL_AGE_MAX_NS, ROOM_NS_MAX, STALL_NS_MAX};
use crate::requests::Queue;

impl Engine {
    /// A mark that changes whenever a round of background work has changed something.
    pub(crate) fn progress(&self) -> [u64; 14] {
        let [reclaim_a, reclaim_b] = self.reclaim.progress();
        [
            self.out.len() as u64,
            self.log.seq,
            self.log.dseq_gathered(),
            self.log.completed_dseq,
            self.log.durable_dseq,
            (self.room.free_all() + self.room.emptied().len() * 65_536) as u64,
            self.reqs.len() as u64
                + ((self.turns.len() + self.reqs.waiting(Queue::Durable).len()) * 65_536) as u64,
            reclaim_a,
            reclaim_b,
            self.checkpoint.progress(),
            self.writeback_progress() + self.syncs(),
            self.sweeps.progress(),
            self.ends.progress(),
            self.volumes.iter().filter(|v| v.task.is_some()).count() as u64,
        ]
    }

    /// When something will be due that only time makes due. What follows from an event is done at
    /// once.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let mut due: Option<Time> = None;
        let mut at = |time: Time| {
            // What is due and was not done waits for an event, not for time.
            if time > self.now {
                due = Some(due.map_or(time, |d| d.min(time)));
            }
        };
        if let Some(gather) = self.log.gather[0].as_ref().filter(|g| g.payload > 0) {
            at(gather.since + self.log.pace.gathers().1);
        }
        for gather in self.log.gather[1..].iter().flatten() {
            if !gather.entries.is_empty() {
                at(gather.since + FILL_AGE_MAX_NS);
            }
        }
        self.stalled_due(&mut at);
        for &name in self.reqs.waiting(Queue::Entries) {
            at(self.reqs.get(name).since + ROOM_NS_MAX);
        }
        for volume in self.volumes.iter() {
            volume.online_at.into_iter().filter(|&at| at < Time::MAX).for_each(&mut at);
        }
        for volume in self.volumes.iter() {
            if volume.flush.wanted > volume.flush.flushed && volume.flush.inflight.is_none() {
                at(volume.flush.retry_at);
            }
        }
        let holds = self.volumes.iter().filter_map(|v| v.home.hold_until());
        holds.for_each(&mut at);
        let drops = self.volumes.iter().filter_map(|v| v.home.drops_until());
        drops.for_each(&mut at);
        let slow = self.volumes.iter().filter_map(|v| v.home.slow_from());
        slow.for_each(&mut at);
        if self.dead {
            self.distrust.due().into_iter().for_each(&mut at);
            self.distrust.gives_up_at().into_iter().for_each(&mut at);
            return due;
        }
        let idle = self.tuning.idle_ns;
        for volume in self.volumes.iter() {
            self.sync_due(volume).into_iter().for_each(&mut at);
            if !volume.dirty.is_empty() && volume.offline.is_none() && !volume.home.busy() {
                at(volume.origin_used.max(volume.written_at) + idle + 1);
                if volume.origin_used + idle / 50 >= self.now {
                    at(volume.origin_used + idle / 50 + 1);
                }
                volume.quarantine.next_due(self.now).into_iter().for_each(&mut at);
                at(volume.home.rests_until());
                at(self.writeback.over_since().map_or(0, |since| since + idle / 4 + 1));
            }
        }
        if self.checkpoint_retries() {
            at(self.checkpoint.tried_at + 1_000_001);
        }
        due
    }

    /// When writes that wait for room, or for their turn, may go on.
    fn stalled_due(&self, at: &mut impl FnMut(Time)) {
        for (_, id) in self.turns.volumes() {
            let first = self.turns.first(id).expect("one of it waits");
            if !self.is(Mutant::WakeLost) {
                at(self.turns.pause_until());
            }
            at(self.reqs.get(first).since + STALL_NS_MAX);
        }
        if self.turns.len() > 0 {
            // Others need not wait for one that hangs.
            let hangs = self.volumes.iter().filter_map(|v| v.hangs_from());
            hangs.for_each(at);
        }
    }
}
