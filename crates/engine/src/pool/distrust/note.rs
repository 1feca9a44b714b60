//! The note is asked for, again after a failure, and what waits for it goes on.

use crate::due::Due;
use crate::engine::Engine;
use crate::event::{CommandId, CommandReply, Effect, IoError, Notice, VolumeId};
use crate::op::Op;

impl Engine {
    /// The cache is not to be trusted from now on.
    pub(crate) fn distrust(&mut self) {
        self.pool.wants_note(self.io.now());
        self.distrust_more();
    }

    /// What a lost device holds dirty of a volume is given up: before clients may rely on it, it is
    /// noted.
    pub(crate) fn distrust_dirty(&mut self, volume: VolumeId, command: CommandId) {
        self.pool.note_gives_up(volume, command);
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
        let note = self.pool.note_begins();
        let op = self.io.op(Op::Distrust);
        self.io.put(Effect::Distrust { op, note });
    }

    /// The executor has the note, or could not write it.
    pub(crate) fn distrust_done(&mut self, result: Result<(), IoError>) {
        if result.is_err() {
            let (drops, is_first) = self.pool.note_failed(self.io.now());
            if is_first {
                self.io.notify(Notice::DistrustFailed);
            }
            for (_, command) in drops {
                let why = "no cache device works, and the state directory cannot be written: \
                           nothing is given up. Make room there and try again";
                self.answer(command, CommandReply::Failed(why.to_owned()));
            }
            return;
        }
        for (volume, command) in self.pool.note_made() {
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
