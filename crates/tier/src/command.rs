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
            Command::Evacuate(members) => self.evacuate(id, members),
            Command::Cancel(members) => self.cancel(id, &members),
            Command::Add(addition) => self.add(id, &addition),
            Command::Remove(members) => self.remove(id, members),
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

    /// Whether each of these is a member, and there is one.
    pub(crate) fn are_members(&self, members: &[MemberId]) -> bool {
        let is_member = |it: &MemberId| usize::from(it.0) < self.set.len() && self.set.is_used(*it);
        !members.is_empty() && members.iter().all(is_member)
    }

    fn evacuate(&mut self, id: CommandId, mut members: Vec<MemberId>) {
        members.sort_unstable();
        members.dedup();
        if !self.are_members(&members) {
            return self.reply(id, CommandReply::Refused(Refusal::NoMember));
        }
        if self.evacuation.is_some() {
            return self.reply(id, CommandReply::Refused(Refusal::Busy));
        }
        // What others hold that leave has to find room, too.
        let leaves = |it: &MemberId| members.contains(it) || self.set.is_leaving(*it);
        let (leave, stay): (Vec<MemberId>, Vec<MemberId>) = self.set.here().partition(leaves);
        let leave: BTreeSet<MemberId> = leave.into_iter().chain(members.iter().copied()).collect();
        // What waits for its trim, or is copied to, is room soon, or a place of what comes anyway.
        let living = |it: MemberId| self.map.living_on(it);
        let lives: u32 = leave.into_iter().map(living).sum();
        let room: u32 =
            stay.iter().map(|&it| self.set.member(it).slots.saturating_sub(living(it))).sum();
        if lives > room || stay.is_empty() {
            return self.reply(id, CommandReply::Refused(Refusal::NoRoom(lives - room)));
        }
        for &member in &members {
            self.set.set_state(member, member_state::LEAVING);
        }
        self.evacuation = Some((id, members));
        self.set.ask(After::Nobody);
        self.planner.hurry(self.io.now());
    }

    /// Places of members that are in use, or not free yet.
    pub(crate) fn used_on(&self, members: &[MemberId]) -> u32 {
        members.iter().map(|&it| self.set.member(it).slots - self.space.free(it)).sum()
    }

    fn cancel(&mut self, id: CommandId, members: &[MemberId]) {
        if !self.are_members(members) {
            return self.reply(id, CommandReply::Refused(Refusal::NoMember));
        }
        let is_leaving = |it: &MemberId| self.set.is_leaving(*it);
        let leaving: Vec<MemberId> = members.iter().copied().filter(is_leaving).collect();
        if leaving.is_empty() {
            return self.reply(id, CommandReply::Refused(Refusal::NotLeaving));
        }
        for member in leaving {
            self.set.set_state(member, member_state::IN);
        }
        let is_for_all = self.is(Mutant::OthersStayToo);
        if let Some((_, own)) = &mut self.evacuation {
            own.retain(|it| !members.contains(it) && !is_for_all);
        }
        if let Some((evacuation, _)) = self.evacuation.take_if(|it| it.1.is_empty()) {
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
        let Some((id, members)) = &self.evacuation else { return };
        let id = *id;
        if !self.journal.is_held() {
            self.evacuation = None;
            return self.reply(id, CommandReply::Refused(Refusal::Failed));
        }
        // Who is being given up takes its extents along only when that is known.
        let is_empty = |it: &MemberId| self.used_on(&[*it]) == 0;
        let is_over = members.iter().all(is_empty)
            || (self.is(Mutant::OneEmptyIsEnough) && members.iter().any(is_empty));
        if self.set.is_writing() || self.change.is_some() || !is_over {
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
