//! What an administrator asks, and the end.

use crate::Mutant;
use crate::event::{Command, CommandId, CommandReply, Effect, MemberId, Refusal};
use crate::set::After;
use crate::settings::Tuning;
use crate::tiers::{LeftToStop, Phase, Tiers, bounded};
use forebay_format::tier::{EXTENT_SIZE, SUPERBLOCK_OFFSETS, member_state};
use std::collections::BTreeSet;

impl Tiers {
    pub(crate) fn command(&mut self, id: CommandId, command: Command) {
        if !self.is_open() {
            return self.reply(id, CommandReply::Refused(Refusal::Busy));
        }
        let is_of_members = matches!(
            command,
            Command::Evacuate(_)
                | Command::Cancel(_)
                | Command::Add(_)
                | Command::Remove(_)
                | Command::GiveUp(_)
                | Command::CloseUp
                | Command::Pin { .. }
        );
        if is_of_members {
            self.give_way();
        }
        if is_of_members && self.change.is_some() {
            return self.reply(id, CommandReply::Refused(Refusal::Busy));
        }
        match command {
            Command::Pause => self.pause(id, true),
            Command::Resume => self.pause(id, false),
            Command::Evacuate(tier) => self.evacuate(id, tier),
            Command::Cancel(tier) => self.cancel(id, tier),
            Command::Add(addition) => self.add(id, &addition),
            Command::Remove(tier) => self.remove(id, tier),
            Command::GiveUp(member) => self.give_up(id, member),
            Command::CloseUp => self.close_up(id),
            Command::Pin { first, count, tier } => self.pin(id, (first, count), tier),
            Command::Tune(tuning) => self.tune(id, tuning),
            Command::Resize(bytes) => self.resize(id, bytes),
            Command::Stop => {
                self.phase = Phase::Stopping(id);
                self.stop_moves();
            }
        }
    }

    pub(crate) fn reply(&mut self, id: CommandId, reply: CommandReply) {
        self.io.emit(Effect::CommandDone { id, reply });
    }

    fn pause(&mut self, id: CommandId, is_paused: bool) {
        let reply = match self.moves.set_paused(is_paused) {
            true => CommandReply::Changed,
            false => CommandReply::Unchanged,
        };
        self.reply(id, reply);
    }

    fn evacuate(&mut self, id: CommandId, tier: u8) {
        let members = self.set.of_tier(tier);
        if members.is_empty() {
            return self.reply(id, CommandReply::Refused(Refusal::NoTier));
        }
        if self.evacuation.is_some() {
            return self.reply(id, CommandReply::Refused(Refusal::Busy));
        }
        // What waits for its trim, or is copied to, is room soon, or a place of what comes anyway.
        let living = |it: MemberId| self.map.living_on(it);
        let lives: u32 = members.iter().map(|&it| living(it)).sum();
        let others = self
            .set
            .here()
            .filter(|&it| self.set.member(it).tier != tier && !self.set.is_leaving(it));
        let others: Vec<MemberId> = others.collect();
        let room: u32 =
            others.iter().map(|&it| self.set.member(it).slots.saturating_sub(living(it))).sum();
        if lives > room || others.is_empty() {
            return self.reply(id, CommandReply::Refused(Refusal::NoRoom(lives - room)));
        }
        for &member in &members {
            self.set.set_state(member, member_state::LEAVING);
        }
        self.evacuation = Some((id, tier));
        self.set.ask(After::Nobody);
        self.planner.hurry(self.io.now());
    }

    /// Places of a tier that are in use, or not free yet.
    pub(crate) fn living_on(&self, tier: u8) -> u32 {
        let used = |it: MemberId| self.set.member(it).slots - self.space.free(it);
        self.set.of_tier(tier).into_iter().map(used).sum()
    }

    fn cancel(&mut self, id: CommandId, tier: u8) {
        let members = self.set.of_tier(tier);
        let leaving: Vec<MemberId> =
            members.into_iter().filter(|&it| self.set.is_leaving(it)).collect();
        if leaving.is_empty() {
            return self.reply(id, CommandReply::Refused(Refusal::NotLeaving));
        }
        for member in leaving {
            self.set.set_state(member, member_state::IN);
        }
        if let Some((evacuation, _)) = self.evacuation.take_if(|it| it.1 == tier) {
            self.reply(evacuation, CommandReply::Refused(Refusal::Cancelled));
        }
        self.set.ask(After::Command(id));
    }

    fn pin(&mut self, id: CommandId, (first, count): (u32, u32), tier: Option<u8>) {
        let end = first.checked_add(count).filter(|&end| count > 0 && end <= self.map.len());
        let is_known = tier.is_none_or(|tier| !self.set.of_tier(tier).is_empty());
        let reply = match end {
            None => CommandReply::Refused(Refusal::Size),
            Some(_) if !is_known => CommandReply::Refused(Refusal::NoTier),
            Some(end) => match self.pins.set(first, end, tier) {
                None => CommandReply::Refused(Refusal::TooMany),
                Some(false) => CommandReply::Unchanged,
                Some(true) => CommandReply::Changed,
            },
        };
        self.planner.hurry(self.io.now());
        self.reply(id, reply);
    }

    fn tune(&mut self, id: CommandId, tuning: Tuning) {
        let tuning = bounded(tuning, &self.set.layout());
        if tuning == self.tuning {
            return self.reply(id, CommandReply::Unchanged);
        }
        let now = self.io.now();
        self.moves.tune(now, tuning);
        // What is partly written already stays so.
        self.journal.set_fine_max(tuning.fine_max.max(self.map.fine()));
        if tuning.placement != self.tuning.placement {
            self.planner.forget(now);
        }
        self.tuning = tuning;
        self.planner.hurry(now);
        self.reply(id, CommandReply::Changed);
    }

    fn resize(&mut self, id: CommandId, bytes: u64) {
        let block = &self.set.superblock().block;
        let (before, most) = (block.bytes.get(), u64::from(block.extents_max.get()) * EXTENT_SIZE);
        if bytes < before || bytes > most || !bytes.is_multiple_of(512) {
            return self.reply(id, CommandReply::Refused(Refusal::Size));
        }
        if bytes == before {
            return self.reply(id, CommandReply::Unchanged);
        }
        self.map.grow(bytes.div_ceil(EXTENT_SIZE) as u32);
        self.set.superblock_mut().block.bytes = bytes.into();
        self.set.ask(After::Command(id));
    }

    /// An evacuation is over when nothing lives there any more.
    pub(crate) fn step_evacuation(&mut self) {
        let Some((id, tier)) = self.evacuation else { return };
        if !self.journal.is_held() {
            self.evacuation = None;
            return self.reply(id, CommandReply::Refused(Refusal::Failed));
        }
        // Who is being given up takes its extents along only when that is known.
        if self.set.is_writing() || self.change.is_some() || self.living_on(tier) > 0 {
            return;
        }
        self.evacuation = None;
        self.reply(id, CommandReply::Changed);
    }

    /// Stops when everything is at rest and written.
    pub(crate) fn step_stop(&mut self) {
        let Phase::Stopping(id) = self.phase else { return };
        if !self.journal.is_held() {
            // Nobody will confirm where they have moved to.
            self.moves.forget();
        }
        let is_quiet = self.requests.is_idle() && self.moves.len() == 0 && self.io.is_idle();
        if !is_quiet || self.change.is_some() || self.set.is_writing() {
            return;
        }
        if !self.journal.is_held() {
            self.phase = Phase::Over(None);
            return self.reply(id, CommandReply::Refused(Refusal::Failed));
        }
        if self.barrier.confirmed() < self.journal.last() {
            return self.barrier.want(self.journal.last(), self.io.now());
        }
        // A place that is free now is told to its device.
        if !self.checkpoint.is_idle() || self.space.is_freeing() {
            return;
        }
        match self.left_to_stop {
            LeftToStop::Map => {
                let marks =
                    if self.is(Mutant::StopMarksNobody) { 0 } else { SUPERBLOCK_OFFSETS.len() };
                self.left_to_stop = LeftToStop::Superblocks(marks);
                self.begin_checkpoint(BTreeSet::new());
            }
            // Both copies come to be younger than all else, and a last one says so.
            LeftToStop::Superblocks(0) => {
                self.left_to_stop = LeftToStop::Rest;
                self.set.close();
                self.set.ask(After::Nobody);
            }
            LeftToStop::Superblocks(count) => {
                self.left_to_stop = LeftToStop::Superblocks(count - 1);
                self.set.ask(After::Nobody);
            }
            // What began meanwhile has ended too.
            LeftToStop::Rest => {
                self.phase = Phase::Over(None);
                self.reply(id, CommandReply::Changed);
            }
        }
    }
}
