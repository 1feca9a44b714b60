//! Tiered origins that come to rest: what is under way ends, what the engine asks meanwhile waits,
//! and the tiers are stopped in order. Then their devices are closed, and others may open them, or
//! the same origin again with more devices: who asked for I/O sees a pause.

use super::{Executor, Goal};
use crate::driver::Driver;
use crate::origin::{Origin, OriginIo};
use forebay_engine::{Buf, Completion, IoError, OpId, Target, Time, VolumeId};
use forebay_tier::{Command, CommandId, Event};
use std::sync::mpsc::SyncSender;

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Requests end.
    Emptying,
    /// The tiers stop.
    Stopping,
    /// Devices are closed.
    Closed,
}

/// A tiered origin that comes to rest, or has.
#[derive(Debug)]
pub(super) struct Resting {
    step: Step,
    /// What the engine has asked since.
    held: Vec<(OpId, OriginIo)>,
    /// Who waits for it.
    reply: Option<SyncSender<()>>,
}

impl Executor {
    /// Brings the tiered origin of a volume to rest. If there is none, nobody answers.
    pub fn rest_tiers(&mut self, volume: VolumeId, reply: Option<SyncSender<()>>) {
        if self.tiered(volume).is_some() && !self.resting.contains_key(&volume) {
            self.resting.insert(volume, Resting { step: Step::Emptying, held: Vec::new(), reply });
            self.stirred.insert(volume);
        }
    }

    /// It goes on instead, unless its tiers stop already. Whether it does.
    pub fn rouse_tiers(&mut self, now: Time, volume: VolumeId) -> bool {
        match self.resting.get(&volume).map(|it| it.step) {
            Some(Step::Emptying) => self.release(now, volume),
            Some(_) => return false,
            None => {}
        }
        true
    }

    /// Opened again, it goes on with what has waited.
    pub fn replace_tiers(
        &mut self,
        driver: &mut Driver,
        now: Time,
        (volume, origin): (VolumeId, Origin),
    ) -> bool {
        let is_closed = self.resting.get(&volume).is_some_and(|it| it.step == Step::Closed);
        if is_closed {
            self.add_origin(driver, volume, origin);
            self.release(now, volume);
        }
        is_closed
    }

    /// Whether an I/O of the engine waits for tiers that rest; then it is kept.
    pub(super) fn holds(&self, volume: VolumeId) -> bool {
        self.resting.contains_key(&volume)
    }

    pub(super) fn hold(&mut self, volume: VolumeId, op: OpId, io: OriginIo) {
        self.resting.get_mut(&volume).expect("it comes to rest").held.push((op, io));
    }

    fn release(&mut self, now: Time, volume: VolumeId) {
        let Some(resting) = self.resting.remove(&volume) else { return };
        let Some(origin) = self.origins.get_mut(&volume) else {
            return self.fail_held(volume, resting.held);
        };
        for (op, io) in resting.held {
            origin.submit(op, io, now);
        }
        self.stirred.insert(volume);
    }

    fn fail_held(&mut self, volume: VolumeId, held: Vec<(OpId, OriginIo)>) {
        for (op, io) in held {
            let goal = Goal::Engine(Target::Origin(volume));
            self.end(goal, op, Err(IoError::Gone), io.into_buf());
        }
    }

    /// Nobody waits for an origin that is removed.
    pub(super) fn forget_rest(&mut self, volume: VolumeId) {
        if let Some(resting) = self.resting.remove(&volume) {
            self.fail_held(volume, resting.held);
        }
        if let Some(Origin::Tiered(tiered)) = self.origins.get_mut(&volume) {
            let unanswered = tiered.take_unanswered();
            let result = Err(IoError::Gone);
            let gone = |(op, len)| (op, Completion { result, buf: Buf::zeroed(len) });
            self.done.extend(unanswered.into_iter().map(gone));
        }
    }

    /// Lets those go on that come to rest.
    pub(super) fn step_rests(&mut self, now: Time) {
        for volume in self.resting.keys().copied().collect::<Vec<VolumeId>>() {
            self.step_rest(now, volume);
        }
    }

    fn step_rest(&mut self, now: Time, volume: VolumeId) {
        let step = self.resting[&volume].step;
        let Some(Origin::Tiered(tiered)) = self.origins.get_mut(&volume) else { return };
        match step {
            Step::Emptying if tiered.is_idle() => {
                self.number_next += 1;
                let id = CommandId(self.number_next);
                tiered.tell(now, Event::Command(id, Command::Stop));
                self.stirred.insert(volume);
                self.resting.get_mut(&volume).expect("it is").step = Step::Stopping;
            }
            // However the stop ended: nothing is under way any more.
            Step::Stopping if tiered.tiers().is_stopped() => self.close_tiers(volume),
            _ => {}
        }
    }

    /// Closes the devices of tiers that have stopped.
    fn close_tiers(&mut self, volume: VolumeId) {
        let Some(mut resting) = self.resting.remove(&volume) else { return };
        self.remove_origin(volume);
        resting.step = Step::Closed;
        if let Some(reply) = resting.reply.take() {
            // Who asked may have gone.
            let _ = reply.try_send(());
        }
        self.resting.insert(volume, resting);
    }

    /// Brings all tiered origins to rest.
    pub fn rest_all(&mut self) {
        let all: Vec<VolumeId> = self.origins.keys().copied().collect();
        all.into_iter().for_each(|volume| self.rest_tiers(volume, None));
    }

    /// Whether all that were to come to rest have.
    pub fn all_rest(&self) -> bool {
        self.resting.values().all(|it| it.step == Step::Closed)
    }

    /// Whether this one has, or is none that was to.
    pub fn is_at_rest(&self, volume: VolumeId) -> bool {
        self.resting.get(&volume).is_none_or(|it| it.step == Step::Closed)
    }
}
