//! FLUSHes are sent where somebody wants one, and each says what is durable when it ends.

use crate::Mutant;
use crate::engine::Engine;
use crate::event::*;
use crate::ids::Dseq;
use crate::log::flush::FlushFor;
use crate::op::Op;

impl Engine {
    /// Somebody wants the log durable up to `dseq`.
    pub(crate) fn want_durable(&mut self, dseq: Dseq) {
        self.log.wants_durable(dseq);
    }

    /// Issues the FLUSHes of the cache devices that are wanted and would help now.
    pub(crate) fn flush_more(&mut self) {
        if self.log.flush_helps() {
            self.log.flush_begins();
            for index in 0..self.segments.devices().len() {
                let device = &self.segments.devices()[index];
                if device.healthy && device.volatile_cache {
                    self.log.flush_of_one_begins();
                    self.device_flush(DeviceId(index as u8), FlushFor::Log);
                }
            }
            if self.log.flush_is_over() {
                self.cache_flushed();
            }
        }
    }

    /// Asks for a FLUSH of a device, of all that was written to it up to now.
    pub(crate) fn device_flush(&mut self, device: DeviceId, why: FlushFor) {
        self.log.turn(device).waiting.push(why);
        self.device_flush_more(device);
    }

    fn device_flush_more(&mut self, device: DeviceId) {
        if self.log.turn_begins(device) {
            self.io.flush(Op::DeviceFlush { device }, Target::Cache(device));
        }
    }

    /// A device's FLUSH has ended. After one that failed, the device may have dropped what it
    /// should have made durable, and a second would succeed without it: none is tried again.
    pub(crate) fn device_flushed(&mut self, device: DeviceId, result: Result<(), IoError>) {
        let again = result.is_err() && self.is(Mutant::FlushTriedAgain);
        let turn = self.log.turn(device);
        let mut ended = std::mem::take(&mut turn.under_way);
        if again {
            turn.waiting.append(&mut ended);
            return self.device_flush_more(device);
        }
        if result.is_err() {
            ended.append(&mut turn.waiting);
            self.device_failed(device, "a FLUSH failed");
        }
        for why in ended {
            match why {
                FlushFor::Log => self.log_flushed(),
                FlushFor::Checkpoint => self.checkpoint_flushed(result),
                FlushFor::Superblock => self.superblock_end(),
                FlushFor::Opening => self.recover_flushed(),
            }
        }
        self.device_flush_more(device);
    }

    fn log_flushed(&mut self) {
        self.log.flush_of_one_ends();
        if self.is(Mutant::FlushCoversLate) {
            self.log.flush_covers_late();
        }
        let one = self.is(Mutant::FlushOneDevice);
        if (self.log.flush_is_over() || one) && !self.log.is_dead() {
            self.cache_flushed();
        }
    }

    fn cache_flushed(&mut self) {
        let durable = self.log.flushed();
        self.set_durable(durable);
    }
}
