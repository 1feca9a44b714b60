//! Who joins and who leaves, one at a time.
//!
//! A member that joins gets its superblock first: a crash before the others have theirs leaves it
//! in the set if it is found with them, and out of it if it is not, and either is sound. It is used
//! when all have theirs (T8). Members that leave are empty. If they hold the map others come to
//! hold it: these get all records from now on and all pages, then nothing is said by those alone
//! that leave, and only then do superblocks name the others (T9).

use crate::Mutant;
use crate::event::{Addition, At, CommandId, CommandReply, MemberId, Notice, Refusal};
use crate::io::{Purpose, UnderWay};
use crate::set::After;
use crate::tiers::Tiers;
use forebay_format::BLOCK_SIZE;
use forebay_format::io::Buf;
use forebay_format::tier::{EXTENT_SIZE, MemberEntry, SUPERBLOCK_OFFSETS, TIERS_MAX, member_state};
use std::collections::BTreeSet;

/// Members that hold the map, at most.
const HOLDERS_MAX: usize = 2;

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The superblocks do not name who joins yet.
    Joining,
    /// Others get the map.
    Holders,
    /// Records up to this one have to be with those that stay.
    Handing(u64),
    /// This one was given up: what it alone had of the map has to be with the others, before the
    /// superblocks name it neither as a holder nor as a member.
    GivenUp(MemberId),
    /// The superblocks do not say yet who holds the map and who has left.
    Naming,
    /// What says that members belong to the set is overwritten.
    Wiping,
    /// And they are to keep that.
    Flushing,
}

/// A member that joins, or members that leave; or others come to hold the map.
#[derive(Debug)]
pub(crate) struct Change {
    /// Who asked for it.
    id: CommandId,
    joins: Option<MemberId>,
    leave: Vec<MemberId>,
    step: Step,
}

/// Nobody asked for it.
const OWN: CommandId = CommandId(u64::MAX);

impl Change {
    /// Others come to hold the map, of our own accord.
    pub fn of_holders() -> Change {
        Change { id: OWN, joins: None, leave: Vec::new(), step: Step::Holders }
    }

    /// Whether nobody asked for it: it gives way to those that somebody asks for.
    pub fn is_own(&self) -> bool {
        self.id == OWN
    }
}

impl Tiers {
    /// The number of the next new member; `None` if there can be no more, or while others join or
    /// leave.
    pub fn next_member(&self) -> Option<MemberId> {
        if self.change.as_ref().is_some_and(|it| !it.is_own()) {
            return None;
        }
        let is_early = self.is(Mutant::NumberReusedEarly);
        self.set.next_number(|number| {
            // No place there is in use, or was when something was confirmed last.
            let is_out_of_use = self.space.free(number) == self.set.member(number).slots;
            let is_left = is_early && self.map.living_on(number) == 0;
            (is_out_of_use || is_left) && !self.io.is_busy(number)
        })
    }

    pub(crate) fn add(&mut self, id: CommandId, new: &Addition) {
        if let Some(refusal) = self.why_not_add(new) {
            return self.reply(id, CommandReply::Refused(refusal));
        }
        let slots = self.set.layout().slots(new.bytes);
        let (tier, grown) = match new.at {
            At::Join(tier) => (tier, None),
            At::Before(tier) => (tier, Some(tier)),
        };
        let entry = MemberEntry {
            uuid: new.uuid,
            slots: slots.into(),
            tier,
            state: member_state::IN,
            flags: u8::from(new.is_volatile) * MemberEntry::VOLATILE,
            reserved: 0,
            epoch: self.set.superblock().block.epoch,
            generation: 0.into(),
            reserved_tail: [0; 8],
        };
        self.set.join(new.member, new.settings, entry, grown);
        self.space.set_member(new.member, slots);
        self.traffic.forget(new.member);
        self.health.forget(new.member);
        self.journal.forgive(new.member);
        if self.is(Mutant::MemberUsedEarly) {
            self.set.take_in();
            self.set.joined(new.member);
        }
        let (joins, leave) = (Some(new.member), Vec::new());
        self.change = Some(Change { id, joins, leave, step: Step::Joining });
        self.set.ask(After::Change(id));
    }

    fn why_not_add(&self, new: &Addition) -> Option<Refusal> {
        let layout = self.set.layout();
        let used = || self.set.superblock().members().iter().filter(|it| it.is_used());
        let (At::Join(tier) | At::Before(tier)) = new.at;
        let grows = |it: &MemberEntry| matches!(new.at, At::Before(from) if it.tier >= from);
        let has_no_number = |it: &MemberEntry| grows(it) && it.tier + 1 >= TIERS_MAX;
        let own = self.set.of_tier(tier);
        let is_left = !own.is_empty() && own.iter().all(|&it| self.set.is_leaving(it));
        let number = self.next_member();
        match () {
            () if used().any(|it| it.uuid == new.uuid) => Some(Refusal::IsMember),
            () if tier >= TIERS_MAX || used().any(has_no_number) => Some(Refusal::TooMany),
            () if number != Some(new.member) => {
                Some(number.map_or(Refusal::TooMany, Refusal::OtherNumber))
            }
            () if layout.slots(new.bytes) == 0 => {
                Some(Refusal::TooSmall(layout.slots_offset() + EXTENT_SIZE))
            }
            () if new.is_volatile && !self.set.superblock().is_ephemeral() => {
                Some(Refusal::Volatile)
            }
            () if matches!(new.at, At::Join(_)) && is_left => Some(Refusal::Leaving),
            () => None,
        }
    }

    /// The numbers of tiers from this one on have grown by one.
    pub(crate) fn tiers_have_grown(&mut self, from: u8) {
        self.pins.grow(from);
        self.planner.forget(self.io.now());
    }

    /// Has the numbers of tiers follow each other, where some have gone.
    pub(crate) fn close_up(&mut self, id: CommandId) {
        let Some(numbers) = self.set.close_up() else {
            return self.reply(id, CommandReply::Unchanged);
        };
        let number = |tier: u8| numbers.get(usize::from(tier)).copied().flatten();
        self.pins.renumber(number);
        self.planner.forget(self.io.now());
        // Nobody leaves; but who names a tier meanwhile would not know which numbers count.
        self.change = Some(Change { id, joins: None, leave: Vec::new(), step: Step::Naming });
        self.set.ask(After::Change(id));
    }

    /// Why these members cannot be removed, be they empty or not.
    pub fn why_not_remove(&self, leave: &[MemberId]) -> Option<Refusal> {
        match () {
            () if !self.are_members(leave) => Some(Refusal::NoMember),
            () if self.next_holders(leave, false).is_empty() => Some(Refusal::LastPersistent),
            () => None,
        }
    }

    pub(crate) fn remove(&mut self, id: CommandId, mut leave: Vec<MemberId>) {
        leave.sort_unstable();
        leave.dedup();
        let refusal = match self.why_not_remove(&leave) {
            Some(Refusal::NoMember) => Some(Refusal::NoMember),
            refusal => match self.used_on(&leave) {
                0 => refusal,
                left => Some(Refusal::NotEmpty(left)),
            },
        };
        if let Some(refusal) = refusal {
            return self.reply(id, CommandReply::Refused(refusal));
        }
        for &member in &leave {
            self.set.set_state(member, member_state::LEAVING);
        }
        self.change = Some(Change { id, joins: None, leave, step: Step::Holders });
        self.io.stir();
    }

    pub(crate) fn give_up(&mut self, id: CommandId, member: MemberId) {
        let refusal = match self.are_members(&[member]) {
            false => Refusal::NoMember,
            true if self.is_well(member) => Refusal::IsHere,
            true if self.set.is_here(member) && !self.journal.is_held_without(member) => {
                Refusal::LastPersistent
            }
            true => {
                self.let_go(member);
                let step = Step::GivenUp(member);
                self.change = Some(Change { id, joins: None, leave: Vec::new(), step });
                return self.io.stir();
            }
        };
        self.reply(id, CommandReply::Refused(refusal));
    }

    /// Whether a member is there, answers and does not fail.
    fn is_well(&self, member: MemberId) -> bool {
        self.set.is_here(member) && !self.health.is_failing(member) && !self.io.hangs(member)
    }

    /// How many may hold the map.
    pub(crate) fn holders_max(&self) -> usize {
        if self.set.superblock().is_ephemeral() { 1 } else { HOLDERS_MAX }
    }

    /// Who should hold the map when these have left: who does now, and others as far as there are
    /// any, best on another tier; of our own accord only those that fail nothing.
    pub(crate) fn next_holders(&self, leave: &[MemberId], is_own: bool) -> Vec<MemberId> {
        let stays = |member: MemberId| !leave.contains(&member);
        let mut holders: Vec<MemberId> =
            self.journal.staying().filter(|&it| stays(it)).take(HOLDERS_MAX).collect();
        let is_here: BTreeSet<MemberId> = self.set.here().collect();
        let is_fit = |number: u8| {
            let member = MemberId(number);
            let is_sick = is_own && self.health.is_sick(member, self.io.now());
            let is_able = is_here.contains(&member) && !self.io.hangs(member) && !is_sick;
            stays(member) && is_able && !self.journal.is_unfit(member)
        };
        let members = self.set.superblock().members();
        let most = self.holders_max();
        let tier = |member: MemberId| self.set.member(member).tier;
        let first = holders.first().copied();
        let elsewhere = |it: u8| first.is_none_or(|first| tier(MemberId(it)) != tier(first));
        let able = [
            crate::assemble::holders(members, |it| is_fit(it) && elsewhere(it)),
            crate::assemble::holders(members, |it| is_fit(it) && Some(MemberId(it)) != first),
        ];
        let able = able.into_iter().flatten().filter(|&it| usize::from(it) < members.len());
        for member in able.map(MemberId) {
            if holders.len() < most && !holders.contains(&member) {
                holders.push(member);
            }
        }
        holders
    }

    /// Lets who joins or leaves go on.
    pub(crate) fn step_change(&mut self) {
        loop {
            let Some(change) = &self.change else { return };
            let is_written = !change.leave.iter().any(|&it| self.io.is_busy(it));
            let step = change.step;
            match step {
                Step::Holders if self.recruit() => {}
                Step::Handing(seq) if self.is_handed(seq) => self.name_holders(),
                Step::GivenUp(member) if self.journal.is_handed_over() => self.name_without(member),
                Step::Wiping if is_written => self.keep_wiped(),
                Step::Flushing if is_written => self.have_left(),
                Step::Handing(_) | Step::GivenUp(_) if !self.journal.is_held() => {
                    self.change_failed();
                }
                _ => return,
            }
        }
    }

    /// Whether those that stay have all that was said: up to this record by who leaves, and by
    /// who has failed.
    fn is_handed(&self, seq: u64) -> bool {
        self.journal.is_said(seq) && self.journal.is_handed_over()
    }

    fn set_change(&mut self, step: Step) {
        self.change.as_mut().expect("one is under way").step = step;
        self.io.stir();
    }

    /// Others come to hold the map. Whether they are through.
    fn recruit(&mut self) -> bool {
        let change = self.change.as_ref().expect("one is under way");
        let (leave, is_own) = (change.leave.clone(), change.is_own());
        let holders = self.next_holders(&leave, is_own);
        if holders.is_empty() || !self.journal.is_held() {
            self.change_failed();
            return true;
        }
        let staying: BTreeSet<MemberId> = self.journal.staying().collect();
        if holders.iter().all(|it| staying.contains(it)) {
            leave.iter().for_each(|&it| self.journal.set_leaving(it, true));
            self.journal.close();
            let seq = self.journal.next() - 1;
            self.set_change(Step::Handing(seq));
            return true;
        }
        if !self.checkpoint.is_idle() {
            return false;
        }
        for &member in holders.iter().filter(|it| !staying.contains(it)) {
            let index = self.journal.join(member);
            if self.is(Mutant::HolderLetGoEarly) {
                let tail = self.journal.next();
                self.journal.set_tail(index, tail);
            }
        }
        if self.is(Mutant::HolderLetGoEarly) {
            return true;
        }
        self.begin_checkpoint(BTreeSet::new());
        false
    }

    /// Those that stay have all that was said: the superblocks name them, and not who leaves.
    fn name_holders(&mut self) {
        let change = self.change.as_ref().expect("one is under way");
        let (id, leave) = (change.id, change.leave.clone());
        let holders: Vec<MemberId> = self.journal.staying().take(HOLDERS_MAX).collect();
        let before: BTreeSet<u8> = self.set.superblock().holders().collect();
        if leave.is_empty() && holders.iter().map(|it| it.0).collect::<BTreeSet<u8>>() == before {
            return self.end_change();
        }
        self.set.set_holders(&holders);
        leave.iter().for_each(|&it| self.name_no_more(it));
        self.set_change(Step::Naming);
        self.set.ask(After::Change(id));
    }

    /// The superblocks do not name any more who was given up.
    fn name_without(&mut self, member: MemberId) {
        let id = self.change.as_ref().expect("one is under way").id;
        self.drop_failed_holders();
        self.name_no_more(member);
        self.set_change(Step::Naming);
        self.set.ask(After::Change(id));
    }

    /// The next superblock does not name it. Its number may be another's soon, for whom no
    /// evacuation waits.
    fn name_no_more(&mut self, member: MemberId) {
        self.set.set_state(member, member_state::NONE);
        let is_awaited = self.is(Mutant::GivenUpIsAwaited);
        if let Some((_, own)) = &mut self.evacuation {
            own.retain(|&it| it != member || is_awaited);
        }
    }

    /// The superblocks say what they were to say for a change.
    pub(crate) fn change_is_known(&mut self, id: CommandId) {
        let Some(change) = self.change.as_ref().filter(|it| it.id == id) else { return };
        let is_in = change.joins.is_some_and(|it| self.set.is_used(it));
        match (change.step, change.joins) {
            // It takes part, whoever holds the map.
            (Step::Joining, Some(member)) if is_in => {
                self.set.joined(member);
                self.planner.hurry(self.io.now());
                self.set_change(Step::Holders);
            }
            _ if !self.journal.is_held() => self.change_failed(),
            (Step::Joining, _) => self.change_failed(),
            (Step::Naming, Some(_)) => self.end_change(),
            (Step::Naming, None) => self.wipe(),
            _ => {}
        }
    }

    fn wipe(&mut self) {
        let leave = self.change.as_ref().expect("one is under way").leave.clone();
        for member in leave {
            self.journal.let_go(member);
            if self.set.is_here(member) {
                for offset in SUPERBLOCK_OFFSETS {
                    let what = UnderWay::meta(member, Purpose::Wipe);
                    self.io.write(what, offset, Buf::zeroed(BLOCK_SIZE));
                }
            }
        }
        self.set_change(Step::Wiping);
    }

    fn keep_wiped(&mut self) {
        let leave = self.change.as_ref().expect("one is under way").leave.clone();
        for member in leave.into_iter().filter(|&it| self.set.is_here(it)) {
            self.io.flush(member, Purpose::Wipe);
        }
        self.set_change(Step::Flushing);
    }

    fn have_left(&mut self) {
        let leave = self.change.as_ref().expect("one is under way").leave.clone();
        leave.into_iter().for_each(|it| self.set.leave(it));
        self.end_change();
    }

    fn end_change(&mut self) {
        let Some(change) = self.change.take() else { return };
        self.io.stir();
        if change.is_own() {
            // Who was to may have failed to.
            let found = self.journal.staying().nth(1);
            return found.into_iter().for_each(|it| self.notice(Notice::HolderFound(it)));
        }
        let reply = change.joins.map_or(CommandReply::Changed, CommandReply::Added);
        self.reply(change.id, reply);
    }

    /// It cannot be: who was to leave stays, but takes no extents; who has joined has.
    fn change_failed(&mut self) {
        let Some(change) = self.change.take() else { return };
        self.io.stir();
        for member in change.leave {
            self.set.set_state(member, member_state::LEAVING);
            self.journal.set_leaving(member, false);
        }
        let joined = change.joins.filter(|&it| self.set.is_used(it));
        let reply = joined.map_or(CommandReply::Refused(Refusal::Failed), CommandReply::Added);
        if change.id != OWN {
            self.reply(change.id, reply);
        }
    }

    /// A holder has failed: if nobody is left of those that superblocks are about to name, who was
    /// to leave the map to them stays.
    pub(crate) fn stay_if_needed(&mut self) {
        let is_naming = |it: &Change| it.step == Step::Naming;
        let holders = self.set.superblock().block.holders;
        let is_left = holders.into_iter().any(|it| self.journal.is_holder(MemberId(it)));
        if !is_left && self.journal.is_held() && self.change.as_ref().is_some_and(is_naming) {
            self.change_failed();
        }
    }

    /// If nobody is named any more who holds the map, others that have it are.
    pub(crate) fn name_others(&mut self) {
        if self.set.superblock().holders().next().is_some() {
            return;
        }
        let holders: Vec<MemberId> = self.journal.staying().take(HOLDERS_MAX).collect();
        self.set.set_holders(&holders);
    }
}
