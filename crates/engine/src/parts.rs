//! The parts of what goes on in the background, in one list: what each does, how it says that it
//! has moved, and when it next has something to do that only time makes due. None can be left out
//! of one of the three.

use crate::due::Due;
use crate::engine::Engine;
use crate::limits::SETTLE_ROUNDS_MAX;

/// Changes whenever a part has moved, beside what it put out.
type Mark = [u64; 4];

/// One of them.
struct Part {
    /// Does a bounded piece of what there is to do.
    step: fn(&mut Engine),
    mark: fn(&Engine) -> Mark,
    due: fn(&Engine, &mut Due),
    /// Whether it rests when no cache device works.
    rests: bool,
}

const fn part(
    step: fn(&mut Engine),
    mark: fn(&Engine) -> Mark,
    due: fn(&Engine, &mut Due),
) -> Part {
    Part { step, mark, due, rests: false }
}

const fn of_log(
    step: fn(&mut Engine),
    mark: fn(&Engine) -> Mark,
    due: fn(&Engine, &mut Due),
) -> Part {
    Part { step, mark, due, rests: true }
}

/// All that a step does is put something out, or change what is another part's to say.
const SEEN: fn(&Engine) -> Mark = |_| [0; 4];
/// What follows from an event is done at once.
const NEVER: fn(&Engine, &mut Due) = |_, _| {};

/// In the order of a round.
const PARTS: [Part; 17] = [
    part(Engine::wake, Engine::wake_progress, Engine::wake_due),
    part(Engine::online_more, SEEN, Engine::online_due),
    part(Engine::origin_flushes_more, SEEN, Engine::origin_flushes_due),
    part(Engine::sweep_more, SEEN, NEVER),
    part(Engine::ends_more, |it| it.ends.progress(), NEVER),
    of_log(Engine::sync_more, Engine::syncs, Engine::syncs_due),
    part(Engine::writeback_more, Engine::writeback_progress, Engine::writeback_due),
    part(Engine::distrust_more, SEEN, Engine::distrust_due),
    of_log(Engine::reclaim_more, Engine::reclaim_progress, NEVER),
    of_log(Engine::discard_more, SEEN, Engine::discard_more_due),
    part(Engine::tasks_more, Engine::tasks_progress, Engine::tasks_due),
    of_log(Engine::checkpoint_more, |it| it.pool.checkpoint_progress(), Engine::checkpoint_due),
    part(Engine::superblock_more, SEEN, NEVER),
    part(Engine::send_gathered, |it| it.log.progress(), |it, due| it.log.due(due)),
    part(Engine::flush_more, SEEN, NEVER),
    part(Engine::wake, SEEN, NEVER),
    part(Engine::closing_more, SEEN, NEVER),
];

impl Engine {
    /// Rounds of all parts, until none moves any more or the call has done its share.
    pub(crate) fn rounds(&mut self) {
        let mut before = self.marks();
        for _ in 0..SETTLE_ROUNDS_MAX {
            for part in &PARTS {
                if !part.rests || !self.log.is_dead() {
                    (part.step)(self);
                }
            }
            let after = self.marks();
            if after == before {
                let mut due = Due::new(self.io.now());
                let parts = PARTS.iter().filter(|part| !part.rests || !self.log.is_dead());
                parts.for_each(|part| (part.due)(self, &mut due));
                self.io.tick(due.first());
                return;
            }
            if self.io.is_enough() {
                break;
            }
            before = after;
        }
        self.io.tick(Some(self.io.now()));
    }

    fn marks(&self) -> (usize, [Mark; PARTS.len()]) {
        (self.io.count(), std::array::from_fn(|at| (PARTS[at].mark)(self)))
    }
}
