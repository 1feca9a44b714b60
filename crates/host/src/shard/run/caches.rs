//! Cache devices that hang, and those that are replaced.

use super::Shard;
use crate::device::Device;
use forebay_engine::{Command, CommandReply, DeviceId, NewDevice};
use std::sync::mpsc::SyncSender;

impl Shard {
    /// Does without a cache device that hangs, if another has all that is dirty, and works.
    pub(super) fn give_up_hanging(&mut self) {
        for device in self.executor.hanging().collect::<Vec<DeviceId>>() {
            if self.engine.can_spare(device, |other| self.executor.moves(other)) {
                self.executor.give_up(&mut self.driver, device, &mut self.notices);
            }
        }
    }

    /// A device that the engine does not use any more is closed.
    pub(super) fn close_cache(&mut self, device: DeviceId, reply: &SyncSender<bool>) {
        let _ = reply.send(self.executor.close_cache(device));
    }

    /// Another one has its place.
    pub(super) fn take_in(
        &mut self,
        (device, new): (Device, NewDevice),
        reply: SyncSender<CommandReply>,
    ) {
        self.executor.add_cache(&mut self.driver, new.device, device);
        self.command(Command::TakeIn(Box::new(new)), Some(reply));
    }
}
