//! Volumes get their origins: those that are added, and those whose origin comes later or again.

use super::{Adding, Shard};
use crate::origin::Origin;
use forebay_engine::{Command, CommandId, CommandReply, Effect, Target, VolumeId};
use std::sync::mpsc::SyncSender;

impl Shard {
    /// A volume gets its origin, unless it has one or what is under way on the one before might be
    /// taken for I/O on this one.
    pub(super) fn origin_back(
        &mut self,
        (volume, origin): (VolumeId, Origin),
        changed: bool,
        reply: SyncSender<CommandReply>,
    ) {
        let known = self.engine.volumes().iter().any(|view| view.id == volume);
        let answer = match known && self.stopping.is_none() {
            true if self.executor.has_origin(volume) => CommandReply::Unchanged,
            true if self.executor.awaits(volume) => {
                let why = "I/O is under way on what the origin was before, and may still change it";
                CommandReply::Failed(why.to_owned())
            }
            true => {
                // What has ended on the one before comes first.
                self.take_completions();
                self.executor.add_origin(&mut self.driver, volume, origin);
                self.command(Command::OriginBack { volume, changed }, Some(reply));
                return;
            }
            false => CommandReply::Failed("there is no such volume, or the pool stops".to_owned()),
        };
        let _ = reply.send(answer);
    }

    /// Tiers that rest were opened again. Whether they did rest.
    pub(super) fn replace_tiers(&mut self, volume: VolumeId, origin: Origin) -> bool {
        self.executor.replace_tiers(&mut self.driver, self.now, (volume, origin))
    }

    /// Starts to add the next volume, when no other is being added.
    pub(super) fn add_next(&mut self) {
        if self.adding.is_some() {
            return;
        }
        let Some(Adding { command, origin, reply }) = self.adds.pop_front() else { return };
        // The number that `command` is about to give.
        self.adding = Some((CommandId(self.command_next), Some(origin), None));
        self.command(*command, Some(reply));
    }

    /// Gives the volume that is being added its origin.
    pub(super) fn adopt_origin(&mut self, volume: VolumeId) {
        if let Some((_, origin, known)) = &mut self.adding
            && let Some(origin) = origin.take()
        {
            self.executor.add_origin(&mut self.driver, volume, *origin);
            *known = Some(volume);
        }
    }
}

/// The volume to whose origin an I/O goes.
pub(super) fn origin_of(effect: &Effect) -> Option<VolumeId> {
    match effect {
        Effect::Read { target, .. }
        | Effect::Write { target, .. }
        | Effect::Flush { target, .. }
        | Effect::Zero { target, .. }
        | Effect::Discard { target, .. } => match target {
            Target::Origin(volume) => Some(*volume),
            Target::Cache(_) => None,
        },
        _ => None,
    }
}
