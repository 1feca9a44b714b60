//! A new life of the log begins with a superblock: when what recovery found, and the superblock
//! that it began with, are on all devices.

use crate::engine::Engine;
use crate::event::DeviceId;
use crate::op::flush::FlushFor;
use crate::op::open::Step;
use crate::op::superblock::Then;
use zerocopy::little_endian::U64;

impl Engine {
    /// The superblock that was read may not have survived a power cut yet: before the other copy is
    /// written, it must.
    pub(crate) fn recover_settle(&mut self) {
        self.open_mut().step = Step::Settle;
        for index in 0..self.segments.devices.len() {
            let device = &self.segments.devices[index];
            if device.healthy && device.volatile_cache {
                self.open_mut().flushes += 1;
                self.device_flush(DeviceId(index as u8), FlushFor::Opening);
            }
        }
        self.recover_settled();
    }

    fn recover_settled(&mut self) {
        if self.open_mut().flushes > 0 || self.dead {
            return;
        }
        let behind = std::mem::take(&mut self.open_mut().behind);
        let behind: Vec<usize> =
            behind.into_iter().filter(|&index| self.segments.devices[index].healthy).collect();
        self.open_mut().step = Step::Superblock;
        match behind.is_empty() {
            true => self.recover_epoch(),
            false => self.superblock_catch_up(&behind),
        }
    }

    /// All devices have the superblock of the life before: a new one begins.
    pub(crate) fn recover_epoch(&mut self) {
        let header = &mut self.sb.block.header;
        header.epoch = U64::new(header.epoch.get() + 1);
        header.clean = 0;
        self.superblock_write(Then::Opened);
    }

    /// A cache device has been flushed, or has failed.
    pub(crate) fn recover_flushed(&mut self) {
        if self.opening.is_some() {
            self.open_mut().flushes -= 1;
            self.recover_settled();
        }
    }
}
