//! The end of the last life: faults stop, everything must come to rest, and everything is looked
//! at.

use super::admin::{Asked, is_among};
use super::client::Kind;
use super::places::Slot;
use super::space::EXTENT_SECTORS;
use super::{Check, Due, Flow, Tiered};
use crate::model::Violation;
use forebay_format::SECTORS_PER_BLOCK;
use forebay_tier::{Command, MemberId};
use std::collections::BTreeSet;

/// Most sectors of one read of the final check.
const READ_SECTORS_MAX: u64 = 512;
/// Within this time places that were left become free, nanoseconds.
const FREED_NS: u64 = 2_000_000_000;

impl Tiered {
    /// No faults and no new requests any more: all requests that are under way end (rule H).
    pub(super) fn rest(&mut self) -> Check {
        self.life.quiet = true;
        self.life.crash_in = None;
        self.calm = true;
        for disk in &mut self.disks {
            disk.faults.clear();
            disk.dead_from = u64::MAX;
        }
        let result = self.run_until(|world| world.requests.is_empty() && world.held.is_empty());
        self.calm = false;
        result
    }

    pub(super) fn run_until(&mut self, is_over: impl Fn(&Tiered) -> bool) -> Check {
        let limit = self.time_limit();
        while !is_over(self) {
            match self.step()? {
                Flow::Go => {}
                Flow::Crash => unreachable!("no crash is planned"),
                Flow::Idle => return Err(self.stuck()),
            }
            if self.now > limit {
                let text = format!("no end in sight; {}", self.waiting());
                return Err(Violation::new("H", text));
            }
        }
        Ok(())
    }

    /// Reads the whole volume, as far as clients use it.
    pub(super) fn read_all(&mut self) -> Check {
        let size = self.sectors();
        let mut at = 0;
        while at < size {
            // Single blocks where some are lost: their neighbours may be good.
            let end = (at + READ_SECTORS_MAX).min(size);
            let lost = self.checker.any_lost(0, at..end, self.stamp);
            let per_block = SECTORS_PER_BLOCK as u64;
            let count = if lost { per_block } else { self.rng.range(1, READ_SECTORS_MAX) };
            let end = (at + count).min(size).min(self.space.end_of_part(at));
            let flow = self.submit(None, Kind::Read, at..end)?;
            assert_eq!(flow, Flow::Go, "no crash is planned");
            if self.requests.len() >= 8 {
                self.rest()?;
            }
            at = end;
        }
        self.rest()
    }

    /// Checks the last life to the end.
    pub(super) fn finish(&mut self) -> Check {
        self.rest()?;
        if self.rng.coin() {
            self.read_all()?;
        }
        self.empty_a_tier()?;
        self.read_all()?;
        self.tiers().check();
        self.stop_and_look()
    }

    /// A tier, or a part of it, whose extents have room elsewhere becomes empty.
    fn empty_a_tier(&mut self) -> Check {
        self.demand(Command::Resume)?;
        // While members change nothing can be cancelled.
        let lasts = |asked: &Asked| matches!(asked.command, Command::Evacuate(_));
        self.run_until(|world| world.commands.values().all(lasts))?;
        let leaving = self.life.leaving.iter().map(|&it| self.plan.members[it].tier);
        for tier in leaving.collect::<BTreeSet<u8>>() {
            let members = self.members_of(tier);
            self.demand(Command::Cancel(members))?;
        }
        self.run_until(|world| world.commands.is_empty())?;
        self.look_at_places()?;
        // What was given back becomes free in a moment.
        self.schedule(FREED_NS, Due::Tick);
        let then = self.now + FREED_NS;
        self.run_until(|world| world.now >= then)?;
        self.pin_one()?;
        let tier = self.rng.below(self.plan.tiers().into()) as u8;
        let members = self.some_of(tier);
        let (used, free) = self.room_without(&members);
        let away = self.any_away() || self.is_map_lost();
        // Blocks that are lost are no reason not to move the rest, but one may say so.
        let lost =
            self.checker.any_lost(0, 0..self.space.extents_max() * EXTENT_SECTORS, self.stamp);
        if used == 0 || free < used + self.plan.tuning.moves_max as u64 || away || lost {
            return Ok(());
        }
        self.demand(Command::Evacuate(members.clone()))?;
        self.run_until(|world| world.commands.is_empty())?;
        let left = self.places.used(|member| is_among(member, &members));
        if left > 0 {
            let text = format!("{members:?} have room elsewhere, but {left} extents did not leave");
            return Err(Violation::new("H", text));
        }
        self.coverage.mark("tiers evacuated at the end");
        self.remove_some(members)
    }

    /// Members that are empty can be removed if there are others.
    fn remove_some(&mut self, members: Vec<MemberId>) -> Check {
        let own: BTreeSet<usize> = members.iter().map(|it| usize::from(it.0)).collect();
        if self.plan.admin.remove == 0 || self.life.leaving != own {
            return Ok(());
        }
        let able = |it: &usize| {
            let plan = &self.plan.members[*it];
            let stays = plan.is_in && !is_among(*it, &members);
            stays && (plan.is_ram || !self.plan.is_ephemeral())
        };
        let is_last = !(0..self.plan.members.len()).any(|it| able(&it));
        let troubled = !self.life.errors.is_empty();
        self.demand(Command::Remove(members.clone()))?;
        self.run_until(|world| world.commands.is_empty())?;
        let is_left = members.iter().any(|it| self.plan.members[usize::from(it.0)].is_in);
        if is_left && !is_last && !troubled {
            let text = format!("{members:?} are empty and cannot be removed");
            return Err(Violation::new("H", text));
        }
        self.coverage.add("tiers removed at the end", u64::from(!is_left));
        Ok(())
    }

    pub(super) fn demand(&mut self, command: Command) -> Check {
        let flow = self.ask(command)?;
        assert_eq!(flow, Flow::Go, "no crash is planned");
        Ok(())
    }

    /// An orderly stop, and a last start from what it left.
    fn stop_and_look(&mut self) -> Check {
        self.calm = true;
        self.demand(Command::Stop)?;
        self.run_until(|world| world.commands.is_empty() && world.ops.is_empty())?;
        if self.life.stopped {
            self.check_stopped()?;
        }
        let kill = self.rng.coin();
        let before: Vec<Option<Slot>> =
            (0..self.space.extents_max()).map(|it| self.place_of(it)).collect();
        self.crash(kill);
        self.calm = true;
        let flow = self.start_life(self.life.number + 1, None)?;
        self.check_open_failure()?;
        assert_eq!(flow, Flow::Go, "no crash is planned");
        self.life.requests_left = 0;
        let gone = !kill && self.plan.is_ephemeral();
        let after: Vec<Option<Slot>> =
            (0..self.space.extents_max()).map(|it| self.place_of(it)).collect();
        // A place where nothing is written is only lent.
        let differs =
            |(before, after): (&Option<Slot>, &Option<Slot>)| after.is_some() && before != after;
        if before.iter().zip(&after).any(differs) && !gone {
            let text = format!("a stop and a start changed places: {before:?} {after:?}");
            return Err(Violation::new("M", text));
        }
        self.life.quiet = true;
        self.read_all()?;
        self.tiers().check();
        Ok(())
    }
}
