//! Commands: volumes come and go, modes change, drains run, the pool closes.

use crate::Mutant;
use crate::due::Due;
use crate::ends::Sweep;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::Key;
use crate::pool::Stage;
use crate::pool::Then;
use crate::volume::volumes::base_among;
use crate::volume::{Task, Volume};
use forebay_format::mode::Mode;
use forebay_format::record::EntryKind;
use forebay_format::superblock::VOLUMES_MAX;
use forebay_format::{BLOCK_SIZE, VOLUME_ID_MAX};

/// Why a removal is refused, once: who asks again knows.
pub const FLUSH_FAILED: &str =
    "the volume's origin has failed a FLUSH: what was written there before may be lost";

/// Why a volume is refused that is one too many.
pub const POOL_IS_FULL: &str = "the pool has as many volumes as it can hold; use another pool";

impl Engine {
    pub(crate) fn command(&mut self, id: CommandId, command: Command) {
        match self.pool.stage() {
            Stage::Opening(_) | Stage::Recovering => return self.pool.keep(id, command),
            Stage::Stopping(_) => return self.refuse(id, "the pool is being closed"),
            Stage::Failed(why) => {
                let why = why.to_string();
                return self.refuse(id, &why);
            }
            Stage::Serving => {}
        }
        match command {
            Command::AddVolume(spec) => self.volume_add(id, *spec),
            Command::RemoveVolume(volume) => self.task(id, volume, Task::Remove(id)),
            Command::TellLoss(volume) => self.tell_loss(id, volume),
            Command::SetMode(volume, mode) => self.set_mode(id, volume, mode),
            Command::Drain(volume) => self.task(id, volume, Task::Drain(id)),
            Command::Cancel(volume) => self.cancel(id, volume),
            Command::ForceDropDirty(volume) => self.force_drop(id, volume),
            Command::OriginLost(volume) => self.origin_lost(id, volume),
            Command::OriginBack { volume, changed } => self.origin_back(id, volume, changed),
            Command::CallOrigin(volume, origin) => self.call_origin(id, volume, origin),
            Command::Resize(volume, bytes) => self.resize(id, volume, bytes),
            Command::LetGo(device) => self.let_go(id, device),
            Command::TakeIn(new) => self.take_in(id, *new),
            Command::Shutdown => {
                self.closing_begin(id);
                self.tasks_fail("the pool is being closed");
                self.replacing_stops();
            }
        }
    }

    pub(crate) fn answer(&mut self, id: CommandId, reply: CommandReply) {
        self.io.put(Effect::CommandDone { id, reply });
    }

    pub(crate) fn refuse(&mut self, id: CommandId, why: &str) {
        self.answer(id, CommandReply::Failed(why.to_owned()));
    }

    /// The first stretch of the key space that has room for `blocks`.
    pub(crate) fn base_for(&self, blocks: u64) -> Option<Key> {
        let taken = self.volumes.iter().map(|v| v.keys());
        base_among(&mut taken.collect::<Vec<_>>(), blocks, self.keys_max())
    }

    fn keys_max(&self) -> Key {
        self.map.keys_max()
    }

    fn volume_add(&mut self, id: CommandId, spec: VolumeSpec) {
        if self.log.is_dead() {
            return self.refuse(id, "the cache device failed; replace it first");
        }
        if self.volumes.iter().count() >= VOLUMES_MAX {
            return self.refuse(id, POOL_IS_FULL);
        }
        if self.volumes.iter().any(|v| v.identity().name == spec.name) {
            return self.refuse(id, "a volume of this name exists; choose another name");
        }
        if spec.bytes == 0
            || !spec.bytes.is_multiple_of(512)
            || spec.name.len() > 64
            || spec.origin.len() > 128
        {
            return self.refuse(id, "the volume's size, name or origin is not valid");
        }
        let number = self.pool.header().volume_id_next.get();
        if number > VOLUME_ID_MAX {
            return self.refuse(
                id,
                "the pool has numbered as many volumes as it can; make a new pool for this one",
            );
        }
        let Some(base) = self.base_for(spec.bytes.div_ceil(BLOCK_SIZE as u64)) else {
            return self.refuse(id, "the pool's volumes together are too large for its index");
        };
        self.pool.number_volume();
        let volume = VolumeId(number);
        self.writeback.volume_comes(volume, spec.stripe_blocks);
        let new = Volume::to_add(volume, spec, base, self.io.now());
        self.volumes.insert(new);
        self.superblock_write(Then::Added(volume, id));
    }

    pub(crate) fn volume_added(&mut self, volume: VolumeId, id: CommandId) {
        self.volumes.added(volume);
        self.answer(id, CommandReply::Added(volume));
    }

    /// A volume grows in place: the keys behind its last one have to be free. I14: it is used there
    /// when the superblock knows its size.
    fn resize(&mut self, id: CommandId, volume: VolumeId, bytes: u64) {
        let Some(v) = self.volume(volume) else {
            return self.refuse(id, "there is no such volume");
        };
        let grown = v.base() + bytes.div_ceil(BLOCK_SIZE as u64);
        let free = self.volumes.iter().all(|other| {
            let (first, end) = other.keys();
            other.id() == volume || end <= v.base() || grown <= first
        });
        let why = match v.bytes() {
            _ if self.log.is_dead() => "the cache device failed; replace it first",
            _ if v.is_changing() => "the volume is being added, removed or made larger",
            now if now == bytes => return self.answer(id, CommandReply::Unchanged),
            now if now > bytes => {
                "a volume cannot be made smaller: remove it, and add it again with its new size"
            }
            // Its last block is cached without what the origin has behind the end.
            now if !now.is_multiple_of(BLOCK_SIZE as u64) => {
                "the volume does not end on a multiple of 4096 bytes: remove it, and add it again \
                 with its new size"
            }
            _ if !bytes.is_multiple_of(512) => "the size is not a multiple of 512 bytes",
            _ if !free || grown > self.keys_max() => {
                "the pool's index has no room behind the volume: remove it, and add it again with \
                 its new size"
            }
            _ => {
                self.volumes.grows(volume, bytes);
                self.superblock_write(Then::Resized(volume, id));
                if self.is(Mutant::GrownBeforeDurable) {
                    self.volume_resized(volume, id);
                }
                return;
            }
        };
        self.refuse(id, why);
    }

    pub(crate) fn volume_resized(&mut self, volume: VolumeId, id: CommandId) {
        if self.volumes.grown(volume) {
            self.answer(id, CommandReply::Changed);
        }
    }

    fn set_mode(&mut self, id: CommandId, volume: VolumeId, mode: Mode) {
        match self.volume(volume) {
            None => self.refuse(id, "there is no such volume"),
            // A crash may have brought dirty blocks back in a mode that has none: what the answer
            // promises is true only when they are home.
            Some(v)
                if v.mode() == mode
                    && !v.draining()
                    && (mode.plan().write_dirty
                        || (v.dirty().is_empty()
                            && v.dirty().said() <= self.log.durable_dseq())) =>
            {
                self.answer(id, CommandReply::Unchanged)
            }
            Some(_) => self.task(id, volume, Task::Switch(id, mode)),
        }
    }

    fn task(&mut self, id: CommandId, volume: VolumeId, task: Task) {
        let why = match self.volume(volume) {
            None => Some("there is no such volume".to_owned()),
            Some(v) if !v.is_there() => Some("the volume is being added or removed".to_owned()),
            Some(v) if v.draining() => {
                Some("a drain or mode switch runs on the volume; cancel it first".to_owned())
            }
            Some(v) if !v.service().is_on() && !v.service().retries() && !v.dirty().is_empty() => {
                Some("the volume's origin is missing and it has dirty blocks".to_owned())
            }
            Some(v) if self.log.is_dead() && !v.dirty().is_empty() => {
                Some("the cache device failed and holds dirty blocks of the volume".to_owned())
            }
            Some(_) if self.log.is_dead() && !matches!(task, Task::Drain(_)) => {
                Some("the cache device failed, so nothing can be written down there".to_owned())
            }
            Some(_) => None,
        };
        match why {
            Some(why) => self.answer(id, CommandReply::Failed(why)),
            None => self.task_begins(volume, task),
        }
    }

    fn task_begins(&mut self, volume: VolumeId, task: Task) {
        let sent = self.writeback.home(volume).sent();
        self.volumes.task_begins(volume, task, sent);
    }

    /// What a removal would be refused with, before anything is done for it. Where nothing is dirty
    /// the origin is flushed for that.
    fn tell_loss(&mut self, id: CommandId, volume: VolumeId) {
        let Some(v) = self.volume(volume) else {
            return self.refuse(id, "there is no such volume");
        };
        let may_flush =
            v.is_there() && v.service().is_on() && v.dirty().is_empty() && !v.draining();
        match self.volumes.tell(volume) {
            true => self.refuse(id, FLUSH_FAILED),
            false if may_flush && !self.log.is_dead() => {
                self.task_begins(volume, Task::Settle(id));
            }
            false => self.answer(id, CommandReply::Unchanged),
        }
    }

    /// The volume has no dirty block: what is at its origin is durable, or who asks is told.
    fn settle_task(&mut self, id: VolumeId, command: CommandId) {
        let is_told = self.volumes.tell(id);
        if !is_told && !self.log_idle_for(id) {
            return;
        }
        self.volumes.task_ends(id);
        match is_told {
            true => self.refuse(command, FLUSH_FAILED),
            false => self.answer(command, CommandReply::Unchanged),
        }
    }

    fn cancel(&mut self, id: CommandId, volume: VolumeId) {
        let Some(v) = self.volume(volume) else {
            return self.refuse(id, "there is no such volume");
        };
        if v.is_leaving() {
            return self.refuse(id, "the volume is drained and being removed; too late to cancel");
        }
        match self.volumes.task_ends(volume) {
            None => self.answer(id, CommandReply::Unchanged),
            Some(task) => {
                self.refuse(task.command(), "cancelled");
                self.answer(id, CommandReply::Changed);
            }
        }
    }

    fn origin_lost(&mut self, id: CommandId, volume: VolumeId) {
        match self.volume(volume) {
            None => self.refuse(id, "there is no such volume"),
            Some(v) if !v.is_there() || !v.service().is_on() => {
                self.answer(id, CommandReply::Unchanged);
            }
            Some(_) => {
                self.volumes.origin_is_lost(volume);
                // What it took is in doubt, and what it does not take says nothing of what comes
                // back: so none of it counts.
                self.writeback.abandon(volume);
                // Who meant what cannot be read gives up no more than that.
                for command in self.writeback.take_drops(volume) {
                    self.refuse(
                        command,
                        "the volume's origin was lost meanwhile: nothing is given up. Look at \
                         `forebay status`, and ask again",
                    );
                }
                self.answer(id, CommandReply::Changed);
            }
        }
    }

    /// The volume goes on as one whose origin could not be flushed at the start, and now is to be
    /// tried again. Of one that has `changed` no clean block counts: it is served when that is
    /// durable, so that no crash brings one back.
    /// What is dirty goes to whatever is there when the volume is served again; until then nothing
    /// of it goes anywhere.
    fn call_origin(&mut self, id: CommandId, volume: VolumeId, origin: String) {
        let why = match self.volume(volume) {
            _ if self.log.is_dead() => "the cache device failed; replace it first",
            None => "there is no such volume",
            Some(v) if v.is_changing() => "the volume is being added, removed or made larger",
            Some(v) if v.service().is_on() || v.service().retries() => "its origin is in use",
            Some(v) if v.identity().origin == origin => {
                return self.answer(id, CommandReply::Unchanged);
            }
            Some(_) => {
                self.volumes.origin_is_called(volume, origin);
                return self.superblock_write(Then::Called(id));
            }
        };
        self.refuse(id, why);
    }

    fn origin_back(&mut self, id: CommandId, volume: VolumeId, changed: bool) {
        let now = self.io.now();
        match self.volume(volume) {
            None => return self.refuse(id, "there is no such volume"),
            Some(v) if v.service().is_on() || v.service().retries() => {
                return self.answer(id, CommandReply::Unchanged);
            }
            Some(_) => {}
        }
        let counts = !self.is(Mutant::LossUnnoticed);
        if self.volumes.origin_is_back(volume, changed, counts) {
            return self.answer(id, CommandReply::Changed);
        }
        let mut said = None;
        if changed {
            self.give_up_clean(volume);
            let dseq = self.log.dseq_gathered();
            said = Some(dseq);
            self.want_durable(dseq);
        }
        self.volumes.origin_is_tried_from(volume, now, said);
        self.answer(id, CommandReply::Changed);
    }

    pub(crate) fn tasks_fail(&mut self, why: &str) {
        for at in 0..self.volumes.count() {
            let id = self.volumes.nth(at).id();
            if let Some(task) = self.volumes.task_ends(id) {
                self.refuse(task.command(), why);
            }
        }
    }

    /// See `parts.rs`.
    pub(crate) fn tasks_progress(&self) -> [u64; 4] {
        [self.volumes.iter().filter(|v| v.draining()).count() as u64, 0, 0, 0]
    }

    /// When commands wait no more for an origin that ends nothing.
    pub(crate) fn tasks_due(&self, due: &mut Due) {
        due.at(self.writeback.homes().filter_map(|(_, home)| home.drops_until()));
    }

    /// Before the next checkpoint begins: a volume leaves between two.
    pub(crate) fn tasks_more(&mut self) {
        self.resume_behind_writeback();
        self.drops_more();
        for at in 0..self.volumes.count() {
            let volume = self.volumes.nth(at);
            let id = volume.id();
            let Some(task) = volume.task() else { continue };
            let said = self.log.is_dead() || volume.dirty().said() <= self.log.durable_dseq();
            let keeps = self.is(Mutant::RemovalKeepsDirty) && matches!(task, Task::Remove(_));
            let drained = (volume.dirty().is_empty() && said) || keeps;
            let last = volume.dirty().said();
            if volume.dirty().is_empty() && !said {
                // Who drains wants to hear that nothing depends on the cache device any more.
                self.want_durable(last);
                continue;
            }
            let removes = matches!(task, Task::Settle(_))
                || (matches!(task, Task::Remove(_)) && volume.flush().is_exact());
            if drained && volume.flushes_in_vain() && !(removes && volume.flush_is_given_up()) {
                self.volumes.task_ends(id);
                if removes {
                    self.volumes.tell_anyway(id);
                }
                let why = match removes {
                    true => FLUSH_FAILED,
                    false => "the origin cannot be flushed; repair it and try again",
                };
                self.refuse(task.command(), why);
                continue;
            }
            let lost = volume.quarantine().unreadable().len() as u64;
            if !drained && lost >= volume.dirty().len() {
                // All that is left cannot be read: waiting does not help.
                self.volumes.task_ends(id);
                let name = &self.vol(id).identity().name;
                let why = format!(
                    "{lost} dirty blocks cannot be read from the cache device, so they cannot be \
                     sent home. Write them anew, or give them up: forebay volume remove {name} \
                     --drop-dirty"
                );
                self.refuse(task.command(), &why);
                continue;
            }
            match task {
                Task::Drain(command) if drained => {
                    self.volumes.task_ends(id);
                    self.answer(command, CommandReply::Changed);
                }
                Task::Switch(command, new) => {
                    let keeps = new.plan().write_dirty;
                    let quiet = volume.traffic().cache_writes() == 0;
                    let early = self.is(Mutant::SwitchBeforeDrained);
                    if (drained && quiet) || keeps || early {
                        self.volumes.switched(id, new);
                        if self.is(Mutant::ModeUntold) {
                            self.answer(command, CommandReply::Changed);
                            self.superblock_write(Then::Away);
                            continue;
                        }
                        self.superblock_write(Then::Switched(id, command));
                    }
                }
                Task::Settle(command) if drained => self.settle_task(id, command),
                Task::Remove(command) if drained && !volume.traffic().has_requests() => {
                    self.remove(id, command);
                }
                _ => {}
            }
        }
    }

    /// The volume has no dirty block and no request: it leaves the superblock, and then the index.
    fn remove(&mut self, id: VolumeId, command: CommandId) {
        // Once it is gone nobody is left to hear that an acknowledged write is lost.
        if self.volumes.tell(id) {
            self.volumes.task_ends(id);
            return self.refuse(command, FLUSH_FAILED);
        }
        // What an origin that cannot be flushed holds may be gone after a power cut, with nobody to
        // say so.
        let unsure = self.vol(id).service().retries();
        if self.vol(id).intents().sync().is_some()
            || self.pool.checkpoint_runs()
            || unsure
            || !self.log_idle_for(id)
        {
            return;
        }
        self.volumes.removal_begins(id);
        self.superblock_write(Then::Removed(id, command));
    }

    /// Whether no flush of the volume's origin is under way, and everything written there is
    /// durable, or need not be.
    fn log_idle_for(&mut self, id: VolumeId) -> bool {
        let volume = self.vol(id);
        let idle = !volume.flush().is_under_way();
        let owes = volume.owes_flush() && !volume.flush_is_given_up();
        if let Some(written) = volume.flush().undurable().filter(|_| owes) {
            self.want_origin(id, written);
            return false;
        }
        idle
    }

    pub(crate) fn volume_removed(&mut self, id: VolumeId, command: CommandId) {
        if !self.log.is_dead() {
            self.note(EntryKind::VolumeDrop, id, 0, 0);
        }
        self.sweep(Sweep::Removed(id, command));
    }
}
