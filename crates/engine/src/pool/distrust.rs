//! Distrust: without a working cache device nothing can be written down there. What must not come
//! back with the device, the executor notes on another medium: the clean blocks, which the origins
//! replace from now on, and the dirty ones of volumes of which somebody gave them up.

use crate::engine::Engine;
use crate::event::{CommandId, CommandReply, Effect, IoError, Notice, Time, VolumeId};
use crate::ids::Key;
use crate::limits::{DISTRUST_RETRY_NS, DISTRUST_RETRY_NS_MAX, DISTRUST_WAIT_NS_MAX};
use crate::op::Op;
use crate::parts::Due;
use crate::pool::Pool;
use crate::settings::Distrust;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// The note, as far as it is made.
#[derive(Debug, Default)]
pub(super) struct Distrusting {
    /// What the executor has durably.
    noted: Distrust,
    /// What it was asked to write, with the commands that wait for it.
    under_way: Option<(Distrust, Vec<(VolumeId, CommandId)>)>,
    /// Volumes whose dirty blocks are given up next.
    drops: Vec<(VolumeId, CommandId)>,
    /// Volumes of which nothing on the device counts.
    given_up: Vec<VolumeId>,
    /// Their blocks that nobody was told of.
    untold: BTreeSet<Key>,
    /// What must be said of this life is durable. (An older note may name all lives, and then says
    /// nothing of what was given up in this one.)
    is_noted: bool,
    /// This life must be noted, since then.
    wanted: Option<Time>,
    /// After a failure: not again before, and the pause after the next.
    retry_at: Time,
    pause_ns: Time,
}

impl Distrusting {
    pub(super) fn new(noted: Distrust) -> Distrusting {
        Distrusting { noted, ..Distrusting::default() }
    }
}

impl Pool {
    /// Whether the note of this life is durable.
    pub(crate) fn is_noted(&self) -> bool {
        self.distrust.is_noted
    }

    /// When the note is tried again, if it has to be.
    fn note_due(&self) -> Option<Time> {
        let waits = self.distrust.under_way.is_none()
            && (self.distrust.wanted.is_some() || !self.distrust.drops.is_empty());
        waits.then_some(self.distrust.retry_at)
    }

    /// When writes that wait for the note wait no more.
    pub(crate) fn note_gives_up_at(&self) -> Option<Time> {
        self.distrust.wanted.map(|since| since + DISTRUST_WAIT_NS_MAX)
    }

    /// What the device may hold dirty of a volume never counts again, once that is noted.
    pub(crate) fn give_up(&mut self, volume: VolumeId, untold: Vec<Key>) {
        self.distrust.given_up.push(volume);
        self.distrust.untold.extend(untold);
    }

    /// Whether a write to these blocks has failed, or ended, and yet may come back with the device,
    /// as the note could not be written in time: what is there without it must not be seen.
    pub(crate) fn may_come_back(&self, blocks: RangeInclusive<Key>, now: Time) -> bool {
        let late = self.note_gives_up_at().is_some_and(|at| at <= now);
        late && self.distrust.untold.range(blocks).next().is_some()
    }

    /// Whether nothing that the device holds of a volume counts.
    pub(crate) fn gave_up(&self, volume: VolumeId) -> bool {
        self.distrust.given_up.contains(&volume)
    }

    /// Blocks that an older life left and that were given up since: volume and last such life.
    pub(crate) fn dropped(&self) -> impl Iterator<Item = (VolumeId, u64)> + '_ {
        self.distrust.noted.dropped.iter().map(|(&volume, &epoch)| (VolumeId(volume), epoch))
    }

    /// The clean blocks of which lives were not to be used, as the start found it.
    pub(crate) fn distrusted_epoch(&self) -> u64 {
        self.distrust.noted.epoch
    }
}

impl Engine {
    /// The cache is not to be trusted from now on.
    pub(crate) fn distrust(&mut self) {
        self.pool.distrust.wanted = Some(self.io.now());
        self.distrust_more();
    }

    /// What a lost device holds dirty of a volume is given up: before clients may rely on it, it is
    /// noted.
    pub(crate) fn distrust_dirty(&mut self, volume: VolumeId, command: CommandId) {
        self.pool.distrust.drops.push((volume, command));
        self.distrust_more();
    }

    /// When the note is tried again, and when writes wait for it no more.
    pub(crate) fn distrust_due(&self, due: &mut Due) {
        if self.log.is_dead() {
            due.at(self.pool.note_due());
            due.at(self.pool.note_gives_up_at());
        }
    }

    /// Asks for the note if it is due.
    pub(crate) fn distrust_more(&mut self) {
        if self.pool.note_due().is_none_or(|at| at > self.io.now()) {
            return;
        }
        let epoch = self.pool.epoch();
        let drops = std::mem::take(&mut self.pool.distrust.drops);
        let mut note = self.pool.distrust.noted.clone();
        note.epoch = note.epoch.max(epoch);
        note.dropped.extend(self.pool.distrust.given_up.iter().map(|volume| (volume.0, epoch)));
        note.dropped.extend(drops.iter().map(|(volume, _)| (volume.0, epoch)));
        self.pool.distrust.under_way = Some((note.clone(), drops));
        let op = self.io.op(Op::Distrust);
        self.io.put(Effect::Distrust { op, note });
    }

    /// The executor has the note, or could not write it.
    pub(crate) fn distrust_done(&mut self, result: Result<(), IoError>) {
        let (note, drops) = self.pool.distrust.under_way.take().expect("it was asked for");
        if result.is_err() {
            let pause = self.pool.distrust.pause_ns.max(DISTRUST_RETRY_NS);
            self.pool.distrust.retry_at = self.io.now() + pause;
            if self.pool.distrust.pause_ns == 0 {
                self.io.notify(Notice::DistrustFailed);
            }
            self.pool.distrust.pause_ns = (2 * pause).min(DISTRUST_RETRY_NS_MAX);
            for (_, command) in drops {
                let why = "no cache device works, and the state directory cannot be written: \
                           nothing is given up. Make room there and try again";
                self.answer(command, CommandReply::Failed(why.to_owned()));
            }
            return;
        }
        (self.pool.distrust.noted, self.pool.distrust.wanted, self.pool.distrust.pause_ns) =
            (note, None, 0);
        self.pool.distrust.is_noted = true;
        for (volume, command) in drops {
            self.give_up_dirty(volume, command);
        }
        self.distrust_more();
    }

    fn give_up_dirty(&mut self, id: VolumeId, command: CommandId) {
        if let Some(volume) = self.volume(id) {
            // Versions whose end was not written yet do not come back either.
            let (base, end) = volume.keys();
            self.log.unsay(base..end);
        }
        self.end_on_dead(id, command);
    }
}
