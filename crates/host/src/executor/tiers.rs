//! Tiered origins: what happened below is told to their tiers, and what these want is started,
//! until nothing follows at once any more.

use super::job::Work;
use super::{Executor, Goal, origin_io};
use crate::device::Device;
use crate::driver::Driver;
use crate::notice::{HostNotice, Notices};
use crate::origin::Origin;
use crate::origin::tiered::{Member, NewDevice, Tiered, member_of};
use forebay_engine::{Buf, IoError, OpId, Time, VolumeId};
use forebay_tier::{Command, CommandId, CommandReply, Effect, Event};
use std::sync::mpsc::SyncSender;

/// Rounds of one call; what is left is done in the next.
const ROUNDS_MAX: usize = 64;

impl Executor {
    /// The tiered origin of a volume.
    pub fn tiered(&self, volume: VolumeId) -> Option<&Tiered> {
        match self.origins.get(&volume) {
            Some(Origin::Tiered(tiered)) => Some(tiered),
            _ => None,
        }
    }

    /// Asks something of the tiered origin of a volume. If there is none, nobody answers.
    pub fn ask_tiers(
        &mut self,
        driver: &mut Driver,
        now: Time,
        volume: VolumeId,
        command: Command,
        reply: SyncSender<CommandReply>,
    ) {
        self.number_next += 1;
        let id = CommandId(self.number_next);
        if let Some(Origin::Tiered(tiered)) = self.origins.get_mut(&volume) {
            let given_up = match command {
                Command::GiveUp(member) => Some(member),
                _ => None,
            };
            self.asked.insert((volume, id), reply);
            tiered.tell(now, Event::Command(id, command));
            self.stirred.insert(volume);
            if let Some(member) = given_up.filter(|&it| !tiered.tiers().is_here(it)) {
                // What it has not ended nobody waits for any more.
                self.give_up_lane(driver, Goal::Member(volume, member));
            }
        }
    }

    /// Adds a device to the tiers of a volume. If there are none, nobody answers.
    pub fn add_member(
        &mut self,
        driver: &mut Driver,
        now: Time,
        volume: VolumeId,
        (member, new): (Member, NewDevice),
        reply: SyncSender<CommandReply>,
    ) {
        self.number_next += 1;
        let id = CommandId(self.number_next);
        let Some(Origin::Tiered(tiered)) = self.origins.get_mut(&volume) else { return };
        match tiered.add_member(now, id, (member, &new)) {
            Ok(number) => {
                if let Some(device) = tiered.device(number) {
                    self.add_lane(Goal::Member(volume, number), device);
                    self.allow_threads(driver);
                }
                self.asked.insert((volume, id), reply);
                self.stirred.insert(volume);
            }
            Err(why) => drop(reply.try_send(CommandReply::Refused(why))),
        }
    }

    /// Closes the devices that are no members of a volume's tiers any more.
    fn close_members(&mut self, volume: VolumeId) {
        let Some(Origin::Tiered(tiered)) = self.origins.get_mut(&volume) else { return };
        for number in tiered.drop_members() {
            self.close_lane(Goal::Member(volume, number));
        }
    }

    pub(super) fn turn_tiers(&mut self, driver: &mut Driver, now: Time, notices: &mut Notices) {
        for (volume, origin) in &mut self.origins {
            if let Origin::Tiered(tiered) = origin
                && tiered.poll(now)
            {
                self.stirred.insert(*volume);
            }
        }
        for _ in 0..ROUNDS_MAX {
            self.tell_tiers(now);
            self.step_rests(now);
            let Some(volume) = self.stirred.pop_first() else { return };
            let Some(Origin::Tiered(tiered)) = self.origins.get_mut(&volume) else { continue };
            let mut effects = Vec::new();
            tiered.settle(now, &mut effects);
            for effect in effects {
                self.carry_out_below(driver, now, volume, effect, notices);
            }
            self.take_finished(driver, now, notices);
        }
    }

    /// Tells tiers what their members have ended.
    fn tell_tiers(&mut self, now: Time) {
        for (goal, op, completion) in std::mem::take(&mut self.done_below) {
            let Goal::Member(volume, _) = goal else { continue };
            if let Some(Origin::Tiered(tiered)) = self.origins.get_mut(&volume) {
                tiered.tell(now, Event::Done(op, completion));
                self.stirred.insert(volume);
            }
        }
    }

    fn carry_out_below(
        &mut self,
        driver: &mut Driver,
        now: Time,
        volume: VolumeId,
        effect: Effect,
        notices: &mut Notices,
    ) {
        let member = member_of(&effect);
        let (op, work, offset, buf) = match effect {
            Effect::Read { op, offset, buf, .. } => (op, Work::Read, offset, buf),
            Effect::Write { op, offset, buf, .. } => (op, Work::Write, offset, buf),
            Effect::Flush { op, .. } => (op, Work::Flush, 0, Buf::empty()),
            Effect::Discard { op, offset, len, .. } => {
                (op, Work::Discard { len }, offset, Buf::empty())
            }
            Effect::Reply { id, completion } => {
                if let Some(Origin::Tiered(tiered)) = self.origins.get_mut(&volume) {
                    tiered.answered(OpId(id.0));
                    if completion.result == Err(IoError::NoSpace) {
                        tiered.had_no_room();
                        notices.send(HostNotice::NoRoom(volume));
                    }
                }
                return self.done.push((OpId(id.0), completion));
            }
            Effect::Notice(notice) => {
                return notices.send(HostNotice::Tiers(volume, notice));
            }
            Effect::CommandDone { id, reply } => {
                self.close_members(volume);
                if let Some(asked) = self.asked.remove(&(volume, id)) {
                    // Who asked may have gone.
                    let _ = asked.try_send(reply);
                }
                return;
            }
        };
        let member = member.expect("the rest is I/O on members");
        let Some(Origin::Tiered(tiered)) = self.origins.get_mut(&volume) else { return };
        match tiered.device(member) {
            Some(device) => {
                let goal = Goal::Member(volume, member);
                if is_cut(&device, &work, offset, &buf, notices) {
                    return self.end(goal, op, Err(IoError::Io), buf);
                }
                self.start_on(driver, now, (goal, op), (work, offset, buf), Some(device));
            }
            None => tiered.submit_below(op, member, origin_io(work, offset, buf), now),
        }
    }
}

/// Whether a member was cut, so that nobody knows what is left of it. It is looked at where it
/// matters, and not with each I/O: before a write that would make it as large as it was, and before
/// it is believed to have kept anything.
fn is_cut(device: &Device, work: &Work, offset: u64, buf: &Buf, notices: &mut Notices) -> bool {
    let looks = match work {
        Work::Write => offset + buf.len() as u64 >= device.info().bytes,
        Work::Flush => true,
        _ => false,
    };
    if looks {
        look_for_cut(device, notices);
    }
    device.cut_to().is_some()
}

/// Looks whether somebody has cut a member, and tells it.
pub(super) fn look_for_cut(device: &Device, notices: &mut Notices) {
    if device.look_for_cut() {
        let (path, was) = (device.path().to_path_buf(), device.info().bytes);
        let now = device.cut_to().unwrap_or(0);
        notices.send(HostNotice::Cut { path, was, now });
    }
}
