//! Members that join, leave and are given up: what the administrator asks, and what becomes of the
//! disks.

use super::admin::{Asked, is_among};
use super::plan::MemberPlan;
use super::space::EXTENT_SECTORS;
use super::{Check, Step, Tiered, set};
use crate::disk::IoKind;
use crate::model::Violation;
use forebay_format::SECTORS_PER_BLOCK;
use forebay_format::tier::{Superblock, TIERS_MAX};
use forebay_tier::{
    Addition, At, Command, MemberId, MemberSettings, MemberState, MemberView, Refusal,
};
use std::collections::BTreeSet;

/// Most members of a world.
const MEMBERS_MOST: usize = 10;
/// Whose errors are those of a member that another has the number of.
const NOBODY: usize = usize::MAX;
/// Numbers of tiers that a new member may ask for.
const TIERS_MOST: u8 = 6;

/// What is not known for certain of members, from one life to the next.
#[derive(Debug, Default)]
pub struct Doubt {
    /// Members that may have joined or left by a command without an answer.
    members: BTreeSet<usize>,
    /// One that was about to join.
    newcomer: Option<usize>,
    /// One of which the next start is not told.
    hidden: Option<usize>,
    /// Members that were added so far.
    added: u16,
}

impl Doubt {
    pub fn hides(&self, member: usize) -> bool {
        self.hidden == Some(member)
    }
}

/// Whether a command is about who belongs to the set.
pub fn is_of_members(command: &Command) -> bool {
    matches!(command, Command::Add(_) | Command::Remove(_) | Command::GiveUp(_))
}

impl Tiered {
    /// Whether a member belongs to a tier.
    pub(super) fn is_of(&self, member: usize, tier: u8) -> bool {
        let plan = &self.plan.members[member];
        plan.is_in && plan.tier == tier
    }

    /// Whether a member of the set is not there.
    pub(super) fn any_away(&self) -> bool {
        let members = self.plan.members.iter().enumerate();
        members.filter(|(_, plan)| plan.is_in).any(|(number, _)| !self.life.is_here[number])
    }

    fn is_changing(&self) -> bool {
        self.commands.values().any(|asked| is_of_members(&asked.command))
    }

    /// A member to be added, with its disk.
    pub(super) fn choose_addition(&mut self) -> Option<Command> {
        let member = self.tiers().next_member()?;
        let number = usize::from(member.0);
        if self.is_changing() || number >= MEMBERS_MOST {
            return None;
        }
        self.doubt.added += 1;
        let added = self.doubt.added;
        let tier = self.rng.below(u64::from(TIERS_MOST)) as u8;
        let at = if self.rng.one_in(4) { At::Before(tier) } else { At::Join(tier) };
        let like = self.rng.pick(&(0..self.plan.members.len()).collect::<Vec<_>>());
        let like = self.plan.members[like].clone();
        let is_ram = like.is_ram && self.plan.is_ephemeral();
        let slots = self.rng.log_range(2, 12);
        let [low, high] = added.to_le_bytes();
        let uuid = std::array::from_fn(|at| [low, high].get(at).copied().unwrap_or(0xad));
        let plan = MemberPlan { tier, slots, is_ram, is_in: false, uuid, ..like };
        let settings = MemberSettings {
            is_here: true,
            volatile_cache: plan.has_cache,
            discards: plan.discards,
            piece_blocks: plan.piece_blocks,
            stripe_blocks: plan.stripe_blocks,
        };
        self.coverage.add("numbers used again", u64::from(number < self.plan.members.len()));
        self.plan.members.resize(self.plan.members.len().max(number + 1), plan.clone());
        self.plan.members[number] = plan;
        let disk = set::disk(&self.plan, number);
        match self.disks.get_mut(number) {
            Some(own) => *own = disk,
            None => self.disks.push(disk),
        }
        self.life.is_here.resize(self.disks.len(), false);
        self.life.is_here[number] = true;
        self.places.forget(number);
        for set in self.trouble.all() {
            set.remove(&number);
        }
        let own = self.life.errors.iter_mut().filter(|error| error.member == number);
        own.for_each(|error| error.member = NOBODY);
        let bytes = self.plan.bytes_of(number);
        Some(Command::Add(Addition { member, uuid, bytes, at, is_volatile: is_ram, settings }))
    }

    /// The members of a tier.
    pub(super) fn members_of(&self, tier: u8) -> Vec<MemberId> {
        let own = (0..self.plan.members.len()).filter(|&it| self.is_of(it, tier));
        own.map(|it| MemberId(it as u8)).collect()
    }

    /// All members of a tier, or one of several, or some.
    pub(super) fn some_of(&mut self, tier: u8) -> Vec<MemberId> {
        let all = self.members_of(tier);
        if all.len() < 2 || self.choice.one_in(3) {
            return all;
        }
        if self.choice.one_in(4) {
            let mut some = all.clone();
            some.retain(|_| self.choice.coin());
            return if some.is_empty() { all } else { some };
        }
        vec![self.choice.pick(&all)]
    }

    /// Members to be removed: mostly such as are empty, or will be.
    pub(super) fn choose_removal(&mut self) -> Vec<MemberId> {
        let tier = |it: &usize| self.plan.members[*it].tier;
        let leaving: BTreeSet<u8> = self.life.leaving.iter().map(tier).collect();
        let leaving: Vec<u8> = leaving.into_iter().collect();
        if leaving.is_empty() || self.rng.one_in(4) {
            let tier = self.rng.below(u64::from(self.plan.tiers()) + 1) as u8;
            return self.some_of(tier);
        }
        let tier = self.rng.pick(&leaving);
        let all = self.members_of(tier);
        let mut leaving = all.clone();
        leaving.retain(|it| self.life.leaving.contains(&usize::from(it.0)));
        if leaving.len() == all.len() {
            return all;
        }
        // Now and then with those that stay, or one that does.
        if self.choice.one_in(6) { self.some_of(tier) } else { leaving }
    }

    pub(super) fn ask_to_remove(&mut self, members: Vec<MemberId>) -> Step {
        if is_among(self.trouble.spared, &members) {
            // Somebody else will be spared, and nobody knows yet who.
            self.end_faults();
        }
        self.ask(Command::Remove(members))
    }

    /// A member to be given up: one that is away, if there is one.
    pub(super) fn choose_given_up(&mut self) -> Command {
        let away = |&it: &usize| self.plan.members[it].is_in && !self.life.is_here[it];
        let away = (0..self.plan.members.len()).find(away);
        let any = self.rng.below(self.plan.members.len() as u64 + 1) as usize;
        let member = away.unwrap_or(any);
        if away.is_some() || self.is_failing(member) {
            self.lose_extents_of(|it| it == member);
        }
        Command::GiveUp(MemberId(member as u8))
    }

    /// Whether a member that is there has failed to read or write.
    fn is_failing(&self, member: usize) -> bool {
        let errors = self.life.errors.iter().filter(|it| it.member == member);
        errors.clone().any(|it| it.kind == IoKind::Read || !it.no_room)
    }

    pub(super) fn end_faults(&mut self) {
        for disk in &mut self.disks {
            disk.faults.clear();
            disk.dead_from = u64::MAX;
        }
    }

    /// What lives on these members is lost.
    fn lose_extents_of(&mut self, is_lost: impl Fn(usize) -> bool) {
        let stamp = self.next_stamp();
        for extent in 0..self.space.extents_max() {
            if self.place_of(extent).is_some_and(|place| is_lost(place.0)) {
                self.coverage.mark("extents lost with their member");
                let per_block = SECTORS_PER_BLOCK as u64;
                let sectors = extent * EXTENT_SECTORS..(extent + 1) * EXTENT_SECTORS;
                for sector in sectors.step_by(per_block as usize) {
                    self.checker.lose_block(0, sector, stamp);
                }
            }
        }
    }

    /// A command about members was carried out.
    pub(super) fn members_changed(&mut self, command: &Command) -> Check {
        match command {
            Command::Add(addition) => {
                self.coverage.mark("members added");
                let number = usize::from(addition.member.0);
                if let At::Before(from) = addition.at {
                    self.tiers_have_grown(from);
                }
                self.plan.members[number].is_in = true;
            }
            Command::Remove(members) => {
                self.evacuated(members)?;
                members.iter().for_each(|&it| self.has_left(it));
                let tier = self.plan.members[usize::from(members[0].0)].tier;
                let is_whole = !self.plan.has_tier(tier);
                let mark = if is_whole { "tiers removed" } else { "single members removed" };
                self.coverage.mark(mark);
            }
            Command::GiveUp(MemberId(number)) => {
                self.coverage.mark("members given up");
                let number = usize::from(*number);
                self.coverage.add("failing members given up", u64::from(self.life.is_here[number]));
                self.lose_extents_of(|it| it == number);
                self.has_left(MemberId(number as u8));
            }
            _ => {}
        }
        self.look_at_holders();
        Ok(())
    }

    /// A member is none any more: nobody waits for it, and its number may be another's.
    fn has_left(&mut self, member: MemberId) {
        let number = usize::from(member.0);
        self.plan.members[number].is_in = false;
        self.life.is_here[number] = false;
        self.life.leaving.remove(&number);
        for asked in self.commands.values_mut() {
            if let Command::Evacuate(members) = &mut asked.command {
                members.retain(|&it| it != member);
            }
        }
    }

    fn tiers_have_grown(&mut self, from: u8) {
        let grow = |tier: &mut u8| *tier += u8::from(*tier >= from);
        let members = self.plan.members.iter_mut().filter(|member| member.is_in);
        members.for_each(|member| grow(&mut member.tier));
        self.life.pins.values_mut().for_each(grow);
    }

    /// Others may hold the map now.
    pub(super) fn look_at_holders(&mut self) {
        let view = self.tiers().view();
        let holders = view.members.iter().filter(|it| it.is_holder);
        let holders: Vec<usize> = holders.map(|it| usize::from(it.member.0)).collect();
        let before = std::mem::take(&mut self.life.holders);
        let stays = |it: &usize| self.plan.members[*it].is_in && !holders.contains(it);
        let failed: Vec<usize> = before.iter().copied().filter(stays).collect();
        let is_new = holders.iter().any(|it| !before.contains(it));
        self.coverage.add("maps held by others", u64::from(is_new));
        self.life.holders = holders.iter().copied().chain(failed).collect();
        if !self.plan.members[self.trouble.spared].is_in {
            let sound = |it: &usize| !self.has_failed(*it) && !self.trouble.suspects.contains(it);
            let heir = holders.iter().copied().find(sound).or(holders.first().copied());
            self.trouble.spared = heir.unwrap_or(self.trouble.spared);
        }
    }

    /// Why a command about members may be refused.
    pub(super) fn members_refused(&mut self, asked: &Asked, refusal: Refusal) -> bool {
        let troubled = !self.life.errors.is_empty() || self.any_away();
        let (doubtful, right): (Vec<usize>, bool) = match (&asked.command, refusal) {
            (Command::Add(new), _) => {
                let number = usize::from(new.member.0);
                self.life.is_here[number] = false;
                let (At::Join(tier) | At::Before(tier)) = new.at;
                let right = match refusal {
                    Refusal::Failed => troubled,
                    Refusal::Leaving => self.tier_may_leave(tier),
                    Refusal::TooMany => self.plan.tiers() >= TIERS_MAX,
                    _ => false,
                };
                (vec![number], right)
            }
            (Command::Remove(leave), _) => {
                let mut members = 0..self.plan.members.len();
                let others = |it: &usize| {
                    self.life.is_here[*it] && self.plan.members[*it].is_in && !is_among(*it, leave)
                };
                let ram = self.plan.is_ephemeral();
                let able = |it: &usize| others(it) && (!ram || self.plan.members[*it].is_ram);
                let right = match refusal {
                    Refusal::NoMember => self.may_be_gone(leave),
                    Refusal::NotEmpty(left) => asked.is_used() || self.is_in_use(leave, left),
                    Refusal::LastPersistent => troubled || !members.any(|it| able(&it)),
                    Refusal::Failed => troubled,
                    _ => false,
                };
                if refusal != Refusal::Failed {
                    self.life.leaving.retain(|it| !asked.leave().contains(it));
                }
                (leave.iter().map(|it| usize::from(it.0)).collect(), right)
            }
            (Command::GiveUp(MemberId(number)), _) => {
                let number = usize::from(*number);
                let is_here = self.life.is_here.get(number).copied().unwrap_or(false);
                let is_in = self.plan.members.get(number).is_some_and(|it| it.is_in);
                let is_this = |it: &Asked| it.command == asked.command;
                let is_in = is_in && !self.commands.values().any(is_this);
                let hangs = self.life.hangs.as_ref().is_some_and(|it| it.0 == number);
                let right = match refusal {
                    Refusal::IsHere => is_here,
                    Refusal::LastPersistent => is_here && (hangs || self.is_failing(number)),
                    Refusal::NoMember => !is_in,
                    Refusal::Failed => troubled,
                    _ => false,
                };
                (vec![number], right)
            }
            _ => return false,
        };
        if refusal == Refusal::Failed {
            self.doubt.members.extend(doubtful);
        }
        right
    }

    /// Whether a member may be on its way out. What commands that are answered late do to it is not
    /// all in our books: what the machine knows counts, too.
    pub(super) fn may_leave(&self, member: usize) -> bool {
        let is_this = |it: &MemberView| usize::from(it.member.0) == member;
        let is_leaving = |it: &MemberView| is_this(it) && it.state == MemberState::Leaving;
        let machine = self.tiers.as_ref();
        self.life.leaving.contains(&member)
            || machine.is_some_and(|it| it.view().members.iter().any(is_leaving))
    }

    /// Whether all of a tier may be on its way out, or be gone.
    fn tier_may_leave(&self, tier: u8) -> bool {
        let leaves = |it: MemberId| self.may_leave(usize::from(it.0)) || self.is_being_taken(it);
        self.members_of(tier).into_iter().all(leaves)
    }

    /// Whether whoever takes a member away has not been answered yet.
    pub(super) fn is_being_taken(&self, member: MemberId) -> bool {
        let takes = |asked: &Asked| match &asked.command {
            Command::Remove(members) => members.contains(&member),
            Command::GiveUp(other) => *other == member,
            _ => false,
        };
        self.commands.values().any(takes)
    }

    /// Whether one of these members is not there, or none is meant, or whoever takes one away has
    /// not been answered yet.
    pub(super) fn may_be_gone(&self, members: &[MemberId]) -> bool {
        let is_out = |it: &MemberId| !self.plan.members[usize::from(it.0)].is_in;
        members.is_empty() || members.iter().any(|it| is_out(it) || self.is_being_taken(*it))
    }

    /// Whether a tier is not there, or whoever takes it away has not been answered yet.
    pub(super) fn tier_may_be_gone(&self, tier: u8) -> bool {
        self.members_of(tier).into_iter().all(|it| self.is_being_taken(it))
    }

    /// Whether the machine counts so many places of members: those that moves took, too.
    fn is_in_use(&mut self, members: &[MemberId], places: u32) -> bool {
        let own = |it: &&MemberView| members.contains(&it.member) && it.state != MemberState::None;
        let view = self.tiers().view();
        view.members.iter().filter(own).map(|it| it.used).sum::<u32>() == places
    }

    /// A life ends: what was asked and not answered may have been done.
    pub(super) fn doubt_members(&mut self) {
        let commands: Vec<Command> =
            self.commands.values().map(|asked| asked.command.clone()).collect();
        for command in commands {
            match command {
                Command::Add(new) => {
                    self.coverage.mark("crashes while a member joins");
                    self.doubt.members.insert(usize::from(new.member.0));
                    self.doubt.newcomer = Some(usize::from(new.member.0));
                }
                Command::Remove(members) => {
                    self.coverage.mark("crashes while a tier leaves");
                    self.doubt.members.extend(members.iter().map(|it| usize::from(it.0)));
                }
                Command::GiveUp(member) => {
                    self.doubt.members.insert(usize::from(member.0));
                }
                _ => {}
            }
        }
    }

    /// Whoever starts the set again knows of a new member, or not, if the others do not.
    pub(super) fn choose_hidden(&mut self) {
        self.doubt.hidden = None;
        let Some(member) = self.doubt.newcomer.take() else { return };
        if self.calm || self.rng.coin() {
            return;
        }
        let uuid = self.plan.members[member].uuid;
        let others = self.find_set(Some(member));
        let entry = others.as_ref().and_then(|it| it.0.superblock.members().get(member));
        if !entry.is_some_and(|entry| entry.is_used() && entry.uuid == uuid) {
            self.coverage.mark("members that were about to join are not found again");
            self.doubt.hidden = Some(member);
        }
    }

    /// Rule M: a member has joined or left if that was answered, and else may have.
    pub(super) fn look_at_members(&mut self, superblock: &Superblock) -> Check {
        for (number, plan) in self.plan.members.iter_mut().enumerate() {
            let entry = superblock.members().get(number).filter(|it| it.is_used());
            let entry = entry.filter(|it| it.uuid == plan.uuid);
            if entry.is_some() != plan.is_in && !self.doubt.members.contains(&number) {
                let text = format!("member {number} is in the set: {}", entry.is_some());
                return Err(Violation::new("M", text));
            }
            plan.is_in = entry.is_some();
            plan.tier = entry.map_or(plan.tier, |entry| entry.tier);
        }
        Ok(())
    }

    /// The set is open: who is in it is known, and what lived on others is lost.
    pub(super) fn members_are_known(&mut self) {
        self.doubt.members.clear();
        let gone: Vec<bool> = self.plan.members.iter().map(|it| !it.is_in).collect();
        self.lose_extents_of(|member| gone[member]);
    }
}
