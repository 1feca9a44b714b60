//! Distrust: without a working cache device nothing can be written down there. What must not come
//! back with the device, the executor notes on another medium: the clean blocks, which the origins
//! replace from now on, and the dirty ones of volumes of which somebody gave them up.

use crate::event::{CommandId, Time, VolumeId};
use crate::ids::Key;
use crate::limits::{DISTRUST_RETRY_NS, DISTRUST_RETRY_NS_MAX, DISTRUST_WAIT_NS_MAX};
use crate::pool::Pool;
use crate::settings::Distrust;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

mod note;

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

    /// This life must be noted, from now on.
    fn wants_note(&mut self, now: Time) {
        self.distrust.wanted = Some(now);
    }

    /// Dirty blocks of a volume are given up with the next note.
    fn note_gives_up(&mut self, volume: VolumeId, command: CommandId) {
        self.distrust.drops.push((volume, command));
    }

    /// The note is made: what the executor is to write.
    fn note_begins(&mut self) -> Distrust {
        let epoch = self.epoch();
        let drops = std::mem::take(&mut self.distrust.drops);
        let mut note = self.distrust.noted.clone();
        note.epoch = note.epoch.max(epoch);
        note.dropped.extend(self.distrust.given_up.iter().map(|volume| (volume.0, epoch)));
        note.dropped.extend(drops.iter().map(|(volume, _)| (volume.0, epoch)));
        self.distrust.under_way = Some((note.clone(), drops));
        note
    }

    /// The note is durable: the commands that waited for it.
    fn note_made(&mut self) -> Vec<(VolumeId, CommandId)> {
        let (note, drops) = self.distrust.under_way.take().expect("it was asked for");
        (self.distrust.noted, self.distrust.wanted, self.distrust.pause_ns) = (note, None, 0);
        self.distrust.is_noted = true;
        drops
    }

    /// The note could not be written: the commands that waited for it, and whether the one before
    /// it could.
    fn note_failed(&mut self, now: Time) -> (Vec<(VolumeId, CommandId)>, bool) {
        let (_, drops) = self.distrust.under_way.take().expect("it was asked for");
        let is_first = self.distrust.pause_ns == 0;
        let pause = self.distrust.pause_ns.max(DISTRUST_RETRY_NS);
        self.distrust.retry_at = now + pause;
        self.distrust.pause_ns = (2 * pause).min(DISTRUST_RETRY_NS_MAX);
        (drops, is_first)
    }

    /// The clean blocks of which lives were not to be used, as the start found it.
    pub(crate) fn distrusted_epoch(&self) -> u64 {
        self.distrust.noted.epoch
    }
}
