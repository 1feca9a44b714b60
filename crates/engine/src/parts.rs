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
    /// `None`: all that a step does is put something out, or change what is another part's to say.
    mark: Option<fn(&Engine) -> Mark>,
    /// `None`: what follows from an event is done at once.
    due: Option<fn(&Engine, &mut Due)>,
    /// Whether it rests when no cache device works.
    rests: bool,
}

const fn part(
    step: fn(&mut Engine),
    mark: Option<fn(&Engine) -> Mark>,
    due: Option<fn(&Engine, &mut Due)>,
) -> Part {
    Part { step, mark, due, rests: false }
}

const fn of_log(
    step: fn(&mut Engine),
    mark: Option<fn(&Engine) -> Mark>,
    due: Option<fn(&Engine, &mut Due)>,
) -> Part {
    Part { step, mark, due, rests: true }
}

/// In the order of a round.
const PARTS: [Part; 18] = [
    part(Engine::wake, Some(Engine::wake_progress), Some(Engine::wake_due)),
    part(Engine::online_more, None, Some(Engine::online_due)),
    part(Engine::origin_flushes_more, None, Some(Engine::origin_flushes_due)),
    part(Engine::sweep_more, None, None),
    part(Engine::ends_more, Some(|it| it.ends.progress()), None),
    of_log(Engine::sync_more, Some(Engine::syncs), Some(Engine::syncs_due)),
    part(Engine::writeback_more, Some(Engine::writeback_progress), Some(Engine::writeback_due)),
    part(Engine::distrust_more, None, Some(Engine::distrust_due)),
    of_log(Engine::reclaim_more, Some(Engine::reclaim_progress), Some(Engine::reclaim_due)),
    of_log(Engine::discard_more, None, Some(Engine::discard_more_due)),
    part(Engine::tasks_more, Some(Engine::tasks_progress), Some(Engine::tasks_due)),
    of_log(
        Engine::checkpoint_more,
        Some(|it| it.pool.checkpoint_progress()),
        Some(Engine::checkpoint_due),
    ),
    part(Engine::superblock_more, None, None),
    part(Engine::replace_more, None, None),
    part(Engine::send_gathered, Some(|it| it.log.progress()), Some(|it, due| it.log.due(due))),
    part(Engine::flush_more, None, None),
    part(Engine::wake, None, None),
    part(Engine::closing_more, None, None),
];

/// The marks of those that have one.
const MARKS: [fn(&Engine) -> Mark; marks_count()] = {
    let first = PARTS[0].mark.expect("the first part has one");
    let (mut marks, mut count, mut at) = ([first; marks_count()], 0, 0);
    while at < PARTS.len() {
        if let Some(mark) = PARTS[at].mark {
            marks[count] = mark;
            count += 1;
        }
        at += 1;
    }
    marks
};

const fn marks_count() -> usize {
    let (mut count, mut at) = (0, 0);
    while at < PARTS.len() {
        count += PARTS[at].mark.is_some() as usize;
        at += 1;
    }
    count
}

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
                parts.filter_map(|part| part.due).for_each(|it| it(self, &mut due));
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

    fn marks(&self) -> (usize, [Mark; MARKS.len()]) {
        (self.io.count(), MARKS.map(|mark| mark(self)))
    }
}
