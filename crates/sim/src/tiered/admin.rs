//! The administrator.

use super::members::is_of_members;
use super::{Check, Due, Step, Tiered};
use crate::model::{Stamp, Violation};
use forebay_format::SECTOR_SIZE;
use forebay_format::tier::EXTENT_SIZE;
use forebay_tier::{Command, CommandId, CommandReply, Event, MemberId, Refusal};
use std::collections::BTreeSet;

/// Slots that moves and what is not flushed may hold, beyond those that extents live in.
const SLACK: u64 = 8;
/// Within this time a place that an extent left becomes free, nanoseconds.
const FREED_NS: u64 = 4_000_000_000;

/// A command without an answer.
#[derive(Debug, Clone)]
pub struct Asked {
    pub command: Command,
    pub invoke: Stamp,
    /// Extents that lived on the members, and on others that leave, and free slots elsewhere, when
    /// it was asked to empty them.
    used: u64,
    free: u64,
    /// Members that have been leaving since it was asked, and not before.
    leave: BTreeSet<usize>,
    /// Places that extents left lately, which may not be free yet.
    left: u64,
}

impl Asked {
    /// Whether places of the members were in use, or not free yet, when it was asked.
    pub fn is_used(&self) -> bool {
        self.used > 0 || self.left > 0
    }

    /// Members that it had leave.
    pub fn leave(&self) -> &BTreeSet<usize> {
        &self.leave
    }
}

impl Tiered {
    pub(super) fn schedule_admin(&mut self) {
        if self.plan.admin.pause_ns > 0 {
            let pause = self.rng.below(self.plan.admin.pause_ns + 1);
            self.schedule(pause, Due::Admin);
        }
    }

    pub(super) fn admin_turn(&mut self) -> Step {
        if self.life.quiet {
            return Ok(super::Flow::Go);
        }
        self.schedule_admin();
        let admin = &self.plan.admin;
        let weights = [
            admin.pause,
            admin.resume,
            admin.evacuate,
            admin.cancel,
            admin.resize,
            admin.add,
            admin.remove,
            admin.give_up,
            admin.pin,
            admin.tune,
        ];
        if let Some(members) = self.life.is_empty.take()
            && admin.remove > 0
            && self.rng.coin()
        {
            return self.ask_to_remove(members);
        }
        // Now and then one that is not there.
        let tier = self.rng.below(u64::from(self.plan.tiers()) + 1) as u8;
        let command = match self.rng.weighted(&weights) {
            0 => Command::Pause,
            1 => Command::Resume,
            2 => Command::Evacuate(self.some_of(tier)),
            3 => Command::Cancel(self.some_of(tier)),
            4 => Command::Resize(self.choose_size()),
            5 => match self.choose_addition() {
                Some(command) => command,
                None => return Ok(super::Flow::Go),
            },
            6 => {
                let members = self.choose_removal();
                return self.ask_to_remove(members);
            }
            7 => self.choose_given_up(),
            8 => self.choose_pin(),
            _ => Command::Tune(super::plan::draw_tuning(&mut self.rng)),
        };
        self.ask(command)
    }

    fn choose_size(&mut self) -> u64 {
        let sectors = |bytes: u64| bytes / SECTOR_SIZE as u64;
        let most = self.plan.bytes_max + if self.rng.one_in(8) { 2 * EXTENT_SIZE } else { 0 };
        let least =
            if self.rng.one_in(8) { self.bytes / 2 + SECTOR_SIZE as u64 } else { self.bytes };
        self.rng.range(sectors(least), sectors(most.max(least))) * SECTOR_SIZE as u64
    }

    pub(super) fn ask(&mut self, command: Command) -> Step {
        let invoke = self.next_stamp();
        self.next_id += 1;
        let id = CommandId(self.next_id);
        let (mut used, mut free) = (0, 0);
        if let Command::Evacuate(members) | Command::Remove(members) = &command {
            (used, free) = self.room_without(members);
        }
        if let Command::Resize(bytes) = command {
            self.bytes_asked.insert(bytes);
        }
        // From now on it may take no extents any more.
        let mut leave = BTreeSet::new();
        if let Command::Evacuate(members) | Command::Remove(members) = &command {
            let leaving = members.iter().map(|it| usize::from(it.0));
            leave = leaving.filter(|&it| self.life.leaving.insert(it)).collect();
        }
        self.say(|_| format!("{id:?} {command:?}"));
        self.note(id.0);
        let left = self.places.left_since(self.now.saturating_sub(FREED_NS));
        self.commands
            .insert(id, Asked { command: command.clone(), invoke, used, free, leave, left });
        self.feed(Event::Command(id, command))
    }

    /// Extents that live on these members, and on others that leave, and free slots of those that
    /// take extents.
    pub(super) fn room_without(&self, members: &[MemberId]) -> (u64, u64) {
        let member = |number: usize| &self.plan.members[number];
        let leaves = |number: usize| is_among(number, members) || self.may_leave(number);
        let used = self.places.used(leaves);
        let takes =
            |number: usize| member(number).is_in && self.life.is_here[number] && !leaves(number);
        let slots = (0..self.plan.members.len()).filter(|&number| takes(number));
        let slots: u64 = slots.map(|number| member(number).slots).sum();
        (used, slots.saturating_sub(self.places.used(takes)))
    }

    pub(super) fn command_done(&mut self, id: CommandId, reply: CommandReply) -> Check {
        let Some(asked) = self.commands.remove(&id) else {
            return Err(Violation::new("I", format!("{id:?} is answered, but nobody asked it")));
        };
        self.answered_at = self.totals.steps;
        self.say(|_| format!("{id:?} {:?} answered {reply:?}", asked.command));
        self.note(id.0 << 8);
        let right = match (&asked.command, &reply) {
            (_, CommandReply::Refused(refusal)) => return self.refused(&asked, *refusal),
            // No world closes numbers up: what it knows of tiers goes by their numbers.
            (Command::Pause | Command::Resume | Command::Tune(_) | Command::CloseUp, _) => true,
            (Command::Pin { first, count, tier }, _) => {
                self.pinned(*first..*first + *count, *tier);
                true
            }
            (Command::Cancel(members), _) => {
                self.cancelled(id, members);
                true
            }
            (Command::Evacuate(members), _) => {
                self.life.is_empty = Some(members.clone());
                return self.evacuated(members);
            }
            (Command::Add(new), CommandReply::Added(member)) if new.member == *member => {
                return self.members_changed(&asked.command);
            }
            (Command::Remove(_) | Command::GiveUp(_), CommandReply::Changed) => {
                return self.members_changed(&asked.command);
            }
            (Command::Resize(bytes), _) => {
                let fits = self.fits_map(*bytes);
                self.coverage.add("volumes grown", u64::from(*bytes > self.bytes));
                self.bytes = self.bytes.max(*bytes);
                fits
            }
            (Command::Add(_) | Command::Remove(_) | Command::GiveUp(_), _) => false,
            (Command::Stop, _) => {
                self.life.stopped = true;
                // Where a flush failed nobody may have been told yet.
                if self.life.flush_failed.is_empty() {
                    self.checker.flushed(0, asked.invoke);
                }
                self.ops.is_empty()
            }
        };
        if right {
            return Ok(());
        }
        Err(Violation::new("M", format!("{asked:?} is answered with {reply:?}")))
    }

    fn fits_map(&self, bytes: u64) -> bool {
        bytes.div_ceil(EXTENT_SIZE) <= u64::from(self.plan.layout().extents_max)
    }

    /// An evacuation was cancelled, for some of its members or all.
    fn cancelled(&mut self, id: CommandId, members: &[MemberId]) {
        self.coverage.mark("evacuations cancelled");
        for &member in members {
            let is_of =
                |it: &Asked| matches!(&it.command, Command::Evacuate(own) if own.contains(&member));
            // Who was asked to leave since does.
            if !self.commands.range(id..).any(|(_, it)| is_of(it)) {
                self.life.leaving.remove(&usize::from(member.0));
            }
            for asked in self.commands.range_mut(..id).map(|it| it.1).filter(|it| is_of(it)) {
                if let Command::Evacuate(own) = &mut asked.command {
                    own.retain(|&it| it != member);
                    self.coverage.mark("evacuations cancelled in part");
                }
            }
        }
        self.life.stayed_at = Some(self.now);
        self.forget_pins_to(members);
    }

    /// Whether somebody has asked that a member takes extents again, and has not been answered.
    fn is_cancelled(&self, member: MemberId) -> bool {
        let cancels = |it: &Asked| match &it.command {
            Command::Cancel(members) => members.contains(&member),
            _ => false,
        };
        self.commands.values().any(cancels)
    }

    /// What was to leave these members is on its way.
    fn forget_pins_to(&mut self, members: &[MemberId]) {
        let tiers = members.iter().filter_map(|it| self.plan.members.get(usize::from(it.0)));
        let tiers: BTreeSet<u8> = tiers.map(|it| it.tier).collect();
        self.life.pins.retain(|_, pin| !tiers.contains(pin));
    }

    /// Rule M: members that are called empty are.
    pub(super) fn evacuated(&mut self, members: &[MemberId]) -> Check {
        let is_part = members.iter().any(|it| {
            let tier = self.plan.members[usize::from(it.0)].tier;
            self.members_of(tier).iter().any(|other| !members.contains(other))
        });
        self.coverage.mark("tiers evacuated");
        self.coverage.add("single members evacuated", u64::from(is_part));
        let lives = |extent: &u64| {
            let place = self.place_of(*extent);
            place.is_some_and(|(member, _)| is_among(member, members))
        };
        if let Some(extent) = (0..self.space.extents_max()).find(lives) {
            let text = format!("{members:?} are called empty, but extent {extent} lives there");
            return Err(Violation::new("M", text));
        }
        Ok(())
    }

    /// A refusal needs a reason.
    fn refused(&mut self, asked: &Asked, refusal: Refusal) -> Check {
        self.coverage.mark("commands refused");
        let troubled = !self.life.errors.is_empty() || self.any_away();
        let asks = |command: &Command| match command {
            Command::Evacuate(_) | Command::Cancel(_) | Command::Pin { .. } => 1,
            command if is_of_members(command) => 1,
            Command::Resize(_) => 2,
            _ => 3,
        };
        let kind = asks(&asked.command);
        let others = self.commands.values().any(|other| asks(&other.command) == kind);
        let justified = match (&asked.command, refusal) {
            (command, refusal) if is_of_members(command) && refusal != Refusal::Busy => {
                self.members_refused(asked, refusal)
            }
            (_, Refusal::Failed) => troubled,
            (_, Refusal::Busy) => others || !self.life.leaving.is_empty(),
            (Command::Evacuate(members) | Command::Cancel(members), Refusal::NoMember) => {
                self.may_be_gone(members)
            }
            (Command::Evacuate(_), Refusal::NoRoom(_)) => {
                asked.free < asked.used + asked.left + SLACK
            }
            (Command::Pin { tier: Some(tier), .. }, Refusal::NoTier) => {
                self.tier_may_be_gone(*tier)
            }
            (Command::Evacuate(members), Refusal::Cancelled) => {
                members.iter().all(|it| self.is_cancelled(*it) || self.is_being_taken(*it))
            }
            (Command::Cancel(_), Refusal::NotLeaving) => true,
            (Command::Resize(bytes), Refusal::Size) => {
                let asked = self.bytes_asked.iter().filter(|it| *it != bytes).max();
                let least = asked.map_or(self.bytes, |&it| it.max(self.bytes));
                *bytes < least || !self.fits_map(*bytes)
            }
            _ => false,
        };
        match (&asked.command, refusal) {
            (Command::Evacuate(_), Refusal::Busy | Refusal::NoRoom(_) | Refusal::NoMember)
            | (Command::Remove(_), Refusal::Busy) => {
                self.life.leaving.retain(|it| !asked.leave.contains(it));
            }
            (Command::Add(new), Refusal::Busy) => {
                self.life.is_here[usize::from(new.member.0)] = false;
            }
            (Command::Evacuate(members), Refusal::Cancelled) => {
                self.life.leaving.retain(|&it| !is_among(it, members));
                self.forget_pins_to(members);
            }
            (Command::Cancel(members), Refusal::NotLeaving) => {
                self.life.leaving.retain(|&it| !is_among(it, members));
            }
            _ => {}
        }
        if justified {
            return Ok(());
        }
        Err(Violation::new("M", format!("{asked:?} is refused with {refusal:?}")))
    }

    /// Whether a stop was answered with no.
    pub(super) fn stop_was_refused(&self) -> bool {
        let asked = self.commands.values().any(|asked| asked.command == Command::Stop);
        !asked && !self.life.stopped
    }
}

/// Whether a member is one of these.
pub fn is_among(member: usize, members: &[MemberId]) -> bool {
    members.iter().any(|it| usize::from(it.0) == member)
}
