//! The administrator: mode switches, drains, removals and additions, and the orderly stop.

use super::{Due, Flow, Step, World};
use crate::content;
use crate::model::{Stamp, Violation, WriteSpec};
use forebay_engine::{Command, CommandId, CommandReply, Event, FLUSH_FAILED, Mode, VolumeSpec};
use forebay_format::{SECTOR_SIZE, SECTORS_PER_BLOCK};

/// Writes to origins without a volume in one life: where requests wait long, the administrator goes
/// on and on.
const FOREIGN_WRITES_MAX: u64 = 200;

/// A command without an answer.
#[derive(Debug)]
pub struct Asked {
    /// What was asked.
    pub command: Command,
    /// The origin that it is about.
    pub disk: usize,
    /// When.
    pub invoke: Stamp,
    /// Blocks that it gives up.
    pub given_up: Vec<u64>,
}

/// What the superblock shall say of a volume after this: its mode, or that there is none.
fn to_note(command: &Command) -> Option<Option<Mode>> {
    match command {
        Command::AddVolume(spec) => Some(Some(spec.mode)),
        Command::RemoveVolume(_) => Some(None),
        Command::SetMode(_, mode) => Some(Some(*mode)),
        _ => None,
    }
}

impl World {
    pub(super) fn schedule_admin(&mut self) {
        let pause = self.rng.below(2 * self.params.admin.pause_ns) + 1;
        self.schedule(pause, Due::Admin);
    }

    pub(super) fn admin_turn(&mut self) -> Step {
        if self.life.quiet {
            return Ok(Flow::Go);
        }
        self.schedule_admin();
        let disk = self.rng.below(self.origins.len() as u64) as usize;
        if self.origins[disk].disk.is_out() {
            return self.while_out(disk);
        }
        let busy = self.commands.values().any(|asked| asked.disk == disk);
        let Some(volume) = self.origins[disk].volume else {
            return if busy { Ok(Flow::Go) } else { self.add_volume(disk) };
        };
        if self.wide_rng.chance(self.params.admin.force_drop) && self.may_drop(disk) {
            // Where no device works the answer takes a while: before it, or after it?
            self.origins[disk].resting = true;
            return self.ask(disk, Command::ForceDropDirty(volume));
        }
        if !self.origins[disk].present && self.life.serving && self.wide_rng.one_in(2) {
            let origin = &mut self.origins[disk];
            (origin.present, origin.came_late) = (true, true);
            return self.ask(disk, Command::OriginBack { volume, changed: false });
        }
        if self.is_pulled_out(disk) {
            return self.pull_out(disk, volume);
        }
        let admin = self.params.admin.clone();
        if busy {
            if admin.cancel > 0 && self.rng.one_in(3) {
                self.life.cancelled = true;
                return self.ask(disk, Command::Cancel(volume));
            }
            return Ok(Flow::Go);
        }
        let weights = [admin.set_mode, admin.drain, admin.remove, admin.cancel, admin.resize];
        if weights.iter().sum::<u64>() == 0 {
            return Ok(Flow::Go);
        }
        let command = match self.rng.weighted(&weights) {
            0 => Command::SetMode(volume, self.rng.pick(&Mode::ALL)),
            1 => Command::Drain(volume),
            2 => {
                // Clients may go on during a removal, and are then told that the volume is gone.
                self.origins[disk].resting = true;
                Command::RemoveVolume(volume)
            }
            3 => Command::Cancel(volume),
            _ => {
                let (now, most) = (self.origins[disk].sectors, self.params.volumes[disk]);
                if now == most {
                    return Ok(Flow::Go);
                }
                let sectors = match self.rng.one_in(3) {
                    true => most,
                    false => 8 * self.rng.range(now / 8, most / 8),
                };
                self.origins[disk].asked_sectors.push(sectors);
                Command::Resize(volume, sectors * SECTOR_SIZE as u64)
            }
        };
        self.ask(disk, command)
    }

    /// Whether somebody would give dirty blocks up: they are lost, or their origin is missing.
    pub(super) fn may_drop(&self, disk: usize) -> bool {
        let stopping = self.life.stopping || !self.life.serving;
        // What is under way there may come before it or after it.
        let stopping = stopping || self.requests.values().any(|waiting| waiting.disk == disk);
        let missing = !self.origins[disk].present || self.origins[disk].disk.is_out();
        !stopping && (missing || self.checker.has_lost(disk))
    }

    pub(super) fn no_device_works(&self) -> bool {
        let failed = self.life.devices.is_subset(&self.life.devices_failed);
        failed || self.life.log_broken || self.caches.iter().all(|disk| disk.dead_from <= self.now)
    }

    /// The blocks of which the origin's content counts when that is done.
    fn dirty_to_give_up(&self, disk: usize) -> Vec<u64> {
        let per_block = SECTORS_PER_BLOCK as u64;
        let mut blocks: Vec<u64> =
            self.checker.touched(disk).iter().map(|sector| sector / per_block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        // All of them where the volume is not served, as its origin is missing or could not be
        // flushed at the start, else only what is lost; and what a device holds that does not work,
        // whether the engine could read it in this life or not.
        let id = self.origins[disk].volume;
        let engine = self.engine.as_ref();
        let views = engine.map(|engine| engine.volumes()).unwrap_or_default();
        let offline = views.iter().any(|view| Some(view.id) == id && view.offline.is_some());
        let (gone, all) = (self.no_device_works(), !self.origins[disk].present || offline);
        let end = self.origins[disk].disk.sectors();
        blocks.retain(|&block| {
            let sectors = block * per_block..((block + 1) * per_block).min(end);
            let lost = self.checker.any_lost(disk, sectors, self.stamp);
            lost || gone || (all && self.is_dirty(disk, block))
        });
        blocks
    }

    /// Who gives up what cannot be read gives up what is found to be so before his turn comes.
    pub(super) fn also_given_up(&mut self, disk: usize, block: u64) {
        let drops = |asked: &&mut Asked| matches!(asked.command, Command::ForceDropDirty(_));
        let asked = self.commands.values_mut().filter(|asked| asked.disk == disk);
        for asked in asked.filter(drops) {
            if !asked.given_up.contains(&block) {
                asked.given_up.push(block);
            }
        }
    }

    fn add_volume(&mut self, disk: usize) -> Step {
        // Whether a removal that a crash cut short has happened is decided when the pool is open.
        if self.rng.chance(self.params.admin.foreign_writes) && self.life.serving {
            self.write_behind_our_back(disk);
        }
        let spec = VolumeSpec {
            name: format!("v{disk}"),
            origin: format!("sim:{disk}"),
            bytes: self.origins[disk].sectors * SECTOR_SIZE as u64,
            uuid: [disk as u8 + 1; 16],
            fingerprint: [disk as u8 + 1; 32],
            mode: self.rng.pick(&Mode::ALL),
            volatile_cache: self.origins[disk].disk.volatile,
            exact_flushes: false,
            stripe_blocks: self.params.stripe_blocks,
        };
        self.ask(disk, Command::AddVolume(Box::new(spec)))
    }

    /// Somebody else writes to an origin while no volume is in front of it.
    fn write_behind_our_back(&mut self, disk: usize) {
        self.life.foreign_writes += 1;
        if self.life.foreign_writes > FOREIGN_WRITES_MAX {
            return;
        }
        let size = self.origins[disk].disk.sectors();
        for _ in 0..self.rng.range(1, 4) {
            let first = self.rng.below(size);
            let end = (first + self.rng.range(1, 64)).min(size);
            self.next_version += 1;
            let id = self.next_version;
            let invoke = self.next_stamp();
            let write = WriteSpec { id, zero: false, optional: false, fua: true };
            self.checker.begin_write(disk, first..end, write, invoke);
            let mut bytes = [0; SECTOR_SIZE];
            for sector in first..end {
                content::fill(&mut bytes, disk, sector, id);
                self.origins[disk].disk.poke(sector, &bytes);
            }
            let now = self.next_stamp();
            self.checker.end_write(disk, first..end, id, now, true);
            self.say(|_| format!("disk {disk} sectors {first}..{end} overwritten outside: {id}"));
        }
        self.coverage.mark("origin written while detached");
    }

    /// Asks the engine.
    pub(super) fn ask(&mut self, disk: usize, command: Command) -> Step {
        let invoke = self.next_stamp();
        self.next_id += 1;
        let id = CommandId(self.next_id);
        if let Some(noted) = to_note(&command) {
            self.origins[disk].noted_perhaps.push(noted);
        }
        self.say(|_| format!("{id:?} {command:?}"));
        let given_up = match command {
            Command::ForceDropDirty(_) => self.dirty_to_give_up(disk),
            _ => Vec::new(),
        };
        // It and its answer are no steps of those who wait for something else.
        self.answered_at += 2;
        self.commands.insert(id, Asked { command: command.clone(), disk, invoke, given_up });
        self.feed(Event::Command(id, command))
    }

    pub(super) fn command_done(
        &mut self,
        id: CommandId,
        reply: CommandReply,
    ) -> Result<(), Violation> {
        let Some(asked) = self.commands.remove(&id) else {
            return Err(Violation::new("I", format!("{id:?} is answered, but nobody asked it")));
        };
        self.next_stamp();
        self.note(id.0 << 1);
        self.say(|_| format!("{id:?} answered {reply:?}"));
        let leaves = |other: &Asked| matches!(other.command, Command::RemoveVolume(_));
        let leaves = self.commands.values().any(|it| it.disk == asked.disk && leaves(it));
        if matches!(asked.command, Command::ForceDropDirty(_)) && !leaves {
            self.origins[asked.disk].resting = false;
        }
        if let CommandReply::Failed(text) = &reply {
            return self.command_failed(&asked, text);
        }
        // Where no device works, the engine says "unchanged" of what it could not write down.
        let told = reply != CommandReply::Unchanged || !self.no_device_works();
        if let Some(noted) = to_note(&asked.command).filter(|_| told) {
            self.origins[asked.disk].noted = noted;
            self.origins[asked.disk].noted_found = None;
            self.origins[asked.disk].noted_perhaps.clear();
        }
        self.command_did(asked, reply)
    }

    /// What a command that was done means for what clients may see.
    fn command_did(&mut self, asked: Asked, reply: CommandReply) -> Result<(), Violation> {
        match asked.command {
            Command::AddVolume(_) => {
                let CommandReply::Added(volume) = reply else {
                    return Err(Violation::new("I", "an added volume has no number".into()));
                };
                let origin = &mut self.origins[asked.disk];
                origin.volume = Some(volume);
                origin.present = true;
                origin.resting = false;
                self.checker.adopted(asked.disk);
                self.coverage.mark("volumes added");
            }
            Command::RemoveVolume(_) => {
                self.origins[asked.disk].volume = None;
                self.coverage.mark("volumes removed");
                self.check_origin(asked.disk, "was removed")?;
                // Nobody can flush an origin that is not there.
                let origin = &self.origins[asked.disk];
                if origin.present && !origin.came_late && !origin.disk.is_out() {
                    self.checker.flushed(asked.disk, asked.invoke);
                }
            }
            Command::SetMode(volume, mode) => {
                self.coverage.mark("modes switched");
                let view = self.engine().volumes().into_iter().find(|view| view.id == volume);
                if view.is_some_and(|view| view.mode != mode) {
                    let text = format!("the switch to {mode:?} is answered, but is not done");
                    return Err(Violation::new("I", text));
                }
                let sound = self.life.devices_failed.is_empty() || self.mirror_is_whole();
                if !mode.plan().write_dirty && sound {
                    self.check_origin(asked.disk, &format!("is in mode {mode:?}"))?;
                }
            }
            Command::Resize(_, bytes) => {
                let origin = &mut self.origins[asked.disk];
                origin.sectors = bytes / SECTOR_SIZE as u64;
                origin.durable_sectors = origin.sectors;
                origin.asked_sectors.clear();
                self.coverage.add("volumes grown", u64::from(reply == CommandReply::Changed));
            }
            Command::Drain(_) => self.coverage.mark("volumes drained"),
            Command::Cancel(_) => self.coverage.mark("commands cancelled"),
            Command::ForceDropDirty(_) => {
                self.coverage.mark("commands to give dirty blocks up");
                // Some lost blocks the engine may not know yet: those it did not drop.
                let mut dropped = asked.given_up;
                dropped.retain(|&block| !self.is_dirty(asked.disk, block));
                self.coverage.add("blocks given up", dropped.len() as u64);
                dropped.into_iter().for_each(|block| self.give_up(asked.disk, block));
            }
            Command::TellLoss(_) | Command::CallOrigin(..) => {} // Nobody here gives these.
            Command::LetGo(_) | Command::TakeIn(_) => self.replace_answered(&asked.command),
            Command::OriginLost(_) => self.coverage.mark("origins that were pulled out"),
            Command::OriginBack { .. } => self.is_back(asked.disk),
            Command::Shutdown => {
                self.life.stopped = true;
                // As a flush of every volume that is there; beside lost data flushes fail.
                for disk in 0..self.origins.len() {
                    // One that came late may not be flushed yet: then nobody writes there either.
                    let there = self.origins[disk].present && !self.origins[disk].came_late;
                    if there && !self.checker.has_lost(disk) && !self.origin_has_failed(disk) {
                        self.checker.flushed(disk, asked.invoke);
                    }
                }
            }
        }
        Ok(())
    }

    fn command_failed(&mut self, asked: &Asked, text: &str) -> Result<(), Violation> {
        if matches!(asked.command, Command::RemoveVolume(_)) {
            self.origins[asked.disk].resting = false;
        }
        if text == FLUSH_FAILED {
            self.coverage.mark("removals that told of a FLUSH");
            self.checker.told_for_good(asked.disk, asked.invoke);
        }
        self.coverage.mark("commands failed");
        if matches!(asked.command, Command::LetGo(_) | Command::TakeIn(_)) {
            self.replaced.under_way = None;
            self.coverage.mark("replacements refused");
            if self.life.stopping || self.may_refuse() {
                return Ok(());
            }
        }
        let away = self.caches.iter().any(|disk| disk.dead_from <= self.now);
        let faulty = self.met_errors()
            || self.checker.has_lost(asked.disk)
            || (!self.mirror_is_whole() && (!self.life.devices_failed.is_empty() || away));
        let origin = &self.origins[asked.disk];
        let reason = self.life.cancelled
            || self.life.stopping
            || !self.life.serving
            || faulty
            || self.life.open_failed.is_some()
            || !origin.present
            || origin.came_late
            || matches!(asked.command, Command::Cancel(_));
        if reason {
            return Ok(());
        }
        let text = format!("{:?} failed without a reason: {text}", asked.command);
        Err(Violation::new("E", text))
    }

    /// What the origin holds is what a client may read: nothing newer is only in the cache. It does
    /// not count as read: a power cut may still take back what was not flushed.
    pub(super) fn check_origin(&self, disk: usize, why: &str) -> Result<(), Violation> {
        let mut bytes = [0; SECTOR_SIZE];
        for sector in self.to_look_at(disk) {
            if self.checker.any_lost(disk, sector..sector + 1, self.stamp) {
                continue;
            }
            self.origins[disk].disk.peek(sector, &mut bytes);
            if !self.checker.could_read(disk, sector, &bytes, self.stamp) {
                let history = self.checker.describe(disk, sector);
                let found = content::parse(&bytes);
                let text = format!(
                    "the volume {why}, and its origin has {found:?} in sector {sector} of disk \
                     {disk}: {history}"
                );
                return Err(Violation::new("L", text));
            }
        }
        Ok(())
    }
}
